// headrace inspect: what is in a run's directory or a store.
#include "train/inspect.hpp"

#include "cli/command.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {
      .name = "inspect",
      .summary = "Show what a run's directory or a store holds",
      .positionals = {{.name = "PATH", .help = "The directory of a run, or FOLDER/ID of a store"}}};
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kImmediate);
  HEADRACE_ASSIGN(const Json json, train::inspect_path(*invocation.arguments.text("PATH")));
  invocation.output.result(json, invocation.json, train::format_inspection(json));
  return ExitCode::kOk;
}

}  // namespace

const Command kInspectCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
