#include "scheduler/exec/io_lanes.hpp"

#include <algorithm>
#include <utility>

namespace headrace::exec {

namespace {

// Operations and waits that a lane holds: the scheduler's thread runs so far ahead that writes may
// stay behind for the forward pass.
constexpr std::size_t kLaneCapacity = 256;

}  // namespace

Result<std::unique_ptr<IoLanes>> IoLanes::create(tiers::Runtime& runtime,
                                                 tiers::nvme::Store& store,
                                                 int lanes,
                                                 const ExecutorOptions& options,
                                                 std::span<const std::span<std::byte>> buffers) {
  std::unique_ptr<IoLanes> made(new IoLanes(store, lanes));
  for (std::uint32_t folder = 0; folder < store.folder_count(); ++folder) {
    const DriveOptions drive =
        folder < options.drives.size() ? options.drives[folder] : DriveOptions{};
    tiers::nvme::EngineOptions engine;
    engine.lanes = lanes;
    engine.io_depth = drive.io_depth;
    engine.request_bytes_max = drive.request_bytes;
    engine.lane_capacity = kLaneCapacity;
    engine.read_bytes_per_s = drive.read_bytes_per_s;
    engine.write_bytes_per_s = drive.write_bytes_per_s;
    engine.make_backend = options.make_io_backend;
    engine.buffers.assign(buffers.begin(), buffers.end());
    HEADRACE_ASSIGN(std::unique_ptr<tiers::nvme::IoEngine> opened,
                    tiers::nvme::IoEngine::create(runtime, store, folder, engine));
    made->engines_.push_back(std::move(opened));
  }
  return made;
}

tiers::nvme::IoLane& IoLanes::lane_for(int lane, const tiers::nvme::ExtentKey& key) {
  const std::uint32_t folder = store_.folder_of(key);
  std::optional<std::uint32_t>& last = folder_of_lane_[static_cast<std::size_t>(lane)];
  tiers::nvme::IoLane& wanted = engines_[folder]->lane(lane);
  if (last && *last != folder) {
    wanted.wait(engines_[*last]->lane(lane).record());
  }
  last = folder;
  return wanted;
}

tiers::nvme::IoLane& IoLanes::unordered_lane(int lane, const tiers::nvme::ExtentKey& key) {
  return engines_[store_.folder_of(key)]->lane(lane);
}

Status IoLanes::wait_all() {
  Status status;
  for (const auto& engine : engines_) {
    for (std::size_t lane = 0; lane < folder_of_lane_.size(); ++lane) {
      const tiers::Event last = engine->lane(static_cast<int>(lane)).record();
      if (Status finished = last.wait_host(); !finished && status) {
        status = std::move(finished);
      }
    }
  }
  std::fill(folder_of_lane_.begin(), folder_of_lane_.end(), std::nullopt);
  return status;
}

void IoLanes::append_queues(std::vector<tiers::Queue*>& queues) const {
  for (const auto& engine : engines_) {
    for (std::size_t lane = 0; lane < folder_of_lane_.size(); ++lane) {
      queues.push_back(&engine->lane(static_cast<int>(lane)));
    }
  }
}

tiers::nvme::IoTotals IoLanes::totals() const {
  tiers::nvme::IoTotals sum;
  for (const auto& engine : engines_) {
    const tiers::nvme::IoTotals totals = engine->totals();
    sum.read_bytes += totals.read_bytes;
    sum.write_bytes += totals.write_bytes;
    sum.resubmitted += totals.resubmitted;
    sum.sum_ns += totals.sum_ns;
  }
  return sum;
}

std::size_t IoLanes::pinned_bytes() const {
  std::size_t bytes = 0;
  for (const auto& engine : engines_) {
    bytes = std::max(bytes, engine->facts().registered_bytes);
  }
  return bytes;
}

}  // namespace headrace::exec
