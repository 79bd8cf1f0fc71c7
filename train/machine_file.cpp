#include "train/machine_file.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/config_value.hpp"
#include "core/files.hpp"
#include "core/system.hpp"
#include "scheduler/exec/state_format.hpp"

namespace headrace::train {
namespace {

using plan::MachineProfile;

constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 20U;
constexpr int kIoDepthMax = 4096;  // as of tiers.io_depth
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kRequestBytesMax = std::uint64_t{64} << 20U;
constexpr std::size_t kSizesMax = 64;      // at which a rate was measured
constexpr double kMemoryTolerance = 0.02;  // the kernel keeps a little more or less for itself

// Rates of updates by state format: one of a format's.
struct UpdateRate {
  std::string state;
  double plan::UpdateRates::*rate;
};

// Rates by size: of products by rows, of attention by tokens. Sizes are the same for every product
// (the first's stand for all), and for both of attention's.
struct ProductRate {
  std::size_t pass = 0;
  std::size_t layout = 0;
};

struct AttentionRate {
  bool backward = false;
};

enum class Sizes : std::uint8_t { kProducts, kAttention };

struct ElementRate {
  std::size_t operation = 0;
};

using Member = std::variant<std::string MachineFile::*,
                            std::string MachineProfile::*,
                            int MachineProfile::*,
                            std::uint64_t MachineProfile::*,
                            double MachineProfile::*,
                            UpdateRate,
                            ProductRate,
                            AttentionRate,
                            Sizes,
                            ElementRate>;

struct Limits {
  double least = 1;
  double most = 1e18;
};

constexpr Limits kShare = {.least = 1e-3, .most = 1};
constexpr Limits kSeconds = {.least = 1e-9, .most = 1};

struct Key {
  std::string name;
  Member member;
  std::string_view comment;
  int since = kMachineSchemaOldest;  // the schema that has it first
  Limits limits = {};                // of a number that is not 0
};

constexpr int kWorkSchema = 5;  // has rates of work by its kind, and of what runs beside

constexpr std::array<const char*, plan::kProductPasses> kPassNames = {"forward", "input", "weight"};
constexpr std::array<const char*, plan::kWeightLayouts> kLayoutNames = {"out_in", "in_out"};
constexpr std::array<const char*, plan::kElementOperations> kElementNames = {"add",
                                                                             "norm",
                                                                             "norm_backward",
                                                                             "gelu",
                                                                             "gelu_backward",
                                                                             "swiglu",
                                                                             "swiglu_backward",
                                                                             "rotate",
                                                                             "column_sum",
                                                                             "softmax"};

// Of products, attention, and operations over elements.
void add_work_rates(std::vector<Key>& table) {
  const auto add = [&](std::string name, const Member& member, std::string_view comment) {
    table.push_back({.name = std::move(name),
                     .member = member,
                     .comment = comment,
                     .since = kWorkSchema,
                     .limits = {}});
  };
  add("gemm_rows", Sizes::kProducts, "rows of a micro-batch at which products were measured");
  for (std::size_t pass = 0; pass < plan::kProductPasses; ++pass) {
    for (std::size_t layout = 0; layout < plan::kWeightLayouts; ++layout) {
      add(fmt::format("gemm_{}_{}_flops_per_s", kPassNames[pass], kLayoutNames[layout]),
          ProductRate{.pass = pass, .layout = layout},
          "");
    }
  }
  add("attention_tokens", Sizes::kAttention, "of a sequence, at which attention was measured");
  add("attention_forward_flops_per_s", AttentionRate{.backward = false}, "");
  add("attention_backward_flops_per_s", AttentionRate{.backward = true}, "");
  for (std::size_t i = 0; i < plan::kElementOperations; ++i) {
    add(fmt::format("{}_elements_per_s", kElementNames[i]), ElementRate{.operation = i}, "");
  }
  table.push_back({.name = "operation_s",
                   .member = &MachineProfile::operation_s,
                   .comment = "of a kernel on all cores, however little it does",
                   .since = kWorkSchema,
                   .limits = kSeconds});
  add("collect_params_per_s",
      &MachineProfile::collect_params_per_s,
      "gradients checked and summed, all cores");
}

// A rate while something else runs, as a share of the rate alone.
void add_shares(std::vector<Key>& table) {
  const auto add = [&](const char* name, double MachineProfile::*share, std::string_view comment) {
    table.push_back({.name = name,
                     .member = share,
                     .comment = comment,
                     .since = kWorkSchema,
                     .limits = kShare});
  };
  add("compute_beside_nvme",
      &MachineProfile::compute_beside_nvme,
      "share of the rate alone while the other runs; 0: not measured");
  add("update_beside_nvme", &MachineProfile::update_beside_nvme, "");
  add("nvme_beside_compute", &MachineProfile::nvme_beside_compute, "");
  add("nvme_beside_update", &MachineProfile::nvme_beside_update, "");
  add("compute_beside_copy", &MachineProfile::compute_beside_copy, "");
  add("copy_beside_compute", &MachineProfile::copy_beside_compute, "");
}

// Of every format in the optimizer's table. "fp32" was there before the others.
void add_update_rates(std::vector<Key>& table) {
  for (const plan::StateFormat& format : exec::state_formats()) {
    const int since = format.name == plan::StateFormat{}.name ? kMachineSchemaOldest : 4;
    const auto add =
        [&](std::string name, double plan::UpdateRates::*rate, std::string_view comment) {
          table.push_back({.name = std::move(name),
                           .member = UpdateRate{.state = format.name, .rate = rate},
                           .comment = comment,
                           .since = since});
        };
    add(fmt::format("adamw_{}_params_per_s", format.name),
        &plan::UpdateRates::update_params_per_s,
        "all cores");
    if (format.decoded) {
      add(fmt::format("adamw_{}_decoded_params_per_s", format.name),
          &plan::UpdateRates::update_decoded_params_per_s,
          "with the new weights written as floats, too");
      add(fmt::format("decode_{}_params_per_s", format.name),
          &plan::UpdateRates::decode_params_per_s,
          "weights as floats, without an update");
    }
  }
}

std::vector<Key> make_keys() {
  std::vector<Key> table = {
      {"schema", &MachineProfile::schema, "version of this file"},
      {"cpu", &MachineProfile::cpu, ""},
      {"cores", &MachineProfile::cores, "that the process may use"},
      {"memory_bytes", &MachineProfile::memory_bytes, ""},
      {"kernel", &MachineProfile::kernel, ""},
      {"gemm_fp32_flops_per_s", &MachineProfile::gemm_fp32_flops_per_s, "all cores"},
      {"memory_bytes_per_s",
       &MachineProfile::memory_bytes_per_s,
       "all cores: four arrays read, three of them written in place"},
      {"host_copy_bytes_per_s", &MachineProfile::host_copy_bytes_per_s, "one thread, bytes copied"},
  };
  add_work_rates(table);
  add_update_rates(table);
  const std::vector<Key> rest = {
      {"checksum_bytes_per_s", &MachineProfile::checksum_bytes_per_s, "one core"},
      {"nvme_device", &MachineFile::nvme_device, "major:minor of the drive measured"},
      {"nvme_read_bytes_per_s",
       &MachineProfile::nvme_read_bytes_per_s,
       "direct I/O; 0: not measured"},
      {"nvme_write_bytes_per_s", &MachineProfile::nvme_write_bytes_per_s, ""},
      {"nvme_mixed_bytes_per_s",
       &MachineProfile::nvme_mixed_bytes_per_s,
       "reads and writes together, half of each"},
      {"nvme_mixed_reads_bytes_per_s",
       &MachineProfile::nvme_mixed_reads_bytes_per_s,
       "three bytes read for each written",
       kWorkSchema},
      {"nvme_mixed_writes_bytes_per_s",
       &MachineProfile::nvme_mixed_writes_bytes_per_s,
       "three bytes written for each read",
       kWorkSchema},
      {"nvme_io_depth", &MachineProfile::nvme_io_depth, "requests in flight that the drive needs"},
      {"nvme_request_bytes", &MachineProfile::nvme_request_bytes, "of each of them"},
      {"nvme_capacity_bytes", &MachineProfile::nvme_capacity_bytes, "of the filesystem"},
  };
  table.insert(table.end(), rest.begin(), rest.end());
  add_shares(table);
  return table;
}

const std::vector<Key>& keys() {
  static const std::vector<Key> table = make_keys();
  return table;
}

double* rate_of(MachineProfile& profile, const UpdateRate& rate) {
  return &(profile.update_rates[rate.state].*rate.rate);
}

const double* rate_of(const MachineProfile& profile, const UpdateRate& rate) {
  static constexpr double kNotMeasured = 0;
  const auto found = profile.update_rates.find(rate.state);
  return found == profile.update_rates.end() ? &kNotMeasured : &(found->second.*rate.rate);
}

std::vector<double>* rates_of(MachineProfile& profile, const ProductRate& rate) {
  return &profile.gemm[rate.pass][rate.layout].rates;
}

const std::vector<double>* rates_of(const MachineProfile& profile, const ProductRate& rate) {
  return &profile.gemm[rate.pass][rate.layout].rates;
}

template <class Profile>
auto* attention_of(Profile& profile, const AttentionRate& rate) {
  return rate.backward ? &profile.attention_backward : &profile.attention_forward;
}

// The member of either struct that a pointer names, as one variant of pointers.
template <class File>
auto reach(File& file, const Member& member) {
  using Text = decltype(&(file.nvme_device));
  using Int = decltype(&(file.profile.cores));
  using Uint = decltype(&(file.profile.memory_bytes));
  using Double = decltype(&(file.profile.memory_bytes_per_s));
  using Numbers = decltype(&(file.profile.attention_forward.rates));
  using Target = std::variant<Text, Int, Uint, Double, Numbers>;
  return std::visit(
      [&](const auto& pointer) -> Target {
        using Pointer = std::decay_t<decltype(pointer)>;
        if constexpr (std::is_same_v<Pointer, std::string MachineFile::*>) {
          return Target(&(file.*pointer));
        } else if constexpr (std::is_same_v<Pointer, UpdateRate>) {
          return Target(rate_of(file.profile, pointer));
        } else if constexpr (std::is_same_v<Pointer, ProductRate>) {
          return Target(rates_of(file.profile, pointer));
        } else if constexpr (std::is_same_v<Pointer, AttentionRate>) {
          return Target(&attention_of(file.profile, pointer)->rates);
        } else if constexpr (std::is_same_v<Pointer, Sizes>) {
          return Target(pointer == Sizes::kProducts ? &file.profile.gemm[0][0].sizes
                                                    : &file.profile.attention_forward.sizes);
        } else if constexpr (std::is_same_v<Pointer, ElementRate>) {
          return Target(&file.profile.elements_per_s[pointer.operation]);
        } else {
          return Target(&(file.profile.*pointer));
        }
      },
      member);
}

std::string toml_of(const std::string& value) {
  return toml_quoted(value);
}

std::string toml_of(int value) {
  return fmt::format("{}", value);
}

std::string toml_of(std::uint64_t value) {
  return fmt::format("{}", value);
}

// The shortest text that reads back to the same double, with a point or an exponent as TOML wants.
std::string toml_of(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

std::string toml_of(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) {
    text += (text.size() > 1 ? ", " : "") + toml_of(value);
  }
  return text + "]";
}

bool assign(std::string& target, const ConfigValue& value) {
  const auto* text = value.get<std::string>();
  if (text != nullptr) {
    target = *text;
  }
  return text != nullptr;
}

bool assign(int& target, const ConfigValue& value) {
  const auto* number = value.get<std::int64_t>();
  const bool good = number != nullptr && *number >= 0 && *number <= 1'000'000;
  target = good ? static_cast<int>(*number) : 0;
  return good;
}

bool assign(std::uint64_t& target, const ConfigValue& value) {
  const auto* number = value.get<std::int64_t>();
  const bool good = number != nullptr && *number >= 0;
  target = good ? static_cast<std::uint64_t>(*number) : 0;
  return good;
}

bool assign(double& target, const ConfigValue& value) {
  if (const auto* whole = value.get<std::int64_t>()) {
    target = static_cast<double>(*whole);
  } else if (const auto* number = value.get<double>()) {
    target = *number;
  } else {
    return false;
  }
  return std::isfinite(target) && target >= 0;
}

bool assign(std::vector<double>& target, const ConfigValue& value) {
  const auto* list = value.get<ConfigValue::Array>();
  if (list == nullptr || list->size() > kSizesMax) {
    return false;
  }
  target.resize(list->size());
  return std::equal(target.begin(), target.end(), list->begin(), [](double& number, const auto& v) {
    return assign(number, v);
  });
}

class Problems {
 public:
  void add(const std::string& what, const std::string& place) {
    Error error = usage_error(what).with_where(place).with_hint(
        "docs/machine.md has the schema; headrace plan without --machine measures this machine");
    if (first_) {
      first_->others.push_back(std::move(error));
    } else {
      first_ = std::move(error);
    }
  }

  [[nodiscard]] std::optional<Error>& first() { return first_; }

 private:
  std::optional<Error> first_;
};

// Zero says that a rate was not measured; less or more than these is no machine's, and makes times
// that say nothing.

// As many rates as sizes, and sizes that ascend.
void check_sizes(const MachineProfile& profile, const std::string& name, Problems& problems) {
  const auto check = [&](const std::string& what, const plan::SizedRates& measured) {
    if (measured.rates.size() != measured.sizes.size()) {
      problems.add(fmt::format("machine profile: {} has {} rates for {} sizes",
                               what,
                               measured.rates.size(),
                               measured.sizes.size()),
                   name);
    }
  };
  for (std::size_t pass = 0; pass < plan::kProductPasses; ++pass) {
    for (std::size_t layout = 0; layout < plan::kWeightLayouts; ++layout) {
      check(fmt::format("gemm_{}_{}_flops_per_s", kPassNames[pass], kLayoutNames[layout]),
            profile.gemm[pass][layout]);
    }
  }
  check("attention_forward_flops_per_s", profile.attention_forward);
  check("attention_backward_flops_per_s", profile.attention_backward);
  const auto ascends = [&](const char* key, const std::vector<double>& sizes) {
    const auto falls = std::adjacent_find(sizes.begin(), sizes.end(), std::greater_equal<>());
    if (falls != sizes.end() || (!sizes.empty() && sizes.front() < 1)) {
      problems.add(fmt::format("machine profile: {} does not ascend from at least 1", key), name);
    }
  };
  ascends("gemm_rows", profile.gemm[0][0].sizes);
  ascends("attention_tokens", profile.attention_forward.sizes);
}

// Sizes are in the file once.
void share_sizes(MachineProfile& profile) {
  for (auto& of_pass : profile.gemm) {
    for (plan::SizedRates& rates : of_pass) {
      rates.sizes = profile.gemm[0][0].sizes;
    }
  }
  profile.attention_backward.sizes = profile.attention_forward.sizes;
}

void check_sense(const MachineFile& machine, const std::string& name, Problems& problems) {
  const MachineProfile& profile = machine.profile;
  if (profile.cores < 1) {
    problems.add(fmt::format("machine profile: cores = {}; there is at least 1", profile.cores),
                 name);
  }
  if (profile.nvme_io_depth > kIoDepthMax) {
    problems.add(
        fmt::format("machine profile: nvme_io_depth = {}; at most {} requests are in flight",
                    profile.nvme_io_depth,
                    kIoDepthMax),
        name);
  }
  if (profile.nvme_request_bytes % kPageBytes != 0 ||
      profile.nvme_request_bytes > kRequestBytesMax) {
    problems.add(
        fmt::format("machine profile: nvme_request_bytes = {}; a request is of whole pages "
                    "of {}, and at most {}",
                    profile.nvme_request_bytes,
                    kPageBytes,
                    kRequestBytesMax),
        name);
  }
  for (const Key& key : keys()) {
    const auto member = reach(machine, key.member);
    const auto no_machines = [&](double value) {
      return value > 0 && (value < key.limits.least || value > key.limits.most);
    };
    const auto* const* rate = std::get_if<const double*>(&member);
    if (rate != nullptr && no_machines(**rate)) {
      problems.add(fmt::format("machine profile: {} = {} is no machine's", key.name, **rate), name);
    }
    const auto* const* rates = std::get_if<const std::vector<double>*>(&member);
    if (rates != nullptr && std::any_of((*rates)->begin(), (*rates)->end(), no_machines)) {
      problems.add(fmt::format("machine profile: {} has a number that is no machine's", key.name),
                   name);
    }
  }
  check_sizes(profile, name, problems);
}

bool near(std::uint64_t a, std::uint64_t b) {
  const auto larger = static_cast<double>(std::max(a, b));
  return static_cast<double>(std::max(a, b) - std::min(a, b)) <= kMemoryTolerance * larger;
}

}  // namespace

std::string machine_to_toml(const MachineFile& machine) {
  std::string text = "# Rates measured by headrace. Delete the file to have them measured again.\n";
  for (const Key& key : keys()) {
    const std::string value = std::visit([](const auto* pointer) { return toml_of(*pointer); },
                                         reach(machine, key.member));
    const std::string comment = key.comment.empty() ? "" : fmt::format("  # {}", key.comment);
    text += fmt::format("{} = {}{}\n", key.name, value, comment);
  }
  return text;
}

Result<MachineFile> machine_from_toml(std::string_view text, const std::string& name) {
  HEADRACE_ASSIGN(const ConfigValue::Table table, parse_config_text(text, name));
  MachineFile machine;
  Problems problems;
  for (const ConfigEntry& entry : table) {
    const auto key = std::find_if(keys().begin(), keys().end(), [&](const Key& candidate) {
      return candidate.name == entry.key;
    });
    if (key == keys().end()) {
      problems.add(fmt::format("machine profile: unknown key '{}'", entry.key), entry.place);
      continue;
    }
    const bool good = std::visit([&](auto* pointer) { return assign(*pointer, entry.value); },
                                 reach(machine, key->member));
    if (!good) {
      problems.add(fmt::format("machine profile: {} has a value of the wrong kind", entry.key),
                   entry.value.place);
    }
  }
  share_sizes(machine.profile);
  const int schema = std::max(machine.profile.schema, kMachineSchemaOldest);
  for (const Key& key : keys()) {
    if (key.since > schema) {
      continue;
    }
    const bool present = std::any_of(table.begin(), table.end(), [&](const ConfigEntry& entry) {
      return entry.key == key.name;
    });
    if (!present) {
      problems.add(fmt::format("machine profile: {} is missing", key.name), name);
    }
  }
  if (!problems.first()) {
    check_sense(machine, name, problems);
  }
  if (!problems.first() &&
      (machine.profile.schema < kMachineSchemaOldest || machine.profile.schema > kMachineSchema)) {
    problems.add(fmt::format("machine profile: schema {} is not within {} .. {}",
                             machine.profile.schema,
                             kMachineSchemaOldest,
                             kMachineSchema),
                 name);
  }
  if (problems.first()) {
    return *std::move(problems.first());
  }
  return machine;
}

Result<MachineFile> read_machine_file(const std::string& path) {
  HEADRACE_ASSIGN(const std::string text, read_file(path, kFileBytesMax));
  return machine_from_toml(text, path);
}

Status write_machine_file(const std::string& path, const MachineFile& machine) {
  HEADRACE_TRY(make_directory(parent_path(path), Parents::kMake));
  return write_file_atomically(path, machine_to_toml(machine));
}

std::string machine_cache_path() {
  // NOLINTBEGIN(concurrency-mt-unsafe): nothing in this process changes the environment
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') {
    return std::string(cache) + "/headrace/machine.toml";
  }
  const char* home = std::getenv("HOME");
  // NOLINTEND(concurrency-mt-unsafe)
  if (home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/headrace/machine.toml";
  }
  return "";
}

Result<MachineProfile> this_machine() {
  MachineProfile profile;
  profile.cpu = cpu_model_name();
  profile.cores = usable_cores();
  HEADRACE_ASSIGN(const HostMemory memory, host_memory());
  profile.memory_bytes = memory.total_bytes;
  struct utsname names = {};
  if (::uname(&names) == 0) {
    profile.kernel = names.release;
  }
  return profile;
}

std::vector<std::string> fingerprint_differences(const MachineProfile& profile,
                                                 const MachineProfile& here) {
  std::vector<std::string> differences;
  if (profile.cpu != here.cpu) {
    differences.push_back(
        fmt::format("cpu: '{}' in the profile, '{}' here", profile.cpu, here.cpu));
  }
  if (profile.cores != here.cores) {
    differences.push_back(
        fmt::format("cores: {} in the profile, {} here", profile.cores, here.cores));
  }
  if (!near(profile.memory_bytes, here.memory_bytes)) {
    differences.push_back(fmt::format(
        "memory: {} bytes in the profile, {} here", profile.memory_bytes, here.memory_bytes));
  }
  if (profile.kernel != here.kernel) {
    differences.push_back(
        fmt::format("kernel: '{}' in the profile, '{}' here", profile.kernel, here.kernel));
  }
  return differences;
}

}  // namespace headrace::train
