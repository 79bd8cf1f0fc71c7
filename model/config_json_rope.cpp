// Keys of rotary positions in and out (config_json_rope.hpp).
#include "model/config_json_rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace headrace::model {

namespace {

constexpr std::array kTypeNames{
    std::pair<std::string_view, RopeType>{"default", RopeType::kDefault},
    std::pair<std::string_view, RopeType>{"linear", RopeType::kLinear},
    std::pair<std::string_view, RopeType>{"dynamic", RopeType::kDynamic},
    std::pair<std::string_view, RopeType>{"yarn", RopeType::kYarn},
    std::pair<std::string_view, RopeType>{"llama3", RopeType::kLlama3},
};

constexpr std::string_view kOriginal = "original_max_position_embeddings";

// Where a key that is a number goes, and who has it.
struct NumberKey {
  std::string_view key;
  RopeType type;
  double RopeScaling::*number = nullptr;
  std::optional<double> RopeScaling::*optional = nullptr;
  bool needed = false;
};

constexpr std::array kNumberKeys{
    NumberKey{"low_freq_factor", RopeType::kLlama3, &RopeScaling::low_freq_factor, nullptr, true},
    NumberKey{"high_freq_factor", RopeType::kLlama3, &RopeScaling::high_freq_factor, nullptr, true},
    NumberKey{"beta_fast", RopeType::kYarn, &RopeScaling::beta_fast},
    NumberKey{"beta_slow", RopeType::kYarn, &RopeScaling::beta_slow},
    NumberKey{"attention_factor", RopeType::kYarn, nullptr, &RopeScaling::attention_factor},
    NumberKey{"mscale", RopeType::kYarn, nullptr, &RopeScaling::mscale},
    NumberKey{"mscale_all_dim", RopeType::kYarn, nullptr, &RopeScaling::mscale_all_dim},
};

class RopeReader {
 public:
  RopeReader(std::string_view field, const Json& value) : field_(field), value_(value) {}

  RopeFields read(bool theta_only) {
    read_theta();
    if (!theta_only && read_type()) {
      for (const auto& [key, entry] : *value_.as_object()) {
        read_key(key, entry);
      }
      find_missing();
    }
    return std::move(result_);
  }

 private:
  void complain(std::string_view key, const Json& entry, const char* text, const char* why = "") {
    result_.problems.push_back(
        {.what = fmt::format("field '{}.{}' = {} {}", field_, key, entry.dump(), text),
         .why = why});
  }

  void read_theta() {
    const Json* theta = value_.find("rope_theta");
    if (theta == nullptr || theta->is_null()) {
      return;
    }
    result_.theta = theta->as_double();
    if (!result_.theta) {
      complain("rope_theta", *theta, "is not a number");
    }
  }

  // "rope_type", or "type" in older files.
  bool read_type() {
    const Json* type = value_.find("rope_type");
    const char* key = type != nullptr ? "rope_type" : "type";
    type = type != nullptr ? type : value_.find("type");
    if (type == nullptr || type->is_null()) {
      return true;
    }
    for (const auto& [name, known] : kTypeNames) {
      if (type->as_string() != nullptr && *type->as_string() == name) {
        result_.scaling.type = known;
        return true;
      }
    }
    complain(key,
             *type,
             "changes the numbers",
             "this version scales positions by linear, dynamic, yarn and llama3 only");
    return false;
  }

  [[nodiscard]] bool has_original() const {
    return result_.scaling.type == RopeType::kLlama3 || result_.scaling.type == RopeType::kYarn;
  }

  void read_key(const std::string& key, const Json& entry) {
    RopeScaling& scaling = result_.scaling;
    if (key == "rope_type" || key == "type" || key == "rope_theta") {
      return;
    }
    if (key == "partial_rotary_factor") {
      if (!entry.is_null() && entry.as_double() != 1.0) {
        complain(key, entry, "changes the numbers", "this version turns whole heads");
      }
    } else if (key == "factor" && scaling.type != RopeType::kDefault) {
      result_.factor_is_null = entry.is_null() && scaling.type == RopeType::kYarn;
      if (!result_.factor_is_null) {
        take(key, entry, entry.as_double(), scaling.factor);
      }
    } else if (key == kOriginal && has_original()) {
      take(key, entry, entry.as_int(), scaling.original_max_position_embeddings);
    } else if (key == kOriginal && scaling.type != RopeType::kDefault) {
      return;  // linear and dynamic scaling do not look at it
    } else if (key == "truncate" && scaling.type == RopeType::kYarn) {
      take(key, entry, entry.as_bool(), scaling.truncate);
    } else if (!read_number(key, entry)) {
      complain(key, entry, "is unknown", "it could change the numbers");
    }
  }

  bool read_number(const std::string& key, const Json& entry) {
    const auto* known =
        std::find_if(kNumberKeys.begin(), kNumberKeys.end(), [&](const NumberKey& number) {
          return number.key == key && number.type == result_.scaling.type;
        });
    if (known == kNumberKeys.end()) {
      return false;
    }
    if (entry.is_null() && !known->needed) {
      return true;  // the usual value
    }
    double value = 0.0;
    take(key, entry, entry.as_double(), value);
    if (known->number != nullptr) {
      result_.scaling.*known->number = value;
    } else {
      result_.scaling.*known->optional = value;
    }
    return true;
  }

  template <class T>
  void take(std::string_view key, const Json& entry, const std::optional<T>& found, T& target) {
    if (found) {
      target = *found;
    } else {
      complain(key, entry, "has the wrong type");
    }
  }

  void find_missing() {
    const auto miss = [&](std::string_view key) {
      result_.problems.push_back({.what = fmt::format("field '{}.{}' is missing", field_, key),
                                  .why = "this rope_type needs it"});
    };
    if (result_.scaling.type != RopeType::kDefault && value_.find("factor") == nullptr) {
      miss("factor");
    }
    for (const NumberKey& number : kNumberKeys) {
      if (number.needed && number.type == result_.scaling.type &&
          value_.find(number.key) == nullptr) {
        miss(number.key);
      }
    }
    result_.original_is_missing = has_original() && value_.find(kOriginal) == nullptr;
  }

  std::string_view field_;
  const Json& value_;
  RopeFields result_;
};

}  // namespace

RopeFields read_rope_fields(std::string_view field, const Json& value, bool theta_only) {
  return RopeReader(field, value).read(theta_only);
}

Json rope_scaling_to_json(const RopeScaling& scaling) {
  Json json = Json::object();
  for (const auto& [name, type] : kTypeNames) {
    if (type == scaling.type) {
      json.set("rope_type", name);
    }
  }
  if (scaling.type == RopeType::kDefault) {
    return json;
  }
  json.set("factor", scaling.factor);
  if (scaling.type == RopeType::kLlama3 || scaling.type == RopeType::kYarn) {
    json.set(kOriginal, scaling.original_max_position_embeddings);
  }
  for (const NumberKey& known : kNumberKeys) {
    if (known.type == scaling.type && known.number != nullptr) {
      json.set(known.key, scaling.*known.number);
    } else if (known.type == scaling.type && scaling.*known.optional) {
      json.set(known.key, *(scaling.*known.optional));
    }
  }
  if (!scaling.truncate) {
    json.set("truncate", false);
  }
  return json;
}

}  // namespace headrace::model
