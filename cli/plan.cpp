// headrace plan: what fits where, how long a step takes; exit code 3 where it does not fit.
#include "scheduler/plan/plan.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/device.hpp"
#include "core/config.hpp"
#include "core/quantity.hpp"
#include "scheduler/plan/explain.hpp"
#include "scheduler/plan/refusal.hpp"
#include "scheduler/plan/what_if.hpp"
#include "train/interrupt.hpp"
#include "train/plan_run.hpp"
#include "train/plan_search.hpp"

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
                       .help = "What so many tokens take, as in 10B; without it: the run's"},
                      {.name = "--what-if",
                       .value = "NAME=VALUE",
                       .help = "The plan beside that of a machine changed so: nvme.read=12GB/s, "
                               "gemm=2x, ...",
                       .repeated = true},
                      {.name = "--explain",
                       .value = "UNIT",
                       .help = "Where a unit's things are, why, and what it does in a step"},
                      {.name = "--search",
                       .help = "The batch, state format and placement that train fastest"},
                      {.name = "--tokens-per-step",
                       .value = "N",
                       .help = "With --search: of so many tokens a step, not the run's"}}};
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

// The plan of today beside that of another machine.
Result<ExitCode> compare(const std::vector<std::string>& changes,
                         const train::Planned& planned,
                         std::int64_t tokens,
                         const Invocation& invocation) {
  plan::WhatIf what_if{.machine = planned.machine, .settings = planned.settings, .changes = {}};
  for (const std::string& change : changes) {
    HEADRACE_TRY(plan::apply_what_if(change, what_if));
  }
  HEADRACE_ASSIGN(const plan::Plan then,
                  plan::make_plan(planned.spec, what_if.settings, what_if.machine));
  const plan::Compared plans{.model = planned.spec, .today = planned.plan, .then = then};
  Json json = plan::plan_to_json(planned.plan, planned.spec, planned.settings, tokens);
  json.set("what_if", plan::what_if_to_json(what_if, plans));
  const std::int64_t of_run =
      planned.settings.steps * planned.spec.rows() * planned.spec.accumulate;
  invocation.output.result(
      json, invocation.json, plan::format_what_if(what_if, plans, tokens > 0 ? tokens : of_run));
  return ExitCode::kOk;
}

// Where one unit's things are, why, and what it does in a step.
Result<ExitCode> explain(const std::string& unit,
                         const train::Planned& planned,
                         const Invocation& invocation) {
  HEADRACE_ASSIGN(
      const plan::Explanation explanation,
      plan::explain_unit(planned.spec, planned.settings, planned.machine, planned.plan, unit));
  Json json = plan::plan_to_json(planned.plan, planned.spec, planned.settings);
  json.set("explain", plan::explanation_to_json(explanation));
  invocation.output.result(json, invocation.json, plan::format_explanation(explanation));
  return ExitCode::kOk;
}

// The batch, state format and placement that train fastest.
Result<ExitCode> search(const train::PlanInputs& inputs, const Invocation& invocation) {
  HEADRACE_ASSIGN(const std::optional<std::int64_t> tokens,
                  invocation.arguments.integer("--tokens-per-step", 1));
  Result<train::PlanSearch> found = train::search_plans(inputs, tokens);
  if (!found) {
    return refused(inputs, found.error(), invocation);
  }
  invocation.output.result(
      train::search_to_json(*found), invocation.json, train::format_search(*found));
  return ExitCode::kOk;
}

// One question at a time.
Status check_questions(const Arguments& arguments) {
  std::string first;
  for (const char* option : {"--search", "--what-if", "--explain"}) {
    if (!arguments.has(option)) {
      continue;
    }
    if (!first.empty()) {
      return usage_error(fmt::format("{} and {} exclude each other", first, option))
          .with_hint("ask one question at a time");
    }
    first = option;
  }
  if (arguments.has("--tokens-per-step") && first != "--search") {
    return usage_error("--tokens-per-step belongs to --search").with_hint("add --search");
  }
  return {};
}

Result<ExitCode> run(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  HEADRACE_TRY(check_questions(arguments));
  train::install_interrupt(train::InterruptMode::kImmediate);
  HEADRACE_ASSIGN(const RunConfig config,
                  load_run_config(*arguments.text("RUN.toml"), arguments.all("--set")));
  HEADRACE_TRY(check_device(config));
  HEADRACE_ASSIGN(const std::int64_t tokens, tokens_of(arguments));
  HEADRACE_ASSIGN(const train::PlanInputs inputs,
                  train::read_plan_inputs(config, arguments.text("--machine").value_or("")));
  if (arguments.has("--search")) {
    return search(inputs, invocation);
  }
  const Result<train::Planned> planned = train::plan_run(inputs);
  if (!planned) {
    return refused(inputs, planned.error(), invocation);
  }
  if (const std::optional<std::string> unit = arguments.text("--explain")) {
    return explain(*unit, *planned, invocation);
  }
  const std::vector<std::string> what_if = arguments.all("--what-if");
  if (!what_if.empty()) {
    return compare(what_if, *planned, tokens, invocation);
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
