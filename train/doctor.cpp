// The sections of the machine, and the report. See doctor.hpp; folders are in doctor_folder.cpp.
#include "train/doctor.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/files.hpp"
#include "core/quantity.hpp"
#include "core/system.hpp"
#include "core/threads.hpp"
#include "optim_cpu/targets.hpp"
#include "tiers/nvme/uring_facts.hpp"
#include "train/machine_file.hpp"
#include "train/probe_nvme.hpp"

namespace headrace::train {
namespace {

// "64", or "unlimited".
std::string limit_text(const std::optional<std::uint64_t>& limit) {
  return limit ? fmt::format("{}", *limit) : "unlimited";
}

Finding examine_cpu() {
  const CoreLimits limits = core_limits();
  const std::string name = cpu_model_name();
  const std::string instruction_set = optim::active_target();
  const int cores = usable_cores();
  Finding finding{.section = "cpu"};
  finding.text = fmt::format(
      "{}; {} core{} for this process ({} by affinity{}); {}",
      name,
      cores,
      cores == 1 ? "" : "s",
      limits.affinity,
      limits.quota ? fmt::format(", {} by the cgroup's quota", *limits.quota) : ", no cgroup quota",
      instruction_set);
  finding.facts.add("name", name);
  finding.facts.add("cores", cores);
  finding.facts.add("cores_by_affinity", limits.affinity);
  finding.facts.add("cores_by_quota", limits.quota ? Json(*limits.quota) : Json());
  finding.facts.add("instruction_set", instruction_set);
  if (instruction_set == "scalar") {
    finding.problems.push_back(
        {.what = "kernels run without vector instructions, many times slower",
         .hint = "use a processor with AVX2, AVX-512 or NEON"});
  }
  return finding;
}

Finding examine_memory() {
  Finding finding{.section = "memory"};
  const Result<HostMemory> memory = host_memory();
  if (!memory) {
    finding.text = "unknown";
    for (const char* member : {"total_bytes", "available_bytes", "limit_bytes"}) {
      finding.facts.add(member, Json());
    }
    finding.problems.push_back(problem_of(memory.error(), true));
    return finding;
  }
  finding.text = fmt::format("{} of {} available{}",
                             format_bytes(memory->available_bytes),
                             format_bytes(memory->total_bytes),
                             memory->limit_bytes ? fmt::format(", within the cgroup's limit of {}",
                                                               format_bytes(*memory->limit_bytes))
                                                 : ", no cgroup limit");
  finding.facts.add("total_bytes", memory->total_bytes);
  finding.facts.add("available_bytes", memory->available_bytes);
  finding.facts.add("limit_bytes", memory->limit_bytes);
  return finding;
}

Finding examine_huge_pages() {
  const HugePages pages = huge_pages();
  const std::string mode = pages.transparent.empty() ? "not there" : pages.transparent;
  Finding finding{.section = "huge pages"};
  finding.text = fmt::format("transparent: {}; reserved: {}",
                             mode,
                             pages.reserved == 0 ? "none"
                                                 : fmt::format("{} of {}, {} free",
                                                               pages.reserved,
                                                               format_bytes(pages.page_bytes),
                                                               pages.reserved_free));
  finding.facts.add("transparent", pages.transparent.empty() ? Json() : Json(pages.transparent));
  finding.facts.add("page_bytes", pages.page_bytes);
  finding.facts.add("reserved", pages.reserved);
  finding.facts.add("reserved_free", pages.reserved_free);
  const bool transparent = pages.transparent == "always" || pages.transparent == "madvise";
  if (!transparent && pages.reserved_free == 0) {
    finding.problems.push_back(
        {.what = "arenas lie in ordinary pages: direct I/O can be half as fast",
         .hint = "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as root"});
  }
  return finding;
}

Finding examine_locked_memory() {
  const ProcessLimits limits = process_limits();
  const bool bound = limits.locked_bytes && !limits.may_lock_more;
  Finding finding{.section = "locked memory"};
  finding.text = !bound ? limits.locked_bytes ? "unlimited (by CAP_IPC_LOCK)" : "unlimited"
                        : format_bytes(*limits.locked_bytes);
  finding.facts.add("limit_bytes", bound ? Json(*limits.locked_bytes) : Json());
  if (bound) {
    finding.problems.push_back(
        {.what = fmt::format("of the arenas, {} are registered with io_uring; requests elsewhere "
                             "look their pages up each time",
                             format_bytes(*limits.locked_bytes)),
         .hint = "`ulimit -l unlimited`; of a service: LimitMEMLOCK=infinity; of a container: "
                 "--ulimit memlock=-1"});
  }
  return finding;
}

// "0-2,8" as [0, 1, 2, 8].
Json cores_to_json(std::string_view text) {
  Json list = Json::array();
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(range.size() + 1, text.size()));
    int first = 0;
    const auto [stop, problem] = std::from_chars(range.data(), range.data() + range.size(), first);
    int last = first;
    if (problem == std::errc() && stop != range.data() + range.size()) {
      std::from_chars(stop + 1, range.data() + range.size(), last);
    }
    for (int core = first; core <= last; ++core) {
      list.push_back(core);
    }
  }
  return list;
}

Finding examine_numa() {
  Finding finding{.section = "numa"};
  Json list = Json::array();
  const std::vector<NumaNode> nodes = numa_nodes();
  for (const NumaNode& node : nodes) {
    finding.text += fmt::format("{}node {}: {}, cores {}",
                                finding.text.empty() ? "" : "; ",
                                node.number,
                                format_bytes(node.total_bytes),
                                node.cores.empty() ? "none" : node.cores);
    Json entry = Json::object();
    entry.add("node", node.number);
    entry.add("total_bytes", node.total_bytes);
    entry.add("cores", cores_to_json(node.cores));
    list.push_back(std::move(entry));
  }
  if (nodes.empty()) {
    finding.text = "unknown: this system does not tell its nodes";
  }
  finding.facts.add("nodes", std::move(list));
  return finding;
}

std::string kernel_release() {
  const Result<plan::MachineProfile> here = this_machine();
  return here ? here->kernel : "";
}

Finding examine_io_uring() {
  Finding finding{.section = "io_uring"};
  const std::string kernel = kernel_release();
  const Result<tiers::nvme::UringFacts> facts = tiers::nvme::uring_facts();
  finding.facts.add("available", facts.has_value());
  finding.facts.add("cooperative", facts && facts->cooperative);
  finding.facts.add("single_issuer", facts && facts->single_issuer);
  finding.facts.add("deferred", facts && facts->deferred);
  finding.facts.add("kernel", kernel);
  if (!facts) {
    finding.text = fmt::format("none; Linux {}", kernel);
    Problem problem = problem_of(facts.error(), false);
    problem.what += "; threads read and write instead";
    finding.problems.push_back(std::move(problem));
    return finding;
  }
  finding.text =
      fmt::format("available, {}; Linux {}",
                  facts->deferred        ? "with every flag that is used"
                  : facts->single_issuer ? "without DEFER_TASKRUN (Linux 6.1)"
                  : facts->cooperative   ? "without SINGLE_ISSUER (6.0) and DEFER_TASKRUN (6.1)"
                                         : "without flags of newer kernels (5.19 to 6.1)",
                  kernel);
  return finding;
}

Finding examine_limits() {
  const ProcessLimits limits = process_limits();
  Finding finding{.section = "limits"};
  finding.text = fmt::format("open files {}; processes and threads {} (of the cgroup {})",
                             limit_text(limits.open_files),
                             limit_text(limits.processes),
                             limit_text(limits.cgroup_tasks));
  finding.facts.add("open_files", limits.open_files);
  finding.facts.add("processes", limits.processes);
  finding.facts.add("cgroup_tasks", limits.cgroup_tasks);
  // The teams of OpenMP and oneTBB, and what the probe or the back ends start.
  const int threads = 2 * usable_cores() + kProbeQueueThreads;
  if (const Status started = check_threads(threads); !started) {
    finding.problems.push_back(problem_of(started.error(), true));
  }
  constexpr std::uint64_t kOpenFilesMin = 64;
  if (limits.open_files && *limits.open_files < kOpenFilesMin) {
    finding.problems.push_back(
        {.what = "few files may be open at once: a start may fail", .hint = "`ulimit -n 1024`"});
  }
  return finding;
}

// "3 days", "12 s".
std::string age_text(double seconds) {
  constexpr double kDay = 86400;
  return seconds < 2 * kDay ? format_duration(std::max(0.0, seconds))
                            : fmt::format("{:.0f} days", seconds / kDay);
}

std::optional<double> age_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  return std::difftime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()),
                       status.st_mtim.tv_sec);
}

Finding examine_profile() {
  constexpr const char* kLater = "the next train or plan measures this machine (in five seconds)";
  Finding finding{.section = "profile"};
  const std::string path = machine_cache_path();
  const bool present = !path.empty() && path_exists(path);
  finding.facts.add("path", path.empty() ? Json() : Json(path));
  finding.facts.add("present", present);
  std::optional<double> age_s;
  bool matches = false;
  if (path.empty()) {
    finding.text = "nowhere to keep it";
    finding.problems.push_back({.what = "every train and plan measures this machine anew",
                                .hint = "set XDG_CACHE_HOME or HOME"});
  } else if (!present) {
    finding.text = fmt::format("none in '{}' yet: {}", path, kLater);
  } else {
    age_s = age_of(path);
    finding.text = fmt::format("'{}', {} old", path, age_text(age_s.value_or(0)));
    const Result<MachineFile> machine = read_machine_file(path);
    const Result<plan::MachineProfile> here = this_machine();
    const std::vector<std::string> differences =
        machine && here ? fingerprint_differences(machine->profile, *here)
                        : std::vector<std::string>();
    const bool older = machine && lacks_rates(*machine);
    matches = machine && here && differences.empty() && !older;
    finding.text += matches ? ", of this machine" : fmt::format(": {}", kLater);
    if (!machine) {
      finding.problems.push_back({.what = problem_of(machine.error(), false).what});
    }
    if (older) {
      finding.problems.push_back(
          {.what = "it is of an older version, without update rates of every state format"});
    }
    for (const std::string& difference : differences) {
      finding.problems.push_back({.what = "it is of another machine: " + difference});
    }
  }
  finding.facts.add("age_s", age_s);
  finding.facts.add("matches", matches);
  return finding;
}

Finding examine_openmp() {
  // NOLINTBEGIN(concurrency-mt-unsafe): nothing in this process changes the environment
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  const char* spins = std::getenv("GOMP_SPINCOUNT");
  // NOLINTEND(concurrency-mt-unsafe)
  const bool passive = policy != nullptr && ::strcasecmp(policy, "passive") == 0;
  Finding finding{.section = "openmp"};
  finding.text = fmt::format("workers wait {}{}",
                             policy != nullptr ? policy : "as the library does by itself",
                             spins != nullptr ? fmt::format(", GOMP_SPINCOUNT={}", spins) : "");
  finding.facts.add("wait_policy", policy != nullptr ? Json(policy) : Json());
  finding.facts.add("spin_count", spins != nullptr ? Json(spins) : Json());
  if (!passive || spins != nullptr) {
    finding.problems.push_back(
        {.what =
             "OpenMP's workers may spin while they wait, on cores that others need: a step took "
             "up to 25 times as long",
         .hint = "unset OMP_WAIT_POLICY and GOMP_SPINCOUNT: headrace then sets passive"});
  }
  return finding;
}

bool is_list(const std::string& section) {
  return section == "run" || section == "folder";
}

}  // namespace

Problem problem_of(const Error& error, bool stops_training) {
  return {.stops_training = stops_training,
          .what = error.why.empty() ? error.what : fmt::format("{}: {}", error.what, error.why),
          .hint = error.hint};
}

std::vector<Finding> examine_machine() {
  return {examine_cpu(),
          examine_memory(),
          examine_huge_pages(),
          examine_locked_memory(),
          examine_numa(),
          examine_io_uring(),
          examine_limits(),
          examine_profile(),
          examine_openmp()};
}

std::string format_findings(const std::vector<Finding>& findings) {
  constexpr std::size_t kNameColumns = 15;
  std::string text;
  for (const Finding& finding : findings) {
    std::string lines = finding.text;
    for (std::size_t at = 0; (at = lines.find('\n', at)) != std::string::npos;) {
      lines.replace(at, 1, "\n" + std::string(kNameColumns, ' '));
      at += kNameColumns + 1;
    }
    text += fmt::format("{:<{}}{}\n", finding.section, kNameColumns, lines);
    for (const Problem& problem : finding.problems) {
      text +=
          fmt::format("  {}: {}\n", problem.stops_training ? "error  " : "warning", problem.what);
      if (!problem.hint.empty()) {
        text += fmt::format("  hint   : {}\n", problem.hint);
      }
    }
  }
  return text;
}

Json findings_to_json(const std::vector<Finding>& findings) {
  Json json = Json::object();
  Json runs = Json::array();
  Json folders = Json::array();
  Json problems = Json::array();
  for (const Finding& finding : findings) {
    if (is_list(finding.section)) {
      (finding.section == "run" ? runs : folders).push_back(finding.facts);
    } else {
      std::string name = finding.section;
      std::replace(name.begin(), name.end(), ' ', '_');
      json.add(std::move(name), finding.facts);
    }
    for (const Problem& problem : finding.problems) {
      Json entry = Json::object();
      entry.add("section", finding.section);
      entry.add("stops_training", problem.stops_training);
      entry.add("what", problem.what);
      entry.add("hint", problem.hint.empty() ? Json() : Json(problem.hint));
      problems.push_back(std::move(entry));
    }
  }
  json.add("runs", std::move(runs));
  json.add("folders", std::move(folders));
  json.add("problems", std::move(problems));
  json.add("can_train", can_train(findings));
  return json;
}

bool can_train(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return std::any_of(finding.problems.begin(),
                       finding.problems.end(),
                       [](const Problem& problem) { return problem.stops_training; });
  });
}

}  // namespace headrace::train
