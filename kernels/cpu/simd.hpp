// The vectorised inner functions, dispatched at run time to the best instruction set of the
// machine.
//
// Each works on a part that its caller cut by shape, on the calling thread; none knows of queues or
// teams. Bits depend on the instruction set and the arguments only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/common.hpp"

namespace headrace::kernels::cpu {

// ---- elementwise_simd.cpp: y may be one of the inputs

void add_range(const float* a, const float* b, float* y, std::int64_t count);
void gelu_range(const float* x, float* y, std::int64_t count);
void gelu_backward_range(const float* x, const float* dy, float* dx, std::int64_t count);
void swiglu_range(const float* gate, const float* up, float* y, std::int64_t count);

struct SwigluBackwardRange {
  const float* gate;
  const float* up;
  const float* dy;
  float* dgate;
  float* dup;
  std::int64_t count;
};

void swiglu_backward_range(const SwigluBackwardRange& range);

struct RopeRow {
  float* x;  // heads * head_dim
  std::int64_t heads;
  std::int64_t head_dim;
  const float* cosine;  // head_dim / 2, of this row's position
  const float* sine;
  float sign;  // -1 rotates back
};

void rope_row(const RopeRow& row);

// total[0..columns) = sum over `rows` rows of x, in groups of kSumGroupRows: a group is summed
// first.
inline constexpr std::int64_t kSumGroupRows = 32;

struct ColumnSums {
  const float* x;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t columns;  // at most kSumColumnsMax
  float* total;
};

inline constexpr std::int64_t kSumColumnsMax = 128;
void column_sums(const ColumnSums& sums);

// ---- norm_simd.cpp

struct NormRows {
  std::int64_t rows;
  std::int64_t columns;
  double eps;
  const float* x;
  const float* gain;
  const float* bias;  // LayerNorm only
  float* y;
  float* mean;  // LayerNorm only
  float* rstd;
};

void layer_norm_rows(const NormRows& norm);
void rms_norm_rows(const NormRows& norm);

struct NormBackwardRows {
  std::int64_t rows;
  std::int64_t columns;
  const float* dy;
  const float* x;
  const float* gain;
  const float* mean;  // LayerNorm only
  const float* rstd;
  float* dx;
  bool accumulate;
  float* dgain;  // [columns], stored: the sum over these rows; may be null
  float* dbias;  // LayerNorm only; may be null
};

void layer_norm_backward_rows(const NormBackwardRows& norm);
void rms_norm_backward_rows(const NormBackwardRows& norm);

// ---- softmax_simd.cpp

// Folds a chunk of logits into a row's running maximum and sum of exp(logit - maximum).
void softmax_update(const float* logits, std::int64_t count, float* maximum, float* sum);
// logits[i] = exp(logits[i] - lse) * scale
void softmax_scale(float* logits, std::int64_t count, float lse, float scale);

// ---- attention_simd.cpp

// Tiles are constants: they are part of the numbers.
inline constexpr std::int64_t kQueryTile = 64;
inline constexpr std::int64_t kKeyTile = 128;
inline constexpr std::int64_t kTilePad = 16;  // widths of packed tiles are multiples of it

// Where the first tile of keys begins that queries from query_begin on see.
constexpr std::int64_t first_key_tile(std::int64_t query_begin, std::int64_t window) {
  return std::max<std::int64_t>(0, query_begin - window + 1) / kKeyTile * kKeyTile;
}

struct AttentionTask {
  std::int64_t sequence;
  std::int64_t window;  // 1 .. sequence (0 of no rows)
  std::int64_t head_dim;
  float scale;
  ConstRowsView q;  // of this head, from position 0
  ConstRowsView k;
  ConstRowsView v;
  RowsView out;
  float* lse;  // [sequence]
  std::byte* workspace;
};

[[nodiscard]] std::size_t attention_task_bytes(std::int64_t head_dim);
// Rows [query_begin, query_begin + kQueryTile) of one head.
void attention_forward_tile(const AttentionTask& task, std::int64_t query_begin);

struct AttentionBackwardTask {
  std::int64_t sequence;
  std::int64_t window;  // 1 .. sequence (0 of no rows)
  std::int64_t head_dim;
  std::int64_t group;  // query heads of this kv head, head_dim apart in q, out, dout, dq
  float scale;
  ConstRowsView q;  // of the group's first head
  ConstRowsView k;
  ConstRowsView v;
  ConstRowsView out;
  ConstRowsView dout;
  const float* lse;  // [group, sequence]
  RowsView dq;
  RowsView dk;
  RowsView dv;
  std::byte* workspace;
};

[[nodiscard]] std::size_t attention_backward_task_bytes(std::int64_t head_dim);
void attention_backward_group(const AttentionBackwardTask& task);

}  // namespace headrace::kernels::cpu
