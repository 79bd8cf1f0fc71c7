// IEEE half precision in integer arithmetic: the same bits on every machine, with or without F16C.
#include "core/dtype.hpp"

namespace headrace {

namespace {

constexpr std::uint32_t kF32ExponentBias = 127;
constexpr std::uint32_t kF16ExponentBias = 15;
constexpr int kMantissaShift = 23 - 10;

// value >> shift, rounded to nearest, ties to even; 1 <= shift <= 31.
constexpr std::uint32_t shift_round_even(std::uint32_t value, std::uint32_t shift) {
  const std::uint32_t kept = value >> shift;
  const std::uint32_t rest = value & ((1U << shift) - 1U);
  const std::uint32_t half = 1U << (shift - 1U);
  const bool up = rest > half || (rest == half && (kept & 1U) != 0U);
  return kept + (up ? 1U : 0U);
}

}  // namespace

std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: keep the top of its payload, made quiet
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> kMantissaShift) & 0x3ffU));
  }
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t mantissa = magnitude & 0x7fffffU;
  constexpr std::uint32_t kRebias = kF32ExponentBias - kF16ExponentBias;
  if (exponent > kRebias) {  // normal in half precision, or too large
    if (exponent >= kRebias + 31U) {
      return static_cast<std::uint16_t>(sign | 0x7c00U);
    }
    // A carry out of the mantissa moves into the exponent, up to infinity, which is what is due.
    const std::uint32_t rounded =
        shift_round_even(((exponent - kRebias) << 23) | mantissa, kMantissaShift);
    return static_cast<std::uint16_t>(sign | rounded);
  }
  // Subnormal in half precision: the unit is 2^-24.
  const std::uint32_t shift = kMantissaShift + 1U + (kRebias - exponent);
  if (shift > 25U) {
    return static_cast<std::uint16_t>(sign);
  }
  return static_cast<std::uint16_t>(sign | shift_round_even(mantissa | 0x800000U, shift));
}

float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1fU) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << kMantissaShift));
  }
  if (exponent != 0U) {
    const std::uint32_t rebiased = exponent + kF32ExponentBias - kF16ExponentBias;
    return std::bit_cast<float>(sign | (rebiased << 23) | (mantissa << kMantissaShift));
  }
  // Subnormal or zero: mantissa x 2^-24 is exact in float (and normal, so flush-to-zero is
  // harmless).
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

}  // namespace headrace
