// State formats as floats: what reading and writing keeps, and how far it rounds.

#include "optim_cpu/convert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "optim_cpu/test_support.hpp"

namespace headrace::optim {
namespace {

constexpr std::int64_t kTileElements = 320;
constexpr std::int64_t kBegin = 64;
constexpr std::size_t kElements = 150;  // ends within a group

struct Tile {
  std::vector<std::byte> param, state;

  explicit Tile(const Optimizer& format, unsigned char fill = 0)
      : param(static_cast<std::size_t>(kTileElements * format.param_element_bytes()),
              std::byte{fill}),
        state(static_cast<std::size_t>(format.state_bytes(kTileElements)), std::byte{fill}) {}

  TileMemory memory() {
    return {.param = param.data(), .state = state.data(), .tile_elements = kTileElements};
  }

  friend bool operator==(const Tile&, const Tile&) = default;
};

struct Values {
  std::vector<float> param, m, v;

  StateValues view() { return {.param = param, .m = m, .v = v}; }
};

Values random_values(std::mt19937_64& random) {
  constexpr auto kCount = static_cast<std::int64_t>(kElements);
  Values values{.param = mixed_floats(random, kCount, -4, 1),
                .m = mixed_floats(random, kCount, -6, -2),
                .v = mixed_floats(random, kCount, -9, -4)};
  for (float& v : values.v) {
    v = std::fabs(v);
  }
  return values;
}

std::string name_of(const Optimizer& format) {
  return std::string(format.state) + ", param " + std::string(dtype_name(format.param_dtype));
}

Values read(const Optimizer& format, Tile& tile) {
  Values values{.param = std::vector<float>(kElements),
                .m = std::vector<float>(kElements),
                .v = std::vector<float>(kElements)};
  read_state(format, tile.memory(), kBegin, values.view());
  return values;
}

// Largest |difference| over a scale of the element's own or of its group's.
enum class Relative { kToElement, kToGroup };

double error(const std::vector<float>& actual, const std::vector<float>& exact, Relative relative) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double scale = std::fabs(exact[i]);
    if (relative == Relative::kToGroup) {
      for (std::size_t j = i / 32 * 32; j < std::min(exact.size(), i / 32 * 32 + 32); ++j) {
        scale = std::max(scale, std::fabs(static_cast<double>(exact[j])));
      }
    }
    const double difference = std::fabs(static_cast<double>(actual[i]) - exact[i]);
    largest = std::max(largest, scale == 0 ? difference : difference / scale);
  }
  return largest;
}

// Subnormal values are zero to the engine, which flushes them.
TEST(Convert, FormatsKeepWhatTheyHaveBitsFor) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  for (const Optimizer& format : optimizers()) {
    Values exact = random_values(random);
    Tile tile(format);
    write_state(format, tile.memory(), kBegin, exact.view());
    Values back = read(format, tile);
    const bool q8 = format.state == "q8";
    const bool bf16 = format.state == "bf16";
    EXPECT_LE(error(back.param, exact.param, Relative::kToElement), q8 ? 0x1p-16 : 0.0)
        << name_of(format);
    if (q8) {
      // Half a step of the code: of m 1/118 of the scale at its end; of v, one step of its root.
      EXPECT_LE(error(back.m, exact.m, Relative::kToGroup), 0.0085) << name_of(format);
      EXPECT_LE(error(back.v, exact.v, Relative::kToGroup), 0.0041) << name_of(format);
    } else {
      EXPECT_LE(error(back.m, exact.m, Relative::kToElement), bf16 ? 0x1p-8 : 0.0);
      EXPECT_LE(error(back.v, exact.v, Relative::kToElement), bf16 ? 0x1p-8 : 0.0);
    }
  }
}

TEST(Convert, WritingWhatWasReadChangesNothing) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  for (const Optimizer& format : optimizers()) {
    Values exact = random_values(random);
    Tile tile(format);
    write_state(format, tile.memory(), kBegin, exact.view());
    Tile again(format);
    convert_state(format,
                  tile.memory(),
                  format,
                  again.memory(),
                  {.begin = kBegin, .elements = static_cast<std::int64_t>(kElements)});
    if (format.state != "q8") {
      EXPECT_TRUE(again == tile) << name_of(format);
      continue;
    }
    const Values first = read(format, tile);
    const Values second = read(format, again);
    EXPECT_TRUE(again.param == tile.param);
    EXPECT_EQ(first.param, second.param);
    EXPECT_EQ(first.m, second.m);
    EXPECT_LE(error(second.v, first.v, Relative::kToElement), 1e-6);
  }
}

TEST(Convert, AnyFormatToAnyOtherIsReadingAndWriting) {
  const FlushToZeroScope flush_to_zero;
  std::mt19937_64 random(test_seed());
  Values exact = random_values(random);
  for (const Optimizer& from : optimizers()) {
    Tile source(from);
    write_state(from, source.memory(), kBegin, exact.view());
    for (const Optimizer& to : optimizers()) {
      Tile target(to, 0x5a);
      const Tile untouched = target;
      convert_state(from,
                    source.memory(),
                    to,
                    target.memory(),
                    {.begin = kBegin, .elements = static_cast<std::int64_t>(kElements)});
      Tile expected = untouched;
      Values read_back = read(from, source);
      write_state(to, expected.memory(), kBegin, read_back.view());
      EXPECT_TRUE(target == expected) << name_of(from) << " to " << name_of(to);
      const bool exact_source = from.state == "fp32";
      if (exact_source && to.state == "fp32") {
        EXPECT_EQ(read(to, target).m, exact.m);
        EXPECT_EQ(read(to, target).param, exact.param);
      }
    }
  }
}

TEST(Convert, ZeroBytesAreZeroMomentsAndWeightsThatAreTheirBf16Part) {
  for (const Optimizer& format : optimizers()) {
    Tile tile(format);
    auto* weights = reinterpret_cast<std::uint16_t*>(tile.param.data());
    for (std::int64_t i = 0; i < kTileElements && format.param_dtype == Dtype::kBf16; ++i) {
      weights[i] = bf16_from_float(0.37F);
    }
    const Values values = read(format, tile);
    const float expected =
        format.param_dtype == Dtype::kBf16 ? float_from_bf16(bf16_from_float(0.37F)) : 0.0F;
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(values.param[i], expected) << name_of(format);
      ASSERT_EQ(values.m[i], 0.0F) << name_of(format);
      ASSERT_EQ(values.v[i], 0.0F) << name_of(format);
    }
  }
}

}  // namespace
}  // namespace headrace::optim
