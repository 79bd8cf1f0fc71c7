#include "train/probe.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/threads.hpp"
#include "kernels/kernels.hpp"
#include "optim_cpu/adamw.hpp"
#include "optim_cpu/threads.hpp"
#include "tiers/device.hpp"
#include "tiers/memory.hpp"
#include "train/probe_nvme.hpp"

namespace headrace::train {
namespace {

using Clock = std::chrono::steady_clock;
using plan::MachineProfile;

constexpr std::chrono::milliseconds kTime{250};  // of each measurement
constexpr std::int64_t kGemmRows = 512;
constexpr std::int64_t kGemmColumns = 1024;
constexpr std::int64_t kParams = std::int64_t{8} << 20;  // 32 MiB an array: past the caches

// Work per second of `round`, the best of as many rounds as fit in kTime, after one that warms up.
template <class Round>
double best_rate(double work_of_round, const Round& round) {
  round();
  double best = 0;
  const Clock::time_point end = Clock::now() + kTime;
  while (Clock::now() < end) {
    const Clock::time_point begin = Clock::now();
    round();
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    best = std::max(best, work_of_round / std::max(seconds.count(), 1e-9));
  }
  return best;
}

void fill(std::span<float> values, float value) {
  std::fill(values.begin(), values.end(), value);
}

Result<double> gemm_rate(int threads) {
  const kernels::LinearShape shape = {.rows = kGemmRows,
                                      .inputs = kGemmColumns,
                                      .outputs = kGemmColumns,
                                      .layout = kernels::WeightLayout::kOutIn,
                                      .bias = false};
  const std::size_t workspace_bytes = kernels::linear_workspace_bytes(shape, threads);
  const std::size_t matrix_bytes = static_cast<std::size_t>(kGemmColumns * kGemmColumns) * 4;
  HEADRACE_ASSIGN(
      const std::unique_ptr<tiers::Arena> arena,
      tiers::Arena::create(tiers::Tier::kHost, "probe", 3 * matrix_bytes + workspace_bytes));
  auto* x = reinterpret_cast<float*>(arena->data());
  auto* weight = reinterpret_cast<float*>(arena->data() + matrix_bytes);
  auto* y = reinterpret_cast<float*>(arena->data() + 2 * matrix_bytes);
  fill({x, matrix_bytes / 4}, 0.5F);
  fill({weight, matrix_bytes / 4}, 0.25F);
  tiers::Runtime runtime;
  HEADRACE_ASSIGN(const std::unique_ptr<tiers::Device> device,
                  tiers::make_cpu_device(runtime, {.compute_threads = threads}));
  const kernels::Context context = {
      .queue = device->compute(),
      .workspace = {arena->data() + 3 * matrix_bytes, workspace_bytes},
      .threads = threads};
  kernels::LinearArgs args;
  args.shape = shape;
  args.x = {.data = x};
  args.weight = {.data = weight};
  args.y = {.data = y};
  std::optional<Error> error;
  const double flops = 2.0 * kGemmRows * kGemmColumns * kGemmColumns;
  const double rate = best_rate(flops, [&] {
    kernels::linear(context, args);
    if (Status status = device->compute().record().wait_host(); !status) {
      error = std::move(status).error();
    }
  });
  if (error) {
    return *std::move(error);
  }
  return rate;
}

struct MomentArrays {
  std::span<float> param, gradient, m, v;
};

// Memory and AdamW over the same four arrays.
Status state_rates(int threads, MachineProfile& profile) {
  const std::size_t bytes = static_cast<std::size_t>(kParams) * 4;
  HEADRACE_ASSIGN(const std::unique_ptr<tiers::Arena> arena,
                  tiers::Arena::create(tiers::Tier::kHost, "probe", 4 * bytes));
  HEADRACE_ASSIGN(const std::unique_ptr<optim::Threads> team, optim::Threads::create(threads));
  const auto array = [&](std::size_t index) {
    return std::span(reinterpret_cast<float*>(arena->data() + index * bytes),
                     static_cast<std::size_t>(kParams));
  };
  const MomentArrays arrays = {array(0), array(1), array(2), array(3)};
  for (const std::span<float> values : {arrays.param, arrays.gradient, arrays.m, arrays.v}) {
    fill(values, 0.001F);
  }
  profile.memory_bytes_per_s = best_rate(7.0 * static_cast<double>(bytes), [&] {
    team->parallel_for_ranges(kParams / optim::kBlockElements, [&](auto begin, auto end) {
      for (auto i = static_cast<std::size_t>(begin * optim::kBlockElements);
           i < static_cast<std::size_t>(end * optim::kBlockElements);
           ++i) {
        arrays.m[i] = 0.9F * arrays.m[i] + arrays.gradient[i];
        arrays.v[i] = 0.9F * arrays.v[i] + arrays.gradient[i];
        arrays.param[i] = arrays.param[i] - 0.001F * arrays.m[i];
      }
    });
  });
  const optim::AdamWConstants constants = optim::adamw_constants({.lr = 1e-4});
  profile.adamw_fp32_params_per_s = best_rate(static_cast<double>(kParams), [&] {
    team->parallel_for(kParams / optim::kBlockElements, [&](std::int64_t block) {
      const std::int64_t begin = block * optim::kBlockElements;
      optim::adamw_update({.param = arrays.param.data() + begin,
                           .m = arrays.m.data() + begin,
                           .v = arrays.v.data() + begin,
                           .gradient = arrays.gradient.data() + begin,
                           .elements = optim::kBlockElements},
                          constants);
    });
  });
  profile.host_copy_bytes_per_s = best_rate(static_cast<double>(bytes), [&] {
    std::memcpy(arrays.m.data(), arrays.param.data(), bytes);
  });
  std::uint64_t hash = 0;
  profile.checksum_bytes_per_s = best_rate(
      static_cast<double>(bytes), [&] { hash ^= hash_bytes(std::as_bytes(arrays.param)); });
  log_debug(fmt::format("probe: sum {}", hash));  // the hash has a reader, so it is not left out
  return {};
}

void warn_of_differences(const std::string& path, const std::vector<std::string>& differences) {
  for (const std::string& difference : differences) {
    log_warning(fmt::format("'{}' is of another machine: {}", path, difference));
  }
}

// What a child process sends to its parent: "ok" or "error" in the first line, then the text. The
// stack above is the parent's: nothing may unwind it, be it by an exception.
[[noreturn]] void probe_and_send(int pipe, const std::string& store_folder) {
  std::string text;
  try {
    const Result<MachineFile> machine = probe_machine(store_folder);
    text = machine ? "ok\n" + machine_to_toml(*machine)
                   : fmt::format("error\n{}: {}", machine.error().what, machine.error().why);
  } catch (const std::exception& error) {
    text = fmt::format("error\n{}", error.what());
  }
  const Status status = write_all(pipe, text);
  ::_exit(status ? 0 : 1);
}

std::string receive(int pipe) {
  std::string text;
  std::array<char, 4096> part = {};
  ssize_t got = 0;
  while ((got = ::read(pipe, part.data(), part.size())) > 0 || (got < 0 && errno == EINTR)) {
    text.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  return text;
}

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return errno_error("probe: cannot make a pipe", errno);
  }
  return Pipe{.reader = UniqueFd(ends[0]), .writer = UniqueFd(ends[1])};
}

// In a process of its own, so that neither its memory nor its threads are the run's.
Result<MachineFile> probe_in_child(const std::string& store_folder) {
  HEADRACE_ASSIGN(Pipe pipe, make_pipe());
  const pid_t child = ::fork();
  if (child < 0) {
    return errno_error("probe: cannot start a process", errno)
        .with_hint("raise the limit of processes: `ulimit -u`, or pids.max of the cgroup");
  }
  if (child == 0) {
    probe_and_send(pipe.writer.get(), store_folder);
  }
  pipe.writer.reset();
  const std::string text = receive(pipe.reader.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.starts_with("ok\n")) {
    return machine_from_toml(text.substr(3), "probe");
  }
  return operating_error("this machine cannot be measured")
      .with_why(text.starts_with("error\n") ? text.substr(6)
                                            : fmt::format("the probe ended with status {}", status))
      .with_hint("give a profile: headrace plan --machine FILE");
}

Result<MachineFile> probe_and_keep(const std::string& cache, const std::string& store_folder) {
  HEADRACE_ASSIGN(MachineFile machine, probe_in_child(store_folder));
  if (cache.empty()) {
    log_warning("neither XDG_CACHE_HOME nor HOME is set: the machine profile is not kept");
    return machine;
  }
  if (const Status status = write_machine_file(cache, machine); !status) {
    log_warning(fmt::format("the machine profile could not be kept: {}", status.error().what));
  }
  return machine;
}

void set_drive(const DriveRates& drive, MachineFile& machine) {
  machine.nvme_device = drive.device;
  machine.profile.nvme_read_bytes_per_s = drive.read_bytes_per_s;
  machine.profile.nvme_write_bytes_per_s = drive.write_bytes_per_s;
  machine.profile.nvme_mixed_bytes_per_s = drive.mixed_bytes_per_s;
  machine.profile.nvme_io_depth = drive.requests.in_flight;
  machine.profile.nvme_request_bytes = drive.requests.bytes;
  machine.profile.nvme_capacity_bytes = drive.capacity_bytes;
}

DriveRequests requests_of(const MachineProfile& profile) {
  return {.in_flight = profile.nvme_io_depth, .bytes = profile.nvme_request_bytes};
}

DriveRates drive_of(const MachineFile& machine) {
  return DriveRates{.read_bytes_per_s = machine.profile.nvme_read_bytes_per_s,
                    .write_bytes_per_s = machine.profile.nvme_write_bytes_per_s,
                    .mixed_bytes_per_s = machine.profile.nvme_mixed_bytes_per_s,
                    .requests = requests_of(machine.profile),
                    .capacity_bytes = machine.profile.nvme_capacity_bytes,
                    .device = machine.nvme_device};
}

// The drives below a store's folders, each measured once.
class Drives {
 public:
  // A drive whose rates need not be measured.
  void know(DriveRates rates) { drives_.push_back({.rates = std::move(rates), .folders = 0}); }

  [[nodiscard]] Status add(const std::string& folder) {
    const std::string device = device_of(folder);
    auto drive = std::find_if(drives_.begin(), drives_.end(), [&](const Drive& known) {
      return known.rates.device == device;
    });
    if (drive == drives_.end()) {
      log_info(fmt::format("measuring the drive of '{}'", folder));
      HEADRACE_ASSIGN(DriveRates rates, probe_drive(folder));
      drive = drives_.insert(drives_.end(), {.rates = std::move(rates), .folders = 0});
    }
    drive->folders += 1;
    folder_drives_.push_back(static_cast<std::size_t>(drive - drives_.begin()));
    return {};
  }

  // `profile` with the rates of all drives that hold a folder.
  [[nodiscard]] MachineProfile together(MachineProfile profile) const {
    profile.nvme_read_bytes_per_s = profile.nvme_write_bytes_per_s = 0;
    profile.nvme_mixed_bytes_per_s = 0;
    profile.nvme_capacity_bytes = 0;
    for (const Drive& drive : drives_) {
      if (drive.folders > 0) {
        profile.nvme_read_bytes_per_s += drive.rates.read_bytes_per_s;
        profile.nvme_write_bytes_per_s += drive.rates.write_bytes_per_s;
        profile.nvme_mixed_bytes_per_s += drive.rates.mixed_bytes_per_s;
        profile.nvme_capacity_bytes += drive.rates.capacity_bytes;
      }
    }
    return profile;
  }

  [[nodiscard]] std::vector<double> folder_rates() const {
    std::vector<double> rates;
    for (const std::size_t index : folder_drives_) {
      const Drive& drive = drives_[index];
      // One that could not be measured counts as a slow drive, not as none.
      constexpr double kUnmeasuredBytesPerS = 1e8;
      rates.push_back(std::max(drive.rates.mixed_bytes_per_s, kUnmeasuredBytesPerS) /
                      drive.folders);
    }
    return rates;
  }

  [[nodiscard]] std::vector<DriveRequests> folder_requests() const {
    std::vector<DriveRequests> requests;
    requests.reserve(folder_drives_.size());
    for (const std::size_t index : folder_drives_) {
      requests.push_back(drives_[index].rates.requests);
    }
    return requests;
  }

 private:
  struct Drive {
    DriveRates rates;
    int folders = 0;
  };

  std::vector<Drive> drives_;
  std::vector<std::size_t> folder_drives_;  // by folder, in the order of add()
};

// The cached profile, where it is of this machine.
std::optional<MachineFile> cached_machine(const std::string& cache, const MachineProfile& here) {
  if (cache.empty() || !path_exists(cache)) {
    return std::nullopt;
  }
  Result<MachineFile> machine = read_machine_file(cache);
  if (!machine) {
    log_warning(
        fmt::format("'{}' cannot be read ({}); measuring again", cache, machine.error().what));
    return std::nullopt;
  }
  const std::vector<std::string> differences = fingerprint_differences(machine->profile, here);
  warn_of_differences(cache, differences);
  if (!differences.empty()) {
    return std::nullopt;
  }
  return *std::move(machine);
}

}  // namespace

Result<MachineFile> probe_machine(const std::string& store_folder) {
  log_info("measuring this machine (about two seconds, once)");
  MachineFile machine;
  HEADRACE_ASSIGN(machine.profile, this_machine());
  machine.profile.schema = kMachineSchema;
  // OpenMP's team, oneTBB's, and the drive's.
  HEADRACE_TRY(check_threads(2 * machine.profile.cores + kDriveProbeThreads));
  HEADRACE_ASSIGN(machine.profile.gemm_fp32_flops_per_s, gemm_rate(machine.profile.cores));
  HEADRACE_TRY(state_rates(machine.profile.cores, machine.profile));
  HEADRACE_ASSIGN(const DriveRates drive, probe_drive(existing_parent(store_folder)));
  set_drive(drive, machine);
  log_info(
      fmt::format("measured: GEMM {:.0f} GFLOP/s, memory {}, AdamW {}/s, drive read {}, write {}",
                  machine.profile.gemm_fp32_flops_per_s * 1e-9,
                  format_rate(machine.profile.memory_bytes_per_s),
                  format_count(machine.profile.adamw_fp32_params_per_s),
                  format_rate(drive.read_bytes_per_s),
                  format_rate(drive.write_bytes_per_s)));
  return machine;
}

Result<FoundMachine> find_machine(const std::string& given,
                                  const std::vector<std::string>& store_folders) {
  HEADRACE_ASSERT(!store_folders.empty(), "a store has a folder");
  HEADRACE_ASSIGN(const MachineProfile here, this_machine());
  if (!given.empty()) {
    HEADRACE_ASSIGN(const MachineFile machine, read_machine_file(given));
    warn_of_differences(given, fingerprint_differences(machine.profile, here));
    return FoundMachine{
        .profile = machine.profile,
        .folder_bytes_per_s = std::vector<double>(store_folders.size(), 1.0),
        .folder_requests = std::vector(store_folders.size(), requests_of(machine.profile))};
  }
  const std::string cache = machine_cache_path();
  std::optional<MachineFile> machine = cached_machine(cache, here);
  if (!machine) {
    HEADRACE_ASSIGN(machine, probe_and_keep(cache, store_folders.front()));
  }
  Drives drives;
  drives.know(drive_of(*machine));
  for (const std::string& folder : store_folders) {
    HEADRACE_TRY(drives.add(existing_parent(folder)));
  }
  return FoundMachine{.profile = drives.together(machine->profile),
                      .folder_bytes_per_s = drives.folder_rates(),
                      .folder_requests = drives.folder_requests()};
}

Result<MachineProfile> known_machine() {
  const std::string cache = machine_cache_path();
  if (!cache.empty() && path_exists(cache)) {
    if (Result<MachineFile> machine = read_machine_file(cache)) {
      return machine->profile;
    }
  }
  return this_machine();
}

}  // namespace headrace::train
