// headrace plan: what fits where, how long a step takes; exit code 3 where it does not fit.
#include "scheduler/plan/plan.hpp"

#include <fmt/format.h>

#include <optional>

#include "cli/command.hpp"
#include "cli/device.hpp"
#include "core/config.hpp"
#include "train/interrupt.hpp"
#include "train/session.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {.name = "plan",
          .summary = "What fits where, how long a step takes, what it costs; trains nothing",
          .positionals = {{.name = "RUN.toml", .help = "The run: docs/config.md lists its keys"}},
          .options = {{.name = "--set",
                       .value = "KEY=VALUE",
                       .help = "Override a key of RUN.toml",
                       .repeated = true},
                      {.name = "--machine",
                       .value = "FILE",
                       .help = "Predict for the machine of this profile (docs/machine.md)"}}};
}

Result<ExitCode> run(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  train::install_interrupt(train::InterruptMode::kImmediate);
  HEADRACE_ASSIGN(const RunConfig config,
                  load_run_config(*arguments.text("RUN.toml"), arguments.all("--set")));
  HEADRACE_TRY(check_device(config));
  HEADRACE_ASSIGN(const train::Planned planned,
                  train::plan_run(config, arguments.text("--machine").value_or("")));
  Json json = plan::plan_to_json(planned.plan, planned.spec);
  invocation.output.result(
      json, invocation.json, plan::format_plan(planned.plan, planned.spec, planned.settings));
  return ExitCode::kOk;
}

}  // namespace

const Command kPlanCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
