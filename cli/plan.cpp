// headrace plan: what fits where, how long a step takes; exit code 3 where it does not fit.
#include "scheduler/plan/plan.hpp"

#include <fmt/format.h>

#include <optional>

#include "cli/command.hpp"
#include "cli/device.hpp"
#include "core/config.hpp"
#include "core/quantity.hpp"
#include "train/interrupt.hpp"
#include "train/plan_run.hpp"

namespace headrace::cli {
namespace {

constexpr double kTokensMax = 1e18;

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
                       .help = "Predict for the machine of this profile (docs/machine.md)"},
                      {.name = "--tokens",
                       .value = "COUNT",
                       .help = "What so many tokens take, as in 10B; without it: the run's"}}};
}

// Of --tokens; 0: not given.
Result<std::int64_t> tokens_of(const Arguments& arguments) {
  const std::optional<std::string> text = arguments.text("--tokens");
  if (!text) {
    return 0;
  }
  HEADRACE_ASSIGN(const double count, parse_count(*text));
  if (count < 1 || count > kTokensMax) {
    return usage_error(fmt::format("--tokens: '{}' is not a number of tokens", *text))
        .with_hint("as in --tokens 10B");
  }
  return static_cast<std::int64_t>(count);
}

// With --json what does not fit is the result, as a document; the error is the same as without.
Result<ExitCode> refused(const train::PlanInputs& inputs,
                         const Error& error,
                         const Invocation& invocation) {
  if (error.code == ExitCode::kDoesNotFit && invocation.json) {
    HEADRACE_ASSIGN(const plan::Refusal refusal, train::refuse_run(inputs));
    Json json = plan::refusal_to_json(refusal);
    json.set("what", error.what);
    json.set("why", error.why);
    json.set("hint", error.hint);
    invocation.output.result(json, true, "");
  }
  return error;
}

Result<ExitCode> run(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  train::install_interrupt(train::InterruptMode::kImmediate);
  HEADRACE_ASSIGN(const RunConfig config,
                  load_run_config(*arguments.text("RUN.toml"), arguments.all("--set")));
  HEADRACE_TRY(check_device(config));
  HEADRACE_ASSIGN(const std::int64_t tokens, tokens_of(arguments));
  HEADRACE_ASSIGN(const train::PlanInputs inputs,
                  train::read_plan_inputs(config, arguments.text("--machine").value_or("")));
  const Result<train::Planned> planned = train::plan_run(inputs);
  if (!planned) {
    return refused(inputs, planned.error(), invocation);
  }
  invocation.output.result(
      plan::plan_to_json(planned->plan, planned->spec, planned->settings, tokens),
      invocation.json,
      plan::format_plan(planned->plan, planned->spec, planned->settings, tokens));
  return ExitCode::kOk;
}

}  // namespace

const Command kPlanCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
