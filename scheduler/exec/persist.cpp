// Weights and state in and out of wherever they live: loading, committing, reading. Not on the step
// path. Tiles in host memory go over the NVMe lanes as they lie there, as many at once as there are
// lanes; the others one by one through a buffer of a tile, and to and from a separate device
// through the pinned bounce arena.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/assert.hpp"
#include "optim_cpu/convert.hpp"
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

// Initial weights and zero moments in the plan's format. A frozen tile keeps floats in all of them.
void ExecutorImpl::encode_tile(const plan::UnitPlan& unit,
                               std::size_t t,
                               std::span<const float> values,
                               TileBytes& bytes) const {
  bytes.param.assign(unit.param[t].bytes, std::byte{0});
  bytes.state.assign(unit.gradient < 0 ? 0 : unit.state_of[t].bytes, std::byte{0});
  if (bytes.state.empty()) {
    HEADRACE_ASSERT(bytes.param.size() == values.size_bytes(), "what has no state is floats");
    std::memcpy(bytes.param.data(), values.data(), values.size_bytes());
    return;
  }
  constexpr std::size_t kPart = 4096;  // elements: whole groups
  std::vector<float> part(kPart), zeros(kPart, 0.0F);
  for (std::size_t at = 0; at < values.size(); at += kPart) {
    const std::size_t count = std::min(kPart, values.size() - at);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), count, part.begin());
    const std::span<float> zero = std::span(zeros).first(count);
    optim::write_state(*optimizer_,
                       {.param = bytes.param.data(),
                        .state = bytes.state.data(),
                        .tile_elements = unit.tiles[t].elements},
                       static_cast<std::int64_t>(at),
                       {.param = std::span(part).first(count), .m = zero, .v = zero});
  }
}

// To memory, or to the store.
Status ExecutorImpl::place_extent(const tiers::nvme::ExtentKey& key,
                                  const plan::TilePlace& place,
                                  std::span<const std::byte> bytes) {
  return place.buffer >= 0 ? copy_in(place.buffer, place.offset, bytes)
                           : store_->write_now(key, bytes, 0);
}

Status ExecutorImpl::fetch_extent(const tiers::nvme::ExtentKey& key,
                                  const plan::TilePlace& place,
                                  std::span<std::byte> bytes) {
  return place.buffer >= 0 ? copy_out(place.buffer, place.offset, bytes)
                           : store_->read_now(key, bytes);
}

// Floats that are kept beside the master: a copy on a separate device, or decoded ones.
Status ExecutorImpl::place_device_weights(int unit, int tile, std::span<const float> values) {
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  const auto t = static_cast<std::size_t>(tile);
  if (plan.weights < 0 || plan.weights == plan.master || plan.param[t].buffer == plan.weights) {
    return {};
  }
  return copy_in(plan.weights,
                 static_cast<std::size_t>(plan.tiles[t].begin) * sizeof(float),
                 std::as_bytes(values));
}

// The tile's weights as floats, wherever and in whatever format it is.
Status ExecutorImpl::fetch_param(int unit, int tile, std::span<float> values) {
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  const auto t = static_cast<std::size_t>(tile);
  const auto param_key = key_of(unit, tile, tiers::nvme::ExtentKind::kParam);
  if (!plan_.format.decodes(plan.tiles[t])) {
    return fetch_extent(param_key, plan.param[t], std::as_writable_bytes(values));
  }
  std::vector<std::byte> param(plan.param[t].bytes), state(plan.state_of[t].bytes);
  HEADRACE_TRY(fetch_extent(param_key, plan.param[t], param));
  HEADRACE_TRY(
      fetch_extent(key_of(unit, tile, tiers::nvme::ExtentKind::kState), plan.state_of[t], state));
  optim::read_state(
      *optimizer_,
      {.param = param.data(), .state = state.data(), .tile_elements = plan.tiles[t].elements},
      0,
      {.param = values, .m = {}, .v = {}});
  return {};
}

Status ExecutorImpl::load_tile(int unit, int tile, std::span<float> values, TileBytes& bytes) {
  const plan::UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  const auto t = static_cast<std::size_t>(tile);
  encode_tile(plan, t, values, bytes);
  HEADRACE_TRY(place_extent(
      key_of(unit, tile, tiers::nvme::ExtentKind::kParam), plan.param[t], bytes.param));
  if (!bytes.state.empty()) {
    HEADRACE_TRY(place_extent(
        key_of(unit, tile, tiers::nvme::ExtentKind::kState), plan.state_of[t], bytes.state));
  }
  if (plan_.format.decodes(plan.tiles[t])) {  // what is kept, rounded
    optim::read_state(*optimizer_,
                      {.param = bytes.param.data(),
                       .state = bytes.state.data(),
                       .tile_elements = plan.tiles[t].elements},
                      0,
                      {.param = values, .m = {}, .v = {}});
  }
  return place_device_weights(unit, tile, values);
}

Status ExecutorImpl::load(const ParamSource& source) {
  if (store_ != nullptr) {
    HEADRACE_TRY(store_->mark_dirty());
  }
  Watchdog::Task task = watched("takes its first tiles");
  std::vector<float> values;
  TileBytes bytes;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const plan::UnitPlan& unit = plan_.units[u];
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      task.tick();
      values.assign(elements_of(unit.tiles[t]), 0.0F);
      HEADRACE_TRY(source(static_cast<int>(u), unit.tiles[t].begin, values));
      HEADRACE_TRY(load_tile(static_cast<int>(u), static_cast<int>(t), values, bytes));
    }
  }
  note_all_is_over();
  update_count_ = 0;
  pending_.reset();
  prefetched_ = false;
  return {};
}

std::vector<ExecutorImpl::MemoryTile> ExecutorImpl::memory_tiles() const {
  std::vector<MemoryTile> tiles;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const plan::UnitPlan& unit = plan_.units[u];
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const auto add = [&](tiers::nvme::ExtentKind kind, const plan::TilePlace& place) {
        if (place.buffer >= 0) {
          tiles.push_back({.key = key_of(static_cast<int>(u), static_cast<int>(t), kind),
                           .buffer = place.buffer,
                           .offset = place.offset,
                           .bytes = place.bytes,
                           .frozen = unit.tiles[t].frozen});
        }
      };
      add(tiers::nvme::ExtentKind::kParam, unit.param[t]);
      add(tiers::nvme::ExtentKind::kState, unit.state_of[t]);
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
  return io_->unordered_lane(turn_, tile.key);
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
  prefetched_ = false;
  return {};
}

// Floats that are kept beside the master, of every unit that has them.
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
      HEADRACE_TRY(place_device_weights(static_cast<int>(u), static_cast<int>(t), values));
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
