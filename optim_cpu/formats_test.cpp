// What the state formats promise: weights in two parts, even roundings, the bounds of "q8", and
// that both lead where fp32 leads.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim_cpu/adamw_q8.hpp"
#include "optim_cpu/convert.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/reference.hpp"
#include "optim_cpu/rounding.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/test_support.hpp"
#include "optim_cpu/weights.hpp"

namespace headrace::optim {
namespace {

// Bits of floats: all exponents with some mantissas, the edges of rounding among them.
std::vector<std::uint32_t> edge_bits(std::mt19937_64& random) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t upper = 0; upper < 0x10000U; upper += 1) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fU, 0x80U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      all.push_back((upper << 16U) | lower);
    }
    all.push_back((upper << 16U) | static_cast<std::uint32_t>(random() & 0xffffU));
  }
  return all;
}

TEST(SplitWeight, JoinsToTheBitsThatWereSplit) {
  std::mt19937_64 random(test_seed());
  for (const std::uint32_t bits : edge_bits(random)) {
    const auto value = std::bit_cast<float>(bits);
    const SplitWeight split = split_weight(value);
    if (std::isnan(value)) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(join_weight(split)), kDefaultNan);
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(join_weight(split)), bits);
    const float high = float_from_bf16(split.high);
    if (std::isfinite(high) && std::isnormal(value)) {
      // Nearest: no farther than half the distance between bf16 numbers.
      ASSERT_LE(std::fabs(static_cast<double>(high) - value),
                std::ldexp(1.0, std::ilogb(value) - 8));
    }
  }
}

TEST(SplitWeight, ShortPartsAreStableWhateverTheRandomBits) {
  std::mt19937_64 random(test_seed());
  for (const std::uint32_t bits : edge_bits(random)) {
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(join_weight(split_weight_short(value, 255))));
      continue;
    }
    const ShortSplitWeight split = split_weight_short(value, 128);
    const float kept = join_weight(split);
    if (std::isnormal(value) && std::isfinite(kept)) {
      ASSERT_LE(std::fabs(static_cast<double>(kept) - value),
                std::ldexp(1.0, std::ilogb(value) - 16));
    }
    for (const std::uint8_t again : std::array<std::uint8_t, 5>{0, 1, 127, 128, 255}) {
      ASSERT_EQ(split_weight_short(kept, again), split);
    }
  }
}

TEST(Rounding, EveryKeyGivesEachFirstWordOnceAndEvenSecondWords) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 4; ++round) {
    const RoundingKey key = rounding_key({.seed = random(), .update = round, .tensor = 3}, 0);
    std::vector<int> first(65536);
    std::vector<int> second(65536);
    for (std::int64_t i = 0; i < kRoundingBlockElements; ++i) {
      const RoundingBits bits = rounding_bits(key, i);
      ++first[bits.first];
      ++second[bits.second];
    }
    EXPECT_EQ(*std::max_element(first.begin(), first.end()), 1);
    EXPECT_EQ(*std::max_element(second.begin(), second.end()), 1);
  }
}

// Correlations of uniform numbers over n samples are within 5 / sqrt(n) but once in a million
// times.
double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  double sum_a = 0;
  double sum_b = 0;
  double sum_ab = 0;
  double sum_aa = 0;
  double sum_bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum_a += a[i];
    sum_b += b[i];
    sum_ab += a[i] * b[i];
    sum_aa += a[i] * a[i];
    sum_bb += b[i] * b[i];
  }
  return (sum_ab - sum_a * sum_b / n) /
         std::sqrt((sum_aa - sum_a * sum_a / n) * (sum_bb - sum_b * sum_b / n));
}

TEST(Rounding, OverUpdatesAnElementsBitsAreEvenAndNotCorrelated) {
  constexpr std::int64_t kUpdates = 20'000;
  const double bound = 5.0 / std::sqrt(static_cast<double>(kUpdates));
  for (const std::int64_t element : {0, 1, 77, 65535, 1 << 20}) {
    std::vector<double> first;
    std::vector<double> second;
    std::vector<double> low_byte;
    std::vector<double> neighbour;
    for (std::int64_t update = 0; update < kUpdates; ++update) {
      const RoundingOrigin origin{.seed = 11, .update = update, .tensor = 2};
      const RoundingBits bits = rounding_bits(rounding_key(origin, element), element);
      const std::int64_t next = element ^ 1;
      first.push_back(bits.first / 65536.0);
      low_byte.push_back((bits.first & 0xff) / 256.0);
      second.push_back(bits.second / 65536.0);
      neighbour.push_back(rounding_bits(rounding_key(origin, next), next).first / 65536.0);
    }
    double mean = 0;
    for (const double x : first) {
      mean += x / static_cast<double>(kUpdates);
    }
    EXPECT_NEAR(mean, 0.5, bound * std::sqrt(1.0 / 12));
    EXPECT_LT(std::fabs(correlation(first, low_byte)), bound);
    EXPECT_LT(std::fabs(correlation(first, second)), bound);
    EXPECT_LT(std::fabs(correlation(low_byte, second)), bound);
    EXPECT_LT(std::fabs(correlation(first, neighbour)), bound);
    const std::vector<double> now(first.begin() + 1, first.end());
    const std::vector<double> before(first.begin(), first.end() - 1);
    EXPECT_LT(std::fabs(correlation(now, before)), bound);
  }
}

TEST(Rounding, Bf16IsExactInTheMeanOverAllBits) {
  for (const float value : {1.0F, 1.00123F, -3.14159F, 1e-30F, 1.9999999F, 0.0F}) {
    double sum = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      sum += float_from_bf16(bf16_stochastic(value, static_cast<std::uint16_t>(bits)));
    }
    EXPECT_EQ(sum / 65536, static_cast<double>(value));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_from_bf16(bf16_stochastic(kInfinity, 0xffff)), kInfinity);
}

float decoded_m(std::uint8_t code, float scale) {
  return q8_decode_m(code, scale);
}

float decoded_root(std::uint8_t code, float scale) {
  return q8_decode_root(code, scale);
}

std::uint8_t encoded_m(float m, float scale, std::uint32_t bits) {
  return q8_encode_m(m, q8_encode_factor(scale, kQ8MSteps), bits);
}

std::uint8_t encoded_root(float root, float scale, std::uint32_t bits) {
  return q8_encode_root(root, q8_encode_factor(scale, kQ8VSteps), bits);
}

TEST(Q8, EveryCodeDecodesToItself) {
  for (const float scale : {1.0F, 3e-5F, 7e8F, kQ8ScaleMin}) {
    for (int number = 0; number <= 255; ++number) {
      const auto code = static_cast<std::uint8_t>(number);
      if (code != 0x80) {  // zero has one sign
        EXPECT_EQ(encoded_m(decoded_m(code, scale), scale, kQ8MHalf), code);
      }
      EXPECT_EQ(encoded_root(decoded_root(code, scale), scale, kQ8VHalf), std::max(number, 1));
    }
    for (const std::uint8_t code : {std::uint8_t{127}, std::uint8_t{255}}) {
      EXPECT_NEAR(std::fabs(decoded_m(code, scale)), scale, 0x1p-22F * scale);
    }
    EXPECT_NEAR(decoded_root(255, scale), scale, 0x1p-22F * scale);
  }
}

// However far m or its scale lies from a power of two: no rounding takes it beyond its code.
TEST(Q8, TheLargestOfAGroupKeepsItsValue) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 200'000; ++i) {
    const auto scale = std::bit_cast<float>(static_cast<std::uint32_t>(
        std::bit_cast<std::uint32_t>(kQ8ScaleMin) + random() % (0x7f000000U - (7U << 23U))));
    ASSERT_EQ(encoded_m(scale, scale, kQ8MHalf), 127);
    ASSERT_GE(encoded_m(scale, scale, 0), 126);
    ASSERT_EQ(encoded_m(scale, scale, (1U << kQ8MFraction) - 1), 127);
    ASSERT_EQ(encoded_m(-scale, scale, (1U << kQ8MFraction) - 1), 255);
    ASSERT_EQ(encoded_root(scale, scale, kQ8VHalf), 255);
    ASSERT_GE(encoded_root(scale, scale, 0), 254);
    ASSERT_EQ(encoded_root(scale, scale, (1U << kQ8VFraction) - 1), 255);
  }
}

TEST(Q8, GroupsWhoseScaleIsTooSmallAreZero) {
  for (const float scale : {0.0F, 0x1p-121F, 0x1p-126F}) {
    for (const float m : {0.0F, scale, -scale}) {
      EXPECT_EQ(encoded_m(m, scale, (1U << kQ8MFraction) - 1) & 0x7f, 0);
    }
    EXPECT_EQ(encoded_root(0.0F, scale, (1U << kQ8VFraction) - 1), 0);
  }
}

// A step of the code at x in units of the scale: pieces double their step where 29.5 x + 2 is a
// power of two, so it is at most (29.5 x + 2) / 32 of 29.5, and at least half of that.
double m_step(double x) {
  return (x + 2 / 29.5) / 32;
}

TEST(Q8, ErrorsOfOneEncodingAreBounded) {
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
  for (int i = 0; i < 100'000; ++i) {
    const float scale = std::ldexp(1.0F + uniform(random), static_cast<int>(random() % 40) - 30);
    const float x = std::pow(uniform(random), 4.0F);  // mostly small
    const auto bits = static_cast<std::uint32_t>(random());
    const float m = (random() % 2 == 0 ? x : -x) * scale;
    const float m_back = decoded_m(encoded_m(m, scale, bits >> (32U - kQ8MFraction)), scale);
    EXPECT_LE(std::fabs(m_back - m), scale * m_step(x) * (1 + 1e-5));
    EXPECT_LE(std::fabs(m_back), scale * (1 + 1e-6F));
    const float root = x * scale;
    const std::uint8_t code = encoded_root(root, scale, bits >> (32U - kQ8VFraction));
    const float root_back = decoded_root(code, scale);
    EXPECT_LE(std::fabs(root_back - root), scale / 255 * 1.01F);
    EXPECT_GE(root_back, root * 0.5F) << "an update by it is less than twice the exact one";
  }
}

// Of m the value, of v the root of the value.
TEST(Q8, EncodingIsExactInTheMean) {
  for (const float x : {0.001F, 0.0123F, 0.3F, 0.77F, 1.0F}) {
    double m_sum = 0;
    for (std::uint32_t bits = 0; bits < 1U << kQ8MFraction; ++bits) {
      m_sum += decoded_m(encoded_m(-x, 1.0F, bits), 1.0F);
    }
    // 2^-18 of a step, and what y's own last place is.
    EXPECT_NEAR(m_sum / (1U << kQ8MFraction), -x, 1e-6 * (x + 0.1));
    double v_sum = 0;
    for (std::uint32_t bits = 0; bits < 1U << kQ8VFraction; ++bits) {
      v_sum += q8_root_steps(encoded_root(x, 1.0F, bits));
    }
    // 2^-15 of a step, and what the factor is less than 255.
    EXPECT_NEAR(v_sum / (1U << kQ8VFraction), std::max(1.0, 255.0 * x), 0x1p-13);
  }
}

// Every byte of a record belongs to one element of its block, the two groups' in turn.
TEST(Q8, BytesOfARecordAreInTurnOfItsGroups) {
  for (std::int64_t i = 0; i < 256; ++i) {
    const std::int64_t byte = q8_byte(i);
    EXPECT_EQ(byte / kQ8BlockElements, i / kQ8BlockElements);
    EXPECT_EQ(byte % 2, i % 64 / 32);
    EXPECT_EQ(byte % 64 / 2, i % 32);
  }
}

// Each is even over a block's elements: a mean of 18 bits within five deviations.
TEST(Q8, BitsThatRoundMomentsAreEven) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 4; ++round) {
    const RoundingKey key = rounding_key({.seed = random(), .update = round, .tensor = 3}, 0);
    std::vector<int> count(256);
    double mean = 0;
    for (std::int64_t i = 0; i < kRoundingBlockElements; ++i) {
      const std::uint32_t bits = q8_m_bits(key, i);
      ASSERT_LT(bits, 1U << kQ8MFraction);
      ++count[bits >> (kQ8MFraction - 8)];
      mean += bits / static_cast<double>(kRoundingBlockElements);
    }
    EXPECT_NEAR(mean / (1U << kQ8MFraction), 0.5, 5 * std::sqrt(1.0 / 12 / 65536));
    // 256 of each on average, with the deviation of a Poisson number at most.
    EXPECT_NEAR(*std::max_element(count.begin(), count.end()), 256, 6 * 16);
    EXPECT_NEAR(*std::min_element(count.begin(), count.end()), 256, 6 * 16);
  }
}

// Relative error (root mean square) of m / sqrt(v) after both were encoded, over groups of
// magnitudes that differ by factors of e.
template <class Encode>
double direction_error(std::uint64_t seed, const Encode& encode) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  double error = 0;
  double exact = 0;
  for (int group = 0; group < 500; ++group) {
    std::array<float, kQ8GroupElements> m = {};
    std::array<float, kQ8GroupElements> root = {};
    float m_scale = 0;
    float root_scale = 0;
    for (std::size_t i = 0; i < m.size(); ++i) {
      root[i] = 1e-4F * std::exp(normal(random));
      m[i] = 0.3F * root[i] * normal(random);
      m_scale = std::max(m_scale, std::fabs(m[i]));
      root_scale = std::max(root_scale, root[i]);
    }
    for (std::size_t i = 0; i < m.size(); ++i) {
      const auto [m_back, root_back] = encode(m[i], m_scale, root[i], root_scale);
      const double direction = static_cast<double>(m[i]) / root[i];
      error += std::pow(static_cast<double>(m_back) / root_back - direction, 2);
      exact += direction * direction;
    }
  }
  return std::sqrt(error / exact);
}

// Why codes are companded: plain 8-bit numbers, v's at least 1 as well, steer several times worse.
TEST(Q8, LinearCodesAreWorse) {
  const std::uint64_t seed = test_seed();
  const double companded =
      direction_error(seed, [](float m, float m_scale, float root, float root_scale) {
        return std::pair(decoded_m(encoded_m(m, m_scale, kQ8MHalf), m_scale),
                         decoded_root(encoded_root(root, root_scale, kQ8VHalf), root_scale));
      });
  const double linear =
      direction_error(seed, [](float m, float m_scale, float root, float root_scale) {
        const float v_share = (root / root_scale) * (root / root_scale);
        const float v_code = std::max(1.0F, std::round(255.0F * v_share));
        return std::pair(std::round(127.0F * m / m_scale) / 127.0F * m_scale,
                         std::sqrt(v_code / 255.0F) * root_scale);
      });
  const double softsign =
      direction_error(seed, [](float m, float m_scale, float root, float root_scale) {
        const float code = std::round(254.0F * m / (m_scale + std::fabs(m)));
        return std::pair(code / (254.0F - std::fabs(code)) * m_scale,
                         decoded_root(encoded_root(root, root_scale, kQ8VHalf), root_scale));
      });
  std::cout << "error of the direction: companded " << companded << ", by softsign " << softsign
            << ", linear " << linear << "\n";
  EXPECT_LT(companded, softsign);
  EXPECT_LT(companded, 0.06);
  EXPECT_GT(linear, 3 * companded);
}

// The quotient that vector kernels take for a division: every mantissa, both parities of exponents.
TEST(AdamW, QuotientByAConstantIsACorrectlyRoundedDivision) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  constexpr std::int64_t kElements = 1 << 16;
  std::vector<float> v(kElements);
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    for (const double beta2 : {0.5, 0.95, 0.999, 0.9999}) {
      for (const std::int64_t count : {1, 2, 3, 10, 1000}) {
        for (float& value : v) {
          value = std::bit_cast<float>(
              static_cast<std::uint32_t>(0x00800000U + random() % 0x7f000000U));
        }
        std::vector<float> param(kElements);
        std::vector<float> m(kElements, 1.0F);
        std::vector<float> zeros(kElements);
        std::vector<float> expected_v = v;
        std::vector<float> expected_m = m;
        std::vector<float> expected = param;
        std::vector<float> actual_v = v;
        const AdamWConstants c =
            adamw_constants({.lr = 1.0, .beta2 = beta2, .eps = 0.0, .update_count = count});
        adamw_update({.param = param.data(),
                      .m = m.data(),
                      .v = actual_v.data(),
                      .gradient = zeros.data(),
                      .elements = kElements},
                     c);
        adamw_reference({.param = expected.data(),
                         .m = expected_m.data(),
                         .v = expected_v.data(),
                         .gradient = zeros.data(),
                         .elements = kElements},
                        c);
        ASSERT_TRUE(same_bits(std::span<const float>(param), std::span<const float>(expected)))
            << target;
      }
    }
  }
}

// A tensor in any format at any byte offset (of the param extent, the state extent and the
// gradient).
struct Placed {
  OffsetBuffer<std::byte> param, state, gradient;
  TileSegment segment;

  struct Offsets {
    std::size_t param = 0;
    std::size_t state = 0;
    std::size_t gradient = 0;
  };

  Placed(const Optimizer& format,
         std::mt19937_64 random,
         std::int64_t elements,
         Dtype gradient_dtype,
         Offsets offsets)
      : param(elements * format.param_element_bytes(), offsets.param),
        state(format.state_bytes(elements), offsets.state),
        gradient(elements * static_cast<std::int64_t>(dtype_bytes(gradient_dtype)),
                 offsets.gradient),
        segment{.elements = elements,
                .gradient = gradient.data(),
                .gradient_dtype = gradient_dtype,
                .scalars = {.lr = 1e-3,
                            .beta2 = 0.99,
                            .weight_decay = 0.1,
                            .update_count = 3,
                            .clip_scale = 0.7,
                            .seed = 99},
                .tensor = 4} {
    const std::vector<float> values = mixed_floats(random, elements, -6, 1);
    const std::vector<std::uint16_t> rounded = to_bf16(values);
    const auto bytes = gradient_dtype == Dtype::kBf16 ? std::as_bytes(std::span(rounded))
                                                      : std::as_bytes(std::span(values));
    std::copy(bytes.begin(), bytes.end(), gradient.data());
    std::vector<float> weights = mixed_floats(random, elements, -3, 1);
    std::vector<float> m = mixed_floats(random, elements, -6, 0);
    std::vector<float> v = mixed_floats(random, elements, -9, 0);
    for (float& value : v) {
      value = std::fabs(value);
    }
    std::vector<std::byte> aligned_param(param.span().size());
    std::vector<std::byte> aligned_state(state.span().size());
    write_state(
        format,
        {.param = aligned_param.data(), .state = aligned_state.data(), .tile_elements = elements},
        0,
        {.param = weights, .m = m, .v = v});
    std::copy(aligned_param.begin(), aligned_param.end(), param.data());
    std::copy(aligned_state.begin(), aligned_state.end(), state.data());
  }

  // The table's function over all blocks; for "q8" with decoded weights.
  using Update = void (*)(const TileUpdate&, BlockRange, std::span<UpdateStats>);

  std::vector<UpdateStats> update(Update function, float* decoded) {
    std::vector<UpdateStats> stats(static_cast<std::size_t>(count_blocks(segment.elements)));
    function({.param = param.data(),
              .state = state.data(),
              .tile_elements = segment.elements,
              .segments = {&segment, 1},
              .decoded = decoded},
             {.begin = 0, .end = count_blocks(segment.elements)},
             stats);
    return stats;
  }
};

void expect_reference(const Optimizer& format,
                      std::uint64_t seed,
                      std::int64_t elements,
                      Dtype gradient_dtype,
                      Placed::Offsets offsets) {
  const std::mt19937_64 random(seed);
  Placed expected(format, random, elements, gradient_dtype, {});
  std::vector<float> expected_weights(static_cast<std::size_t>(elements));
  const auto expected_stats = expected.update(format.reference_blocks, expected_weights.data());
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    Placed actual(format, random, elements, gradient_dtype, offsets);
    OffsetBuffer<float> weights(elements, offsets.gradient / 4 * 4);
    std::fill(weights.span().begin(), weights.span().end(), 0.0F);
    const auto stats = actual.update(format.update_blocks, weights.data());
    const std::string context = target + ", " + std::string(format.state) + ", " +
                                std::to_string(elements) + " elements, gradient " +
                                std::string(dtype_name(gradient_dtype)) + ", offset " +
                                std::to_string(offsets.state);
    ASSERT_TRUE(std::ranges::equal(actual.param.span(), expected.param.span())) << context;
    ASSERT_TRUE(std::ranges::equal(actual.state.span(), expected.state.span())) << context;
    ASSERT_TRUE(same_bits(weights.span(), std::span(expected_weights))) << context;
    ASSERT_TRUE(actual.param.guards_intact() && actual.state.guards_intact() &&
                weights.guards_intact())
        << context;
    ASSERT_EQ(stats, expected_stats) << context;
  }
}

TEST(Formats, EveryLengthGivesTheReferencesBits) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  std::vector<std::int64_t> lengths = {127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 1057, 65537};
  for (std::int64_t length = 0; length <= 67; ++length) {
    lengths.push_back(length);
  }
  for (const Optimizer& format : optimizers()) {
    for (const std::int64_t length : lengths) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
        expect_reference(format, seed, length, dtype, {});
      }
    }
  }
}

// Of the planar formats pointers are aligned to their elements: of a lone tensor of even length
// to 4.
TEST(Formats, EveryPointerOffsetGivesTheReferencesBits) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  for (const Optimizer& format : optimizers()) {
    for (const std::int64_t length : {6, 34, 1030}) {
      for (std::size_t offset = 0; offset < 64; ++offset) {
        const auto param_bytes = static_cast<std::size_t>(format.param_element_bytes());
        const std::size_t state_bytes = format.state == "q8" ? 1 : format.state == "bf16" ? 2 : 4;
        for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
          expect_reference(format,
                           seed,
                           length,
                           dtype,
                           {.param = offset / param_bytes * param_bytes,
                            .state = offset / state_bytes * state_bytes,
                            .gradient = offset / dtype_bytes(dtype) * dtype_bytes(dtype)});
        }
      }
    }
  }
}

// Weights, then m, then v.
std::vector<float> values_of(const Optimizer& format, Placed& placed) {
  const auto elements = static_cast<std::size_t>(placed.segment.elements);
  std::vector<float> values(3 * elements);
  const std::span all(values);
  read_state(format,
             {.param = placed.param.data(),
              .state = placed.state.data(),
              .tile_elements = placed.segment.elements},
             0,
             {.param = all.first(elements),
              .m = all.subspan(elements, elements),
              .v = all.last(elements)});
  return values;
}

// The promise of state "fp32": a bf16 weight and what is missing are the fp32 master, bit for bit,
// and its moments are the same.
TEST(Formats, SplitWeightsAreTheFp32MasterBitForBit) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  for (const char* state : {"fp32", "bf16"}) {
    const Optimizer& whole = *find_optimizer("adamw", state, Dtype::kF32);
    const Optimizer& split = *find_optimizer("adamw", state, Dtype::kBf16);
    Placed one(whole, std::mt19937_64(seed), 5000, Dtype::kBf16, {});
    Placed two(split, std::mt19937_64(seed), 5000, Dtype::kBf16, {});
    for (int update = 0; update < 100; ++update) {
      EXPECT_EQ(one.update(whole.update_blocks, nullptr), two.update(split.update_blocks, nullptr));
      ++one.segment.scalars.update_count;
      ++two.segment.scalars.update_count;
    }
    EXPECT_EQ(values_of(whole, one), values_of(split, two)) << state;
  }
}

std::vector<float> weights_of(const Optimizer& format, Placed& placed) {
  std::vector<float> values = values_of(format, placed);
  values.resize(values.size() / 3);
  return values;
}

// The first updates of a warm-up. Where there is neither gradient nor state, too, whatever eps.
TEST(Formats, ALearningRateOfZeroLeavesEveryWeight) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  for (const Optimizer& format : optimizers()) {
    for (const std::string& target : available_targets()) {
      const ForcedTarget forced(target);
      for (const bool without_state : {false, true}) {
        Placed placed(format, std::mt19937_64(seed), 1030, Dtype::kBf16, {});
        placed.segment.scalars.lr = without_state ? -0.0 : 0.0;
        if (without_state) {
          std::fill_n(placed.gradient.data(), 1030 * 2, std::byte{0});
          std::fill_n(placed.state.data(), format.state_bytes(1030), std::byte{0});
        }
        const std::vector<float> before = weights_of(format, placed);
        const auto stats = placed.update(format.update_blocks, nullptr);
        EXPECT_EQ(weights_of(format, placed), before) << format.state << ", " << target;
        EXPECT_EQ(stats[0].sum_squares, 0.0) << format.state << ", " << target;
        EXPECT_EQ(stats[0].non_finite_count, 0) << format.state << ", " << target;
      }
    }
  }
}

// A NaN of any bits in a scale of a group: rounding must not carry it into a number. (An infinite v
// is no update.)
TEST(Formats, NonFiniteScalesMakeWeightsThatAreCounted) {
  const FlushToZeroScope flush_to_zero;
  const Optimizer& format = *find_optimizer("adamw", "q8", Dtype::kBf16);
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    for (const std::size_t scale : {0U, 1U}) {  // m's, v's
      for (const std::uint32_t bad : {0x7f800000U, 0x7fffffffU, 0xffffffffU}) {
        Placed placed(format, std::mt19937_64(test_seed()), 256, Dtype::kBf16, {});
        const Q8Planes planes = q8_planes(placed.state.data(), 256);
        std::fill_n(planes.m + 64, 64, std::uint8_t{0x7f});
        std::memcpy(planes.scales + kQ8ScaleBytes + scale * sizeof(bad), &bad, sizeof(bad));
        const auto stats = placed.update(format.update_blocks, nullptr);
        const bool none = scale == 1 && bad == 0x7f800000U;
        EXPECT_EQ(stats[0].non_finite_count, none ? 0 : kQ8GroupElements) << target << ", " << bad;
        EXPECT_EQ(stats[0].first_non_finite, none ? -1 : kQ8BlockElements) << target << ", " << bad;
      }
    }
  }
}

// However small the clip factor is, an update is that of the clipped gradient.
TEST(Formats, AClipFactorOfAnySizeIsTheClippedGradients) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  for (const Optimizer& format : optimizers()) {
    for (const std::string& target : available_targets()) {
      const ForcedTarget forced(target);
      for (const double norm : {1.0, 1e9, 1e17}) {
        Placed placed(format, std::mt19937_64(seed), 512, Dtype::kF32, {});
        std::fill_n(placed.state.data(), format.state_bytes(512), std::byte{0});
        for (std::size_t i = 0; i < 512; ++i) {
          const auto g = static_cast<float>(1e-2 * norm);
          std::memcpy(placed.gradient.data() + i * sizeof(g), &g, sizeof(g));
        }
        placed.segment.scalars = {.lr = 1e-3, .beta2 = 0.999, .clip_scale = 1.0 / norm};
        const auto stats = placed.update(format.update_blocks, nullptr);
        // The first update of an element is lr.
        EXPECT_NEAR(std::sqrt(stats[0].sum_squares / 512), 1e-3, 1e-8)
            << format.state << ", " << target << ", norm " << norm;
      }
    }
  }
}

TEST(Formats, NonFiniteWeightsAreCountedWithTheFirstIndex) {
  const FlushToZeroScope flush_to_zero;
  const std::uint64_t seed = test_seed();
  for (const Optimizer& format : optimizers()) {
    for (const std::string& target : available_targets()) {
      const ForcedTarget forced(target);
      for (const std::uint32_t bad : {0x7f800000U, 0xff800000U, 0x7fffffffU, 0xffffffffU}) {
        Placed placed(format, std::mt19937_64(seed), 101, Dtype::kF32, {});
        for (const std::size_t at : {37U, 100U}) {
          std::memcpy(placed.gradient.data() + at * sizeof(float), &bad, sizeof(bad));
        }
        const auto stats = placed.update(format.update_blocks, nullptr);
        EXPECT_EQ(stats[0].non_finite_count, 2) << format.state << ", " << target;
        EXPECT_EQ(stats[0].first_non_finite, 37) << format.state << ", " << target;
      }
    }
  }
}

}  // namespace
}  // namespace headrace::optim
