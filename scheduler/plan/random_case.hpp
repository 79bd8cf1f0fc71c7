// Random models, settings and machines for tests of the planner's properties. Test-only.
//
// Invariant: everything follows from the generator given. Threads: none. Failure: none.
#pragma once

#include <random>
#include <string>

#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

struct RandomCase {
  ModelSpec model;
  PlanSettings settings;
  MachineProfile machine;
};

// A model of at most `blocks_max` blocks of unequal size, tied or not, some tensors frozen;
// budgets from too small to ample; a machine of which any resource may be the slowest.
[[nodiscard]] RandomCase random_case(std::mt19937_64& random, int blocks_max = 4);

// The same with room for everything: what budgets are measured against.
[[nodiscard]] PlanSettings ample(const PlanSettings& settings);

// A line that says what is special about a case.
[[nodiscard]] std::string describe(const RandomCase& one);

// Uniform in [0, 1); the same on every machine.
[[nodiscard]] double uniform(std::mt19937_64& random);

}  // namespace headrace::plan
