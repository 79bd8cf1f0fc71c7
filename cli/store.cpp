// headrace store: the stores in a folder; removal and copies.
#include "tiers/nvme/store.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/command.hpp"
#include "core/files.hpp"
#include "core/quantity.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

using tiers::nvme::StoreListing;

CommandSpec spec() {
  return {.name = "store",
          .summary = "List the stores of a folder, remove or copy one",
          .positionals = {{.name = "ACTION", .help = "list | remove | copy"},
                          {.name = "ID",
                           .help = "With remove: the store's id; with copy: FOLDER/ID",
                           .required = false},
                          {.name = "TARGET",
                           .help = "With copy: the folder that takes the copy",
                           .required = false}},
          .options = {{.name = "--store",
                       .value = "FOLDER",
                       .help = "List, remove: a folder of tiers.nvme, or RUN_DIR/store (needed)"}}};
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

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kImmediate);
  const Arguments& arguments = invocation.arguments;
  const std::string action = *arguments.text("ACTION");
  const std::optional<std::string> folder = arguments.text("--store");
  if (action == "copy") {
    return copy(invocation);
  }
  if (action != "list" && action != "remove") {
    return usage_error(fmt::format("store: '{}' is not an action", action))
        .with_hint("the actions are list, remove and copy");
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
