#include "scheduler/plan/program_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace headrace::plan {

namespace {

using Kind = Content::Kind;

constexpr std::size_t kFloatBytes = 4;
constexpr int kFirstStore = 2;  // spaces: device, host, then each buffer of the store

int queue_of(const Instruction& instruction) {
  constexpr int kFirstLane = 8;
  return instruction.queue == QueueKind::kNvme ? kFirstLane + instruction.lane
                                               : static_cast<int>(instruction.queue);
}

std::string text(const Content& content) {
  return fmt::format("kind {} of unit {}, tile {}, version {}, micro-batches {}+{}, lease {:#x}",
                     static_cast<int>(content.kind),
                     content.unit,
                     content.tile,
                     content.version,
                     content.from,
                     content.count,
                     content.content);
}

}  // namespace

ProgramChecker::ProgramChecker(const ModelSpec& model, const Plan& plan, std::mt19937_64& random)
    : model_(model), plan_(plan), random_(random) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlan& unit = plan.units[u];
    const int number = static_cast<int>(u);
    updates_.emplace_back(unit.tiles.size(), 0);
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const int index = static_cast<int>(t);
      const TileSpec& spec = unit.tiles[t];
      if (unit.param[t].buffer >= 0) {
        set(place(unit.param[t].buffer, unit.param[t].offset, unit.param[t].bytes),
            param(number, index, 0));
      }
      if (unit.state_of[t].buffer >= 0 && unit.state_of[t].bytes > 0) {
        set(place(unit.state_of[t].buffer, unit.state_of[t].offset, unit.state_of[t].bytes),
            state(number, index, 0));
      }
      if (unit.weights >= 0 && unit.weights != unit.master) {
        set(place(unit.weights,
                  static_cast<std::size_t>(spec.begin) * kFloatBytes,
                  static_cast<std::size_t>(spec.elements) * kFloatBytes),
            floats(number, index, 0));
      }
    }
  }
}

// ---- programs ----

std::string ProgramChecker::compute(bool held) {
  ++step_;
  updates_wanted_ += held ? 1 : 0;
  if (run(held ? plan_.compute_held : plan_.compute).empty()) {
    expect_gradients_held();
    expect_losses();
    expect_home(false);
  }
  pending_ = true;
  pending_step_ = step_;
  return error_;
}

std::string ProgramChecker::drain() {
  ++updates_wanted_;
  if (run(plan_.drain).empty()) {
    expect_home(true);
  }
  pending_ = false;
  return error_;
}

std::string ProgramChecker::evaluate() {
  ++step_;
  if (run(plan_.evaluation).empty()) {
    expect_losses();
  }
  return error_;
}

std::string ProgramChecker::run(const Program& program) {
  set(place(
          plan_.targets_host, 0, plan_.buffers[static_cast<std::size_t>(plan_.targets_host)].bytes),
      {.kind = Kind::kTargets, .version = step_});
  std::map<int, std::vector<int>> queues;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    queues[queue_of(program.instructions[i])].push_back(static_cast<int>(i));
  }
  std::map<int, std::size_t> next;
  std::vector<char> done(program.instructions.size(), 0);
  for (std::size_t count = 0; count < program.instructions.size(); ++count) {
    std::vector<std::pair<int, int>> ready;
    for (const auto& [queue, members] : queues) {
      const std::size_t at = next[queue];
      if (at == members.size()) {
        continue;
      }
      const auto& waits = program.instructions[static_cast<std::size_t>(members[at])].waits;
      if (std::all_of(waits.begin(), waits.end(), [&](int wait) {
            return done[static_cast<std::size_t>(wait)] != 0;
          })) {
        ready.emplace_back(queue, members[at]);
      }
    }
    if (ready.empty()) {
      error_ = program.name + ": nothing can go on";
      return error_;
    }
    const auto [queue, number] = ready[random_() % ready.size()];
    const std::string wrong = execute(program.instructions[static_cast<std::size_t>(number)]);
    if (!wrong.empty()) {
      error_ = fmt::format("step {}, {}, instruction {}: {}", step_, program.name, number, wrong);
      return error_;
    }
    done[static_cast<std::size_t>(number)] = 1;
    ++next[queue];
  }
  return error_;
}

std::string ProgramChecker::execute(const Instruction& instruction) {
  for (const Access& access : instruction.accesses) {
    if (!present(access)) {
      continue;
    }
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(access.buffer)];
    const std::size_t arena = buffer.tier == MemoryTier::kDevice ? plan_.device_arena_bytes
                              : buffer.tier == MemoryTier::kHost ? plan_.host_arena_bytes
                                                                 : buffer.bytes;
    if (access.offset + access.bytes > buffer.bytes || buffer.offset + buffer.bytes > arena) {
      return "an operand is outside of its buffer or arena: " + buffer.name;
    }
  }
  dispatch(instruction);
  return error_;
}

void ProgramChecker::dispatch(const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::kReadParam:
    case InstructionKind::kReadState:
    case InstructionKind::kWriteParam:
    case InstructionKind::kWriteState:
      transfer(instruction);
      break;
    case InstructionKind::kCopy:
      copy(instruction);
      break;
    case InstructionKind::kGather:
      gather(instruction);
      break;
    case InstructionKind::kForward:
      forward(instruction);
      break;
    case InstructionKind::kBackward:
      backward(instruction);
      break;
    case InstructionKind::kHeadBegin:
      head_begin(instruction);
      break;
    case InstructionKind::kHeadScore:
      head_score(instruction);
      break;
    case InstructionKind::kHeadLoss:
      head_loss(instruction);
      break;
    case InstructionKind::kHeadGradient:
      head_gradient(instruction);
      break;
    case InstructionKind::kHeadEnd:
      head_end(instruction);
      break;
    case InstructionKind::kHeadLogits:
      head_logits(instruction);
      break;
    case InstructionKind::kScatter:
      scatter(instruction);
      break;
    case InstructionKind::kSpread:
      spread(instruction);
      break;
    case InstructionKind::kAccumulate:
      accumulate(instruction);
      break;
    case InstructionKind::kCollect:
      collect(instruction);
      break;
    case InstructionKind::kUpdate:
      update(instruction);
      break;
    case InstructionKind::kDecode:
      decode(instruction);
      break;
  }
}

// ---- instructions ----

// Between memory and the extent of a tile in the store. The store has what load() left there until
// it is written: nothing is named then, and that is version 0.
void ProgramChecker::transfer(const Instruction& instruction) {
  const bool reading = instruction.kind == InstructionKind::kReadParam ||
                       instruction.kind == InstructionKind::kReadState;
  const bool is_param = instruction.kind == InstructionKind::kReadParam ||
                        instruction.kind == InstructionKind::kWriteParam;
  const Place memory = place(instruction.accesses[0]);
  const Place extent = place(instruction.accesses[1]);
  const auto named = [&](int version) {
    return is_param ? param(instruction.unit, instruction.index, version)
                    : state(instruction.unit, instruction.index, version);
  };
  if (reading) {
    Content content = look(extent, "an extent of the store");
    if (content.kind == Kind::kNothing) {
      content = named(0);
    }
    content.content = instruction.accesses[0].content;
    set(memory, content);
    return;
  }
  const int now = updates_[static_cast<std::size_t>(instruction.unit)]
                          [static_cast<std::size_t>(instruction.index)];
  Content expected = named(now);
  expected.content = instruction.accesses[0].content;
  expect(memory, expected, "what is written to the store");
  set(extent, named(now));
}

void ProgramChecker::copy(const Instruction& instruction) {
  const Place source = place(instruction.accesses[0]);
  const Place target = place(instruction.accesses[1]);
  if (source.end - source.begin != target.end - target.begin) {
    fail("a copy changes its size");
    return;
  }
  const std::uint64_t lease = instruction.accesses[0].content;
  // Segments keep their places.
  std::vector<std::pair<Place, Content>> parts;
  std::size_t at = source.begin;
  const Memory& memory = spaces_[source.space];
  while (at < source.end) {
    auto next = memory.upper_bound(at);
    const auto holder = next == memory.begin() ? memory.end() : std::prev(next);
    if (holder == memory.end() || holder->second.end <= at) {
      fail("a copy reads what nobody has written");
      return;
    }
    const std::size_t end = std::min(holder->second.end, source.end);
    Content content = holder->second.content;
    if (lease != 0 && content.content != lease) {
      fail("a copy reads " + text(content));
      return;
    }
    content.content = instruction.accesses[1].content;
    parts.emplace_back(Place{.space = target.space,
                             .begin = target.begin + (at - source.begin),
                             .end = target.begin + (end - source.begin)},
                       content);
    at = end;
  }
  for (const auto& [part, content] : parts) {
    set(part, content);
  }
}

void ProgramChecker::gather(const Instruction& instruction) {
  Content weights =
      floats(instruction.unit, instruction.index, version(instruction.unit, instruction.index));
  weights.content = instruction.accesses[0].content;
  expect(place(instruction.accesses[0]), weights, "the embedding's rows");
  const Place target = place(instruction.accesses[1]);
  Content tokens{.kind = Kind::kTokens, .version = step_, .count = instruction.index};
  if (!instruction.first) {
    expect(target, tokens, "rows gathered so far");
  }
  tokens.count = instruction.index + 1;
  set(target, tokens);
}

void ProgramChecker::expect_input(int block, int micro_batch, const Access& access) {
  if (block == 0) {
    expect(place(access),
           {.kind = Kind::kTokens,
            .version = step_,
            .count = static_cast<int>(plan_.units[0].tiles.size())},
           "the embedding's output");
    return;
  }
  expect(place(access),
         {.kind = Kind::kActivation, .unit = block, .tile = micro_batch, .version = step_},
         "the input of a block");
}

void ProgramChecker::forward(const Instruction& instruction) {
  const int block = instruction.unit - 1;
  const int k = instruction.micro_batch;
  expect_weights(instruction.unit, 0, instruction.accesses[0]);
  expect_input(block, k, instruction.accesses[1]);
  set(place(instruction.accesses[4]), {.kind = Kind::kScratch});
  set(place(instruction.accesses[2]),
      {.kind = Kind::kActivation, .unit = block + 1, .tile = k, .version = step_});
  if (present(instruction.accesses[3])) {
    set(place(instruction.accesses[3]),
        {.kind = Kind::kSaved, .unit = block, .tile = k, .version = step_});
  }
}

void ProgramChecker::backward(const Instruction& instruction) {
  const int block = instruction.unit - 1;
  const int k = instruction.micro_batch;
  expect_weights(instruction.unit, 0, instruction.accesses[0]);
  expect_input(block, k, instruction.accesses[1]);
  if (present(instruction.accesses[2])) {
    const Content saved{.kind = Kind::kSaved, .unit = block, .tile = k, .version = step_};
    if (instruction.recompute) {
      set(place(instruction.accesses[2]), saved);
    } else {
      expect(place(instruction.accesses[2]), saved, "activations kept for backward");
    }
  }
  Content gradient{
      .kind = Kind::kActivationGradient, .unit = block + 1, .tile = k, .version = step_};
  expect(place(instruction.accesses[3]), gradient, "the gradient of a block's output");
  set(place(instruction.accesses[5]), {.kind = Kind::kScratch});
  if (instruction.recompute && instruction.accesses.size() > 6 &&
      present(instruction.accesses[6])) {
    set(place(instruction.accesses[6]),
        {.kind = Kind::kActivation, .unit = block + 1, .tile = k, .version = step_});
  }
  gradient.unit = block;
  set(place(instruction.accesses[3]), gradient);
  add_gradient(instruction.unit, 0, instruction, instruction.accesses[4]);
}

void ProgramChecker::head_begin(const Instruction& instruction) {
  const int blocks = static_cast<int>(model_.units.size()) - 2;
  expect_weights(instruction.unit, instruction.index, instruction.accesses[0]);
  expect_input(blocks, instruction.micro_batch, instruction.accesses[1]);
  set(place(instruction.accesses[3]), {.kind = Kind::kScratch});
  set(place(instruction.accesses[2]),
      {.kind = Kind::kHead, .tile = instruction.micro_batch, .version = step_});
}

void ProgramChecker::head_score(const Instruction& instruction) {
  const RowPiece& rows = model_.head.rows[static_cast<std::size_t>(instruction.index)];
  expect_weights(rows.unit, rows.piece, instruction.accesses[0]);
  expect(place(instruction.accesses[1]), {.kind = Kind::kTargets, .version = step_}, "targets");
  Content state{.kind = Kind::kHead,
                .tile = instruction.micro_batch,
                .version = step_,
                .count = instruction.index};
  expect(place(instruction.accesses[2]), state, "row pieces scored so far");
  set(place(instruction.accesses[3]), {.kind = Kind::kScratch});
  ++state.count;
  set(place(instruction.accesses[2]), state);
}

void ProgramChecker::head_loss(const Instruction& instruction) {
  const Content scored{.kind = Kind::kHead,
                       .tile = instruction.micro_batch,
                       .version = step_,
                       .count = static_cast<int>(model_.head.rows.size())};
  expect(place(instruction.accesses[0]), {.kind = Kind::kTargets, .version = step_}, "targets");
  expect(place(instruction.accesses[1]), scored, "all row pieces scored");
  set(place(instruction.accesses[3]), {.kind = Kind::kScratch});
  set(place(instruction.accesses[2]),
      {.kind = Kind::kLoss, .tile = instruction.micro_batch, .version = step_});
}

void ProgramChecker::head_gradient(const Instruction& instruction) {
  const RowPiece& rows = model_.head.rows[static_cast<std::size_t>(instruction.index)];
  const int blocks = static_cast<int>(model_.units.size()) - 2;
  expect_weights(rows.unit, rows.piece, instruction.accesses[0]);
  expect(place(instruction.accesses[1]), {.kind = Kind::kTargets, .version = step_}, "targets");
  expect(place(instruction.accesses[2]),
         {.kind = Kind::kHead,
          .tile = instruction.micro_batch,
          .version = step_,
          .count = static_cast<int>(model_.head.rows.size())},
         "all row pieces scored");
  Content gradient{.kind = Kind::kActivationGradient,
                   .unit = blocks + 1,  // of the head
                   .tile = instruction.micro_batch,
                   .version = step_,
                   .count = instruction.index};
  if (instruction.index > 0) {
    expect(place(instruction.accesses[3]), gradient, "the gradient of row pieces so far");
  }
  set(place(instruction.accesses[5]), {.kind = Kind::kScratch});
  ++gradient.count;
  set(place(instruction.accesses[3]), gradient);
  add_gradient(rows.unit, rows.piece, instruction, instruction.accesses[4]);
}

void ProgramChecker::head_end(const Instruction& instruction) {
  const int blocks = static_cast<int>(model_.units.size()) - 2;
  const int pieces = static_cast<int>(model_.head.rows.size());
  expect_weights(instruction.unit, instruction.index, instruction.accesses[0]);
  expect_input(blocks, instruction.micro_batch, instruction.accesses[1]);
  expect(place(instruction.accesses[2]),
         {.kind = Kind::kHead, .tile = instruction.micro_batch, .version = step_, .count = pieces},
         "the head's state");
  expect(place(instruction.accesses[3]),
         {.kind = Kind::kActivationGradient,
          .unit = blocks + 1,
          .tile = instruction.micro_batch,
          .version = step_,
          .count = pieces},
         "the gradient of all row pieces");
  set(place(instruction.accesses[5]), {.kind = Kind::kScratch});
  set(place(instruction.accesses[3]),
      {.kind = Kind::kActivationGradient,
       .unit = blocks,
       .tile = instruction.micro_batch,
       .version = step_});
  add_gradient(instruction.unit, instruction.index, instruction, instruction.accesses[4]);
}

void ProgramChecker::head_logits(const Instruction& instruction) {
  const RowPiece& rows = model_.head.rows[static_cast<std::size_t>(instruction.index)];
  expect_weights(rows.unit, rows.piece, instruction.accesses[0]);
  expect(place(instruction.accesses[1]),
         {.kind = Kind::kHead, .tile = 0, .version = step_},
         "the head's state");
  set(place(instruction.accesses[3]), {.kind = Kind::kScratch});
  set(place(instruction.accesses[2]), {.kind = Kind::kLogits, .version = step_});
}

void ProgramChecker::scatter(const Instruction& instruction) {
  expect(place(instruction.accesses[0]),
         {.kind = Kind::kActivationGradient,
          .unit = 0,
          .tile = instruction.micro_batch,
          .version = step_},
         "the gradient of the embedding's output");
  Content rows{.kind = Kind::kRows, .version = step_, .count = instruction.micro_batch};
  if (!instruction.first) {
    expect(place(instruction.accesses[1]), rows, "row sums so far");
  }
  ++rows.count;
  set(place(instruction.accesses[1]), rows);
}

void ProgramChecker::spread(const Instruction& instruction) {
  const int micro_batches = static_cast<int>(model_.accumulate);
  expect(place(instruction.accesses[0]),
         {.kind = Kind::kRows, .version = step_, .count = micro_batches},
         "row sums of all micro-batches");
  if (present(instruction.accesses[1])) {
    expect(place(instruction.accesses[1]),
           {.kind = Kind::kGradient,
            .unit = instruction.unit,
            .tile = instruction.index,
            .version = step_,
            .count = micro_batches},
           "the head's gradient of a tied tile");
  }
  set(place(instruction.accesses[2]),
      {.kind = Kind::kSpread,
       .unit = instruction.unit,
       .tile = instruction.index,
       .version = step_});
}

void ProgramChecker::accumulate(const Instruction& instruction) {
  const Content source = look(place(instruction.accesses[0]), "a gradient to add");
  Content sum{.kind = Kind::kGradient,
              .unit = instruction.unit,
              .tile = instruction.index,
              .version = step_,
              .from = source.from,
              .count = source.count};
  if (source != sum) {
    fail("a gradient to add is " + text(source));
  }
  if (!instruction.first) {
    sum.from = 0;
    sum.count = source.from;
    expect(place(instruction.accesses[1]), sum, "gradients of the micro-batches before");
    sum.count += source.count;
  } else if (source.from != 0) {
    fail("the first gradient that is added is " + text(source));
  }
  set(place(instruction.accesses[1]), sum);
}

void ProgramChecker::collect(const Instruction& instruction) {
  Content gradient{.kind = Kind::kGradient,
                   .unit = instruction.unit,
                   .tile = instruction.index,
                   .version = step_,
                   .count = static_cast<int>(model_.accumulate)};
  if (instruction.unit == 0) {
    gradient.kind = Kind::kSpread;
    gradient.count = 0;
  }
  expect(place(instruction.accesses[0]), gradient, "the gradient of all micro-batches");
  set(place(instruction.accesses[1]),
      {.kind = Kind::kHeldGradient,
       .unit = instruction.unit,
       .tile = instruction.index,
       .version = step_});
}

void ProgramChecker::update(const Instruction& instruction) {
  int& updates = updates_[static_cast<std::size_t>(instruction.unit)]
                         [static_cast<std::size_t>(instruction.index)];
  if (!pending_ || updates + 1 != updates_wanted_) {
    fail("an update that is not due");
    return;
  }
  Content expected_param = param(instruction.unit, instruction.index, updates);
  Content expected_state = state(instruction.unit, instruction.index, updates);
  expected_param.content = instruction.accesses[0].content;
  expected_state.content = instruction.accesses[1].content;
  expect(place(instruction.accesses[0]), expected_param, "weights to update");
  expect(place(instruction.accesses[1]), expected_state, "state to update");
  expect(place(instruction.accesses[2]),
         {.kind = Kind::kHeldGradient,
          .unit = instruction.unit,
          .tile = instruction.index,
          .version = pending_step_},
         "the gradient that is held");
  ++updates;
  ++expected_param.version;
  ++expected_state.version;
  set(place(instruction.accesses[0]), expected_param);
  set(place(instruction.accesses[1]), expected_state);
  if (instruction.accesses.size() > 3 && present(instruction.accesses[3])) {
    Content made = floats(instruction.unit, instruction.index, updates);
    made.content = instruction.accesses[3].content;
    set(place(instruction.accesses[3]), made);
  }
}

void ProgramChecker::decode(const Instruction& instruction) {
  const int wanted = version(instruction.unit, instruction.index);
  Content expected_param = param(instruction.unit, instruction.index, wanted);
  Content expected_state = state(instruction.unit, instruction.index, wanted);
  expected_param.content = instruction.accesses[0].content;
  expected_state.content = instruction.accesses[1].content;
  expect(place(instruction.accesses[0]), expected_param, "weights to decode");
  expect(place(instruction.accesses[1]), expected_state, "state to decode with");
  Content made = floats(instruction.unit, instruction.index, wanted);
  made.content = instruction.accesses[2].content;
  set(place(instruction.accesses[2]), made);
}

// ---- what must hold ----

void ProgramChecker::expect_weights(int unit, int piece, const Access& access) {
  const PieceSpec& range =
      model_.units[static_cast<std::size_t>(unit)].pieces[static_cast<std::size_t>(piece)];
  const auto& tiles = plan_.units[static_cast<std::size_t>(unit)].tiles;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    if (tiles[t].begin < range.begin || tiles[t].begin >= range.begin + range.elements) {
      continue;
    }
    Content expected = floats(unit, static_cast<int>(t), version(unit, static_cast<int>(t)));
    expected.content = access.content;
    const auto begin = static_cast<std::size_t>(tiles[t].begin - range.begin) * kFloatBytes;
    const auto bytes = static_cast<std::size_t>(tiles[t].elements) * kFloatBytes;
    Place part = place(access);
    part.begin += begin;
    part.end = std::min(part.end, part.begin + bytes);
    if (begin + bytes > access.bytes) {
      fail("a piece does not hold all of its tiles");
    }
    expect(part, expected, "weights");
  }
}

void ProgramChecker::add_gradient(int unit,
                                  int piece,
                                  const Instruction& instruction,
                                  const Access& access) {
  if (!present(access)) {
    return;
  }
  const PieceSpec& range =
      model_.units[static_cast<std::size_t>(unit)].pieces[static_cast<std::size_t>(piece)];
  const auto& tiles = plan_.units[static_cast<std::size_t>(unit)].tiles;
  const int k = instruction.micro_batch;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    if (tiles[t].begin < range.begin || tiles[t].begin >= range.begin + range.elements) {
      continue;
    }
    Place part = place(access);
    part.begin += static_cast<std::size_t>(tiles[t].begin - range.begin) * kFloatBytes;
    part.end = part.begin + static_cast<std::size_t>(tiles[t].elements) * kFloatBytes;
    Content sum{.kind = Kind::kGradient,
                .unit = unit,
                .tile = static_cast<int>(t),
                .version = step_,
                .from = k,
                .count = 1};
    if (!instruction.first) {
      const Content before = look(part, "a gradient that is added to");
      sum.from = before.from;
      sum.count = before.count;
      if (before != sum || before.from + before.count != k) {
        fail("a gradient that is added to is " + text(before));
      }
      ++sum.count;
    }
    set(part, sum);
  }
}

void ProgramChecker::expect_gradients_held() {
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const UnitPlan& unit = plan_.units[u];
    const std::size_t width = dtype_bytes(unit.gradient_storage);
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      if (!unit.tiles[t].frozen) {
        expect(place(unit.gradient,
                     static_cast<std::size_t>(unit.tiles[t].begin) * width,
                     static_cast<std::size_t>(unit.tiles[t].elements) * width),
               {.kind = Kind::kHeldGradient,
                .unit = static_cast<int>(u),
                .tile = static_cast<int>(t),
                .version = step_},
               "a gradient at the end of the step");
      }
    }
  }
}

void ProgramChecker::expect_losses() {
  for (int k = 0; k < static_cast<int>(model_.accumulate); ++k) {
    expect(place(plan_.losses_host, static_cast<std::size_t>(k) * 8, 8),
           {.kind = Kind::kLoss, .tile = k, .version = step_},
           "the loss of a micro-batch");
  }
}

// Every tile has been updated as often as it should; after a drain its extents and the copy for
// kernels are where they are at home, for a commit and an evaluation.
void ProgramChecker::expect_home(bool after_drain) {
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const UnitPlan& unit = plan_.units[u];
    const int number = static_cast<int>(u);
    for (std::size_t t = 0; t < unit.tiles.size() && error_.empty(); ++t) {
      const int index = static_cast<int>(t);
      if (unit.tiles[t].frozen) {
        continue;
      }
      if (updates_[u][t] != updates_wanted_) {
        fail(fmt::format("unit {}, tile {} was not updated", u, t));
      }
      if (after_drain && unit.param[t].buffer >= 0) {
        expect(place(unit.param[t].buffer, unit.param[t].offset, unit.param[t].bytes),
               param(number, index, updates_wanted_),
               "weights at home");
      }
      if (after_drain && unit.state_of[t].buffer >= 0) {
        expect(place(unit.state_of[t].buffer, unit.state_of[t].offset, unit.state_of[t].bytes),
               state(number, index, updates_wanted_),
               "state at home");
      }
    }
  }
}

// ---- memory ----

ProgramChecker::Place ProgramChecker::place(const Access& access) const {
  return place(access.buffer, access.offset, access.bytes);
}

ProgramChecker::Place ProgramChecker::place(int buffer,
                                            std::size_t offset,
                                            std::size_t bytes) const {
  const Buffer& of = plan_.buffers[static_cast<std::size_t>(buffer)];
  const bool store = of.tier == MemoryTier::kStore;
  const std::size_t begin = (store ? 0 : of.offset) + offset;
  return {.space = store ? kFirstStore + buffer : static_cast<int>(of.tier),
          .begin = begin,
          .end = begin + bytes};
}

void ProgramChecker::set(const Place& place, const Content& content) {
  if (place.begin >= place.end) {
    return;
  }
  Memory& memory = spaces_[place.space];
  auto at = memory.lower_bound(place.begin);
  if (at != memory.begin()) {
    const auto before = std::prev(at);
    if (before->second.end > place.begin) {
      const Segment old = before->second;
      before->second.end = place.begin;
      if (old.end > place.end) {
        memory[place.end] = old;
      }
    }
  }
  at = memory.lower_bound(place.begin);
  while (at != memory.end() && at->first < place.end) {
    if (at->second.end > place.end) {
      memory[place.end] = at->second;
    }
    at = memory.erase(at);
  }
  memory[place.begin] = {.end = place.end, .content = content};
}

Content ProgramChecker::look(const Place& place, const char* what) {
  const Memory& memory = spaces_[place.space];
  auto at = memory.upper_bound(place.begin);
  std::optional<Content> found;
  std::size_t covered = place.begin;
  if (at != memory.begin()) {
    at = std::prev(at);
  }
  for (; at != memory.end() && at->first < place.end && covered < place.end; ++at) {
    if (at->second.end <= place.begin) {
      continue;
    }
    if (at->first > covered) {
      break;
    }
    if (found && *found != at->second.content) {
      fail(fmt::format("{}: holds {} and {}", what, text(*found), text(at->second.content)));
      return {};
    }
    found = at->second.content;
    covered = at->second.end;
  }
  if (found && covered < place.end) {
    fail(fmt::format("{}: only part of it was ever written", what));
  }
  return found.value_or(Content{});
}

void ProgramChecker::expect(const Place& place, const Content& content, const char* what) {
  Content found = look(place, what);
  if (content.content == 0) {
    found.content = 0;  // whatever lease it has
  }
  if (found != content) {
    fail(fmt::format("{}: {} is wanted, {} is there", what, text(content), text(found)));
  }
}

void ProgramChecker::fail(const std::string& what) {
  if (error_.empty()) {
    error_ = what;
  }
}

const TileSpec& ProgramChecker::tile(int unit, int number) const {
  return plan_.units[static_cast<std::size_t>(unit)].tiles[static_cast<std::size_t>(number)];
}

Content ProgramChecker::floats(int unit, int number, int version) const {
  return {.kind = Kind::kFloats, .unit = unit, .tile = number, .version = version};
}

Content ProgramChecker::param(int unit, int number, int version) const {
  Content content = floats(unit, number, version);
  content.kind = plan_.format.decodes(tile(unit, number)) ? Kind::kParam : Kind::kFloats;
  return content;
}

Content ProgramChecker::state(int unit, int number, int version) const {
  return {.kind = Kind::kState, .unit = unit, .tile = number, .version = version};
}

int ProgramChecker::version(int unit, int number) const {
  return tile(unit, number).frozen ? 0 : updates_wanted_;
}

}  // namespace headrace::plan
