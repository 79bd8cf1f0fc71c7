// The reader of RUN.toml and --set: walks the values, looks each key up in the schema, and collects
// every error (core/config.hpp).
#include "core/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/config_convert.hpp"
#include "core/config_schema.hpp"
#include "core/config_value.hpp"
#include "core/files.hpp"

namespace headrace {

namespace {

using config::Context;
using config::Key;
using config::Kind;
using config::Value;

constexpr std::uint64_t kFileBytesMax = std::uint64_t{4} << 20U;

std::string joined(std::string_view prefix, std::string_view key) {
  return prefix.empty() ? std::string(key) : fmt::format("{}.{}", prefix, key);
}

// Sections that the design names and this version does not have.
std::string_view hint_of_later_section(std::string_view name) {
  const std::string_view top = name.substr(0, name.find('.'));
  return top == "dist" ? "a run is one process with one device in this version" : "";
}

// Keys of which one takes the place of the others when --set names it.
constexpr std::string_view kAlternatives[][3] = {
    {"run.steps", "run.epochs", ""},
    {"model.preset", "model.path", "model.arch"},
};

class Loader {
 public:
  Loader() = default;

  void read_file_table(const ConfigValue::Table& table, std::string base_folder) {
    base_folder_ = std::move(base_folder);
    read_section(table, "");
  }

  void read_sets(const std::vector<std::string>& sets) {
    base_folder_ = working_directory();
    drop_alternatives(sets);
    for (const std::string& set : sets) {
      read_set(set);
    }
  }

  void add_error(Error error) { errors_.push_back(std::move(error)); }

  void require_model(const std::string& place) {
    const ModelSection& model = config_.model;
    const bool is_named = !model.preset.empty() || !model.path.empty() || !model.arch.empty();
    if (!is_named && !failed_sections_.contains("model")) {
      add_error(usage_error("no model is named")
                    .with_hint("give one of model.preset, model.path and model.arch")
                    .with_where(place));
    }
  }

  // The config, or all errors as one.
  Result<RunConfig> finish() {
    config::check_combinations(config_, failed_sections_, errors_);
    if (errors_.empty()) {
      return std::move(config_);
    }
    Error first = std::move(errors_.front());
    first.others.assign(std::make_move_iterator(errors_.begin() + 1),
                        std::make_move_iterator(errors_.end()));
    return first;
  }

  RunConfig& config() { return config_; }

 private:
  void read_section(const ConfigValue::Table& table, const std::string& section) {
    for (const ConfigEntry& entry : table) {
      const std::string name = joined(section, entry.key);
      const auto* nested = entry.value.get<ConfigValue::Table>();
      if (const Key<RunConfig>* key = config::find_key(config::run_keys(), name)) {
        read_key(*key, entry.value, context_of(name, entry.place));
      } else if (config::is_section(name) && nested != nullptr) {
        read_section(*nested, name);
      } else {
        add_error(unknown_key(name, entry));
      }
    }
  }

  // KEY=VALUE: the value is TOML, or bare text where it is not.
  void read_set(const std::string& set) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      add_error(usage_error(fmt::format("--set {}: KEY=VALUE is due", set))
                    .with_hint("as in --set optim.lr=1e-4"));
      return;
    }
    const std::string name = set.substr(0, equals);
    const std::string text = set.substr(equals + 1);
    const std::string place = fmt::format("--set {}", name);
    const Key<RunConfig>* key = config::find_key(config::run_keys(), name);
    ConfigEntry entry = {.key = name, .place = place, .value = {.value = text, .place = place}};
    if (key == nullptr) {
      add_error(unknown_key(name, entry));
      return;
    }
    const bool is_quoted = text.starts_with('"') || text.starts_with('\'');
    if (takes_toml(key->kind) || is_quoted) {
      // What is no TOML stays text: "auto", or a slip that the conversion names.
      if (auto value = parse_config_value(text, place)) {
        entry.value = *std::move(value);
      } else if (is_number_like(key->kind, text)) {
        add_error(usage_error(fmt::format("{} = {} is no number that can be held", name, text))
                      .with_why(std::move(value).error().why)
                      .with_hint(fmt::format("it must be {}", config::allowed_text(*key)))
                      .with_where(place));
        return;
      } else if (is_quoted || text.starts_with('[')) {
        add_error(std::move(value).error());
        return;
      }
    }
    read_key(*key, entry.value, context_of(name, place));
  }

  // "1e400", "18446744073709551616": numbers to a reader, not to TOML.
  static bool is_number_like(Kind kind, const std::string& text) {
    const bool numeric = kind == Kind::kInteger || kind == Kind::kNumber || kind == Kind::kBlocks;
    return numeric && !text.empty() &&
           text.find_first_not_of("+-0123456789.eE_") == std::string::npos;
  }

  // Bare text is a string where a string is due.
  static bool takes_toml(Kind kind) {
    switch (kind) {
      case Kind::kText:
      case Kind::kPath:
      case Kind::kTokenizer:
      case Kind::kSize:
      case Kind::kRate:
      case Kind::kEndurance:
      case Kind::kInterval:
      case Kind::kDuration:
        return false;
      default:
        return true;
    }
  }

  void drop_alternatives(const std::vector<std::string>& sets) {
    for (const auto& alternatives : kAlternatives) {
      const auto is_set = [&](std::string_view name) {
        return std::any_of(sets.begin(), sets.end(), [&](const std::string& set) {
          return !name.empty() && set.starts_with(fmt::format("{}=", name));
        });
      };
      if (std::none_of(std::begin(alternatives), std::end(alternatives), is_set)) {
        continue;
      }
      const RunConfig defaults;
      for (const std::string_view name : alternatives) {
        if (const auto* key = config::find_key(config::run_keys(), name)) {
          key->set(config_, key->get(defaults));
          config_.where.erase(std::string(name));
        }
      }
    }
  }

  void read_key(const Key<RunConfig>& key, const ConfigValue& value, const Context& context) {
    config_.where[context.name] = context.place;
    if (key.kind == Kind::kGroups) {
      read_elements(key, value, context, config::group_keys());
    } else if (key.kind == Kind::kFolders) {
      read_elements(key, value, context, config::folder_keys());
    } else {
      set_field(key, config_, value, context);
    }
  }

  template <class Owner>
  void set_field(const Key<Owner>& key,
                 Owner& owner,
                 const ConfigValue& value,
                 const Context& context) {
    auto converted = config::convert(key, context, value);
    if (converted) {
      key.set(owner, *converted);
    } else {
      // A section with a value that could not be read is not judged as a whole.
      failed_sections_.insert(context.name.substr(0, context.name.find('.')));
      add_error(std::move(converted).error());
    }
  }

  // optim.group and tiers.nvme: a list of tables; an element may be the text of its first key when
  // that is a path.
  template <class Owner>
  void read_elements(const Key<RunConfig>& list_key,
                     const ConfigValue& value,
                     const Context& context,
                     std::span<const Key<Owner>> keys) {
    const auto* array = value.get<ConfigValue::Array>();
    if (array == nullptr) {
      const auto* text = value.get<std::string>();
      const bool is_path = text != nullptr && list_key.kind == Kind::kFolders;
      add_error(config::wrong_type(
          context, "a list", value, is_path ? fmt::format("write [{}]", toml_quoted(*text)) : ""));
      return;
    }
    std::vector<Owner> owners;
    for (std::size_t i = 0; i < array->size(); ++i) {
      const Context element =
          context_of(fmt::format("{}[{}]", context.name, i),
                     (*array)[i].place.empty() ? context.place : (*array)[i].place);
      owners.push_back(read_element(list_key.kind, (*array)[i], element, keys));
    }
    list_key.set(config_, Value(std::move(owners)));
  }

  template <class Owner>
  Owner read_element(Kind kind,
                     const ConfigValue& value,
                     const Context& context,
                     std::span<const Key<Owner>> keys) {
    Owner owner = {};
    const Key<Owner>& needed = keys.front();
    const auto* table = value.get<ConfigValue::Table>();
    if (table == nullptr) {
      if (kind == Kind::kFolders && value.get<std::string>() != nullptr) {
        set_field(needed, owner, value, context);
      } else {
        add_error(config::wrong_type(
            context, kind == Kind::kFolders ? "text or a table" : "a table", value, ""));
      }
      return owner;
    }
    bool has_needed = false;
    for (const ConfigEntry& entry : *table) {
      const Context member = context_of(joined(context.name, entry.key), entry.place);
      if (const Key<Owner>* key = config::find_key(keys, entry.key)) {
        set_field(*key, owner, entry.value, member);
        has_needed = has_needed || key->name == needed.name;
      } else {
        add_error(unknown_member(keys, entry, member));
      }
    }
    if (!has_needed) {
      add_error(usage_error(fmt::format("{} has no {}", context.name, needed.name))
                    .with_hint(fmt::format("add {}: {}", needed.name, needed.doc))
                    .with_where(context.place));
    }
    return owner;
  }

  template <class Owner>
  static Error unknown_member(std::span<const Key<Owner>> keys,
                              const ConfigEntry& entry,
                              const Context& context) {
    std::string names;
    for (const Key<Owner>& key : keys) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", key.name);
    }
    return usage_error(fmt::format("unknown key '{}'", context.name))
        .with_hint(fmt::format("the keys here are {}; for '{}', {}",
                               names,
                               entry.key,
                               config::unknown_key_hint(entry.key)))
        .with_where(context.place);
  }

  static Error unknown_key(const std::string& name, const ConfigEntry& entry) {
    if (const std::string_view hint = hint_of_later_section(name); !hint.empty()) {
      return usage_error(fmt::format("'{}' is not in this version", name))
          .with_hint(std::string(hint))
          .with_where(entry.place);
    }
    if (config::is_section(name)) {
      return usage_error(fmt::format("'{}' is a section, not a key", name))
          .with_hint(config::section_hint(name))
          .with_where(entry.place);
    }
    return usage_error(fmt::format("unknown key '{}'", name))
        .with_hint(config::unknown_key_hint(name))
        .with_where(entry.place);
  }

  [[nodiscard]] Context context_of(std::string name, std::string place) const {
    return {.name = std::move(name), .place = std::move(place), .base_folder = base_folder_};
  }

  RunConfig config_;
  std::vector<Error> errors_;
  std::set<std::string, std::less<>> failed_sections_;
  std::string base_folder_;
};

// Defaults that depend on other keys.
void fill_defaults(RunConfig& config, const std::string& path) {
  const std::string folder = parent_path(absolute_path(working_directory(), path));
  if (config.run.name.empty()) {
    config.run.name = std::filesystem::path(path).stem().string();
  }
  if (config.run.dir.empty()) {
    config.run.dir = absolute_path(folder, "runs/" + config.run.name);
  }
  if (config.tiers.nvme.empty()) {
    config.tiers.nvme.emplace_back().path = absolute_path(config.run.dir, "store");
  }
  if (config.exports.dir.empty()) {
    config.exports.dir = absolute_path(config.run.dir, "exports");
  }
}

}  // namespace

Result<RunConfig> load_run_config(const std::string& path, const std::vector<std::string>& sets) {
  auto text = read_file(path, kFileBytesMax);
  if (!text) {
    Error error = std::move(text).error();
    error.code = ExitCode::kUsage;  // the command line names a file that cannot be read
    return error;
  }
  Loader loader;
  loader.config().file = absolute_path(working_directory(), path);
  auto table = parse_config_text(*text, path);
  if (!table) {
    return std::move(table).error();  // nothing after a syntax error can be trusted
  }
  loader.read_file_table(*table, parent_path(loader.config().file));
  loader.read_sets(sets);
  loader.require_model(path);
  HEADRACE_ASSIGN(RunConfig config, loader.finish());
  fill_defaults(config, path);
  return config;
}

Result<RunConfig> default_run_config(const std::vector<std::string>& sets) {
  Loader loader;
  loader.read_sets(sets);
  return loader.finish();
}

}  // namespace headrace
