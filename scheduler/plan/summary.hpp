// What a planned step comes to in figures: who is busy for how long, how near the bound it is, what
// the device waits for, and what a budget of tokens costs.
//
// Pure. Figures are of the steady step of a training run, of the evaluation elsewhere. Threads:
// any. Failure: none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/json.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

// A resource in a step: nvme, h2d, d2h, cores, device.
struct ResourceUse {
  std::string name;
  double busy_seconds = 0;
  double share = 0;                                          // of the step
  std::vector<std::pair<std::string, std::uint64_t>> bytes;  // by link: nvme_read, nvme_write, ...
};

struct StepSummary {
  double seconds = 0;
  double bound_seconds = 0;
  double order_bound_seconds = 0;      // with updates in the plan's order
  double bound_share = 0;              // bound / step: 1 is a step as fast as its bound
  std::vector<ResourceUse> resources;  // busiest first
  std::string dominant;                // the busiest; "": nothing is busy
  std::string largest_stall;           // what the device waits for longest; "": it never waits
  double largest_stall_seconds = 0;
  double stalled_seconds = 0;  // all of it
  std::int64_t tokens = 0;     // of a step
  double tokens_per_s = 0;
};

[[nodiscard]] StepSummary summarize(const ModelSpec& model, const Plan& plan);

[[nodiscard]] Json summary_to_json(const StepSummary& step);

// So many tokens, trained as planned.
struct TokenBudget {
  std::int64_t tokens = 0;  // 0: unknown
  double steps = 0;
  double seconds = 0;
  double written_bytes = 0;
  double endurance_share = 0;  // of what the drive endures; 0: unknown, or nothing is written
};

[[nodiscard]] TokenBudget budget_tokens(const Plan& plan,
                                        const StepSummary& step,
                                        std::int64_t tokens);

}  // namespace headrace::plan
