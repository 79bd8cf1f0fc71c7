// Gradient collection: every instruction set against the plain reference; NaN and Inf; norms;
// lengths beyond 2^31.

#include "optim_cpu/gradient.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "optim_cpu/reference.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/test_support.hpp"

namespace headrace::optim {
namespace {

constexpr std::array kKinds = {
    GradientTarget::kNone, GradientTarget::kF32, GradientTarget::kBf16InF32, GradientTarget::kBf16};

// The targets of one collection, in the storage that its kind needs.
struct Target {
  OffsetBuffer<float> floats;
  OffsetBuffer<std::uint16_t> halves;
  GradientTarget kind;

  Target(std::int64_t elements, GradientTarget target_kind, std::size_t offset)
      : floats(elements, offset / 4 * 4), halves(elements, offset), kind(target_kind) {}

  void* data() {
    if (kind == GradientTarget::kNone) {
      return nullptr;
    }
    return kind == GradientTarget::kBf16 ? static_cast<void*>(halves.data())
                                         : static_cast<void*>(floats.data());
  }
};

void expect_equal_to_reference(const std::vector<float>& incoming,
                               const std::vector<float>& accumulated,
                               std::size_t offset) {
  const auto elements = static_cast<std::int64_t>(incoming.size());
  OffsetBuffer<float> incoming_buffer(incoming, offset / 4 * 4);
  OffsetBuffer<float> accumulated_buffer(accumulated, (offset + 12) / 4 * 4);
  for (const GradientTarget kind : kKinds) {
    for (const bool accumulates : {false, true}) {
      GradientSpan span{.incoming = incoming_buffer.data(),
                        .accumulated = accumulates ? accumulated_buffer.data() : nullptr,
                        .kind = kind,
                        .elements = elements};
      Target expected(elements, kind, 0);
      span.target = expected.data();
      const BlockSum expected_sum = collect_block_reference(span);
      for (const std::string& name : available_targets()) {
        const ForcedTarget forced(name);
        Target actual(elements, kind, offset);
        span.target = actual.data();
        const BlockSum sum = collect_block(span);
        const auto context = [&] {
          return name + ", " + std::to_string(elements) + " elements, kind " +
                 std::to_string(static_cast<int>(kind)) + ", offset " + std::to_string(offset);
        };
        ASSERT_TRUE(same_bits(actual.floats.span(), expected.floats.span())) << context();
        ASSERT_TRUE(same_bits(actual.halves.span(), expected.halves.span())) << context();
        ASSERT_TRUE(actual.floats.guards_intact() && actual.halves.guards_intact()) << context();
        ASSERT_TRUE(same_bits(sum.sum_squares, expected_sum.sum_squares)) << context();
        ASSERT_EQ(sum.non_finite_count, expected_sum.non_finite_count) << context();
        ASSERT_EQ(sum.first_non_finite, expected_sum.first_non_finite) << context();
      }
    }
  }
}

TEST(Gradient, EveryInstructionSetEqualsTheReferenceAtEveryLength) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = 0; length <= 67; ++length) {
    lengths.push_back(length);
  }
  lengths.insert(lengths.end(), {127, 128, 129, 255, 256, 257, 4095, 4097, 65535, 65536});
  for (const std::int64_t length : lengths) {
    expect_equal_to_reference(
        mixed_floats(random, length, -9, 6), mixed_floats(random, length, -9, 6), 0);
  }
}

TEST(Gradient, EveryPointerOffsetGivesTheSameBits) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  for (const std::int64_t length : {1, 16, 37, 255}) {
    const std::vector<float> incoming = mixed_floats(random, length, -9, 6);
    const std::vector<float> accumulated = mixed_floats(random, length, -9, 6);
    for (std::size_t offset = 0; offset < 64; offset += 2) {
      expect_equal_to_reference(incoming, accumulated, offset);
    }
  }
}

// bf16 rounding of every kind of float, NaN payloads included, against core's conversion.
TEST(Gradient, EveryBf16RoundingIsCores) {
  const FlushToZeroScope flush_to_zero;
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000U; ++high) {
    values.push_back(std::bit_cast<float>((high << 16U) | (high * 40503U & 0xffffU)));
    values.push_back(std::bit_cast<float>((high << 16U) | 0x8000U));  // a tie
  }
  for (const std::string& name : available_targets()) {
    const ForcedTarget forced(name);
    std::vector<std::uint16_t> rounded(values.size());
    for (std::size_t begin = 0; begin < values.size(); begin += kBlockElements) {
      const BlockSum sum = collect_block({.incoming = values.data() + begin,
                                          .target = rounded.data() + begin,
                                          .kind = GradientTarget::kBf16,
                                          .elements = kBlockElements});
      ASSERT_GT(sum.non_finite_count, 0);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(rounded[i], bf16_from_float(values[i]))
          << name << ", bits " << std::bit_cast<std::uint32_t>(values[i]);
    }
  }
}

TEST(Gradient, TargetsMayBeTheirOwnSources) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  const std::vector<float> incoming = mixed_floats(random, 1003, -9, 6);
  const std::vector<float> accumulated = mixed_floats(random, 1003, -9, 6);
  for (const GradientTarget kind : {GradientTarget::kF32, GradientTarget::kBf16InF32}) {
    std::vector<float> expected(1003);
    const GradientSpan span{.incoming = incoming.data(),
                            .accumulated = accumulated.data(),
                            .target = expected.data(),
                            .kind = kind,
                            .elements = 1003};
    const BlockSum expected_sum = collect_block_reference(span);
    for (const bool into_accumulated : {false, true}) {
      std::vector<float> source = incoming;
      std::vector<float> sum_so_far = accumulated;
      GradientSpan in_place = span;
      in_place.incoming = source.data();
      in_place.accumulated = sum_so_far.data();
      in_place.target = into_accumulated ? sum_so_far.data() : source.data();
      const BlockSum sum = collect_block(in_place);
      EXPECT_TRUE(same_bits(std::span<float>(into_accumulated ? sum_so_far : source),
                            std::span<float>(expected)));
      EXPECT_TRUE(same_bits(sum.sum_squares, expected_sum.sum_squares));
    }
  }
}

TEST(Gradient, AddMicroBatchAddsOne) {
  const FlushToZeroScope flush_to_zero;
  const auto threads = Threads::create(3).value();
  std::mt19937_64 random(test_seed());
  for (const std::int64_t length : {0, 1, 15, 16, 17, 1021, 65537, 200'001}) {
    const std::vector<float> incoming = mixed_floats(random, length, -9, 6);
    const std::vector<float> before = mixed_floats(random, length, -9, 6);
    std::vector<float> expected = before;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = before[i] + incoming[i];
    }
    for (const std::string& name : available_targets()) {
      const ForcedTarget forced(name);
      std::vector<float> alone = before;
      std::vector<float> together = before;
      add_micro_batch(alone, incoming);
      add_micro_batch(together, incoming, *threads);
      ASSERT_TRUE(same_bits(std::span<float>(alone), std::span<float>(expected))) << name;
      ASSERT_TRUE(same_bits(std::span<float>(together), std::span<float>(expected))) << name;
    }
  }
}

TEST(Gradient, NonFiniteValuesAreFoundWithTheirFirstIndex) {
  const FlushToZeroScope flush_to_zero;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto threads = Threads::create(2).value();
  constexpr std::int64_t kElements = 2 * kBlockElements + 77;
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (const std::int64_t at :
         {std::int64_t{0}, kBlockElements - 1, kBlockElements, kElements - 1}) {
      for (const GradientTarget kind : kKinds) {
        std::vector<float> incoming(kElements, 0.5F);
        incoming[static_cast<std::size_t>(at)] = bad;
        incoming[kElements - 1] = bad;
        Target target(kElements, kind, 0);
        std::vector<double> sums(3);
        const GradientCheck check = collect_blocks({.incoming = incoming.data(),
                                                    .target = target.data(),
                                                    .kind = kind,
                                                    .elements = kElements},
                                                   sums,
                                                   *threads);
        EXPECT_EQ(check.non_finite_count, at == kElements - 1 ? 1 : 2);
        EXPECT_EQ(check.first_non_finite, at);
        const double norm = total_norm(sums);
        EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : std::isinf(norm) && norm > 0);
      }
    }
  }
}

// Both micro-batches are finite, their sum is not; and a value that only rounding makes infinite.
TEST(Gradient, NonFiniteResultsOfAccumulationAndRoundingAreFound) {
  const FlushToZeroScope flush_to_zero;
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const GradientTarget kind : kKinds) {
    std::vector<float> incoming(100, 1.0F);
    std::vector<float> accumulated(100, 1.0F);
    incoming[99] = kLargest;
    accumulated[99] = kLargest;
    Target target(100, kind, 0);
    GradientSpan span{.incoming = incoming.data(),
                      .accumulated = accumulated.data(),
                      .target = target.data(),
                      .kind = kind,
                      .elements = 100};
    EXPECT_EQ(collect_block(span).first_non_finite, 99);
    span.accumulated = nullptr;
    const bool rounds = kind == GradientTarget::kBf16 || kind == GradientTarget::kBf16InF32;
    EXPECT_EQ(collect_block(span).non_finite_count, rounds ? 1 : 0);
  }
}

TEST(Gradient, TheLargestFiniteValuesHaveAFiniteNorm) {
  const std::vector<float> incoming(kBlockElements, -std::numeric_limits<float>::max());
  const BlockSum sum = collect_block(
      {.incoming = incoming.data(), .kind = GradientTarget::kNone, .elements = kBlockElements});
  EXPECT_EQ(sum.non_finite_count, 0);
  EXPECT_NEAR(total_norm({&sum.sum_squares, 1}),
              256.0 * std::numeric_limits<float>::max(),
              1e-12 * 256.0 * std::numeric_limits<float>::max());
}

TEST(Gradient, BlockSumsDoNotDependOnThreads) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  constexpr std::int64_t kElements = 9 * kBlockElements + 12'345;
  const std::vector<float> incoming = mixed_floats(random, kElements, -9, 6);
  std::vector<double> expected(10);
  std::vector<std::uint16_t> expected_target(kElements);
  for (std::int64_t block = 0; block < 10; ++block) {
    const std::int64_t begin = block * kBlockElements;
    expected[static_cast<std::size_t>(block)] =
        collect_block_reference({.incoming = incoming.data() + begin,
                                 .target = expected_target.data() + begin,
                                 .kind = GradientTarget::kBf16,
                                 .elements = std::min(kBlockElements, kElements - begin)})
            .sum_squares;
  }
  for (const int count : {1, 2, 3, 5}) {
    const auto threads = Threads::create(count).value();
    std::vector<std::uint16_t> target(kElements);
    std::vector<double> sums(10);
    const GradientCheck check = collect_blocks({.incoming = incoming.data(),
                                                .target = target.data(),
                                                .kind = GradientTarget::kBf16,
                                                .elements = kElements},
                                               sums,
                                               *threads);
    EXPECT_EQ(check.first_non_finite, -1);
    EXPECT_TRUE(same_bits(std::span<double>(sums), std::span<double>(expected)));
    EXPECT_TRUE(
        same_bits(std::span<std::uint16_t>(target), std::span<std::uint16_t>(expected_target)));
  }
}

TEST(Gradient, ClipScaleIsPyTorchsRuleWithoutItsFloats) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_scale(1.0, 1.0), 1.0);
  EXPECT_EQ(clip_scale(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_scale(4.0, 0.0), 1.0);
  EXPECT_EQ(total_norm({}), 0.0);
  const std::array sums = {9.0, 16.0};
  EXPECT_EQ(total_norm(sums), 5.0);
}

TEST(Gradient, BlocksAreCountedWithoutOverflow) {
  EXPECT_EQ(count_blocks(std::int64_t{0}), 0);
  EXPECT_EQ(count_blocks(std::int64_t{1}), 1);
  EXPECT_EQ(count_blocks(kBlockElements), 1);
  EXPECT_EQ(count_blocks(kBlockElements + 1), 2);
  EXPECT_EQ(count_blocks((std::int64_t{1} << 31) + 17), 32'769);
  EXPECT_EQ(count_blocks(std::numeric_limits<std::int64_t>::max()), std::int64_t{1} << 47);
}

#if !defined(__SANITIZE_THREAD__)  // whose shadow of a sparse mapping is not sparse

// 2^31 + 17 elements of a sparse mapping: the zero page, but for two values at its far end.
TEST(Gradient, BeyondTwoToThe31ElementsNothingIsLost) {
  constexpr std::int64_t kElements = (std::int64_t{1} << 31) + 17;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kElements) * sizeof(float);
  void* mapping = mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    GTEST_SKIP() << "no sparse mapping of " << kBytes << " bytes here";
  }
  auto* incoming = static_cast<float*>(mapping);
  incoming[kElements - 1] = 3.0F;
  incoming[kElements - 2] = std::numeric_limits<float>::infinity();
  std::vector<double> sums(static_cast<std::size_t>(count_blocks(kElements)));
  const auto threads = Threads::create(2).value();
  const GradientCheck check = collect_blocks(
      {.incoming = incoming, .kind = GradientTarget::kNone, .elements = kElements}, sums, *threads);
  EXPECT_EQ(check.non_finite_count, 1);
  EXPECT_EQ(check.first_non_finite, kElements - 2);
  EXPECT_TRUE(std::isinf(sums.back()));
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end() - 1, 0.0), 0.0);
  munmap(mapping, kBytes);
}

#endif

TEST(GradientDeathTest, WrongArgumentsAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<float> values(kBlockElements + 1);
  EXPECT_DEATH(static_cast<void>(collect_block({.incoming = values.data(),
                                                .kind = GradientTarget::kNone,
                                                .elements = kBlockElements + 1})),
               "collect_blocks");
  EXPECT_DEATH(static_cast<void>(collect_block(
                   {.incoming = values.data(), .kind = GradientTarget::kF32, .elements = 1})),
               "target");
}

}  // namespace
}  // namespace headrace::optim
