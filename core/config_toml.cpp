// The only file that includes toml++: parses, and copies into values of ours with their places.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <string>

#include "core/config_value.hpp"

namespace headrace {

namespace {

std::string place_text(const std::string& file, const toml::source_position& position) {
  return fmt::format("{}:{}:{}", file, position.line, position.column);
}

// Makes the place of a node from toml++'s, or gives one place to all (--set).
struct Places {
  std::string file;
  std::string fixed;

  [[nodiscard]] std::string of(const toml::source_region& region) const {
    return fixed.empty() ? place_text(file, region.begin) : fixed;
  }
};

ConfigValue convert(const toml::node& node, const Places& places);

ConfigValue::Table convert_table(const toml::table& table, const Places& places) {
  struct Placed {
    toml::source_position position;
    ConfigEntry entry;
  };

  std::vector<Placed> placed;
  for (auto&& [key, node] : table) {
    placed.push_back({.position = key.source().begin,
                      .entry = {.key = std::string(key.str()),
                                .place = places.of(key.source()),
                                .value = convert(node, places)}});
  }
  // toml++ sorts by key; errors read better in the order of the file.
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.position.line, a.position.column) <
           std::pair(b.position.line, b.position.column);
  });
  ConfigValue::Table entries;
  for (Placed& item : placed) {
    entries.push_back(std::move(item.entry));
  }
  return entries;
}

ConfigValue convert(const toml::node& node, const Places& places) {
  ConfigValue result = {.value = ConfigDate{}, .place = places.of(node.source())};
  if (const auto* boolean = node.as_boolean()) {
    result.value = boolean->get();
  } else if (const auto* integer = node.as_integer()) {
    result.value = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    result.value = number->get();
  } else if (const auto* text = node.as_string()) {
    result.value = text->get();
  } else if (const auto* array = node.as_array()) {
    ConfigValue::Array elements;
    for (const toml::node& element : *array) {
      elements.push_back(convert(element, places));
    }
    result.value = std::move(elements);
  } else if (const auto* table = node.as_table()) {
    result.value = convert_table(*table, places);
  }
  return result;
}

// toml++ walks tables within tables by recursion, and bounds the depth of brackets only.
constexpr int kDotsMax = 64;

// "a.b.c" of a key: dots between the marks that end one. Text is counted like keys, which is more
// than any needs; "..." and "../.." count once.
Status check_depth(std::string_view text, const std::string& what, const Places& places) {
  toml::source_position position = {.line = 1, .column = 0};
  int dots = 0;
  char before = '\n';
  for (const char c : text) {
    position.column += 1;
    if (c == '\n') {
      position.line += 1;
      position.column = 0;
    }
    if (c == '\n' || std::string_view("=,{}[]").find(c) != std::string_view::npos) {
      dots = 0;
    } else if (c == '.' && before != '.') {
      dots += 1;
    }
    if (dots > kDotsMax) {
      return usage_error(fmt::format("{}: more than {} dots in one name or text", what, kDotsMax))
          .with_why("a name of so many parts is no key of a run, and could not be read safely")
          .with_where(places.fixed.empty() ? place_text(places.file, position) : places.fixed);
    }
    if (c != ' ' && c != '\t') {
      before = c;
    }
  }
  return {};
}

}  // namespace

std::string_view ConfigValue::noun() const {
  struct Nouns {
    std::string_view operator()(bool) const { return "true or false"; }

    std::string_view operator()(std::int64_t) const { return "an integer"; }

    std::string_view operator()(double) const { return "a number with a fraction"; }

    std::string_view operator()(const std::string&) const { return "text"; }

    std::string_view operator()(const Array&) const { return "an array"; }

    std::string_view operator()(const Table&) const { return "a table"; }

    std::string_view operator()(const ConfigDate&) const { return "a date or time"; }
  };

  return std::visit(Nouns(), value);
}

Result<ConfigValue::Table> parse_config_text(std::string_view text, const std::string& file) {
  HEADRACE_TRY(
      check_depth(text, fmt::format("'{}' is not read", file), {.file = file, .fixed = {}}));
  try {
    return convert_table(toml::parse(text), {.file = file, .fixed = {}});
  } catch (const toml::parse_error& error) {
    return usage_error(fmt::format("'{}' is not valid TOML", file))
        .with_why(std::string(error.description()))
        .with_where(place_text(file, error.source().begin));
  } catch (const std::exception& error) {
    return operating_error(fmt::format("cannot parse '{}'", file)).with_why(error.what());
  }
}

Result<ConfigValue> parse_config_value(std::string_view text, const std::string& place) {
  HEADRACE_TRY(check_depth(text, "the value is not read", {.file = {}, .fixed = place}));
  try {
    const toml::table table = toml::parse(fmt::format("value = {}", text));
    // "1\nother = 2" would smuggle a second key in.
    if (table.size() != 1 || table.get("value") == nullptr) {
      return usage_error(fmt::format("'{}' is more than one value", text)).with_where(place);
    }
    return convert(*table.get("value"), {.file = {}, .fixed = place});
  } catch (const toml::parse_error& error) {
    return usage_error(fmt::format("'{}' is not a TOML value", text))
        .with_why(std::string(error.description()))
        .with_where(place);
  } catch (const std::exception& error) {
    return operating_error(fmt::format("cannot parse '{}'", text)).with_why(error.what());
  }
}

std::string toml_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    constexpr unsigned char kFirstPrintable = 0x20;
    constexpr unsigned char kDelete = 0x7f;
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < kFirstPrintable || byte == kDelete) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += c;
    }
  }
  quoted += '"';
  return quoted;
}

}  // namespace headrace
