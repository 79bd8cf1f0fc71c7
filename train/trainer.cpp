#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "core/files.hpp"
#include "core/interval.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "train/batches_ahead.hpp"
#include "train/evaluate.hpp"
#include "train/interrupt.hpp"
#include "train/skipped_batches.hpp"
#include "train/store_folders.hpp"

namespace headrace::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Trainer {
 public:
  Trainer(Session& session, TrainObserver& observer) : session_(session), observer_(observer) {
    if (session.eval_loader) {
      eval_batch_.emplace(session.config.batch);
    }
  }

  Result<TrainSummary> run() {
    begin_summary();
    last_row_ = session_.state.step;
    HEADRACE_ASSIGN(checkpoint_, parse_interval(session_.config.durability.checkpoint));
    if (Status status = train(); !status) {
      keep_what_is_whole();
      return with_way_on(std::move(status).error());
    }
    HEADRACE_TRY(session_.engine->check_races());
    HEADRACE_TRY(session_.engine->write_trace(session_.paths.trace()));
    if (gave_up()) {
      return gave_up_error();
    }
    end_summary();
    return std::move(summary_);
  }

 private:
  Status train() {
    // An export that was cut short, of the commit that the run goes on from.
    if (session_.exports != nullptr && session_.state.step > 0) {
      export_due_ = session_.exports->due(session_.state.step);
      start_export();
    }
    if (const Status dropped = drop_skipped_batches(session_.paths.skipped(), session_.state.step);
        !dropped) {
      log_warning(dropped.error().what);
    }
    ahead_ = BatchesAhead::start(*session_.loader,
                                 session_.config.batch,
                                 {.first = session_.state.step, .end = session_.steps});
    while (session_.state.step < session_.steps && !interrupt_requested() && !gave_up()) {
      HEADRACE_TRY(one_step());
      const bool more = session_.state.step < session_.steps;
      if (more && (commit_due() || export_due_)) {
        HEADRACE_TRY(commit());
        start_export();
      }
    }
    if (committed_step() != session_.state.step) {
      HEADRACE_TRY(commit());
    }
    start_export();
    if (session_.exports != nullptr) {
      session_.exports->finish();
      summary_.exports = session_.exports->counts();
    }
    if (summary_.commits > 0) {
      // How far the commits have come, for whoever finds the store lost; not at each of them, since
      // a commit does no work on folders.
      HEADRACE_TRY(note_commit());
    }
    return {};
  }

  // From the commit that has just been made. After an interrupt there is no time for it; the step
  // stays due.
  void start_export() {
    if (std::exchange(export_due_, false) && !interrupt_requested()) {
      session_.exports->start(session_.state.step, last_eval_loss_);
    }
  }

  // Of the store's last commit; -1: none.
  [[nodiscard]] std::int64_t committed_step() const {
    const auto& commit = session_.store->last_commit();
    return commit ? commit->step : -1;
  }

  [[nodiscard]] bool commit_due() const {
    if (session_.store->slots() < 2) {
      return false;  // with one slot the only commit is the last
    }
    return checkpoint_.steps > 0
               ? session_.state.step % checkpoint_.steps == 0
               : checkpoint_.seconds > 0 && seconds_since(last_commit_time_) >= checkpoint_.seconds;
  }

  // Data that cannot be read leave weights and state whole: the steps since the last commit are
  // kept. So are they where metrics cannot be written and there is no other commit.
  void keep_what_is_whole() {
    const bool lacks_row = last_row_ != session_.state.step && session_.store->slots() > 1;
    if (session_.engine->failed() || is_committing_ || lacks_row ||
        committed_step() == session_.state.step) {
      return;
    }
    if (const Status committed = commit(); !committed) {
      log_warning(
          fmt::format("while committing step {}: {}", session_.state.step, committed.error().what));
    }
  }

  // What a user needs to know beside what failed: where the run can go on from.
  [[nodiscard]] Error with_way_on(Error error) const {
    const std::int64_t step = committed_step();
    std::string way_on;
    if (const Status status = check_in_place(*session_.store, session_.store_bytes); !status) {
      way_on = status.error().what == error.what
                   ? ""
                   : fmt::format("{}: {}", status.error().what, status.error().hint);
    } else if (step < 0) {
      way_on = "nothing was committed yet; the same command starts the run again";
    } else if (session_.store->dirty()) {
      way_on = fmt::format(
          "the commit of step {} was written over (durability.checkpoint = \"none\"): start again "
          "with --overwrite",
          step);
    } else if (error.code == ExitCode::kCorrupt) {
      way_on = fmt::format(
          "if the commit of step {} is whole, which `headrace verify {}` tells, the same command "
          "goes on from it",
          step,
          session_.paths.dir);
    } else {
      way_on =
          fmt::format("the commit of step {} is whole; the same command goes on from it", step);
    }
    error.hint += (error.hint.empty() || way_on.empty() ? "" : "; ") + way_on;
    return error;
  }

  [[nodiscard]] bool gave_up() const { return session_.state.skipped_in_row >= kSkippedInRowMax; }

  Error gave_up_error() {
    // The next start counts anew: it was asked for.
    return operating_error(fmt::format("{} steps in a row were skipped: the run stops at step {}",
                                       kSkippedInRowMax,
                                       session_.state.step))
        .with_why(fmt::format("NaN or Inf in the gradients, last in {}", last_cause_))
        .with_hint(bad_weight_.empty()
                       ? "the weights are as the last good step left them, and committed; lower "
                         "optim.lr, or look at the data"
                       : fmt::format("the weight {} is NaN or Inf: start again with a lower "
                                     "optim.lr, or from other weights",
                                     bad_weight_));
  }

  void begin_summary() {
    const plan::Plan& plan = session_.engine->planned().plan;
    summary_.run_dir = session_.paths.dir;
    summary_.steps = session_.steps;
    summary_.planned_peak_bytes =
        plan.device_arena_bytes + plan.host_arena_bytes + plan.process_bytes;
    if (const plan::Prediction* steady = plan::find_prediction(plan, "steady")) {
      summary_.predicted_step_s = steady->seconds;
    }
    session_.state.skipped_in_row = gave_up() ? 0 : session_.state.skipped_in_row;
  }

  Status one_step() {
    const Clock::time_point begin = Clock::now();
    const double commit_s = std::exchange(uncounted_commit_s_, 0);
    HEADRACE_ASSIGN(const StepBatch* batch, ahead_->take());
    const double data_s = seconds_since(begin);
    exec::Executor& executor = session_.engine->executor();
    exec::StepInputs inputs;
    inputs.tokens = batch->tokens;
    inputs.targets = batch->targets;
    inputs.unmasked_targets = batch->unmasked_targets;
    inputs.lr = learning_rate(session_.schedule, executor.update_count());
    inputs.clip = session_.config.optim.clip;
    HEADRACE_ASSIGN(const exec::StepResult result, executor.step(inputs));
    StepMetrics row = make_row(result, inputs.lr);
    row.step_s = seconds_since(begin) + commit_s;
    row.tokens_per_s = static_cast<double>(session_.loader->tokens_per_step()) / row.step_s;
    row.stall_s["data"] = data_s;
    row.stall_s["commit"] = commit_s;
    take_notes(row);
    if (row.skipped) {
      save_batch(row.step, *batch);
    }
    if (!result.non_finite && result.kind == exec::StepKind::kSteady) {
      steady_steps_.add(row);
    }
    export_due_ = session_.exports != nullptr && session_.exports->due(row.step);
    Status evaluated = evaluate_if_due(row);
    last_eval_loss_ = row.eval ? std::optional(row.eval->loss) : std::nullopt;
    HEADRACE_TRY(session_.metrics->append(row));
    last_row_ = row.step;
    HEADRACE_TRY(std::move(evaluated));
    if (row.step % session_.config.log.every == 0 || row.skipped || row.eval ||
        row.step == session_.steps) {
      observer_.on_step(row, session_.steps);
    }
    return {};
  }

  StepMetrics make_row(const exec::StepResult& result, double lr) {
    RunState& state = session_.state;
    state.step += 1;
    state.tokens += session_.loader->tokens_per_step();
    state.update_count = session_.engine->executor().update_count();
    state.skipped_in_row = result.non_finite ? state.skipped_in_row + 1 : 0;
    StepMetrics row;
    row.step = state.step;
    row.loss = result.loss;
    row.grad_norm = result.grad_norm;
    row.lr = lr;
    row.tokens = state.tokens;
    row.skipped = result.non_finite;
    row.variant = exec::variant_name(result.kind);
    row.bound_s = bound_of(result);
    row.stall_s = result.stall_seconds;
    row.bytes = {{"nvme_read", 0}, {"nvme_write", 0}, {"h2d", 0}, {"d2h", 0}};
    for (const auto& [link, bytes] : result.link_bytes) {
      row.bytes[link] = bytes;
    }
    row.bytes["commit"] = std::exchange(uncounted_commit_bytes_, 0);
    const exec::PeakMemory peak = session_.engine->executor().peak();
    row.peak = {.device = peak.device_bytes,
                .host = peak.host_bytes,
                .pinned = peak.pinned_bytes,
                .process = session_.memory->peak_bytes()};
    return row;
  }

  // Of the variant that this step was.
  [[nodiscard]] double bound_of(const exec::StepResult& result) const {
    const char* variant = result.non_finite ? "skipped" : exec::variant_name(result.kind);
    const plan::Prediction* prediction =
        plan::find_prediction(session_.engine->planned().plan, variant);
    return prediction != nullptr ? prediction->bound_seconds : 0;
  }

  void take_notes(const StepMetrics& row) {
    summary_.steps_now += 1;
    summary_.seconds += row.step_s;
    later_seconds_ += summary_.steps_now > 1 ? row.step_s - row.stall_s.at("commit") : 0;
    summary_.peak = row.peak;
    summary_.written_bytes += row.bytes.at("nvme_write");
    if (row.skipped) {
      summary_.skipped += 1;
      last_cause_ = fmt::format("{}[{}]", row.skipped->tensor, row.skipped->element);
      log_warning(fmt::format("step {} was skipped: NaN or Inf in the gradient of {}, {} in all",
                              row.step,
                              last_cause_,
                              row.skipped->count));
    } else if (std::isfinite(row.loss)) {
      summary_.loss = row.loss;
    }
    look_at_weights();
  }

  // For whoever looks for the reason; a run does not end for want of it.
  void save_batch(std::int64_t step, const StepBatch& batch) {
    const Result<std::string> saved =
        save_skipped_batch(session_.paths.skipped(), step, batch, session_.config.batch.seq_len);
    if (saved) {
      log_info(fmt::format("step {}: its batch is in '{}'", step, *saved));
    } else {
      log_warning(fmt::format("step {}: its batch is not saved: {}", step, saved.error().what));
    }
  }

  // An update that made NaN or Inf of finite gradients; said once.
  void look_at_weights() {
    if (!bad_weight_.empty()) {
      return;
    }
    if (const auto bad = session_.engine->executor().non_finite_weights()) {
      bad_weight_ = fmt::format("{}[{}]", bad->tensor, bad->element);
      log_warning(fmt::format("step {}: the weight {} is NaN or Inf after its update, {} in all",
                              session_.state.step,
                              bad_weight_,
                              bad->count));
    }
  }

  Status evaluate_if_due(StepMetrics& row) {
    const std::optional<std::int64_t>& every = session_.config.eval.every;
    const bool due =
        every && (row.step % *every == 0 || row.step == session_.steps ||
                  (export_due_ && session_.config.exports.best));  // to be compared with others
    if (!session_.eval_loader || !due) {
      return {};
    }
    HEADRACE_ASSIGN(
        const EvalResult result,
        evaluate(session_.engine->executor(), *session_.eval_loader, *eval_batch_, false));
    row.eval = result;
    summary_.eval = result;
    return {};
  }

  Status commit() {
    const Clock::time_point begin = Clock::now();
    is_committing_ = true;
    if (session_.exports != nullptr) {
      session_.exports->finish();  // it reads what the commit before this one names
    }
    // Now too, since the commit may give a file that was cut its length again.
    HEADRACE_TRY(check_in_place(*session_.store, session_.store_bytes));
    HEADRACE_TRY(session_.metrics->sync());
    HEADRACE_ASSIGN(
        summary_.commit_bytes,
        session_.engine->executor().commit(session_.state.step, run_state_to_text(session_.state)));
    // A file that was removed takes every write, and loses all of them with the process.
    HEADRACE_TRY(check_in_place(*session_.store, session_.store_bytes));
    summary_.commit_s = seconds_since(begin);
    summary_.commits += 1;
    uncounted_commit_s_ += summary_.commit_s;
    uncounted_commit_bytes_ += summary_.commit_bytes;
    summary_.written_bytes += summary_.commit_bytes;
    last_commit_time_ = Clock::now();
    is_committing_ = false;
    look_at_weights();
    const std::string text = fmt::format("committed step {} ({} written in {})",
                                         session_.state.step,
                                         format_bytes(summary_.commit_bytes),
                                         format_duration(summary_.commit_s));
    if (checkpoint_.steps == 1 && session_.state.step < session_.steps) {
      log_debug(text);  // a line a step says nothing
    } else {
      log_info(text);
    }
    return summary_.commits == 1 ? note_commit() : Status();
  }

  Status note_commit() {
    return write_store_reference(session_.paths,
                                 {.folders = session_.store_folders,
                                  .id = session_.store->id(),
                                  .committed_step = committed_step()});
  }

  void end_summary() {
    summary_.end =
        session_.state.step < session_.steps ? TrainEnd::kInterrupted : TrainEnd::kFinished;
    summary_.step = session_.state.step;
    summary_.update_count = session_.state.update_count;
    summary_.tokens = session_.state.tokens;
    summary_.step_s_mean = summary_.steps_now > 1
                               ? later_seconds_ / static_cast<double>(summary_.steps_now - 1)
                               : summary_.seconds;
    const plan::Plan& plan = session_.engine->planned().plan;
    if (const plan::Prediction* steady = plan::find_prediction(plan, "steady")) {
      summary_.differences = steady_steps_.differences(*steady);
    }
    summary_.peak.process = session_.memory->peak_bytes();
    constexpr double kSecondsPerDay = 86400;
    const double per_second = static_cast<double>(summary_.written_bytes) / seconds_since(begin_);
    const double endurance = session_.engine->planned().plan.endurance_bytes;
    if (per_second > 0 && endurance > 0) {
      summary_.drive_life_days = endurance / (per_second * kSecondsPerDay);
    }
  }

  Session& session_;
  TrainObserver& observer_;
  std::unique_ptr<BatchesAhead> ahead_;
  std::optional<StepBatch> eval_batch_;
  TrainSummary summary_;
  Clock::time_point begin_ = Clock::now();
  Interval checkpoint_;
  Clock::time_point last_commit_time_ = Clock::now();
  bool export_due_ = false;               // of the step that has just been made
  std::optional<double> last_eval_loss_;  // of the same step
  double uncounted_commit_s_ = 0;         // of commits since the last row
  std::uint64_t uncounted_commit_bytes_ = 0;
  MeasuredSteps steady_steps_;
  double later_seconds_ = 0;  // of the steps after the first, commits left out
  std::string last_cause_;
  std::string bad_weight_;      // the first that was seen
  std::int64_t last_row_ = 0;   // step of the last row of metrics
  bool is_committing_ = false;  // a commit has begun, and not ended
};

const char* end_name(TrainEnd end) {
  return end == TrainEnd::kFinished ? "finished" : "interrupted";
}

}  // namespace

Json summary_to_json(const TrainSummary& summary) {
  Json json = Json::object();
  json.add("status", end_name(summary.end));
  json.add("run_dir", summary.run_dir);
  json.add("step", summary.step);
  json.add("steps", summary.steps);
  json.add("update_count", summary.update_count);
  json.add("skipped", summary.skipped);
  json.add("tokens", summary.tokens);
  json.add("loss", summary.loss);
  if (summary.eval) {
    Json eval = Json::object();
    eval.add("loss", summary.eval->loss);
    eval.add("perplexity", summary.eval->perplexity());
    eval.add("tokens", summary.eval->tokens);
    json.add("eval", std::move(eval));
  }
  json.add("seconds", summary.seconds);
  json.add("step_s", summary.step_s_mean);
  json.add("predicted_step_s", summary.predicted_step_s);
  Json differences = Json::array();
  for (const Difference& one : summary.differences) {
    Json difference = Json::object();
    difference.add("part", one.part);
    difference.add("predicted_s", one.predicted_s);
    difference.add("measured_s", one.measured_s);
    differences.push_back(std::move(difference));
  }
  json.add("differences", std::move(differences));
  Json commit = Json::object();
  commit.add("count", summary.commits);
  commit.add("bytes", summary.commit_bytes);
  commit.add("seconds", summary.commit_s);
  json.add("commit", std::move(commit));
  Json exports = Json::object();
  exports.add("written", summary.exports.written);
  exports.add("failed", summary.exports.failed);
  json.add("exports", std::move(exports));
  Json drive = Json::object();
  drive.add("written_bytes", summary.written_bytes);
  drive.add("life_days", summary.drive_life_days);
  json.add("drive", std::move(drive));
  Json peak = Json::object();
  peak.add("device", summary.peak.device);
  peak.add("host", summary.peak.host);
  peak.add("pinned", summary.peak.pinned);
  peak.add("process", summary.peak.process);
  peak.add("planned", summary.planned_peak_bytes);
  json.add("peak", std::move(peak));
  return json;
}

std::string format_summary(const TrainSummary& summary) {
  std::string text =
      fmt::format("{} at step {}/{}: {} steps in {}, {:.0f} ms a step (predicted {:.0f} ms){}\n",
                  end_name(summary.end),
                  summary.step,
                  summary.steps,
                  summary.steps_now,
                  format_duration(summary.seconds),
                  summary.step_s_mean * 1e3,
                  summary.predicted_step_s * 1e3,
                  summary.skipped > 0 ? fmt::format(", {} skipped", summary.skipped) : "");
  text += format_differences(summary.differences);
  text +=
      fmt::format("memory: process {} at its peak, planned {} (device arena {}, host arena {})\n",
                  format_bytes(summary.peak.process),
                  format_bytes(summary.planned_peak_bytes),
                  format_bytes(summary.peak.device),
                  format_bytes(summary.peak.host));
  if (summary.drive_life_days > 0) {
    text += fmt::format("drive: {} written; at this rate it lasts {:.0f} days\n",
                        format_bytes(summary.written_bytes),
                        summary.drive_life_days);
  }
  text += fmt::format("committed in {}\n", summary.run_dir);
  return text;
}

Result<TrainSummary> run_training(Session& session, TrainObserver& observer) {
  return Trainer(session, observer).run();
}

}  // namespace headrace::train
