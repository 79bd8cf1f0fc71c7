#include "scheduler/plan/price.hpp"

#include <algorithm>

#include "scheduler/plan/rates.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kDecodedOperand = 3;  // of kUpdate (program.hpp)

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
    case InstructionKind::kScatter:
      instruction.seconds = 2 * static_cast<double>(model_.activation_bytes()) / memory;
      break;
    case InstructionKind::kSpread:
    case InstructionKind::kAccumulate:
    case InstructionKind::kCollect:
      instruction.seconds = 2 * first_bytes / memory;
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
      break;
  }
}

double Pricer::link_rate(const Instruction& instruction) const {
  const MachineProfile& machine = machine_;
  switch (instruction.kind) {
    case InstructionKind::kReadParam:
    case InstructionKind::kReadState:
      return capped(rate_or(machine.nvme_read_bytes_per_s, 1e9), settings_.nvme_read_cap);
    case InstructionKind::kWriteParam:
    case InstructionKind::kWriteState:
      return capped(rate_or(machine.nvme_write_bytes_per_s, 1e9), settings_.nvme_write_cap);
    default:
      return capped(rate_or(machine.host_copy_bytes_per_s, 5e9),
                    instruction.queue == QueueKind::kH2d ? settings_.h2d_cap : settings_.d2h_cap);
  }
}

double Pricer::compute_seconds(const Instruction& instruction) const {
  const double memory = memory_rate(machine_);
  const double gemm = rate_or(machine_.gemm_fp32_flops_per_s, 50e9);
  const auto forward = [&](const UnitCost& cost) {
    return cost.forward_flops / gemm + cost.forward_bytes / memory;
  };
  const auto backward = [&](const UnitCost& cost) {
    return cost.backward_flops / gemm + cost.backward_bytes / memory;
  };
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
      return forward(unit);
    case InstructionKind::kBackward:
      return backward(unit) + (instruction.recompute ? forward(unit) : 0);
    case InstructionKind::kHeadEnd:
      return backward(unit);
    case InstructionKind::kHeadScore:
    case InstructionKind::kHeadLogits:
      return share() * forward(head.score);
    case InstructionKind::kHeadGradient:
      return share() * backward(head.gradient);
    default:
      return 0;  // the loss: a sum over rows
  }
}

}  // namespace headrace::plan
