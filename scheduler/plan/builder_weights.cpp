// The Builder's data movement: weights to the device, tiles through the optimizer, gradients home.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/assert.hpp"
#include "scheduler/plan/builder.hpp"

namespace headrace::plan {

std::vector<int> Builder::tiles_of(int unit, const PieceSpec& piece) const {
  std::vector<int> inside;
  const auto& tiles = in_.plan.units[static_cast<std::size_t>(unit)].tiles;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    if (tiles[t].begin >= piece.begin &&
        tiles[t].begin + tiles[t].elements <= piece.begin + piece.elements) {
      inside.push_back(static_cast<int>(t));
    }
  }
  return inside;
}

bool Builder::update_due(int unit, int tile) const {
  const auto u = static_cast<std::size_t>(unit);
  const auto t = static_cast<std::size_t>(tile);
  const UnitPlan& plan = in_.plan.units[u];
  const bool pending =
      pending_ == Pending::kAll || (pending_ == Pending::kRest && !plan.speculated);
  return pending && !plan.tiles[t].frozen && updated_[u][t] == 0;
}

int Builder::take_weight_slot() {
  HEADRACE_ASSERT(!slots_.empty(), "weights that stream have slots");
  const auto oldest =
      std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
        return a.last_use < b.last_use;
      });
  return static_cast<int>(oldest - slots_.begin());
}

// Makes a piece's weights resident on the device, updated if that is due, and returns where. The
// least recently used slot is taken: with n slots, n - 1 pieces are brought ahead of the one in
// use, and what forward used last is found again by backward.
Builder::Weights Builder::ensure(int unit, int piece_index) {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(unit)];
  const PieceSpec& piece =
      in_.model.units[static_cast<std::size_t>(unit)].pieces[static_cast<std::size_t>(piece_index)];
  const std::vector<int> tiles = tiles_of(unit, piece);
  const bool due =
      std::any_of(tiles.begin(), tiles.end(), [&](int tile) { return update_due(unit, tile); });
  if (plan.pinned) {
    const Range range = slice(plan.weights, piece.begin, piece.elements, 4);
    for (const int tile : tiles) {
      if (update_due(unit, tile)) {
        const TileSpec& spec = plan.tiles[static_cast<std::size_t>(tile)];
        bring_tile(
            {.unit = unit,
             .tile = tile,
             .update = true,
             .read = true,
             .target = {.range = slice(plan.weights, spec.begin, spec.elements, 4), .content = 0}});
      }
    }
    return {.range = range, .content = 0};
  }
  ++clock_;
  const std::uint64_t content = piece_content(unit, piece_index);
  for (std::size_t s = 0; s < slots_.size() && !due; ++s) {
    if (slots_[s].unit == unit && slots_[s].piece == piece_index) {
      slots_[s].last_use = clock_;
      return {.range = slice(in_.layout.weight_slots[s], 0, piece.elements, 4), .content = content};
    }
  }
  const int s = take_weight_slot();
  slots_[static_cast<std::size_t>(s)] = {.unit = unit, .piece = piece_index, .last_use = clock_};
  const int buffer = in_.layout.weight_slots[static_cast<std::size_t>(s)];
  for (const int tile : tiles) {
    const TileSpec& spec = plan.tiles[static_cast<std::size_t>(tile)];
    const Range target = slice(buffer, spec.begin - piece.begin, spec.elements, 4);
    bring_tile({.unit = unit,
                .tile = tile,
                .update = update_due(unit, tile),
                .read = true,
                .target = {.range = target, .content = content}});
  }
  return {.range = slice(buffer, 0, piece.elements, 4), .content = content};
}

// One tile: read what does not live in memory, update it if asked, write it back, decode it if it
// must be, and copy it to where it is wanted on the device. Returns where its weights are as floats
// on the host (or, for a unit at home on the device, there); where none are wanted, its master.
Builder::Weights Builder::bring_tile(const TileUse& use) {
  const auto t = static_cast<std::size_t>(use.tile);
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(use.unit)];
  const TileSpec& spec = plan.tiles[t];
  const bool decodes = in_.plan.format.decodes(spec);
  if (decodes && !use.update && !in_.plan.separate_device && plan.weights >= 0) {
    return {.range = slice(plan.weights, spec.begin, spec.elements, 4), .content = 0};
  }
  const auto in_memory = [](const TilePlace& place) -> Weights {
    return {.range = {.buffer = place.buffer, .offset = place.offset, .bytes = place.bytes},
            .content = 0};
  };
  const bool with_state = use.update || decodes;
  const bool stream_param = plan.param[t].buffer < 0;
  const bool stream_state = with_state && plan.state_of[t].buffer < 0;
  Weights param = in_memory(plan.param[t]);
  if (stream_param && !decodes && !in_.plan.separate_device && use.target.range.buffer >= 0) {
    param = use.target;  // direct I/O into the place of use
    transfer(InstructionKind::kReadParam, use, param);
  } else if (stream_param) {
    param = stage_param(use);
  }
  Weights state = with_state ? in_memory(plan.state_of[t]) : Weights{};
  if (stream_state) {
    state = stage_state(use);
  }
  const Weights floats = floats_of(use, param);
  if (use.update) {
    update_tile(use, param, state, decodes && use.read ? floats : Weights{});
    lend_gradient(use.unit, use.tile);
  } else if (decodes) {
    decode_tile(use, param, state, floats);
  }
  if (use.update && (stream_param || plan.write_through)) {
    transfer(InstructionKind::kWriteParam, use, param);
  }
  if (use.update && stream_state) {
    transfer(InstructionKind::kWriteState, use, state);
  }
  const Range& target = use.target.range;
  if (target.buffer >= 0 &&
      (target.buffer != floats.range.buffer || target.offset != floats.range.offset)) {
    Instruction copy = make(InstructionKind::kCopy, QueueKind::kH2d, use.unit, use.tile, -1);
    copy.accesses = {read(floats.range, floats.content), write(target, use.target.content)};
    emit(std::move(copy));
  }
  return floats;
}

// The tile's param extent in the next slot: one after the other. What an earlier program has left
// there is not read again.
Builder::Weights Builder::stage_param(const TileUse& use) {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(use.unit)];
  const std::size_t take = staged_.params.size();
  staged_.params.push_back({.unit = use.unit, .tile = use.tile});
  const std::vector<int>& slots = in_.layout.staging_param;
  const Weights staged = {.range = {.buffer = slots[take % slots.size()],
                                    .offset = 0,
                                    .bytes = plan.param[static_cast<std::size_t>(use.tile)].bytes},
                          .content = tile_content(use.unit, use.tile)};
  if (take < entry_.params.size()) {
    HEADRACE_ASSERT(entry_.params[take] == staged_.params.back(), "slots are taken as foreseen");
  } else {
    transfer(InstructionKind::kReadParam, use, staged);
  }
  return staged;
}

Builder::Weights Builder::stage_state(const TileUse& use) {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(use.unit)];
  const int buffer = take_state_slot();
  const std::size_t take = staged_.states.size();
  staged_.states.push_back({.unit = use.unit, .tile = use.tile});
  const Weights staged = {
      .range = {.buffer = buffer,
                .offset = 0,
                .bytes = plan.state_of[static_cast<std::size_t>(use.tile)].bytes},
      .content = tile_content(use.unit, use.tile)};
  if (take < entry_.states.size()) {
    HEADRACE_ASSERT(entry_.states[take] == staged_.states.back(), "slots are taken as foreseen");
  } else {
    transfer(InstructionKind::kReadState, use, staged);
  }
  return staged;
}

// A slot that was lent and never used, else the one that was used longest ago: what it holds has
// had the most time to be written. The first takes go through the slots in order.
int Builder::take_state_slot() {
  const std::size_t take = staged_.states.size() + 1;
  if (!lending_) {
    std::erase_if(state_slots_, [](const StateSlot& slot) { return slot.borrowed; });
    lent_slots_.clear();
  }
  std::deque<StateSlot>& from =
      !lent_slots_.empty() && lent_slots_.front().usable_from <= take ? lent_slots_ : state_slots_;
  const StateSlot slot = from.front();
  from.pop_front();
  state_slots_.push_back(slot);
  return slot.buffer;
}

// The gradient of a tile has been used, and (updates follow the order of tiles) those before it:
// slots that lie over them can be taken; not at once, for then a read would wait for this update.
void Builder::lend_gradient(int unit, int tile) {
  HEADRACE_ASSERT((std::pair(last_update_.unit, last_update_.tile) < std::pair(unit, tile)),
                  "updates follow the order of tiles: what lies before one is free");
  last_update_ = {.unit = unit, .tile = tile};
  const std::vector<BorrowedSlot>& slots = in_.layout.borrowed_state;
  const std::size_t ahead = in_.layout.staging_state.size();
  for (; next_lent_ < slots.size() &&
         std::pair(slots[next_lent_].unit, slots[next_lent_].tile) <= std::pair(unit, tile);
       ++next_lent_) {
    lent_slots_.push_back({.buffer = slots[next_lent_].buffer,
                           .borrowed = true,
                           .usable_from = staged_.states.size() + ahead + 1});
  }
}

void Builder::prefetch(const StagedTiles& next) {
  const auto read_ahead =
      [&](InstructionKind kind, const StagedTile& tile, int buffer, std::size_t bytes) {
        transfer(kind,
                 {.unit = tile.unit, .tile = tile.tile},
                 {.range = {.buffer = buffer, .offset = 0, .bytes = bytes},
                  .content = tile_content(tile.unit, tile.tile)},
                 true);
      };
  const auto place_of = [&](const std::vector<TilePlace>& places, const StagedTile& tile) {
    return places[static_cast<std::size_t>(tile.tile)].bytes;
  };
  for (std::size_t i = 0; i < std::max(next.params.size(), next.states.size()); ++i) {
    if (i < next.params.size()) {
      const StagedTile& tile = next.params[i];
      const UnitPlan& unit = in_.plan.units[static_cast<std::size_t>(tile.unit)];
      read_ahead(InstructionKind::kReadParam,
                 tile,
                 in_.layout.staging_param[i],
                 place_of(unit.param, tile));
    }
    if (i < next.states.size()) {
      const StagedTile& tile = next.states[i];
      const UnitPlan& unit = in_.plan.units[static_cast<std::size_t>(tile.unit)];
      read_ahead(InstructionKind::kReadState,
                 tile,
                 in_.layout.staging_state[i],
                 place_of(unit.state_of, tile));
    }
  }
}

// Where a tile's weights become floats: its master, or, where that has to be decoded, the place of
// use if the host (or whoever updates the unit) can write there, else a slot.
Builder::Weights Builder::floats_of(const TileUse& use, const Weights& param) {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(use.unit)];
  const TileSpec& spec = plan.tiles[static_cast<std::size_t>(use.tile)];
  if (!use.read || !in_.plan.format.decodes(spec)) {
    return param;
  }
  const bool reached = !in_.plan.separate_device || update_queue(use.unit) == QueueKind::kCompute;
  if (use.target.range.buffer >= 0 && reached) {
    return use.target;
  }
  const int slot = in_.layout.staging_weights[next_decoded_++ % in_.layout.staging_weights.size()];
  return {.range = slice(slot, 0, spec.elements, 4), .content = tile_content(use.unit, use.tile)};
}

int Builder::next_lane(TransferClass kind) {
  constexpr std::array<int, 5> kCounts = {
      kReadLanes, kWriteLanes, kWriteThroughLanes, kSpillLanes, kPrefetchLanes};
  const auto index = static_cast<std::size_t>(kind);
  const int first = std::accumulate(kCounts.begin(), kCounts.begin() + index, 0);
  return first + next_lane_[index]++ % kCounts[index];
}

void Builder::transfer(InstructionKind kind,
                       const TileUse& use,
                       const Weights& memory,
                       bool ahead) {
  const auto u = static_cast<std::size_t>(use.unit);
  const TileSpec& spec = in_.plan.units[u].tiles[static_cast<std::size_t>(use.tile)];
  const bool param = kind == InstructionKind::kReadParam || kind == InstructionKind::kWriteParam;
  const bool reading = kind == InstructionKind::kReadParam || kind == InstructionKind::kReadState;
  const Range extent = param ? slice(in_.layout.store_param[u], spec.begin, spec.elements, 4)
                             : slice(in_.layout.store_state[u], spec.begin, spec.elements, 8);
  Instruction instruction = make(kind, QueueKind::kNvme, use.unit, use.tile, -1);
  instruction.speculative = use.speculative && !reading;
  instruction.lane = next_lane(
      reading ? (ahead || use.speculative ? TransferClass::kPrefetch : TransferClass::kRead)
      : param && in_.plan.units[u].write_through ? TransferClass::kWriteThrough
                                                 : TransferClass::kWrite);
  instruction.accesses = {
      reading ? write(memory.range, memory.content) : read(memory.range, memory.content),
      reading ? read(extent) : write(extent)};
  emit(std::move(instruction));
}

QueueKind Builder::update_queue(int unit) const {
  const bool on_device = in_.plan.units[static_cast<std::size_t>(unit)].home == Home::kDevice &&
                         in_.plan.separate_device;
  return on_device ? QueueKind::kCompute : QueueKind::kHost;
}

void Builder::update_tile(const TileUse& use,
                          const Weights& param,
                          const Weights& state,
                          const Weights& decoded) {
  const auto u = static_cast<std::size_t>(use.unit);
  const TileSpec& spec = in_.plan.units[u].tiles[static_cast<std::size_t>(use.tile)];
  Instruction instruction =
      make(InstructionKind::kUpdate, update_queue(use.unit), use.unit, use.tile, -1);
  instruction.begin = spec.begin;
  instruction.elements = spec.elements;
  instruction.speculative = use.speculative;
  instruction.accesses = {
      update(param.range, param.content),
      update(state.range, state.content),
      read(held(use.unit, spec.begin, spec.elements)),
      decoded.range.buffer >= 0 ? write(decoded.range, decoded.content) : Access{}};
  emit(std::move(instruction));
  updated_[u][static_cast<std::size_t>(use.tile)] = 1;
}

// The step's own updates of tiles whose gradients are known. The gradients stay held, and the store
// keeps what it has: should the norm not allow what was done here, it is done again. Called once
// the kernels of the next unit are under way: reads for these updates come after its weights, and
// nothing that it needs is behind them in a queue.
void Builder::speculate_collected() {
  for (const Collected& tile : collected_) {
    const TileUse use{
        .unit = tile.unit, .tile = tile.tile, .update = true, .read = false, .speculative = true};
    Weights param = take_from_weight_slot(use, tile.piece);
    if (param.range.buffer < 0) {
      param = stage_param(use);
    }
    const Weights state = stage_state(use);
    update_tile(use, param, state, {});
    transfer(InstructionKind::kWriteParam, use, param);
    transfer(InstructionKind::kWriteState, use, state);
  }
  collected_.clear();
}

// Where kernels have read what is the tile's param extent, for the last time in this step. Absent:
// it has to be staged.
Builder::Weights Builder::take_from_weight_slot(const TileUse& use, int piece_index) {
  const TileSpec& spec =
      in_.plan.units[static_cast<std::size_t>(use.unit)].tiles[static_cast<std::size_t>(use.tile)];
  const PieceSpec& piece = in_.model.units[static_cast<std::size_t>(use.unit)]
                               .pieces[static_cast<std::size_t>(piece_index)];
  const auto held = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.unit == use.unit && slot.piece == piece_index;
  });
  if (held == slots_.end() || in_.plan.separate_device || in_.plan.format.decodes(spec)) {
    return {};
  }
  const int buffer = in_.layout.weight_slots[static_cast<std::size_t>(held - slots_.begin())];
  return {.range = slice(buffer, spec.begin - piece.begin, spec.elements, 4),
          .content = piece_content(use.unit, piece_index)};
}

void Builder::decode_tile(const TileUse& use,
                          const Weights& param,
                          const Weights& state,
                          const Weights& decoded) {
  const TileSpec& spec =
      in_.plan.units[static_cast<std::size_t>(use.unit)].tiles[static_cast<std::size_t>(use.tile)];
  Instruction instruction =
      make(InstructionKind::kDecode, update_queue(use.unit), use.unit, use.tile, -1);
  instruction.begin = spec.begin;
  instruction.elements = spec.elements;
  instruction.accesses = {read(param.range, param.content),
                          read(state.range, state.content),
                          write(decoded.range, decoded.content)};
  emit(std::move(instruction));
}

// ---- gradients ----

bool Builder::piece_trainable(int unit, const PieceSpec& piece) const {
  const std::vector<int> tiles = tiles_of(unit, piece);
  const auto& specs = in_.plan.units[static_cast<std::size_t>(unit)].tiles;
  return std::any_of(tiles.begin(), tiles.end(), [&](int tile) {
    return !specs[static_cast<std::size_t>(tile)].frozen;
  });
}

Builder::GradientTarget Builder::gradient_target(int unit, const PieceSpec& piece) {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(unit)];
  if (plan.gradient < 0 || !piece_trainable(unit, piece)) {
    return {.range = {}, .direct = true, .present = false};
  }
  if (gradient_is_direct(in_.plan, plan)) {
    return {.range = held(unit, piece.begin, piece.elements), .direct = true, .present = true};
  }
  const int slot =
      in_.layout.gradient_slots[next_gradient_slot_++ % in_.layout.gradient_slots.size()];
  return {.range = slice(slot, 0, piece.elements, 4), .direct = false, .present = true};
}

// Brings a piece's gradient to the held buffer, tile by tile, and (after the last micro-batch)
// collects it.
void Builder::gradient_out(
    int unit, int piece_index, const GradientTarget& target, const Group& group, bool collect_it) {
  if (!target.present) {
    return;
  }
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(unit)];
  const PieceSpec& piece =
      in_.model.units[static_cast<std::size_t>(unit)].pieces[static_cast<std::size_t>(piece_index)];
  const bool copied = in_.plan.separate_device && !target.direct && plan.home != Home::kDevice;
  for (const int t : tiles_of(unit, piece)) {
    const TileSpec& tile = plan.tiles[static_cast<std::size_t>(t)];
    if (tile.frozen) {
      continue;
    }
    Range source{
        .buffer = target.range.buffer,
        .offset = target.range.offset + static_cast<std::size_t>(tile.begin - piece.begin) * 4,
        .bytes = static_cast<std::size_t>(tile.elements) * 4};
    if (copied) {
      const bool lands_held = plan.gradient_storage == Dtype::kF32 && !host_adds();
      const Range landing =
          lands_held ? held(unit, tile.begin, tile.elements)
                     : slice(in_.layout.landing[next_landing_++ % in_.layout.landing.size()],
                             0,
                             tile.elements,
                             4);
      Instruction copy = make(InstructionKind::kCopy, QueueKind::kD2h, unit, t, -1);
      copy.accesses = {read(source), write(landing)};
      emit(std::move(copy));
      source = landing;
    }
    if (host_adds() && !target.direct) {
      Instruction add = make(InstructionKind::kAccumulate,
                             plan.home == Home::kDevice ? QueueKind::kCompute : QueueKind::kHost,
                             unit,
                             t,
                             group.first);
      add.first = group.first == 0;
      add.elements = tile.elements;
      const Range accumulator = held(unit, tile.begin, tile.elements);
      add.accesses = {read(source), add.first ? write(accumulator) : update(accumulator)};
      emit(std::move(add));
      source = accumulator;
    }
    if (group.last && collect_it) {
      collect(unit, tile, t, source);
      if (speculates_ && plan.speculated) {
        collected_.push_back({.unit = unit, .piece = piece_index, .tile = t});
      }
    }
  }
}

void Builder::collect(int unit, const TileSpec& tile, int tile_index, const Range& source) {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(unit)];
  const Range target = held(unit, tile.begin, tile.elements);
  const bool in_place = source.buffer == target.buffer;
  const QueueKind where = plan.home == Home::kDevice && in_.plan.separate_device
                              ? QueueKind::kCompute
                              : QueueKind::kHost;
  Instruction instruction = make(InstructionKind::kCollect, where, unit, tile_index, -1);
  instruction.begin = tile.begin;
  instruction.elements = tile.elements;
  instruction.accesses = {in_place ? update(source) : read(source),
                          in_place ? update(target) : write(target)};
  emit(std::move(instruction));
}

}  // namespace headrace::plan
