// LayerNorm and RMSNorm against float64, and their gradient sums for any team.

#include "kernels/conformance.hpp"
#include "kernels/conformance_reference.hpp"

namespace headrace::kernels::conformance {

HEADRACE_CONFORMANCE(Norm);

namespace {

struct Sizes {
  std::int64_t rows;
  std::int64_t columns;
};

constexpr Sizes kSizes[] = {
    {0, 4}, {1, 1}, {3, 2}, {5, 17}, {33, 48}, {64, 64}, {70, 130}, {97, 257}, {2, 1031}};
constexpr double kEps = 1e-5;

NormShape shape_of(const Sizes& sizes) {
  return {sizes.rows, sizes.columns};
}

ReferenceNorm reference_of(const Sizes& sizes, bool layer) {
  return {.rows = sizes.rows, .columns = sizes.columns, .eps = kEps, .layer = layer};
}

struct Inputs {
  std::vector<float> x;
  std::vector<float> dy;
  std::vector<float> gain;
  std::vector<float> bias;
  std::vector<float> residual;  // what dx holds before, when it accumulates
};

Inputs inputs_of(Random& random, const Sizes& sizes) {
  const std::int64_t count = sizes.rows * sizes.columns;
  return {random.normal(count, 3.0),
          random.normal(count),
          random.normal(sizes.columns),
          random.normal(sizes.columns),
          random.normal(count)};
}

// One column has no variance: rstd is 1/sqrt(eps) and amplifies rounding.
double tolerance_of(const Sizes& sizes) {
  return sizes.columns <= 2 ? 2e-5 : 2e-6;
}

struct Gradients {
  std::vector<float> dx;
  std::vector<float> dgain;
  std::vector<float> dbias;
};

struct BackwardSetting {
  bool layer = false;
  bool accumulate = false;
  int threads = 1;
  GradientMode mode = GradientMode::kStore;
  Gradients before = {};  // sums to add to, with kAdd
};

Gradients run_backward(Backend& backend,
                       const Sizes& sizes,
                       const Inputs& in,
                       const BackwardSetting& setting) {
  const NormShape shape = shape_of(sizes);
  const ReferenceNormResult forward = reference_norm(
      reference_of(sizes, setting.layer), widen(in.x), widen(in.gain), widen(in.bias));
  Case test(backend);
  const auto dy = test.input(in.dy, 2);
  const auto x = test.input(in.x, 1);
  const auto gain = test.input(in.gain, 7);
  const std::vector<float> means(forward.mean.begin(), forward.mean.end());
  const auto mean = setting.layer ? test.input(means) : Array<float>();
  const auto rstd = test.input(std::vector<float>(forward.rstd.begin(), forward.rstd.end()), 5);
  const auto dx = setting.accumulate ? test.output(in.residual, 3)
                                     : test.output<float>(sizes.rows * sizes.columns, 3);
  const bool add = setting.mode == GradientMode::kAdd;
  const auto dgain = add ? test.output(setting.before.dgain) : test.output<float>(sizes.columns);
  if (setting.layer) {
    const auto dbias =
        add ? test.output(setting.before.dbias, 9) : test.output<float>(sizes.columns, 9);
    test.run(layer_norm_backward_workspace_bytes(shape, setting.threads),
             setting.threads,
             [&](const Context& context) {
               layer_norm_backward(context,
                                   {.shape = shape,
                                    .dy = {dy.data()},
                                    .x = {x.data()},
                                    .gain = {gain.data()},
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .dx = {dx.data()},
                                    .accumulate = setting.accumulate,
                                    .dgain = dgain.data(),
                                    .dbias = dbias.data(),
                                    .mode = setting.mode});
             });
    return {dx.get(), dgain.get(), dbias.get()};
  }
  test.run(rms_norm_backward_workspace_bytes(shape, setting.threads),
           setting.threads,
           [&](const Context& context) {
             rms_norm_backward(context,
                               {.shape = shape,
                                .dy = {dy.data()},
                                .x = {x.data()},
                                .gain = {gain.data()},
                                .rstd = rstd.data(),
                                .dx = {dx.data()},
                                .accumulate = setting.accumulate,
                                .dgain = dgain.data(),
                                .mode = setting.mode});
           });
  return {dx.get(), dgain.get(), {}};
}

}  // namespace

TEST_P(Norm, LayerNormEqualsTheReferenceForAnyTeam) {
  Random random(20);
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(std::to_string(sizes.rows) + " x " + std::to_string(sizes.columns));
    const Inputs in = inputs_of(random, sizes);
    const ReferenceNormResult expected =
        reference_norm(reference_of(sizes, true), widen(in.x), widen(in.gain), widen(in.bias));
    Case test(backend());
    const auto x = test.input(in.x, 1);
    const auto gain = test.input(in.gain, 2);
    const auto bias = test.input(in.bias, 3);
    const auto y = test.output<float>(sizes.rows * sizes.columns, 5);
    const auto mean = test.output<float>(sizes.rows);
    const auto rstd = test.output<float>(sizes.rows);
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      test.run(0, threads, [&](const Context& context) {
        layer_norm(context,
                   {.shape = shape_of(sizes),
                    .eps = kEps,
                    .x = {x.data()},
                    .gain = {gain.data()},
                    .bias = {bias.data()},
                    .y = {y.data()},
                    .mean = mean.data(),
                    .rstd = rstd.data()});
      });
      first = threads == 1 ? y.get() : first;
      EXPECT_TRUE(same_bits(y.get(), first)) << threads << " threads";
    }
    expect_close(y.get(), expected.y, tolerance_of(sizes), "y");
    expect_close(mean.get(), expected.mean, 1e-6, "mean");
    expect_close(rstd.get(), expected.rstd, tolerance_of(sizes), "rstd");
  }
}

TEST_P(Norm, RmsNormEqualsTheReferenceForAnyTeam) {
  Random random(21);
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(std::to_string(sizes.rows) + " x " + std::to_string(sizes.columns));
    const Inputs in = inputs_of(random, sizes);
    const ReferenceNormResult expected =
        reference_norm(reference_of(sizes, false), widen(in.x), widen(in.gain), {});
    Case test(backend());
    const auto x = test.input(in.x, 1);
    const auto gain = test.input(in.gain, 2);
    const auto y = test.output<float>(sizes.rows * sizes.columns, 5);
    const auto rstd = test.output<float>(sizes.rows);
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      test.run(0, threads, [&](const Context& context) {
        rms_norm(context,
                 {.shape = shape_of(sizes),
                  .eps = kEps,
                  .x = {x.data()},
                  .gain = {gain.data()},
                  .y = {y.data()},
                  .rstd = rstd.data()});
      });
      first = threads == 1 ? y.get() : first;
      EXPECT_TRUE(same_bits(y.get(), first)) << threads << " threads";
    }
    expect_close(y.get(), expected.y, 1e-6, "y");
    expect_close(rstd.get(), expected.rstd, 1e-6, "rstd");
  }
}

TEST_P(Norm, GradientsEqualTheReferenceForAnyTeamAndAddBitForBit) {
  Random random(22);
  for (const Sizes& sizes : kSizes) {
    for (const bool layer : {false, true}) {
      SCOPED_TRACE(std::to_string(sizes.rows) + " x " + std::to_string(sizes.columns) +
                   (layer ? " LayerNorm" : " RMSNorm"));
      const Inputs in = inputs_of(random, sizes);
      const ReferenceNormGradient expected = reference_norm_backward(
          reference_of(sizes, layer), widen(in.dy), widen(in.x), widen(in.gain));
      const Gradients first = run_backward(backend(), sizes, in, {.layer = layer});
      expect_close(first.dx, expected.dx, tolerance_of(sizes), "dx", 1.0);
      expect_close(first.dgain, expected.dgain, 2e-6, "dgain", 1.0);
      if (layer) {
        expect_close(first.dbias, expected.dbias, 2e-6, "dbias", 1.0);
      }
      const Gradients again =
          run_backward(backend(), sizes, in, {.layer = layer, .accumulate = true, .threads = 3});
      EXPECT_TRUE(same_bits(again.dx, sum_of(in.residual, first.dx)));
      EXPECT_TRUE(same_bits(again.dgain, first.dgain));
      EXPECT_TRUE(same_bits(again.dbias, first.dbias));
      const Gradients added =
          run_backward(backend(),
                       sizes,
                       in,
                       {.layer = layer, .threads = 2, .mode = GradientMode::kAdd, .before = first});
      EXPECT_TRUE(same_bits(added.dgain, sum_of(first.dgain, first.dgain)));
      EXPECT_TRUE(same_bits(added.dbias, sum_of(first.dbias, first.dbias)));
    }
  }
}

TEST_P(Norm, FrozenGainsAndBiasesAreLeftOut) {
  Random random(23);
  const Sizes sizes = {40, 19};
  const Inputs in = inputs_of(random, sizes);
  const Gradients all = run_backward(backend(), sizes, in, {.layer = true});
  const ReferenceNormResult forward =
      reference_norm(reference_of(sizes, true), widen(in.x), widen(in.gain), widen(in.bias));
  for (const bool with_bias : {false, true}) {
    Case test(backend());
    const auto dy = test.input(in.dy);
    const auto x = test.input(in.x);
    const auto gain = test.input(in.gain);
    const auto mean = test.input(std::vector<float>(forward.mean.begin(), forward.mean.end()));
    const auto rstd = test.input(std::vector<float>(forward.rstd.begin(), forward.rstd.end()));
    const auto dx = test.output<float>(sizes.rows * sizes.columns);
    const auto dbias = with_bias ? test.output<float>(sizes.columns) : Array<float>();
    test.run(
        layer_norm_backward_workspace_bytes(shape_of(sizes), 2), 2, [&](const Context& context) {
          layer_norm_backward(context,
                              {.shape = shape_of(sizes),
                               .dy = {dy.data()},
                               .x = {x.data()},
                               .gain = {gain.data()},
                               .mean = mean.data(),
                               .rstd = rstd.data(),
                               .dx = {dx.data()},
                               .dbias = with_bias ? dbias.data() : nullptr});
        });
    EXPECT_TRUE(same_bits(dx.get(), all.dx));
    if (with_bias) {
      EXPECT_TRUE(same_bits(dbias.get(), all.dbias));
    }
  }
}

}  // namespace headrace::kernels::conformance
