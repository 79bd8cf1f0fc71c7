// AdamW: every instruction set against the plain reference, bit for bit; the reference's arithmetic
// against float64 and PyTorch.

#include "optim_cpu/adamw.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "optim_cpu/gradient.hpp"
#include "optim_cpu/reference.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/test_support.hpp"

namespace headrace::optim {
namespace {

constexpr AdamWScalars kUsual = {.lr = 3e-4,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .update_count = 7,
                                 .clip_scale = 0.37};

// Parameters, state and gradient of one span, as values.
struct Values {
  std::vector<float> param, m, v, gradient;
};

Values random_values(std::mt19937_64& random, std::int64_t elements) {
  Values values{.param = mixed_floats(random, elements, -4, 1),
                .m = mixed_floats(random, elements, -12, 1),
                .v = mixed_floats(random, elements, -20, 1),
                .gradient = mixed_floats(random, elements, -9, 2)};
  for (float& v : values.v) {
    v = std::fabs(v);
  }
  return values;
}

// The same values in buffers whose addresses have the given offsets, in bytes, from a multiple
// of 64. The gradient is in either dtype.
struct Buffers {
  OffsetBuffer<float> param, m, v, gradient;
  OffsetBuffer<std::uint16_t> bf16_gradient;
  Dtype dtype;

  Buffers(const Values& values, Dtype gradient_dtype, std::array<std::size_t, 4> offsets)
      : param(values.param, offsets[0]),
        m(values.m, offsets[1]),
        v(values.v, offsets[2]),
        gradient(values.gradient, offsets[3] / 4 * 4),
        bf16_gradient(to_bf16(values.gradient), offsets[3]),
        dtype(gradient_dtype) {}

  AdamWSpan span() {
    const bool bf16 = dtype == Dtype::kBf16;
    return {.param = param.data(),
            .m = m.data(),
            .v = v.data(),
            .gradient = bf16 ? static_cast<const void*>(bf16_gradient.data())
                             : static_cast<const void*>(gradient.data()),
            .gradient_dtype = dtype,
            .elements = static_cast<std::int64_t>(param.span().size())};
  }

  testing::AssertionResult same_as(Buffers& other) {
    for (auto [mine, theirs, name] : {std::tuple(&param, &other.param, "param"),
                                      std::tuple(&m, &other.m, "m"),
                                      std::tuple(&v, &other.v, "v")}) {
      if (const auto result = same_bits(mine->span(), theirs->span()); !result) {
        return testing::AssertionFailure() << name << ": " << result.message();
      }
      if (!mine->guards_intact()) {
        return testing::AssertionFailure() << name << " was written beyond its ends";
      }
    }
    return testing::AssertionSuccess();
  }
};

void expect_equal_to_reference(const Values& values,
                               Dtype dtype,
                               std::array<std::size_t, 4> offsets,
                               const AdamWScalars& scalars) {
  const AdamWConstants constants = adamw_constants(scalars);
  Buffers expected(values, dtype, {0, 0, 0, 0});
  const UpdateStats expected_stats = adamw_reference(expected.span(), constants);
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    Buffers actual(values, dtype, offsets);
    const UpdateStats stats = adamw_update(actual.span(), constants);
    ASSERT_TRUE(actual.same_as(expected))
        << target << ", " << values.param.size() << " elements, " << dtype_name(dtype)
        << " gradient, offset " << offsets[0];
    ASSERT_TRUE(same_bits(stats.sum_squares, expected_stats.sum_squares)) << target;
    ASSERT_EQ(stats.non_finite_count, expected_stats.non_finite_count) << target;
    ASSERT_EQ(stats.first_non_finite, expected_stats.first_non_finite) << target;
  }
}

constexpr std::array kDtypes = {Dtype::kF32, Dtype::kBf16};

TEST(AdamW, EveryInstructionSetEqualsTheReferenceAtEveryLength) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = 0; length <= 67; ++length) {
    lengths.push_back(length);
  }
  lengths.insert(lengths.end(),
                 {127, 128, 129, 255, 256, 257, 1000, 4095, 4097, 65535, 65536, 65537, 131073});
  for (const std::int64_t length : lengths) {
    const Values values = random_values(random, length);
    for (const Dtype dtype : kDtypes) {
      expect_equal_to_reference(values, dtype, {0, 0, 0, 0}, kUsual);
    }
  }
}

TEST(AdamW, EveryPointerOffsetGivesTheSameBits) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  for (const std::int64_t length : {1, 15, 16, 17, 37, 255, 1021}) {
    const Values values = random_values(random, length);
    for (std::size_t offset = 0; offset < 64; offset += 4) {
      expect_equal_to_reference(values, Dtype::kF32, {offset, offset, offset, offset}, kUsual);
      expect_equal_to_reference(
          values, Dtype::kF32, {offset, offset + 4, offset + 20, offset + 60}, kUsual);
    }
    for (std::size_t offset = 0; offset < 64; offset += 2) {
      expect_equal_to_reference(values, Dtype::kBf16, {offset / 4 * 4, 8, 52, offset}, kUsual);
    }
  }
}

TEST(AdamW, EveryGroupSettingGivesTheReferencesBits) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  const Values values = random_values(random, 333);
  for (const double beta1 : {0.0, 0.9, 0.99}) {
    for (const double beta2 : {0.0, 0.95, 0.9999}) {
      for (const double eps : {0.0, 1e-12, 1e-8, 1.0}) {
        for (const double weight_decay : {0.0, 0.1}) {
          for (const std::int64_t count : {1, 2, 1000, 5'000'000}) {
            const AdamWScalars scalars{.lr = 1e-3 * static_cast<double>(count % 3),
                                       .beta1 = beta1,
                                       .beta2 = beta2,
                                       .eps = eps,
                                       .weight_decay = weight_decay,
                                       .update_count = count,
                                       .clip_scale = count == 2 ? 1.0 : 1e-3};
            expect_equal_to_reference(values, Dtype::kF32, {0, 4, 8, 12}, scalars);
          }
        }
      }
    }
  }
}

TEST(AdamW, WithoutFlushToZeroInstructionSetsStillAgree) {
  std::mt19937_64 random(test_seed());
  Values values = random_values(random, 1003);
  for (std::size_t i = 0; i < values.m.size(); i += 2) {
    values.m[i] *= 1e-37F;
    values.v[i] *= 1e-37F;
    values.gradient[i] *= 1e-37F;
  }
  for (const Dtype dtype : kDtypes) {
    expect_equal_to_reference(values, dtype, {0, 0, 0, 0}, kUsual);
  }
}

TEST(AdamW, ManyUpdatesStayEqualToTheReference) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  const Values values = random_values(random, 117);
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    std::mt19937_64 gradients(1);
    Buffers actual(values, Dtype::kF32, {4, 8, 12, 16});
    Buffers expected(values, Dtype::kF32, {0, 0, 0, 0});
    AdamWScalars scalars = kUsual;
    for (scalars.update_count = 1; scalars.update_count <= 1000; ++scalars.update_count) {
      const std::vector<float> gradient = mixed_floats(gradients, 117, -9, 2);
      std::copy(gradient.begin(), gradient.end(), actual.gradient.data());
      std::copy(gradient.begin(), gradient.end(), expected.gradient.data());
      adamw_update(actual.span(), scalars);
      adamw_reference(expected.span(), adamw_constants(scalars));
    }
    ASSERT_TRUE(actual.same_as(expected)) << target;
  }
}

// AdamW in double, from the same settings: none of the float constants, another order of
// operations.
struct DoubleAdamW {
  std::vector<double> param, m, v;

  void update(const std::vector<float>& gradient, const AdamWScalars& s) {
    const auto t = static_cast<double>(s.update_count);
    for (std::size_t i = 0; i < param.size(); ++i) {
      const double g = s.clip_scale * static_cast<double>(gradient[i]);
      m[i] += (1 - s.beta1) * (g - m[i]);
      v[i] += (1 - s.beta2) * (g * g - v[i]);
      const double m_hat = m[i] / (1 - std::pow(s.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(s.beta2, t));
      param[i] -= s.lr * (m_hat / (std::sqrt(v_hat) + s.eps) + s.weight_decay * param[i]);
    }
  }
};

// The float constants' own rounding is part of the difference. It is negligible but for DECAY,
// which is off by up to 2^-25 each time, in the same direction while the learning rate stays.
TEST(AdamW, Float64AgreesAfterAThousandUpdates) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  constexpr std::int64_t kElements = 1000;
  constexpr std::int64_t kUpdates = 1000;
  std::normal_distribution<float> normal;
  for (const double weight_decay : {0.0, 0.1}) {
    const std::vector<float> zeros(kElements);
    Values values{.param = zeros, .m = zeros, .v = zeros, .gradient = zeros};
    for (float& p : values.param) {
      p = 0.02F * normal(random);
    }
    Buffers actual(values, Dtype::kF32, {0, 0, 0, 0});
    DoubleAdamW expected{.param = {values.param.begin(), values.param.end()},
                         .m = std::vector<double>(kElements),
                         .v = std::vector<double>(kElements)};
    AdamWScalars scalars = kUsual;
    scalars.weight_decay = weight_decay;
    for (scalars.update_count = 1; scalars.update_count <= kUpdates; ++scalars.update_count) {
      for (float& g : values.gradient) {
        g = 1e-3F * normal(random);
      }
      std::copy(values.gradient.begin(), values.gradient.end(), actual.gradient.data());
      adamw_update(actual.span(), scalars);
      expected.update(values.gradient, scalars);
    }
    double squares = 0;
    double largest = 0;
    for (const double p : expected.param) {
      squares += p * p;
      largest = std::max(largest, std::fabs(p));
    }
    const double decay_rounding = weight_decay > 0 ? kUpdates * 0x1.0p-25 * largest : 0.0;
    const double bound = 1e-5 * std::sqrt(squares / kElements) + decay_rounding;
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_NEAR(static_cast<double>(actual.param.span()[i]), expected.param[i], bound);
    }
  }
}

// PyTorch 2.15, torch.optim.AdamW(foreach=False, fused=False) on the CPU: weights fraction(i), in
// step s the gradient fraction(1000 + 10 s + i) * scale, clip_grad_norm_ where clip > 0, 12 steps
// of 10 elements.
struct TorchCase {
  AdamWScalars scalars;
  double clip;
  float gradient_scale;
  std::array<float, 10> param, m, v;
  double last_norm;
};

const std::array kTorchCases = {
    TorchCase{
        .scalars = {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        .clip = 1.0,
        .gradient_scale = 1.0F,
        .param = {-0.976472437F,
                  -0.501997471F,
                  0.451015264F,
                  0.925300598F,
                  -0.0699248984F,
                  0.883928597F,
                  -0.593122065F,
                  0.359363168F,
                  0.833707929F,
                  -0.160933733F},
        .m = {0.0717269927F,
              -0.0520922393F,
              -0.0313521549F,
              0.100766711F,
              -0.197287738F,
              0.0870461613F,
              0.00525435712F,
              -0.0544664077F,
              0.07774131F,
              -0.0984808132F},
        .v = {0.0359195061F,
              0.0697963461F,
              0.0153101338F,
              0.0596749336F,
              0.0444033667F,
              0.0357579775F,
              0.0697478354F,
              0.018497061F,
              0.06225501F,
              0.0482771918F},
        .last_norm = 1.676437258720398},
    TorchCase{
        .scalars = {.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.0},
        .clip = 0.0,
        .gradient_scale = 0x1.0p-10F,
        .param = {-0.98776859F,
                  -0.415506393F,
                  0.406563908F,
                  0.939300895F,
                  -0.0105685601F,
                  0.840471506F,
                  -0.523832023F,
                  0.319704175F,
                  0.85306412F,
                  -0.0817276686F},
        .m = {0.000149208805F,
              -2.30509468e-05F,
              -0.000153270448F,
              0.000293794408F,
              -0.000533988466F,
              0.000131855137F,
              0.000145481768F,
              -0.000216574583F,
              0.000241620844F,
              -0.000186736288F},
        .v = {3.28075367e-09F,
              5.11171772e-09F,
              1.31211741e-09F,
              4.92102536e-09F,
              2.9072218e-09F,
              3.2679377e-09F,
              5.24405408e-09F,
              1.42746281e-09F,
              5.36156586e-09F,
              3.12943627e-09F},
        .last_norm = 0.0},
    TorchCase{
        .scalars = {.lr = 2e-3, .beta1 = 0.95, .beta2 = 0.98, .eps = 1e-3, .weight_decay = 0.3},
        .clip = 0.25,
        .gradient_scale = 4.0F,
        .param = {-0.970346212F,
                  -0.483309031F,
                  0.435762972F,
                  0.924959838F,
                  -0.0629654229F,
                  0.869864702F,
                  -0.575323701F,
                  0.345383942F,
                  0.834962487F,
                  -0.148694396F},
        .m = {0.0112505723F,
              -0.0117638195F,
              -0.00161115301F,
              0.0126474146F,
              -0.0278317444F,
              0.015955139F,
              -0.0039179991F,
              -0.00498223025F,
              0.0090275621F,
              -0.0163500793F},
        .v = {0.00116025028F,
              0.00194594113F,
              0.000461168558F,
              0.00182668224F,
              0.00118139433F,
              0.00115383416F,
              0.00197953684F,
              0.000531608646F,
              0.00193032681F,
              0.00128445914F},
        .last_norm = 6.705749034881592},
};

// An exact multiple of 1/1024 in [-1, 1].
float fraction(std::uint64_t i) {
  const std::uint64_t mixed = ((i * 2654435761U + 12345U) & 0xffffffffU) >> 16U;
  return static_cast<float>(static_cast<std::int64_t>(mixed % 2001U) - 1000) / 1024.0F;
}

void expect_near_all(std::span<const float> actual,
                     const std::array<float, 10>& expected,
                     float relative,
                     const char* name) {
  float largest = 0;
  for (const float value : expected) {
    largest = std::max(largest, std::fabs(value));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], relative * largest) << name << "[" << i << "]";
  }
}

// PyTorch's moments are computed in another order (lerp), so they differ by some units in the last
// place of the largest element: 4e-7 of it, 12 steps on. So does the norm, which is a float there.
TEST(AdamW, PyTorchAgreesWithinSomeUnitsInTheLastPlace) {
  const FlushToZeroScope flush_to_zero;
  for (const TorchCase& torch : kTorchCases) {
    Values values{
        .param = {}, .m = std::vector<float>(10), .v = std::vector<float>(10), .gradient = {}};
    for (std::uint64_t i = 0; i < 10; ++i) {
      values.param.push_back(fraction(i));
    }
    values.gradient.resize(10);
    Buffers buffers(values, Dtype::kF32, {0, 0, 0, 0});
    double norm = 0;
    for (std::uint64_t step = 0; step < 12; ++step) {
      for (std::uint64_t i = 0; i < 10; ++i) {
        buffers.gradient.data()[i] = fraction(1000 + step * 10 + i) * torch.gradient_scale;
      }
      const BlockSum block = collect_block({.incoming = buffers.gradient.data(),
                                            .target = nullptr,
                                            .kind = GradientTarget::kNone,
                                            .elements = 10});
      norm = total_norm({&block.sum_squares, 1});
      AdamWScalars scalars = torch.scalars;
      scalars.update_count = static_cast<std::int64_t>(step) + 1;
      scalars.clip_scale = clip_scale(norm, torch.clip);
      adamw_update(buffers.span(), scalars);
    }
    expect_near_all(buffers.param.span(), torch.param, 4e-7F, "param");
    expect_near_all(buffers.m.span(), torch.m, 4e-7F, "m");
    expect_near_all(buffers.v.span(), torch.v, 4e-7F, "v");
    if (torch.clip > 0) {
      EXPECT_NEAR(norm, torch.last_norm, 1e-6 * norm);
    }
  }
}

TEST(AdamW, ALearningRateOfZeroChangesNoWeight) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  Values values = random_values(random, 1000);
  for (float& p : values.param) {
    p = p == 0.0F || std::fpclassify(p) == FP_SUBNORMAL ? 1.0F : p;
  }
  AdamWScalars scalars = kUsual;
  scalars.lr = 0.0;
  Buffers buffers(values, Dtype::kF32, {0, 0, 0, 0});
  adamw_update(buffers.span(), scalars);
  EXPECT_TRUE(same_bits(buffers.param.span(), std::span<float>(values.param)));
}

// The rule: where flush-to-zero is set, a subnormal input counts as zero and a subnormal result is
// stored as zero (with its sign).
TEST(AdamW, SubnormalMomentsBecomeZero) {
  const FlushToZeroScope flush_to_zero;
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    Values values{.param = std::vector<float>(37, 1.0F),
                  .m = std::vector<float>(37, 1e-40F),
                  .v = std::vector<float>(37, 1.2e-38F),  // normal; times beta2 it is not
                  .gradient = std::vector<float>(37, 1e-41F)};
    Buffers buffers(values, Dtype::kF32, {0, 0, 0, 0});
    AdamWScalars scalars = kUsual;
    scalars.weight_decay = 0.0;
    adamw_update(buffers.span(), scalars);
    for (std::size_t i = 0; i < 37; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(buffers.m.span()[i]), 0U) << target;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(buffers.v.span()[i]), 0U) << target;
      ASSERT_EQ(buffers.param.span()[i], 1.0F) << target;
    }
  }
}

TEST(AdamW, NewParametersThatAreNotFiniteAreCountedWithTheFirstIndex) {
  const FlushToZeroScope flush_to_zero;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    for (const float bad : {kInfinity, -kInfinity, kNan}) {
      for (const std::size_t at : {0U, 15U, 16U, 40U, 48U}) {
        Values values{.param = std::vector<float>(49, 1.0F),
                      .m = std::vector<float>(49),
                      .v = std::vector<float>(49),
                      .gradient = std::vector<float>(49, 0.5F)};
        values.param[at] = bad;
        values.param[48] = bad;
        Buffers buffers(values, Dtype::kF32, {0, 0, 0, 0});
        const UpdateStats stats = adamw_update(buffers.span(), kUsual);
        EXPECT_EQ(stats.non_finite_count, at == 48 ? 1 : 2) << target;
        EXPECT_EQ(stats.first_non_finite, static_cast<std::int64_t>(at)) << target;
      }
    }
  }
}

TEST(AdamW, SumOfSquaresIsThatOfTheChangeWithoutDecay) {
  const FlushToZeroScope flush_to_zero;
  Values values{.param = std::vector<float>(100, 0.0F),
                .m = std::vector<float>(100),
                .v = std::vector<float>(100),
                .gradient = std::vector<float>(100, 0.25F)};
  Buffers buffers(values, Dtype::kF32, {0, 0, 0, 0});
  AdamWScalars scalars = kUsual;
  scalars.update_count = 1;  // from zero state: every element moves by lr
  const UpdateStats stats = adamw_update(buffers.span(), scalars);
  EXPECT_NEAR(
      stats.sum_squares, 100 * scalars.lr * scalars.lr, 1e-5 * 100 * scalars.lr * scalars.lr);
}

TEST(AdamW, BiasCorrectionIsExactInDouble) {
  // 0.5^t is exact by any route, so the constants are the correctly rounded ones.
  const AdamWConstants c = adamw_constants(
      {.lr = 1.0, .beta1 = 0.5, .beta2 = 0.5, .eps = 0.0, .weight_decay = 0.0, .update_count = 3});
  EXPECT_EQ(c.step, static_cast<float>(1.0 / 0.875));
  EXPECT_EQ(c.sqrt_correction2, static_cast<float>(std::sqrt(0.875)));
  const AdamWConstants late = adamw_constants({.lr = 1.0, .update_count = 2'000'000'000});
  EXPECT_EQ(late.step, 1.0F);
  EXPECT_EQ(late.sqrt_correction2, 1.0F);
}

TEST(AdamWDeathTest, SettingsThatMakeNoSenseAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(static_cast<void>(adamw_constants({.update_count = 0})), "counted from 1");
  EXPECT_DEATH(static_cast<void>(adamw_constants({.beta1 = 1.0})), "betas");
}

}  // namespace
}  // namespace headrace::optim
