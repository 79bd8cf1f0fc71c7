// Vector helpers of one instruction set. Included once per target by the *_simd.cpp files, after
// hwy/highway.h and inside foreach_target's loop (hence the toggled guard).
//
// Invariant: NaN stays NaN through every function here (Highway's own Exp turns it into 0).
// MulAdd is used: kernels promise equal bits on one machine, not across instruction sets.

#if defined(HEADRACE_KERNELS_CPU_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_KERNELS_CPU_SIMD_INL_HPP
#undef HEADRACE_KERNELS_CPU_SIMD_INL_HPP
#else
#define HEADRACE_KERNELS_CPU_SIMD_INL_HPP
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();

namespace headrace::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

inline constexpr std::size_t kLanesMax = HWY_MAX_BYTES / sizeof(float);

// Lanes beyond `count` are `fill`; reads nothing beyond count.
HWY_INLINE V load_tail(D d, const float* source, std::size_t count, float fill) {
  HWY_ALIGN float buffer[kLanesMax];
  hn::Store(hn::Set(d, fill), d, buffer);
  std::memcpy(buffer, source, count * sizeof(float));
  return hn::Load(d, buffer);
}

HWY_INLINE void store_tail(V value, D d, float* target, std::size_t count) {
  HWY_ALIGN float buffer[kLanesMax];
  hn::Store(value, d, buffer);
  std::memcpy(target, buffer, count * sizeof(float));
}

HWY_INLINE float sum_lanes(D d, V value) {
  return hn::GetLane(hn::SumOfLanes(d, value));
}

HWY_INLINE float max_lanes(D d, V value) {
  return hn::GetLane(hn::MaxOfLanes(d, value));
}

// e^x within about 1 ulp; 0 below -87.3 (where floats become subnormal), infinity above 88.7.
// Polynomial and reduction of Cephes' expf (Moshier).
HWY_INLINE V exp_of(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341F)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  V p = hn::Set(d, 1.9875691500e-4F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0F));
  // 2^n in two factors, since n reaches 128. Garbage where x is out of range or NaN: replaced below
  // in the first case, and NaN times anything is NaN in the second.
  const auto exponent = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const V low = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V high = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  V y = hn::Mul(hn::Mul(p, low), high);
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.33F)), hn::Zero(d), y);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.72F)), hn::Set(d, __builtin_huge_valf()), y);
}

// 1 / (1 + e^-x)
HWY_INLINE V sigmoid_of(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(x))));
}

}  // namespace headrace::kernels::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
