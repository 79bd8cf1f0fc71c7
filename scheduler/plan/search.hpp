// Internal to the planner: trying choices.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/plan/choices.hpp"

namespace headrace::plan {

// A plan with the choices that it was made from.
struct Candidate {
  Plan plan;
  Choices choices;
  Layout layout;
};

// Memory only: no programs, no predictions.
[[nodiscard]] Candidate lay_out_candidate(const ModelSpec& model,
                                          const PlanSettings& settings,
                                          const Choices& choices);

// Whether the arenas are within the budgets.
[[nodiscard]] bool fits(const Plan& plan, const PlanSettings& settings);

// Whether these choices spill anything, and the drive has room for it.
[[nodiscard]] bool may_be_spilled(const ModelSpec& model,
                                  const PlanSettings& settings,
                                  const Choices& choices);

// The choices that the settings leave open, each with the least residency.
[[nodiscard]] std::vector<Choices> enumerate(const ModelSpec& model, const PlanSettings& settings);

// The plan with the least memory among what the settings leave open. Memory only.
[[nodiscard]] Plan smallest(const ModelSpec& model, const PlanSettings& settings);

// The fastest of those that fit; nothing where none does.
[[nodiscard]] std::optional<Candidate> best_candidate(const ModelSpec& model,
                                                      const PlanSettings& settings,
                                                      const MachineProfile& machine);

// Adds the predictions of every variant to a plan with programs.
void predict(const PlanSettings& settings, const MachineProfile& machine, Plan& plan);

}  // namespace headrace::plan
