// Internal to the planner: about how long a step takes, from the sums of its forward and backward
// part, without building programs. It ranks candidates of which only some can be simulated; no
// prediction is made from it. Threads: any. Failure: none.
#pragma once

#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

// Of a plan whose memory is laid out. Evaluation where the purpose is not training.
[[nodiscard]] double estimate_step(const ModelSpec& model,
                                   const PlanSettings& settings,
                                   const MachineProfile& machine,
                                   const Plan& plan);

}  // namespace headrace::plan
