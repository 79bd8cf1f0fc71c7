// What `headrace plan` plans: the run that `train` would begin or go on with, reading only.
//
// Inputs are read once; a question about the run (what if, which batch) plans from changed copies
// of them. Thread: main's. Failure: Result; codes as in design.md (2 usage, 3 does not fit).
#pragma once

#include <string>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "model/architecture.hpp"
#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/refusal.hpp"
#include "train/engine.hpp"

namespace headrace::train {

struct PlanInputs {
  RunConfig config;  // resolved
  model::Architecture architecture;
  plan::MachineProfile machine;
  PlanRequest request;
  bool store_is_new = false;  // and its folders are of this machine
};

// For a run with a commit its tiles and threads. The data is opened only where run.epochs asks for
// it. With a machine_file: on that machine, with its memory.
[[nodiscard]] Result<PlanInputs> read_plan_inputs(RunConfig config,
                                                  const std::string& machine_file);

[[nodiscard]] Result<Planned> plan_run(const PlanInputs& inputs);

// Of a run that does not fit.
[[nodiscard]] Result<plan::Refusal> refuse_run(const PlanInputs& inputs);

}  // namespace headrace::train
