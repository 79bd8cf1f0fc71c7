// headrace eval: loss and perplexity of a run's commit, or of a model directory on a file.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "cli/device.hpp"
#include "core/config.hpp"
#include "core/quantity.hpp"
#include "train/evaluate.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {.name = "eval",
          .summary = "Loss and perplexity of a run, or of a model on a file",
          .positionals = {{.name = "RUN.toml",
                           .help = "The run whose commit is evaluated; or --model",
                           .required = false}},
          .options = {
              {.name = "--set",
               .value = "KEY=VALUE",
               .help = "Override a key of RUN.toml",
               .repeated = true},
              {.name = "--model",
               .value = "DIR",
               .help = "A Hugging Face directory, or the directory of a run"},
              {.name = "--data",
               .value = "FILE",
               .help = "With --model: text or token files, and patterns",
               .repeated = true},
              {.name = "--seq-len", .value = "N", .help = "With --model: tokens of a sequence"}}};
}

Result<train::EvaluatedModel> evaluate_model(const Arguments& arguments) {
  if (arguments.has("RUN.toml") || arguments.has("--set")) {
    return usage_error("eval: RUN.toml and --set belong to a run, --model to a directory")
        .with_hint("use one or the other");
  }
  HEADRACE_ASSIGN(const std::optional<std::int64_t> seq_len, arguments.integer("--seq-len", 1));
  if (!arguments.has("--data") || !seq_len) {
    return usage_error("eval: --model needs --data FILE and --seq-len N")
        .with_hint("as in headrace eval --model DIR --data corpus.txt --seq-len 256");
  }
  return train::evaluate_directory(
      {.dir = *arguments.text("--model"), .data = arguments.all("--data"), .seq_len = *seq_len});
}

Result<train::EvaluatedModel> evaluate_run(const Arguments& arguments) {
  if (!arguments.has("RUN.toml") || arguments.has("--data") || arguments.has("--seq-len")) {
    return usage_error("eval: a RUN.toml, or --model DIR --data FILE --seq-len N")
        .with_hint("headrace eval --help");
  }
  HEADRACE_ASSIGN(const RunConfig config,
                  load_run_config(*arguments.text("RUN.toml"), arguments.all("--set")));
  HEADRACE_TRY(check_device(config));
  return train::evaluate_run(config);
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kPolled);
  const Arguments& arguments = invocation.arguments;
  HEADRACE_ASSIGN(const train::EvaluatedModel evaluated,
                  arguments.has("--model") ? evaluate_model(arguments) : evaluate_run(arguments));
  const train::EvalResult& result = evaluated.result;
  Json json = Json::object();
  json.add("model", evaluated.model);
  json.add("data", evaluated.data);
  json.add("loss", result.loss);
  json.add("perplexity", result.perplexity());
  json.add("tokens", result.tokens);
  json.add("seconds", result.seconds);
  invocation.output.result(
      json,
      invocation.json,
      fmt::format("{} on {}\nloss {:.6f}, perplexity {:.4f} over {} tokens in {}\n",
                  evaluated.model,
                  evaluated.data,
                  result.loss,
                  result.perplexity(),
                  result.tokens,
                  format_duration(result.seconds)));
  return ExitCode::kOk;
}

}  // namespace

const Command kEvalCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
