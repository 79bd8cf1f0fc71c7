// Element-by-element functions, rotary positions and column sums, vectorised.
//
// Invariant: an element's value depends on its operands only, not on its place in a range, but for
// the vector tail, which goes through the same vector function.

#include "kernels/cpu/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise_simd.cpp"  // NOLINT
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/simd_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::kernels::cpu::HWY_NAMESPACE {

// y = Op(x...) over a range; all operands are loaded before the result is stored, so y may alias.
template <class Op>
void map_unary(const float* x, float* y, std::int64_t count) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(Op::apply(d, hn::LoadU(d, x + i)), d, y + i);
  }
  if (i < count) {
    const auto rest = static_cast<std::size_t>(count - i);
    store_tail(Op::apply(d, load_tail(d, x + i, rest, 0.0F)), d, y + i, rest);
  }
}

template <class Op>
void map_binary(const float* a, const float* b, float* y, std::int64_t count) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(Op::apply(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, y + i);
  }
  if (i < count) {
    const auto rest = static_cast<std::size_t>(count - i);
    const V value = Op::apply(d, load_tail(d, a + i, rest, 0.0F), load_tail(d, b + i, rest, 0.0F));
    store_tail(value, d, y + i, rest);
  }
}

struct AddOp {
  static HWY_INLINE V apply(D, V a, V b) { return hn::Add(a, b); }
};

// (1 + tanh(u)) / 2 = sigmoid(2u), so that one exp does and small values keep their relative error.
inline constexpr float kGeluSlope = 0.7978845608028654F;  // sqrt(2/pi)
inline constexpr float kGeluCubic = 0.044715F;

HWY_INLINE V gelu_gate(D d, V x, V x_squared) {
  const V inner = hn::MulAdd(hn::Mul(hn::Set(d, kGeluCubic), x_squared), x, x);
  return sigmoid_of(d, hn::Mul(hn::Set(d, 2.0F * kGeluSlope), inner));
}

struct GeluOp {
  static HWY_INLINE V apply(D d, V x) { return hn::Mul(x, gelu_gate(d, x, hn::Mul(x, x))); }
};

struct GeluBackwardOp {
  static HWY_INLINE V apply(D d, V x, V dy) {
    const V one = hn::Set(d, 1.0F);
    const V x_squared = hn::Mul(x, x);
    const V gate = gelu_gate(d, x, x_squared);
    const V slope = hn::Mul(hn::Set(d, 2.0F * kGeluSlope),
                            hn::MulAdd(hn::Set(d, 3.0F * kGeluCubic), x_squared, one));
    const V change = hn::Mul(hn::Mul(x, slope), hn::Mul(gate, hn::Sub(one, gate)));
    return hn::Mul(dy, hn::Add(gate, change));
  }
};

struct SwigluOp {
  static HWY_INLINE V apply(D d, V gate, V up) {
    return hn::Mul(hn::Mul(gate, sigmoid_of(d, gate)), up);
  }
};

void add_range_simd(const float* a, const float* b, float* y, std::int64_t count) {
  map_binary<AddOp>(a, b, y, count);
}

void gelu_range_simd(const float* x, float* y, std::int64_t count) {
  map_unary<GeluOp>(x, y, count);
}

void gelu_backward_range_simd(const float* x, const float* dy, float* dx, std::int64_t count) {
  map_binary<GeluBackwardOp>(x, dy, dx, count);
}

void swiglu_range_simd(const float* gate, const float* up, float* y, std::int64_t count) {
  map_binary<SwigluOp>(gate, up, y, count);
}

struct SwigluGradients {
  V dgate;
  V dup;
};

HWY_INLINE SwigluGradients swiglu_gradients(D d, V gate, V up, V dy) {
  const V one = hn::Set(d, 1.0F);
  const V s = sigmoid_of(d, gate);
  const V slope = hn::Mul(s, hn::MulAdd(gate, hn::Sub(one, s), one));
  return {hn::Mul(hn::Mul(dy, up), slope), hn::Mul(dy, hn::Mul(gate, s))};
}

void swiglu_backward_simd(const SwigluBackwardRange& range) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= range.count; i += lanes) {
    const SwigluGradients gradients = swiglu_gradients(
        d, hn::LoadU(d, range.gate + i), hn::LoadU(d, range.up + i), hn::LoadU(d, range.dy + i));
    hn::StoreU(gradients.dgate, d, range.dgate + i);
    hn::StoreU(gradients.dup, d, range.dup + i);
  }
  if (i < range.count) {
    const auto rest = static_cast<std::size_t>(range.count - i);
    const SwigluGradients gradients = swiglu_gradients(d,
                                                       load_tail(d, range.gate + i, rest, 0.0F),
                                                       load_tail(d, range.up + i, rest, 0.0F),
                                                       load_tail(d, range.dy + i, rest, 0.0F));
    store_tail(gradients.dgate, d, range.dgate + i, rest);
    store_tail(gradients.dup, d, range.dup + i, rest);
  }
}

struct RotatedPair {
  V first;
  V second;
};

HWY_INLINE RotatedPair rotate(V first, V second, V cosine, V sine) {
  return {hn::NegMulAdd(second, sine, hn::Mul(first, cosine)),
          hn::MulAdd(first, sine, hn::Mul(second, cosine))};
}

void rope_one_row_simd(const RopeRow& row) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t half = row.head_dim / 2;
  const V sign = hn::Set(d, row.sign);
  for (std::int64_t head = 0; head < row.heads; ++head) {
    float* first = row.x + head * row.head_dim;
    float* second = first + half;
    std::int64_t j = 0;
    for (; j + lanes <= half; j += lanes) {
      const RotatedPair pair = rotate(hn::LoadU(d, first + j),
                                      hn::LoadU(d, second + j),
                                      hn::LoadU(d, row.cosine + j),
                                      hn::Mul(sign, hn::LoadU(d, row.sine + j)));
      hn::StoreU(pair.first, d, first + j);
      hn::StoreU(pair.second, d, second + j);
    }
    if (j < half) {
      const auto rest = static_cast<std::size_t>(half - j);
      const RotatedPair pair = rotate(load_tail(d, first + j, rest, 0.0F),
                                      load_tail(d, second + j, rest, 0.0F),
                                      load_tail(d, row.cosine + j, rest, 0.0F),
                                      hn::Mul(sign, load_tail(d, row.sine + j, rest, 0.0F)));
      store_tail(pair.first, d, first + j, rest);
      store_tail(pair.second, d, second + j, rest);
    }
  }
}

void sum_columns_simd(const ColumnSums& sums) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN float group[kSumColumnsMax];
  for (std::int64_t c = 0; c < sums.columns; ++c) {
    sums.total[c] = 0.0F;
  }
  for (std::int64_t begin = 0; begin < sums.rows; begin += kSumGroupRows) {
    const std::int64_t end = std::min(begin + kSumGroupRows, sums.rows);
    std::fill(group, group + sums.columns, 0.0F);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = sums.x + row * sums.stride;
      std::int64_t c = 0;
      for (; c + lanes <= sums.columns; c += lanes) {
        hn::Store(hn::Add(hn::Load(d, group + c), hn::LoadU(d, x + c)), d, group + c);
      }
      for (; c < sums.columns; ++c) {
        group[c] += x[c];
      }
    }
    for (std::int64_t c = 0; c < sums.columns; ++c) {
      sums.total[c] += group[c];
    }
  }
}

}  // namespace headrace::kernels::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::kernels::cpu {

HWY_EXPORT(add_range_simd);
HWY_EXPORT(gelu_range_simd);
HWY_EXPORT(gelu_backward_range_simd);
HWY_EXPORT(swiglu_range_simd);
HWY_EXPORT(swiglu_backward_simd);
HWY_EXPORT(rope_one_row_simd);
HWY_EXPORT(sum_columns_simd);

void add_range(const float* a, const float* b, float* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_range_simd)(a, b, y, count);
}

void gelu_range(const float* x, float* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(gelu_range_simd)(x, y, count);
}

void gelu_backward_range(const float* x, const float* dy, float* dx, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_range_simd)(x, dy, dx, count);
}

void swiglu_range(const float* gate, const float* up, float* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_range_simd)(gate, up, y, count);
}

void swiglu_backward_range(const SwigluBackwardRange& range) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward_simd)(range);
}

void rope_row(const RopeRow& row) {
  HWY_DYNAMIC_DISPATCH(rope_one_row_simd)(row);
}

void column_sums(const ColumnSums& sums) {
  HEADRACE_DASSERT(sums.columns <= kSumColumnsMax, "column_sums takes a block of columns");
  HWY_DYNAMIC_DISPATCH(sum_columns_simd)(sums);
}

}  // namespace headrace::kernels::cpu
#endif  // HWY_ONCE
