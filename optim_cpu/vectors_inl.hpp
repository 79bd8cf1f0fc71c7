// Per instruction set: vector types that cover a group of 16 floats, and sums of their squares in
// double. Included once per Highway target, after "hwy/foreach_target.h"; not for other files.
//
// Invariant: lane j of a group's sums holds the accumulator j of gradient.hpp, for every vector
// width.

// The include guard that Highway toggles for each target.
#if defined(HEADRACE_OPTIM_CPU_VECTORS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_OPTIM_CPU_VECTORS_INL_HPP
#undef HEADRACE_OPTIM_CPU_VECTORS_INL_HPP
#else
#define HEADRACE_OPTIM_CPU_VECTORS_INL_HPP
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "optim_cpu/lanes.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, static_cast<std::size_t>(kGroupElements)>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using HalfBitsTag = hn::Rebind<std::uint16_t, FloatTag>;  // as many 16-bit lanes as floats
#if HWY_TARGET == HWY_SCALAR
using DoubleTag = hn::Rebind<double, FloatTag>;
#else
using DoubleTag = hn::Repartition<double, FloatTag>;
#endif
using FloatVector = hn::Vec<FloatTag>;
using DoubleVector = hn::Vec<DoubleTag>;

inline constexpr std::size_t kFloatLanes = hn::MaxLanes(FloatTag());
inline constexpr std::size_t kDoubleLanes = hn::MaxLanes(DoubleTag());
inline constexpr std::size_t kVectorsPerGroup = kGroupElements / kFloatLanes;
inline constexpr std::size_t kSumsPerVector =
    kFloatLanes / kDoubleLanes;  // 2, or 1 where a vector is one element

// The 16 accumulators, in registers.
struct SquareSums {
  DoubleVector sums[kGroupElements / kDoubleLanes];
};

HWY_INLINE void clear(SquareSums& squares) {
  for (DoubleVector& sum : squares.sums) {
    sum = hn::Zero(DoubleTag());
  }
}

// Adds the squares of vector `k` of a group. Widening is exact, and so is the square.
HWY_INLINE void add_squares(SquareSums& squares, std::size_t k, FloatVector values) {
  const DoubleTag doubles;
#if HWY_TARGET == HWY_SCALAR
  const DoubleVector wide = hn::PromoteTo(doubles, values);
  squares.sums[k] = hn::Add(squares.sums[k], hn::Mul(wide, wide));
#else
  const hn::Half<FloatTag> half;
  const DoubleVector low = hn::PromoteTo(doubles, hn::LowerHalf(half, values));
  const DoubleVector high = hn::PromoteTo(doubles, hn::UpperHalf(half, values));
  squares.sums[2 * k] = hn::Add(squares.sums[2 * k], hn::Mul(low, low));
  squares.sums[2 * k + 1] = hn::Add(squares.sums[2 * k + 1], hn::Mul(high, high));
#endif
}

HWY_INLINE double total(const SquareSums& squares) {
  alignas(64) SquareLanes lanes;
  for (std::size_t k = 0; k < kGroupElements / kDoubleLanes; ++k) {
    hn::Store(squares.sums[k], DoubleTag(), lanes + k * kDoubleLanes);
  }
  return combine_lanes(lanes);
}

// The 16 lanes of a change's sum of squares (adamw.hpp), in float for some elements.
struct ChangeSums {
  FloatVector sums[kVectorsPerGroup];
};

HWY_INLINE void clear(ChangeSums& changes) {
  for (FloatVector& sum : changes.sums) {
    sum = hn::Zero(FloatTag());
  }
}

HWY_INLINE void add_to(const ChangeSums& changes, SquareLanes& lanes) {
  alignas(64) float sums[kGroupElements];
  for (std::size_t k = 0; k < kVectorsPerGroup; ++k) {
    hn::Store(changes.sums[k], FloatTag(), sums + k * kFloatLanes);
  }
  for (std::size_t lane = 0; lane < kGroupElements; ++lane) {
    lanes[lane] += static_cast<double>(sums[lane]);
  }
}

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
