// Weights of state "q8" as floats: every pair of parts, every instruction set, any length, any
// alignment, any number of threads.

#include "optim_cpu/decode_q8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/float_environment.hpp"
#include "optim_cpu/convert.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/test_support.hpp"
#include "optim_cpu/threads.hpp"
#include "optim_cpu/weights.hpp"

namespace headrace::optim {
namespace {

// The index of the first element whose bits are not those of its parts joined, -1 if there is none.
// Bits as integers: a NaN has to keep its own.
std::int64_t first_difference(const Q8WeightSpan& span) {
  for (std::int64_t i = 0; i < span.elements; ++i) {
    const float joined = join_weight(
        ShortSplitWeight{.high = span.high[i], .correction = span.correction[q8_byte(i)]});
    if (std::bit_cast<std::uint32_t>(span.weights[i]) != std::bit_cast<std::uint32_t>(joined)) {
      return i;
    }
  }
  return -1;
}

// As integers, so that NaNs are compared by their bits.
std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  bits.reserve(values.size());
  for (const float& value : values) {
    bits.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return bits;
}

template <class T>
void fill_random(std::mt19937_64& random, std::span<T> values) {
  for (T& value : values) {
    value = static_cast<T>(random());
  }
}

TEST(DecodeQ8, EveryPairOfPartsInEveryInstructionSet) {
  constexpr std::int64_t kHighs = 1 << 16;
  std::vector<std::uint16_t> high(kHighs);
  std::vector<std::uint8_t> correction(kHighs);
  static_assert(kHighs >= kQ8StreamedElements);
  OffsetBuffer<float> streamed(kHighs, 0);
  OffsetBuffer<float> stored(kHighs, sizeof(float));
  for (std::int64_t i = 0; i < kHighs; ++i) {
    high[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
  }
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    // Of neighbours the corrections differ, and each high meets all of them.
    for (unsigned turn = 0; turn < 256; ++turn) {
      for (std::int64_t i = 0; i < kHighs; ++i) {
        correction[static_cast<std::size_t>(q8_byte(i))] =
            static_cast<std::uint8_t>(static_cast<unsigned>(i) * 37U + turn);
      }
      for (float* const weights : {streamed.data(), stored.data()}) {
        const Q8WeightSpan span = {.high = high.data(),
                                   .correction = correction.data(),
                                   .weights = weights,
                                   .elements = kHighs};
        decode_q8_weights(span);
        ASSERT_EQ(first_difference(span), -1) << target << ", turn " << turn;
      }
    }
  }
}

// Offsets of bytes for the correction's plane, of elements for the others, that go through all of a
// cache line; lengths around multiples of blocks, and of spans that are stored past the caches.
TEST(DecodeQ8, AnyLengthAtAnyAlignmentInEveryInstructionSet) {
  std::mt19937_64 random(test_seed());
  std::vector<std::int64_t> lengths = {
      127, 128, 129, 191, 1000, 4095, 4097, kQ8StreamedElements, kQ8StreamedElements + 33};
  for (std::int64_t length = 0; length <= 65; ++length) {
    lengths.push_back(length);
  }
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    for (const std::int64_t length : lengths) {
      for (std::size_t offset = 0; offset < 64; ++offset) {
        OffsetBuffer<std::uint16_t> high(length, offset / 2 * 2);
        OffsetBuffer<std::uint8_t> correction(q8_blocks(length) * kQ8BlockElements, offset);
        OffsetBuffer<float> weights(length, offset * 4);
        fill_random(random, high.span());
        fill_random(random, correction.span());
        const Q8WeightSpan span = {.high = high.data(),
                                   .correction = correction.data(),
                                   .weights = weights.data(),
                                   .elements = length};
        decode_q8_weights(span);
        ASSERT_EQ(first_difference(span), -1)
            << target << ", " << length << " elements, offset " << offset;
        ASSERT_TRUE(weights.guards_intact()) << target << ", " << length << " elements";
      }
    }
  }
}

// Nothing is computed, so subnormal weights are not flushed.
TEST(DecodeQ8, FlushToZeroDoesNotChangeBits) {
  const FlushToZeroScope flush_to_zero;
  std::vector<std::uint16_t> high(kQ8BlockElements);
  std::vector<std::uint8_t> correction(kQ8BlockElements);
  std::vector<float> weights(kQ8BlockElements);
  for (std::size_t i = 0; i < high.size(); ++i) {
    high[i] = static_cast<std::uint16_t>(i);
    correction[i] = static_cast<std::uint8_t>(i * 5);
  }
  const Q8WeightSpan span = {.high = high.data(),
                             .correction = correction.data(),
                             .weights = weights.data(),
                             .elements = kQ8BlockElements};
  for (const std::string& target : available_targets()) {
    const ForcedTarget forced(target);
    decode_q8_weights(span);
    EXPECT_EQ(first_difference(span), -1) << target;
  }
}

// A tile of each format on threads is the same tile read by one, in parts that begin with a group.
TEST(DecodeQ8, ThreadsReadTheWeightsOfATileInAnyFormat) {
  std::mt19937_64 random(test_seed());
  for (const Optimizer& format : optimizers()) {
    for (const std::int64_t elements : {0, 1, 100, 16384, 16385, 200'001}) {
      std::vector<std::byte> param(
          static_cast<std::size_t>(elements * format.param_element_bytes()));
      std::vector<std::byte> state(static_cast<std::size_t>(format.state_bytes(elements)));
      fill_random(random, std::span(reinterpret_cast<std::uint8_t*>(param.data()), param.size()));
      fill_random(random, std::span(reinterpret_cast<std::uint8_t*>(state.data()), state.size()));
      const TileMemory tile = {
          .param = param.data(), .state = state.data(), .tile_elements = elements};
      std::vector<float> expected(static_cast<std::size_t>(elements));
      constexpr std::int64_t kPart = 4160;  // 65 blocks: not a multiple of what a thread takes
      for (std::int64_t begin = 0; begin < elements; begin += kPart) {
        const auto count = static_cast<std::size_t>(std::min(kPart, elements - begin));
        read_state(
            format, tile, begin, {.param = {expected.data() + begin, count}, .m = {}, .v = {}});
      }
      for (const int count : {1, 2, 5}) {
        const std::unique_ptr<Threads> threads = *Threads::create(count);
        std::vector<float> weights(expected.size());
        read_weights(format, tile, weights.data(), *threads);
        EXPECT_TRUE(bits_of(weights) == bits_of(expected))
            << format.state << ", " << elements << " elements, " << count << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace headrace::optim
