#include "scheduler/plan/price.hpp"

#include <algorithm>

#include "scheduler/plan/rates.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kDecodedOperand = 3;  // of kUpdate (program.hpp)
constexpr std::size_t kHeadOperand = 1;     // of kSpread
constexpr std::size_t kBlockGradient = 4;   // of kBackward: gradients of weights
constexpr std::size_t kHeadGradient = 4;    // the same of kHeadGradient
constexpr double kFloatBytes = 4;
constexpr double kHostCopyBytesPerS = 5e9;

double capped(double rate, const std::optional<double>& cap) {
  return cap ? std::min(rate, *cap) : rate;
}

}  // namespace

void Pricer::price(Instruction& instruction) const {
  const double first_bytes =
      instruction.accesses.empty() ? 0 : static_cast<double>(instruction.accesses.front().bytes);
  switch (instruction.queue) {
    case QueueKind::kNvme:
    case QueueKind::kH2d:
    case QueueKind::kD2h:
      instruction.link_bytes = static_cast<std::size_t>(first_bytes);
      if (instruction.queue == QueueKind::kNvme && settings_.stored_bytes) {
        instruction.link_bytes = settings_.stored_bytes(instruction.link_bytes);
      }
      instruction.seconds = first_bytes / link_rate(instruction);
      return;
    case QueueKind::kCompute:
    case QueueKind::kHost:
      break;
  }
  const double memory = memory_rate(machine_);
  const UpdateRates& rates = plan_.update_rates;
  const auto elements = static_cast<double>(instruction.elements);
  switch (instruction.kind) {
    case InstructionKind::kGather:
      instruction.seconds = gather_seconds(instruction);
      break;
    case InstructionKind::kScatter:
      instruction.seconds = seconds_of(model_.units.front().cost.backward, machine_);
      break;
    case InstructionKind::kSpread:
      instruction.seconds = spread_seconds(instruction);
      break;
    case InstructionKind::kAccumulate:
      instruction.seconds = (instruction.first ? 2 : 3) * first_bytes / memory;
      break;
    case InstructionKind::kCollect:
      instruction.seconds = collect_seconds(machine_, first_bytes / kFloatBytes);
      break;
    case InstructionKind::kUpdate: {
      const bool decodes = instruction.accesses[kDecodedOperand].buffer >= 0;
      instruction.seconds =
          elements / (decodes ? rates.update_decoded_params_per_s : rates.update_params_per_s);
      break;
    }
    case InstructionKind::kDecode:
      instruction.seconds = elements / rates.decode_params_per_s;
      break;
    default:
      instruction.seconds = compute_seconds(instruction);
      instruction.kernels = std::max(1, kernel_count(instruction));
      break;
  }
}

int Pricer::kernel_count(const Instruction& instruction) const {
  const UnitCost& unit = model_.units[static_cast<std::size_t>(instruction.unit)].cost;
  switch (instruction.kind) {
    case InstructionKind::kForward:
      return unit.forward.operations;
    case InstructionKind::kBackward:
      return unit.backward.operations + (instruction.recompute ? unit.forward.operations : 0);
    default:
      return 1;  // a product and little else
  }
}

double Pricer::link_rate(const Instruction& instruction) const {
  const MachineProfile& machine = machine_;
  switch (instruction.kind) {
    case InstructionKind::kReadParam:
    case InstructionKind::kReadState:
    case InstructionKind::kReadSaved:
      return capped(rate_or(machine.nvme_read_bytes_per_s, 1e9), settings_.nvme_read_cap);
    case InstructionKind::kWriteParam:
    case InstructionKind::kWriteState:
    case InstructionKind::kWriteSaved:
      return capped(rate_or(machine.nvme_write_bytes_per_s, 1e9), settings_.nvme_write_cap);
    default:
      return capped(rate_or(machine.host_copy_bytes_per_s, kHostCopyBytesPerS),
                    instruction.queue == QueueKind::kH2d ? settings_.h2d_cap : settings_.d2h_cap);
  }
}

// The rows of every micro-batch that lie in the tile, and for the first tile zeros before.
double Pricer::gather_seconds(const Instruction& instruction) const {
  const UnitSpec& unit = model_.units.front();
  const double share = static_cast<double>(instruction.elements) /
                       static_cast<double>(std::max<std::int64_t>(unit.elements, 1));
  return static_cast<double>(model_.accumulate) * share * seconds_of(unit.cost.forward, machine_);
}

// One thread writes every element of the range, and reads what the head has for it.
double Pricer::spread_seconds(const Instruction& instruction) const {
  const double copy = rate_or(machine_.host_copy_bytes_per_s, kHostCopyBytesPerS);
  const bool adds = instruction.accesses[kHeadOperand].buffer >= 0;
  return static_cast<double>(instruction.elements) * kFloatBytes * (adds ? 1.0 : 0.5) / copy;
}

// Later micro-batches compute gradients of weights in scratch, which is then added.
double Pricer::adding_seconds(const Instruction& instruction, std::size_t gradient) const {
  if (instruction.first || instruction.accesses.size() <= gradient ||
      instruction.accesses[gradient].buffer < 0) {
    return 0;
  }
  return 3 * static_cast<double>(instruction.accesses[gradient].bytes) / memory_rate(machine_);
}

double Pricer::compute_seconds(const Instruction& instruction) const {
  const UnitCost& unit = model_.units[static_cast<std::size_t>(instruction.unit)].cost;
  const HeadSpec& head = model_.head;
  // Row pieces cost what the first (a full one) does, by their share of its rows.
  const auto share = [&] {
    const RowPiece& piece = head.rows[static_cast<std::size_t>(instruction.index)];
    return static_cast<double>(piece.rows) / static_cast<double>(head.rows.front().rows);
  };
  switch (instruction.kind) {
    case InstructionKind::kForward:
    case InstructionKind::kHeadBegin:
      return seconds_of(unit.forward, machine_);
    case InstructionKind::kBackward:
      return seconds_of(unit.backward, machine_) +
             (instruction.recompute ? seconds_of(unit.forward, machine_) : 0) +
             adding_seconds(instruction, kBlockGradient);
    case InstructionKind::kHeadEnd:
      return seconds_of(unit.backward, machine_);
    case InstructionKind::kHeadScore:
    case InstructionKind::kHeadLogits:
      return share() * seconds_of(head.score.forward, machine_);
    case InstructionKind::kHeadGradient:
      return share() * seconds_of(head.gradient.backward, machine_) +
             adding_seconds(instruction, kHeadGradient);
    default:
      return 0;  // the loss: a sum over rows
  }
}

}  // namespace headrace::plan
