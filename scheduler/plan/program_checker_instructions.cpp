// What each kind of instruction needs and leaves.
#include <algorithm>
#include <utility>

#include "scheduler/plan/program_checker.hpp"

namespace headrace::plan {

using Kind = Content::Kind;

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
  if (instruction.speculative) {
    replaced_.emplace_back(extent, look(extent, "an extent of the store"));
  }
  set(extent, named(now));
}

// Both ways the same: to where spilled activations wait, and back.
void ProgramChecker::move_saved(const Instruction& instruction) {
  const bool away = instruction.kind == InstructionKind::kWriteSaved;
  const Content saved{.kind = Kind::kSaved,
                      .unit = instruction.unit - 1,
                      .tile = instruction.micro_batch,
                      .version = step_};
  Place from = place(instruction.accesses[away ? 0 : 1]);
  Place to = place(instruction.accesses[away ? 1 : 0]);
  // The rest of the last page is nobody's.
  const auto unit = static_cast<std::size_t>(instruction.unit);
  from.end = from.begin + model_.units[unit].cost.saved_bytes;
  to.end = to.begin + model_.units[unit].cost.saved_bytes;
  expect(from, saved, "activations on their way");
  set(to, saved);
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
  const bool due = instruction.speculative ? speculating_ && updates == updates_wanted_
                                           : pending_ && updates + 1 == updates_wanted_;
  if (!due) {
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
          .version = instruction.speculative ? step_ : pending_step_},
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

}  // namespace headrace::plan
