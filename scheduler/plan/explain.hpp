// Why a unit's things are where they are, and what it does in a step.
//
// Pure. Threads: any. Failure: a usage error for a unit that is not there, with the nearest name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/simulate.hpp"

namespace headrace::plan {

// Something of a unit, and where it is between its uses.
struct UnitThing {
  std::string what;   // "weights", "state", "gradients", "inputs", "saved"
  std::string where;  // "host", "device", "nvme"
  std::uint64_t bytes = 0;
  std::string how;  // in words; may be empty
};

// What keeping a thing nearer would spare, and what it would take.
struct UnitBenefit {
  std::string what;                // "state in host memory"
  std::uint64_t takes_bytes = 0;   // of that tier
  std::uint64_t spares_bytes = 0;  // of links, a step
  double spares_seconds = 0;       // of those links
  double per_byte = 0;             // spares_bytes / takes_bytes
  // Of the same step without what is spared, as if nothing else changed: how long it would take,
  // what works longest in it ("cores", "nvme", "h2d", "d2h") and for how much of that time.
  double step_seconds = 0;
  std::string busiest;
  double busiest_seconds = 0;
  std::string why_not;
};

// All instructions of a kind in a part of the step.
struct UnitMoment {
  std::string phase;  // "forward", "backward", "update"
  std::string what;   // "read weights"
  int times = 0;
  double begin = 0, end = 0;  // of the first and the last, from the step's start
  double busy_seconds = 0;
  std::uint64_t link_bytes = 0;
};

struct Explanation {
  std::string unit;
  std::int64_t parameters = 0;
  std::size_t tiles = 0;
  std::vector<UnitThing> things;
  std::vector<UnitBenefit> benefits;
  std::vector<UnitMoment> moments;  // by their begin
  double step_seconds = 0;
  double waited_seconds = 0;  // of the device, before kernels of this unit
  double longest_wait_seconds = 0;
  std::string longest_wait;  // for what; "": the device never waits for the unit
};

// Of the steady step (of the evaluation where nothing is trained).
[[nodiscard]] Result<Explanation> explain_unit(const ModelSpec& model,
                                               const PlanSettings& settings,
                                               const MachineProfile& machine,
                                               const Plan& plan,
                                               const std::string& unit);

[[nodiscard]] std::string format_explanation(const Explanation& explanation);
[[nodiscard]] Json explanation_to_json(const Explanation& explanation);

}  // namespace headrace::plan
