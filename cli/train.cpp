// headrace train: the step lines are the result; with --json, the summary of the end.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "cli/device.hpp"
#include "cli/progress.hpp"
#include "core/config.hpp"
#include "core/log.hpp"
#include "train/interrupt.hpp"
#include "train/report.hpp"
#include "train/session.hpp"
#include "train/trainer.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {.name = "train",
          .summary = "Train a model, or go on with a run that was interrupted",
          .positionals = {{.name = "RUN.toml", .help = "The run: docs/config.md lists its keys"}},
          .options = {{.name = "--set",
                       .value = "KEY=VALUE",
                       .help = "Override a key of RUN.toml, as in --set optim.lr=1e-4",
                       .repeated = true},
                      {.name = "--resume",
                       .value = "MODE",
                       .help = "auto: go on where the run's folder holds a commit; never: begin; "
                               "required: go on or fail",
                       .choices = {"auto", "never", "required"}},
                      {.name = "--overwrite",
                       .help = "Begin again and drop the commit that the run's folder holds"},
                      {.name = "--machine",
                       .value = "FILE",
                       .help = "Plan with this machine profile instead of the measured one"}}};
}

train::ResumeMode resume_mode(const Arguments& arguments) {
  const std::string mode = arguments.text("--resume").value_or("auto");
  return mode == "never"      ? train::ResumeMode::kNever
         : mode == "required" ? train::ResumeMode::kRequired
                              : train::ResumeMode::kAuto;
}

class StepLines final : public train::TrainObserver {
 public:
  StepLines(Output& output, bool json) : output_(output), json_(json) {}

  void on_step(const train::StepMetrics& metrics, std::int64_t steps) override {
    progress_.clear();
    if (!json_) {
      output_.write(train::format_step(metrics, steps) + "\n");
    }
    progress_.show(metrics.step, steps, metrics.step_s);
  }

  void finish() { progress_.clear(); }

 private:
  Output& output_;
  bool json_;
  Progress progress_;
};

Json complete_to_json(const train::Session& session) {
  Json json = Json::object();
  json.add("status", "complete");
  json.add("run_dir", session.paths.dir);
  json.add("step", session.state.step);
  json.add("steps", session.steps);
  json.add("update_count", session.state.update_count);
  json.add("tokens", session.state.tokens);
  return json;
}

void print_start(const train::Session& session) {
  const train::Planned& planned = session.engine->planned();
  write_error_text(train::format_settings(train::settings_of(session)));
  write_error_text(plan::format_plan(planned.plan, planned.spec, planned.settings));
}

Result<ExitCode> run(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  train::install_interrupt(train::InterruptMode::kPolled);
  train::SessionOptions options;
  HEADRACE_ASSIGN(options.config,
                  load_run_config(*arguments.text("RUN.toml"), arguments.all("--set")));
  HEADRACE_TRY(check_device(options.config));
  options.resume = resume_mode(arguments);
  options.overwrite = arguments.has("--overwrite");
  options.machine_file = arguments.text("--machine").value_or("");
  HEADRACE_ASSIGN(const std::unique_ptr<train::Session> session, train::open_session(options));
  if (session->complete) {
    invocation.output.result(
        complete_to_json(*session),
        invocation.json,
        fmt::format("complete at step {}; raise run.steps\n", session->state.step));
    return ExitCode::kOk;
  }
  train::install_interrupt(train::InterruptMode::kFinish);
  print_start(*session);
  StepLines lines(invocation.output, invocation.json);
  Result<train::TrainSummary> summary = train::run_training(*session, lines);
  lines.finish();
  if (!summary) {
    log_to_file(LogLevel::kError, format_error(summary.error(), true));
  }
  close_log_file();
  if (!summary) {
    return std::move(summary).error();
  }
  invocation.output.result(train::summary_to_json(*summary), invocation.json, "");
  write_error_text(train::format_summary(*summary));
  return summary->end == train::TrainEnd::kInterrupted ? ExitCode::kInterrupted : ExitCode::kOk;
}

}  // namespace

const Command kTrainCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
