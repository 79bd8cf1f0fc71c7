// Rows of softmax over a chunk of logits: the running maximum and sum, and the probabilities.
//
// Invariant: chunks arrive in ascending order and are constants of the run; a NaN among the logits
// makes the sum NaN.

#include "kernels/cpu/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_simd.cpp"  // NOLINT
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/simd_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::kernels::cpu::HWY_NAMESPACE {

HWY_INLINE float row_maximum(D d, const float* logits, std::int64_t count, float floor) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V maximum = hn::Set(d, floor);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    maximum = hn::Max(maximum, hn::LoadU(d, logits + i));
  }
  if (i < count) {
    maximum =
        hn::Max(maximum, load_tail(d, logits + i, static_cast<std::size_t>(count - i), floor));
  }
  return max_lanes(d, maximum);
}

HWY_INLINE float exp_scalar(D d, float x) {
  return hn::GetLane(exp_of(d, hn::Set(d, x)));
}

void softmax_update_simd(const float* logits, std::int64_t count, float* maximum, float* sum) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float previous = *maximum;
  const float now = row_maximum(d, logits, count, previous);
  const V shift = hn::Set(d, now);
  V total0 = hn::Zero(d);
  V total1 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    total0 = hn::Add(total0, exp_of(d, hn::Sub(hn::LoadU(d, logits + i), shift)));
    total1 = hn::Add(total1, exp_of(d, hn::Sub(hn::LoadU(d, logits + i + lanes), shift)));
  }
  for (; i < count; i += lanes) {
    const auto rest = static_cast<std::size_t>(std::min(lanes, count - i));
    const V values = load_tail(d, logits + i, rest, -__builtin_huge_valf());
    total0 = hn::Add(total0, exp_of(d, hn::Sub(values, shift)));
  }
  // exp(-inf - now) is 0 at the first chunk; previous == now == -inf gives NaN, as it must.
  const float kept = *sum == 0.0F ? 0.0F : *sum * exp_scalar(d, previous - now);
  *sum = kept + sum_lanes(d, hn::Add(total0, total1));
  *maximum = now;
}

void softmax_scale_simd(float* logits, std::int64_t count, float lse, float scale) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V shift = hn::Set(d, lse);
  const V factor = hn::Set(d, scale);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V p = exp_of(d, hn::Sub(hn::LoadU(d, logits + i), shift));
    hn::StoreU(hn::Mul(p, factor), d, logits + i);
  }
  if (i < count) {
    const auto rest = static_cast<std::size_t>(count - i);
    const V p = exp_of(d, hn::Sub(load_tail(d, logits + i, rest, 0.0F), shift));
    store_tail(hn::Mul(p, factor), d, logits + i, rest);
  }
}

}  // namespace headrace::kernels::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::kernels::cpu {

HWY_EXPORT(softmax_update_simd);
HWY_EXPORT(softmax_scale_simd);

void softmax_update(const float* logits, std::int64_t count, float* maximum, float* sum) {
  HWY_DYNAMIC_DISPATCH(softmax_update_simd)(logits, count, maximum, sum);
}

void softmax_scale(float* logits, std::int64_t count, float lse, float scale) {
  HWY_DYNAMIC_DISPATCH(softmax_scale_simd)(logits, count, lse, scale);
}

}  // namespace headrace::kernels::cpu
#endif  // HWY_ONCE
