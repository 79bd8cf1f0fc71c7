// Linear layers: products against float64, both layouts, and the gradient rule bit for bit.

#include "kernels/conformance.hpp"
#include "kernels/conformance_reference.hpp"

namespace headrace::kernels::conformance {

HEADRACE_CONFORMANCE(Linear);

namespace {

struct Sizes {
  std::int64_t rows;
  std::int64_t inputs;
  std::int64_t outputs;
};

// The last two are wide enough to be cut into panels of columns, the last of them narrower.
constexpr Sizes kSizes[] = {{1, 1, 1},
                            {2, 3, 1},
                            {3, 5, 7},
                            {17, 33, 65},
                            {64, 48, 112},
                            {130, 63, 257},
                            {256, 128, 96},
                            {5, 11, 3584},
                            {6, 3584, 9}};
constexpr std::int64_t kOffsets[] = {0, 1, 15};
constexpr WeightLayout kLayouts[] = {WeightLayout::kOutIn, WeightLayout::kInOut};

std::string text_of(const LinearShape& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.inputs) + " -> " +
         std::to_string(shape.outputs) +
         (shape.layout == WeightLayout::kOutIn ? ", [out, in]" : ", [in, out]") +
         (shape.bias ? ", bias" : "");
}

// Calls body(shape, offset) over sizes, layouts, bias and alignments.
template <class F>
void for_shapes(const F& body) {
  for (const Sizes& sizes : kSizes) {
    for (const WeightLayout layout : kLayouts) {
      for (const std::int64_t offset : kOffsets) {
        const LinearShape shape = {.rows = sizes.rows,
                                   .inputs = sizes.inputs,
                                   .outputs = sizes.outputs,
                                   .layout = layout,
                                   .bias = (offset & 1) != 0};
        SCOPED_TRACE(text_of(shape) + ", offset " + std::to_string(offset));
        body(shape, offset);
      }
    }
  }
}

Doubles reference_forward(const LinearShape& s, const Doubles& x, const Doubles& w) {
  const bool out_in = s.layout == WeightLayout::kOutIn;
  return reference_product({.m = s.rows,
                            .n = s.outputs,
                            .k = s.inputs,
                            .a_row = s.inputs,
                            .a_k = 1,
                            .b_k = out_in ? 1 : s.outputs,
                            .b_column = out_in ? s.inputs : 1},
                           x,
                           w);
}

Doubles reference_dx(const LinearShape& s, const Doubles& dy, const Doubles& w) {
  const bool out_in = s.layout == WeightLayout::kOutIn;
  return reference_product({.m = s.rows,
                            .n = s.inputs,
                            .k = s.outputs,
                            .a_row = s.outputs,
                            .a_k = 1,
                            .b_k = out_in ? s.inputs : 1,
                            .b_column = out_in ? 1 : s.outputs},
                           dy,
                           w);
}

Doubles reference_dw(const LinearShape& s, const Doubles& x, const Doubles& dy) {
  const bool out_in = s.layout == WeightLayout::kOutIn;
  const std::int64_t rows = out_in ? s.outputs : s.inputs;
  const std::int64_t columns = out_in ? s.inputs : s.outputs;
  return reference_product({.m = rows,
                            .n = columns,
                            .k = s.rows,
                            .a_row = 1,
                            .a_k = rows,
                            .b_k = columns,
                            .b_column = 1},
                           out_in ? dy : x,
                           out_in ? x : dy);
}

// dW of one micro-batch, in `mode`, over what `before` holds.
std::vector<float> weight_gradient(Backend& backend,
                                   const LinearShape& shape,
                                   const std::vector<float>& x,
                                   const std::vector<float>& dy,
                                   const std::vector<float>& before,
                                   GradientMode mode) {
  Case test(backend);
  const auto x_array = test.input(x);
  const auto dy_array = test.input(dy);
  const auto dw = test.output(before, 3);
  test.run(linear_backward_weight_workspace_bytes(shape, 2), 2, [&](const Context& context) {
    linear_backward_weight(context,
                           {.shape = shape,
                            .x = {x_array.data()},
                            .dy = {dy_array.data()},
                            .dweight = dw.data(),
                            .mode = mode});
  });
  return dw.get();
}

}  // namespace

TEST_P(Linear, ForwardEqualsTheReference) {
  Random random(10);
  for_shapes([&](const LinearShape& shape, std::int64_t offset) {
    const auto x = random.normal(shape.rows * shape.inputs);
    const auto w = random.normal(shape.inputs * shape.outputs);
    const auto b = random.normal(shape.outputs);
    Case test(backend());
    const auto x_array = test.input(x, offset);
    const auto w_array = test.input(w, offset);
    const auto b_array = shape.bias ? test.input(b, offset) : Array<float>();
    const auto y = test.output<float>(shape.rows * shape.outputs, offset);
    for (const int threads : {1, 2}) {
      test.run(linear_workspace_bytes(shape, threads), threads, [&](const Context& context) {
        linear(context,
               {.shape = shape,
                .x = {x_array.data()},
                .weight = {w_array.data()},
                .bias = {shape.bias ? b_array.data() : nullptr},
                .y = {y.data()}});
      });
      Doubles expected = reference_forward(shape, widen(x), widen(w));
      for (std::size_t i = 0; shape.bias && i < expected.size(); ++i) {
        expected[i] += b[i % static_cast<std::size_t>(shape.outputs)];
      }
      expect_close(y.get(), expected, 1e-6, "y");
    }
  });
}

TEST_P(Linear, InputGradientEqualsTheReferenceStoredAndAdded) {
  Random random(11);
  for_shapes([&](const LinearShape& shape, std::int64_t offset) {
    const auto dy = random.normal(shape.rows * shape.outputs);
    const auto w = random.normal(shape.inputs * shape.outputs);
    const auto before = random.normal(shape.rows * shape.inputs);
    const Doubles stored = reference_dx(shape, widen(dy), widen(w));
    for (const bool accumulate : {false, true}) {
      Case test(backend());
      const auto dy_array = test.input(dy, offset);
      const auto w_array = test.input(w, offset);
      const auto dx = accumulate ? test.output(before, offset)
                                 : test.output<float>(shape.rows * shape.inputs, offset);
      test.run(linear_backward_input_workspace_bytes(shape, 2), 2, [&](const Context& context) {
        linear_backward_input(context,
                              {.shape = shape,
                               .dy = {dy_array.data()},
                               .weight = {w_array.data()},
                               .dx = {dx.data()},
                               .accumulate = accumulate});
      });
      Doubles expected = stored;
      for (std::size_t i = 0; accumulate && i < expected.size(); ++i) {
        expected[i] += before[i];
      }
      expect_close(dx.get(), expected, 1e-6, "dx");
    }
  });
}

TEST_P(Linear, WeightGradientEqualsTheReferenceAndAddsBitForBit) {
  Random random(12);
  for_shapes([&](const LinearShape& shape, std::int64_t offset) {
    if (offset != kOffsets[0]) {
      return;
    }
    const auto x1 = random.normal(shape.rows * shape.inputs);
    const auto x2 = random.normal(shape.rows * shape.inputs);
    const auto dy1 = random.normal(shape.rows * shape.outputs);
    const auto dy2 = random.normal(shape.rows * shape.outputs);
    const std::vector<float> nothing(static_cast<std::size_t>(shape.inputs * shape.outputs));
    const auto first = weight_gradient(backend(), shape, x1, dy1, nothing, GradientMode::kStore);
    const auto second = weight_gradient(backend(), shape, x2, dy2, nothing, GradientMode::kStore);
    const auto both = weight_gradient(backend(), shape, x2, dy2, first, GradientMode::kAdd);
    expect_close(first, reference_dw(shape, widen(x1), widen(dy1)), 1e-6, "dW");
    EXPECT_TRUE(same_bits(both, sum_of(first, second)));
  });
}

TEST_P(Linear, WeightGradientLargerThanATileIsCutAndStillAddsBitForBit) {
  Random random(13);
  for (const WeightLayout layout : kLayouts) {
    // 2,100 x 2,047 elements: two row ranges, the last one shorter.
    const LinearShape shape = {.rows = 3, .inputs = 2047, .outputs = 2100, .layout = layout};
    static_assert(std::int64_t{2047} * 2100 > kWeightTileElements);
    const auto x = random.normal(shape.rows * shape.inputs);
    const auto dy = random.normal(shape.rows * shape.outputs);
    const std::vector<float> nothing(static_cast<std::size_t>(shape.inputs * shape.outputs));
    const auto first = weight_gradient(backend(), shape, x, dy, nothing, GradientMode::kStore);
    const auto both = weight_gradient(backend(), shape, x, dy, first, GradientMode::kAdd);
    expect_close(first, reference_dw(shape, widen(x), widen(dy)), 1e-6, "dW");
    EXPECT_TRUE(same_bits(both, sum_of(first, first)));
    // The scratch is a tile, not the tensor.
    EXPECT_LE(linear_backward_weight_workspace_bytes(shape, 1),
              static_cast<std::size_t>(kWeightTileElements) * sizeof(float) + (8U << 20));
  }
}

TEST_P(Linear, BiasGradientEqualsTheReferenceForAnyTeamAndAddsBitForBit) {
  Random random(14);
  for (const Sizes& sizes : kSizes) {
    const auto dy = random.normal(sizes.rows * sizes.outputs);
    Doubles expected(static_cast<std::size_t>(sizes.outputs), 0.0);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      expected[i % expected.size()] += dy[i];
    }
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      for (const GradientMode mode : {GradientMode::kStore, GradientMode::kAdd}) {
        Case test(backend());
        const auto dy_array = test.input(dy, 1);
        const auto dbias = mode == GradientMode::kStore ? test.output<float>(sizes.outputs, 5)
                                                        : test.output(first, 5);
        test.run(0, threads, [&](const Context& context) {
          linear_backward_bias(context,
                               {.rows = sizes.rows,
                                .outputs = sizes.outputs,
                                .dy = {dy_array.data()},
                                .dbias = dbias.data(),
                                .mode = mode});
        });
        if (mode == GradientMode::kAdd) {
          EXPECT_TRUE(same_bits(dbias.get(), sum_of(first, first)));
        } else if (first.empty()) {
          first = dbias.get();
          expect_close(first, expected, 1e-6, "dbias");
        } else {
          EXPECT_TRUE(same_bits(dbias.get(), first)) << threads << " threads";
        }
      }
    }
  }
}

TEST_P(Linear, WithoutRowsNothingIsWrittenAndGradientsAreZero) {
  const LinearShape shape = {.rows = 0, .inputs = 5, .outputs = 3};
  Case test(backend());
  const auto w = test.output<float>(15);
  test.run(linear_backward_weight_workspace_bytes(shape, 2), 2, [&](const Context& context) {
    linear_backward_weight(context, {.shape = shape, .dweight = w.data()});
  });
  EXPECT_EQ(w.get(), std::vector<float>(15, 0.0F));
  Case forward(backend());
  const auto weight = forward.input(std::vector<float>(15, 1.0F));
  forward.run(linear_workspace_bytes(shape, 2), 2, [&](const Context& context) {
    linear(context, {.shape = shape, .weight = {weight.data()}});
  });
}

TEST_P(Linear, AddressesDoNotShowInTheBits) {
  Random random(15);
  for (const WeightLayout layout : kLayouts) {
    const LinearShape shape = {.rows = 67, .inputs = 131, .outputs = 93, .layout = layout};
    const auto x = random.normal(shape.rows * shape.inputs);
    const auto w = random.normal(shape.inputs * shape.outputs);
    std::vector<float> first;
    for (std::int64_t offset = 0; offset < 16; ++offset) {
      Case test(backend());
      const auto x_array = test.input(x, offset);
      const auto w_array = test.input(w, (offset * 7) % 16);
      const auto y = test.output<float>(shape.rows * shape.outputs, (offset * 5) % 16);
      test.run(linear_workspace_bytes(shape, 2), 2, [&](const Context& context) {
        linear(
            context,
            {.shape = shape, .x = {x_array.data()}, .weight = {w_array.data()}, .y = {y.data()}});
      });
      if (first.empty()) {
        first = y.get();
      }
      EXPECT_TRUE(same_bits(y.get(), first)) << "offset " << offset;
    }
  }
}

TEST_P(Linear, AskingForTheWorkspacePreparesTheProduct) {
  const LinearShape shape = {.rows = 19, .inputs = 23, .outputs = 29, .bias = true};
  const std::size_t bytes = linear_workspace_bytes(shape, 2);
  const std::uint64_t prepared = gemms_prepared();
  Case test(backend());
  const auto x = test.input(std::vector<float>(437, 1.0F));
  const auto w = test.input(std::vector<float>(667, 1.0F));
  const auto b = test.input(std::vector<float>(29, 0.5F));
  const auto y = test.output<float>(551);
  test.run(bytes, 2, [&](const Context& context) {
    linear(context,
           {.shape = shape,
            .x = {x.data()},
            .weight = {w.data()},
            .bias = {b.data()},
            .y = {y.data()}});
  });
  EXPECT_EQ(gemms_prepared(), prepared);
  EXPECT_EQ(y.get(), std::vector<float>(551, 23.5F));
}

}  // namespace headrace::kernels::conformance
