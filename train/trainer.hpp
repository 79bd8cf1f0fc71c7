// The loop: data, step, metrics, and a commit whenever durability.checkpoint says so, until the
// steps are done or the run is interrupted; then a last commit.
//
// Invariant: a step's row is in metrics.jsonl before the next step begins, and durable before the
// commit that knows the step; what a commit cost is told by the row after it. A step with NaN or
// Inf in its gradients is skipped by the executor: step and data go on, the update count and the
// schedule do not; kSkippedInRowMax of them in a row stop the run, after a commit. SIGINT and
// SIGTERM end the run after the step, with a commit. Thread: main's. Failure: Result; after an
// operation's error the store's last commit is whole, and the error says how to go on from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/json.hpp"
#include "train/differences.hpp"
#include "train/metrics.hpp"
#include "train/session.hpp"

namespace headrace::train {

inline constexpr std::int64_t kSkippedInRowMax = 20;

// What the run tells while it runs. Called on the trainer's thread; must be quick.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_step(const StepMetrics& metrics, std::int64_t steps) = 0;
};

enum class TrainEnd : std::uint8_t { kFinished, kInterrupted };

struct TrainSummary {
  TrainEnd end = TrainEnd::kFinished;
  std::string run_dir;
  std::int64_t step = 0;
  std::int64_t steps = 0;
  std::int64_t steps_now = 0;  // of this process
  std::int64_t update_count = 0;
  std::int64_t skipped = 0;  // of this process
  std::int64_t tokens = 0;
  std::optional<double> loss;  // of the last step that has one
  std::optional<EvalResult> eval;
  double seconds = 0;      // of this process's steps
  double step_s_mean = 0;  // without the first step
  double predicted_step_s = 0;
  std::vector<Difference> differences;  // of steady steps from the simulated one
  std::int64_t commits = 0;
  std::uint64_t commit_bytes = 0;  // of the last commit
  double commit_s = 0;             // of the last commit
  ExportCounts exports;
  std::uint64_t written_bytes = 0;  // to the store, by this process
  double drive_life_days = 0;       // at this process's rate of writing; 0: not known, or endless
  PeakBytes peak;
  std::uint64_t planned_peak_bytes = 0;  // arenas and process
};

[[nodiscard]] Json summary_to_json(const TrainSummary& summary);
[[nodiscard]] std::string format_summary(const TrainSummary& summary);

// From where the session stands to its end. Signals must have been installed (interrupt.hpp).
[[nodiscard]] Result<TrainSummary> run_training(Session& session, TrainObserver& observer);

}  // namespace headrace::train
