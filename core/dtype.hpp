// Element types and their conversions. bfloat16 is kept as its 16 bits; arithmetic is always in
// float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {

enum class Dtype : std::uint8_t { kF32, kBf16, kF16 };

[[nodiscard]] constexpr std::size_t dtype_bytes(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : 2;
}

[[nodiscard]] constexpr std::string_view dtype_name(Dtype dtype) {
  return dtype == Dtype::kF32 ? "fp32" : dtype == Dtype::kBf16 ? "bf16" : "fp16";
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
[[nodiscard]] constexpr std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

[[nodiscard]] constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// IEEE half precision, round to nearest even, with subnormals and infinities.
[[nodiscard]] std::uint16_t f16_from_float(float value);
[[nodiscard]] float float_from_f16(std::uint16_t bits);

}  // namespace headrace
