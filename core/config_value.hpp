// A TOML value without toml++: what config_toml.cpp hands to the rest of the config reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"

namespace headrace {

struct ConfigEntry;

struct ConfigDate {};  // a date or time: no key takes one

struct ConfigValue {
  using Array = std::vector<ConfigValue>;
  using Table = std::vector<ConfigEntry>;

  std::variant<bool, std::int64_t, double, std::string, Array, Table, ConfigDate> value;
  std::string place;  // "run.toml:31:7"

  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&value);
  }

  // "an integer", "text", ...
  [[nodiscard]] std::string_view noun() const;
};

struct ConfigEntry {
  std::string key;
  std::string place;  // of the key
  ConfigValue value;
};

// A whole file; entries in the order of the file. A syntax error is one usage error with its place.
[[nodiscard]] Result<ConfigValue::Table> parse_config_text(std::string_view text,
                                                           const std::string& file);

// The right side of one --set as a TOML value; place stands for every part of it.
[[nodiscard]] Result<ConfigValue> parse_config_value(std::string_view text,
                                                     const std::string& place);

// A TOML basic string, quotes included.
[[nodiscard]] std::string toml_quoted(std::string_view text);

}  // namespace headrace
