#include "train/run_state.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <string_view>
#include <utility>

#include "core/config.hpp"
#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/json.hpp"
#include "core/unique.hpp"
#include "model/config_json.hpp"

namespace headrace::train {
namespace {

constexpr int kStateSchema = 1;
constexpr int kTableSchema = 1;
constexpr std::int64_t kElementsMax = std::int64_t{1} << 60U;

Error damaged(const std::string& store_path, const std::string& what, const Error& cause) {
  return corrupt_error(fmt::format("the {} of the store '{}' cannot be read", what, store_path))
      .with_why(cause.why.empty() ? cause.what : fmt::format("{}: {}", cause.what, cause.why))
      .with_hint("it was written by another version, or is damaged: headrace verify checks it");
}

// The settings of a commit are kept as text; the reader of settings takes files.
Result<RunConfig> config_from_text(const std::string& text) {
  const UniqueFd memory(::memfd_create("config.resolved.toml", MFD_CLOEXEC));
  if (!memory) {
    return errno_error("cannot make a file in memory", errno);
  }
  HEADRACE_TRY(write_all(memory.get(), text));
  return load_run_config(fmt::format("/proc/self/fd/{}", memory.get()), {});
}

Json architecture_to_json(const model::Architecture& architecture) {
  return model::config_to_json(architecture, Dtype::kF32);
}

Result<model::Architecture> architecture_from_json(const Json& json) {
  HEADRACE_ASSIGN(model::ParsedConfigJson parsed,
                  model::parse_config_json(json.dump(), {.path = "the store", .ignore = {}}));
  return std::move(parsed.architecture);
}

Json data_to_json(const DataIdentity& data) {
  Json json = Json::object();
  json.add("files", data.files);
  json.add("bytes", data.bytes);
  json.add("tokens", data.tokens);
  json.add("hash", hash_hex(data.hash));
  return json;
}

Result<DataIdentity> data_from_json(const Json& json) {
  DataIdentity data;
  HEADRACE_ASSIGN(data.files, json.require_uint("files"));
  HEADRACE_ASSIGN(data.bytes, json.require_uint("bytes"));
  HEADRACE_ASSIGN(data.tokens, json.require_uint("tokens"));
  HEADRACE_ASSIGN(const std::string hash, json.require_string("hash"));
  const std::optional<Id128> wide = Id128::from_hex(std::string(16, '0') + hash);
  if (!wide) {
    return corrupt_error(fmt::format("hash: '{}' is not 16 hexadecimal digits", hash));
  }
  data.hash = wide->low;
  return data;
}

Status check_schema(const Json& json, int schema) {
  HEADRACE_ASSIGN(const std::int64_t found, json.require_int("schema"));
  if (found != schema) {
    return corrupt_error(fmt::format("schema {} is not {}", found, schema));
  }
  return {};
}

Result<RunState> parse_state(const std::string& text) {
  HEADRACE_ASSIGN(const Json json, parse_json(text));
  HEADRACE_TRY(check_schema(json, kStateSchema));
  RunState state;
  HEADRACE_ASSIGN(state.step, json.require_int("step"));
  HEADRACE_ASSIGN(state.update_count, json.require_int("update_count"));
  HEADRACE_ASSIGN(state.tokens, json.require_int("tokens"));
  HEADRACE_ASSIGN(state.skipped_in_row, json.require_int("skipped_in_row"));
  HEADRACE_ASSIGN(const Json* architecture, json.require_object("architecture"));
  HEADRACE_ASSIGN(state.numbers.architecture, architecture_from_json(*architecture));
  HEADRACE_ASSIGN(const Json* data, json.require_object("data"));
  HEADRACE_ASSIGN(state.numbers.data, data_from_json(*data));
  HEADRACE_ASSIGN(const std::string config, json.require_string("config"));
  HEADRACE_ASSIGN(state.config, config_from_text(config));
  return state;
}

// Compared by what they lead to: the architecture, and the content of the data.
bool compared_otherwise(const std::string& key, bool same_architecture) {
  const bool names_model = key.starts_with("model.") && key != "model.path";
  return key == "data.train" || (names_model && same_architecture);
}

// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("/._-+=:@%,").find(c) != std::string_view::npos;
  });
  if (plain && !text.empty()) {
    return text;
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return word + "'";
}

void add_data_difference(const RunState& committed,
                         const RunConfig& now,
                         const DataIdentity& data,
                         std::vector<Error>& differences) {
  const DataIdentity& before = committed.numbers.data;
  if (before.hash == data.hash && before.tokens == data.tokens) {
    return;
  }
  differences.push_back(
      usage_error(
          fmt::format("data.train: {} tokens, content {} in the commit; {} tokens, content {} now",
                      before.tokens,
                      hash_hex(before.hash),
                      data.tokens,
                      hash_hex(data.hash)))
          .with_where(config_place(now, "data.train")));
}

}  // namespace

std::string run_state_to_text(const RunState& state) {
  Json json = Json::object();
  json.add("schema", kStateSchema);
  json.add("step", state.step);
  json.add("update_count", state.update_count);
  json.add("tokens", state.tokens);
  json.add("skipped_in_row", state.skipped_in_row);
  json.add("architecture", architecture_to_json(state.numbers.architecture));
  json.add("data", data_to_json(state.numbers.data));
  json.add("config", to_toml(state.config));
  return json.dump();
}

Result<RunState> run_state_from_text(const std::string& text, const std::string& store_path) {
  Result<RunState> state = parse_state(text);
  if (!state) {
    return damaged(store_path, "commit", state.error());
  }
  return state;
}

Status check_same_numbers(const RunState& committed,
                          const RunConfig& now,
                          const RunNumbers& numbers_now) {
  const bool same_architecture = committed.numbers.architecture == numbers_now.architecture;
  std::vector<Error> differences;
  for (const ConfigDifference& difference : config_differences(committed.config, now)) {
    if (!difference.makes_numbers || compared_otherwise(difference.key, same_architecture)) {
      continue;
    }
    Error error = usage_error(fmt::format("{}: {} in the commit, {} now",
                                          difference.key,
                                          difference.before.empty() ? "not set" : difference.before,
                                          difference.after.empty() ? "not set" : difference.after))
                      .with_where(config_place(now, difference.key));
    if (difference.key == "optim.state") {
      error.hint = fmt::format(
          "the run's store is {0}: go on with optim.state = \"{0}\" (--set optim.state={0}), or "
          "convert it: headrace store convert {1} --state {2}",
          committed.config.optim.state,
          shell_word(now.run.dir),
          now.optim.state);
    }
    differences.push_back(std::move(error));
  }
  if (!same_architecture && differences.empty()) {
    differences.push_back(usage_error("the model's config.json is not the commit's")
                              .with_where(config_place(now, "model.path")));
  }
  add_data_difference(committed, now, numbers_now.data, differences);
  if (differences.empty()) {
    return {};
  }
  Error error =
      usage_error(fmt::format("'{}' was committed at step {} with other numbers",
                              now.run.dir,
                              committed.step))
          .with_why(fmt::format("{} of what makes the numbers of a run differ{}",
                                differences.size(),
                                differences.size() == 1 ? "s" : ""))
          .with_hint("set them back, choose another run.dir, or start again with --overwrite");
  error.others = std::move(differences);
  return error;
}

std::vector<std::string> changed_settings(const RunConfig& before, const RunConfig& after) {
  std::vector<std::string> lines;
  for (const ConfigDifference& difference : config_differences(before, after)) {
    lines.push_back(fmt::format("{}: {} -> {}",
                                difference.key,
                                difference.before.empty() ? "not set" : difference.before,
                                difference.after.empty() ? "not set" : difference.after));
  }
  return lines;
}

// ---- the tensor table --------------------------------------------------------------------------

namespace {

Json tensor_to_json(const StoredTensor& tensor) {
  Json shape = Json::array();
  for (const std::int64_t size : tensor.shape) {
    shape.push_back(size);
  }
  Json json = Json::object();
  json.add("name", tensor.name);
  json.add("shape", std::move(shape));
  json.add("elements", tensor.elements);
  json.add("offset", tensor.offset);
  json.add("frozen", tensor.frozen);
  return json;
}

Result<StoredTensor> tensor_from_json(const Json& json) {
  StoredTensor tensor;
  HEADRACE_ASSIGN(tensor.name, json.require_string("name"));
  HEADRACE_ASSIGN(const Json::Array* shape, json.require_array("shape"));
  for (const Json& size : *shape) {
    const std::optional<std::int64_t> value = size.as_int();
    if (!value) {
      return corrupt_error(fmt::format("shape of '{}': not whole numbers", tensor.name));
    }
    tensor.shape.push_back(*value);
  }
  HEADRACE_ASSIGN(tensor.elements, json.require_int("elements"));
  HEADRACE_ASSIGN(tensor.offset, json.require_int("offset"));
  HEADRACE_ASSIGN(tensor.frozen, json.require_bool("frozen"));
  return tensor;
}

Json tile_to_json(const plan::TileSpec& tile) {
  Json json = Json::object();
  json.add("begin", tile.begin);
  json.add("elements", tile.elements);
  json.add("frozen", tile.frozen);
  return json;
}

Result<plan::TileSpec> tile_from_json(const Json& json) {
  plan::TileSpec tile;
  HEADRACE_ASSIGN(tile.begin, json.require_int("begin"));
  HEADRACE_ASSIGN(tile.elements, json.require_int("elements"));
  HEADRACE_ASSIGN(tile.frozen, json.require_bool("frozen"));
  return tile;
}

// Readers look a tensor up in its unit's tiles.
Status check_tensors(const StoredUnit& unit) {
  const std::int64_t end =
      unit.tiles.empty() ? 0 : unit.tiles.back().begin + unit.tiles.back().elements;
  for (const StoredTensor& tensor : unit.tensors) {
    if (tensor.elements < 0 || tensor.offset < 0 || tensor.offset > end ||
        tensor.elements > end - tensor.offset) {
      return corrupt_error(
          fmt::format("'{}' does not lie in the tiles of '{}'", tensor.name, unit.name));
    }
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) {
        elements = -1;
        break;
      }
    }
    if (elements != tensor.elements) {
      return corrupt_error(
          fmt::format("the shape of '{}' is not of its {} elements", tensor.name, tensor.elements));
    }
  }
  return {};
}

Result<StoredUnit> unit_from_json(const Json& json) {
  StoredUnit unit;
  HEADRACE_ASSIGN(unit.name, json.require_string("name"));
  HEADRACE_ASSIGN(const Json::Array* tensors, json.require_array("tensors"));
  for (const Json& tensor : *tensors) {
    HEADRACE_ASSIGN(StoredTensor stored, tensor_from_json(tensor));
    unit.tensors.push_back(std::move(stored));
  }
  HEADRACE_ASSIGN(const Json::Array* tiles, json.require_array("tiles"));
  for (const Json& tile : *tiles) {
    HEADRACE_ASSIGN(const plan::TileSpec stored, tile_from_json(tile));
    const std::int64_t end =
        unit.tiles.empty() ? 0 : unit.tiles.back().begin + unit.tiles.back().elements;
    if (stored.begin != end || stored.elements <= 0) {
      return corrupt_error(fmt::format("the tiles of '{}' do not follow one another", unit.name));
    }
    if (stored.elements > kElementsMax - end) {
      return corrupt_error(fmt::format("the tiles of '{}' are too large", unit.name));
    }
    unit.tiles.push_back(stored);
  }
  HEADRACE_TRY(check_tensors(unit));
  return unit;
}

Result<TensorTable> parse_table(const std::string& text) {
  HEADRACE_ASSIGN(const Json json, parse_json(text));
  HEADRACE_TRY(check_schema(json, kTableSchema));
  TensorTable table;
  HEADRACE_ASSIGN(const Json* architecture, json.require_object("architecture"));
  HEADRACE_ASSIGN(table.architecture, architecture_from_json(*architecture));
  HEADRACE_ASSIGN(table.tile_elements, json.require_int("tile_elements"));
  HEADRACE_ASSIGN(const Json::Array* units, json.require_array("units"));
  for (const Json& unit : *units) {
    HEADRACE_ASSIGN(StoredUnit stored, unit_from_json(unit));
    table.units.push_back(std::move(stored));
  }
  return table;
}

}  // namespace

TensorTable make_tensor_table(const model::Architecture& architecture,
                              const plan::ModelSpec& spec,
                              const plan::Plan& plan) {
  TensorTable table;
  table.architecture = architecture;
  table.tile_elements = plan.tile_elements;
  for (std::size_t u = 0; u < spec.units.size(); ++u) {
    StoredUnit unit;
    unit.name = spec.units[u].name;
    for (const plan::TensorSpec& tensor : spec.units[u].tensors) {
      unit.tensors.push_back({.name = tensor.name,
                              .shape = tensor.shape,
                              .elements = tensor.elements,
                              .offset = tensor.offset,
                              .frozen = tensor.frozen});
    }
    unit.tiles = plan.units[u].tiles;
    table.units.push_back(std::move(unit));
  }
  return table;
}

Status check_same_tiles(const TensorTable& table,
                        const plan::Plan& plan,
                        const std::string& store_path) {
  bool same = table.units.size() == plan.units.size();
  for (std::size_t u = 0; same && u < plan.units.size(); ++u) {
    const std::vector<plan::TileSpec>& stored = table.units[u].tiles;
    same =
        std::equal(stored.begin(),
                   stored.end(),
                   plan.units[u].tiles.begin(),
                   plan.units[u].tiles.end(),
                   [](const plan::TileSpec& a, const plan::TileSpec& b) {
                     return a.begin == b.begin && a.elements == b.elements && a.frozen == b.frozen;
                   });
  }
  if (same) {
    return {};
  }
  return operating_error(fmt::format("the store '{}' has other tiles than the plan", store_path))
      .with_why("it was made by another version of headrace")
      .with_hint("headrace export takes its weights out; train from them with model.path");
}

namespace {

const char* state_in_words(const plan::StateFormat& format) {
  return format.name == "q8"     ? "adamw q8: planes of m, v, corrections and scales, tile by tile"
         : format.name == "bf16" ? "adamw bf16: a plane of m, then a plane of v, tile by tile"
                                 : "adamw fp32: a plane of m, then a plane of v, tile by tile";
}

}  // namespace

std::string tensor_table_to_text(const TensorTable& table, const plan::StateFormat& format) {
  Json units = Json::array();
  for (const StoredUnit& unit : table.units) {
    Json tensors = Json::array();
    for (const StoredTensor& tensor : unit.tensors) {
      tensors.push_back(tensor_to_json(tensor));
    }
    Json tiles = Json::array();
    for (const plan::TileSpec& tile : unit.tiles) {
      tiles.push_back(tile_to_json(tile));
    }
    Json json = Json::object();
    json.add("name", unit.name);
    json.add("tensors", std::move(tensors));
    json.add("tiles", std::move(tiles));
    units.push_back(std::move(json));
  }
  Json json = Json::object();
  json.add("schema", kTableSchema);
  json.add("param", format.decoded ? "bf16, the upper part; fp32 where frozen" : "fp32");
  json.add("state", state_in_words(format));
  json.add("architecture", architecture_to_json(table.architecture));
  json.add("tile_elements", table.tile_elements);
  json.add("units", std::move(units));
  return json.dump();
}

Result<TensorTable> tensor_table_from_text(const std::string& text, const std::string& store_path) {
  Result<TensorTable> table = parse_table(text);
  if (!table) {
    return damaged(store_path, "tensor table", table.error());
  }
  return table;
}

}  // namespace headrace::train
