// Per instruction set: AdamW's arithmetic on vectors of floats, shared by the kernels of all state
// formats. Included once per Highway target, after "hwy/foreach_target.h"; not for other files.
// The order of operations is that of adamw.hpp, literally.

// The include guard that Highway toggles for each target.
#if defined(HEADRACE_OPTIM_CPU_ADAMW_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_OPTIM_CPU_ADAMW_INL_HPP
#undef HEADRACE_OPTIM_CPU_ADAMW_INL_HPP
#else
#define HEADRACE_OPTIM_CPU_ADAMW_INL_HPP
#endif

#include <cmath>

#include "optim_cpu/adamw.hpp"
#include "optim_cpu/vectors_inl.hpp"

// x86 with fused multiply-add.
#undef HEADRACE_OPTIM_CPU_FAST_QUOTIENT
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define HEADRACE_OPTIM_CPU_FAST_QUOTIENT 1
#else
#define HEADRACE_OPTIM_CPU_FAST_QUOTIENT 0
#endif

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

// Division by a number that is the same for all elements, 0 < divisor <= 1, of x = 0 or
// x >= 2^-75: the correctly rounded quotient, so the bits of a division, at a third of its time.
//
// Why it is: the first estimate x * (1 / divisor), with the reciprocal in two floats, is off by
// hardly more than half a unit in the last place, so its remainder is exact in a float, and adding
// the remainder's share rounds correctly (Markstein, "Computation of elementary functions on the
// IBM RISC System/6000 processor", 1990). The fused operations are what makes a remainder exact;
// they are internal to this one operation. Infinity's remainder would be a NaN: as the quotient is
// not less than x, the maximum puts it right (x86 takes the second operand where one is a NaN).
class Quotient {
 public:
  explicit HWY_INLINE Quotient(float divisor)
      : divisor_(hn::Set(FloatTag(), divisor))
#if HEADRACE_OPTIM_CPU_FAST_QUOTIENT
        ,
        reciprocal_(hn::Set(FloatTag(), 1.0F / divisor)),
        // 1 / divisor - reciprocal: the remainder of 1 is exact in double.
        rest_(hn::Set(FloatTag(),
                      static_cast<float>((1.0 - static_cast<double>(divisor) *
                                                    static_cast<double>(1.0F / divisor)) /
                                         static_cast<double>(divisor))))
#endif
  {
  }

  HWY_INLINE FloatVector of(FloatVector x) const {
#if HEADRACE_OPTIM_CPU_FAST_QUOTIENT
    const FloatVector estimate = hn::MulAdd(x, reciprocal_, hn::Mul(x, rest_));
    const FloatVector remainder = hn::NegMulAdd(divisor_, estimate, x);
    return hn::Max(hn::MulAdd(remainder, reciprocal_, estimate), x);
#else
    return hn::Div(x, divisor_);
#endif
  }

 private:
  FloatVector divisor_;
#if HEADRACE_OPTIM_CPU_FAST_QUOTIENT
  FloatVector reciprocal_, rest_;
#endif
};

struct AdamWVectors {
  explicit HWY_INLINE AdamWVectors(const AdamWConstants& c)
      : scale(set(c.scale)),
        beta1(set(c.beta1)),
        one_minus_beta1(set(c.one_minus_beta1)),
        beta2(set(c.beta2)),
        one_minus_beta2(set(c.one_minus_beta2)),
        decay(set(c.decay)),
        step(set(c.step)),
        eps(set(c.eps)),
        sqrt_correction2(c.sqrt_correction2) {}

  static HWY_INLINE FloatVector set(float value) { return hn::Set(FloatTag(), value); }

  FloatVector scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step, eps;
  Quotient sqrt_correction2;
};

// The arithmetic in three stages. Between them lie a square root and a division, whose results take
// tens of cycles: a kernel does other elements' stages meanwhile, since a processor looks only some
// sixty waiting instructions ahead.

// Stage 1: the moments, in place; returns sqrt(v).
HWY_INLINE FloatVector update_moments(const AdamWVectors& c,
                                      FloatVector gradient,
                                      FloatVector& m,
                                      FloatVector& v) {
  const FloatVector g = hn::Mul(c.scale, gradient);
  m = hn::Add(hn::Mul(c.beta1, m), hn::Mul(c.one_minus_beta1, g));
  v = hn::Add(hn::Mul(c.beta2, v), hn::Mul(hn::Mul(c.one_minus_beta2, g), g));
  return hn::Sqrt(v);
}

// Stage 2: the change u.
HWY_INLINE FloatVector change(const AdamWVectors& c, FloatVector m, FloatVector root) {
  const FloatVector d = hn::Add(c.sqrt_correction2.of(root), c.eps);
  return hn::Div(hn::Mul(c.step, m), d);
}

// Stage 3: the weight.
HWY_INLINE FloatVector change_weight(const AdamWVectors& c, FloatVector p, FloatVector u) {
  return hn::Sub(hn::Mul(c.decay, p), u);
}

HWY_INLINE FloatVector load_floats(const float* values) {
  return hn::LoadU(FloatTag(), values);
}

// bf16: the upper half of a float.
HWY_INLINE FloatVector load_floats(const std::uint16_t* values) {
  const auto bits = hn::PromoteTo(BitsTag(), hn::LoadU(HalfBitsTag(), values));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits));
}

// Elements from `count` on do not exist (in a padded group, whose padding may divide zero by zero).
struct ExistingBelow {
  std::size_t count;

  HWY_INLINE FloatVector operator()(FloatVector values) const {
    return hn::IfThenElseZero(hn::FirstN(FloatTag(), HWY_MIN(count, kFloatLanes)), values);
  }
};

struct AllExisting {
  HWY_INLINE FloatVector operator()(FloatVector values) const { return values; }
};

// Becomes NaN in some lane once a value was not finite.
HWY_INLINE void add_badness(FloatVector& badness, FloatVector values) {
  badness = hn::Add(badness, hn::Sub(values, values));
}

HWY_INLINE bool is_zero(FloatVector badness) {
  return hn::AllTrue(FloatTag(), hn::Eq(badness, hn::Zero(FloatTag())));
}

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
