#include "train/inspect.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/quantity.hpp"
#include "model/config_json.hpp"
#include "tiers/nvme/store.hpp"
#include "train/metrics.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/state_format.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::ExtentKey;
using tiers::nvme::ExtentKind;
using tiers::nvme::Store;

struct Opened {
  std::optional<RunPaths> run;
  std::unique_ptr<Store> store;
};

Result<Opened> open_path(const std::string& given) {
  const std::string path = absolute_path(working_directory(), given);
  Opened opened;
  if (is_run_directory(path)) {
    opened.run = RunPaths{.dir = path};
    HEADRACE_ASSIGN(const std::optional<StoreReference> found, read_store_reference(*opened.run));
    if (!found) {
      return usage_error(fmt::format("the run '{}' has no store", given))
          .with_why("there is no store.json in it")
          .with_hint("it was never trained");
    }
    HEADRACE_ASSIGN(opened.store, open_run_store(*opened.run, *found, Store::Access::kRead, false));
    return opened;
  }
  if (!path_exists(path + "/data")) {
    return usage_error(fmt::format("'{}' is neither a run nor a store", given))
        .with_why(is_directory(path) ? "there is neither a store.json nor a data file in it"
                                     : "there is no such directory")
        .with_hint(
            "name the directory of a run, or <folder>/<id> of a store (headrace store list)");
  }
  HEADRACE_ASSIGN(const tiers::nvme::StoreLocation location, tiers::nvme::locate_store(path));
  HEADRACE_ASSIGN(opened.store,
                  Store::open(location.folders, location.id, Store::Access::kRead, false));
  return opened;
}

Json extent_to_json(const Store& store, const ExtentKey& key) {
  const tiers::nvme::ExtentPlace place = store.read_place(key);
  Json json = Json::object();
  json.add("unit", key.unit);
  json.add("tile", key.tile);
  json.add("kind", key.kind == ExtentKind::kParam ? "param" : "state");
  json.add("folder", place.folder);
  json.add("slot", place.slot);
  json.add("offset", place.offset);
  json.add("header_bytes", place.header_bytes);
  json.add("payload_bytes", place.payload_bytes);
  json.add("step", store.step_of(key));
  return json;
}

Json extents_to_json(const Store& store) {
  Json extents = Json::array();
  for (const tiers::nvme::TileBytes& tile : store.contents().tiles) {
    extents.push_back(
        extent_to_json(store, {.unit = tile.unit, .tile = tile.tile, .kind = ExtentKind::kParam}));
    if (tile.state_bytes > 0) {
      extents.push_back(extent_to_json(
          store, {.unit = tile.unit, .tile = tile.tile, .kind = ExtentKind::kState}));
    }
  }
  return extents;
}

// One data file for each folder.
Json files_to_json(const Store& store) {
  Json files = Json::array();
  for (std::uint32_t folder = 0; folder < store.folder_count(); ++folder) {
    files.push_back(Json(store.data_path(folder)));
  }
  return files;
}

Json units_to_json(const TensorTable& table) {
  Json units = Json::array();
  for (const StoredUnit& unit : table.units) {
    std::int64_t parameters = 0;
    for (const StoredTensor& tensor : unit.tensors) {
      parameters += tensor.elements;
    }
    Json json = Json::object();
    json.add("name", unit.name);
    json.add("tensors", unit.tensors.size());
    json.add("tiles", unit.tiles.size());
    json.add("parameters", parameters);
    units.push_back(std::move(json));
  }
  return units;
}

Result<Json> commit_to_json(const Store& store) {
  if (!store.last_commit()) {
    return Json();
  }
  HEADRACE_ASSIGN(const RunState state,
                  run_state_from_text(store.last_commit()->run_state, store.path()));
  Json json = Json::object();
  json.add("generation", store.last_commit()->generation);
  json.add("step", state.step);
  json.add("update_count", state.update_count);
  json.add("tokens", state.tokens);
  json.add("seed", state.config.run.seed);
  json.add("verify_reads", state.config.durability.verify_reads);
  json.add("compute_threads", Json(state.config.run.compute_threads));
  json.add("data_tokens", state.numbers.data.tokens);
  return json;
}

std::string text_of(const Json* value) {
  if (value == nullptr || value->is_null()) {
    return "none";
  }
  const std::string* text = value->as_string();
  return text != nullptr ? *text : value->dump();
}

// A row that is missing at the commit's step means that the metrics and the store part ways.
Status check_metrics(const RunPaths& paths, std::int64_t step) {
  if (step == 0) {
    return {};
  }
  HEADRACE_ASSIGN(const std::int64_t last, last_metrics_step(paths.metrics(), step));
  if (last == step) {
    return {};
  }
  return corrupt_error(
             fmt::format("metrics: '{}' has no row of step {}, the commit's; the last is {}",
                         paths.metrics(),
                         step,
                         last))
      .with_hint("the file was changed since; restore it from a copy");
}

Status check_records(const Opened& opened) {
  const Store& store = *opened.store;
  HEADRACE_ASSIGN(const TensorTable table,
                  tensor_table_from_text(store.contents().tensor_table, store.path()));
  HEADRACE_ASSIGN(const RunState state,
                  run_state_from_text(store.last_commit()->run_state, store.path()));
  if (state.step != store.last_commit()->step) {
    return corrupt_error(fmt::format("the commit of '{}' names two steps: {} and {}",
                                     store.path(),
                                     store.last_commit()->step,
                                     state.step))
        .with_hint("restore the store from a copy, or start again with --overwrite");
  }
  HEADRACE_TRY(check_format(store, state.config));
  return opened.run ? check_metrics(*opened.run, state.step) : Status();
}

Status check_has_commit(const Store& store) {
  if (!store.last_commit()) {
    return operating_error(fmt::format("the store '{}' holds no commit", store.path()))
        .with_why("its run never ended cleanly");
  }
  if (store.dirty()) {
    return operating_error(
               fmt::format("the store '{}' was written after its last commit", store.path()))
        .with_why("its run did not end cleanly; with one slot a tile the commit is gone");
  }
  return {};
}

}  // namespace

Result<Json> inspect_path(const std::string& path) {
  HEADRACE_ASSIGN(const Opened opened, open_path(path));
  const Store& store = *opened.store;
  HEADRACE_ASSIGN(const plan::StateFormat format, format_of(store));
  HEADRACE_ASSIGN(const TensorTable table,
                  tensor_table_from_text(store.contents().tensor_table, store.path()));
  HEADRACE_ASSIGN(Json commit, commit_to_json(store));
  Json json = Json::object();
  json.add("kind", opened.run ? "run" : "store");
  json.add("run_dir", opened.run ? opened.run->dir : store.contents().run_dir);
  json.add("store", store.path());
  json.add("id", store.id());
  json.add("slots", store.slots());
  json.add("undo_slot", store.undo_slot());
  json.add("files", files_to_json(store));
  json.add("bytes", store.bytes());
  json.add("layout", store.contents().layout_tag);
  json.add("state", format.name);
  json.add("dirty", store.dirty());
  json.add("commit", std::move(commit));
  json.add("architecture", model::config_to_json(table.architecture, Dtype::kF32));
  json.add("tile_elements", table.tile_elements);
  json.add("units", units_to_json(table));
  json.add("extents", extents_to_json(store));
  return json;
}

std::string format_inspection(const Json& inspection) {
  std::string text;
  for (const char* key : {"kind", "run_dir", "store", "layout", "slots", "dirty"}) {
    text += fmt::format("{:<14} {}\n", key, text_of(inspection.find(key)));
  }
  const Json* bytes = inspection.find("bytes");
  text += fmt::format("{:<14} {}\n", "size", format_bytes(bytes->as_uint().value_or(0)));
  const auto& files = *inspection.find("files")->as_array();
  for (std::size_t i = 1; i < files.size(); ++i) {
    text += fmt::format("{:<14} {}\n", "also in", text_of(&files[i]));
  }
  const Json* commit = inspection.find("commit");
  if (commit == nullptr || commit->is_null()) {
    text += fmt::format("{:<14} none\n", "commit");
  } else {
    text += fmt::format("{:<14} step {}, {} updates, {} tokens, generation {}\n",
                        "commit",
                        text_of(commit->find("step")),
                        text_of(commit->find("update_count")),
                        text_of(commit->find("tokens")),
                        text_of(commit->find("generation")));
    if (const Json* verified = commit->find("verify_reads"); verified->as_bool() == false) {
      text +=
          fmt::format("{:<14} not checked: durability.verify_reads = false\n", "reads of steps");
    }
  }
  text += fmt::format(
      "{:<14} {}\n", "model", text_of(inspection.find("architecture")->find("model_type")));
  text +=
      fmt::format("{:<14} {} elements\n", "tiles of", text_of(inspection.find("tile_elements")));
  text += fmt::format("\n{:<14} {:>8} {:>8} {:>14}\n", "unit", "tensors", "tiles", "parameters");
  for (const Json& unit : *inspection.find("units")->as_array()) {
    text += fmt::format("{:<14} {:>8} {:>8} {:>14}\n",
                        text_of(unit.find("name")),
                        text_of(unit.find("tensors")),
                        text_of(unit.find("tiles")),
                        text_of(unit.find("parameters")));
  }
  return text;
}

Result<Verified> verify_path(const std::string& path) {
  HEADRACE_ASSIGN(const Opened opened, open_path(path));
  HEADRACE_TRY(check_has_commit(*opened.store));
  std::vector<Error> problems;
  Verified verified;
  HEADRACE_ASSIGN(verified.extents,
                  opened.store->verify([&](const Error& problem) { problems.push_back(problem); }));
  if (Status status = check_records(opened); !status) {
    problems.push_back(std::move(status).error());
  }
  if (!problems.empty()) {
    Error first = std::move(problems.front());
    for (std::size_t i = 1; i < problems.size(); ++i) {
      first.others.push_back(std::move(problems[i]));
    }
    return first;
  }
  verified.store = opened.store->path();
  verified.step = opened.store->last_commit()->step;
  verified.bytes = opened.store->bytes();
  return verified;
}

}  // namespace headrace::train
