// What the planner's tests plan: a model of plain numbers, settings with room for it, and the
// numbers of optim_cpu's formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/state_format.hpp"

namespace headrace::plan {

[[nodiscard]] TensorSpec tensor(std::string name,
                                std::vector<std::int64_t> shape,
                                bool frozen = false);

// An embedding, blocks of three tensors, a head.
[[nodiscard]] ModelSpec make_model(
    std::int64_t hidden, int blocks, std::int64_t vocab, bool tied, std::int64_t accumulate = 1);

// Gibibytes for every tier.
[[nodiscard]] PlanSettings roomy();

[[nodiscard]] StateFormat bf16_format();
[[nodiscard]] StateFormat q8_format();

}  // namespace headrace::plan
