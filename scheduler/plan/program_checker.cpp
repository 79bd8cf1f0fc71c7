#include "scheduler/plan/program_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace::plan {

namespace {

using Kind = Content::Kind;

int queue_of(const Instruction& instruction) {
  constexpr int kFirstLane = 8;
  return instruction.queue == QueueKind::kNvme ? kFirstLane + instruction.lane
                                               : static_cast<int>(instruction.queue);
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

const Program& ProgramChecker::compute_program(bool speculates) const {
  if (!pending_) {
    return plan_.compute;
  }
  if (!speculates) {
    return plan_.compute_held;
  }
  return rest_only_ ? plan_.compute_rest_speculating : plan_.compute_held_speculating;
}

std::string ProgramChecker::compute(bool speculates) {
  ++step_;
  const Program& program = compute_program(speculates);
  updates_wanted_ += pending_ ? 1 : 0;
  speculating_ = speculates;
  replaced_.clear();
  if (run(program).empty()) {
    expect_gradients_held();
    expect_losses();
    expect_home(false);
  }
  pending_ = true;
  rest_only_ = false;
  pending_step_ = step_;
  return error_;
}

void ProgramChecker::settle(bool keep) {
  rest_only_ = keep;
  for (std::size_t i = replaced_.size(); !keep && i-- > 0;) {
    set(replaced_[i].first, replaced_[i].second);
  }
  for (std::size_t u = 0; !keep && u < plan_.units.size(); ++u) {
    for (std::size_t t = 0; plan_.units[u].speculated && t < updates_[u].size(); ++t) {
      updates_[u][t] -= plan_.units[u].tiles[t].frozen ? 0 : 1;
    }
  }
  speculating_ = false;
}

std::string ProgramChecker::drain() {
  ++updates_wanted_;
  if (run(rest_only_ ? plan_.drain_rest : plan_.drain).empty()) {
    expect_home(true);
  }
  pending_ = rest_only_ = false;
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
    case InstructionKind::kReadSaved:
    case InstructionKind::kWriteSaved:
      move_saved(instruction);
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

// ---- what must hold ----

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
      if (updates_[u][t] != updates_wanted_ + (speculating_ && unit.speculated ? 1 : 0)) {
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

}  // namespace headrace::plan
