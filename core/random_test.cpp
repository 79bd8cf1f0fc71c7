// Facts about random numbers: known answers, shape, and independence of how they are asked for.
#include "core/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace headrace {
namespace {

// Random123's kat_vectors for philox4x32-10.
TEST(Philox, EqualsThePublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(
      philox4x32({0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}, {0xffffffffU, 0xffffffffU}),
      (PhiloxBlock{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(
      philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
      (PhiloxBlock{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(RandomSource, EveryCoordinateChangesTheNumber) {
  const RandomCounter base = {.update = 3, .tensor = 5, .element = 1000};
  const RandomSource source(1337, RandomStream::kTest);
  const std::uint32_t bits = source.bits(base);
  EXPECT_EQ(source.bits(base), bits);
  EXPECT_NE(source.bits({.update = 4, .tensor = 5, .element = 1000}), bits);
  EXPECT_NE(source.bits({.update = 3, .tensor = 6, .element = 1000}), bits);
  EXPECT_NE(source.bits({.update = 3, .tensor = 5, .element = 1001}), bits);
  EXPECT_NE(source.bits({.update = 3, .tensor = 5, .element = 1000 + (1ULL << 40U)}), bits);
  EXPECT_NE(RandomSource(1338, RandomStream::kTest).bits(base), bits);
  EXPECT_NE(RandomSource(1337 + (1ULL << 40U), RandomStream::kTest).bits(base), bits);
  EXPECT_NE(RandomSource(1337, RandomStream::kInit).bits(base), bits);
}

TEST(RandomSource, UniformsLieInTheHalfOpenUnitIntervalAndFillIt) {
  const RandomSource source(1, RandomStream::kTest);
  constexpr std::uint64_t kCount = 1U << 16U;
  std::vector<int> bins(16);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const float u = source.uniform({.update = 0, .tensor = 0, .element = i});
    ASSERT_GE(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    ++bins[static_cast<std::size_t>(u * 16.0F)];
  }
  double chi_square = 0;
  for (const int count : bins) {
    const double expected = static_cast<double>(kCount) / 16.0;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 50.0);  // 15 degrees of freedom: p < 1e-5
}

TEST(RandomSource, NormalsHaveTheirMomentsAndTails) {
  const RandomSource source(2, RandomStream::kTest);
  constexpr std::size_t kCount = 1U << 20U;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double largest = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = source.normal({.update = 0, .tensor = 0, .element = i});
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    largest = std::max(largest, std::abs(x));
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0, 0.007);
  EXPECT_NEAR(fourths / kCount, 3.0, 0.05);
  EXPECT_GT(largest, 4.2);
  EXPECT_LT(largest, 6.7);
}

// The polynomials against libm: they stand in for it, so that bits do not depend on it.
TEST(RandomSource, NormalsAreBoxMullerOfTheirPairOfWords) {
  const RandomSource source(3, RandomStream::kTest);
  constexpr double kTwoPi = 6.283185307179586;
  for (std::uint64_t pair = 0; pair < 20000; ++pair) {
    const RandomCounter even = {.update = 9, .tensor = 1, .element = 2 * pair};
    const RandomCounter odd = {.update = 9, .tensor = 1, .element = 2 * pair + 1};
    const double u = (static_cast<double>(source.bits(even)) + 1.0) * 0x1.0p-32;
    const double angle = kTwoPi * static_cast<double>(source.bits(odd)) * 0x1.0p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    EXPECT_NEAR(source.normal(even), radius * std::cos(angle), 4e-15 * (1 + radius));
    EXPECT_NEAR(source.normal(odd), radius * std::sin(angle), 4e-15 * (1 + radius));
  }
}

TEST(RandomSource, FillEqualsElementByElementFromAnyStart) {
  const RandomSource source(4, RandomStream::kTest);
  for (const std::uint64_t start : {0ULL, 1ULL, 2ULL, 3ULL, 5ULL, 1ULL << 33U}) {
    for (const std::size_t count : {0U, 1U, 2U, 7U, 64U}) {
      std::vector<float> filled(count, -1.0F);
      source.fill_normal(filled, {.update = 1, .tensor = 2, .element = start}, 0.02);
      for (std::size_t i = 0; i < count; ++i) {
        const double x = source.normal({.update = 1, .tensor = 2, .element = start + i});
        EXPECT_EQ(filled[i], static_cast<float>(0.02 * x));
      }
    }
  }
}

TEST(FeistelPermutation, IsABijectionForEverySmallSize) {
  for (std::uint64_t size = 1; size <= 300; ++size) {
    const FeistelPermutation permutation({.size = size, .seed = 7, .epoch = 0});
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t value = permutation(i);
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << "size " << size << " index " << i;
      seen[value] = true;
    }
  }
}

TEST(FeistelPermutation, SeedAndEpochChangeTheOrderAndNothingElseDoes) {
  const auto order = [](std::uint64_t seed, std::uint32_t epoch) {
    const FeistelPermutation permutation({.size = 1000, .seed = seed, .epoch = epoch});
    std::vector<std::uint64_t> values(permutation.size());
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      values[i] = permutation(i);
    }
    return values;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  std::vector<std::uint64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0U);
  EXPECT_NE(order(1, 0), identity);
}

TEST(FeistelPermutation, LargeSizesStayInside) {
  const std::uint64_t size = (std::uint64_t{1} << 61U) + 12345U;
  const FeistelPermutation permutation({.size = size, .seed = 1, .epoch = 1});
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_LT(permutation(size - 1 - i), size);
  }
}

}  // namespace
}  // namespace headrace
