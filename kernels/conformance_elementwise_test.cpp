// Element-by-element operations and rotary positions against float64.

#include <cmath>
#include <limits>

#include "kernels/conformance.hpp"
#include "kernels/conformance_reference.hpp"

namespace headrace::kernels::conformance {

HEADRACE_CONFORMANCE(Elementwise);
HEADRACE_CONFORMANCE(Rope);

namespace {

// Around vectors of 4 to 16 lanes, and over the blocks that teams share.
constexpr std::int64_t kCounts[] = {0, 1, 2, 3, 4, 7, 15, 16, 17, 31, 33, 16383, 16384, 40001};

// From tiny to where functions saturate.
std::vector<float> spread(Random& random, std::int64_t count) {
  std::vector<float> values = random.normal(count, 3.0);
  const float special[] = {0.0F, -0.0F, 1e-20F, -1e-20F, 12.0F, -12.0F, 60.0F, -60.0F, 1e4F, -1e4F};
  for (std::size_t i = 0; i < values.size() && i < std::size(special); ++i) {
    values[values.size() - 1 - i] = special[i];
  }
  return values;
}

// Each element within `tolerance` relative to its own size (or to `floor`).
void expect_each_close(const std::vector<float>& got,
                       const Doubles& expected,
                       double tolerance,
                       double floor,
                       const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double size = std::max(floor, std::abs(expected[i]));
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - expected[i]), tolerance * size)
        << what << "[" << i << "] is " << got[i] << ", not " << expected[i];
  }
}

Doubles map(const std::vector<float>& x, double (*f)(double)) {
  Doubles y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [&](float value) { return f(value); });
  return y;
}

}  // namespace

TEST_P(Elementwise, AddCopyAndZeroAreExact) {
  Random random(30);
  for (const std::int64_t count : kCounts) {
    const auto a = random.normal(count);
    const auto b = random.normal(count);
    for (const int threads : {1, 3}) {
      Case adding(backend());
      const auto a_array = adding.input(a, 1);
      const auto b_array = adding.input(b, 2);
      const auto y = adding.output<float>(count, 3);
      adding.run(0, threads, [&](const Context& context) {
        add(context,
            {.elements = count, .a = {a_array.data()}, .b = {b_array.data()}, .y = {y.data()}});
      });
      EXPECT_TRUE(same_bits(y.get(), sum_of(a, b)));

      Case copying(backend());
      const auto source = copying.input(a, 5);
      const auto target = copying.output<float>(count, 2);
      copying.run(0, threads, [&](const Context& context) {
        copy(context, {.elements = count, .x = {source.data()}, .y = {target.data()}});
      });
      EXPECT_TRUE(same_bits(target.get(), a));

      Case zeroing(backend());
      const auto cleared = zeroing.output<float>(count, 7);
      zeroing.run(0, threads, [&](const Context& context) {
        zero(context, {.elements = count, .x = {cleared.data()}});
      });
      EXPECT_TRUE(same_bits(cleared.get(), std::vector<float>(static_cast<std::size_t>(count))));
    }
  }
}

TEST_P(Elementwise, AddMayWriteOverAnOperand) {
  Random random(31);
  const auto a = random.normal(100);
  const auto b = random.normal(100);
  Case test(backend());
  const auto b_array = test.input(b);
  const auto y = test.output(a);
  test.spans_lie_inside_arrays();
  tiers::Runtime runtime;
  RecordingQueue queue(runtime);
  add({.queue = queue}, {.elements = 100, .a = {y.data()}, .b = {b_array.data()}, .y = {y.data()}});
  EXPECT_TRUE(same_bits(y.get(), sum_of(a, b)));
}

TEST_P(Elementwise, GeluEqualsTheReference) {
  Random random(32);
  for (const std::int64_t count : kCounts) {
    const auto x = spread(random, count);
    const auto dy = random.normal(count);
    Case forward(backend());
    const auto x_array = forward.input(x, 1);
    const auto y = forward.output<float>(count, 2);
    forward.run(0, 2, [&](const Context& context) {
      gelu(context, {.elements = count, .x = {x_array.data()}, .y = {y.data()}});
    });
    expect_each_close(y.get(), map(x, reference_gelu), 3e-6, 1e-6, "y");

    Case backward(backend());
    const auto x_again = backward.input(x, 3);
    const auto dy_array = backward.input(dy, 1);
    const auto dx = backward.output<float>(count, 2);
    backward.run(0, 2, [&](const Context& context) {
      gelu_backward(
          context,
          {.elements = count, .x = {x_again.data()}, .dy = {dy_array.data()}, .dx = {dx.data()}});
    });
    Doubles expected = map(x, reference_gelu_slope);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] *= dy[i];
    }
    expect_each_close(dx.get(), expected, 2e-6, 0.1, "dx");
  }
}

TEST_P(Elementwise, SwigluEqualsTheReference) {
  Random random(33);
  for (const std::int64_t count : kCounts) {
    const auto gate = spread(random, count);
    const auto up = random.normal(count);
    const auto dy = random.normal(count);
    Case forward(backend());
    const auto gate_array = forward.input(gate, 1);
    const auto up_array = forward.input(up, 2);
    const auto y = forward.output<float>(count, 3);
    forward.run(0, 2, [&](const Context& context) {
      swiglu(context,
             {.elements = count,
              .gate = {gate_array.data()},
              .up = {up_array.data()},
              .y = {y.data()}});
    });
    Doubles expected = map(gate, reference_silu);
    Doubles expected_dgate = map(gate, reference_silu_slope);
    Doubles expected_dup = expected;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] *= up[i];
      expected_dgate[i] *= static_cast<double>(dy[i]) * up[i];
      expected_dup[i] *= dy[i];
    }
    expect_each_close(y.get(), expected, 1e-6, 1e-6, "y");

    Case backward(backend());
    const auto gate_again = backward.input(gate, 3);
    const auto up_again = backward.input(up, 2);
    const auto dy_array = backward.input(dy, 1);
    const auto dgate = backward.output<float>(count, 4);
    const auto dup = backward.output<float>(count, 5);
    backward.run(0, 2, [&](const Context& context) {
      swiglu_backward(context,
                      {.elements = count,
                       .gate = {gate_again.data()},
                       .up = {up_again.data()},
                       .dy = {dy_array.data()},
                       .dgate = {dgate.data()},
                       .dup = {dup.data()}});
    });
    expect_each_close(dgate.get(), expected_dgate, 2e-6, 0.1, "dgate");
    expect_each_close(dup.get(), expected_dup, 1e-6, 1e-6, "dup");
  }
}

TEST_P(Elementwise, NanAndInfinityComeThrough) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {nan, inf, 1.0F};
  Case test(backend());
  const auto x_array = test.input(x);
  const auto y = test.output<float>(3);
  test.run(0, 1, [&](const Context& context) {
    gelu(context, {.elements = 3, .x = {x_array.data()}, .y = {y.data()}});
  });
  EXPECT_TRUE(std::isnan(y.get()[0]));
  EXPECT_EQ(y.get()[1], inf);
  EXPECT_FALSE(std::isnan(y.get()[2]));
}

TEST_P(Rope, TableIsTheDoubleValueRoundedOnce) {
  const std::vector<double> radians = {1.0, 0.0125992104989, 0.000158740105197};
  std::vector<float> cosine(900);
  std::vector<float> sine(900);
  for (const double amplitude : {1.0, 1.25}) {
    rope_table({.positions = 300, .radians = radians, .amplitude = amplitude}, cosine, sine);
    for (std::size_t p = 0; p < 300; ++p) {
      for (std::size_t j = 0; j < 3; ++j) {
        const double angle = static_cast<double>(p) * radians[j];
        EXPECT_EQ(cosine[p * 3 + j], static_cast<float>(amplitude * std::cos(angle)));
        EXPECT_EQ(sine[p * 3 + j], static_cast<float>(amplitude * std::sin(angle)));
      }
    }
  }
}

TEST_P(Rope, RotatesPairsByThePositionAndBack) {
  Random random(34);
  for (const std::int64_t head_dim : {2, 6, 16, 34, 64, 128}) {
    for (const std::int64_t extra : {0, 5}) {
      const std::int64_t batch = 2;
      const std::int64_t sequence = 21;
      const std::int64_t heads = 3;
      const std::int64_t stride = heads * head_dim + extra;
      const std::int64_t half = head_dim / 2;
      const auto x = random.normal((batch * sequence - 1) * stride + heads * head_dim);
      std::vector<float> cosine(static_cast<std::size_t>(sequence * half));
      std::vector<float> sine(cosine.size());
      std::vector<double> radians;
      for (std::int64_t j = 0; j < half; ++j) {
        radians.push_back(std::pow(1e4, -static_cast<double>(j) / static_cast<double>(half)));
      }
      rope_table({.positions = sequence, .radians = radians}, cosine, sine);
      Doubles expected = widen(x);
      for (std::int64_t row = 0; row < batch * sequence; ++row) {
        for (std::int64_t i = 0; i < heads * half; ++i) {
          const std::int64_t first = row * stride + i / half * head_dim + i % half;
          const auto a = static_cast<std::size_t>(first);
          const auto b = static_cast<std::size_t>(first + half);
          const auto t = static_cast<std::size_t>(row % sequence * half + i % half);
          expected[a] = static_cast<double>(x[a]) * cosine[t] - static_cast<double>(x[b]) * sine[t];
          expected[b] = static_cast<double>(x[b]) * cosine[t] + static_cast<double>(x[a]) * sine[t];
        }
      }
      RopeArgs args = {.batch = batch, .sequence = sequence, .heads = heads, .head_dim = head_dim};
      const auto rotate = [&](const std::vector<float>& from, bool inverse, int threads) {
        Case test(backend());
        const auto cosine_array = test.input(cosine);
        const auto sine_array = test.input(sine);
        const auto rows = test.output(from, 1);
        test.run(0, threads, [&](const Context& context) {
          args.x = {rows.data(), stride};
          args.cosine = cosine_array.data();
          args.sine = sine_array.data();
          args.inverse = inverse;
          rope(context, args);
        });
        return rows.get();
      };
      const auto rotated = rotate(x, false, 1);
      expect_close(rotated, expected, 1e-6, "rotated");
      EXPECT_TRUE(same_bits(rotate(x, false, 3), rotated));
      expect_close(rotate(rotated, true, 2), widen(x), 1e-6, "rotated back");
    }
  }
}

}  // namespace headrace::kernels::conformance
