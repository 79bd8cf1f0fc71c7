// The embedding's lookup through table ranges, and the ordered sums of its gradient.

#include "kernels/conformance.hpp"

namespace headrace::kernels::conformance {

HEADRACE_CONFORMANCE(Embedding);

namespace {

std::vector<float> slice(const std::vector<float>& values, std::int64_t begin, std::int64_t end) {
  return {values.begin() + begin, values.begin() + end};
}

}  // namespace

TEST_P(Embedding, RowsComeTogetherFromRangesThatCutThem) {
  Random random(60);
  const std::int64_t rows = 29;
  const std::int64_t columns = 7;
  const std::int64_t vocab = 11;
  const auto table = random.normal(vocab * columns);
  const auto index = random.integers(rows, 0, 10);
  const auto before = random.normal(rows * columns);
  for (const bool accumulate : {false, true}) {
    for (const int threads : {1, 3}) {
      std::vector<float> x = before;
      const std::int64_t bounds[] = {0, 1, 5, 7, 30, 30, 64, 77};
      for (std::size_t i = 0; i + 1 < std::size(bounds); ++i) {
        Case test(backend());
        const auto part = test.input(slice(table, bounds[i], bounds[i + 1]), 1);
        const auto index_array = test.input(index, 1);
        const auto out = test.output(x, 3);
        test.run(0, threads, [&](const Context& context) {
          gather_rows(context,
                      {.rows = rows,
                       .columns = columns,
                       .table = {bounds[i], bounds[i + 1], {part.data()}},
                       .index = index_array.data(),
                       .x = {out.data()},
                       .accumulate = accumulate});
        });
        x = out.get();
      }
      for (std::size_t row = 0; row < 29; ++row) {
        for (std::size_t c = 0; c < 7; ++c) {
          const float looked_up = table[static_cast<std::size_t>(index[row]) * 7 + c];
          const float old = before[row * 7 + c];
          EXPECT_EQ(x[row * 7 + c], accumulate ? old + looked_up : looked_up);
        }
      }
    }
  }
}

TEST_P(Embedding, GradientSumsTokensInOrderAndAddsTouchedSlotsOnly) {
  Random random(61);
  const ScatterAddRowsShape shape = {.rows = 100, .columns = 530, .slots = 9};
  const auto dx = random.normal(shape.rows * shape.columns);
  auto slot = random.integers(shape.rows, -1, 7);  // slot 8 is never touched
  const auto before = random.normal(shape.slots * shape.columns);
  std::vector<float> sums(before.size(), 0.0F);
  std::vector<bool> touched(9, false);
  for (std::size_t row = 0; row < 100; ++row) {
    for (std::size_t c = 0; slot[row] >= 0 && c < 530; ++c) {
      sums[static_cast<std::size_t>(slot[row]) * 530 + c] += dx[row * 530 + c];
      touched[static_cast<std::size_t>(slot[row])] = true;
    }
  }
  for (const GradientMode mode : {GradientMode::kStore, GradientMode::kAdd}) {
    for (const int threads : {1, 2, 3}) {
      Case test(backend());
      const auto dx_array = test.input(dx, 1);
      const auto slot_array = test.input(slot, 1);
      const auto accumulators = test.output(before, 3);
      test.run(
          scatter_add_rows_workspace_bytes(shape, threads), threads, [&](const Context& context) {
            scatter_add_rows(context,
                             {.shape = shape,
                              .dx = {dx_array.data()},
                              .slot = slot_array.data(),
                              .accumulators = accumulators.data(),
                              .mode = mode});
          });
      const bool add = mode == GradientMode::kAdd;
      EXPECT_TRUE(same_bits(accumulators.get(), add ? sum_of(before, sums) : sums));
    }
  }
}

TEST_P(Embedding, NothingToSumIsLegal) {
  const ScatterAddRowsShape shape = {.rows = 0, .columns = 3, .slots = 2};
  Case test(backend());
  const auto accumulators = test.output<float>(6);
  test.run(scatter_add_rows_workspace_bytes(shape, 2), 2, [&](const Context& context) {
    scatter_add_rows(
        context,
        {.shape = shape, .accumulators = accumulators.data(), .mode = GradientMode::kStore});
  });
  EXPECT_EQ(accumulators.get(), std::vector<float>(6, 0.0F));
}

}  // namespace headrace::kernels::conformance
