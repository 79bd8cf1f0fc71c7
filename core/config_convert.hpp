// From a TOML value to the typed value of a key: type, unit, range and choices, with the place in
// every message. Used by config.cpp only.
#pragma once

#include <string>
#include <string_view>

#include "core/config_schema.hpp"
#include "core/config_value.hpp"
#include "core/error.hpp"

namespace headrace::config {

// Where a value is being read.
struct Context {
  std::string name;         // "optim.group[1].lr_scale"
  std::string place;        // "run.toml:31:1"
  std::string base_folder;  // of relative paths
};

// "optim.lr: a number is due, and "x" is text".
[[nodiscard]] Error wrong_type(const Context& context,
                               std::string_view due,
                               const ConfigValue& value,
                               std::string hint);

// For every kind but kGroups and kFolders.
[[nodiscard]] Result<Value> convert(const Traits& traits,
                                    const Context& context,
                                    const ConfigValue& value);

}  // namespace headrace::config
