// State formats between the optimizer's table, the plan and the store: what the planner must know
// of one, and the name that a store gives it.
//
// Layout tags ("layout" of `inspect`, docs/store_format.md): dtype of the param extent, a slash,
// the layout of the state format: "fp32/fp32", "fp32/bf16", "bf16/q8-planes". Frozen tiles are fp32
// in all of them.
// Threads: any. Failure: a tag that is not known gives null.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim_cpu/optimizers.hpp"
#include "scheduler/plan/state_format.hpp"

namespace headrace::exec {

// `name` is an optim.state that the settings accept; for a device that computes in fp32.
[[nodiscard]] plan::StateFormat state_format(std::string_view name);

// Of every optim.state, in the table's order.
[[nodiscard]] std::vector<plan::StateFormat> state_formats();

// The format's entry in the optimizer's table.
[[nodiscard]] const optim::Optimizer& optimizer_of(const plan::StateFormat& format);

[[nodiscard]] std::string layout_tag(const plan::StateFormat& format);

// The optim.state of a store; empty: a tag that this version does not know.
[[nodiscard]] std::string_view state_of_tag(std::string_view tag);

// Whether an older version wrote it, for a layout that this one cannot read.
[[nodiscard]] bool is_former_tag(std::string_view tag);

}  // namespace headrace::exec
