// Internal to the planner: what a run writes to the drive, and how much of the drive's life that
// is.
//
// Pure, as the rest of the planner. A --set line of the advice has been tried before it is given.
#pragma once

#include <functional>
#include <optional>

#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

// The best plan under other settings; nothing where none fits.
using Replan = std::function<std::optional<Plan>(const PlanSettings& settings)>;

// Fills the plan's bytes written a step and a day, endurance and days of life, with a note where it
// is assumed, and the warning of a run that takes more than a tenth of it. The programs have been
// simulated.
void count_wear(const ModelSpec& model,
                const PlanSettings& settings,
                const MachineProfile& machine,
                const Replan& replan,
                Plan& plan);

}  // namespace headrace::plan
