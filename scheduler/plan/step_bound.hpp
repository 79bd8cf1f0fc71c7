// Internal to the planner: the least that a steady step takes, from what its residency asks
// (demand.hpp): to pass over what cannot be faster than what is known. Unlike bound.hpp, of steps
// as they are built and simulated here, not of any schedule. Threads: any. Failure: none.
#pragma once

#include <vector>

#include "scheduler/plan/demand.hpp"
#include "scheduler/plan/price.hpp"
#include "scheduler/plan/residency_set.hpp"
#include "scheduler/plan/simulate.hpp"

namespace headrace::plan {

class StepBound {
 public:
  // All outlive it.
  StepBound(const ModelSpec& model, const PlanSettings& settings, const MachineProfile& machine);
  StepBound(const StepBound&) = delete;
  StepBound& operator=(const StepBound&) = delete;

  // What a frame may spare of what is asked, in seconds.
  struct Spared {
    double backward = 0;                                     // of blocks that are not recomputed
    double read_ahead = 0;                                   // by the step before
    double read_again = 0, h2d_again = 0, decode_again = 0;  // found in slots
  };

  [[nodiscard]] Spared spared(const Frame& frame, const std::vector<Residency>& residencies) const;
  [[nodiscard]] double seconds(const Spared& spared, const Demand& demand) const;

 private:
  [[nodiscard]] double drive(double reads, double writes) const;
  [[nodiscard]] double transfer(InstructionKind kind, QueueKind queue, std::size_t bytes) const;
  [[nodiscard]] double forward(int unit) const;

  const ModelSpec& model_;
  const StateFormat& format_;
  const Contention contention_;
  Plan rates_;
  const Pricer pricer_;
  double read_ = 0, h2d_ = 0, decode_ = 0;  // of a piece, at most
};

}  // namespace headrace::plan
