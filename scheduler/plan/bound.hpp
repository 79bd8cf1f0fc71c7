// The least that a step takes, whatever the schedule: bytes that must cross each link, seconds that
// each resource must work. The proofs are in docs/scheduling.md.
//
// Pure: from the model, the budgets, the machine's rates, and of the plan what it keeps in memory
// from one step to the next, never from how its instructions are arranged. A rate that was not
// measured is what the simulator takes. Threads: any. Failure: none.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

struct LinkBytes {
  double nvme_read = 0, nvme_write = 0;  // commits included
  double h2d = 0, d2h = 0;
};

struct ResourceSeconds {
  double nvme = 0;
  double h2d = 0, d2h = 0;
  double device = 0;  // kernels, and updates of what is at home on the device
  double cores = 0;   // those of the CPU device with the optimizer's
  double memory = 0;  // held gradients and updates in place, at the host memory's rate
  // The cores, with what they lose to the drive: no schedule has both at the rates that they have
  // alone.
  double together = 0;

  [[nodiscard]] double largest() const;
  [[nodiscard]] const char* limit() const;  // the name of the largest
};

// What a step needs if nothing waits for anything else.
struct Requirement {
  LinkBytes bytes;
  ResourceSeconds seconds;
};

struct Bound {
  // S: param and state extents of what is updated, and weights that only are read. C: those of them
  // that are at home in memory.
  double state_bytes = 0, resident_bytes = 0;
  // Of any schedule that keeps in memory what this plan keeps, and recomputes what it recomputes.
  Requirement placed;
  // Of any schedule at all under the budgets: other residency, nothing recomputed. Steady steps of
  // a training run only.
  Requirement budget;
  // Of any schedule that keeps what this plan keeps and updates in one order: phases that cannot
  // overlap, added. Never less than `placed`; order_seconds is that of the plan's own order.
  double held_seconds = 0, after_backward_seconds = 0;
  double order_seconds = 0;
  // Core-seconds of checksums for placed.bytes; they share the cores with all else. 0: their rate
  // was not measured.
  double sum_core_seconds = 0;
};

// Of one variant of a step (Prediction::variant). The plan has programs.
[[nodiscard]] Bound bound_of(const ModelSpec& model,
                             const PlanSettings& settings,
                             const MachineProfile& machine,
                             const Plan& plan,
                             const std::string& variant = "steady");

// The least seconds in which a drive reads and writes so many bytes, by the rates that were
// measured at up to five shares of writes, and any mixture of them over time. 0: where neither
// alone nor half and half was measured, nothing is known but that a drive reads and writes at once.
[[nodiscard]] double mixed_nvme_seconds(const MachineProfile& machine,
                                        double read_bytes,
                                        double write_bytes);

// Sets bound_seconds and order_bound_seconds of every prediction.
void add_bounds(const ModelSpec& model,
                const PlanSettings& settings,
                const MachineProfile& machine,
                Plan& plan);

}  // namespace headrace::plan
