// Internal to the planner: the simulated step. Every instruction of a program gets a start and an
// end, from durations, waits, the order of queues, and what runs beside it.
//
// Resources: the cores run one compute or host operation at a time; the drive one read and one
// write; each copying link one copy. An operation that runs beside others slows down as the machine
// profile says. Of the transfers that are ready, the one whose result is needed first goes first,
// as in the engine. Host operations that are ready go between two kernels of compute. Threads: any.
// Failure: none. Cost: O(n log n) for n instructions and waits.
#pragma once

#include <vector>

#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

// How fast an operation is while others run, as a share of its rate alone; and what the drive does
// with reads and writes together.
struct Contention {
  double compute_beside_nvme = 1;
  double update_beside_nvme = 1;
  double nvme_beside_compute = 1;
  double nvme_beside_update = 1;
  double compute_beside_copy = 1;
  double copy_beside_compute = 1;
  double nvme_beside_nvme = 1;  // of a read beside a write, and of the write
};

// From what was measured; 1 where it was not. `settings` has the caps of links.
[[nodiscard]] Contention contention_of(const MachineProfile& machine, const PlanSettings& settings);

// When an instruction runs, in seconds from the program's start.
struct SimulatedSpan {
  double ready = 0;  // all that it waits for has ended
  double begin = 0;
  double end = 0;
};

struct Simulation {
  Prediction prediction;             // without a variant's name
  std::vector<SimulatedSpan> spans;  // by instruction
};

[[nodiscard]] Simulation simulate(const Program& program, const Contention& contention);

}  // namespace headrace::plan
