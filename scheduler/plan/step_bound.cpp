// See step_bound.hpp.
#include "scheduler/plan/step_bound.hpp"

#include <algorithm>
#include <cmath>

#include "scheduler/plan/rates.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kFloatBytes = 4;

double less(double all, double part) {
  return std::max(all - part, 0.0);
}

}  // namespace

StepBound::StepBound(const ModelSpec& model,
                     const PlanSettings& settings,
                     const MachineProfile& machine)
    : model_(model),
      format_(settings.format),
      contention_(contention_of(machine, settings)),
      pricer_(model, settings, machine, rates_) {
  rates_.update_rates = update_rates(machine, format_);
  for (const UnitSpec& unit : model.units) {
    for (const PieceSpec& piece : unit.pieces) {
      TileSpec tile{.begin = 0, .elements = piece.elements, .frozen = true};
      std::size_t bytes = format_.param_extent_bytes(tile);
      tile.frozen = false;
      bytes = std::max(bytes,
                       format_.param_extent_bytes(tile) +
                           (format_.decoded ? format_.state_extent_bytes(tile) : 0));
      const std::size_t floats = kFloatBytes * static_cast<std::size_t>(piece.elements);
      read_ = std::max(read_, transfer(InstructionKind::kReadParam, QueueKind::kNvme, bytes));
      h2d_ = std::max(h2d_, transfer(InstructionKind::kCopy, QueueKind::kH2d, floats));
      decode_ = std::max(
          decode_, static_cast<double>(piece.elements) / rates_.update_rates.decode_params_per_s);
    }
  }
}

StepBound::Spared StepBound::spared(const Frame& frame,
                                    const std::vector<Residency>& residencies) const {
  Spared spared;
  const Choices& choices = frame.choices;
  const auto blocks = static_cast<int>(model_.units.size()) - 2;
  const auto micro_batches = static_cast<double>(model_.accumulate);
  const int not_recomputed = choices.kept_blocks + spilled_blocks(model_, choices);
  for (int b = 0; b < not_recomputed; ++b) {
    spared.backward += micro_batches * forward(blocks - b);
  }
  // Weights pass by in one direction and back, once or for every group. What comes first is
  // not found; later at most as many pieces as there are slots, each time.
  const auto passes = 2 * static_cast<double>(groups_of(model_.accumulate, choices.group_size));
  const double found = (passes - 1) * static_cast<double>(choices.lookahead + 1);
  spared.read_again = found * read_;
  spared.h2d_again = found * h2d_;
  spared.decode_again = found * decode_;
  for (const std::size_t kind : {kStagingParam, kStagingState}) {
    std::int64_t largest = 0;
    for (const Residency& one : residencies) {
      largest = std::max(largest, one.demand.slot_bytes[kind]);
    }
    spared.read_ahead += transfer(InstructionKind::kReadParam,
                                  QueueKind::kNvme,
                                  static_cast<std::size_t>(frame.slots[0][kind] * largest));
  }
  return spared;
}

// All of forward that the first gradient waits for, then backward; no resource is asked for more
// than a second in a second. Updates after backward follow by themselves.
double StepBound::seconds(const Spared& spared, const Demand& demand) const {
  const Asks& asked = demand.asked;
  const double after = less(asked[kCoresAfter], spared.backward);
  const double before = std::max(
      {asked[kCoresBefore], less(asked[kReadBefore], spared.read_ahead), asked[kH2dBefore]});
  const double cores = asked[kCoresBefore] + after + less(asked[kDecodeAgain], spared.decode_again);
  const double reads = asked[kReadBefore] + less(asked[kReadAgain], spared.read_again);
  const double step = std::max({before + after,
                                cores,
                                drive(reads, asked[kWritten]),
                                asked[kH2dBefore] + less(asked[kH2dAgain], spared.h2d_again),
                                asked[kD2h]});
  const double drain =
      std::max({asked[kDrainCores],
                drive(less(asked[kDrainRead], spared.read_ahead), asked[kDrainWritten]),
                asked[kDrainH2d]});
  return step + drain;
}

// Of a drive that reads and writes at a share of its rates while it does both.
double StepBound::drive(double reads, double writes) const {
  const double both = contention_.nvme_beside_nvme;
  return both >= 0.5 ? std::min(reads, writes) / both + std::abs(reads - writes) : reads + writes;
}

double StepBound::transfer(InstructionKind kind, QueueKind queue, std::size_t bytes) const {
  Instruction instruction;
  instruction.kind = kind;
  instruction.queue = queue;
  instruction.accesses.push_back({.buffer = 0, .bytes = bytes});
  pricer_.price(instruction);
  return instruction.seconds;
}

double StepBound::forward(int unit) const {
  Instruction instruction;
  instruction.kind = InstructionKind::kForward;
  instruction.queue = QueueKind::kCompute;
  instruction.unit = unit;
  pricer_.price(instruction);
  return instruction.seconds;
}

}  // namespace headrace::plan
