// Reading /proc and cgroup files (core/system.hpp).
#include "core/system.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "core/quantity.hpp"

namespace headrace {

namespace {

constexpr std::uint64_t kKib = 1024;
constexpr std::uint64_t kSmallFileBytesMax = std::uint64_t{4} << 20U;

std::optional<std::string> read_small(const std::string& path) {
  auto text = read_file(path, kSmallFileBytesMax);
  return text ? std::optional(std::move(*text)) : std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  if (begin == text.npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// The number at the front of the text; nothing for "max" and the like.
std::optional<std::uint64_t> number_of(std::string_view text) {
  text = trimmed(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_small(path);
  return text ? number_of(*text) : std::nullopt;
}

template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// "Name:   123 kB" or "name 123" -> 123; zero when there is no such line.
std::uint64_t field_of(std::string_view text, std::string_view name) {
  std::uint64_t value = 0;
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(name) && line.size() > name.size() &&
        (line[name.size()] == ':' || line[name.size()] == ' ')) {
      value = number_of(line.substr(name.size() + 1)).value_or(0);
    }
  });
  return value;
}

struct CgroupPaths {
  std::string unified;  // of v2, "" where it is not mounted
  std::string memory;   // of v1
  std::string cpu;      // of v1
  std::string pids;     // of v1
};

// Lines "hierarchy:controllers:path" of /proc/self/cgroup.
CgroupPaths cgroup_paths(const SystemRoots& roots) {
  CgroupPaths paths;
  const std::string text = read_small(roots.proc + "/self/cgroup").value_or("");
  for_each_line(text, [&](std::string_view line) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) {
      return;
    }
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path(line.substr(second + 1));
    if (controllers == ",,") {
      paths.unified = path;
    }
    if (controllers.find(",memory,") != std::string::npos) {
      paths.memory = path;
    }
    if (controllers.find(",cpu,") != std::string::npos) {
      paths.cpu = path;
    }
    if (controllers.find(",pids,") != std::string::npos) {
      paths.pids = path;
    }
  });
  return paths;
}

// The group's folder and those of its ancestors up to the mount, innermost first. In a container
// without its own cgroup namespace the path may not exist below the mount: the mount still counts.
std::vector<std::string> folders_of(const std::string& mount, const std::string& path) {
  std::vector<std::string> folders;
  std::string rest = path;
  while (!rest.empty() && rest != "/") {
    folders.push_back(mount + rest);
    const std::size_t slash = rest.rfind('/');
    rest = slash == std::string::npos ? "" : rest.substr(0, slash);
  }
  folders.push_back(mount);
  return folders;
}

struct MemoryLimit {
  std::uint64_t limit_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t available_bytes = std::numeric_limits<std::uint64_t>::max();
};

struct LimitFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  // names in memory.stat
  const char* active_file;
};

constexpr LimitFiles kFilesV2 = {"/memory.max", "/memory.current", "inactive_file", "active_file"};
constexpr LimitFiles kFilesV1 = {
    "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file", "total_active_file"};

// A group without a limit has "max" (v2) or a number near 2^63 (v1).
constexpr std::uint64_t kNoLimitBytes = std::uint64_t{1} << 60U;

void apply_limit(MemoryLimit& result, const std::string& folder, const LimitFiles& files) {
  const std::optional<std::uint64_t> limit = read_number(folder + files.limit);
  if (!limit || *limit >= kNoLimitBytes) {
    return;
  }
  const std::uint64_t usage = read_number(folder + files.usage).value_or(0);
  // Page cache counts as usage, but the kernel drops it when the group runs into its limit.
  const std::string stat = read_small(folder + "/memory.stat").value_or("");
  const std::uint64_t cache =
      field_of(stat, files.inactive_file) + field_of(stat, files.active_file);
  const std::uint64_t held = usage - std::min(usage, cache);
  result.limit_bytes = std::min(result.limit_bytes, *limit);
  result.available_bytes = std::min(result.available_bytes, *limit - std::min(*limit, held));
}

MemoryLimit memory_limit(const SystemRoots& roots) {
  MemoryLimit result;
  const CgroupPaths paths = cgroup_paths(roots);
  for (const std::string& folder : folders_of(roots.cgroup, paths.unified)) {
    apply_limit(result, folder, kFilesV2);
  }
  for (const std::string& folder : folders_of(roots.cgroup + "/memory", paths.memory)) {
    apply_limit(result, folder, kFilesV1);
  }
  return result;
}

// Quota over period, rounded up; a large number where there is none.
int quota_cores(const SystemRoots& roots) {
  std::uint64_t cores = std::numeric_limits<int>::max();
  const auto apply = [&](std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period) {
    // v1 writes -1 for "none", which is no unsigned number.
    if (quota && period && *quota > 0 && *period > 0) {
      cores = std::min(cores, (*quota + *period - 1) / *period);
    }
  };
  const CgroupPaths paths = cgroup_paths(roots);
  for (const std::string& folder : folders_of(roots.cgroup, paths.unified)) {
    const std::string text = read_small(folder + "/cpu.max").value_or("");  // "200000 100000"
    const std::size_t space = text.find(' ');
    if (space != std::string::npos) {
      apply(number_of(text), number_of(std::string_view(text).substr(space)));
    }
  }
  for (const char* mount : {"/cpu", "/cpu,cpuacct"}) {
    for (const std::string& folder : folders_of(roots.cgroup + mount, paths.cpu)) {
      apply(read_number(folder + "/cpu.cfs_quota_us"), read_number(folder + "/cpu.cfs_period_us"));
    }
  }
  return static_cast<int>(cores);
}

int affinity_cores() {
  // Large enough for any kernel's mask.
  constexpr std::size_t kCpusMax = 8192;
  constexpr std::size_t kMaskBytes = CPU_ALLOC_SIZE(kCpusMax);
  std::vector<cpu_set_t> mask(kMaskBytes / sizeof(cpu_set_t) + 1);
  if (::sched_getaffinity(0, mask.size() * sizeof(cpu_set_t), mask.data()) != 0) {
    return 1;
  }
  return CPU_COUNT_S(mask.size() * sizeof(cpu_set_t), mask.data());
}

}  // namespace

CoreLimits core_limits(const SystemRoots& roots) {
  const int quota = quota_cores(roots);
  return {.affinity = std::max(1, affinity_cores()),
          .quota = quota < std::numeric_limits<int>::max() ? std::optional(quota) : std::nullopt};
}

int usable_cores(const SystemRoots& roots) {
  const CoreLimits limits = core_limits(roots);
  return std::max(1, std::min(limits.affinity, limits.quota.value_or(limits.affinity)));
}

HugePages huge_pages(const SystemRoots& roots) {
  HugePages pages;
  // "always [madvise] never"
  const std::string modes =
      read_small(roots.sys + "/kernel/mm/transparent_hugepage/enabled").value_or("");
  const std::size_t begin = modes.find('[');
  const std::size_t end = modes.find(']', std::min(begin, modes.size()));
  if (end != std::string::npos) {
    pages.transparent = modes.substr(begin + 1, end - begin - 1);
  }
  const std::string text = read_small(roots.proc + "/meminfo").value_or("");
  pages.page_bytes = field_of(text, "Hugepagesize") * kKib;
  pages.reserved = field_of(text, "HugePages_Total");
  pages.reserved_free = field_of(text, "HugePages_Free");
  return pages;
}

std::uint64_t last_level_cache_bytes(const SystemRoots& roots) {
  const std::string folder = roots.sys + "/devices/system/cpu";
  const auto listed = [](const std::string& path) {
    Result<std::vector<std::string>> names = list_directory(path);
    return names ? *std::move(names) : std::vector<std::string>();
  };
  std::map<std::string, std::uint64_t> caches;  // CPUs that share it -> its bytes
  for (const std::string& cpu : listed(folder)) {
    const std::string path = fmt::format("{}/{}/cache", folder, cpu);
    std::uint64_t last_level = 0;
    std::string last;
    for (const std::string& index : listed(path)) {
      const std::uint64_t level = read_number(fmt::format("{}/{}/level", path, index)).value_or(0);
      if (level > last_level) {
        last_level = level;
        last = fmt::format("{}/{}", path, index);
      }
    }
    if (last_level > 0) {  // "32768K"
      caches[read_small(last + "/shared_cpu_list").value_or(cpu)] =
          read_number(last + "/size").value_or(0) * kKib;
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [cpus, cache_bytes] : caches) {
    bytes += cache_bytes;
  }
  return bytes;
}

std::vector<NumaNode> numa_nodes(const SystemRoots& roots) {
  const std::string folder = roots.sys + "/devices/system/node";
  const Result<std::vector<std::string>> names = list_directory(folder);
  std::vector<NumaNode> nodes;
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    constexpr std::string_view kPrefix = "node";
    const auto number = name.starts_with(kPrefix)
                            ? number_of(std::string_view(name).substr(kPrefix.size()))
                            : std::nullopt;
    if (!number) {
      continue;
    }
    const std::string path = fmt::format("{}/{}", folder, name);
    // "Node 0 MemTotal:       65536 kB"
    const std::string text = read_small(path + "/meminfo").value_or("");
    const std::string_view key = "MemTotal:";
    const std::size_t at = text.find(key);
    const std::uint64_t kib =
        at == std::string::npos
            ? 0
            : number_of(std::string_view(text).substr(at + key.size())).value_or(0);
    nodes.push_back({.number = static_cast<int>(*number),
                     .total_bytes = kib * kKib,
                     .cores = std::string(trimmed(read_small(path + "/cpulist").value_or("")))});
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& one, const NumaNode& other) {
    return one.number < other.number;
  });
  return nodes;
}

ProcessLimits process_limits(const SystemRoots& roots) {
  const auto limit_of = [](auto resource) -> std::optional<std::uint64_t> {
    rlimit limit = {};
    const bool bounded = ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return bounded ? std::optional<std::uint64_t>(limit.rlim_cur) : std::nullopt;
  };
  ProcessLimits limits = {.locked_bytes = limit_of(RLIMIT_MEMLOCK),
                          .open_files = limit_of(RLIMIT_NOFILE),
                          .processes = limit_of(RLIMIT_NPROC)};
  constexpr unsigned kCapIpcLock = 14;
  constexpr int kHexadecimal = 16;
  for_each_line(read_small(roots.proc + "/self/status").value_or(""), [&](std::string_view line) {
    constexpr std::string_view kKey = "CapEff:";
    if (line.starts_with(kKey)) {
      const std::string_view digits = trimmed(line.substr(kKey.size()));
      std::uint64_t bits = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), bits, kHexadecimal);
      limits.may_lock_more = (bits >> kCapIpcLock & 1U) != 0;
    }
  });
  const CgroupPaths paths = cgroup_paths(roots);
  std::vector<std::string> folders = folders_of(roots.cgroup, paths.unified);
  for (const std::string& folder : folders_of(roots.cgroup + "/pids", paths.pids)) {
    folders.push_back(folder);
  }
  for (const std::string& folder : folders) {
    if (const auto tasks = read_number(folder + "/pids.max")) {
      limits.cgroup_tasks = std::min(limits.cgroup_tasks.value_or(*tasks), *tasks);
    }
  }
  return limits;
}

Result<HostMemory> host_memory(const SystemRoots& roots) {
  HEADRACE_ASSIGN(const std::string text, read_file(roots.proc + "/meminfo", kSmallFileBytesMax));
  HostMemory memory;
  memory.total_bytes = field_of(text, "MemTotal") * kKib;
  memory.available_bytes = field_of(text, "MemAvailable") * kKib;
  memory.huge_page_bytes = field_of(text, "Hugepagesize") * kKib;
  memory.huge_pages_free = field_of(text, "HugePages_Free");
  const MemoryLimit limit = memory_limit(roots);
  if (limit.limit_bytes < kNoLimitBytes) {
    memory.limit_bytes = limit.limit_bytes;
    memory.available_bytes = std::min(memory.available_bytes, limit.available_bytes);
  }
  return memory;
}

Result<ProcessMemory> process_memory(const SystemRoots& roots) {
  HEADRACE_ASSIGN(const std::string text,
                  read_file(roots.proc + "/self/status", kSmallFileBytesMax));
  ProcessMemory memory;
  memory.anonymous_bytes = (field_of(text, "RssAnon") + field_of(text, "RssShmem")) * kKib;
  memory.huge_page_bytes = field_of(text, "HugetlbPages") * kKib;
  memory.mapped_file_bytes = field_of(text, "RssFile") * kKib;
  memory.locked_bytes = field_of(text, "VmLck") * kKib;
  memory.resident_bytes_peak = field_of(text, "VmHWM") * kKib;
  return memory;
}

Result<ProcessMemory> process_memory_detailed(const SystemRoots& roots) {
  HEADRACE_ASSIGN(ProcessMemory memory, process_memory(roots));
  HEADRACE_ASSIGN(const std::string text,
                  read_file(roots.proc + "/self/smaps_rollup", kSmallFileBytesMax));
  memory.transparent_huge_page_bytes = field_of(text, "AnonHugePages") * kKib;
  return memory;
}

Status check_memory(std::uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return errno_error(fmt::format("there is no memory to be had: {} more were asked for",
                                   format_bytes(bytes)),
                       errno)
        .with_hint("raise the limits of memory (`ulimit -v`, `ulimit -d`), or free some");
  }
  ::munmap(memory, bytes);
  return {};
}

std::string cpu_model_name(const SystemRoots& roots) {
  std::string name = "unknown";
  const std::string text = read_small(roots.proc + "/cpuinfo").value_or("");
  for_each_line(text, [&](std::string_view line) {
    const std::size_t colon = line.find(':');
    if (name == "unknown" && line.starts_with("model name") && colon != line.npos) {
      name = trimmed(line.substr(colon + 1));
    }
  });
  return name;
}

}  // namespace headrace
