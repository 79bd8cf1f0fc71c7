// Linear layers: three GEMMs and a sum over rows.
//
// Invariant: shapes of the GEMM calls depend on LinearShape only. A team's threads meet inside each
// call, so nothing here is shared between operations but the workspace.

#include "kernels/cpu/linear.hpp"

#include "kernels/cpu/simd.hpp"

namespace headrace::kernels {

namespace cpu {

namespace {

// Rows of a weight gradient that scratch holds at once: a multiple of 64 where there are so many,
// since GEMM blocks are that high.
std::int64_t tile_rows(const WeightGradient& what) {
  const std::int64_t fitting =
      std::max<std::int64_t>(1, kWeightTileElements / std::max<std::int64_t>(1, what.columns));
  const std::int64_t even = fitting >= 64 ? fitting / 64 * 64 : fitting;
  return std::min(even, what.rows);
}

GemmShape tile_shape(const WeightGradient& what, std::int64_t rows) {
  return {.m = rows,
          .n = what.columns,
          .k = what.k,
          .a_stride = what.rows,
          .b_stride = what.columns,
          .transpose_a = true};
}

GemmShape forward_shape(const LinearShape& shape) {
  const bool out_in = shape.layout == WeightLayout::kOutIn;
  return {.m = shape.rows,
          .n = shape.outputs,
          .k = shape.inputs,
          .a_stride = shape.inputs,
          .b_stride = out_in ? shape.inputs : shape.outputs,
          .transpose_b = out_in,
          .bias = shape.bias};
}

GemmShape input_shape(const LinearShape& shape, bool accumulate) {
  const bool out_in = shape.layout == WeightLayout::kOutIn;
  return {.m = shape.rows,
          .n = shape.inputs,
          .k = shape.outputs,
          .a_stride = shape.outputs,
          .b_stride = out_in ? shape.inputs : shape.outputs,
          .transpose_b = !out_in,
          .accumulate = accumulate};
}

WeightGradient gradient_of(const LinearShape& shape) {
  const bool out_in = shape.layout == WeightLayout::kOutIn;
  return {.rows = out_in ? shape.outputs : shape.inputs,
          .columns = out_in ? shape.inputs : shape.outputs,
          .k = shape.rows};
}

}  // namespace

void add_in_parallel(int threads, const float* source, float* target, std::int64_t elements) {
  constexpr std::int64_t kBlock = 16384;
  parallel_for(threads, ceil_div(elements, kBlock), [&](std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    const std::int64_t count = std::min(kBlock, elements - begin);
    add_range(target + begin, source + begin, target + begin, count);
  });
}

std::size_t weight_gradient_workspace_bytes(const WeightGradient& what, int threads) {
  const std::int64_t step = tile_rows(what);
  if (step == 0) {
    return 0;
  }
  std::size_t gemm_bytes = gemm_workspace_bytes(tile_shape(what, step), threads);
  if (what.rows % step != 0) {
    const GemmShape last = tile_shape(what, what.rows % step);
    gemm_bytes = std::max(gemm_bytes, gemm_workspace_bytes(last, threads));
  }
  return part_bytes<float>(step * what.columns) + gemm_bytes;
}

Status weight_gradient(const WeightGradient& what, int threads, std::byte* workspace) {
  const std::int64_t step = tile_rows(what);
  Carver carver(workspace);
  auto* scratch = carver.take<float>(step * what.columns);
  auto* gemm_scratch = carver.take<std::byte>(0);
  for (std::int64_t row = 0; row < what.rows; row += step) {
    const std::int64_t rows = std::min(step, what.rows - row);
    float* target = what.gradient + row * what.columns;
    const bool store = what.mode == GradientMode::kStore;
    HEADRACE_TRY(gemm(tile_shape(what, rows),
                      threads,
                      {.a = what.a + row,
                       .b = what.b,
                       .c = store ? target : scratch,
                       .workspace = gemm_scratch}));
    if (!store) {
      add_in_parallel(threads, scratch, target, rows * what.columns);
    }
  }
  return {};
}

}  // namespace cpu

void linear(const Context& context, const LinearArgs& args) {
  const LinearShape& shape = args.shape;
  const float* x = cpu::elements_of(args.x);
  const float* weight = cpu::elements_of(args.weight);
  const float* bias = shape.bias ? cpu::elements_of(args.bias) : nullptr;
  float* y = cpu::elements_of(args.y);
  const std::size_t bytes = linear_workspace_bytes(shape, context.threads);
  std::byte* workspace = cpu::workspace_of(context, bytes);

  cpu::Spans reads;
  reads.add(x, shape.rows * shape.inputs).add(weight, shape.inputs * shape.outputs);
  reads.add(bias, shape.bias ? shape.outputs : 0);
  cpu::Spans writes;
  writes.add(y, shape.rows * shape.outputs).add(workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "linear", reads, writes, [=, threads = context.threads]() -> Status {
    return cpu::gemm(cpu::forward_shape(shape),
                     threads,
                     {.a = x, .b = weight, .bias = bias, .c = y, .workspace = workspace});
  });
}

void linear_backward_input(const Context& context, const LinearBackwardInputArgs& args) {
  const LinearShape& shape = args.shape;
  const float* dy = cpu::elements_of(args.dy);
  const float* weight = cpu::elements_of(args.weight);
  float* dx = cpu::elements_of(args.dx);
  const cpu::GemmShape product = cpu::input_shape(shape, args.accumulate);
  const std::size_t bytes = cpu::gemm_workspace_bytes(product, context.threads);
  std::byte* workspace = cpu::workspace_of(context, bytes);

  cpu::Spans reads;
  reads.add(dy, shape.rows * shape.outputs).add(weight, shape.inputs * shape.outputs);
  cpu::Spans writes;
  writes.add(dx, shape.rows * shape.inputs).add(workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(
      context, "linear_backward_input", reads, writes, [=, threads = context.threads]() -> Status {
        return cpu::gemm(product, threads, {.a = dy, .b = weight, .c = dx, .workspace = workspace});
      });
}

void linear_backward_weight(const Context& context, const LinearBackwardWeightArgs& args) {
  const LinearShape& shape = args.shape;
  const float* x = cpu::elements_of(args.x);
  const float* dy = cpu::elements_of(args.dy);
  const std::size_t bytes = linear_backward_weight_workspace_bytes(shape, context.threads);
  std::byte* workspace = cpu::workspace_of(context, bytes);
  const bool out_in = shape.layout == WeightLayout::kOutIn;
  cpu::WeightGradient what = cpu::gradient_of(shape);
  what.a = out_in ? dy : x;
  what.b = out_in ? x : dy;
  what.gradient = args.dweight;
  what.mode = args.mode;

  cpu::Spans reads;
  reads.add(x, shape.rows * shape.inputs).add(dy, shape.rows * shape.outputs);
  cpu::Spans writes;
  writes.add(args.dweight, shape.inputs * shape.outputs);
  writes.add(workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(
      context, "linear_backward_weight", reads, writes, [=, threads = context.threads]() -> Status {
        return cpu::weight_gradient(what, threads, workspace);
      });
}

void linear_backward_bias(const Context& context, const LinearBackwardBiasArgs& args) {
  const float* dy = cpu::elements_of(args.dy);
  float* dbias = args.dbias;
  cpu::Spans reads;
  reads.add(dy, args.rows * args.outputs);
  cpu::Spans writes;
  writes.add(dbias, args.outputs);
  cpu::submit(
      context,
      "linear_backward_bias",
      reads,
      writes,
      [=, rows = args.rows, outputs = args.outputs, mode = args.mode, threads = context.threads] {
        const std::int64_t blocks = cpu::ceil_div(outputs, cpu::kSumColumnsMax);
        cpu::parallel_for(threads, blocks, [&](std::int64_t block) {
          const std::int64_t column = block * cpu::kSumColumnsMax;
          const std::int64_t columns = std::min(cpu::kSumColumnsMax, outputs - column);
          float total[cpu::kSumColumnsMax];
          cpu::column_sums({.x = dy + column,
                            .stride = outputs,
                            .rows = rows,
                            .columns = columns,
                            .total = total});
          cpu::put_gradient(mode, total, dbias + column, columns);
        });
      });
}

std::size_t linear_workspace_bytes(const LinearShape& shape, int threads) {
  return cpu::gemm_workspace_bytes(cpu::forward_shape(shape), threads);
}

std::size_t linear_backward_input_workspace_bytes(const LinearShape& shape, int threads) {
  return std::max(cpu::gemm_workspace_bytes(cpu::input_shape(shape, false), threads),
                  cpu::gemm_workspace_bytes(cpu::input_shape(shape, true), threads));
}

std::size_t linear_backward_weight_workspace_bytes(const LinearShape& shape, int threads) {
  return cpu::weight_gradient_workspace_bytes(cpu::gradient_of(shape), threads);
}

}  // namespace headrace::kernels
