// Internal to the planner: the residencies of all units that are worth a look. For models of few
// units.
//
// Invariant: for every residency there is one here that takes no more of either memory and asks no
// more of any resource. Of those that fit two budgets the same are here. Threads: any. Failure:
// none.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan/demand.hpp"

namespace headrace::plan {

// A residency of the first units, and what these take and ask.
struct Residency {
  std::vector<std::uint8_t> options;  // by unit, in the list of unit_choices
  Demand demand;
};

// Those that fit one of the frames. Of equal blocks the first ones are the most resident: backward
// comes to them last, when slots hold others.
[[nodiscard]] std::vector<Residency> residencies_worth_a_look(const ModelSpec& model,
                                                              const PlanSettings& settings,
                                                              const Demands& demands,
                                                              const std::vector<Frame>& frames);

// Blocks that take the same memory and the same time.
[[nodiscard]] bool alike(const UnitSpec& a, const UnitSpec& b);

}  // namespace headrace::plan
