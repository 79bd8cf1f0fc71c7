// Internal to the planner: what may stay in memory from step to step, and how much of it makes a
// plan need the least. Threads: any. Failure: none.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "scheduler/plan/choices.hpp"

namespace headrace::plan {

// Everything where `place` says; without one, everything on NVMe and nothing pinned: the least
// memory.
[[nodiscard]] std::vector<UnitChoice> base_units(const ModelSpec& model,
                                                 const PlanSettings& settings);

// Weights may be kept in memory although everything is to live on NVMe.
[[nodiscard]] bool may_write_through(const PlanSettings& settings);

using UnitChange = std::function<void(UnitChoice&)>;

// What can be turned on for a unit, in the order of benefit per byte: weights kept on the device
// (each is read twice a step), masters in host memory (read twice, written once), then state (read
// and written once). A forced place is left as it is: but weights may be kept beside it, and what
// the store is still given at once is as if it lived there.
[[nodiscard]] std::vector<UnitChange> residencies(const PlanSettings& settings);

// What is small is planned with more care.
[[nodiscard]] bool few_units(const ModelSpec& model);

[[nodiscard]] std::size_t arena_bytes(const Plan& plan);  // of both tiers
[[nodiscard]] std::size_t budget_bytes(const PlanSettings& settings);

// The choice, and what needs less memory: what is all in memory needs no slots.
[[nodiscard]] std::vector<Choices> lean_choices(const ModelSpec& model,
                                                const PlanSettings& settings,
                                                const Choices& choices);

// Of these the one that needs the least.
[[nodiscard]] Choices leaner(const ModelSpec& model,
                             const PlanSettings& settings,
                             const Choices& choices);

// Whether what does not fit could without any slots.
[[nodiscard]] bool may_become_lean(const ModelSpec& model,
                                   const PlanSettings& settings,
                                   const Choices& choices);

}  // namespace headrace::plan
