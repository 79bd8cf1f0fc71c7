// AdamW's kernels for the planar formats in every instruction set, and AdamW's constants. See
// adamw.hpp for the order of operations, adamw_inl.hpp for its vectors.
//
// The vector code handles groups of 16 elements; the tail is copied to a padded group and back, so
// body and tail are the same instructions.

#include "optim_cpu/adamw.hpp"

#include <cmath>
#include <cstring>

#include "core/assert.hpp"
#include "optim_cpu/blocks.hpp"
#include "optim_cpu/highway_targets.hpp"
#include "optim_cpu/rounding.hpp"

// What a kernel gets and returns, outside the instruction sets' namespaces and compiled once.
#ifndef HEADRACE_OPTIM_CPU_ADAMW_RESULT
#define HEADRACE_OPTIM_CPU_ADAMW_RESULT

namespace headrace::optim {

struct AdamWResult {
  double sum_squares = 0.0;
  bool finite = true;  // all new parameters are
};

}  // namespace headrace::optim

#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim_cpu/adamw.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "optim_cpu/adamw_inl.hpp"
#include "optim_cpu/rounding_inl.hpp"
#include "optim_cpu/vectors_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

using HalfVector = hn::Vec<HalfBitsTag>;

// Random words for the elements of a run (adamw_typed), made ahead of them by the widest vectors:
// a vector of 16-bit lanes has twice as many as one of floats.
class HalfRounding {
 public:
  HWY_INLINE HalfRounding(RoundingKey key, std::int64_t element) : vectors_(key, element) {}

  // Of the next elements. What is left of the last ones is dropped: these were a whole run.
  HWY_INLINE void fill(std::int64_t elements) {
    for (std::int64_t i = 0; i < elements; i += kLanes) {
      hn::Vec<Tag> first;
      hn::Vec<Tag> second;
      vectors_.next(first, second);
      hn::Store(first, Tag(), first_ + i);
      hn::Store(second, Tag(), second_ + i);
    }
    at_ = 0;
  }

  HWY_INLINE void next(HalfVector& first, HalfVector& second) {
    first = hn::Load(HalfBitsTag(), first_ + at_);
    second = hn::Load(HalfBitsTag(), second_ + at_);
    at_ += kFloatLanes;
  }

 private:
  using Tag = hn::CappedTag<std::uint16_t, static_cast<std::size_t>(2 * kGroupElements)>;
  static constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag()));
  static_assert(kChangeSumElements % kLanes == 0);

  alignas(64) std::uint16_t first_[kChangeSumElements];
  alignas(64) std::uint16_t second_[kChangeSumElements];
  std::size_t at_ = 0;
  RoundingVectors<Tag> vectors_;
};

HWY_INLINE auto widen(HalfVector values) {
  return hn::PromoteTo(BitsTag(), values);
}

#if HWY_TARGET == HWY_AVX3

// The upper (kUpper = 1) or the lower halves (0) of 32-bit lanes. What Highway has for it takes an
// instruction of two inputs, or one that truncates: twice the time.
template <std::uint16_t kUpper>
HWY_INLINE hn::Vec<HalfBitsTag> halves_of(hn::Vec<BitsTag> bits) {
  alignas(64) static constexpr std::uint16_t kIndices[32] = {kUpper,
                                                             kUpper + 2,
                                                             kUpper + 4,
                                                             kUpper + 6,
                                                             kUpper + 8,
                                                             kUpper + 10,
                                                             kUpper + 12,
                                                             kUpper + 14,
                                                             kUpper + 16,
                                                             kUpper + 18,
                                                             kUpper + 20,
                                                             kUpper + 22,
                                                             kUpper + 24,
                                                             kUpper + 26,
                                                             kUpper + 28,
                                                             kUpper + 30};
  const __m512i halves = _mm512_permutexvar_epi16(_mm512_load_si512(kIndices), bits.raw);
  return hn::Vec<HalfBitsTag>{_mm512_castsi512_si256(halves)};
}

#endif

HWY_INLINE void store_lower_half(hn::Vec<BitsTag> bits, std::uint16_t* target) {
  const HalfBitsTag half_bits;
#if HWY_TARGET == HWY_AVX3
  hn::StoreU(halves_of<0>(bits), half_bits, target);
#else
  hn::StoreU(hn::TruncateTo(half_bits, bits), half_bits, target);
#endif
}

HWY_INLINE void store_upper_half(hn::Vec<BitsTag> bits, std::uint16_t* target) {
  const HalfBitsTag half_bits;
#if HWY_TARGET == HWY_AVX3
  hn::StoreU(halves_of<1>(bits), half_bits, target);
#elif HWY_TARGET == HWY_SCALAR
  hn::StoreU(hn::TruncateTo(half_bits, hn::ShiftRight<16>(bits)), half_bits, target);
#else
  const hn::Repartition<std::uint16_t, FloatTag> halves;
  const auto both = hn::BitCast(halves, bits);
  hn::StoreU(hn::LowerHalf(half_bits, hn::ConcatOdd(halves, both, both)), half_bits, target);
#endif
}

HWY_INLINE hn::Vec<BitsTag> bits_without_nan_of(FloatVector values) {
  const BitsTag tag;
  return hn::IfThenElse(
      hn::RebindMask(tag, hn::IsNaN(values)), hn::Set(tag, kDefaultNan), hn::BitCast(tag, values));
}

// Weights as a plane of floats.
struct FloatWeights {
  float* HWY_RESTRICT plane;

  HWY_INLINE FloatVector load(std::size_t at) const { return load_floats(plane + at); }

  HWY_INLINE void store(FloatVector values, std::size_t at) const {
    hn::StoreU(values, FloatTag(), plane + at);
  }

  HWY_INLINE FloatWeights from(std::int64_t i) const { return {plane + i}; }

  HWY_INLINE void prefetch() const { hwy::Prefetch(plane); }
};

// Weights in two parts (weights.hpp).
struct SplitWeights {
  std::uint16_t* HWY_RESTRICT high;
  std::uint16_t* HWY_RESTRICT low;

  HWY_INLINE FloatVector load(std::size_t at) const {
    const BitsTag tag;
    const HalfBitsTag half_bits;
    const auto upper = hn::ShiftLeft<16>(widen(hn::LoadU(half_bits, high + at)));
    const auto excess = widen(hn::Xor(hn::LoadU(half_bits, low + at),
                                      hn::Set(half_bits, static_cast<std::uint16_t>(0x8000U))));
    return hn::BitCast(FloatTag(), hn::Sub(hn::Or(upper, excess), hn::Set(tag, 0x8000U)));
  }

  HWY_INLINE void store(FloatVector values, std::size_t at) const {
    const auto bits = bits_without_nan_of(values);
    store_lower_half(bits, low + at);
    store_upper_half(hn::Add(bits, hn::Set(BitsTag(), 0x8000U)), high + at);
  }

  HWY_INLINE SplitWeights from(std::int64_t i) const { return {high + i, low + i}; }

  HWY_INLINE void prefetch() const {
    hwy::Prefetch(high);
    hwy::Prefetch(low);
  }
};

struct FloatMoments {
  using Element = float;
  static constexpr bool kRounded = false;
  float* HWY_RESTRICT m;
  float* HWY_RESTRICT v;

  HWY_INLINE void store(FloatVector new_m,
                        FloatVector new_v,
                        std::size_t at,
                        HalfRounding& /*rounding*/) const {
    hn::StoreU(new_m, FloatTag(), m + at);
    hn::StoreU(new_v, FloatTag(), v + at);
  }

  HWY_INLINE FloatMoments from(std::int64_t i) const { return {m + i, v + i}; }
};

// bf16, rounded stochastically.
struct Bf16Moments {
  using Element = std::uint16_t;
  static constexpr bool kRounded = true;
  std::uint16_t* HWY_RESTRICT m;
  std::uint16_t* HWY_RESTRICT v;

  HWY_INLINE void store(FloatVector new_m,
                        FloatVector new_v,
                        std::size_t at,
                        HalfRounding& rounding) const {
    HalfVector first;
    HalfVector second;
    rounding.next(first, second);
    store_upper_half(hn::Add(hn::BitCast(BitsTag(), new_m), widen(first)), m + at);
    store_upper_half(hn::Add(hn::BitCast(BitsTag(), new_v), widen(second)), v + at);
  }

  HWY_INLINE Bf16Moments from(std::int64_t i) const { return {m + i, v + i}; }
};

struct AdamWSums {
  SquareLanes lanes = {};  // of squares of u
  ChangeSums changes;      // of those of the last elements
  FloatVector badness;
};

struct Full {
  HWY_INLINE AllExisting vector(std::size_t /*k*/) const { return {}; }
};

struct Padded {
  std::size_t count;

  HWY_INLINE ExistingBelow vector(std::size_t k) const {
    const std::size_t begin = k * kFloatLanes;
    return {count > begin ? count - begin : 0};
  }
};

// A group after stage 1, and after stage 2.
struct GroupMoments {
  FloatVector m[kVectorsPerGroup];
  FloatVector root[kVectorsPerGroup];
};

struct GroupChange {
  FloatVector u[kVectorsPerGroup];
};

template <class Moments, class Gradient>
HWY_INLINE GroupMoments stage1(const AdamWVectors& c,
                               const Moments& moments,
                               const Gradient* HWY_RESTRICT gradient,
                               HalfRounding& rounding) {
  GroupMoments result;
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectorsPerGroup; ++k) {
    const std::size_t at = k * kFloatLanes;
    FloatVector m = load_floats(moments.m + at);
    FloatVector v = load_floats(moments.v + at);
    result.root[k] = update_moments(c, load_floats(gradient + at), m, v);
    result.m[k] = m;
    moments.store(m, v, at, rounding);
  }
  return result;
}

HWY_INLINE GroupChange stage2(const AdamWVectors& c, const GroupMoments& moments) {
  GroupChange result;
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectorsPerGroup; ++k) {
    result.u[k] = change(c, moments.m[k], moments.root[k]);
  }
  return result;
}

template <class Weights, class Group>
HWY_INLINE void stage3(const AdamWVectors& c,
                       Group group,
                       const Weights& weights,
                       const GroupChange& change,
                       AdamWSums& sums) {
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectorsPerGroup; ++k) {
    const std::size_t at = k * kFloatLanes;
    const FloatVector u = group.vector(k)(change.u[k]);
    const FloatVector p = change_weight(c, weights.load(at), u);
    weights.store(p, at);
    sums.changes.sums[k] = hn::Add(sums.changes.sums[k], hn::Mul(u, u));
    add_badness(sums.badness, p);
  }
}

// A processor's own prefetching sees only as far ahead as it can wait for, which with so much to do
// for an element is not far.
inline constexpr std::int64_t kPrefetchElements = 512;

template <class Weights, class Moments, class Gradient>
HWY_INLINE void prefetch_group(const Weights& weights,
                               const Moments& moments,
                               const Gradient* gradient) {
  weights.from(kPrefetchElements).prefetch();
  hwy::Prefetch(moments.m + kPrefetchElements);
  hwy::Prefetch(moments.v + kPrefetchElements);
  hwy::Prefetch(gradient + kPrefetchElements);
}

// `groups` whole groups: each pass of the loop is at stage 3 of one, 2 of the next, 1 of the third.
template <class Weights, class Moments, class Gradient>
HWY_INLINE void adamw_groups(const AdamWVectors& c,
                             const Weights& weights,
                             const Moments& moments,
                             const Gradient* HWY_RESTRICT gradient,
                             std::int64_t groups,
                             HalfRounding& rounding,
                             AdamWSums& sums) {
  if (groups == 0) {
    return;
  }
  GroupMoments updated = stage1(c, moments, gradient, rounding);
  if (groups > 1) {
    GroupChange changed = stage2(c, updated);
    updated = stage1(c, moments.from(kGroupElements), gradient + kGroupElements, rounding);
    for (std::int64_t i = 2 * kGroupElements; i < groups * kGroupElements; i += kGroupElements) {
      prefetch_group(weights.from(i), moments.from(i), gradient + i);
      stage3(c, Full{}, weights.from(i - 2 * kGroupElements), changed, sums);
      changed = stage2(c, updated);
      updated = stage1(c, moments.from(i), gradient + i, rounding);
    }
    stage3(c, Full{}, weights.from((groups - 2) * kGroupElements), changed, sums);
  }
  stage3(c, Full{}, weights.from((groups - 1) * kGroupElements), stage2(c, updated), sums);
}

// Padded copies of the last elements, fewer than a group.
struct FloatWeightsTail {
  alignas(64) float plane[kGroupElements] = {};

  FloatWeightsTail(const FloatWeights& from, std::size_t count) {
    std::memcpy(plane, from.plane, count * sizeof(float));
  }

  void copy_to(const FloatWeights& target, std::size_t count) const {
    std::memcpy(target.plane, plane, count * sizeof(float));
  }

  FloatWeights view() { return {plane}; }
};

struct SplitWeightsTail {
  alignas(64) std::uint16_t high[kGroupElements] = {};
  alignas(64) std::uint16_t low[kGroupElements] = {};

  SplitWeightsTail(const SplitWeights& from, std::size_t count) {
    std::memcpy(high, from.high, count * sizeof(std::uint16_t));
    std::memcpy(low, from.low, count * sizeof(std::uint16_t));
  }

  void copy_to(const SplitWeights& target, std::size_t count) const {
    std::memcpy(target.high, high, count * sizeof(std::uint16_t));
    std::memcpy(target.low, low, count * sizeof(std::uint16_t));
  }

  SplitWeights view() { return {high, low}; }
};

inline FloatWeightsTail tail_of(const FloatWeights& weights, std::size_t count) {
  return {weights, count};
}

inline SplitWeightsTail tail_of(const SplitWeights& weights, std::size_t count) {
  return {weights, count};
}

template <class Weights, class Moments, class Gradient>
HWY_INLINE void adamw_tail(const AdamWVectors& c,
                           const Weights& weights,
                           const Moments& moments,
                           const Gradient* gradient,
                           std::size_t count,
                           HalfRounding& rounding,
                           AdamWSums& sums) {
  using Moment = typename Moments::Element;
  auto padded_weights = tail_of(weights, count);
  alignas(64) Moment m[kGroupElements] = {};
  alignas(64) Moment v[kGroupElements] = {};
  alignas(64) Gradient padded_gradient[kGroupElements] = {};
  std::memcpy(m, moments.m, count * sizeof(Moment));
  std::memcpy(v, moments.v, count * sizeof(Moment));
  std::memcpy(padded_gradient, gradient, count * sizeof(Gradient));
  const GroupMoments updated = stage1(c, Moments{m, v}, padded_gradient, rounding);
  stage3(c, Padded{count}, padded_weights.view(), stage2(c, updated), sums);
  padded_weights.copy_to(weights, count);
  std::memcpy(moments.m, m, count * sizeof(Moment));
  std::memcpy(moments.v, v, count * sizeof(Moment));
}

template <class Weights, class Moments, class Gradient>
HWY_INLINE AdamWResult adamw_typed(const AdamWSpan& span,
                                   const AdamWConstants& constants,
                                   RoundingKey key,
                                   const Weights& weights,
                                   const Moments& moments) {
  const AdamWVectors c(constants);
  const auto* gradient = static_cast<const Gradient*>(span.gradient);
  HalfRounding rounding(key, span.tensor_begin);
  AdamWSums sums;
  sums.badness = hn::Zero(FloatTag());
  const std::int64_t body_end = span.elements - span.elements % kGroupElements;
  for (std::int64_t i = 0; i < span.elements; i += kChangeSumElements) {
    const std::int64_t end = HWY_MIN(span.elements, i + kChangeSumElements);
    if constexpr (Moments::kRounded) {
      rounding.fill(end - i);
    }
    const std::int64_t groups = (HWY_MIN(end, body_end) - i) / kGroupElements;
    clear(sums.changes);
    adamw_groups(c, weights.from(i), moments.from(i), gradient + i, groups, rounding, sums);
    add_to(sums.changes, sums.lanes);
    if (end > body_end) {
      clear(sums.changes);
      adamw_tail(c,
                 weights.from(body_end),
                 moments.from(body_end),
                 gradient + body_end,
                 static_cast<std::size_t>(end - body_end),
                 rounding,
                 sums);
      add_to(sums.changes, sums.lanes);
    }
  }
  return {.sum_squares = combine_lanes(sums.lanes), .finite = is_zero(sums.badness)};
}

template <class Weights, class Moments>
HWY_INLINE AdamWResult adamw_of_gradient(const AdamWSpan& span,
                                         const AdamWConstants& constants,
                                         RoundingKey key,
                                         const Weights& weights,
                                         const Moments& moments) {
  if (span.gradient_dtype == Dtype::kBf16) {
    return adamw_typed<Weights, Moments, std::uint16_t>(span, constants, key, weights, moments);
  }
  return adamw_typed<Weights, Moments, float>(span, constants, key, weights, moments);
}

template <class Weights>
HWY_INLINE AdamWResult adamw_of_moments(const AdamWSpan& span,
                                        const AdamWConstants& constants,
                                        RoundingKey key,
                                        const Weights& weights) {
  if (span.bf16_m != nullptr) {
    return adamw_of_gradient(span, constants, key, weights, Bf16Moments{span.bf16_m, span.bf16_v});
  }
  return adamw_of_gradient(span, constants, key, weights, FloatMoments{span.m, span.v});
}

// All elements share the rounding key.
AdamWResult adamw_kernel(const AdamWSpan& span, const AdamWConstants& constants, RoundingKey key) {
  if (span.high != nullptr) {
    return adamw_of_moments(span, constants, key, SplitWeights{span.high, span.low});
  }
  return adamw_of_moments(span, constants, key, FloatWeights{span.param});
}

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace headrace::optim {

HWY_EXPORT(adamw_kernel);

namespace {

// base^exponent by repeated squaring: products of doubles in a fixed order.
double power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (double square = base; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) {
      result *= square;
    }
    square *= square;
  }
  return result;
}

bool is_decay_rate(double beta) {
  return beta >= 0.0 && beta < 1.0;
}

}  // namespace

BiasCorrections bias_corrections(const AdamWScalars& scalars) {
  HEADRACE_ASSERT(scalars.update_count >= 1, "updates are counted from 1");
  HEADRACE_ASSERT(is_decay_rate(scalars.beta1) && is_decay_rate(scalars.beta2),
                  "betas lie in [0, 1)");
  return {.first = 1.0 - power(scalars.beta1, scalars.update_count),
          .second = 1.0 - power(scalars.beta2, scalars.update_count)};
}

AdamWConstants adamw_constants(const AdamWScalars& scalars) {
  const BiasCorrections corrections = bias_corrections(scalars);
  return {.scale = static_cast<float>(scalars.clip_scale),
          .beta1 = static_cast<float>(scalars.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - scalars.beta1),
          .beta2 = static_cast<float>(scalars.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - scalars.beta2),
          .decay = static_cast<float>(1.0 - scalars.lr * scalars.weight_decay),
          .step = static_cast<float>(scalars.lr / corrections.first),
          .sqrt_correction2 = static_cast<float>(std::sqrt(corrections.second)),
          .eps = static_cast<float>(scalars.eps)};
}

AdamWSpan AdamWSpan::part(std::int64_t begin, std::int64_t count) const {
  const auto from = [begin](auto* plane) { return plane == nullptr ? nullptr : plane + begin; };
  AdamWSpan result = *this;
  result.param = from(param);
  result.high = from(high);
  result.low = from(low);
  result.m = from(m);
  result.v = from(v);
  result.bf16_m = from(bf16_m);
  result.bf16_v = from(bf16_v);
  result.gradient = static_cast<const std::byte*>(gradient) +
                    static_cast<std::size_t>(begin) * dtype_bytes(gradient_dtype);
  result.elements = count;
  result.tensor_begin = tensor_begin + begin;
  return result;
}

UpdateStats adamw_update(const AdamWSpan& span, const AdamWConstants& constants) {
  HEADRACE_ASSERT(span.elements >= 0, "a span has a length");
  HEADRACE_ASSERT(span.gradient_dtype == Dtype::kF32 || span.gradient_dtype == Dtype::kBf16,
                  "gradients are fp32 or bf16");
  UpdateStats stats;
  bool finite = true;
  const auto add_part = [&](const AdamWSpan& part, RoundingKey key) {
    const AdamWResult result = HWY_DYNAMIC_DISPATCH(adamw_kernel)(part, constants, key);
    stats.sum_squares += result.sum_squares;
    finite = finite && result.finite;
  };
  if (span.bf16_m == nullptr) {
    add_part(span, {});
  } else {
    const auto add_block = [&](std::int64_t begin, std::int64_t elements) {
      add_part(span.part(begin - span.tensor_begin, elements), rounding_key(span.origin, begin));
    };
    for_each_rounding_block(span.tensor_begin, span.elements, add_block);
  }
  if (!finite) {
    const NonFinite found =
        find_non_finite(span.elements, [&span](std::int64_t i) { return span.weight(i); });
    stats.non_finite_count = found.count;
    stats.first_non_finite = found.first;
  }
  return stats;
}

UpdateStats adamw_update(const AdamWSpan& span, const AdamWScalars& scalars) {
  return adamw_update(span, adamw_constants(scalars));
}

AdamWSpan adamw_span(PlanarFormat format,
                     const TileUpdate& tile,
                     const TileSegment& segment,
                     ElementRange range) {
  const std::int64_t at = segment.offset_elements + range.begin;
  std::byte* plane = tile.state;
  // The next plane of the state extent, from the range's first element on.
  const auto next_plane = [&]<class Element>(Element* /*type*/) {
    auto* first = reinterpret_cast<Element*>(plane) + at;
    plane += static_cast<std::size_t>(tile.tile_elements) * sizeof(Element);
    return first;
  };
  constexpr float* kFloats = nullptr;
  constexpr std::uint16_t* kHalves = nullptr;
  AdamWSpan span{
      .gradient = static_cast<const std::byte*>(segment.gradient) +
                  static_cast<std::size_t>(range.begin) * dtype_bytes(segment.gradient_dtype),
      .gradient_dtype = segment.gradient_dtype,
      .elements = range.elements,
      .origin = segment.origin(),
      .tensor_begin = segment.tensor_begin + range.begin};
  if (format.moment == Dtype::kBf16) {
    span.bf16_m = next_plane(kHalves);
    span.bf16_v = next_plane(kHalves);
  } else {
    span.m = next_plane(kFloats);
    span.v = next_plane(kFloats);
  }
  if (format.weight == Dtype::kBf16) {
    span.high = reinterpret_cast<std::uint16_t*>(tile.param) + at;
    span.low = next_plane(kHalves);
  } else {
    span.param = reinterpret_cast<float*>(tile.param) + at;
  }
  return span;
}

template <Dtype kWeight, Dtype kMoment>
void adamw_update_blocks(const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats) {
  const TileSegment* prepared = nullptr;  // whose constants these are
  AdamWConstants constants;
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    if (prepared == nullptr || !(prepared->scalars == block.segment->scalars)) {
      constants = adamw_constants(block.segment->scalars);
    }
    prepared = block.segment;
    stats[static_cast<std::size_t>(block.index - range.begin)] =
        adamw_update(adamw_span({.weight = kWeight, .moment = kMoment},
                                tile,
                                *block.segment,
                                {.begin = block.begin, .elements = block.elements}),
                     constants);
  });
}

#define HEADRACE_INSTANTIATE(weight, moment)         \
  template void adamw_update_blocks<weight, moment>( \
      const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats)
HEADRACE_INSTANTIATE(Dtype::kF32, Dtype::kF32);
HEADRACE_INSTANTIATE(Dtype::kF32, Dtype::kBf16);
HEADRACE_INSTANTIATE(Dtype::kBf16, Dtype::kF32);
HEADRACE_INSTANTIATE(Dtype::kBf16, Dtype::kBf16);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::optim

#endif  // HWY_ONCE
