// headrace export: a run's commit as a Hugging Face directory.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "core/quantity.hpp"
#include "train/export_run.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

CommandSpec spec() {
  return {.name = "export",
          .summary = "Write a run's weights as a Hugging Face directory",
          .positionals = {{.name = "RUN_DIR", .help = "The directory of a run with a commit"},
                          {.name = "OUT_DIR", .help = "Made if its parent exists"}},
          .options = {{.name = "--dtype",
                       .value = "DTYPE",
                       .help = "Of the weights; f32 without it",
                       .choices = {"f32", "bf16", "f16"}},
                      {.name = "--overwrite",
                       .help = "Write over a config.json and weights that are no earlier export"}}};
}

Dtype dtype_of(const Arguments& arguments) {
  const std::string name = arguments.text("--dtype").value_or("f32");
  return name == "bf16" ? Dtype::kBf16 : name == "f16" ? Dtype::kF16 : Dtype::kF32;
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kPolled);
  const Arguments& arguments = invocation.arguments;
  HEADRACE_ASSIGN(const train::Exported exported,
                  train::export_run({.run_dir = *arguments.text("RUN_DIR"),
                                     .target_dir = *arguments.text("OUT_DIR"),
                                     .dtype = dtype_of(arguments),
                                     .overwrite = arguments.has("--overwrite")}));
  Json json = Json::object();
  json.add("source", exported.source);
  json.add("target", exported.target_dir);
  json.add("dtype", dtype_name(exported.dtype));
  json.add("parameters", exported.parameters);
  json.add("bytes", exported.bytes);
  invocation.output.result(json,
                           invocation.json,
                           fmt::format("{} -> {}: {} parameters as {}, {}\n",
                                       exported.source,
                                       exported.target_dir,
                                       format_count(static_cast<double>(exported.parameters)),
                                       dtype_name(exported.dtype),
                                       format_bytes(exported.bytes)));
  return ExitCode::kOk;
}

}  // namespace

const Command kExportCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
