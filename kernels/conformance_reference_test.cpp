// The references' analytic gradients against central differences of their forward functions.

#include "kernels/conformance_reference.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/conformance.hpp"

namespace headrace::kernels::conformance {

namespace {

constexpr double kStep = 1e-5;

// d(sum of weights * f(x)) / dx[i] by central differences equals gradient[i], for every i.
void expect_gradient(Doubles x,
                     const Doubles& gradient,
                     const std::function<double(const Doubles&)>& function,
                     const char* what) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double middle = x[i];
    x[i] = middle + kStep;
    const double above = function(x);
    x[i] = middle - kStep;
    const double below = function(x);
    x[i] = middle;
    EXPECT_NEAR((above - below) / (2.0 * kStep), gradient[i], 1e-7) << what << "[" << i << "]";
  }
}

double weighted_sum(const Doubles& weights, const Doubles& values) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += weights[i] * values[i];
  }
  return sum;
}

}  // namespace

TEST(Reference, SlopesOfActivationsAreDerivatives) {
  for (const double x : {-6.0, -2.3, -0.5, 0.0, 0.7, 3.1, 8.0}) {
    const auto difference = [&](double (*f)(double)) {
      return (f(x + kStep) - f(x - kStep)) / (2.0 * kStep);
    };
    EXPECT_NEAR(difference(reference_gelu), reference_gelu_slope(x), 1e-9);
    EXPECT_NEAR(difference(reference_silu), reference_silu_slope(x), 1e-9);
  }
}

TEST(Reference, NormGradientsAreDerivatives) {
  Random random(1);
  for (const bool layer : {false, true}) {
    const ReferenceNorm shape = {.rows = 3, .columns = 7, .eps = 1e-2, .layer = layer};
    const Doubles x = widen(random.normal(21));
    const Doubles gain = widen(random.normal(7));
    const Doubles bias = widen(random.normal(7));
    const Doubles dy = widen(random.normal(21));
    const ReferenceNormGradient gradient = reference_norm_backward(shape, dy, x, gain);
    const auto loss = [&](const Doubles& at_x, const Doubles& at_gain, const Doubles& at_bias) {
      return weighted_sum(dy, reference_norm(shape, at_x, at_gain, at_bias).y);
    };
    expect_gradient(
        x, gradient.dx, [&](const Doubles& a) { return loss(a, gain, bias); }, "dx");
    expect_gradient(
        gain, gradient.dgain, [&](const Doubles& a) { return loss(x, a, bias); }, "dgain");
    if (layer) {
      expect_gradient(
          bias, gradient.dbias, [&](const Doubles& a) { return loss(x, gain, a); }, "dbias");
    }
  }
}

void expect_attention_gradients(const ReferenceAttention& shape) {
  Random random(2);
  const Doubles q = widen(random.normal(120));
  const Doubles k = widen(random.normal(60));
  const Doubles v = widen(random.normal(60));
  const Doubles dout = widen(random.normal(120));
  const ReferenceAttentionGradient gradient = reference_attention_backward(shape, q, k, v, dout);
  const auto loss = [&](const Doubles& at_q, const Doubles& at_k, const Doubles& at_v) {
    return weighted_sum(dout, reference_attention(shape, at_q, at_k, at_v).out);
  };
  expect_gradient(
      q, gradient.dq, [&](const Doubles& a) { return loss(a, k, v); }, "dq");
  expect_gradient(
      k, gradient.dk, [&](const Doubles& a) { return loss(q, a, v); }, "dk");
  expect_gradient(
      v, gradient.dv, [&](const Doubles& a) { return loss(q, k, a); }, "dv");
}

TEST(Reference, AttentionGradientsAreDerivatives) {
  for (const std::int64_t window : {0, 2}) {
    expect_attention_gradients({.batch = 2,
                                .sequence = 5,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 3,
                                .scale = 0.7,
                                .window = window});
  }
}

TEST(Reference, HeadGradientsAreDerivatives) {
  Random random(3);
  const ReferenceHead shape = {.rows = 4, .columns = 3, .vocab = 6};
  const Doubles h = widen(random.normal(12));
  const Doubles weight = widen(random.normal(18));
  const std::vector<std::int32_t> targets = {2, -1, 5, 0};
  const ReferenceHeadResult result = reference_head(shape, h, weight, targets);
  const auto loss = [&](const Doubles& at_h, const Doubles& at_weight) {
    return reference_head(shape, at_h, at_weight, targets).loss_sum;
  };
  expect_gradient(
      h, result.dh, [&](const Doubles& a) { return loss(a, weight); }, "dh");
  expect_gradient(
      weight, result.dweight, [&](const Doubles& a) { return loss(h, a); }, "dW");
}

}  // namespace headrace::kernels::conformance
