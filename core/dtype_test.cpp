// bf16 and half precision: rounding, special values, and every half value read back.
#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(Bf16, RoundsToNearestWithTiesToEven) {
  EXPECT_EQ(bf16_from_float(1.0F), 0x3f80U);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808000U)), 0x3f80U);  // tie, to even
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f818000U)), 0x3f82U);  // tie, to even
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808001U)), 0x3f81U);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80U);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001U)))));
}

TEST(Bf16, EveryValueReadsBack) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const float value = float_from_bf16(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) {
      EXPECT_EQ(bf16_from_float(value), bits);
    }
  }
}

TEST(F16, EveryValueReadsBack) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const float value = float_from_f16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value))));
    } else {
      EXPECT_EQ(f16_from_float(value), bits);
    }
  }
}

TEST(F16, KnownValues) {
  EXPECT_EQ(float_from_f16(0x3c00U), 1.0F);
  EXPECT_EQ(float_from_f16(0x0001U), 0x1.0p-24F);
  EXPECT_EQ(float_from_f16(0x7bffU), 65504.0F);
  EXPECT_EQ(float_from_f16(0xfc00U), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16_from_float(65519.0F), 0x7bffU);
  EXPECT_EQ(f16_from_float(65520.0F), 0x7c00U);    // a tie, away into infinity
  EXPECT_EQ(f16_from_float(0x1.0p-25F), 0x0000U);  // a tie, to even
  EXPECT_EQ(f16_from_float(0x1.000002p-25F), 0x0001U);
  EXPECT_EQ(f16_from_float(0x1.8p-24F), 0x0002U);  // a tie, to even
  EXPECT_EQ(f16_from_float(-0.0F), 0x8000U);
  EXPECT_EQ(f16_from_float(std::numeric_limits<float>::denorm_min()), 0x0000U);
}

// Between each two neighbours the middle goes to the even one, and each side to its own.
TEST(F16, RoundingIsNearestEvenBetweenAllNeighbours) {
  for (std::uint32_t low = 0; low < 0x7bffU; ++low) {
    const auto a = static_cast<double>(float_from_f16(static_cast<std::uint16_t>(low)));
    const auto b = static_cast<double>(float_from_f16(static_cast<std::uint16_t>(low + 1)));
    const auto middle = static_cast<float>((a + b) / 2);
    EXPECT_EQ(f16_from_float(middle), (low & 1U) == 0U ? low : low + 1);
    EXPECT_EQ(f16_from_float(std::nextafter(middle, 0.0F)), low);
    EXPECT_EQ(f16_from_float(std::nextafter(middle, 1e9F)), low + 1);
  }
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(dtype_bytes(Dtype::kF32), 4U);
  EXPECT_EQ(dtype_bytes(Dtype::kBf16), 2U);
  EXPECT_EQ(dtype_name(Dtype::kBf16), "bf16");
}

}  // namespace
}  // namespace headrace
