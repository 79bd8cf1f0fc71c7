// Emitting the programs of a plan. Control flow of a step is at the top (training_step); what each
// part emits is below. Waits are not thought of here: they follow from the ranges that the
// instructions declare (derive_waits).
#include "scheduler/plan/builder.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/assert.hpp"

namespace headrace::plan {

std::uint64_t piece_content(int unit, int piece) {
  return (static_cast<std::uint64_t>(unit) + 1) << 32 | (static_cast<std::uint64_t>(piece) + 1);
}

std::uint64_t tile_content(int unit, int tile) {
  return piece_content(unit, tile) | std::uint64_t{1} << 63;
}

Builder::Builder(const BuilderInputs& inputs, std::string name, StagedTiles entry)
    : in_(inputs),
      pricer_(inputs.model, inputs.settings, inputs.machine, inputs.plan),
      entry_(std::move(entry)) {
  program_.name = std::move(name);
  slots_.resize(in_.layout.weight_slots.size());
  for (const UnitPlan& unit : in_.plan.units) {
    updated_.emplace_back(unit.tiles.size(), 0);
  }
  for (const int buffer : in_.layout.staging_state) {
    state_slots_.push_back({.buffer = buffer});
  }
}

void Builder::training_step(Pending pending, bool speculates, const StagedTiles& next) {
  pending_ = pending;
  speculates_ = speculates;
  gather();
  copy_inputs();
  // What is staged for backward is decoded, on its way to a separate device, or updated; else slots
  // are free once the last unit has been updated.
  const bool free_in_backward =
      !in_.plan.separate_device && !in_.plan.format.decoded && !speculates;
  for (const Group& group : groups()) {
    forward_blocks(group, true);
    head(group, true);
    if (group.first == 0 && free_in_backward) {
      prefetch(next);
    }
    backward_blocks(group);
    scatter(group);
  }
  speculate_collected();
  embedding_gradient();
  if (!free_in_backward) {
    prefetch(next);
  }
}

void Builder::drain(Pending pending) {
  pending_ = pending;
  for (std::size_t u = 0; u < in_.plan.units.size(); ++u) {
    const UnitPlan& unit = in_.plan.units[u];
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      if (update_due(static_cast<int>(u), static_cast<int>(t))) {
        const Weights copy = device_copy(unit, unit.tiles[t]);
        bring_tile({.unit = static_cast<int>(u),
                    .tile = static_cast<int>(t),
                    .update = true,
                    .read = copy.range.buffer >= 0,
                    .target = copy});
      }
    }
  }
}

// Where a tile's weights stay beside its master, if they do: they get their new values as the tile
// is updated.
Builder::Weights Builder::device_copy(const UnitPlan& unit, const TileSpec& tile) const {
  if (unit.weights < 0 || unit.weights == unit.master) {
    return {};
  }
  return {.range = slice(unit.weights, tile.begin, tile.elements, 4), .content = 0};
}

void Builder::evaluation() {
  gather();
  copy_inputs();
  for (const Group& group : groups()) {
    forward_blocks(group, false);
    head(group, false);
  }
}

Program Builder::take() {
  derive_waits(program_, in_.plan.buffers);
  return std::move(program_);
}

// ---- the parts of a step ----

std::vector<Builder::Group> Builder::groups() const {
  return cut({.first = 0, .count = static_cast<int>(in_.model.accumulate), .last = true},
             in_.plan.group_size);
}

std::vector<Builder::Group> Builder::cut(const Group& whole, int size) {
  std::vector<Group> parts;
  for (int k = 0; k < whole.count; k += size) {
    const int count = std::min(size, whole.count - k);
    parts.push_back(
        {.first = whole.first + k, .count = count, .last = whole.last && k + count == whole.count});
  }
  return parts;
}

// Gradients are added one micro-batch after the other, whoever adds them. Where the kernels add to
// the sum of the whole step, or the group is the step, they add; else the host does, to what
// earlier groups have left there, and each micro-batch's comes to it by itself.
std::vector<Builder::Group> Builder::summed_together(const Group& group, int unit) const {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(unit)];
  const bool by_host = host_adds() && !gradient_is_direct(in_.plan, plan);
  return cut(group, by_host ? 1 : group.count);
}

bool Builder::host_adds() const {
  return groups_of(in_.model.accumulate, in_.plan.group_size) > 1;
}

void Builder::gather() {
  const UnitPlan& unit = in_.plan.units[0];
  for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
    const TileSpec& tile = unit.tiles[t];
    const bool due = update_due(0, static_cast<int>(t));
    const Weights param = bring_tile({.unit = 0,
                                      .tile = static_cast<int>(t),
                                      .update = due,
                                      .read = true,
                                      .target = due ? device_copy(unit, tile) : Weights{}});
    Instruction instruction =
        make(InstructionKind::kGather, QueueKind::kHost, 0, static_cast<int>(t), -1);
    instruction.begin = tile.begin;
    instruction.elements = tile.elements;
    instruction.first = t == 0;
    instruction.accesses = {
        read(param.range, param.content),
        t == 0 ? write(whole(in_.plan.tokens_x)) : update(whole(in_.plan.tokens_x))};
    emit(std::move(instruction));
  }
}

void Builder::copy_inputs() {
  if (!in_.plan.separate_device || in_.settings.purpose == Purpose::kGenerate) {
    return;
  }
  Instruction instruction = make(InstructionKind::kCopy, QueueKind::kH2d, -1, 0, -1);
  instruction.accesses = {read(whole(in_.plan.targets_host)),
                          write(whole(in_.plan.targets_device))};
  emit(std::move(instruction));
}

// Between the device and where a block's input is on the host.
void Builder::copy_input(std::size_t block, int micro_batch, QueueKind queue) {
  const std::size_t bytes = in_.model.activation_bytes();
  const Range host =
      block == 0
          ? Range{in_.plan.tokens_x, static_cast<std::size_t>(micro_batch) * bytes, bytes}
          : whole(in_.layout.offloaded[block][static_cast<std::size_t>(slot_of(micro_batch))]);
  const Range device = activation(block, micro_batch);
  Instruction copy = make(InstructionKind::kCopy, queue, -1, 0, micro_batch);
  copy.accesses = queue == QueueKind::kH2d ? std::vector{read(host), write(device)}
                                           : std::vector{read(device), write(host)};
  emit(std::move(copy));
}

// Of a block whose input is offloaded; the others' stay where they are.
void Builder::copy_offloaded(const Group& group, std::size_t block, QueueKind queue) {
  for (int k = group.first; block < in_.layout.offloaded.size() && k < group.first + group.count;
       ++k) {
    copy_input(block, k, queue);
  }
}

// Activations of a block that is spilled, from or to their place among those of kept blocks.
void Builder::move_saved(const Group& group, std::size_t block, bool away) {
  for (int k = group.first; k < group.first + group.count; ++k) {
    const auto slot = static_cast<std::size_t>(slot_of(k));
    const int waiting = in_.layout.spilled[block][slot];
    if (waiting < 0) {
      continue;
    }
    const int unit = static_cast<int>(block) + 1;
    Range there = whole(waiting);
    Range here{.buffer = in_.layout.saved[block][slot], .offset = 0, .bytes = there.bytes};
    if (in_.plan.separate_device) {
      there.bytes = here.bytes = in_.model.units[block + 1].cost.saved_bytes;
      Instruction copy = make(InstructionKind::kCopy,
                              away ? QueueKind::kD2h : QueueKind::kH2d,
                              unit,
                              static_cast<int>(slot),
                              k);
      copy.accesses = {read(away ? here : there), write(away ? there : here)};
      emit(std::move(copy));
      continue;
    }
    Instruction transfer = make(away ? InstructionKind::kWriteSaved : InstructionKind::kReadSaved,
                                QueueKind::kNvme,
                                unit,
                                static_cast<int>(slot),
                                k);
    transfer.lane = next_lane(away ? TransferClass::kSpill : TransferClass::kRead);
    transfer.accesses = {away ? read(here) : write(here), away ? write(there) : read(there)};
    emit(std::move(transfer));
  }
}

void Builder::forward_blocks(const Group& group, bool backward_follows) {
  for (int k = group.first; in_.plan.separate_device && k < group.first + group.count; ++k) {
    copy_input(0, k, QueueKind::kH2d);
  }
  const std::size_t blocks = in_.model.units.size() - 2;
  for (std::size_t b = 0; b < blocks; ++b) {
    const Weights weights = ensure(static_cast<int>(b) + 1, 0);
    for (int k = group.first; k < group.first + group.count; ++k) {
      Instruction forward =
          make(InstructionKind::kForward, QueueKind::kCompute, static_cast<int>(b) + 1, 0, k);
      forward.accesses = {read(weights.range, weights.content),
                          read(activation(b, k)),
                          write(activation(b + 1, k)),
                          saved(b, k, AccessMode::kWrite),
                          update(whole(in_.layout.workspace))};
      emit(std::move(forward));
    }
    if (backward_follows) {
      copy_offloaded(group, b + 1, QueueKind::kD2h);
      move_saved(group, b, true);
    }
  }
}

void Builder::head(const Group& group, bool backward) {
  const int unit = static_cast<int>(in_.model.units.size()) - 1;
  const std::size_t blocks = in_.model.units.size() - 2;
  const Weights norm = ensure(unit, in_.model.head.norm_piece);
  for (int k = group.first; k < group.first + group.count; ++k) {
    Instruction begin =
        make(InstructionKind::kHeadBegin, QueueKind::kCompute, unit, in_.model.head.norm_piece, k);
    begin.accesses = {read(norm.range, norm.content),
                      read(activation(blocks, k)),
                      write(whole(in_.layout.head_state[static_cast<std::size_t>(slot_of(k))])),
                      update(whole(in_.layout.workspace))};
    emit(std::move(begin));
  }
  if (in_.settings.purpose == Purpose::kGenerate) {
    logits();
    return;
  }
  head_scores(group);
  lending_ = false;  // from here on gradients are written
  if (backward) {
    head_gradients(group);
    head_norm_gradient(group);
  }
}

void Builder::head_scores(const Group& group) {
  const int unit = static_cast<int>(in_.model.units.size()) - 1;
  for (std::size_t r = 0; r < in_.model.head.rows.size(); ++r) {
    const RowPiece& rows = in_.model.head.rows[r];
    const Weights weights = ensure(rows.unit, rows.piece);
    for (int k = group.first; k < group.first + group.count; ++k) {
      Instruction score =
          make(InstructionKind::kHeadScore, QueueKind::kCompute, rows.unit, static_cast<int>(r), k);
      score.accesses = {
          read(weights.range, weights.content),
          read(slice(in_.plan.targets_device, k * in_.model.rows(), in_.model.rows(), 4)),
          update(whole(in_.layout.head_state[static_cast<std::size_t>(slot_of(k))])),
          update(whole(in_.layout.workspace))};
      emit(std::move(score));
    }
  }
  for (int k = group.first; k < group.first + group.count; ++k) {
    Instruction loss = make(InstructionKind::kHeadLoss, QueueKind::kCompute, unit, 0, k);
    loss.accesses = {
        read(slice(in_.plan.targets_device, k * in_.model.rows(), in_.model.rows(), 4)),
        update(whole(in_.layout.head_state[static_cast<std::size_t>(slot_of(k))])),
        write(slice(in_.plan.losses_device, k, 1, 8)),
        update(whole(in_.layout.workspace))};
    emit(std::move(loss));
    if (in_.plan.separate_device) {
      Instruction copy = make(InstructionKind::kCopy, QueueKind::kD2h, -1, 0, k);
      copy.accesses = {read(slice(in_.plan.losses_device, k, 1, 8)),
                       write(slice(in_.plan.losses_host, k, 1, 8))};
      emit(std::move(copy));
    }
  }
}

void Builder::head_gradients(const Group& group) {
  for (std::size_t r = 0; r < in_.model.head.rows.size(); ++r) {
    const RowPiece& rows = in_.model.head.rows[r];
    const PieceSpec& piece = in_.model.units[static_cast<std::size_t>(rows.unit)]
                                 .pieces[static_cast<std::size_t>(rows.piece)];
    const Weights weights = ensure(rows.unit, rows.piece);
    for (const Group& part : summed_together(group, rows.unit)) {
      const GradientTarget target = gradient_target(rows.unit, piece);
      for (int k = part.first; k < part.first + part.count; ++k) {
        Instruction gradient = make(
            InstructionKind::kHeadGradient, QueueKind::kCompute, rows.unit, static_cast<int>(r), k);
        const Range dx = whole(in_.layout.gradients[static_cast<std::size_t>(slot_of(k))]);
        gradient.first = target.direct ? k == 0 : k == part.first;
        gradient.accesses = {
            read(weights.range, weights.content),
            read(slice(in_.plan.targets_device, k * in_.model.rows(), in_.model.rows(), 4)),
            update(whole(in_.layout.head_state[static_cast<std::size_t>(slot_of(k))])),
            r == 0 ? write(dx) : update(dx),
            target.present ? update(target.range) : Access{},
            update(whole(in_.layout.workspace))};
        emit(std::move(gradient));
      }
      // A tied matrix is collected once the embedding's row sums have been added.
      speculate_collected();
      gradient_out(rows.unit, rows.piece, target, part, !in_.model.tied);
    }
  }
}

void Builder::head_norm_gradient(const Group& group) {
  const int unit = static_cast<int>(in_.model.units.size()) - 1;
  const PieceSpec& piece =
      in_.model.units.back().pieces[static_cast<std::size_t>(in_.model.head.norm_piece)];
  const std::size_t blocks = in_.model.units.size() - 2;
  const Weights norm = ensure(unit, in_.model.head.norm_piece);
  for (const Group& part : summed_together(group, unit)) {
    const GradientTarget target = gradient_target(unit, piece);
    for (int k = part.first; k < part.first + part.count; ++k) {
      Instruction end =
          make(InstructionKind::kHeadEnd, QueueKind::kCompute, unit, in_.model.head.norm_piece, k);
      end.first = target.direct ? k == 0 : k == part.first;
      end.accesses = {read(norm.range, norm.content),
                      read(activation(blocks, k)),
                      read(whole(in_.layout.head_state[static_cast<std::size_t>(slot_of(k))])),
                      update(whole(in_.layout.gradients[static_cast<std::size_t>(slot_of(k))])),
                      target.present ? update(target.range) : Access{},
                      update(whole(in_.layout.workspace))};
      emit(std::move(end));
    }
    speculate_collected();
    gradient_out(unit, in_.model.head.norm_piece, target, part, true);
  }
}

void Builder::logits() {
  for (std::size_t r = 0; r < in_.model.head.rows.size(); ++r) {
    const RowPiece& rows = in_.model.head.rows[r];
    const Weights weights = ensure(rows.unit, rows.piece);
    Instruction logits =
        make(InstructionKind::kHeadLogits, QueueKind::kCompute, rows.unit, static_cast<int>(r), 0);
    logits.accesses = {read(weights.range, weights.content),
                       read(whole(in_.layout.head_state[0])),
                       write(slice(in_.layout.logits_device, rows.first_row, rows.rows, 4)),
                       update(whole(in_.layout.workspace))};
    emit(std::move(logits));
  }
  if (in_.plan.separate_device) {
    Instruction copy = make(InstructionKind::kCopy, QueueKind::kD2h, -1, 0, 0);
    copy.accesses = {read(whole(in_.layout.logits_device)), write(whole(in_.plan.logits_host))};
    emit(std::move(copy));
  }
}

void Builder::backward_blocks(const Group& group) {
  for (std::size_t b = in_.model.units.size() - 2; b-- > 0;) {
    const int unit = static_cast<int>(b) + 1;
    const PieceSpec& piece = in_.model.units[b + 1].pieces.front();
    const Weights weights = ensure(unit, 0);
    // As far ahead as weights are: its place was that of what the block before this one has made
    // again, or of the model's output.
    if (const auto ahead = static_cast<std::size_t>(in_.plan.lookahead); b >= ahead) {
      copy_offloaded(group, b - ahead, QueueKind::kH2d);
    }
    // What of the block behind this one has been used makes room.
    if (const auto ahead = static_cast<std::size_t>(in_.layout.saved_slots) - 1;
        in_.layout.saved_slots > 0 && b >= ahead) {
      move_saved(group, b - ahead, false);
    }
    for (const Group& part : summed_together(group, unit)) {
      const GradientTarget target = gradient_target(unit, piece);
      for (int k = part.first; k < part.first + part.count; ++k) {
        backward(b, k, weights, target, target.direct ? k == 0 : k == part.first);
      }
      speculate_collected();
      gradient_out(unit, 0, target, part, true);
    }
  }
}

void Builder::backward(std::size_t block,
                       int micro_batch,
                       const Weights& weights,
                       const GradientTarget& target,
                       bool first) {
  const int unit = static_cast<int>(block) + 1;
  Instruction backward =
      make(InstructionKind::kBackward, QueueKind::kCompute, unit, 0, micro_batch);
  backward.first = first;
  backward.recompute = is_recomputed(in_.plan, unit);
  backward.accesses = {
      read(weights.range, weights.content),
      read(activation(block, micro_batch)),
      saved(block, micro_batch, backward.recompute ? AccessMode::kWrite : AccessMode::kRead),
      update(whole(in_.layout.gradients[static_cast<std::size_t>(slot_of(micro_batch))])),
      target.present ? update(target.range) : Access{},
      update(whole(in_.layout.workspace)),
      // Recompute writes its output where forward wrote it: the same values, or with offloaded
      // inputs where nothing else is meanwhile.
      backward.recompute ? write(activation(block + 1, micro_batch)) : Access{}};
  emit(std::move(backward));
}

void Builder::scatter(const Group& group) {
  if (in_.plan.row_accumulators < 0) {
    return;
  }
  for (int k = group.first; k < group.first + group.count; ++k) {
    Range dx = whole(in_.layout.gradients[static_cast<std::size_t>(slot_of(k))]);
    if (in_.plan.separate_device) {
      Instruction copy = make(InstructionKind::kCopy, QueueKind::kD2h, -1, 0, k);
      copy.accesses = {read(dx), write(whole(in_.layout.dx_host))};
      emit(std::move(copy));
      dx = whole(in_.layout.dx_host);
    }
    Instruction scatter = make(InstructionKind::kScatter, QueueKind::kHost, 0, 0, k);
    scatter.first = k == 0;
    scatter.accesses = {read(dx),
                        k == 0 ? write(whole(in_.plan.row_accumulators))
                               : update(whole(in_.plan.row_accumulators))};
    emit(std::move(scatter));
  }
}

void Builder::embedding_gradient() {
  const UnitPlan& unit = in_.plan.units[0];
  if (unit.gradient < 0) {
    return;
  }
  const auto& pieces = in_.model.units[0].pieces;
  for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
    const TileSpec& tile = unit.tiles[t];
    if (tile.frozen) {
      continue;
    }
    const bool has_head =
        in_.model.tied && std::any_of(pieces.begin(), pieces.end(), [&](const PieceSpec& piece) {
          return tile.begin >= piece.begin && tile.begin < piece.begin + piece.elements;
        });
    const bool in_place = unit.gradient_storage == Dtype::kF32;
    const Range target =
        in_place ? held(0, tile.begin, tile.elements)
                 : slice(in_.layout.landing[next_landing_++ % in_.layout.landing.size()],
                         0,
                         tile.elements,
                         4);
    Instruction spread =
        make(InstructionKind::kSpread, QueueKind::kHost, 0, static_cast<int>(t), -1);
    spread.begin = tile.begin;
    spread.elements = tile.elements;
    spread.accesses = {read(whole(in_.plan.row_accumulators)),
                       has_head ? read(held(0, tile.begin, tile.elements)) : Access{},
                       has_head ? update(target) : write(target)};
    emit(std::move(spread));
    collect(0, tile, static_cast<int>(t), target);
  }
}

// ---- operands ----

Access Builder::read(const Range& range, std::uint64_t content) const {
  return {.buffer = range.buffer,
          .offset = range.offset,
          .bytes = range.bytes,
          .mode = AccessMode::kRead,
          .content = content};
}

Access Builder::write(const Range& range, std::uint64_t content) const {
  return {.buffer = range.buffer,
          .offset = range.offset,
          .bytes = range.bytes,
          .mode = AccessMode::kWrite,
          .content = content};
}

Access Builder::update(const Range& range, std::uint64_t content) const {
  return {.buffer = range.buffer,
          .offset = range.offset,
          .bytes = range.bytes,
          .mode = AccessMode::kReadWrite,
          .content = content};
}

Builder::Range Builder::whole(int buffer) const {
  return {.buffer = buffer,
          .offset = 0,
          .bytes = buffer < 0 ? 0 : in_.plan.buffers[static_cast<std::size_t>(buffer)].bytes};
}

Builder::Range Builder::slice(int buffer,
                              std::int64_t begin,
                              std::int64_t elements,
                              std::size_t element_bytes) const {
  const Range range{.buffer = buffer,
                    .offset = static_cast<std::size_t>(begin) * element_bytes,
                    .bytes = static_cast<std::size_t>(elements) * element_bytes};
  HEADRACE_ASSERT(buffer >= 0 && range.offset + range.bytes <=
                                     in_.plan.buffers[static_cast<std::size_t>(buffer)].bytes,
                  "an operand lies within its buffer");
  return range;
}

int Builder::slot_of(int micro_batch) const {
  return micro_batch % in_.plan.group_size;
}

Builder::Range Builder::activation(std::size_t block, int micro_batch) const {
  if (block == 0 && !in_.plan.separate_device) {
    const std::size_t bytes = in_.model.activation_bytes();
    return {.buffer = in_.plan.tokens_x,
            .offset = static_cast<std::size_t>(micro_batch) * bytes,
            .bytes = bytes};
  }
  return whole(in_.layout.activations[block][static_cast<std::size_t>(slot_of(micro_batch))]);
}

Access Builder::saved(std::size_t block, int micro_batch, AccessMode mode) const {
  const int buffer = in_.layout.saved[block][static_cast<std::size_t>(slot_of(micro_batch))];
  if (buffer < 0) {
    return {};
  }
  return {.buffer = buffer,
          .offset = 0,
          .bytes = in_.model.units[block + 1].cost.saved_bytes,
          .mode = mode,
          .content = 0};
}

Builder::Range Builder::held(int unit, std::int64_t begin, std::int64_t elements) const {
  const UnitPlan& plan = in_.plan.units[static_cast<std::size_t>(unit)];
  return slice(plan.gradient, begin, elements, dtype_bytes(plan.gradient_storage));
}

Instruction Builder::make(
    InstructionKind kind, QueueKind queue, int unit, int index, int micro_batch) const {
  Instruction instruction;
  instruction.kind = kind;
  instruction.queue = queue;
  instruction.unit = unit;
  instruction.index = index;
  instruction.micro_batch = micro_batch;
  return instruction;
}

int Builder::emit(Instruction instruction) {
  pricer_.price(instruction);
  program_.instructions.push_back(std::move(instruction));
  return static_cast<int>(program_.instructions.size()) - 1;
}

}  // namespace headrace::plan
