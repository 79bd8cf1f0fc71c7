// Which batch, state format and placement train a run fastest under its budgets.
//
// Every candidate that fits is planned by the planner itself; how many are tried is bounded (a
// dozen at most). Budgets, model, learning and sequence length stay as they are; so do the
// sequences of a step, unless their number is given. Pure but for reading how much memory the
// machine has. Thread: main's. Failure: Result; code 3 with ways out where nothing fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/plan/summary.hpp"
#include "train/plan_run.hpp"

namespace headrace::train {

struct SearchCandidate {
  std::vector<std::string> sets;  // with which the run becomes this one; none: it is the run
  bool changes_numbers = false;
  std::int64_t micro_batch = 0, accumulate = 0;
  std::string state;
  int group_size = 1;
  int kept_blocks = 0, spilled_blocks = 0;
  std::uint64_t host_bytes = 0, device_bytes = 0;  // of arenas
  int units = 0, units_on_nvme = 0;                // whose state is there
  plan::StepSummary step;
};

struct PlanSearch {
  std::vector<SearchCandidate> ranked;  // that fit, fastest first
  int tried = 0, too_large = 0;

  // Fastest of those with the run's numbers; null: none fits.
  [[nodiscard]] const SearchCandidate* best_of_same_numbers() const;
};

// `tokens_per_step`: a multiple of batch.seq_len. A run that is under way keeps its numbers: only
// placement and the order of work are searched.
[[nodiscard]] Result<PlanSearch> search_plans(const PlanInputs& inputs,
                                              std::optional<std::int64_t> tokens_per_step);

[[nodiscard]] std::string format_search(const PlanSearch& search);
[[nodiscard]] Json search_to_json(const PlanSearch& search);

}  // namespace headrace::train
