// Reads RUN.toml and --set into a RunConfig, writes it back, and describes every key.
//
// Invariant: one table (core/config_schema.cpp) drives reading, writing, ranges, help and the docs,
// so an accepted key is a documented key. Unknown keys, wrong types and impossible combinations are
// errors, and all errors of a file and its --set are reported at once, each with its place.
// Thread: any. Failure: a usage error; the first problem, with the rest in Error::others.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"

namespace headrace {

// path as the user wrote it; sets are "KEY=VALUE". Paths in the file are relative to its folder, in
// sets to the working directory. A set of one of run.steps|epochs, or of model.preset|path|arch,
// takes the place of the file's other choice. What only training needs (run.steps or run.epochs,
// data.train) may be absent: the command that needs it says so.
[[nodiscard]] Result<RunConfig> load_run_config(const std::string& path,
                                                const std::vector<std::string>& sets);

// The defaults, with sets, for commands without a file; no model need be named.
[[nodiscard]] Result<RunConfig> default_run_config(const std::vector<std::string>& sets);

// config.resolved.toml: reads back through load_run_config to an equal config. Each comment becomes
// a line "# ..." at the top (a comment holds no line break).
[[nodiscard]] std::string to_toml(const RunConfig& config,
                                  const std::vector<std::string>& comments = {});

// One key of RUN.toml, as help and docs/config.md show it.
struct ConfigKey {
  std::string key;           // "optim.lr", "optim.group[].match", "tiers.nvme[].space"
  std::string type;          // "number", "size", "list of texts", ...
  std::string default_text;  // TOML, or words where it depends ("hidden / heads")
  std::string allowed;       // "\"held\" | \"after-backward\"", ">= 1"; may be empty
  std::string doc;           // one line
  bool makes_numbers;        // must match on resume
};

[[nodiscard]] const std::vector<ConfigKey>& config_keys();

// docs/config.md, whole: a test compares the file with it, and HEADRACE_UPDATE_DOCS=1 makes that
// test write it.
[[nodiscard]] std::string config_markdown();

// A key whose values differ, as TOML text; "" where one side has none.
struct ConfigDifference {
  std::string key;
  std::string before;
  std::string after;
  bool makes_numbers;
};

// In the schema's order. optim.group and tiers.nvme are compared as wholes.
[[nodiscard]] std::vector<ConfigDifference> config_differences(const RunConfig& before,
                                                               const RunConfig& after);

// N of "cuda:N", 0 to 99; nothing for any other text.
[[nodiscard]] std::optional<int> cuda_ordinal(std::string_view device);

// "run.toml:31:1" where the key was written; "" for a default.
[[nodiscard]] std::string config_place(const RunConfig& config, std::string_view key);

}  // namespace headrace
