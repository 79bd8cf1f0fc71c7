// headrace bench: the links between the tiers, the optimizer and products, measured; a machine
// profile from them.
#include <fmt/format.h>

#include <utility>

#include "cli/command.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "train/bench_links.hpp"
#include "train/interrupt.hpp"
#include "train/probe.hpp"

namespace headrace::cli {
namespace {

std::string names_of_parts() {
  std::string names;
  for (const train::BenchPart& part : train::bench_parts()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", part.name);
  }
  return names;
}

CommandSpec spec() {
  return {
      .name = "bench",
      .summary = "Measures the links between the tiers, the optimizer and computing",
      .options = {
          {.name = "--quick", .help = "A quarter of a second for each line, not three"},
          {.name = "--only",
           .value = "LIST",
           .help = fmt::format("Parts, with commas between: {}", names_of_parts())},
          {.name = "--store",
           .value = "DIR",
           .help = "The folder whose drive is measured, instead of the working directory",
           .repeated = true},
          {.name = "--save-profile",
           .value = "FILE",
           .help = "Write a machine profile (docs/machine.md), for --machine of other commands"}}};
}

Result<std::vector<std::string>> folders_of(const Arguments& arguments) {
  std::vector<std::string> folders = arguments.all("--store");
  if (folders.empty()) {
    folders.push_back(working_directory());
  }
  for (const std::string& folder : folders) {
    if (!is_directory(folder)) {
      return operating_error(fmt::format("--store: '{}' is not a folder", folder))
          .with_hint("make it, or name one that is there");
    }
  }
  return folders;
}

// A profile with everything that a profile has: measured by the probe where the benchmark did not.
Status save_profile(const std::string& path,
                    const train::BenchReport& report,
                    const std::string& folder) {
  HEADRACE_ASSIGN(train::MachineFile machine, train::probe_machine(folder));
  train::take_rates(report, machine.profile);
  return train::write_machine_file(path, machine);
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kImmediate);
  const Arguments& arguments = invocation.arguments;
  train::BenchOptions options;
  options.quick = arguments.has("--quick");
  if (const auto list = arguments.text("--only")) {
    HEADRACE_ASSIGN(options.parts, train::parse_parts(*list));
  }
  HEADRACE_ASSIGN(options.folders, folders_of(arguments));
  HEADRACE_ASSIGN(const train::BenchReport report, train::run_bench(options));
  const auto profile = arguments.text("--save-profile");
  if (profile) {
    HEADRACE_TRY(save_profile(
        absolute_path(working_directory(), *profile), report, options.folders.front()));
  }
  Json json = train::bench_to_json(report);
  json.add("profile", profile);
  invocation.output.result(json,
                           invocation.json,
                           train::format_bench(report) +
                               (profile ? fmt::format("The profile is in '{}'.\n", *profile) : ""));
  return ExitCode::kOk;
}

}  // namespace

const Command kBenchCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
