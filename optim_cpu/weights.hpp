// How a master weight is kept beside its bf16 compute weight: as two parts whose bits together are
// those of the float. The first part is what the device computes with.
//
// Invariant: joining what was split gives the bits back, for every finite float (and infinities);
// a NaN becomes the default NaN. Threads: any. Failure: none.
#pragma once

#include <bit>
#include <cstdint>

namespace headrace::optim {

inline constexpr std::uint32_t kDefaultNan = 0x7fc00000;

// `high` is the float rounded to bf16, to nearest, ties away from zero; `low` is what is missing,
// in units of the float's last place. (With ties to even the second part would need 17 bits.)
struct SplitWeight {
  std::uint16_t high = 0;
  std::uint16_t low = 0;  // a signed number

  friend bool operator==(const SplitWeight&, const SplitWeight&) = default;
};

[[nodiscard]] constexpr std::uint32_t bits_without_nan(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7fffffffU) > 0x7f800000U ? kDefaultNan : bits;
}

[[nodiscard]] constexpr SplitWeight split_weight(float value) {
  const std::uint32_t bits = bits_without_nan(value);
  return {.high = static_cast<std::uint16_t>((bits + 0x8000U) >> 16U),
          .low = static_cast<std::uint16_t>(bits)};
}

// (high << 16) + low, low being signed: the excess of 0x8000 makes it unsigned.
[[nodiscard]] constexpr float join_weight(SplitWeight split) {
  const std::uint32_t high = std::uint32_t{split.high} << 16U;
  return std::bit_cast<float>((high | (split.low ^ 0x8000U)) - 0x8000U);
}

// The same with a second part of 8 bits, in units of 2^-8 of the last place of `high`: a float
// whose mantissa has 15 bits after the point. `bits` (0..255) rounds it: 128 to nearest, random
// ones so that its expectation is `value`. A weight that was split and joined splits into the same
// parts, whatever the bits.
struct ShortSplitWeight {
  std::uint16_t high = 0;
  std::uint8_t correction = 0;  // a signed number

  friend bool operator==(const ShortSplitWeight&, const ShortSplitWeight&) = default;
};

[[nodiscard]] constexpr ShortSplitWeight split_weight_short(float value, std::uint8_t bits) {
  const std::uint32_t rounded = bits_without_nan(value) + bits;
  return {.high = static_cast<std::uint16_t>((rounded + 0x8000U) >> 16U),
          .correction = static_cast<std::uint8_t>(rounded >> 8U)};
}

[[nodiscard]] constexpr float join_weight(ShortSplitWeight split) {
  return join_weight(
      SplitWeight{.high = split.high, .low = static_cast<std::uint16_t>(split.correction << 8U)});
}

}  // namespace headrace::optim
