// Stochastic rounding: random bits as a function of (seed, update, tensor, element), and the two
// roundings that use them. Whatever the tiling, the threads, the instruction set and the tier, an
// element of an update gets the same bits.
//
// A Philox number of (seed, stream, update, tensor, block of 65,536 elements) keys a block; a mix
// of 16-bit operations, cheap in any vector width, spreads the key over the block's elements. For
// one key the first word takes each value once, so that a block's roundings are even by
// construction; how an element is rounded from update to update is up to Philox.
//
// Threads: any. Failure: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/random.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

// Elements that share a key; a block of sums, too.
inline constexpr std::int64_t kRoundingBlockElements = 65536;

struct RoundingKey {
  std::uint16_t multiplier = 1;  // odd
  std::uint16_t addend = 0;
};

// Of the element's block. `element` counts from its tensor's start.
[[nodiscard]] inline RoundingKey rounding_key(const RoundingOrigin& origin, std::int64_t element) {
  const RandomSource source(origin.seed, RandomStream::kStochasticRounding);
  const std::uint32_t bits =
      source.bits({.update = static_cast<std::uint32_t>(origin.update),
                   .tensor = origin.tensor,
                   .element = static_cast<std::uint64_t>(element / kRoundingBlockElements)});
  return {.multiplier = static_cast<std::uint16_t>((bits >> 16U) | 1U),
          .addend = static_cast<std::uint16_t>(bits)};
}

// Two words of 16 random bits for each element. Each is even and together they cover their square
// evenly, but the second follows from the first: the errors of two numbers of one element that are
// rounded by them have no common sign, and are not independent.
struct RoundingBits {
  std::uint16_t first = 0;
  std::uint16_t second = 0;
};

// The multipliers are found by search for even avalanche (C. Wellons, hash-prospector).
inline constexpr std::uint16_t kMix1 = 0x88b5;
inline constexpr std::uint16_t kMix2 = 0xdb2d;

[[nodiscard]] constexpr RoundingBits rounding_bits(RoundingKey key, std::int64_t element) {
  const auto product = [](std::uint32_t a, std::uint32_t b) {
    return static_cast<std::uint16_t>(a * b);
  };
  const auto folded = [](std::uint16_t x, unsigned shift) {
    return static_cast<std::uint16_t>(x ^ (x >> shift));
  };
  const auto index = static_cast<std::uint16_t>(element);
  const auto keyed =
      static_cast<std::uint16_t>(product(index, key.multiplier) + std::uint32_t{key.addend});
  const std::uint16_t first = product(folded(keyed, 8), kMix1);
  return {.first = first, .second = product(folded(first, 7), kMix2)};
}

// Calls visit(begin, elements) for the parts of [begin, begin + elements) of a tensor that share a
// key each, ascending.
template <class Visit>
void for_each_rounding_block(std::int64_t begin, std::int64_t elements, const Visit& visit) {
  for (const std::int64_t end = begin + elements; begin < end;) {
    const std::int64_t block_end = (begin / kRoundingBlockElements + 1) * kRoundingBlockElements;
    const std::int64_t part = std::min(end, block_end) - begin;
    visit(begin, part);
    begin += part;
  }
}

// What rounds to nearest (ties away from zero) where `bits` belong: for conversions.
inline constexpr std::uint16_t kRoundingHalf = 0x8000;

// A bf16 value whose expectation over uniform bits is `value`; exact values and infinities stay.
// What a NaN becomes is unspecified.
[[nodiscard]] constexpr std::uint16_t bf16_stochastic(float value, std::uint16_t bits) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + bits) >> 16U);
}

}  // namespace headrace::optim
