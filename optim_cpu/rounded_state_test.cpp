// State that is rounded ("bf16", "q8") over a thousand updates, beside AdamW in double.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "optim_cpu/convert.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/test_support.hpp"

namespace headrace::optim {
namespace {

// A tensor under test beside AdamW in double on the same gradients.
struct Trial {
  const Optimizer& format;
  std::int64_t elements;
  std::vector<std::byte> param, state;
  std::vector<double> p, m, v;

  Trial(const Optimizer& a_format, const std::vector<float>& weights)
      : format(a_format),
        elements(static_cast<std::int64_t>(weights.size())),
        param(weights.size() * static_cast<std::size_t>(format.param_element_bytes())),
        state(static_cast<std::size_t>(format.state_bytes(elements))),
        p(weights.begin(), weights.end()),
        m(weights.size()),
        v(weights.size()) {
    std::vector<float> values = weights;
    std::vector<float> zeros(weights.size());
    write_state(format, memory(), 0, {.param = values, .m = zeros, .v = zeros});
  }

  TileMemory memory() {
    return {.param = param.data(), .state = state.data(), .tile_elements = elements};
  }

  void update(const std::vector<float>& gradient, const UpdateScalars& s) {
    const TileSegment segment{.elements = elements, .gradient = gradient.data(), .scalars = s};
    std::vector<UpdateStats> stats(static_cast<std::size_t>(count_blocks(elements)));
    format.update_blocks({.param = param.data(),
                          .state = state.data(),
                          .tile_elements = elements,
                          .segments = {&segment, 1}},
                         {.begin = 0, .end = count_blocks(elements)},
                         stats);
    const auto t = static_cast<double>(s.update_count);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i];
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(s.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(s.beta2, t));
      p[i] -= s.lr * (m_hat / (std::sqrt(v_hat) + s.eps) + s.weight_decay * p[i]);
    }
  }

  struct Values {
    std::vector<float> param, m, v;
  };

  Values read() {
    Values values{.param = std::vector<float>(p.size()),
                  .m = std::vector<float>(p.size()),
                  .v = std::vector<float>(p.size())};
    read_state(format, memory(), 0, {.param = values.param, .m = values.m, .v = values.v});
    return values;
  }
};

std::vector<const Optimizer*> rounded_formats() {
  return {find_optimizer("adamw", "bf16", Dtype::kF32),
          find_optimizer("adamw", "bf16", Dtype::kBf16),
          find_optimizer("adamw", "q8", Dtype::kBf16)};
}

// Gradients stop: v must fall as 0.999^t, in whole groups and where the group's largest stays.
TEST(RoundedState, SecondMomentsDecayToTheirRightValue) {
  const FlushToZeroScope flush_to_zero;
  constexpr std::size_t kElements = 1024;
  for (const Optimizer* format : rounded_formats()) {
    for (const bool largest_stays : {false, true}) {
      Trial trial(*format, std::vector<float>(kElements, 1.0F));
      UpdateScalars scalars{.lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .seed = 5};
      std::vector<float> gradient(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        gradient[i] = i % 32 == 0 ? 1e-2F : 3e-3F;
      }
      for (scalars.update_count = 1; scalars.update_count <= 1500; ++scalars.update_count) {
        if (scalars.update_count == 501) {
          for (std::size_t i = 0; i < kElements; ++i) {
            gradient[i] = i % 32 == 0 && largest_stays ? gradient[i] : 0.0F;
          }
        }
        trial.update(gradient, scalars);
      }
      const auto values = trial.read();
      double ratio = 0;
      double count = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        if (i % 32 != 0 || !largest_stays) {
          ratio += static_cast<double>(values.v[i]) / trial.v[i];
          ++count;
        }
      }
      EXPECT_NEAR(ratio / count, 1.0, 0.05)
          << format->state << (largest_stays ? ", the largest stays" : ", all decay");
    }
  }
}

// Where the group's largest stays and the others get no gradient: a code that falls by much less
// than a step an update must follow as well. (Below two steps it cannot: one is the least.)
TEST(RoundedState, SmallSecondMomentsDecayBesideALargeOne) {
  const FlushToZeroScope flush_to_zero;
  constexpr std::size_t kElements = 4096;

  struct Case {
    double steps, beta2;
    int updates;
  };

  for (const Optimizer* format : rounded_formats()) {
    for (const Case one : {Case{4.0, 0.999, 400}, Case{30.0, 0.9999, 1000}}) {
      constexpr float kLargest = 1e-2F;
      Trial trial(*format, std::vector<float>(kElements, 1.0F));
      std::vector<float> gradient(kElements);
      std::vector<float> v(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        const bool largest = i % 32 == 0;
        const auto root = static_cast<float>(kLargest * (largest ? 1.0 : one.steps / 255));
        v[i] = root * root;
        gradient[i] = largest ? kLargest : 0.0F;
      }
      std::vector<float> weights(kElements, 1.0F);
      std::vector<float> zeros(kElements);
      write_state(*format, trial.memory(), 0, {.param = weights, .m = zeros, .v = v});
      UpdateScalars scalars{.lr = 1e-7, .beta1 = 0.9, .beta2 = one.beta2, .seed = 7};
      for (scalars.update_count = 1; scalars.update_count <= one.updates; ++scalars.update_count) {
        trial.update(gradient, scalars);
      }
      const auto values = trial.read();
      double sum = 0;
      double count = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        if (i % 32 != 0) {
          sum += std::sqrt(static_cast<double>(values.v[i]));
          ++count;
        }
      }
      const double steps = sum / count / kLargest * 255;
      const double exact = one.steps * std::pow(one.beta2, one.updates / 2.0);
      EXPECT_NEAR(steps / exact, 1.0, 0.02) << format->state << ", " << one.steps << " steps";
    }
  }
}

// 1,000 updates by noisy gradients of magnitudes that differ within a group: the weights go where
// those of double arithmetic go.
double relative_weight_error(const Optimizer& format, double spread, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  constexpr std::size_t kElements = 2048;
  std::vector<float> weights(kElements);
  std::vector<float> magnitude(kElements);
  std::vector<float> mean(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    weights[i] = 0.02F * normal(random);
    magnitude[i] = 1e-3F * std::exp(static_cast<float>(spread) * normal(random));
    mean[i] = 0.3F * normal(random);
  }
  Trial trial(format, weights);
  UpdateScalars scalars{.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .seed = seed};
  std::vector<float> gradient(kElements);
  for (scalars.update_count = 1; scalars.update_count <= 1000; ++scalars.update_count) {
    for (std::size_t i = 0; i < kElements; ++i) {
      gradient[i] = magnitude[i] * (mean[i] + normal(random));
    }
    trial.update(gradient, scalars);
  }
  const auto values = trial.read();
  double error = 0;
  double moved = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    error += std::pow(values.param[i] - trial.p[i], 2);
    moved += std::pow(trial.p[i] - weights[i], 2);
  }
  return std::sqrt(error / moved);
}

// The bound for a group whose gradients differ by powers of ten (spread 2: half of them by more
// than 15 times) is what one scale for 32 elements can do.
TEST(RoundedState, AThousandUpdatesLeadWhereDoubleArithmeticLeads) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  const std::array<std::pair<double, double>, 3> q8_bounds = {
      {{0.0, 0.01}, {1.0, 0.06}, {2.0, 0.6}}};
  for (const auto& [spread, q8_bound] : q8_bounds) {
    const double bf16 = relative_weight_error(*find_optimizer("adamw", "bf16"), spread, seed);
    const double q8 = relative_weight_error(*find_optimizer("adamw", "q8"), spread, seed);
    EXPECT_LT(bf16, 0.003) << "spread " << spread;
    EXPECT_LT(q8, q8_bound) << "spread " << spread;
  }
}

}  // namespace
}  // namespace headrace::optim
