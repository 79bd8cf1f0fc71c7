// headrace store: the stores in a folder; removal and copies; a run's store in another format.
#include "tiers/nvme/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "core/files.hpp"
#include "core/quantity.hpp"
#include "train/convert_store.hpp"
#include "train/interrupt.hpp"
#include "train/store_folders.hpp"

namespace headrace::cli {
namespace {

using tiers::nvme::StoreListing;

CommandSpec spec() {
  return {.name = "store",
          .summary = "List the stores of a folder, remove, copy or convert one",
          .positionals = {{.name = "ACTION", .help = "list | remove | copy | convert"},
                          {.name = "ID",
                           .help = "With remove: the store's id; with copy: FOLDER/ID; with "
                                   "convert: RUN_DIR",
                           .required = false},
                          {.name = "TARGET",
                           .help = "With copy: the folder that takes the copy",
                           .required = false}},
          .options = {{.name = "--store",
                       .value = "FOLDER",
                       .help = "List, remove: a folder of tiers.nvme, or RUN_DIR/store (needed)"},
                      {.name = "--state",
                       .value = "FORMAT",
                       .help = "Convert: the format that the run's optimizer state gets (needed)",
                       .choices = {"fp32", "bf16", "q8"}}}};
}

// Of a conversion that is under way or was cut short, the store that goes.
bool is_left(const StoreListing& store) {
  return !store.run_dir.empty() && train::is_left_of_conversion(store.run_dir, store.id);
}

Json listing_to_json(const StoreListing& store) {
  Json json = Json::object();
  json.add("id", store.id);
  json.add("path", store.path);
  json.add("run_dir", store.run_dir);
  json.add("bytes", store.bytes);
  json.add("step", store.step >= 0 ? Json(store.step) : Json());
  json.add("slots", store.slots);
  json.add("folder_count", store.folder_count);
  Json parts = Json::array();
  for (const tiers::nvme::StorePart& part : store.parts) {
    Json entry = Json::object();
    entry.add("path", part.path);
    entry.add("folder_index", part.folder_index);
    entry.add("bytes", part.bytes);
    parts.push_back(std::move(entry));
  }
  json.add("parts", std::move(parts));
  json.add("copy", store.copy);
  json.add("left_of_conversion", is_left(store));
  json.add("problem", store.problem.empty() ? Json() : Json(store.problem));
  json.add("dirty", store.dirty);
  json.add("locked", store.locked);
  return json;
}

std::string state_of(const StoreListing& store) {
  std::string state = store.step >= 0          ? fmt::format("step {}", store.step)
                      : !store.problem.empty() ? "cannot be used"
                                               : "no commit";
  state += store.dirty ? ", written since" : "";
  state += store.copy ? ", a copy" : "";
  state += is_left(store) ? ", left by a conversion" : "";
  state += store.locked ? ", in use" : "";
  return state + (store.problem.empty() ? "" : " (" + store.problem + ")");
}

Result<ExitCode> list(const Invocation& invocation, const std::string& folder) {
  HEADRACE_ASSIGN(const std::vector<StoreListing> stores, tiers::nvme::list_stores({folder}));
  Json array = Json::array();
  std::string text;
  for (const StoreListing& store : stores) {
    array.push_back(listing_to_json(store));
    text += fmt::format("{}  {:>10}  {}  {}\n",
                        store.id,
                        format_bytes(store.bytes),
                        state_of(store),
                        store.run_dir.empty() ? "(no run recorded)" : store.run_dir);
    for (std::size_t i = 1; i < store.parts.size(); ++i) {
      text += fmt::format("{:32}  {:>10}  also in {}\n",
                          "",
                          format_bytes(store.parts[i].bytes),
                          store.parts[i].path);
    }
  }
  Json json = Json::object();
  json.add("folder", folder);
  json.add("stores", std::move(array));
  invocation.output.result(
      json, invocation.json, text.empty() ? fmt::format("no stores in {}\n", folder) : text);
  return ExitCode::kOk;
}

Result<ExitCode> remove(const Invocation& invocation, const std::string& folder) {
  const std::optional<std::string> id = invocation.arguments.text("ID");
  if (!id) {
    return usage_error("store remove: ID is missing")
        .with_hint("headrace store list --store FOLDER names them");
  }
  HEADRACE_TRY(tiers::nvme::remove_store({folder}, *id));
  Json json = Json::object();
  json.add("removed", *id);
  json.add("folder", folder);
  invocation.output.result(json, invocation.json, fmt::format("removed {}/{}\n", folder, *id));
  return ExitCode::kOk;
}

// The store is named by the path of any of its parts.
Result<ExitCode> copy(const Invocation& invocation) {
  const std::optional<std::string> source = invocation.arguments.text("ID");
  const std::optional<std::string> target = invocation.arguments.text("TARGET");
  if (!source || !target) {
    return usage_error("store copy: a store and a target folder are needed")
        .with_hint("headrace store copy FOLDER/ID TARGET");
  }
  HEADRACE_ASSIGN(const tiers::nvme::StoreLocation location,
                  tiers::nvme::locate_store(absolute_path(working_directory(), *source)));
  HEADRACE_ASSIGN(const std::string id, tiers::nvme::copy_store(location, {{.path = *target}}));
  Json json = Json::object();
  json.add("source", location.id);
  json.add("id", id);
  json.add("folder", *target);
  invocation.output.result(
      json, invocation.json, fmt::format("copied {} to {}/{}\n", *source, *target, id));
  return ExitCode::kOk;
}

Json converted_to_json(const train::Converted& converted) {
  Json json = Json::object();
  json.add("run_dir", converted.run_dir);
  json.add("converted", converted.converted);
  json.add("state_before", converted.state_before);
  json.add("state", converted.state);
  json.add("step", converted.step);
  json.add("store", converted.store);
  json.add("bytes_before", converted.bytes_before);
  json.add("bytes", converted.bytes);
  json.add("old_store", converted.old_store.empty() ? Json() : Json(converted.old_store));
  json.add("old_removed", converted.old_removed);
  return json;
}

std::string converted_in_words(const train::Converted& converted) {
  if (!converted.converted) {
    return fmt::format("the store of {} is already {}\n", converted.run_dir, converted.state);
  }
  return fmt::format(
      "converted {} at step {} from {} ({}) to {} ({}): {}\n"
      "go on with optim.state = \"{}\" in RUN.toml, or --set optim.state={}\n{}",
      converted.run_dir,
      converted.step,
      converted.state_before,
      format_bytes(converted.bytes_before),
      converted.state,
      format_bytes(converted.bytes),
      converted.store,
      converted.state,
      converted.state,
      converted.old_removed ? "" : fmt::format("the old store stays: {}\n", converted.old_store));
}

Result<ExitCode> convert(const Invocation& invocation) {
  const std::optional<std::string> run_dir = invocation.arguments.text("ID");
  const std::optional<std::string> state = invocation.arguments.text("--state");
  if (!run_dir || !state) {
    return usage_error("store convert: the directory of a run and a format are needed")
        .with_hint("headrace store convert RUN_DIR --state fp32|bf16|q8");
  }
  HEADRACE_ASSIGN(const train::Converted converted,
                  train::convert_store({.run_dir = *run_dir, .state = *state}));
  invocation.output.result(
      converted_to_json(converted), invocation.json, converted_in_words(converted));
  return ExitCode::kOk;
}

struct Action {
  std::string name;
  std::vector<std::string> takes;
  const char* usage;
};

const std::vector<Action>& actions() {
  static const std::vector<Action> all = {
      {"list", {"--store"}, "headrace store list --store FOLDER"},
      {"remove", {"ID", "--store"}, "headrace store remove ID --store FOLDER"},
      {"copy", {"ID", "TARGET"}, "headrace store copy FOLDER/ID TARGET"},
      {"convert", {"ID", "--state"}, "headrace store convert RUN_DIR --state fp32|bf16|q8"}};
  return all;
}

// What an action would ignore is refused: `convert RUN_DIR TARGET` is not a copy into TARGET, and
// `remove ID ID` does not remove two.
Status check_taken(const Arguments& arguments, const Action& action) {
  for (const char* name : {"ID", "TARGET", "--store", "--state"}) {
    const bool taken =
        std::find(action.takes.begin(), action.takes.end(), name) != action.takes.end();
    if (arguments.has(name) && !taken) {
      const std::string what =
          name[0] == '-' ? std::string(name) : fmt::format("'{}'", *arguments.text(name));
      return usage_error(fmt::format("store {}: it does not take {}", action.name, what))
          .with_hint(action.usage);
    }
  }
  return {};
}

Result<ExitCode> run(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  const std::string action = *arguments.text("ACTION");
  const auto known = std::find_if(actions().begin(), actions().end(), [&](const Action& candidate) {
    return candidate.name == action;
  });
  if (known == actions().end()) {
    return usage_error(fmt::format("store: '{}' is not an action", action))
        .with_hint("the actions are list, remove, copy and convert");
  }
  HEADRACE_TRY(check_taken(arguments, *known));
  const std::optional<std::string> folder = arguments.text("--store");
  if (action == "convert") {  // it takes away what it has made of a store
    train::install_interrupt(train::InterruptMode::kPolled);
    return convert(invocation);
  }
  train::install_interrupt(train::InterruptMode::kImmediate);
  if (action == "copy") {
    return copy(invocation);
  }
  if (!folder) {
    return usage_error(fmt::format("store {}: --store FOLDER is needed", action))
        .with_hint("a folder of tiers.nvme, or RUN_DIR/store");
  }
  return action == "list" ? list(invocation, *folder) : remove(invocation, *folder);
}

}  // namespace

const Command kStoreCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
