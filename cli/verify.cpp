// headrace verify: reads all of a commit and checks it; exit code 4 where something is damaged.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "core/quantity.hpp"
#include "train/inspect.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {
      .name = "verify",
      .summary = "Read and check all of a run's commit, or of a store",
      .positionals = {{.name = "PATH", .help = "The directory of a run, or FOLDER/ID of a store"}}};
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kImmediate);
  HEADRACE_ASSIGN(const train::Verified verified,
                  train::verify_path(*invocation.arguments.text("PATH")));
  Json json = Json::object();
  json.add("store", verified.store);
  json.add("step", verified.step);
  json.add("extents", verified.extents);
  json.add("bytes", verified.bytes);
  invocation.output.result(json,
                           invocation.json,
                           fmt::format("{}: the commit of step {} is whole: {} extents, {}\n",
                                       verified.store,
                                       verified.step,
                                       verified.extents,
                                       format_bytes(verified.bytes)));
  return ExitCode::kOk;
}

}  // namespace

const Command kVerifyCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
