// The state format "q8": 8 bits for each moment and for the weight's second part. Of a tile of N
// elements it has four planes of records, one for each block of 64 elements, b = ceil(N / 64):
//   [0, 64 b)           codes of m: a sign (0x80), then 2 bits of exponent e, 5 of mantissa k
//   [64 b, 128 b)       codes of v, unsigned, 0..255
//   [128 b, 192 b)      corrections of the weights, signed (weights.hpp)
//   [192 b, 208 b)      scales, float: for each half of a block, a group of 32 elements, the
//                       largest |m| and the largest sqrt(v)
// In a record of bytes, element i of a block is at 2 * (i % 32) + i / 32: seen as 16-bit words,
// word j holds element j in its lower byte and element 32 + j in its upper one, so a kernel gets
// two vectors of elements by shifts alone. Tensors start at multiples of 64, so no block holds
// elements of two. Zero bytes are zero moments and weights that are exactly their bf16 part. Scales
// are whole floats, since a scale of fewer bits would not follow v down at beta2 = 0.999 (by 0.05 %
// a step).
//
// Moments are companded: m by a logarithm made of four straight pieces, the bits of a float, so
// that small codes are fine steps (1/472 of the scale at first, 1/59 at the end); v by its square
// root. Decoding:
//   m = M * (scale / 29.5), with the code's sign unless M is 0;  M = 2^(e + 1) * (1 + k / 32) - 2
//   v = s * s;  s = max(code, 1) * (scale / 255)
// Encoding, with random bits, so that what is too small for a step still moves the code as often as
// it must:
//   y = (|m| * (29.5 / scale)) + 2, the code is bits 18..24 of y's bits + r, r of 18 bits: the
//       expected value of what is decoded is m;
//   x = s * (255 / scale), s = sqrt(v), the code is floor(x + r / 2^15), r of 15 bits, the sum
//       rounded to units of 2^-15: enough that small codes decay at beta2 = 0.9999.
// Scales below 2^-120 count as 0: such a group's codes are 0. The largest element of a group keeps
// its value. v decodes to no less than a quarter of what was encoded (code 1 for 2 - 1/256): an
// update by it is less than twice the exact one. What is less than a step, 0 too, decodes to one
// step: an element that gets its first gradient in a group of larger ones moves less for it.
//
// Threads: any. Failure: none; a group with a NaN or an infinity has unspecified codes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "optim_cpu/rounding.hpp"

namespace headrace::optim {

inline constexpr std::int64_t kQ8GroupElements = 32;
inline constexpr std::int64_t kQ8BlockElements = 2 * kQ8GroupElements;

// Of a group: the largest of it.
struct Q8Scales {
  float m = 0.0F;     // |m|
  float root = 0.0F;  // sqrt(v)
};

inline constexpr std::int64_t kQ8ScaleBytes = 2 * sizeof(Q8Scales);  // of a block

static_assert(sizeof(Q8Scales) == 8);

[[nodiscard]] constexpr std::int64_t q8_blocks(std::int64_t elements) {
  return elements / kQ8BlockElements + (elements % kQ8BlockElements != 0 ? 1 : 0);
}

// Where an element's byte is in a plane of bytes.
[[nodiscard]] constexpr std::int64_t q8_byte(std::int64_t element) {
  const std::int64_t in_block = element % kQ8BlockElements;
  return element - in_block + 2 * (in_block % kQ8GroupElements) + in_block / kQ8GroupElements;
}

inline constexpr float kQ8MCodeMax = 29.5F;  // M of code 127
inline constexpr float kQ8VCodeMax = 255.0F;
inline constexpr float kQ8ScaleMin = 0x1p-120F;

// Less than 29.5 by so much that no rounding takes y of the largest element above code 127.
inline constexpr float kQ8MSteps = kQ8MCodeMax * (1.0F - 0x1p-22F);
inline constexpr unsigned kQ8MFraction = 18;  // bits of y below the code

// Likewise less than 255. The code is added to a number whose last place is 2^-15 of a step.
inline constexpr float kQ8VSteps = kQ8VCodeMax * (1.0F - 0x1p-22F);
inline constexpr float kQ8VBias = 256.0F;
inline constexpr unsigned kQ8VFraction = 15;

// M above with the code's sign, exact.
[[nodiscard]] inline float q8_m_steps(std::uint8_t code) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(2.0F) +
                                  (static_cast<std::uint32_t>(code & 0x7fU) << kQ8MFraction);
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24U;
  const auto biased = std::bit_cast<float>(magnitude | sign);
  return biased - std::copysign(2.0F, biased);
}

// sqrt(v) in units of scale / 255.
[[nodiscard]] inline std::uint16_t q8_root_steps(std::uint8_t code) {
  return std::max(code, std::uint8_t{1});
}

[[nodiscard]] inline float q8_decode_m(std::uint8_t code, float scale) {
  return q8_m_steps(code) * (scale / kQ8MCodeMax);
}

// sqrt(v).
[[nodiscard]] inline float q8_decode_root(std::uint8_t code, float scale) {
  return static_cast<float>(q8_root_steps(code)) * (scale / kQ8VCodeMax);
}

[[nodiscard]] inline float q8_encode_factor(float scale, float steps) {
  return scale >= kQ8ScaleMin ? steps / scale : 0.0F;
}

// `factor` is q8_encode_factor(scale, kQ8MSteps), `bits` are 18.
[[nodiscard]] inline std::uint8_t q8_encode_m(float m, float factor, std::uint32_t bits) {
  const float biased = std::fma(m, factor, std::copysign(2.0F, m));
  const auto y = std::bit_cast<std::uint32_t>(biased) + bits;
  return static_cast<std::uint8_t>(((y >> kQ8MFraction) & 0x7fU) | ((y >> 24U) & 0x80U));
}

// `root` is sqrt(v), `factor` is q8_encode_factor(scale, kQ8VSteps), `bits` are 15.
[[nodiscard]] inline std::uint8_t q8_encode_root(float root, float factor, std::uint32_t bits) {
  const auto bias = std::bit_cast<float>(std::bit_cast<std::uint32_t>(kQ8VBias) | bits);
  const auto sum = std::bit_cast<std::uint32_t>(std::fma(root, factor, bias));
  return static_cast<std::uint8_t>(sum >> kQ8VFraction);
}

// Two neighbours of an even and an odd index have a word of 32 random bits for their m: the even
// one's in the lower half. Each takes 18 of them, its own 16 among them.
[[nodiscard]] constexpr std::uint32_t q8_m_bits(RoundingKey key, std::int64_t element) {
  const std::int64_t even = element - element % 2;
  const std::uint32_t word =
      (std::uint32_t{rounding_bits(key, even + 1).first} << 16U) | rounding_bits(key, even).first;
  return element % 2 != 0 ? word >> (32U - kQ8MFraction) : word & ((1U << kQ8MFraction) - 1);
}

// For v: the lower bits of an even element's own, the upper ones of an odd element's.
[[nodiscard]] constexpr std::uint32_t q8_v_bits(std::uint16_t second, std::int64_t element) {
  const std::uint32_t bits = second;
  return element % 2 != 0 ? bits >> (16U - kQ8VFraction) : bits & ((1U << kQ8VFraction) - 1);
}

// What rounds to nearest: for conversions.
inline constexpr std::uint32_t kQ8MHalf = 1U << (kQ8MFraction - 1);
inline constexpr std::uint32_t kQ8VHalf = 1U << (kQ8VFraction - 1);
inline constexpr std::uint8_t kQ8ByteHalf = 128;

}  // namespace headrace::optim
