// Weights and state in and out of wherever they live: loading, committing, reading. Not on the step
// path. Tiles in host memory go over the NVMe lanes as they lie there, as many at once as there are
// lanes; the others one by one through a buffer of a tile, and to and from a separate device
// through the pinned bounce arena.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/assert.hpp"
#include "scheduler/exec/executor_impl.hpp"

namespace headrace::exec {

namespace {

tiers::nvme::ExtentKey key_of(int unit, int tile, tiers::nvme::ExtentKind kind) {
  return {.unit = static_cast<std::uint32_t>(unit),
          .tile = static_cast<std::uint32_t>(tile),
          .kind = kind};
}

std::size_t elements_of(const plan::TileSpec& tile) {
  return static_cast<std::size_t>(tile.elements);
}

}  // namespace

Status ExecutorImpl::copy_in(int buffer, std::size_t offset, std::span<const std::byte> source) {
  const tiers::Extent& extent = extents_[static_cast<std::size_t>(buffer)];
  std::byte* target = extent.memory().data() + offset;
  if (extent.tier() != tiers::Tier::kDevice) {
    note_host_access("load", {}, {target, source.size()});
    std::memcpy(target, source.data(), source.size());
    return {};
  }
  for (std::size_t at = 0; at < source.size(); at += kBounceBytes) {
    const std::size_t bytes = std::min(source.size() - at, kBounceBytes);
    note_host_access("fill bounce", {}, {bounce_arena_->data(), bytes});
    std::memcpy(bounce_arena_->data(), source.data() + at, bytes);
    device_->copy(device_->h2d(), "load", 0, target + at, bounce_arena_->data(), bytes);
    HEADRACE_TRY(device_->h2d().record().wait_host());
  }
  return {};
}

Status ExecutorImpl::copy_out(int buffer, std::size_t offset, std::span<std::byte> target) {
  const tiers::Extent& extent = extents_[static_cast<std::size_t>(buffer)];
  const std::byte* source = extent.memory().data() + offset;
  if (extent.tier() != tiers::Tier::kDevice) {
    note_host_access("read", {source, target.size()}, {});
    std::memcpy(target.data(), source, target.size());
    return {};
  }
  for (std::size_t at = 0; at < target.size(); at += kBounceBytes) {
    const std::size_t bytes = std::min(target.size() - at, kBounceBytes);
    device_->copy(device_->d2h(), "read", 0, bounce_arena_->data(), source + at, bytes);
    HEADRACE_TRY(device_->d2h().record().wait_host());
    note_host_access("empty bounce", {bounce_arena_->data(), bytes}, {});
    std::memcpy(target.data() + at, bounce_arena_->data(), bytes);
  }
  return {};
}

// Puts a tile's weights where the plan wants them: the master in memory or the store, and the copy
// that stays on a separate device.
Status ExecutorImpl::place_param(int unit, int tile, std::span<const float> values) {
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  const std::size_t offset =
      static_cast<std::size_t>(plan.tiles[static_cast<std::size_t>(tile)].begin) * sizeof(float);
  if (plan.master >= 0) {
    HEADRACE_TRY(copy_in(plan.master, offset, std::as_bytes(values)));
  }
  if (plan.weights >= 0 && plan.weights != plan.master) {
    HEADRACE_TRY(copy_in(plan.weights, offset, std::as_bytes(values)));
  }
  return {};
}

Status ExecutorImpl::fetch_param(int unit, int tile, std::span<float> values) {
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  if (plan.master < 0) {
    return store_->read_now(key_of(unit, tile, tiers::nvme::ExtentKind::kParam),
                            std::as_writable_bytes(values));
  }
  return copy_out(
      plan.master,
      static_cast<std::size_t>(plan.tiles[static_cast<std::size_t>(tile)].begin) * sizeof(float),
      std::as_writable_bytes(values));
}

Status ExecutorImpl::place_state(int unit, int tile, std::span<const float> values) {
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  return copy_in(
      plan.state, plan.state_offset[static_cast<std::size_t>(tile)], std::as_bytes(values));
}

Status ExecutorImpl::load(const ParamSource& source) {
  if (store_ != nullptr) {
    HEADRACE_TRY(store_->mark_dirty());
  }
  Watchdog::Task task = watched("takes its first tiles");
  std::vector<float> bounce;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const plan::UnitPlan& unit = plan_.units[u];
    const int number = static_cast<int>(u);
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const int tile = static_cast<int>(t);
      task.tick();
      bounce.assign(elements_of(unit.tiles[t]), 0.0F);
      HEADRACE_TRY(source(number, unit.tiles[t].begin, bounce));
      HEADRACE_TRY(place_param(number, tile, bounce));
      if (unit.master < 0) {
        HEADRACE_TRY(store_->write_now(key_of(number, tile, tiers::nvme::ExtentKind::kParam),
                                       std::as_bytes(std::span(bounce)),
                                       0));
      }
      if (unit.tiles[t].frozen || unit.gradient < 0) {
        continue;
      }
      bounce.assign(2 * elements_of(unit.tiles[t]), 0.0F);
      if (unit.state >= 0) {
        HEADRACE_TRY(place_state(number, tile, bounce));
      } else {
        HEADRACE_TRY(store_->write_now(key_of(number, tile, tiers::nvme::ExtentKind::kState),
                                       std::as_bytes(std::span(bounce)),
                                       0));
      }
    }
  }
  note_all_is_over();
  update_count_ = 0;
  pending_.reset();
  return {};
}

std::vector<ExecutorImpl::MemoryTile> ExecutorImpl::memory_tiles() const {
  std::vector<MemoryTile> tiles;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const plan::UnitPlan& unit = plan_.units[u];
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const std::size_t bytes = elements_of(unit.tiles[t]) * sizeof(float);
      const auto key = [&](tiers::nvme::ExtentKind kind) {
        return key_of(static_cast<int>(u), static_cast<int>(t), kind);
      };
      if (unit.master >= 0) {
        tiles.push_back({.key = key(tiers::nvme::ExtentKind::kParam),
                         .buffer = unit.master,
                         .offset = static_cast<std::size_t>(unit.tiles[t].begin) * sizeof(float),
                         .bytes = bytes,
                         .frozen = unit.tiles[t].frozen});
      }
      if (unit.state >= 0 && !unit.tiles[t].frozen) {
        tiles.push_back({.key = key(tiers::nvme::ExtentKind::kState),
                         .buffer = unit.state,
                         .offset = unit.state_offset[t],
                         .bytes = 2 * bytes,
                         .frozen = false});
      }
    }
  }
  return tiles;
}

// The tile's bytes, if the drive can move them from and to where they lie; else nothing.
std::span<std::byte> ExecutorImpl::direct_memory(const MemoryTile& tile) {
  const tiers::Extent& extent = extents_[static_cast<std::size_t>(tile.buffer)];
  if (!io_ || extent.tier() == tiers::Tier::kDevice) {
    return {};
  }
  const std::span<std::byte> memory = extent.memory().subspan(tile.offset, tile.bytes);
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(memory.data()) % tiers::nvme::kPageBytes == 0;
  return aligned ? memory : std::span<std::byte>{};
}

tiers::nvme::IoLane& ExecutorImpl::next_lane(const MemoryTile& tile) {
  turn_ = (turn_ + 1) % lane_count();
  return io_->unordered_lane(
      turn_, static_cast<int>(tile.key.unit), static_cast<int>(tile.key.tile));
}

Status ExecutorImpl::load_committed(std::int64_t update_count) {
  HEADRACE_ASSERT(store_ != nullptr, "a resumed run has a store");
  Watchdog::Task task = watched("gives its last commit");
  std::vector<std::byte> bounce;
  std::uint64_t number = 0;
  for (const MemoryTile& tile : memory_tiles()) {
    task.tick();
    if (const std::span<std::byte> memory = direct_memory(tile); !memory.empty()) {
      next_lane(tile).read(tile.key, memory, number++);
      continue;
    }
    bounce.resize(tile.bytes);
    HEADRACE_TRY(store_->read_now(tile.key, bounce));
    HEADRACE_TRY(copy_in(tile.buffer, tile.offset, bounce));
  }
  if (io_) {
    HEADRACE_TRY(io_->wait_all());
    note_all_is_over();
  }
  HEADRACE_TRY(load_device_weights());
  note_all_is_over();
  update_count_ = update_count;
  pending_.reset();
  return {};
}

// The copies of weights that stay on a separate device beside their master elsewhere.
Status ExecutorImpl::load_device_weights() {
  std::vector<float> values;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const plan::UnitPlan& unit = plan_.units[u];
    if (unit.weights < 0 || unit.weights == unit.master) {
      continue;
    }
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      values.resize(elements_of(unit.tiles[t]));
      HEADRACE_TRY(fetch_param(static_cast<int>(u), static_cast<int>(t), values));
      HEADRACE_TRY(copy_in(unit.weights,
                           static_cast<std::size_t>(unit.tiles[t].begin) * sizeof(float),
                           std::as_bytes(std::span(values))));
    }
  }
  return {};
}

Result<std::uint64_t> ExecutorImpl::write_memory_tiles(std::int64_t write_step) {
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
  std::vector<std::byte> bounce;
  for (const MemoryTile& tile : memory_tiles()) {
    // What the store has of this very update is not written again (skipped steps, two commits in a
    // row): a tile of which one extent lives on NVMe would then have its two extents in different
    // slots. Frozen tiles never change: once is enough.
    const std::int64_t stored_step = store_->step_of(tile.key);
    if (tile.frozen ? stored_step >= 0 : stored_step == write_step) {
      continue;
    }
    bytes += tile.bytes;
    if (const std::span<const std::byte> memory = direct_memory(tile); !memory.empty()) {
      next_lane(tile).write(tile.key, memory, write_step, number++);
      continue;
    }
    bounce.resize(tile.bytes);
    HEADRACE_TRY(copy_out(tile.buffer, tile.offset, bounce));
    HEADRACE_TRY(store_->write_now(tile.key, bounce, write_step));
  }
  if (io_) {
    HEADRACE_TRY(io_->wait_all());
    note_all_is_over();
  }
  return bytes;
}

Result<std::uint64_t> ExecutorImpl::commit(std::int64_t step, std::string run_state) {
  HEADRACE_ASSERT(store_ != nullptr, "a commit needs a store");
  HEADRACE_TRY(drain());
  const Watchdog::Task task = watched(fmt::format("commits step {}", step));
  HEADRACE_TRY(store_->mark_dirty());
  HEADRACE_ASSIGN(const std::uint64_t bytes, write_memory_tiles(update_count_));
  tiers::nvme::CommitRecord record;
  record.step = step;
  record.update_count = update_count_;
  record.run_state = std::move(run_state);
  HEADRACE_TRY(store_->commit(std::move(record)));
  return bytes;
}

Status ExecutorImpl::read_params(int unit, std::int64_t begin, std::span<float> out) {
  HEADRACE_ASSERT(!pending_, "weights are read once pending updates have been drained");
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  std::vector<float> bounce;
  for (std::size_t t = 0; t < plan.tiles.size(); ++t) {
    const plan::TileSpec& tile = plan.tiles[t];
    const std::int64_t from = std::max(begin, tile.begin);
    const std::int64_t to = std::min(end, tile.begin + tile.elements);
    if (from >= to) {
      continue;
    }
    bounce.resize(elements_of(tile));
    HEADRACE_TRY(fetch_param(unit, static_cast<int>(t), bounce));
    std::copy(bounce.begin() + (from - tile.begin),
              bounce.begin() + (to - tile.begin),
              out.begin() + (from - begin));
  }
  return {};
}

}  // namespace headrace::exec
