// A command: what it takes, and what it does. main.cpp has the table of them.
//
// A command returns an exit code, or an Error that main prints in the form of core/error.hpp; what
// it has to say goes through Output. Thread: main's.
#pragma once

#include <string>

#include "cli/arguments.hpp"
#include "cli/output.hpp"
#include "core/error.hpp"

namespace headrace::cli {

struct Invocation {
  const Arguments& arguments;
  Output& output;
  bool json = false;
  bool verbose = false;
};

struct Command {
  CommandSpec (*spec)() = nullptr;
  Result<ExitCode> (*run)(const Invocation& invocation) = nullptr;
};

extern const Command kTrainCommand;
extern const Command kPlanCommand;
extern const Command kBenchCommand;
extern const Command kEvalCommand;
extern const Command kGenerateCommand;
extern const Command kExportCommand;
extern const Command kStoreCommand;
extern const Command kInspectCommand;
extern const Command kVerifyCommand;
extern const Command kDoctorCommand;
extern const Command kTokenizeCommand;

}  // namespace headrace::cli
