// Per instruction set: the random bits of rounding.hpp for consecutive elements. Included once per
// Highway target, after "hwy/foreach_target.h"; not for other files.

// The include guard that Highway toggles for each target.
#if defined(HEADRACE_OPTIM_CPU_ROUNDING_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_OPTIM_CPU_ROUNDING_INL_HPP
#undef HEADRACE_OPTIM_CPU_ROUNDING_INL_HPP
#else
#define HEADRACE_OPTIM_CPU_ROUNDING_INL_HPP
#endif

#include "hwy/highway.h"
#include "optim_cpu/rounding.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

// Vectors of Tag's 16-bit lanes, one element a lane, from an element on.
template <class Tag>
class RoundingVectors {
 public:
  using Vector = hwy::HWY_NAMESPACE::Vec<Tag>;

  HWY_INLINE RoundingVectors(RoundingKey key, std::int64_t element)
      : advance_(hn::Set(Tag(), static_cast<std::uint16_t>(hn::Lanes(Tag()) * key.multiplier))) {
    const auto indices = hn::Iota(Tag(), static_cast<std::uint16_t>(element));
    keyed_ = hn::Add(hn::Mul(indices, hn::Set(Tag(), key.multiplier)), hn::Set(Tag(), key.addend));
  }

  // Of the next elements, in order.
  HWY_INLINE void next(Vector& first, Vector& second) {
    first = hn::Mul(fold<8>(keyed_), hn::Set(Tag(), kMix1));
    second = hn::Mul(fold<7>(first), hn::Set(Tag(), kMix2));
    keyed_ = hn::Add(keyed_, advance_);
  }

 private:
  template <int kShift>
  static HWY_INLINE Vector fold(Vector x) {
    return hn::Xor(x, hn::ShiftRight<kShift>(x));
  }

  Vector advance_, keyed_;
};

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
