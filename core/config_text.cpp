// From a RunConfig back to text: config.resolved.toml, the list of keys, differences of two
// configs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/config_schema.hpp"
#include "core/config_value.hpp"
#include "core/quantity.hpp"

namespace headrace {

namespace config {

namespace {

// A double that TOML reads as a float again, in the shortest form that is the same double.
std::string number_text(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) {
    text += ".0";
  }
  return text;
}

std::string text_list(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  quoted.reserve(texts.size());
  for (const std::string& text : texts) {
    quoted.push_back(toml_quoted(text));
  }
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

// { name = value, ... } of what an element of an array sets.
template <class Owner>
std::string inline_table(std::span<const Key<Owner>> keys, const Owner& owner) {
  const Owner defaults = {};
  std::vector<std::string> members;
  for (const Key<Owner>& key : keys) {
    const std::string text = value_text(key, key.get(owner));
    if (!text.empty() && text != value_text(key, key.get(defaults))) {
      members.push_back(fmt::format("{} = {}", key.name, text));
    }
  }
  return fmt::format("{{ {} }}", fmt::join(members, ", "));
}

template <class Owner>
std::string table_list(std::span<const Key<Owner>> keys, const std::vector<Owner>& owners) {
  std::vector<std::string> tables;
  tables.reserve(owners.size());
  for (const Owner& owner : owners) {
    tables.push_back(inline_table(keys, owner));
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

std::string integer_text(Kind kind, std::uint64_t value) {
  return kind == Kind::kSize     ? toml_quoted(exact_bytes(value))
         : kind == Kind::kBlocks ? fmt::format("{}", value / kBlockElements)
                                 : fmt::format("{}", value);
}

std::string double_text(Kind kind, double value) {
  return kind == Kind::kRate        ? toml_quoted(exact_rate(value))
         : kind == Kind::kEndurance ? toml_quoted(exact_endurance(value))
                                    : number_text(value);
}

struct TextOf {
  const Traits* traits;

  std::string operator()(std::monostate) const { return traits->may_be_auto ? "\"auto\"" : ""; }

  std::string operator()(bool value) const { return value ? "true" : "false"; }

  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }

  std::string operator()(std::uint64_t value) const { return integer_text(traits->kind, value); }

  std::string operator()(double value) const { return double_text(traits->kind, value); }

  // No text key takes an empty text: it stands for "not given".
  std::string operator()(const std::string& value) const {
    return value.empty() ? std::string() : toml_quoted(value);
  }

  std::string operator()(const std::vector<std::string>& value) const { return text_list(value); }

  std::string operator()(const std::array<double, 2>& value) const {
    return fmt::format("[{}, {}]", number_text(value[0]), number_text(value[1]));
  }

  std::string operator()(const std::vector<OptimGroup>& value) const {
    return table_list(group_keys(), value);
  }

  std::string operator()(const std::vector<NvmeFolder>& value) const {
    return table_list(folder_keys(), value);
  }
};

std::string bound_text(const Range& range) {
  std::string text;
  const auto append = [&](std::string_view sign, double bound) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", sign, bound);
  };
  constexpr double kNoLimit = 1e300;
  if (range.min > -kNoLimit) {
    append(range.min_open ? ">" : ">=", range.min);
  }
  if (range.max < kNoLimit) {
    append(range.max_open ? "<" : "<=", range.max);
  }
  return text;
}

// A bar would end the cell.
std::string table_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '\\');
  }
  return text;
}

template <class Owner>
void append_keys(std::vector<ConfigKey>& list,
                 std::string_view prefix,
                 std::span<const Key<Owner>> keys) {
  const Owner defaults = {};
  for (const Key<Owner>& key : keys) {
    const std::string text = value_text(key, key.get(defaults));
    list.push_back(
        {.key = fmt::format("{}{}", prefix, key.name),
         .type = std::string(kind_name(key.kind)),
         .default_text = key.default_words.empty() ? text : std::string(key.default_words),
         .allowed = allowed_text(key),
         .doc = std::string(key.doc),
         .makes_numbers = key.makes_numbers});
    if (key.kind == Kind::kGroups) {
      append_keys(list, "optim.group[].", group_keys());
    } else if (key.kind == Kind::kFolders) {
      append_keys(list, "tiers.nvme[].", folder_keys());
    }
  }
}

}  // namespace

std::string value_text(const Traits& traits, const Value& value) {
  return std::visit(TextOf{.traits = &traits}, value);
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kText:
    case Kind::kDevice:
      return "text";
    case Kind::kPath:
      return "path";
    case Kind::kTokenizer:
      return "\"bytes\" or path";
    case Kind::kInteger:
      return "integer";
    case Kind::kNumber:
      return "number";
    case Kind::kBool:
      return "true or false";
    case Kind::kTexts:
      return "list of texts";
    case Kind::kPaths:
      return "list of paths";
    case Kind::kPair:
      return "two numbers";
    case Kind::kSize:
      return "size";
    case Kind::kRate:
      return "rate";
    case Kind::kEndurance:
      return "endurance";
    case Kind::kInterval:
      return "interval";
    case Kind::kDuration:
      return "duration";
    case Kind::kBlocks:
      return "integer";
    case Kind::kGroups:
      return "tables";
    case Kind::kFolders:
      return "list of paths or tables";
  }
  return "";
}

std::string allowed_text(const Traits& traits) {
  if (traits.kind == Kind::kInterval) {
    return "\"every-step\", \"100 steps\", \"10min\", \"none\"";
  }
  if (traits.kind == Kind::kDuration) {
    return "\"10min\", \"none\"";
  }
  if (traits.kind == Kind::kDevice) {
    return "\"cpu\" | \"cuda:0\" ... \"cuda:99\" | \"auto\"";
  }
  if (traits.choices.empty()) {
    return bound_text(traits.range);
  }
  std::string text;
  std::string_view rest = traits.choices;
  const bool quoted = traits.kind != Kind::kBool;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('|'), rest.size());
    const std::string_view choice = rest.substr(0, end);
    text += text.empty() ? "" : " | ";
    text += quoted ? toml_quoted(choice) : std::string(choice);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return traits.may_be_auto ? text + " | \"auto\"" : text;
}

}  // namespace config

std::string to_toml(const RunConfig& config, const std::vector<std::string>& comments) {
  std::string text;
  for (const std::string& comment : comments) {
    text += fmt::format("# {}\n", comment);
  }
  std::string_view section;
  for (const config::Key<RunConfig>& key : config::run_keys()) {
    const std::string value = value_text(key, key.get(config));
    if (value.empty() || value == "[]") {
      continue;
    }
    const std::size_t dot = key.name.rfind('.');
    const std::string_view own = key.name.substr(0, dot);
    if (own != section) {
      section = own;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), value);
  }
  return text;
}

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> list;
    config::append_keys(list, "", config::run_keys());
    return list;
  }();
  return keys;
}

std::string config_markdown() {
  std::string text =
      "# RUN.toml: every key\n\n"
      "Made from the table in `core/config_schema.cpp`; `--set KEY=VALUE` overrides any of them.\n"
      "Sizes (`\"24GiB\"`, `\"24GB\"`), rates (`\"1.5GB/s\"`) and endurance (`\"1200TBW\"`) are "
      "text "
      "with a unit.\n"
      "Paths are relative to the file, in `--set` to the working directory.\n"
      "A key marked * makes the numbers of a run: on resume it must be as it was.\n";
  std::string section;
  for (const ConfigKey& key : config_keys()) {
    const std::size_t dot = key.key.rfind('.');
    if (key.key.substr(0, dot) != section) {
      section = key.key.substr(0, dot);
      text += fmt::format(
          "\n## {}\n\n| key | type | default | allowed | |\n|---|---|---|---|---|\n", section);
    }
    text += fmt::format("| `{}`{} | {} | {} | {} | {} |\n",
                        key.key.substr(dot + 1),
                        key.makes_numbers ? " *" : "",
                        key.type,
                        key.default_text,
                        config::table_cell(key.allowed),
                        key.doc);
  }
  return text;
}

std::vector<ConfigDifference> config_differences(const RunConfig& before, const RunConfig& after) {
  std::vector<ConfigDifference> differences;
  for (const config::Key<RunConfig>& key : config::run_keys()) {
    std::string old_text = value_text(key, key.get(before));
    std::string new_text = value_text(key, key.get(after));
    if (old_text != new_text) {
      differences.push_back({.key = std::string(key.name),
                             .before = std::move(old_text),
                             .after = std::move(new_text),
                             .makes_numbers = key.makes_numbers});
    }
  }
  return differences;
}

std::string config_place(const RunConfig& config, std::string_view key) {
  const auto found = config.where.find(std::string(key));
  return found != config.where.end() ? found->second : std::string();
}

}  // namespace headrace
