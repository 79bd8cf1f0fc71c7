// headrace: finds the command, runs it, prints its error.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "cli/openmp_environment.hpp"
#include "cli/standard_files.hpp"
#include "core/log.hpp"

#ifndef HEADRACE_VERSION
#error "the build says which version this is"
#endif

namespace headrace::cli {
namespace {

const std::array<const Command*, 11>& commands() {
  static const std::array<const Command*, 11> table = {&kTrainCommand,
                                                       &kPlanCommand,
                                                       &kBenchCommand,
                                                       &kEvalCommand,
                                                       &kGenerateCommand,
                                                       &kTokenizeCommand,
                                                       &kExportCommand,
                                                       &kStoreCommand,
                                                       &kInspectCommand,
                                                       &kVerifyCommand,
                                                       &kDoctorCommand};
  return table;
}

std::string command_names() {
  std::string names;
  for (const Command* command : commands()) {
    names += (names.empty() ? "" : ", ") + command->spec().name;
  }
  return names;
}

std::string short_help() {
  std::string text =
      "headrace trains transformers larger than the memory of their device.\n\n"
      "To begin:\n"
      "  headrace plan  examples/quickstart.toml     what fits where, how long a step takes\n"
      "  headrace train examples/quickstart.toml     train; Ctrl-C commits, the same line "
      "resumes\n\n"
      "Commands (headrace COMMAND --help tells what each takes):\n";
  for (const Command* command : commands()) {
    const CommandSpec spec = command->spec();
    text += fmt::format("  {:<10} {}\n", spec.name, spec.summary);
  }
  return text + "\n  --help     this text\n  --version  the version\n";
}

int fail(const Error& error, bool verbose) {
  write_error_text(format_error(error, verbose));
  return static_cast<int>(error.code);
}

// The exit code of a command that had nothing to do but to write.
int written(Output output, bool verbose) {
  const Status status = output.finish();
  return status ? 0 : fail(status.error(), verbose);
}

int run_command(const Command& command, const std::vector<std::string>& words) {
  const CommandSpec spec = command.spec();
  const Result<Parsed> parsed = parse_arguments(spec, words);
  if (!parsed) {
    return fail(parsed.error(), false);
  }
  const Arguments& arguments = parsed->arguments;
  const bool verbose = arguments.has("--verbose");
  Output output(arguments.text("--output").value_or(""));
  if (parsed->help) {
    output.write(help_text(spec));
    return written(std::move(output), verbose);
  }
  if (verbose) {
    set_log_level(LogLevel::kDebug);
  }
  const Result<ExitCode> code = command.run({.arguments = arguments,
                                             .output = output,
                                             .json = arguments.has("--json"),
                                             .verbose = verbose});
  if (!code) {
    return fail(code.error(), verbose);
  }
  if (const Status status = output.finish(); !status) {
    return fail(status.error(), verbose);
  }
  return static_cast<int>(*code);
}

int run(const std::vector<std::string>& words) {
  if (words.empty() || words.front() == "--help") {
    Output output("");
    output.write(short_help());
    return written(std::move(output), false);
  }
  if (words.front() == "--version") {
    Output output("");
    output.write("headrace " HEADRACE_VERSION "\n");
    return written(std::move(output), false);
  }
  for (const Command* command : commands()) {
    if (command->spec().name == words.front()) {
      return run_command(*command, {words.begin() + 1, words.end()});
    }
  }
  return fail(usage_error(fmt::format("'{}' is not a command", words.front()))
                  .with_hint(fmt::format("the commands are {}", command_names())),
              false);
}

}  // namespace
}  // namespace headrace::cli

int main(int count, char** values) {
  if (!headrace::cli::open_missing_standard_files()) {
    return static_cast<int>(headrace::ExitCode::kOperating);
  }
  headrace::cli::adopt_passive_openmp_waits(values);
  // A reader that goes away, and a limit on the size of files (ulimit -f), are errors of write(2)
  // with a text of their own, not the end of the process.
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
  static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
  try {
    const std::span<char*> all(values, static_cast<std::size_t>(count));
    return headrace::cli::run({all.begin() + std::min(count, 1), all.end()});
  } catch (const std::bad_alloc&) {
    headrace::cli::write_error_text(
        "error: out of memory\n  hint: headrace plan says what a run needs\n");
    return static_cast<int>(headrace::ExitCode::kOperating);
  } catch (const std::exception& exception) {
    headrace::cli::write_error_text(
        fmt::format("error: headrace stops for a reason that it does not know\n  why : {}\n  hint: "
                    "this is a fault of headrace: please report it\n",
                    exception.what()));
    return static_cast<int>(headrace::ExitCode::kOperating);
  }
}
