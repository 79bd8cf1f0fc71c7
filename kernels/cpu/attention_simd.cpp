// Causal attention of one head (forward) or one group of heads (backward), by tiles.
//
// Operands of a tile are packed into the task's scratch, so that the tile products run over dense,
// padded rows whatever the strides and head_dim. Every product sums its inner index ascending,
// tiles follow each other in a fixed order, and a task is done by one thread: the thread count
// cannot show. Method: FlashAttention-2 (Dao 2023), with keys as the outer loop of the backward
// pass.

#include <cmath>

#include "kernels/cpu/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_simd.cpp"  // NOLINT
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/simd_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::kernels::cpu::HWY_NAMESPACE {

// ---- products of tiles
// ---------------------------------------------------------------------------

// c[m, n] (+)= sum over k of a(m, k) * b[k, n]. a has any strides, so it may be a transposed view;
// n is a multiple of kTilePad; b and c rows are dense and aligned.
struct TileProduct {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  const float* a;
  std::int64_t a_row_stride;
  std::int64_t a_k_stride;
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};

// Accumulators fill the register file: 6 x 4 of AVX-512's 32 registers, 6 x 2 of 16.
inline constexpr int kBlockRows = 6;
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kBlockVectors = 4;
#else
inline constexpr int kBlockVectors = 2;
#endif

template <int kRows, int kVectors>
HWY_NOINLINE void block_product(const TileProduct& p, std::int64_t row, std::int64_t column) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* a = p.a + row * p.a_row_stride;
  const float* b = p.b + column;
  float* c = p.c + row * p.c_stride + column;
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = p.accumulate ? hn::Load(d, c + r * p.c_stride + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < p.k; ++k) {
    V b_values[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      b_values[v] = hn::Load(d, b + v * lanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V a_value = hn::Set(d, a[r * p.a_row_stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(a_value, b_values[v], sums[r][v]);
      }
    }
    a += p.a_k_stride;
    b += p.b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[r][v], d, c + r * p.c_stride + v * lanes);
    }
  }
}

template <int kVectors>
HWY_INLINE void product_column(const TileProduct& p, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + kBlockRows <= p.m; row += kBlockRows) {
    block_product<kBlockRows, kVectors>(p, row, column);
  }
  switch (p.m - row) {
    case 5:
      return block_product<5, kVectors>(p, row, column);
    case 4:
      return block_product<4, kVectors>(p, row, column);
    case 3:
      return block_product<3, kVectors>(p, row, column);
    case 2:
      return block_product<2, kVectors>(p, row, column);
    case 1:
      return block_product<1, kVectors>(p, row, column);
    default:
      return;
  }
}

HWY_INLINE void tile_product(const TileProduct& p) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t column = 0;
  for (; column + kBlockVectors * lanes <= p.n; column += kBlockVectors * lanes) {
    product_column<kBlockVectors>(p, column);
  }
  for (; column < p.n; column += lanes) {
    product_column<1>(p, column);
  }
}

// ---- packing
// -------------------------------------------------------------------------------------

// target[row, :] = source[row, 0..width) * scale, rows target_stride apart and zero up to it.
HWY_INLINE void pack_rows(const ConstRowsView& source,
                          std::int64_t rows,
                          std::int64_t width,
                          float scale,
                          float* target,
                          std::int64_t target_stride) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V factor = hn::Set(d, scale);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = source.data + row * source.stride;
    float* to = target + row * target_stride;
    std::int64_t i = 0;
    for (; i + lanes <= width; i += lanes) {
      hn::Store(hn::Mul(hn::LoadU(d, from + i), factor), d, to + i);
    }
    for (; i < width; ++i) {
      to[i] = from[i] * scale;
    }
    std::fill(to + i, to + target_stride, 0.0F);
  }
}

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_4x4(const float* from,
                              std::int64_t stride,
                              float* to,
                              std::int64_t pitch) {
  const hn::FixedTag<float, 4> d;
  const auto row0 = hn::LoadU(d, from);
  const auto row1 = hn::LoadU(d, from + stride);
  const auto row2 = hn::LoadU(d, from + 2 * stride);
  const auto row3 = hn::LoadU(d, from + 3 * stride);
  const auto low02 = hn::InterleaveLower(d, row0, row2);
  const auto low13 = hn::InterleaveLower(d, row1, row3);
  const auto high02 = hn::InterleaveUpper(d, row0, row2);
  const auto high13 = hn::InterleaveUpper(d, row1, row3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, to);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, to + pitch);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, to + 2 * pitch);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, to + 3 * pitch);
}
#endif

// target[i, row] = source[row, i] for i < width; target rows are kKeyTile apart, zero from `rows`
// to the next multiple of kTilePad.
HWY_INLINE void pack_transposed(const ConstRowsView& source,
                                std::int64_t rows,
                                std::int64_t width,
                                float* target) {
  std::int64_t row = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; row + 4 <= rows; row += 4) {
    const float* from = source.data + row * source.stride;
    std::int64_t i = 0;
    for (; i + 4 <= width; i += 4) {
      transpose_4x4(from + i, source.stride, target + i * kKeyTile + row, kKeyTile);
    }
    for (; i < width; ++i) {
      for (std::int64_t r = 0; r < 4; ++r) {
        target[i * kKeyTile + row + r] = from[r * source.stride + i];
      }
    }
  }
#endif
  for (; row < rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      target[i * kKeyTile + row] = source.data[row * source.stride + i];
    }
  }
  const std::int64_t padded = round_up(rows, kTilePad);
  for (std::int64_t i = 0; i < width; ++i) {
    std::fill(target + i * kKeyTile + rows, target + i * kKeyTile + padded, 0.0F);
  }
}

HWY_INLINE ConstRowsView rows_from(const ConstRowsView& view, std::int64_t row) {
  return {view.data + row * view.stride, view.stride};
}

// Keys [begin, end) of a tile, which one query sees. None: its window begins behind the tile.
struct KeyRange {
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] bool empty() const { return begin >= end; }
};

HWY_INLINE KeyRange keys_of(std::int64_t query,
                            std::int64_t window,
                            std::int64_t key_begin,
                            std::int64_t keys) {
  return {std::max<std::int64_t>(0, query - window + 1 - key_begin),
          std::min(keys, query - key_begin + 1)};
}

// ---- forward
// -------------------------------------------------------------------------------------

struct ForwardScratch {
  float* q;             // [kQueryTile, head_dim padded], scaled
  float* k_transposed;  // [head_dim, kKeyTile]
  float* v;             // [kKeyTile, head_dim padded]
  float* scores;        // [kQueryTile, kKeyTile]
  float* out;           // [kQueryTile, head_dim padded], not yet divided by the sums
  float* maximum;       // [kQueryTile]
  float* sum;           // [kQueryTile]
};

// A row that sees no key of a tile: nothing is added to it.
HWY_INLINE void skip_row(const ForwardScratch& scratch,
                         std::int64_t row,
                         std::int64_t width,
                         bool first) {
  std::fill_n(scratch.scores + row * kKeyTile, width, 0.0F);
  if (first) {
    scratch.maximum[row] = -__builtin_huge_valf();
    scratch.sum[row] = 0.0F;
  }
}

// One row of scores becomes exp(score - maximum); the row's sum and earlier output are rescaled.
HWY_INLINE void softmax_row(const ForwardScratch& scratch,
                            std::int64_t row,
                            const KeyRange& seen,
                            std::int64_t width,
                            std::int64_t padded,
                            bool first) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float* scores = scratch.scores + row * kKeyTile;
  std::fill(scores, scores + seen.begin, -__builtin_huge_valf());
  std::fill(scores + seen.end, scores + width, -__builtin_huge_valf());
  const float previous = first ? -__builtin_huge_valf() : scratch.maximum[row];
  V maximum = hn::Set(d, previous);
  for (std::int64_t i = 0; i < width; i += lanes) {
    maximum = hn::Max(maximum, hn::Load(d, scores + i));
  }
  const float now = max_lanes(d, maximum);
  const V shift = hn::Set(d, now);
  V total = hn::Zero(d);
  for (std::int64_t i = 0; i < width; i += lanes) {
    const V p = exp_of(d, hn::Sub(hn::Load(d, scores + i), shift));
    hn::Store(p, d, scores + i);
    total = hn::Add(total, p);
  }
  const float added = sum_lanes(d, total);
  scratch.maximum[row] = now;
  if (first) {
    scratch.sum[row] = added;
    return;
  }
  const V decay = exp_of(d, hn::Set(d, previous - now));
  scratch.sum[row] = scratch.sum[row] * hn::GetLane(decay) + added;
  float* out = scratch.out + row * padded;
  for (std::int64_t i = 0; i < padded; i += lanes) {
    hn::Store(hn::Mul(hn::Load(d, out + i), decay), d, out + i);
  }
}

void finish_rows(const AttentionTask& task,
                 const ForwardScratch& scratch,
                 std::int64_t query_begin,
                 std::int64_t rows) {
  const std::int64_t padded = round_up(task.head_dim, kTilePad);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float inverse = 1.0F / scratch.sum[row];
    const float* from = scratch.out + row * padded;
    float* to = task.out.data + (query_begin + row) * task.out.stride;
    for (std::int64_t i = 0; i < task.head_dim; ++i) {
      to[i] = from[i] * inverse;
    }
    task.lse[query_begin + row] = scratch.maximum[row] + std::log(scratch.sum[row]);
  }
}

void forward_tile_simd(const AttentionTask& task, std::int64_t query_begin) {
  const std::int64_t padded = round_up(task.head_dim, kTilePad);
  Carver carver(task.workspace);
  ForwardScratch scratch = {};
  scratch.q = carver.take<float>(kQueryTile * padded);
  scratch.k_transposed = carver.take<float>(padded * kKeyTile);
  scratch.v = carver.take<float>(kKeyTile * padded);
  scratch.scores = carver.take<float>(kQueryTile * kKeyTile);
  scratch.out = carver.take<float>(kQueryTile * padded);
  scratch.maximum = carver.take<float>(kQueryTile);
  scratch.sum = carver.take<float>(kQueryTile);

  const std::int64_t rows = std::min(kQueryTile, task.sequence - query_begin);
  const std::int64_t query_end = query_begin + rows;
  pack_rows(rows_from(task.q, query_begin), rows, task.head_dim, task.scale, scratch.q, padded);
  const std::int64_t first_tile = first_key_tile(query_begin, task.window);
  for (std::int64_t key_begin = first_tile; key_begin < query_end; key_begin += kKeyTile) {
    const bool first = key_begin == first_tile;
    const std::int64_t keys = std::min(kKeyTile, query_end - key_begin);
    const std::int64_t width = round_up(keys, kTilePad);
    pack_transposed(rows_from(task.k, key_begin), keys, task.head_dim, scratch.k_transposed);
    pack_rows(rows_from(task.v, key_begin), keys, task.head_dim, 1.0F, scratch.v, padded);
    tile_product({rows,
                  width,
                  task.head_dim,
                  scratch.q,
                  padded,
                  1,
                  scratch.k_transposed,
                  kKeyTile,
                  scratch.scores,
                  kKeyTile,
                  false});
    for (std::int64_t row = 0; row < rows; ++row) {
      const KeyRange seen = keys_of(query_begin + row, task.window, key_begin, keys);
      if (seen.empty()) {
        skip_row(scratch, row, width, first);
      } else {
        softmax_row(scratch, row, seen, width, padded, first);
      }
    }
    tile_product({rows,
                  padded,
                  keys,
                  scratch.scores,
                  kKeyTile,
                  1,
                  scratch.v,
                  padded,
                  scratch.out,
                  padded,
                  !first});
  }
  finish_rows(task, scratch, query_begin, rows);
}

// ---- backward
// ------------------------------------------------------------------------------------

struct BackwardScratch {
  float* k_transposed;  // [head_dim, kKeyTile]
  float* v_transposed;
  float* k;  // [kKeyTile, head_dim padded]
  float* dk;
  float* dv;
  float* q;  // [kQueryTile, head_dim padded], scaled
  float* dout;
  float* dq;
  float* p;      // [kQueryTile, kKeyTile]
  float* ds;     // first dP, then dS
  float* delta;  // [kQueryTile]: dout . out
};

struct TilePlace {
  std::int64_t key_begin;
  std::int64_t keys;
  std::int64_t query_begin;
  std::int64_t rows;
  std::int64_t head;  // within the group
};

HWY_INLINE float dot(const float* a, const float* b, std::int64_t count) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  if (i < count) {
    const auto rest = static_cast<std::size_t>(count - i);
    sum = hn::MulAdd(load_tail(d, a + i, rest, 0.0F), load_tail(d, b + i, rest, 0.0F), sum);
  }
  return sum_lanes(d, sum);
}

// p = exp(score - lse) and ds = p * (dp - delta) of one row; both 0 where the mask is.
HWY_INLINE void backward_row(const BackwardScratch& scratch,
                             std::int64_t row,
                             const KeyRange& seen,
                             std::int64_t width,
                             float lse) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float* p = scratch.p + row * kKeyTile;
  float* ds = scratch.ds + row * kKeyTile;
  const V shift = hn::Set(d, lse);
  const V delta = hn::Set(d, scratch.delta[row]);
  for (std::int64_t i = 0; i < width; i += lanes) {
    const V probability = exp_of(d, hn::Sub(hn::Load(d, p + i), shift));
    hn::Store(probability, d, p + i);
    hn::Store(hn::Mul(probability, hn::Sub(hn::Load(d, ds + i), delta)), d, ds + i);
  }
  const std::int64_t begin = std::min(seen.begin, width);
  for (float* masked : {p, ds}) {
    std::fill(masked, masked + begin, 0.0F);
    std::fill(masked + seen.end, masked + width, 0.0F);
  }
}

void store_dq(const AttentionBackwardTask& task,
              const BackwardScratch& scratch,
              const TilePlace& place) {
  const std::int64_t padded = round_up(task.head_dim, kTilePad);
  for (std::int64_t row = 0; row < place.rows; ++row) {
    const float* from = scratch.dq + row * padded;
    float* to =
        task.dq.data + (place.query_begin + row) * task.dq.stride + place.head * task.head_dim;
    if (place.key_begin == first_key_tile(place.query_begin, task.window)) {
      for (std::int64_t i = 0; i < task.head_dim; ++i) {
        to[i] = from[i] * task.scale;
      }
    } else {
      for (std::int64_t i = 0; i < task.head_dim; ++i) {
        to[i] += from[i] * task.scale;
      }
    }
  }
}

// One tile of queries of one head against the current tile of keys.
void backward_tile(const AttentionBackwardTask& task,
                   const BackwardScratch& scratch,
                   const TilePlace& place) {
  const std::int64_t padded = round_up(task.head_dim, kTilePad);
  const std::int64_t column = place.head * task.head_dim;
  const std::int64_t rows = place.rows;
  const std::int64_t keys = std::min(place.keys, place.query_begin + rows - place.key_begin);
  const std::int64_t width = round_up(keys, kTilePad);
  const ConstRowsView q = {task.q.data + column, task.q.stride};
  const ConstRowsView dout = {task.dout.data + column, task.dout.stride};
  pack_rows(rows_from(q, place.query_begin), rows, task.head_dim, task.scale, scratch.q, padded);
  pack_rows(rows_from(dout, place.query_begin), rows, task.head_dim, 1.0F, scratch.dout, padded);
  tile_product({rows,
                width,
                task.head_dim,
                scratch.q,
                padded,
                1,
                scratch.k_transposed,
                kKeyTile,
                scratch.p,
                kKeyTile,
                false});
  tile_product({rows,
                width,
                task.head_dim,
                scratch.dout,
                padded,
                1,
                scratch.v_transposed,
                kKeyTile,
                scratch.ds,
                kKeyTile,
                false});
  const float* lse = task.lse + place.head * task.sequence + place.query_begin;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* out = task.out.data + (place.query_begin + row) * task.out.stride + column;
    scratch.delta[row] = dot(scratch.dout + row * padded, out, task.head_dim);
    const KeyRange seen = keys_of(place.query_begin + row, task.window, place.key_begin, keys);
    backward_row(scratch, row, seen, width, lse[row]);
  }
  tile_product(
      {keys, padded, rows, scratch.p, 1, kKeyTile, scratch.dout, padded, scratch.dv, padded, true});
  tile_product(
      {keys, padded, rows, scratch.ds, 1, kKeyTile, scratch.q, padded, scratch.dk, padded, true});
  tile_product(
      {rows, padded, keys, scratch.ds, kKeyTile, 1, scratch.k, padded, scratch.dq, padded, false});
  store_dq(task, scratch, place);
}

BackwardScratch carve_backward(std::byte* workspace, std::int64_t padded) {
  Carver carver(workspace);
  BackwardScratch scratch = {};
  scratch.k_transposed = carver.take<float>(padded * kKeyTile);
  scratch.v_transposed = carver.take<float>(padded * kKeyTile);
  scratch.k = carver.take<float>(kKeyTile * padded);
  scratch.dk = carver.take<float>(kKeyTile * padded);
  scratch.dv = carver.take<float>(kKeyTile * padded);
  scratch.q = carver.take<float>(kQueryTile * padded);
  scratch.dout = carver.take<float>(kQueryTile * padded);
  scratch.dq = carver.take<float>(kQueryTile * padded);
  scratch.p = carver.take<float>(kQueryTile * kKeyTile);
  scratch.ds = carver.take<float>(kQueryTile * kKeyTile);
  scratch.delta = carver.take<float>(kQueryTile);
  return scratch;
}

void backward_group_simd(const AttentionBackwardTask& task) {
  const std::int64_t padded = round_up(task.head_dim, kTilePad);
  const BackwardScratch scratch = carve_backward(task.workspace, padded);
  for (std::int64_t key_begin = 0; key_begin < task.sequence; key_begin += kKeyTile) {
    const std::int64_t keys = std::min(kKeyTile, task.sequence - key_begin);
    const ConstRowsView k = rows_from(task.k, key_begin);
    pack_transposed(k, keys, task.head_dim, scratch.k_transposed);
    pack_transposed(rows_from(task.v, key_begin), keys, task.head_dim, scratch.v_transposed);
    pack_rows(k, keys, task.head_dim, 1.0F, scratch.k, padded);
    std::fill(scratch.dk, scratch.dk + keys * padded, 0.0F);
    std::fill(scratch.dv, scratch.dv + keys * padded, 0.0F);
    for (std::int64_t head = 0; head < task.group; ++head) {
      for (std::int64_t query = key_begin;
           query < task.sequence && first_key_tile(query, task.window) <= key_begin;
           query += kQueryTile) {
        const std::int64_t rows = std::min(kQueryTile, task.sequence - query);
        backward_tile(task, scratch, {key_begin, keys, query, rows, head});
      }
    }
    for (std::int64_t row = 0; row < keys; ++row) {
      const std::int64_t position = key_begin + row;
      std::copy_n(
          scratch.dk + row * padded, task.head_dim, task.dk.data + position * task.dk.stride);
      std::copy_n(
          scratch.dv + row * padded, task.head_dim, task.dv.data + position * task.dv.stride);
    }
  }
}

}  // namespace headrace::kernels::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::kernels::cpu {

// A row of a query tile must find a key in every key tile that its tile visits.
static_assert(kKeyTile % kQueryTile == 0 && kQueryTile % kTilePad == 0);

HWY_EXPORT(forward_tile_simd);
HWY_EXPORT(backward_group_simd);

std::size_t attention_task_bytes(std::int64_t head_dim) {
  const std::int64_t padded = round_up(head_dim, kTilePad);
  return 2 * part_bytes<float>(kQueryTile * padded) + 2 * part_bytes<float>(kKeyTile * padded) +
         part_bytes<float>(kQueryTile * kKeyTile) + 2 * part_bytes<float>(kQueryTile);
}

std::size_t attention_backward_task_bytes(std::int64_t head_dim) {
  const std::int64_t padded = round_up(head_dim, kTilePad);
  return 5 * part_bytes<float>(kKeyTile * padded) + 3 * part_bytes<float>(kQueryTile * padded) +
         2 * part_bytes<float>(kQueryTile * kKeyTile) + part_bytes<float>(kQueryTile);
}

void attention_forward_tile(const AttentionTask& task, std::int64_t query_begin) {
  HWY_DYNAMIC_DISPATCH(forward_tile_simd)(task, query_begin);
}

void attention_backward_group(const AttentionBackwardTask& task) {
  HWY_DYNAMIC_DISPATCH(backward_group_simd)(task);
}

}  // namespace headrace::kernels::cpu
#endif  // HWY_ONCE
