// Softmax cross-entropy over a vocabulary worked through in chunks of rows_per_chunk rows.
//
// Invariant: chunks are the same whatever the pieces, in ascending order, so GEMM shapes and the
// order of every sum are constants of the run. Logits exist for one chunk at a time.

#include <cmath>
#include <limits>

#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/simd.hpp"

namespace headrace::kernels {

namespace {

void check(const HeadShape& shape, const HeadPiece& piece) {
  HEADRACE_ASSERT(shape.rows_per_chunk > 0, "a chunk has no rows");
  HEADRACE_ASSERT(piece.first_row % shape.rows_per_chunk == 0, "a piece begins inside a chunk");
  const std::int64_t end = piece.first_row + piece.row_count;
  HEADRACE_ASSERT(end <= shape.vocab, "a piece ends beyond the vocabulary");
  HEADRACE_ASSERT(end == shape.vocab || end % shape.rows_per_chunk == 0,
                  "a piece ends inside a chunk");
}

// Columns of logits that exist at once.
std::int64_t chunk_rows_max(const HeadShape& shape) {
  return std::min(shape.rows_per_chunk, shape.vocab);
}

cpu::GemmShape logits_shape(std::int64_t rows, std::int64_t columns, std::int64_t chunk_rows) {
  return {.m = rows,
          .n = chunk_rows,
          .k = columns,
          .a_stride = columns,
          .b_stride = columns,
          .transpose_b = true};
}

cpu::GemmShape input_shape(const HeadShape& shape, std::int64_t chunk_rows, bool accumulate) {
  return {.m = shape.rows,
          .n = shape.columns,
          .k = chunk_rows,
          .a_stride = chunk_rows,
          .b_stride = shape.columns,
          .accumulate = accumulate};
}

cpu::WeightGradient gradient_of(const HeadShape& shape, std::int64_t chunk_rows) {
  return {.rows = chunk_rows, .columns = shape.columns, .k = shape.rows};
}

// The largest of bytes(chunk_rows) over the chunk heights of a vocabulary: full ones and the last.
template <class F>
std::size_t largest_over_chunks(const HeadShape& shape, const F& bytes) {
  HEADRACE_ASSERT(shape.rows_per_chunk > 0, "a chunk has no rows");
  std::size_t largest = 0;
  if (shape.vocab >= shape.rows_per_chunk) {
    largest = bytes(shape.rows_per_chunk);
  }
  if (shape.vocab % shape.rows_per_chunk != 0) {
    largest = std::max(largest, bytes(shape.vocab % shape.rows_per_chunk));
  }
  return largest;
}

// Calls body(first_row, chunk_rows, weight) for each chunk of a piece, ascending.
template <class F>
Status for_chunks(const HeadShape& shape,
                  std::int64_t first_row,
                  std::int64_t row_count,
                  const float* weight,
                  const F& body) {
  for (std::int64_t done = 0; done < row_count; done += shape.rows_per_chunk) {
    const std::int64_t chunk_rows = std::min(shape.rows_per_chunk, row_count - done);
    HEADRACE_TRY(body(first_row + done, chunk_rows, weight + done * shape.columns));
  }
  return {};
}

struct Score {
  HeadShape shape;
  std::int64_t first_row;
  std::int64_t row_count;
  const float* weight;
  const float* h;
  const std::int32_t* targets;
  float* state;
  std::byte* workspace;
  int threads;
};

constexpr std::int64_t kBlockRows = 8;

void begin_state(float* state, std::int64_t rows) {
  std::fill_n(state, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state + rows, 2 * rows, 0.0F);
}

// Folds one chunk's logits [rows, chunk_rows] into the state.
void fold_chunk(const Score& run,
                const float* logits,
                std::int64_t first,
                std::int64_t chunk_rows) {
  const std::int64_t rows = run.shape.rows;
  cpu::parallel_for(run.threads, cpu::ceil_div(rows, kBlockRows), [&](std::int64_t block) {
    const std::int64_t end = std::min(rows, (block + 1) * kBlockRows);
    for (std::int64_t row = block * kBlockRows; row < end; ++row) {
      const std::int64_t target = run.targets[row];
      HEADRACE_ASSERT(target >= kIgnoreTarget && target < run.shape.vocab,
                      "a target is not in the vocabulary");
      const float* row_logits = logits + row * chunk_rows;
      cpu::softmax_update(row_logits, chunk_rows, run.state + row, run.state + rows + row);
      if (target >= first && target < first + chunk_rows) {
        run.state[2 * rows + row] = row_logits[target - first];
      }
    }
  });
}

Status run_score(const Score& run) {
  const HeadShape& shape = run.shape;
  cpu::Carver carver(run.workspace);
  auto* logits = carver.take<float>(shape.rows * chunk_rows_max(shape));
  auto* gemm_scratch = carver.take<std::byte>(0);
  if (run.first_row == 0) {
    begin_state(run.state, shape.rows);
  }
  return for_chunks(
      shape,
      run.first_row,
      run.row_count,
      run.weight,
      [&](std::int64_t first, std::int64_t chunk_rows, const float* weight) -> Status {
        HEADRACE_TRY(cpu::gemm(logits_shape(shape.rows, shape.columns, chunk_rows),
                               run.threads,
                               {.a = run.h, .b = weight, .c = logits, .workspace = gemm_scratch}));
        fold_chunk(run, logits, first, chunk_rows);
        return {};
      });
}

struct Gradient {
  HeadShape shape;
  std::int64_t first_row;
  std::int64_t row_count;
  const float* weight;
  const float* h;
  const std::int32_t* targets;
  const float* lse;
  float scale;
  float* dh;
  float* dweight;
  GradientMode mode;
  std::byte* workspace;
  int threads;
};

// Logits of a chunk become dlogits, in place. An ignored token's row is zero.
void differentiate_chunk(const Gradient& run,
                         float* logits,
                         std::int64_t first,
                         std::int64_t chunk_rows) {
  const std::int64_t rows = run.shape.rows;
  cpu::parallel_for(run.threads, cpu::ceil_div(rows, kBlockRows), [&](std::int64_t block) {
    const std::int64_t end = std::min(rows, (block + 1) * kBlockRows);
    for (std::int64_t row = block * kBlockRows; row < end; ++row) {
      const std::int64_t target = run.targets[row];
      float* row_logits = logits + row * chunk_rows;
      if (target == kIgnoreTarget) {
        std::fill_n(row_logits, chunk_rows, 0.0F);
        continue;
      }
      cpu::softmax_scale(row_logits, chunk_rows, run.lse[row], run.scale);
      if (target >= first && target < first + chunk_rows) {
        row_logits[target - first] -= run.scale;
      }
    }
  });
}

Status run_gradient(const Gradient& run) {
  const HeadShape& shape = run.shape;
  cpu::Carver carver(run.workspace);
  auto* logits = carver.take<float>(shape.rows * chunk_rows_max(shape));
  auto* scratch = carver.take<std::byte>(0);
  return for_chunks(
      shape,
      run.first_row,
      run.row_count,
      run.weight,
      [&](std::int64_t first, std::int64_t chunk_rows, const float* weight) -> Status {
        HEADRACE_TRY(cpu::gemm(logits_shape(shape.rows, shape.columns, chunk_rows),
                               run.threads,
                               {.a = run.h, .b = weight, .c = logits, .workspace = scratch}));
        differentiate_chunk(run, logits, first, chunk_rows);
        HEADRACE_TRY(cpu::gemm(input_shape(shape, chunk_rows, first != 0),
                               run.threads,
                               {.a = logits, .b = weight, .c = run.dh, .workspace = scratch}));
        if (run.dweight == nullptr) {
          return {};
        }
        cpu::WeightGradient what = gradient_of(shape, chunk_rows);
        what.a = logits;
        what.b = run.h;
        what.gradient = run.dweight + (first - run.first_row) * shape.columns;
        what.mode = run.mode;
        return cpu::weight_gradient(what, run.threads, scratch);
      });
}

struct Logits {
  HeadShape shape;
  std::int64_t first_row;
  std::int64_t row_count;
  const float* weight;
  const float* h;
  std::int64_t selected_count;
  const std::int32_t* selected;
  float* logits;
  std::byte* workspace;
  int threads;
};

Status run_logits(const Logits& run) {
  const HeadShape& shape = run.shape;
  const std::int64_t count = run.selected_count;
  cpu::Carver carver(run.workspace);
  auto* chosen = carver.take<float>(count * shape.columns);
  auto* chunk = carver.take<float>(count * chunk_rows_max(shape));
  auto* gemm_scratch = carver.take<std::byte>(0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = run.selected[i];
    HEADRACE_ASSERT(row >= 0 && row < shape.rows, "a selected row does not exist");
    std::copy_n(run.h + row * shape.columns, shape.columns, chosen + i * shape.columns);
  }
  return for_chunks(
      shape,
      run.first_row,
      run.row_count,
      run.weight,
      [&](std::int64_t first, std::int64_t chunk_rows, const float* weight) -> Status {
        HEADRACE_TRY(cpu::gemm(logits_shape(count, shape.columns, chunk_rows),
                               run.threads,
                               {.a = chosen, .b = weight, .c = chunk, .workspace = gemm_scratch}));
        for (std::int64_t i = 0; i < count; ++i) {
          std::copy_n(chunk + i * chunk_rows, chunk_rows, run.logits + i * shape.vocab + first);
        }
        return {};
      });
}

}  // namespace

void head_score(const Context& context, const HeadScoreArgs& args) {
  const HeadShape& shape = args.shape;
  check(shape, args.piece);
  const std::size_t bytes = head_score_workspace_bytes(shape, context.threads);
  const Score run = {.shape = shape,
                     .first_row = args.piece.first_row,
                     .row_count = args.piece.row_count,
                     .weight = cpu::elements_of(args.piece.weight),
                     .h = cpu::elements_of(args.h),
                     .targets = args.targets,
                     .state = args.state,
                     .workspace = cpu::workspace_of(context, bytes),
                     .threads = context.threads};
  cpu::Spans reads;
  reads.add(run.weight, run.row_count * shape.columns).add(run.h, shape.rows * shape.columns);
  reads.add(run.targets, shape.rows);
  cpu::Spans writes;
  writes.add(run.state, 3 * shape.rows).add(run.workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "head_score", reads, writes, [run] { return run_score(run); });
}

void head_loss(const Context& context, const HeadLossArgs& args) {
  cpu::Spans reads;
  reads.add(args.targets, args.rows);
  cpu::Spans writes;
  writes.add(args.state, 3 * args.rows).add(args.loss_sum, 1);
  writes.add(args.token_loss, args.token_loss != nullptr ? args.rows : 0);
  cpu::submit(context, "head_loss", reads, writes, [args = args] {
    double total = 0.0;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const double maximum = args.state[row];
      const double log_sum = std::log(static_cast<double>(args.state[args.rows + row]));
      const double target_logit = args.state[2 * args.rows + row];
      args.state[row] = static_cast<float>(maximum + log_sum);
      const bool ignored = args.targets[row] == kIgnoreTarget;
      const double loss = ignored ? 0.0 : (maximum - target_logit) + log_sum;
      total += loss;
      if (args.token_loss != nullptr) {
        args.token_loss[row] = static_cast<float>(loss);
      }
    }
    *args.loss_sum = total;
  });
}

void head_gradient(const Context& context, const HeadGradientArgs& args) {
  const HeadShape& shape = args.shape;
  check(shape, args.piece);
  const std::size_t bytes = head_gradient_workspace_bytes(shape, context.threads);
  const Gradient run = {.shape = shape,
                        .first_row = args.piece.first_row,
                        .row_count = args.piece.row_count,
                        .weight = cpu::elements_of(args.piece.weight),
                        .h = cpu::elements_of(args.h),
                        .targets = args.targets,
                        .lse = args.state,
                        .scale = args.scale,
                        .dh = cpu::elements_of(args.dh),
                        .dweight = args.dweight,
                        .mode = args.mode,
                        .workspace = cpu::workspace_of(context, bytes),
                        .threads = context.threads};
  cpu::Spans reads;
  reads.add(run.weight, run.row_count * shape.columns).add(run.h, shape.rows * shape.columns);
  reads.add(run.targets, shape.rows).add(run.lse, shape.rows);
  cpu::Spans writes;
  writes.add(run.dh, shape.rows * shape.columns);
  writes.add(run.dweight, run.dweight != nullptr ? run.row_count * shape.columns : 0);
  writes.add(run.workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "head_gradient", reads, writes, [run] { return run_gradient(run); });
}

void head_logits(const Context& context, const HeadLogitsArgs& args) {
  const HeadShape& shape = args.shape;
  check(shape, args.piece);
  const std::size_t bytes =
      head_logits_workspace_bytes(shape, args.selected_count, context.threads);
  const Logits run = {.shape = shape,
                      .first_row = args.piece.first_row,
                      .row_count = args.piece.row_count,
                      .weight = cpu::elements_of(args.piece.weight),
                      .h = cpu::elements_of(args.h),
                      .selected_count = args.selected_count,
                      .selected = args.selected,
                      .logits = args.logits,
                      .workspace = cpu::workspace_of(context, bytes),
                      .threads = context.threads};
  cpu::Spans reads;
  reads.add(run.weight, run.row_count * shape.columns).add(run.h, shape.rows * shape.columns);
  reads.add(run.selected, run.selected_count);
  cpu::Spans writes;
  const cpu::RowsView target = {run.logits + run.first_row, shape.vocab};
  writes.add_rows(target, run.selected_count, run.row_count);
  writes.add(run.workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "head_logits", reads, writes, [run] { return run_logits(run); });
}

std::size_t head_score_workspace_bytes(const HeadShape& shape, int threads) {
  return cpu::part_bytes<float>(shape.rows * chunk_rows_max(shape)) +
         largest_over_chunks(shape, [&](std::int64_t chunk_rows) {
           return cpu::gemm_workspace_bytes(logits_shape(shape.rows, shape.columns, chunk_rows),
                                            threads);
         });
}

std::size_t head_gradient_workspace_bytes(const HeadShape& shape, int threads) {
  return cpu::part_bytes<float>(shape.rows * chunk_rows_max(shape)) +
         largest_over_chunks(shape, [&](std::int64_t chunk_rows) {
           return std::max(
               {cpu::gemm_workspace_bytes(logits_shape(shape.rows, shape.columns, chunk_rows),
                                          threads),
                cpu::gemm_workspace_bytes(input_shape(shape, chunk_rows, false), threads),
                cpu::gemm_workspace_bytes(input_shape(shape, chunk_rows, true), threads),
                cpu::weight_gradient_workspace_bytes(gradient_of(shape, chunk_rows), threads)});
         });
}

std::size_t head_logits_workspace_bytes(const HeadShape& shape,
                                        std::int64_t selected_count,
                                        int threads) {
  return cpu::part_bytes<float>(selected_count * shape.columns) +
         cpu::part_bytes<float>(selected_count * chunk_rows_max(shape)) +
         largest_over_chunks(shape, [&](std::int64_t chunk_rows) {
           return cpu::gemm_workspace_bytes(logits_shape(selected_count, shape.columns, chunk_rows),
                                            threads);
         });
}

}  // namespace headrace::kernels
