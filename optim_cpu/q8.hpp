// The state format "q8": 8 bits for each moment and for the weight's second part, in records of 32
// elements. Byte map of a record (a group; element i of the group in 0..31):
//   [0, 4)        scale of m, float: the largest |m| of the group
//   [4, 8)        scale of v, float: the largest sqrt(v) of the group
//   [8 + i]       code of m, signed, -127..127
//   [40 + i]      code of v, unsigned, 0..255
//   [72 + i]      correction of the weight, signed (weights.hpp)
// The state of a tile of N elements is ceil(N / 32) records; element i of the tile is in record
// i / 32. Tensors start at multiples of 64, so no group holds elements of two. Zero bytes are zero
// moments and weights that are exactly their bf16 part. Scales are whole floats, since a scale of
// fewer bits would not follow v down at beta2 = 0.999 (by 0.05 % a step).
//
// Moments are companded: m by softsign, so that small codes are fine steps (1/253 of the scale at
// first, 1/64 at the end), v by its square root. Decoding:
//   m = M(|code|) * scale, with the code's sign;  M(c) = bf16(c / (254 - c))
//   v = s * s;  s = code * (scale * (1 / 255))
// Encoding, with one byte of random bits `r` for each (rounding.hpp), so that what is too small for
// a step still moves the code as often as it must: a code is floor(x + r / 256) of
//   x = 254 * m / (scale + |m|)            m
//   x = max(1, s * (255 / scale))          v, s = sqrt(v); v = 0 has code 0
// x is in units of 1/256, rounded to nearest even. The largest element of a group keeps its value
// exactly. An element of v other than 0 decodes to no less than a quarter of what was encoded (code
// 1 for 2 - 1/256): an update by it is less than twice the exact one.
//
// Threads: any. Failure: none; a group with a NaN or an infinity has unspecified codes.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "optim_cpu/weights.hpp"

namespace headrace::optim {

inline constexpr std::int64_t kQ8GroupElements = 32;

struct Q8Record {
  float m_scale = 0.0F;
  float v_scale = 0.0F;
  std::array<std::uint8_t, kQ8GroupElements> m = {};
  std::array<std::uint8_t, kQ8GroupElements> v = {};
  std::array<std::uint8_t, kQ8GroupElements> correction = {};
};

static_assert(sizeof(Q8Record) == 104 && alignof(Q8Record) == 4);
static_assert(offsetof(Q8Record, m) == 8 && offsetof(Q8Record, v) == 40 &&
              offsetof(Q8Record, correction) == 72);

[[nodiscard]] constexpr std::int64_t q8_records(std::int64_t elements) {
  return elements / kQ8GroupElements + (elements % kQ8GroupElements != 0 ? 1 : 0);
}

// M(0) .. M(127), the upper halves of floats.
inline constexpr std::array<std::uint16_t, 128> kQ8Magnitudes = [] {
  std::array<std::uint16_t, 128> magnitudes = {};
  for (std::size_t c = 0; c < magnitudes.size(); ++c) {
    magnitudes[c] = bf16_from_float(static_cast<float>(c) / static_cast<float>(254 - c));
  }
  return magnitudes;
}();

inline constexpr float kQ8InverseVCodes = 1.0F / 255.0F;
inline constexpr float kQ8MSteps = 254.0F * 256.0F;  // of x of m, units of 1/256
inline constexpr float kQ8VSteps = 255.0F * 256.0F;

[[nodiscard]] inline float q8_decode_m(std::uint8_t code, float scale) {
  const bool negative = (code & 0x80U) != 0;
  const std::uint8_t number = negative ? static_cast<std::uint8_t>(0x100U - code) : code;
  const float magnitude = float_from_bf16(kQ8Magnitudes[number % kQ8Magnitudes.size()]);
  return (negative ? -magnitude : magnitude) * scale;
}

[[nodiscard]] inline float q8_decode_v(std::uint8_t code, float scale) {
  const float root = static_cast<float>(code) * (scale * kQ8InverseVCodes);
  return root * root;
}

// To nearest even, |value| < 2^22, by the rounding of an addition: the same in every instruction
// set.
[[nodiscard]] inline std::int32_t q8_nearest(float value) {
  constexpr float kShift = 0x1.8p23F;
  return std::bit_cast<std::int32_t>(value + kShift) - std::bit_cast<std::int32_t>(kShift);
}

[[nodiscard]] inline std::uint8_t q8_encode_m(float m, float scale, std::uint8_t bits) {
  const float sum = (scale > 0.0F ? scale : 1.0F) + std::fabs(m);
  return static_cast<std::uint8_t>((q8_nearest((m / sum) * kQ8MSteps) + bits) >> 8);
}

// `root` is sqrt(v).
[[nodiscard]] inline std::uint8_t q8_encode_root(float root, float scale, std::uint8_t bits) {
  const float steps = root * (scale > 0.0F ? kQ8VSteps / scale : 0.0F);
  const float kept = root > 0.0F ? std::fmax(steps, 256.0F) : 0.0F;
  return static_cast<std::uint8_t>((q8_nearest(kept) + bits) >> 8);
}

}  // namespace headrace::optim
