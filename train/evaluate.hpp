// The loss of a model over data, without training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "scheduler/exec/executor.hpp"
#include "train/data.hpp"
#include "train/metrics.hpp"

namespace headrace::train {

// Mean over all targets, batch by batch in a fixed order. `stop_on_interrupt`: between batches, an
// interrupt ends it (ExitCode::kInterrupted).
[[nodiscard]] Result<EvalResult> evaluate(exec::Executor& executor,
                                          EvalLoader& loader,
                                          StepBatch& batch,
                                          bool stop_on_interrupt);

struct EvaluatedModel {
  std::string model;  // "the commit of step 200 of 'runs/demo'"
  std::string data;   // what was read
  EvalResult result;
};

// The commit of a run over its eval.data, its held-out tail, or else its training data; under the
// run's budgets, wherever its weights live. A run that has none starts from model.path.
[[nodiscard]] Result<EvaluatedModel> evaluate_run(const RunConfig& config);

struct EvaluateDirectory {
  std::string dir;                // Hugging Face's or a run's
  std::vector<std::string> data;  // files and patterns
  std::int64_t seq_len = 0;
};

// Every whole window of the data, with all of the machine's memory.
[[nodiscard]] Result<EvaluatedModel> evaluate_directory(const EvaluateDirectory& request);

}  // namespace headrace::train
