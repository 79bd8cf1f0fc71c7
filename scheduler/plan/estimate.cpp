// See estimate.hpp.
#include "scheduler/plan/estimate.hpp"

#include <algorithm>

#include "scheduler/plan/price.hpp"
#include "scheduler/plan/rates.hpp"

namespace headrace::plan {

namespace {

// What a part of the step asks of each resource, in seconds.
struct Part {
  double cores = 0, nvme = 0, h2d = 0, d2h = 0;

  [[nodiscard]] double seconds() const { return std::max({cores, nvme, h2d, d2h}); }
};

class Estimate {
 public:
  Estimate(const ModelSpec& model,
           const PlanSettings& settings,
           const MachineProfile& machine,
           Plan plan)
      : model_(model), plan_(std::move(plan)), pricer_(model, settings, machine, plan_) {
    plan_.update_rates = update_rates(machine, plan_.format);
    read_ = rate(InstructionKind::kReadParam, QueueKind::kNvme);
    write_ = rate(InstructionKind::kWriteParam, QueueKind::kNvme);
    h2d_ = rate(InstructionKind::kCopy, QueueKind::kH2d);
    d2h_ = rate(InstructionKind::kCopy, QueueKind::kD2h);
  }

  [[nodiscard]] double step() {
    const bool training = model_.units.size() == plan_.units.size() && is_training();
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      add_unit(u, training);
    }
    for (std::size_t r = 0; r < model_.head.rows.size(); ++r) {
      forward_.cores +=
          micro_batches() * price(InstructionKind::kHeadScore, 0, static_cast<int>(r));
      if (training) {
        backward_.cores +=
            micro_batches() * price(InstructionKind::kHeadGradient, 0, static_cast<int>(r));
      }
    }
    if (plan_.update == Update::kAfterBackward) {
      return forward_.seconds() + backward_.seconds() + update_.seconds();
    }
    forward_.cores += update_.cores;
    forward_.nvme += update_.nvme;
    return forward_.seconds() + backward_.seconds();
  }

 private:
  [[nodiscard]] bool is_training() const {
    return std::any_of(plan_.units.begin(), plan_.units.end(), [](const UnitPlan& unit) {
      return unit.gradient >= 0;
    });
  }

  [[nodiscard]] double micro_batches() const { return static_cast<double>(model_.accumulate); }

  // How often weights pass by in each direction of a step.
  [[nodiscard]] double passes() const {
    return static_cast<double>(groups_of(model_.accumulate, plan_.group_size));
  }

  [[nodiscard]] double rate(InstructionKind kind, QueueKind queue) const {
    Instruction instruction;
    instruction.kind = kind;
    instruction.queue = queue;
    constexpr std::size_t kBytes = 1 << 30;
    instruction.accesses = {{.buffer = 0, .offset = 0, .bytes = kBytes}};
    pricer_.price(instruction);
    return static_cast<double>(kBytes) / instruction.seconds;
  }

  [[nodiscard]] double price(InstructionKind kind,
                             int unit,
                             int index,
                             bool recompute = false) const {
    Instruction instruction;
    instruction.kind = kind;
    instruction.queue = QueueKind::kCompute;
    instruction.unit = unit;
    instruction.index = index;
    instruction.recompute = recompute;
    instruction.accesses.resize(6);
    pricer_.price(instruction);
    return instruction.seconds;
  }

  void add_unit(std::size_t u, bool training) {
    const UnitPlan& unit = plan_.units[u];
    const UnitSpec& spec = model_.units[u];
    const int number = static_cast<int>(u);
    double param = 0, streamed_param = 0, streamed_state = 0, trainable = 0;
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const auto bytes = static_cast<double>(unit.param[t].bytes);
      param += 4 * static_cast<double>(unit.tiles[t].elements);
      streamed_param += unit.param[t].buffer < 0 ? bytes : 0;
      streamed_state +=
          unit.state_of[t].buffer < 0 ? static_cast<double>(unit.state_of[t].bytes) : 0;
      trainable += unit.tiles[t].frozen ? 0 : static_cast<double>(unit.tiles[t].elements);
    }
    if (spec.kind == UnitKind::kBlock) {
      forward_.cores += micro_batches() * price(InstructionKind::kForward, number, 0);
      backward_.cores +=
          training ? micro_batches() *
                         price(InstructionKind::kBackward, number, 0, is_recomputed(plan_, number))
                   : 0;
    }
    if (training && is_spilled(plan_, number)) {
      const double saved = micro_batches() * static_cast<double>(spec.cost.saved_bytes);
      (plan_.separate_device ? forward_.d2h : forward_.nvme) +=
          saved / (plan_.separate_device ? d2h_ : write_);
      (plan_.separate_device ? backward_.h2d : backward_.nvme) +=
          saved / (plan_.separate_device ? h2d_ : read_);
    }
    const bool on_device = spec.kind != UnitKind::kEmbedding || model_.tied;
    const double streamed = plan_.format.decoded ? streamed_param + streamed_state : streamed_param;
    if (training) {
      update_.cores += trainable / plan_.update_rates.update_params_per_s;
      const double written = unit.write_through ? param : streamed_param;
      update_.nvme +=
          (streamed_param + streamed_state) / read_ + (written + streamed_state) / write_;
      forward_.nvme += (passes() - 1) * streamed / read_;
      backward_.nvme += on_device && !unit.pinned ? passes() * streamed / read_ : 0;
    } else {
      forward_.nvme += passes() * streamed / read_;
    }
    if (plan_.separate_device && on_device) {
      const double crossing = unit.pinned ? 1 : passes();
      const double gradients = passes() > 1 ? micro_batches() : 1;
      forward_.h2d += (unit.home == Home::kDevice ? 0 : crossing) * param / h2d_;
      backward_.h2d += training && !unit.pinned ? passes() * param / h2d_ : 0;
      backward_.d2h +=
          training && unit.home != Home::kDevice ? gradients * 4 * trainable / d2h_ : 0;
    }
  }

  const ModelSpec& model_;
  Plan plan_;
  const Pricer pricer_;
  double read_ = 0, write_ = 0, h2d_ = 0, d2h_ = 0;
  Part forward_, backward_, update_;
};

}  // namespace

double estimate_step(const ModelSpec& model,
                     const PlanSettings& settings,
                     const MachineProfile& machine,
                     const Plan& plan) {
  return Estimate(model, settings, machine, plan).step();
}

}  // namespace headrace::plan
