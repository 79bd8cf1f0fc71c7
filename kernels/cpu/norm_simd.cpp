// LayerNorm and RMSNorm of a range of rows, forward and backward.
//
// Invariant: a row's statistics are summed in vector lanes and four accumulators, always in the
// same order; gradients of gain and bias are summed over the given rows, ascending.

#include <cmath>

#include "kernels/cpu/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_simd.cpp"  // NOLINT
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/simd_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::kernels::cpu::HWY_NAMESPACE {

// Sum over i of Op::term(i), in four accumulators of vectors; the tail is padded by `term_tail`.
template <class Term>
HWY_INLINE float sum_terms(D d, const Term& term, std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum0 = hn::Zero(d);
  V sum1 = hn::Zero(d);
  V sum2 = hn::Zero(d);
  V sum3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::Add(sum0, term.at(d, i));
    sum1 = hn::Add(sum1, term.at(d, i + lanes));
    sum2 = hn::Add(sum2, term.at(d, i + 2 * lanes));
    sum3 = hn::Add(sum3, term.at(d, i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) {
    sum0 = hn::Add(sum0, term.at(d, i));
  }
  if (i < count) {
    sum1 = hn::Add(sum1, term.tail(d, i, static_cast<std::size_t>(count - i)));
  }
  return sum_lanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

struct ValueTerm {
  const float* x;

  HWY_INLINE V at(D d, std::int64_t i) const { return hn::LoadU(d, x + i); }

  HWY_INLINE V tail(D d, std::int64_t i, std::size_t count) const {
    return load_tail(d, x + i, count, 0.0F);
  }
};

struct SquareTerm {
  const float* x;
  float mean;  // padded lanes hold the mean, and so contribute nothing

  HWY_INLINE V of(D d, V value) const {
    const V centred = hn::Sub(value, hn::Set(d, mean));
    return hn::Mul(centred, centred);
  }

  HWY_INLINE V at(D d, std::int64_t i) const { return of(d, hn::LoadU(d, x + i)); }

  HWY_INLINE V tail(D d, std::int64_t i, std::size_t count) const {
    return of(d, load_tail(d, x + i, count, mean));
  }
};

struct ProductTerm {  // dy * gain
  const float* dy;
  const float* gain;

  HWY_INLINE V at(D d, std::int64_t i) const {
    return hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, gain + i));
  }

  HWY_INLINE V tail(D d, std::int64_t i, std::size_t count) const {
    return hn::Mul(load_tail(d, dy + i, count, 0.0F), load_tail(d, gain + i, count, 0.0F));
  }
};

struct CentredProductTerm {  // dy * gain * (x - mean)
  const float* dy;
  const float* gain;
  const float* x;
  float mean;

  HWY_INLINE V of(D d, V dy_value, V gain_value, V x_value) const {
    return hn::Mul(hn::Mul(dy_value, gain_value), hn::Sub(x_value, hn::Set(d, mean)));
  }

  HWY_INLINE V at(D d, std::int64_t i) const {
    return of(d, hn::LoadU(d, dy + i), hn::LoadU(d, gain + i), hn::LoadU(d, x + i));
  }

  HWY_INLINE V tail(D d, std::int64_t i, std::size_t count) const {
    return of(d,
              load_tail(d, dy + i, count, 0.0F),
              load_tail(d, gain + i, count, 0.0F),
              load_tail(d, x + i, count, mean));
  }
};

HWY_INLINE float reciprocal_root(float sum_of_squares, std::int64_t columns, double eps) {
  return static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(sum_of_squares) / static_cast<double>(columns) + eps));
}

// y = (x - mean) * rstd * gain (+ bias)
template <bool kBias>
HWY_INLINE void normalise_row(D d, const NormRows& norm, std::int64_t row, float mean, float rstd) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* x = norm.x + row * norm.columns;
  float* y = norm.y + row * norm.columns;
  const V mean_v = hn::Set(d, mean);
  const V rstd_v = hn::Set(d, rstd);
  std::int64_t i = 0;
  for (; i + lanes <= norm.columns; i += lanes) {
    const V unit = hn::Mul(hn::Sub(hn::LoadU(d, x + i), mean_v), rstd_v);
    V value = hn::Mul(unit, hn::LoadU(d, norm.gain + i));
    if constexpr (kBias) {
      value = hn::Add(value, hn::LoadU(d, norm.bias + i));
    }
    hn::StoreU(value, d, y + i);
  }
  for (; i < norm.columns; ++i) {
    const float value = ((x[i] - mean) * rstd) * norm.gain[i];
    y[i] = kBias ? value + norm.bias[i] : value;
  }
}

void layer_norm_rows_simd(const NormRows& norm) {
  const D d;
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    const float* x = norm.x + row * norm.columns;
    const auto columns = static_cast<double>(norm.columns);
    const auto mean = static_cast<float>(sum_terms(d, ValueTerm{x}, norm.columns) / columns);
    const float squares = sum_terms(d, SquareTerm{x, mean}, norm.columns);
    const float rstd = reciprocal_root(squares, norm.columns, norm.eps);
    norm.mean[row] = mean;
    norm.rstd[row] = rstd;
    normalise_row<true>(d, norm, row, mean, rstd);
  }
}

void rms_norm_rows_simd(const NormRows& norm) {
  const D d;
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    const float* x = norm.x + row * norm.columns;
    const float squares = sum_terms(d, SquareTerm{x, 0.0F}, norm.columns);
    const float rstd = reciprocal_root(squares, norm.columns, norm.eps);
    norm.rstd[row] = rstd;
    normalise_row<false>(d, norm, row, 0.0F, rstd);
  }
}

// What a row's backward needs: dx = rstd * (dy*gain - shift - unit * pull), unit = (x - mean) *
// rstd.
struct RowBackward {
  float mean;
  float rstd;
  float shift;
  float pull;
};

struct RowPart {
  V dx;
  V gain_term;  // dy * unit
};

HWY_INLINE RowPart backward_part(D d, const RowBackward& row, V dy, V x, V gain) {
  const V rstd = hn::Set(d, row.rstd);
  const V unit = hn::Mul(hn::Sub(x, hn::Set(d, row.mean)), rstd);
  V inner = hn::Sub(hn::Mul(dy, gain), hn::Set(d, row.shift));
  inner = hn::NegMulAdd(unit, hn::Set(d, row.pull), inner);
  return {hn::Mul(rstd, inner), hn::Mul(dy, unit)};
}

HWY_INLINE void add_in_place(D d, float* target, V value) {
  hn::StoreU(hn::Add(hn::LoadU(d, target), value), d, target);
}

HWY_INLINE void add_tail_in_place(D d, float* target, V value, std::size_t count) {
  store_tail(hn::Add(load_tail(d, target, count, 0.0F), value), d, target, count);
}

HWY_INLINE void backward_row(D d,
                             const NormBackwardRows& norm,
                             std::int64_t index,
                             const RowBackward& row) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* x = norm.x + index * norm.columns;
  const float* dy = norm.dy + index * norm.columns;
  float* dx = norm.dx + index * norm.columns;
  std::int64_t i = 0;
  for (; i + lanes <= norm.columns; i += lanes) {
    const V dy_value = hn::LoadU(d, dy + i);
    RowPart part =
        backward_part(d, row, dy_value, hn::LoadU(d, x + i), hn::LoadU(d, norm.gain + i));
    if (norm.accumulate) {
      part.dx = hn::Add(hn::LoadU(d, dx + i), part.dx);
    }
    hn::StoreU(part.dx, d, dx + i);
    if (norm.dgain != nullptr) {
      add_in_place(d, norm.dgain + i, part.gain_term);
    }
    if (norm.dbias != nullptr) {
      add_in_place(d, norm.dbias + i, dy_value);
    }
  }
  if (i < norm.columns) {
    const auto rest = static_cast<std::size_t>(norm.columns - i);
    const V dy_value = load_tail(d, dy + i, rest, 0.0F);
    RowPart part = backward_part(
        d, row, dy_value, load_tail(d, x + i, rest, 0.0F), load_tail(d, norm.gain + i, rest, 0.0F));
    if (norm.accumulate) {
      part.dx = hn::Add(load_tail(d, dx + i, rest, 0.0F), part.dx);
    }
    store_tail(part.dx, d, dx + i, rest);
    if (norm.dgain != nullptr) {
      add_tail_in_place(d, norm.dgain + i, part.gain_term, rest);
    }
    if (norm.dbias != nullptr) {
      add_tail_in_place(d, norm.dbias + i, dy_value, rest);
    }
  }
}

HWY_INLINE void clear_sums(const NormBackwardRows& norm) {
  if (norm.dgain != nullptr) {
    std::fill(norm.dgain, norm.dgain + norm.columns, 0.0F);
  }
  if (norm.dbias != nullptr) {
    std::fill(norm.dbias, norm.dbias + norm.columns, 0.0F);
  }
}

template <bool kLayerNorm>
HWY_INLINE void backward_rows(const NormBackwardRows& norm) {
  const D d;
  clear_sums(norm);
  const auto columns = static_cast<float>(norm.columns);
  for (std::int64_t index = 0; index < norm.rows; ++index) {
    const float* x = norm.x + index * norm.columns;
    const float* dy = norm.dy + index * norm.columns;
    RowBackward row = {0.0F, norm.rstd[index], 0.0F, 0.0F};
    if constexpr (kLayerNorm) {
      row.mean = norm.mean[index];
      row.shift = sum_terms(d, ProductTerm{dy, norm.gain}, norm.columns) / columns;
    }
    row.pull = sum_terms(d, CentredProductTerm{dy, norm.gain, x, row.mean}, norm.columns) *
               row.rstd / columns;
    backward_row(d, norm, index, row);
  }
}

void layer_norm_backward_rows_simd(const NormBackwardRows& norm) {
  backward_rows<true>(norm);
}

void rms_norm_backward_rows_simd(const NormBackwardRows& norm) {
  backward_rows<false>(norm);
}

}  // namespace headrace::kernels::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::kernels::cpu {

HWY_EXPORT(layer_norm_rows_simd);
HWY_EXPORT(rms_norm_rows_simd);
HWY_EXPORT(layer_norm_backward_rows_simd);
HWY_EXPORT(rms_norm_backward_rows_simd);

void layer_norm_rows(const NormRows& norm) {
  HWY_DYNAMIC_DISPATCH(layer_norm_rows_simd)(norm);
}

void rms_norm_rows(const NormRows& norm) {
  HWY_DYNAMIC_DISPATCH(rms_norm_rows_simd)(norm);
}

void layer_norm_backward_rows(const NormBackwardRows& norm) {
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_rows_simd)(norm);
}

void rms_norm_backward_rows(const NormBackwardRows& norm) {
  HWY_DYNAMIC_DISPATCH(rms_norm_backward_rows_simd)(norm);
}

}  // namespace headrace::kernels::cpu
#endif  // HWY_ONCE
