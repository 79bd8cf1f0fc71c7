// metrics.jsonl: the truth about a run, one JSON object a step (docs/metrics.md).
//
// Invariant: rows are whole lines in ascending step order, each written by one write(2) before the
// next step begins; numbers read back bit for bit; on a resume the file is cut back to the commit's
// step, so that no row tells of a step that was lost. Thread: one. Failure: Result; rows that
// cannot be read are corrupt data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/unique.hpp"
#include "scheduler/exec/executor.hpp"

namespace headrace::train {

struct EvalResult {
  double loss = 0;          // mean over the targets
  std::int64_t tokens = 0;  // targets
  double seconds = 0;

  [[nodiscard]] double perplexity() const;
};

struct PeakBytes {
  std::uint64_t device = 0, host = 0, pinned = 0;  // of the engine's arenas
  std::uint64_t process = 0;  // anonymous and huge-page memory of the whole process
};

struct StepMetrics {
  std::int64_t step = 0;  // counted from 1: steps finished
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  // so far in the run
  std::optional<exec::NonFinite> skipped;
  double step_s = 0;
  double tokens_per_s = 0;
  std::string variant;                         // of the plan's predictions: the step's kind
  double bound_s = 0;                          // of the plan, for a step of this kind
  std::map<std::string, double> stall_s;       // by cause
  std::map<std::string, std::uint64_t> bytes;  // by link; "commit": since the row before
  PeakBytes peak;
  std::optional<EvalResult> eval;  // where the step was followed by an evaluation
};

// NaN and infinities have no JSON form: they are null, and `skipped` names their cause.
[[nodiscard]] Json metrics_to_json(const StepMetrics& metrics);

// The last step among the rows of steps <= `step`, 0 where there is none; reads only. Errors as
// MetricsFile::open.
[[nodiscard]] Result<std::int64_t> last_metrics_step(const std::string& path, std::int64_t step);

class MetricsFile {
 public:
  // Opens (and makes) the file and cuts it back to the rows of steps <= `last_step`; 0: empties it.
  // Warns where rows are missing. Errors: a kept row that is no JSON object with a step, or out of
  // order (corrupt).
  [[nodiscard]] static Result<MetricsFile> open(const std::string& path, std::int64_t last_step);

  [[nodiscard]] Status append(const StepMetrics& metrics);
  // Durable: before a commit, which must not know of steps that the metrics do not.
  [[nodiscard]] Status sync();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MetricsFile(std::string path, UniqueFd descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  std::string path_;
  UniqueFd descriptor_;
};

}  // namespace headrace::train
