// The plan's NVMe lanes over a store of several folders: each folder has an engine (a thread) with
// all lanes, a tile's operation goes to its folder's, and a lane that moves on to another folder
// waits there for what it did before, so that the plan sees one in-order queue.
//
// Invariant: operations of one lane run in the order of submission, whatever folders they are for.
// Thread: the scheduler's. Failure: create() as IoEngine's; operations raise the runtime's fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "scheduler/exec/executor.hpp"
#include "tiers/nvme/io_engine.hpp"

namespace headrace::exec {

class IoLanes {
 public:
  // `buffers` is the memory that operations use; it outlives the lanes, as `store` does.
  [[nodiscard]] static Result<std::unique_ptr<IoLanes>> create(
      tiers::Runtime& runtime,
      tiers::nvme::Store& store,
      int lanes,
      const ExecutorOptions& options,
      std::span<const std::span<std::byte>> buffers);

  // Where the next operation of the lane goes, if it is about this extent.
  [[nodiscard]] tiers::nvme::IoLane& lane_for(int lane, const tiers::nvme::ExtentKey& key);

  // For operations that need no order among themselves (loads, commits), with wait_all() before and
  // after them.
  [[nodiscard]] tiers::nvme::IoLane& unordered_lane(int lane, const tiers::nvme::ExtentKey& key);

  // Returns once everything submitted so far, of all lanes, is over.
  [[nodiscard]] Status wait_all();

  // Every lane of every folder.
  void append_queues(std::vector<tiers::Queue*>& queues) const;

  [[nodiscard]] tiers::nvme::IoTotals totals() const;
  // Registered with the kernel, by any engine.
  [[nodiscard]] std::size_t pinned_bytes() const;

 private:
  explicit IoLanes(tiers::nvme::Store& store, int lanes)
      : store_(store), folder_of_lane_(static_cast<std::size_t>(lanes)) {}

  tiers::nvme::Store& store_;
  std::vector<std::unique_ptr<tiers::nvme::IoEngine>> engines_;  // by folder
  // Of its last operation; none where all that was submitted is over.
  std::vector<std::optional<std::uint32_t>> folder_of_lane_;
};

}  // namespace headrace::exec
