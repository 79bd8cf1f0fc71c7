// LayerNorm and RMSNorm over chunks of rows.
//
// Invariant: the gradients of gain and bias are summed per chunk of kChunkRows rows, and the chunks
// are added in order, so that the thread count does not show.

#include "kernels/cpu/simd.hpp"

namespace headrace::kernels {

namespace {

constexpr std::int64_t kChunkRows = 32;

std::size_t partials_bytes(const NormShape& shape, std::int64_t vectors) {
  return cpu::part_bytes<float>(cpu::ceil_div(shape.rows, kChunkRows) * vectors * shape.columns);
}

void check(const NormShape& shape) {
  HEADRACE_ASSERT(shape.columns > 0 || shape.rows == 0, "a row to normalise has no elements");
}

// The chunk's part of a whole.
cpu::NormRows chunk_of(const cpu::NormRows& all, std::int64_t chunk) {
  const std::int64_t begin = chunk * kChunkRows;
  cpu::NormRows part = all;
  part.rows = std::min(kChunkRows, all.rows - begin);
  part.x += begin * all.columns;
  part.y += begin * all.columns;
  part.mean = all.mean == nullptr ? nullptr : all.mean + begin;
  part.rstd += begin;
  return part;
}

// Its gradients of gain and bias go to partials[chunk, gain or bias, columns].
cpu::NormBackwardRows chunk_of(const cpu::NormBackwardRows& all,
                               std::int64_t chunk,
                               float* partials) {
  const std::int64_t begin = chunk * kChunkRows;
  const std::int64_t vectors = (all.dgain != nullptr ? 1 : 0) + (all.dbias != nullptr ? 1 : 0);
  cpu::NormBackwardRows part = all;
  part.rows = std::min(kChunkRows, all.rows - begin);
  part.dy += begin * all.columns;
  part.x += begin * all.columns;
  part.dx += begin * all.columns;
  part.mean = all.mean == nullptr ? nullptr : all.mean + begin;
  part.rstd += begin;
  float* next = partials + chunk * vectors * all.columns;
  if (all.dgain != nullptr) {
    part.dgain = next;
    next += all.columns;
  }
  if (all.dbias != nullptr) {
    part.dbias = next;
  }
  return part;
}

struct Reduction {
  const float* partials;  // the vector of chunk 0
  std::int64_t stride;    // to that of the next chunk
  std::int64_t chunks;
  std::int64_t columns;
  GradientMode mode;
  float* target;
};

// target (+)= sum of the chunks' vectors, ascending.
void reduce(int threads, const Reduction& what) {
  const std::int64_t blocks = cpu::ceil_div(what.columns, cpu::kSumColumnsMax);
  cpu::parallel_for(threads, blocks, [&](std::int64_t block) {
    const std::int64_t column = block * cpu::kSumColumnsMax;
    const std::int64_t columns = std::min(cpu::kSumColumnsMax, what.columns - column);
    float total[cpu::kSumColumnsMax];
    cpu::column_sums({.x = what.partials + column,
                      .stride = what.stride,
                      .rows = what.chunks,
                      .columns = columns,
                      .total = total});
    cpu::put_gradient(what.mode, total, what.target + column, columns);
  });
}

using BackwardRows = void (*)(const cpu::NormBackwardRows&);

struct BackwardRun {
  cpu::NormBackwardRows all;
  GradientMode mode;
  float* partials;
  BackwardRows rows;
  int threads;
};

void run_backward(const BackwardRun& run) {
  const cpu::NormBackwardRows& all = run.all;
  const std::int64_t chunks = cpu::ceil_div(all.rows, kChunkRows);
  cpu::parallel_for(run.threads, chunks, [&](std::int64_t chunk) {
    run.rows(chunk_of(all, chunk, run.partials));
  });
  const bool both = all.dgain != nullptr && all.dbias != nullptr;
  Reduction what = {.partials = run.partials,
                    .stride = both ? 2 * all.columns : all.columns,
                    .chunks = chunks,
                    .columns = all.columns,
                    .mode = run.mode,
                    .target = all.dgain};
  if (all.dgain != nullptr) {
    reduce(run.threads, what);
    what.partials += all.columns;
  }
  if (all.dbias != nullptr) {
    what.target = all.dbias;
    reduce(run.threads, what);
  }
}

// Submits the backward pass that `all` describes.
void submit_backward(const Context& context,
                     const char* name,
                     const cpu::NormBackwardRows& all,
                     GradientMode mode,
                     BackwardRows rows) {
  const NormShape shape = {all.rows, all.columns};
  check(shape);
  const std::int64_t vectors = (all.dgain != nullptr ? 1 : 0) + (all.dbias != nullptr ? 1 : 0);
  const std::size_t bytes = partials_bytes(shape, vectors);
  std::byte* workspace = cpu::workspace_of(context, bytes);
  cpu::Spans reads;
  reads.add(all.dy, all.rows * all.columns).add(all.x, all.rows * all.columns);
  reads.add(all.gain, all.columns).add(all.rstd, all.rows);
  reads.add(all.mean, all.mean != nullptr ? all.rows : 0);
  cpu::Spans writes;
  writes.add(all.dx, all.rows * all.columns);
  writes.add(all.dgain, all.dgain != nullptr ? all.columns : 0);
  writes.add(all.dbias, all.dbias != nullptr ? all.columns : 0);
  writes.add(workspace, static_cast<std::int64_t>(bytes));
  const BackwardRun run = {.all = all,
                           .mode = mode,
                           .partials = reinterpret_cast<float*>(workspace),
                           .rows = rows,
                           .threads = context.threads};
  cpu::submit(context, name, reads, writes, [run] { run_backward(run); });
}

}  // namespace

void layer_norm(const Context& context, const LayerNormArgs& args) {
  check(args.shape);
  const cpu::NormRows all = {.rows = args.shape.rows,
                             .columns = args.shape.columns,
                             .eps = args.eps,
                             .x = cpu::elements_of(args.x),
                             .gain = cpu::elements_of(args.gain),
                             .bias = cpu::elements_of(args.bias),
                             .y = cpu::elements_of(args.y),
                             .mean = args.mean,
                             .rstd = args.rstd};
  cpu::Spans reads;
  reads.add(all.x, all.rows * all.columns).add(all.gain, all.columns).add(all.bias, all.columns);
  cpu::Spans writes;
  writes.add(all.y, all.rows * all.columns).add(all.mean, all.rows).add(all.rstd, all.rows);
  cpu::submit(context, "layer_norm", reads, writes, [all, threads = context.threads] {
    cpu::parallel_for(threads, cpu::ceil_div(all.rows, kChunkRows), [&](std::int64_t chunk) {
      cpu::layer_norm_rows(chunk_of(all, chunk));
    });
  });
}

void rms_norm(const Context& context, const RmsNormArgs& args) {
  check(args.shape);
  const cpu::NormRows all = {.rows = args.shape.rows,
                             .columns = args.shape.columns,
                             .eps = args.eps,
                             .x = cpu::elements_of(args.x),
                             .gain = cpu::elements_of(args.gain),
                             .bias = nullptr,
                             .y = cpu::elements_of(args.y),
                             .mean = nullptr,
                             .rstd = args.rstd};
  cpu::Spans reads;
  reads.add(all.x, all.rows * all.columns).add(all.gain, all.columns);
  cpu::Spans writes;
  writes.add(all.y, all.rows * all.columns).add(all.rstd, all.rows);
  cpu::submit(context, "rms_norm", reads, writes, [all, threads = context.threads] {
    cpu::parallel_for(threads, cpu::ceil_div(all.rows, kChunkRows), [&](std::int64_t chunk) {
      cpu::rms_norm_rows(chunk_of(all, chunk));
    });
  });
}

void layer_norm_backward(const Context& context, const LayerNormBackwardArgs& args) {
  HEADRACE_ASSERT(args.mean != nullptr || args.shape.rows == 0, "LayerNorm's means are missing");
  const cpu::NormBackwardRows all = {.rows = args.shape.rows,
                                     .columns = args.shape.columns,
                                     .dy = cpu::elements_of(args.dy),
                                     .x = cpu::elements_of(args.x),
                                     .gain = cpu::elements_of(args.gain),
                                     .mean = args.mean,
                                     .rstd = args.rstd,
                                     .dx = cpu::elements_of(args.dx),
                                     .accumulate = args.accumulate,
                                     .dgain = args.dgain,
                                     .dbias = args.dbias};
  submit_backward(context, "layer_norm_backward", all, args.mode, cpu::layer_norm_backward_rows);
}

void rms_norm_backward(const Context& context, const RmsNormBackwardArgs& args) {
  const cpu::NormBackwardRows all = {.rows = args.shape.rows,
                                     .columns = args.shape.columns,
                                     .dy = cpu::elements_of(args.dy),
                                     .x = cpu::elements_of(args.x),
                                     .gain = cpu::elements_of(args.gain),
                                     .mean = nullptr,
                                     .rstd = args.rstd,
                                     .dx = cpu::elements_of(args.dx),
                                     .accumulate = args.accumulate,
                                     .dgain = args.dgain,
                                     .dbias = nullptr};
  submit_backward(context, "rms_norm_backward", all, args.mode, cpu::rms_norm_backward_rows);
}

std::size_t layer_norm_backward_workspace_bytes(const NormShape& shape, int /*threads*/) {
  return partials_bytes(shape, 2);
}

std::size_t rms_norm_backward_workspace_bytes(const NormShape& shape, int /*threads*/) {
  return partials_bytes(shape, 1);
}

}  // namespace headrace::kernels
