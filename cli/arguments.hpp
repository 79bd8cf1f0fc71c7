// Command lines: what a command takes, as data; parsed by CLI11 in arguments.cpp alone.
//
// Invariant: the help text is made from the same table that the parser uses, so it names every
// option and no other. Long options only. Thread: main's. Failure: a usage error that says which
// argument and where the help is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace headrace::cli {

struct PositionalSpec {
  std::string name;  // "RUN.toml"
  std::string help;
  bool required = true;
  bool repeated = false;  // the last one may be
};

struct OptionSpec {
  std::string name;        // "--tokens"
  std::string value = {};  // "N"; "" for a flag
  std::string help;
  std::vector<std::string> choices = {};  // of the value; empty: anything
  bool repeated = false;
};

struct CommandSpec {
  std::string name;     // "train"
  std::string summary;  // one line
  std::vector<PositionalSpec> positionals = {};
  std::vector<OptionSpec> options =
      {};  // --json, --output, --verbose and --help are in every command
};

// What a command line said. Names as in the spec.
class Arguments {
 public:
  [[nodiscard]] bool has(const std::string& name) const { return values_.contains(name); }

  [[nodiscard]] std::optional<std::string> text(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> all(const std::string& name) const;
  // Errors: not a number of that kind, or outside the limits.
  [[nodiscard]] Result<std::optional<std::int64_t>> integer(const std::string& name,
                                                            std::int64_t least) const;
  [[nodiscard]] Result<std::optional<double>> number(const std::string& name, double least) const;

  void add(const std::string& name, std::string value) {
    values_[name].push_back(std::move(value));
  }

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

struct Parsed {
  Arguments arguments;
  bool help = false;
};

// `words`: after the command's name.
[[nodiscard]] Result<Parsed> parse_arguments(const CommandSpec& spec,
                                             const std::vector<std::string>& words);

[[nodiscard]] std::string help_text(const CommandSpec& spec);

}  // namespace headrace::cli
