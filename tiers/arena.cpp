// Mapping an arena: a reserved address range, guard pages that stay inaccessible on both sides,
// huge pages inside where the system gives them, everything faulted in before create() returns.
//
// Invariant: exactly bytes_ (the plan's size, rounded up to a page) are backed by memory; what
// alignment costs is address space only. Nothing is added or given back until the destructor.
// Failure: an Error before anything is touched where memory is short, instead of the system's
// killer.
#include <linux/prctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/system.hpp"
#include "tiers/memory.hpp"

namespace headrace::tiers {

namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr int kHugetlb2MiB = MAP_HUGETLB | (21 << MAP_HUGE_SHIFT);  // 2^21 bytes
constexpr int kMadvPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14

std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

std::string size_text(std::size_t bytes) {
  return format_bytes(bytes);
}

const char* budget_key(Tier tier) {
  return tier == Tier::kDevice ? "tiers.device_memory" : "tiers.host_memory";
}

Error no_memory(Tier tier, const std::string& name, std::size_t bytes, std::string why) {
  return does_not_fit_error(std::string(tier_name(tier)) + " memory: cannot take " +
                            size_text(bytes) + " for the arena '" + name + "'")
      .with_why(std::move(why))
      .with_hint(std::string("lower ") + budget_key(tier) + ", or end other programs");
}

// Free pages of the reserved pool, in bytes; 0 on most machines.
std::size_t hugetlb_free_bytes() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  std::size_t pages = 0;
  return file >> pages ? pages * kHugePageBytes : 0;
}

// The machine's memory and the cgroup's limit, whichever is nearer: passing the latter ends the
// process without a word.
Status check_available(Tier tier, const std::string& name, std::size_t bytes) {
  HEADRACE_ASSIGN(const HostMemory memory, host_memory());
  if (bytes <= memory.available_bytes) {
    return {};
  }
  std::string why = "only " + size_text(memory.available_bytes) + " of " +
                    size_text(memory.total_bytes) + " are available";
  if (memory.limit_bytes.has_value()) {
    why += ", within the cgroup's limit of " + size_text(*memory.limit_bytes);
  }
  return no_memory(tier, name, bytes, std::move(why));
}

// What smaps says about the mappings inside a range.
struct HugePages {
  std::size_t transparent_bytes = 0;
  std::size_t hugetlb_bytes = 0;
};

// The number at the start of `text`, after blanks; moves `text` behind it.
std::optional<std::uint64_t> take_number(std::string_view& text, int base) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (problem != std::errc()) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// A line "7f00-7f80 rw-p ...": whether the mapping lies inside [begin, end). Nothing: another line.
std::optional<bool> mapping_inside(std::string_view line, std::uint64_t begin, std::uint64_t end) {
  const auto map_begin = take_number(line, 16);
  if (!map_begin.has_value() || !line.starts_with('-')) {
    return std::nullopt;
  }
  line.remove_prefix(1);
  const auto map_end = take_number(line, 16);
  return *map_begin >= begin && map_end.has_value() && *map_end <= end;
}

// A line "AnonHugePages:    2048 kB" of that key, in bytes; 0 for any other line.
std::size_t field_bytes(std::string_view line, std::string_view key) {
  constexpr std::size_t kKibBytes = 1024;
  if (!line.starts_with(key)) {
    return 0;
  }
  line.remove_prefix(key.size());
  return take_number(line, 10).value_or(0) * kKibBytes;
}

HugePages read_smaps(const std::byte* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  HugePages found;
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    if (const auto is_inside = mapping_inside(line, begin, begin + bytes); is_inside.has_value()) {
      inside = *is_inside;
    } else if (inside) {
      found.transparent_bytes += field_bytes(line, "AnonHugePages:");
      found.hugetlb_bytes += field_bytes(line, "Private_Hugetlb:");
    }
  }
  return found;
}

}  // namespace

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kNvme:
      return "nvme";
  }
  return "unknown";
}

Result<std::unique_ptr<Arena>> Arena::create(Tier tier,
                                             std::string name,
                                             std::size_t bytes,
                                             const std::string& near_pci_id,
                                             const FirstTouch& first_touch) {
  HEADRACE_ASSERT(tier != Tier::kNvme, "storage is no arena: tiers/nvme/store.hpp");
  HEADRACE_ASSERT(!first_touch || near_pci_id.empty(), "one says where an arena lies");
  std::unique_ptr<Arena> arena(new Arena(tier, std::move(name)));
  if (bytes == 0) {
    return arena;
  }
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // Far above any machine, and low enough that rounding and guards cannot overflow.
  constexpr std::size_t kBytesMax = std::numeric_limits<std::size_t>::max() / 4;
  if (bytes > kBytesMax) {
    return no_memory(tier, arena->name_, bytes, "no address space is that large");
  }
  arena->bytes_ = round_up(bytes, page_bytes);
  HEADRACE_TRY(check_available(tier, arena->name_, arena->bytes_));
  HEADRACE_TRY(arena->map(page_bytes));
  if (first_touch) {
    arena->numa_.text = "on the NUMA nodes whose cores work on it";
    first_touch({arena->data_, arena->bytes_});
  } else {
    arena->numa_ = bind_near_pci(arena->data_, arena->bytes_, near_pci_id);
  }
  HEADRACE_TRY(arena->fault_in());
  arena->log_pages(near_pci_id);
  return arena;
}

// What was obtained. Direct I/O into ordinary pages costs up to half of a drive's rate
// (docs/performance.md), so a system that gave none says so; so does one that could not put the
// memory near the device that uses it.
void Arena::log_pages(const std::string& near_pci_id) const {
  const ArenaStats got = stats();
  std::string text = std::string(tier_name(tier_)) + " memory: " + size_text(got.huge_page_bytes) +
                     " of " + size_text(got.bytes) + " of the arena '" + name_ +
                     "' are huge pages" + (got.hugetlb ? " (reserved ones)" : "") +
                     (numa_.text.empty() ? "" : ", " + numa_.text);
  const bool is_far = !near_pci_id.empty() && !numa_.is_near && !numa_.text.empty();
  if (got.huge_page_bytes < bytes_ / kHugePageBytes * kHugePageBytes / 2) {
    log_info(text +
             "; to have them: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as "
             "root, or fewer programs beside this one");
  } else if (is_far) {
    log_info(text);
  } else {
    log_debug(text);
  }
}

// Reserves the address range and gives its middle access rights.
Status Arena::map(std::size_t page_bytes) {
  const bool large = bytes_ >= kHugePageBytes;
  const std::size_t alignment = large ? kHugePageBytes : page_bytes;
  reservation_bytes_ = page_bytes + alignment + bytes_ + page_bytes;
  void* range = ::mmap(
      nullptr, reservation_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return no_memory(tier_, name_, bytes_, errno_error("mmap", errno).why);
  }
  reservation_ = range;
  const std::size_t first = reinterpret_cast<std::uintptr_t>(range) + page_bytes;
  data_ = static_cast<std::byte*>(range) + (round_up(first, alignment) - first + page_bytes);

  constexpr int kAccess = PROT_READ | PROT_WRITE;
  constexpr int kFixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  const std::size_t whole_bytes = bytes_ / kHugePageBytes * kHugePageBytes;
  if (large && hugetlb_free_bytes() >= whole_bytes &&
      ::mmap(data_, whole_bytes, kAccess, kFixed | kHugetlb2MiB, -1, 0) != MAP_FAILED) {
    hugetlb_bytes_ = whole_bytes;
  }
  // All of it, or the tail behind the reserved pool's pages.
  const std::size_t rest_bytes = bytes_ - hugetlb_bytes_;
  std::byte* rest = data_ + hugetlb_bytes_;
  if (rest_bytes > 0 && ::mmap(rest, rest_bytes, kAccess, kFixed, -1, 0) == MAP_FAILED) {
    return no_memory(tier_, name_, bytes_, errno_error("mmap", errno).why);
  }
  if (large && hugetlb_bytes_ == 0) {
    // Advice: kernels without transparent huge pages refuse it, and stats() tells what was given.
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  // A name in /proc/self/maps, for whoever looks; needs CONFIG_ANON_VMA_NAME.
  const std::string label = "headrace " + name_;
  ::prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, data_, bytes_, label.c_str());
  return {};
}

Status Arena::fault_in() {
  int result = 0;
  do {
    result = ::madvise(data_, bytes_, kMadvPopulateWrite);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    return {};
  }
  if (errno != EINVAL) {
    return no_memory(tier_, name_, bytes_, errno_error("madvise", errno).why);
  }
  // A kernel before 5.14. One write a smallest page; huge pages are faulted in by their first.
  constexpr std::size_t kSmallestPageBytes = 4096;
  for (std::size_t offset = 0; offset < bytes_; offset += kSmallestPageBytes) {
    *static_cast<volatile std::byte*>(data_ + offset) = std::byte{0};
  }
  return {};
}

Arena::~Arena() {
  if (reservation_ != nullptr) {
    const int result = ::munmap(reservation_, reservation_bytes_);
    HEADRACE_ASSERT(result == 0, "an arena's mapping is its own to unmap");
  }
}

ArenaStats Arena::stats() const {
  ArenaStats stats = {.bytes = bytes_,
                      .hugetlb = hugetlb_bytes_ > 0,
                      .numa_bound = numa_.is_bound,
                      .numa_near = numa_.is_near};
  if (bytes_ > 0) {
    const HugePages pages = read_smaps(data_, bytes_);
    stats.huge_page_bytes = pages.transparent_bytes + pages.hugetlb_bytes;
  }
  return stats;
}

}  // namespace headrace::tiers
