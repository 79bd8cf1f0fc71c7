// The head against float64: any cut in pieces gives the same bits, ignored targets, the gradient
// rule.

#include <cmath>
#include <limits>

#include "kernels/conformance.hpp"
#include "kernels/conformance_reference.hpp"

namespace headrace::kernels::conformance {

HEADRACE_CONFORMANCE(Head);

namespace {

struct Setting {
  HeadShape shape;
  std::vector<std::int64_t> cuts = {};  // piece boundaries between 0 and vocab
  int threads = 1;
  float scale = 1.0F;
  GradientMode mode = GradientMode::kStore;
  std::vector<float> dweight_before = {};
  bool frozen = false;
};

struct Inputs {
  std::vector<float> h;
  std::vector<float> weight;
  std::vector<std::int32_t> targets;
};

struct Result {
  std::vector<float> lse;
  std::vector<float> token_loss;
  double loss_sum = 0.0;
  std::vector<float> dh;
  std::vector<float> dweight;
};

Inputs inputs_of(Random& random, const HeadShape& shape) {
  return {random.normal(shape.rows * shape.columns),
          random.normal(shape.vocab * shape.columns),
          random.integers(shape.rows, -1, static_cast<std::int32_t>(shape.vocab) - 1)};
}

std::vector<std::int64_t> bounds_of(const Setting& setting) {
  std::vector<std::int64_t> bounds = {0};
  bounds.insert(bounds.end(), setting.cuts.begin(), setting.cuts.end());
  bounds.push_back(setting.shape.vocab);
  return bounds;
}

std::vector<float> slice(const std::vector<float>& values, std::int64_t begin, std::int64_t end) {
  return {values.begin() + begin, values.begin() + end};
}

std::vector<float> run_score(Backend& backend, const Setting& setting, const Inputs& in) {
  const HeadShape& shape = setting.shape;
  const std::vector<std::int64_t> bounds = bounds_of(setting);
  std::vector<float> state(static_cast<std::size_t>(3 * shape.rows), NAN);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    Case test(backend);
    const auto h = test.input(in.h, 1);
    const auto weight =
        test.input(slice(in.weight, bounds[i] * shape.columns, bounds[i + 1] * shape.columns), 3);
    const auto targets = test.input(in.targets, 1);
    const auto state_array = test.output(state, 5);
    test.run(head_score_workspace_bytes(shape, setting.threads),
             setting.threads,
             [&](const Context& context) {
               head_score(context,
                          {.shape = shape,
                           .piece = {bounds[i], bounds[i + 1] - bounds[i], {weight.data()}},
                           .h = {h.data()},
                           .targets = targets.data(),
                           .state = state_array.data()});
             });
    state = state_array.get();
  }
  return state;
}

Result run(Backend& backend, const Setting& setting, const Inputs& in) {
  const HeadShape& shape = setting.shape;
  const std::vector<std::int64_t> bounds = bounds_of(setting);
  Result result;
  {
    Case test(backend);
    const auto targets = test.input(in.targets);
    const auto state = test.output(run_score(backend, setting, in));
    const auto token_loss = test.output<float>(shape.rows);
    const auto loss_sum = test.output<double>(1);
    test.run(0, setting.threads, [&](const Context& context) {
      head_loss(context,
                {.rows = shape.rows,
                 .targets = targets.data(),
                 .state = state.data(),
                 .token_loss = token_loss.data(),
                 .loss_sum = loss_sum.data()});
    });
    result.lse = slice(state.get(), 0, shape.rows);
    result.token_loss = token_loss.get();
    result.loss_sum = loss_sum.get()[0];
  }
  result.dh.assign(in.h.size(), NAN);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const std::int64_t begin = bounds[i] * shape.columns;
    const std::int64_t end = bounds[i + 1] * shape.columns;
    Case test(backend);
    const auto h = test.input(in.h, 2);
    const auto weight = test.input(slice(in.weight, begin, end), 3);
    const auto targets = test.input(in.targets, 1);
    const auto lse = test.input(result.lse, 7);
    const auto dh = test.output(result.dh, 9);
    const auto dweight = setting.frozen ? Array<float>()
                         : setting.mode == GradientMode::kStore
                             ? test.output<float>(end - begin, 11)
                             : test.output(slice(setting.dweight_before, begin, end), 11);
    test.run(head_gradient_workspace_bytes(shape, setting.threads),
             setting.threads,
             [&](const Context& context) {
               head_gradient(context,
                             {.shape = shape,
                              .piece = {bounds[i], bounds[i + 1] - bounds[i], {weight.data()}},
                              .h = {h.data()},
                              .targets = targets.data(),
                              .state = lse.data(),
                              .scale = setting.scale,
                              .dh = {dh.data()},
                              .dweight = setting.frozen ? nullptr : dweight.data(),
                              .mode = setting.mode});
             });
    result.dh = dh.get();
    if (!setting.frozen) {
      const std::vector<float> part = dweight.get();
      result.dweight.insert(result.dweight.end(), part.begin(), part.end());
    }
  }
  return result;
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  EXPECT_TRUE(same_bits(a.token_loss, b.token_loss));
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_TRUE(same_bits(a.dh, b.dh));
  EXPECT_TRUE(same_bits(a.dweight, b.dweight));
}

}  // namespace

TEST_P(Head, LossAndGradientsEqualTheReference) {
  Random random(50);
  const HeadShape shapes[] = {{1, 1, 1, 1},
                              {5, 3, 2, 64},
                              {7, 8, 50, 16},
                              {33, 16, 257, 64},
                              {64, 48, 256, 256},
                              {20, 17, 1000, 333}};
  for (const HeadShape& shape : shapes) {
    SCOPED_TRACE("vocab " + std::to_string(shape.vocab));
    const Inputs in = inputs_of(random, shape);
    ReferenceHeadResult expected = reference_head(
        {shape.rows, shape.columns, shape.vocab}, widen(in.h), widen(in.weight), in.targets);
    const float scale = 0.125F;
    for (double& value : expected.dh) {
      value *= scale;
    }
    for (double& value : expected.dweight) {
      value *= scale;
    }
    const Result got = run(backend(), {.shape = shape, .threads = 2, .scale = scale}, in);
    expect_close(got.lse, expected.lse, 1e-6, "lse");
    expect_close(got.token_loss, expected.token_loss, 2e-6, "token_loss", 1.0);
    EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-6 * (1.0 + expected.loss_sum));
    expect_close(got.dh, expected.dh, 4e-6, "dh", 0.1);
    expect_close(got.dweight, expected.dweight, 4e-6, "dweight", 0.1);
  }
}

TEST_P(Head, PiecesAndTeamsOfNormsDoNotShowInTheBits) {
  Random random(51);
  const HeadShape shape = {.rows = 19, .columns = 24, .vocab = 203, .rows_per_chunk = 32};
  const Inputs in = inputs_of(random, shape);
  const Result whole = run(backend(), {.shape = shape, .cuts = {}, .threads = 2}, in);
  expect_same(run(backend(), {.shape = shape, .cuts = {96}, .threads = 2}, in), whole);
  expect_same(
      run(backend(), {.shape = shape, .cuts = {32, 64, 96, 128, 160, 192}, .threads = 2}, in),
      whole);
}

TEST_P(Head, WeightGradientAddsBitForBit) {
  Random random(52);
  const HeadShape shape = {.rows = 19, .columns = 24, .vocab = 100, .rows_per_chunk = 48};
  const Inputs first_in = inputs_of(random, shape);
  const Inputs second_in = inputs_of(random, shape);
  const Result first = run(backend(), {.shape = shape}, first_in);
  const Result second = run(backend(), {.shape = shape}, second_in);
  const Result both = run(
      backend(),
      {.shape = shape, .cuts = {48}, .mode = GradientMode::kAdd, .dweight_before = first.dweight},
      second_in);
  EXPECT_TRUE(same_bits(both.dweight, sum_of(first.dweight, second.dweight)));
  EXPECT_TRUE(same_bits(both.dh, second.dh));
}

TEST_P(Head, AFrozenHeadStillPropagates) {
  Random random(53);
  const HeadShape shape = {.rows = 9, .columns = 8, .vocab = 40, .rows_per_chunk = 16};
  const Inputs in = inputs_of(random, shape);
  const Result all = run(backend(), {.shape = shape}, in);
  const Result frozen = run(backend(), {.shape = shape, .frozen = true}, in);
  EXPECT_TRUE(same_bits(frozen.dh, all.dh));
}

TEST_P(Head, IgnoredTokensContributeNothing) {
  Random random(54);
  const HeadShape shape = {.rows = 12, .columns = 8, .vocab = 40, .rows_per_chunk = 16};
  Inputs in = inputs_of(random, shape);
  std::fill(in.targets.begin(), in.targets.end(), kIgnoreTarget);
  const Result none = run(backend(), {.shape = shape}, in);
  EXPECT_EQ(none.loss_sum, 0.0);
  EXPECT_EQ(none.dh, std::vector<float>(in.h.size(), 0.0F));
  EXPECT_EQ(none.dweight, std::vector<float>(in.weight.size(), 0.0F));
}

TEST_P(Head, NanInALogitMakesTheLossNan) {
  Random random(55);
  const HeadShape shape = {.rows = 3, .columns = 4, .vocab = 70, .rows_per_chunk = 16};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Inputs in = inputs_of(random, shape);
    in.targets = {1, 2, 3};
    in.weight[240] = bad;
    const Result got = run(backend(), {.shape = shape}, in);
    EXPECT_FALSE(std::isfinite(got.loss_sum));
  }
}

TEST_P(Head, LogitsOfChosenRowsEqualTheReference) {
  Random random(56);
  const HeadShape shape = {.rows = 21, .columns = 13, .vocab = 90, .rows_per_chunk = 32};
  const Inputs in = inputs_of(random, shape);
  const std::vector<std::int32_t> selected = {20, 0, 7};
  const Doubles all =
      reference_head(
          {shape.rows, shape.columns, shape.vocab}, widen(in.h), widen(in.weight), in.targets)
          .logits;
  std::vector<float> logits(270, NAN);
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{64}}) {
    const std::int64_t end = begin == 0 ? 64 : 90;
    Case test(backend());
    test.spans_lie_inside_arrays();
    const auto h = test.input(in.h);
    const auto weight = test.input(slice(in.weight, begin * 13, end * 13), 1);
    const auto rows = test.input(selected);
    const auto out = test.output(logits, 1);
    test.run(head_logits_workspace_bytes(shape, 3, 2), 2, [&](const Context& context) {
      head_logits(context,
                  {.shape = shape,
                   .piece = {begin, end - begin, {weight.data()}},
                   .h = {h.data()},
                   .selected_count = 3,
                   .selected = rows.data(),
                   .logits = out.data()});
    });
    logits = out.get();
  }
  Doubles expected;
  for (const std::ptrdiff_t row : selected) {
    expected.insert(expected.end(), all.begin() + row * 90, all.begin() + (row + 1) * 90);
  }
  expect_close(logits, expected, 1e-6, "logits");
}

}  // namespace headrace::kernels::conformance
