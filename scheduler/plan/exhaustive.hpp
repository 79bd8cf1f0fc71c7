// Internal to the planner: the search for models of few units, which looks at every choice.
//
// Invariant: what is looked at follows from the model and the settings, never from budgets: these
// only rule out what does not fit. So more memory is never predicted slower, what a plan takes is
// enough for it, and a run whose tiles are given finds the plan that chose them. Of what fits,
// nothing is passed over but what cannot be faster: by a bound of its time, or because a residency
// of no more memory asks no more of any resource. Threads: any. Failure: none.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/plan/search.hpp"

namespace headrace::plan {

// Whether a model is small enough: by its units, its size, and what settings leave open but for
// budgets and tiles.
[[nodiscard]] bool searched_exhaustively(const ModelSpec& model, const PlanSettings& settings);

// The fastest of all that fit; of equally fast ones that which moves fewer bytes over NVMe, then
// that with the smaller arenas, then the first. Nothing where none fits.
[[nodiscard]] std::optional<Candidate> fastest_of_all(const ModelSpec& model,
                                                      const PlanSettings& settings,
                                                      const MachineProfile& machine);

// All that need less of one memory than any that needs no more of the other.
[[nodiscard]] std::vector<Choices> leanest_of_all(const ModelSpec& model,
                                                  const PlanSettings& settings);

}  // namespace headrace::plan
