// What is said when nothing fits: by how much, the largest items, and the smallest changes that
// fit.
//
// Invariant: every way out has been planned (memory only) before it is told. Pure. Threads: any.
// Failure: none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

// Something that a user could set, and what it does to what is planned.
struct Change {
  // Of the changes of one group at most one is made; they go from the mildest to the strongest.
  std::string group;
  std::vector<std::string> sets;  // "batch.micro_batch=2"
  bool changes_numbers = false;   // losses and weights come out with other bits
  // False: nothing to change there, or nothing that may be.
  std::function<bool(ModelSpec& model, PlanSettings& settings)> apply;
};

struct TierNeed {
  std::string tier;  // "host", "device"
  std::uint64_t needed_bytes = 0, budget_bytes = 0;

  [[nodiscard]] std::uint64_t missing_bytes() const {
    return needed_bytes > budget_bytes ? needed_bytes - budget_bytes : 0;
  }
};

struct LargeItem {
  std::string purpose;  // a row of the memory table
  std::string tier;
  std::uint64_t bytes = 0;
};

struct WayOut {
  std::vector<std::string> sets;
  bool changes_numbers = false;

  // "--set a=b --set c=d".
  [[nodiscard]] std::string line() const;
};

struct Refusal {
  std::vector<TierNeed> tiers;  // of the plan that needs the least beyond the budgets
  std::vector<LargeItem> largest;
  std::vector<WayOut> ways;  // single changes first; none where nothing is missing
  // Where there is none: arenas with every change made, and what the machine has for them.
  std::uint64_t least_bytes = 0, machine_bytes = 0;
};

// Whether any plan is within the budgets: with everything on NVMe, or where `place` says.
[[nodiscard]] bool fits_at_least(const ModelSpec& model, const PlanSettings& settings);

// `changes`: what could be changed beside budgets, placement and the order of work.
[[nodiscard]] Refusal refuse(const ModelSpec& model,
                             const PlanSettings& settings,
                             const std::vector<Change>& changes = {});

[[nodiscard]] Error refusal_error(const Refusal& refusal);
[[nodiscard]] Json refusal_to_json(const Refusal& refusal);

// make_plan, which also tries these changes where nothing fits.
[[nodiscard]] Result<Plan> make_plan(const ModelSpec& model,
                                     const PlanSettings& settings,
                                     const MachineProfile& machine,
                                     const std::vector<Change>& changes);

}  // namespace headrace::plan
