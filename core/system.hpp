// What the machine and the cgroup give this process: cores and memory; and what it uses of them.
//
// Invariant: a cgroup's limit (v1 or v2, any ancestor) counts, not only the machine's memory.
// Thread: any; reads /proc and /sys at each call (tens of microseconds: not on the step path).
// Failure: a missing or odd file means "no limit known from there"; process_memory() is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace headrace {

// Where to read; tests point it at a made-up tree.
struct SystemRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string sys = "/sys";
};

// What bounds the number of CPUs that this process may run on.
struct CoreLimits {
  int affinity = 1;
  std::optional<int> quota = {};  // the cgroup's, rounded up, where there is one
};

[[nodiscard]] CoreLimits core_limits(const SystemRoots& roots = {});

// CPUs that this process may run on, no more than the cgroup's quota rounded up; at least 1.
[[nodiscard]] int usable_cores(const SystemRoots& roots = {});

struct HostMemory {
  std::uint64_t total_bytes = 0;             // of the machine
  std::uint64_t available_bytes = 0;         // without swapping, within the cgroup's limit
  std::optional<std::uint64_t> limit_bytes;  // the cgroup's, where there is one
  std::uint64_t huge_page_bytes = 0;         // size of a huge page of the default size; 0: none
  std::uint64_t huge_pages_free = 0;         // count
};

[[nodiscard]] Result<HostMemory> host_memory(const SystemRoots& roots = {});

// How the system gives huge pages.
struct HugePages {
  std::string transparent;       // "always", "madvise", "never"; "" where it does not say
  std::uint64_t page_bytes = 0;  // of the reserved pool; 0: there is none
  std::uint64_t reserved = 0, reserved_free = 0;  // pages
};

[[nodiscard]] HugePages huge_pages(const SystemRoots& roots = {});

// Of all last-level caches together, each counted once; 0 where the system does not tell.
[[nodiscard]] std::uint64_t last_level_cache_bytes(const SystemRoots& roots = {});

struct NumaNode {
  int number = 0;
  std::uint64_t total_bytes = 0;
  std::string cores;  // "0-15,32-47"
};

// By number; empty where the system does not tell.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const SystemRoots& roots = {});

// Limits of this process, as it is; nothing: unlimited.
struct ProcessLimits {
  std::optional<std::uint64_t> locked_bytes = {};  // `ulimit -l`
  bool may_lock_more = false;                      // CAP_IPC_LOCK: the limit does not bind
  std::optional<std::uint64_t> open_files = {};    // `ulimit -n`
  std::optional<std::uint64_t> processes = {};     // `ulimit -u`: of the user, threads counted
  std::optional<std::uint64_t> cgroup_tasks = {};  // pids.max: of the cgroup, threads counted
};

[[nodiscard]] ProcessLimits process_limits(const SystemRoots& roots = {});

struct ProcessMemory {
  std::uint64_t anonymous_bytes = 0;  // RssAnon + RssShmem, transparent huge pages included
  std::uint64_t huge_page_bytes = 0;  // explicit huge pages (HugetlbPages)
  std::uint64_t transparent_huge_page_bytes = 0;  // of anonymous_bytes
  std::uint64_t mapped_file_bytes = 0;            // RssFile: reclaimable, does not count as used
  std::uint64_t locked_bytes = 0;                 // VmLck
  std::uint64_t resident_bytes_peak = 0;          // VmHWM, mapped files included

  // What the plan's host peak is compared with, less driver-pinned memory.
  [[nodiscard]] std::uint64_t used_bytes() const { return anonymous_bytes + huge_page_bytes; }
};

// Cheap form: /proc/self/status only, transparent_huge_page_bytes = 0.
[[nodiscard]] Result<ProcessMemory> process_memory(const SystemRoots& roots = {});
// With smaps_rollup: walks the page tables, milliseconds per GiB.
[[nodiscard]] Result<ProcessMemory> process_memory_detailed(const SystemRoots& roots = {});

// Whether the process may have so much more memory (`ulimit -v`, `ulimit -d`): libraries that make
// code at run time end the process where they get none. Takes it, and gives it back untouched.
[[nodiscard]] Status check_memory(std::uint64_t bytes);

// The host's CPU model as /proc/cpuinfo names it, for reports; "unknown" where it does not.
[[nodiscard]] std::string cpu_model_name(const SystemRoots& roots = {});

}  // namespace headrace
