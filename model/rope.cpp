// The scalings, one function each (rope.hpp).
#include "model/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace headrace::model {

namespace {

constexpr double kNumberMax = 1e18;

std::vector<double> unscaled(std::int64_t head_dim, double theta) {
  std::vector<double> radians;
  for (std::int64_t j = 0; j < head_dim / 2; ++j) {
    radians.push_back(
        std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim)));
  }
  return radians;
}

// theta grows with the sequence, so that the slowest pair turns as if positions were divided.
double dynamic_theta(const RopeShape& shape, double factor, std::int64_t seq_len) {
  const auto most = static_cast<double>(shape.max_seq_len);
  const double length = std::max(static_cast<double>(seq_len), most);
  const auto dim = static_cast<double>(shape.head_dim);
  return shape.theta * std::pow(factor * length / most - (factor - 1.0), dim / (dim - 2.0));
}

// Pairs that turn slowly are slowed by the factor, quick ones are not, between them goes smoothly.
void scale_llama3(const RopeScaling& scaling, std::vector<double>& radians) {
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  for (double& value : radians) {
    const double turns = length * value / (2.0 * std::numbers::pi);  // within the old length
    if (turns < scaling.low_freq_factor) {
      value /= scaling.factor;
    } else if (turns <= scaling.high_freq_factor) {
      const double smooth =
          (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      value = (1.0 - smooth) * value / scaling.factor + smooth * value;
    }
  }
}

// The pair that makes so many turns within the old length, as a fraction.
double yarn_pair(const RopeShape& shape, const RopeScaling& scaling, double turns) {
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  return static_cast<double>(shape.head_dim) * std::log(length / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(shape.theta));
}

void scale_yarn(const RopeShape& shape, const RopeScaling& scaling, std::vector<double>& radians) {
  double low = yarn_pair(shape, scaling, scaling.beta_fast);
  double high = yarn_pair(shape, scaling, scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(shape.head_dim - 1));
  if (low == high) {
    high += 0.001;
  }
  for (std::size_t j = 0; j < radians.size(); ++j) {
    const double slowed = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    radians[j] = radians[j] / scaling.factor * slowed + radians[j] * (1.0 - slowed);
  }
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_amplitude(const RopeScaling& scaling) {
  if (scaling.attention_factor) {
    return *scaling.attention_factor;
  }
  const double mscale = scaling.mscale.value_or(0.0);
  const double all_dim = scaling.mscale_all_dim.value_or(0.0);
  if (mscale != 0.0 && all_dim != 0.0) {
    return yarn_mscale(scaling.factor, mscale) / yarn_mscale(scaling.factor, all_dim);
  }
  return yarn_mscale(scaling.factor, 1.0);
}

}  // namespace

std::vector<std::string> check_rope(const RopeShape& shape, const RopeScaling& scaling) {
  std::vector<std::string> problems;
  const auto positive = [&](const char* name, double value) {
    if (!(value > 0.0 && value < kNumberMax)) {
      problems.push_back(fmt::format("{} = {} must be positive", name, value));
    }
  };
  const auto finite = [&](const char* name, const std::optional<double>& value) {
    if (value && !(std::abs(*value) < kNumberMax)) {
      problems.push_back(fmt::format("{} = {} is no number to multiply with", name, *value));
    }
  };
  positive("factor", scaling.factor);
  if (scaling.type == RopeType::kDynamic && (shape.head_dim < 4 || scaling.factor < 1.0)) {
    problems.emplace_back(
        "rope_type \"dynamic\" takes a head_dim of 4 or more and a factor of 1 or more");
  }
  if (scaling.type == RopeType::kLlama3 || scaling.type == RopeType::kYarn) {
    positive("original_max_position_embeddings",
             static_cast<double>(scaling.original_max_position_embeddings));
  }
  if (scaling.type == RopeType::kLlama3) {
    positive("low_freq_factor", scaling.low_freq_factor);
    positive("high_freq_factor", scaling.high_freq_factor);
    if (scaling.low_freq_factor >= scaling.high_freq_factor) {
      problems.push_back(fmt::format("low_freq_factor = {} is not below high_freq_factor = {}",
                                     scaling.low_freq_factor,
                                     scaling.high_freq_factor));
    }
  }
  if (scaling.type == RopeType::kYarn) {
    positive("beta_fast", scaling.beta_fast);
    positive("beta_slow", scaling.beta_slow);
    finite("attention_factor", scaling.attention_factor);
    finite("mscale", scaling.mscale);
    finite("mscale_all_dim", scaling.mscale_all_dim);
    if (shape.theta <= 1.0) {
      problems.push_back(
          fmt::format("rope_type \"yarn\" takes a rope_theta above 1, not {}", shape.theta));
    }
  }
  return problems;
}

RopeFrequencies rope_frequencies(const RopeShape& shape,
                                 const RopeScaling& scaling,
                                 std::int64_t seq_len) {
  RopeFrequencies result;
  result.radians =
      unscaled(shape.head_dim,
               scaling.type == RopeType::kDynamic ? dynamic_theta(shape, scaling.factor, seq_len)
                                                  : shape.theta);
  switch (scaling.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (double& value : result.radians) {
        value /= scaling.factor;
      }
      break;
    case RopeType::kYarn:
      scale_yarn(shape, scaling, result.radians);
      result.amplitude = yarn_amplitude(scaling);
      break;
    case RopeType::kLlama3:
      scale_llama3(scaling, result.radians);
      break;
  }
  return result;
}

}  // namespace headrace::model
