// Arenas, extents and leases.
//
// Arena   one mapping of a tier's memory, of exactly the size that the plan gives (rounded up to a
//         page), huge pages where the system gives them, faulted in at creation; then it is frozen:
//         nothing is added on the step path. A page that must not be touched stands on either side.
// Extent  an aligned range of an arena (or of a store) that holds a tile or a piece.
// Lease   proof that an extent holds what its user thinks it holds, and stays so until an event: it
//         ends by release_after(event), since a destructor may run while a device still reads.
//         Destroying a Lease that was not released is a programmer's error.
//
// Threads: an arena's facts by any thread; extents and leases by the scheduler's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/numa.hpp"
#include "tiers/queue.hpp"

namespace headrace::tiers {

enum class Tier : std::uint8_t { kDevice, kHost, kNvme };
[[nodiscard]] const char* tier_name(Tier tier);

struct ArenaStats {
  std::size_t bytes = 0;            // what was asked, rounded up to a page
  std::size_t huge_page_bytes = 0;  // what the system gave as huge pages (from smaps)
  bool hugetlb = false;             // from the reserved pool (MAP_HUGETLB) rather than transparent
  bool numa_bound = false;          // told to prefer some NUMA nodes (more than one node only)
  bool numa_near = false;           // and they are those near the device that was named
};

class Arena {
 public:
  // Maps and faults in `bytes`, zeroed (0 is legal: an empty arena, whose data is null). data() is
  // 2 MiB aligned from 2 MiB on, page aligned below. Errors: the system has no memory for it (exit
  // code "does not fit", with what /proc/meminfo or the cgroup says). It lies on the NUMA nodes
  // near the PCI device of that id ("0000:3B:00.0", Device::pci_id()); of none: of the process's
  // cores. Or, where there is a first touch (and no id), on the node of whoever touches a page of
  // it there: it is called once, may touch what it likes, and the rest comes as it would have.
  using FirstTouch = std::function<void(std::span<std::byte> memory)>;
  [[nodiscard]] static Result<std::unique_ptr<Arena>> create(Tier tier,
                                                             std::string name,
                                                             std::size_t bytes,
                                                             const std::string& near_pci_id = {},
                                                             const FirstTouch& first_touch = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] Tier tier() const { return tier_; }

  [[nodiscard]] const std::string& name() const { return name_; }

  // Reads /proc/self/smaps: not for the step path.
  [[nodiscard]] ArenaStats stats() const;

 private:
  Arena(Tier tier, std::string name) : tier_(tier), name_(std::move(name)) {}

  Status map(std::size_t page_bytes);
  Status fault_in();
  void log_pages(const std::string& near_pci_id) const;

  Tier tier_;
  std::string name_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* reservation_ = nullptr;  // the address range: guard, alignment, data, guard
  std::size_t reservation_bytes_ = 0;
  std::size_t hugetlb_bytes_ = 0;
  NumaBinding numa_;
};

// One planned buffer of an arena, and who holds it. Scheduler thread only. Address stable for its
// life (leases point to it).
class Extent {
 public:
  Extent(Tier tier, std::span<std::byte> memory, std::string name)
      : tier_(tier), memory_(memory), name_(std::move(name)) {}

  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;
  Extent(Extent&&) = delete;
  ~Extent();  // asserts that no lease is open

  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }

  [[nodiscard]] Tier tier() const { return tier_; }

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] std::uint64_t content() const { return content_; }

  [[nodiscard]] int leases() const { return leases_; }

 private:
  friend class Lease;
  Tier tier_;
  std::span<std::byte> memory_;
  std::string name_;
  std::uint64_t content_ = 0;  // the caller's tag of what the extent holds; 0: nothing
  int leases_ = 0;
};

class Lease {
 public:
  enum class Mode : std::uint8_t { kRead, kWrite };
  Lease() = default;
  // Takes the extent for `content`: a read asserts that the extent holds it; a write makes it so,
  // and asserts that no other lease is open for something else. The order of accesses is the plan's
  // (queue waits); the lease asserts that the plan's residency is what is there.
  Lease(Extent& extent, std::uint64_t content, Mode mode);
  ~Lease();
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  [[nodiscard]] std::span<std::byte> memory() const;
  // Ends the lease: the memory may be used for something else by operations that come after
  // `event`.
  void release_after(const Event& event);

  [[nodiscard]] const Event& released() const { return released_; }

 private:
  Extent* extent_ = nullptr;
  Event released_;
};

}  // namespace headrace::tiers
