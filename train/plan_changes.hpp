// What a run that does not fit could change beside its budgets and the order of work: settings that
// make the numbers, or the shape of a batch.
//
// Pure. Thread: any. Failure: none; a change that cannot be made says so when it is applied.
#pragma once

#include <vector>

#include "core/run_config.hpp"
#include "model/architecture.hpp"
#include "scheduler/plan/refusal.hpp"
#include "train/engine.hpp"

namespace headrace::train {

// Gradients in bf16, smaller state, smaller micro-batches (as many tokens a step, while that is
// enough), shorter sequences. None for a run that is under way, whose numbers stand, and for what
// is no training.
[[nodiscard]] std::vector<plan::Change> changes_of(const RunConfig& config,
                                                   const model::Architecture& architecture,
                                                   const PlanRequest& request);

}  // namespace headrace::train
