// What if the machine were another: rates and budgets changed by name, and two plans side by side.
//
// Pure. Threads: any. Failure: a usage error that names the nearest name and all there are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

// A change made, in words and numbers: bytes, or units per second.
struct RateChange {
  std::string name;  // "nvme.read"
  std::string before_text, after_text;
  double before = 0, after = 0;
};

// What is changed. Nothing of a run's own settings but budgets and the caps of links.
struct WhatIf {
  MachineProfile machine;
  PlanSettings settings;
  std::vector<RateChange> changes;
};

// "nvme.read=12GB/s", "gemm=2TFLOPS", "host_memory=64GiB", or a factor of today's: "update=2x". A
// drive's mixed rates keep their share of what reading and writing by turns would give. A link that
// is capped is changed with its cap.
[[nodiscard]] Status apply_what_if(std::string_view text, WhatIf& what_if);

// All GEMM and attention, whatever the size, goes `factor` times as fast.
void scale_gemm(double factor, MachineProfile& machine);
// So does all that only memory holds back: streams, operations over elements, keeping gradients.
// Updates have a rate of their own.
void scale_memory(double factor, MachineProfile& machine);

// Two plans of one run.
struct Compared {
  const ModelSpec& model;
  const Plan& today;
  const Plan& then;
};

// `tokens`: to say what they take; 0: nothing is said of it.
[[nodiscard]] std::string format_what_if(const WhatIf& what_if,
                                         const Compared& plans,
                                         std::int64_t tokens);
// Members "changes", "today", "then" (as in plan.json's "step") and "gain": of tokens a second, 0.5
// is half as many again.
[[nodiscard]] Json what_if_to_json(const WhatIf& what_if, const Compared& plans);

}  // namespace headrace::plan
