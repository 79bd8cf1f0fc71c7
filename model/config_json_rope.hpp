// rope_parameters, and rope_scaling as it was called before, of a config.json. Internal to
// config_json.
//
// Invariant: every key is used, says what is computed anyway, or is a problem. Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "model/architecture.hpp"

namespace headrace::model {

struct RopeProblem {
  std::string what;
  std::string why;
};

struct RopeFields {
  RopeScaling scaling;
  std::optional<double> theta;
  // For the caller, who knows max_position_embeddings.
  bool original_is_missing = false;
  bool factor_is_null = false;  // yarn: max_position_embeddings / original_...
  std::vector<RopeProblem> problems;
};

// `value` is the field's object. `theta_only`: the rest was told to be ignored.
[[nodiscard]] RopeFields read_rope_fields(std::string_view field,
                                          const Json& value,
                                          bool theta_only);

// {"rope_type": ..., ...} without rope_theta.
[[nodiscard]] Json rope_scaling_to_json(const RopeScaling& scaling);

}  // namespace headrace::model
