// AdamW's kernel for state "q8" in every instruction set. See q8.hpp for the format.
//
// A chunk of groups takes three passes: new moments and the largest of each group; new weights;
// with all scales known, the codes. So the long chains, from a moment through a square root and a
// division to a weight, and through the group's scale to a code, are walked for many groups at
// once. In between moments lie in the nearest cache.
//
// Vectors of 16-bit lanes are read as pairs: the even elements are the lower halves of 32-bit
// lanes, the odd ones the upper halves. So float vectors hold every other element, whatever their
// width.

#include "optim_cpu/adamw_q8.hpp"

#include <cstring>

#include "core/assert.hpp"
#include "optim_cpu/blocks.hpp"
#include "optim_cpu/highway_targets.hpp"
#include "optim_cpu/lanes.hpp"
#include "optim_cpu/reference.hpp"
#include "optim_cpu/rounding.hpp"

// What the kernel gets and returns, outside the instruction sets' namespaces and compiled once.
#ifndef HEADRACE_OPTIM_CPU_ADAMW_Q8_TYPES
#define HEADRACE_OPTIM_CPU_ADAMW_Q8_TYPES

namespace headrace::optim {

// A chunk between its passes.
struct Q8Chunk {
  alignas(64) float m[kQ8ChunkElements];     // even elements of a vector pair, then odd ones
  alignas(64) float root[kQ8ChunkElements];  // sqrt(v), likewise
  alignas(64) std::uint16_t random[kQ8ChunkElements];
  alignas(64) float scales[4 * kQ8ChunkGroups];  // m's, v's, then both again
};

struct Q8Result {
  double sum_squares = 0.0;
  bool finite = true;  // all new parameters are
};

}  // namespace headrace::optim

#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim_cpu/adamw_q8.cpp"
#include "hwy/foreach_target.h"
#include "optim_cpu/adamw_inl.hpp"
#include "optim_cpu/q8_inl.hpp"
#include "optim_cpu/rounding_inl.hpp"
#include "optim_cpu/vectors_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// A vector of one element has no pairs: the plain loop is the kernel.
Q8Result q8_kernel(const Q8Span& span, const AdamWConstants& constants, RoundingKey /*key*/) {
  const UpdateStats stats = adamw_q8_reference(span, constants);
  return {.sum_squares = stats.sum_squares, .finite = stats.non_finite_count == 0};
}

#else

struct Q8Sums {
  ChangeSums changes;  // of a chunk
  FloatVector badness;
};

static_assert(static_cast<std::size_t>(kPairsPerGroup) == kVectorsPerGroup);

// Elements from `count` of a group on do not exist.
struct Q8Padded {
  std::int64_t count;

  HWY_INLINE auto exists(std::int64_t at, unsigned parity) const {
    const BitsTag tag;
    const BitsVector lane = hn::ShiftLeft<1>(hn::Iota(tag, 0U));
    const BitsVector index = hn::Add(lane, hn::Set(tag, static_cast<std::uint32_t>(at) + parity));
    const hn::RebindToSigned<BitsTag> numbers;
    return hn::RebindMask(
        FloatTag(),
        hn::Lt(hn::BitCast(numbers, index), hn::Set(numbers, static_cast<std::int32_t>(count))));
  }

  HWY_INLINE auto existing(std::int64_t at, unsigned parity) const {
    return [*this, at, parity](FloatVector values) {
      return hn::IfThenElseZero(exists(at, parity), values);
    };
  }
};

struct Q8Full {
  HWY_INLINE AllExisting existing(std::int64_t /*at*/, unsigned /*parity*/) const { return {}; }
};

// Where a group's values are.
template <class Gradient>
struct Q8GroupView {
  std::uint16_t* HWY_RESTRICT high;
  std::uint8_t* HWY_RESTRICT record;
  float* HWY_RESTRICT decoded;  // or null
  const Gradient* HWY_RESTRICT gradient;

  HWY_INLINE float scale(std::size_t offset) const {
    float value = 0.0F;
    std::memcpy(&value, record + offset, sizeof(value));
    return value;
  }
};

inline constexpr std::size_t kMScaleAt = offsetof(Q8Record, m_scale);
inline constexpr std::size_t kVScaleAt = offsetof(Q8Record, v_scale);
inline constexpr std::size_t kMAt = offsetof(Q8Record, m);
inline constexpr std::size_t kVAt = offsetof(Q8Record, v);
inline constexpr std::size_t kCorrectionAt = offsetof(Q8Record, correction);

// The largest lane of each: {of a, of b, of a, of b}.
HWY_INLINE void store_largest(FloatVector a, FloatVector b, float* target) {
  const FloatTag floats;
  const FloatVector pairs =
      hn::Max(hn::InterleaveLower(floats, a, b), hn::InterleaveUpper(floats, a, b));
  const FloatVector blocks = hn::Max(pairs, hn::Shuffle1032(pairs));
#if HWY_TARGET == HWY_AVX3
  const hn::Half<FloatTag> half;
  const auto folded = hn::Max(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
  const hn::Half<decltype(half)> quarter;
  hn::StoreU(
      hn::Max(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded)), quarter, target);
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<FloatTag> half;
  hn::StoreU(hn::Max(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks)), half, target);
#else
  hn::StoreU(blocks, floats, target);
#endif
}

// The first pass, of group `group` of the chunk.
template <class Gradient, class Group>
HWY_INLINE void q8_update_moments(const AdamWVectors& c,
                                  Group existence,
                                  const Q8GroupView<Gradient>& view,
                                  std::int64_t group,
                                  Q8Chunk& chunk) {
  const FloatTag floats;
  const FloatVector m_scale = hn::Set(floats, view.scale(kMScaleAt));
  const FloatVector v_factor = hn::Set(floats, view.scale(kVScaleAt) * kQ8InverseVCodes);
  FloatVector m_largest = hn::Zero(floats);
  FloatVector v_largest = hn::Zero(floats);
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const std::int64_t at = k * kPairLanes;
    EvenOdd<FloatVector> m = decode_m(view.record + kMAt + at, m_scale);
    EvenOdd<FloatVector> v = decode_v(view.record + kVAt + at, v_factor);
    const EvenOdd<FloatVector> gradient = load_gradients(view.gradient + at);
    const auto existing_even = existence.existing(at, 0);
    const auto existing_odd = existence.existing(at, 1);
    const FloatVector even = existing_even(update_moments(c, gradient.even, m.even, v.even));
    const FloatVector odd = existing_odd(update_moments(c, gradient.odd, m.odd, v.odd));
    m = {existing_even(m.even), existing_odd(m.odd)};
    float* const m_target = chunk.m + group * kQ8GroupElements + at;
    float* const root_target = chunk.root + group * kQ8GroupElements + at;
    hn::Store(m.even, floats, m_target);
    hn::Store(m.odd, floats, m_target + kFloatLanes);
    hn::Store(even, floats, root_target);
    hn::Store(odd, floats, root_target + kFloatLanes);
    m_largest = hn::Max(m_largest, hn::Max(hn::Abs(m.even), hn::Abs(m.odd)));
    v_largest = hn::Max(v_largest, hn::Max(even, odd));
  }
  store_largest(m_largest, v_largest, chunk.scales + 4 * group);
}

// The second pass.
template <class Gradient, class Group>
HWY_INLINE void q8_update_weights(const AdamWVectors& c,
                                  Group existence,
                                  const Q8GroupView<Gradient>& view,
                                  std::int64_t group,
                                  RoundingVectors<PairTag>& rounding,
                                  Q8Chunk& chunk,
                                  Q8Sums& sums) {
  const FloatTag floats;
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const std::int64_t at = k * kPairLanes;
    const float* const m = chunk.m + group * kQ8GroupElements + at;
    const float* const root = chunk.root + group * kQ8GroupElements + at;
    const FloatVector even =
        existence.existing(at, 0)(change(c, hn::Load(floats, m), hn::Load(floats, root)));
    const FloatVector odd = existence.existing(
        at, 1)(change(c, hn::Load(floats, m + kFloatLanes), hn::Load(floats, root + kFloatLanes)));
    const EvenOdd<FloatVector> old =
        decode_weights(view.high + at, view.record + kCorrectionAt + at);
    const EvenOdd<FloatVector> p = {change_weight(c, old.even, even),
                                    change_weight(c, old.odd, odd)};
    PairVector first;
    PairVector second;
    rounding.next(first, second);
    hn::Store(first, PairTag(), chunk.random + group * kQ8GroupElements + at);
    encode_weights(p,
                   hn::ShiftRight<8>(second),
                   view.high + at,
                   view.record + kCorrectionAt + at,
                   view.decoded == nullptr ? nullptr : view.decoded + at);
    sums.changes.sums[k] =
        hn::Add(sums.changes.sums[k], hn::Add(hn::Mul(even, even), hn::Mul(odd, odd)));
    add_badness(sums.badness,
                hn::Add(existence.existing(at, 0)(p.even), existence.existing(at, 1)(p.odd)));
  }
}

// The third pass, of group `group` of the chunk.
HWY_INLINE void q8_encode_group(const Q8Chunk& chunk,
                                std::int64_t group,
                                std::uint8_t* HWY_RESTRICT record) {
  const FloatTag floats;
  const float m_scale = chunk.scales[4 * group];
  const float v_scale = chunk.scales[4 * group + 1];
  static_assert(kMScaleAt == 0 && kVScaleAt == sizeof(float));
  std::memcpy(record, chunk.scales + 4 * group, 2 * sizeof(float));
  const FloatVector m_divisor = hn::Set(floats, m_scale > 0.0F ? m_scale : 1.0F);
  const FloatVector v_factor = hn::Set(floats, v_scale > 0.0F ? kQ8VSteps / v_scale : 0.0F);
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const std::int64_t at = k * kPairLanes;
    const std::int64_t in_chunk = group * kQ8GroupElements + at;
    const PairVector random = hn::Load(PairTag(), chunk.random + in_chunk);
    const PairVector m =
        whole_steps(m_steps(hn::Load(floats, chunk.m + in_chunk), m_divisor),
                    m_steps(hn::Load(floats, chunk.m + in_chunk + kFloatLanes), m_divisor));
    const PairVector v =
        whole_steps(v_steps(hn::Load(floats, chunk.root + in_chunk), v_factor),
                    v_steps(hn::Load(floats, chunk.root + in_chunk + kFloatLanes), v_factor));
    store_bytes(hn::ShiftRight<8>(hn::Add(m, hn::ShiftRight<8>(random))), record + kMAt + at);
    const PairVector v_random =
        hn::And(random, hn::Set(PairTag(), static_cast<std::uint16_t>(0xffU)));
    store_bytes(hn::ShiftRight<8>(hn::Add(v, v_random)), record + kVAt + at);
  }
}

template <class Gradient>
HWY_INLINE Q8GroupView<Gradient> group_of(const Q8Span& span, std::int64_t group) {
  const std::int64_t at = group * kQ8GroupElements;
  return {.high = span.high + at,
          .record = reinterpret_cast<std::uint8_t*>(span.records) +
                    static_cast<std::size_t>(group) * sizeof(Q8Record),
          .decoded = span.decoded == nullptr ? nullptr : span.decoded + at,
          .gradient = static_cast<const Gradient*>(span.gradient) + at};
}

// The last `count` elements, fewer than a group, by way of padded copies. What the padding decodes
// to stays in the copies.
template <class Gradient>
HWY_INLINE void q8_tail(const AdamWVectors& c,
                        const Q8GroupView<Gradient>& view,
                        std::int64_t count,
                        RoundingVectors<PairTag>& rounding,
                        Q8Chunk& chunk,
                        Q8Sums& sums) {
  const auto elements = static_cast<std::size_t>(count);
  alignas(64) std::uint16_t high[kQ8GroupElements] = {};
  alignas(64) Gradient gradient[kQ8GroupElements] = {};
  alignas(64) float decoded[kQ8GroupElements];
  alignas(64) std::uint8_t record[sizeof(Q8Record)];
  std::memcpy(high, view.high, elements * sizeof(std::uint16_t));
  std::memcpy(gradient, view.gradient, elements * sizeof(Gradient));
  std::memcpy(record, view.record, sizeof(Q8Record));
  const Q8GroupView<Gradient> padded{high, record, decoded, gradient};
  q8_update_moments(c, Q8Padded{count}, padded, 0, chunk);
  q8_update_weights(c, Q8Padded{count}, padded, 0, rounding, chunk, sums);
  q8_encode_group(chunk, 0, record);
  std::memcpy(view.high, high, elements * sizeof(std::uint16_t));
  if (view.decoded != nullptr) {
    std::memcpy(view.decoded, decoded, elements * sizeof(float));
  }
  std::memcpy(view.record, record, kMAt);
  for (const std::size_t plane : {kMAt, kVAt, kCorrectionAt}) {
    std::memcpy(view.record + plane, record + plane, elements);
  }
}

template <class Gradient>
HWY_INLINE Q8Result q8_typed(const Q8Span& span, const AdamWConstants& constants, RoundingKey key) {
  const AdamWVectors c(constants);
  RoundingVectors<PairTag> rounding(key, span.tensor_begin);
  Q8Chunk chunk;
  SquareLanes lanes = {};
  Q8Sums sums;
  sums.badness = hn::Zero(FloatTag());
  const std::int64_t groups = span.elements / kQ8GroupElements;
  const std::int64_t rest = span.elements % kQ8GroupElements;
  for (std::int64_t begin = 0; begin < groups; begin += kQ8ChunkGroups) {
    const std::int64_t count = HWY_MIN(groups - begin, kQ8ChunkGroups);
    clear(sums.changes);
    for (std::int64_t i = 0; i < count; ++i) {
      q8_update_moments(c, Q8Full{}, group_of<Gradient>(span, begin + i), i, chunk);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto view = group_of<Gradient>(span, begin + i);
      q8_update_weights(c, Q8Full{}, view, i, rounding, chunk, sums);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      q8_encode_group(chunk, i, group_of<Gradient>(span, begin + i).record);
    }
    add_to(sums.changes, lanes);
  }
  if (rest > 0) {
    clear(sums.changes);
    q8_tail(c, group_of<Gradient>(span, groups), rest, rounding, chunk, sums);
    add_to(sums.changes, lanes);
  }
  return {.sum_squares = combine_lanes(lanes), .finite = is_zero(sums.badness)};
}

// All elements share the rounding key.
Q8Result q8_kernel(const Q8Span& span, const AdamWConstants& constants, RoundingKey key) {
  if (span.gradient_dtype == Dtype::kBf16) {
    return q8_typed<std::uint16_t>(span, constants, key);
  }
  return q8_typed<float>(span, constants, key);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace headrace::optim {

HWY_EXPORT(q8_kernel);

namespace {

Q8Span part_of(const Q8Span& span, std::int64_t begin, std::int64_t elements) {
  const auto gradient_bytes = static_cast<std::size_t>(begin) * dtype_bytes(span.gradient_dtype);
  const auto record_bytes = static_cast<std::size_t>(begin / kQ8GroupElements) * sizeof(Q8Record);
  Q8Span part = span;
  part.high += begin;
  part.records += record_bytes;
  part.decoded = span.decoded == nullptr ? nullptr : span.decoded + begin;
  part.gradient = static_cast<const std::byte*>(span.gradient) + gradient_bytes;
  part.elements = elements;
  part.tensor_begin += begin;
  return part;
}

}  // namespace

UpdateStats adamw_q8_update(const Q8Span& span, const AdamWConstants& constants) {
  HEADRACE_ASSERT(span.elements >= 0, "a span has a length");
  HEADRACE_ASSERT(span.tensor_begin % kQ8GroupElements == 0, "a span starts with a group");
  HEADRACE_ASSERT(span.gradient_dtype == Dtype::kF32 || span.gradient_dtype == Dtype::kBf16,
                  "gradients are fp32 or bf16");
  UpdateStats stats;
  bool finite = true;
  for_each_rounding_block(
      span.tensor_begin, span.elements, [&](std::int64_t begin, std::int64_t elements) {
        const Q8Span part = part_of(span, begin - span.tensor_begin, elements);
        const Q8Result result =
            HWY_DYNAMIC_DISPATCH(q8_kernel)(part, constants, rounding_key(span.origin, begin));
        stats.sum_squares += result.sum_squares;
        finite = finite && result.finite;
      });
  if (!finite) {
    // A weight is as finite as its upper part.
    const NonFinite found = find_non_finite(
        span.elements, [&span](std::int64_t i) { return float_from_bf16(span.high[i]); });
    stats.non_finite_count = found.count;
    stats.first_non_finite = found.first;
  }
  return stats;
}

Q8Span q8_span(const TileUpdate& tile, const TileSegment& segment, ElementRange range) {
  const std::int64_t at = segment.offset_elements + range.begin;
  const auto gradient_bytes =
      static_cast<std::size_t>(range.begin) * dtype_bytes(segment.gradient_dtype);
  return {
      .high = reinterpret_cast<std::uint16_t*>(tile.param) + at,
      .records = tile.state + static_cast<std::size_t>(at / kQ8GroupElements) * sizeof(Q8Record),
      .decoded = tile.decoded == nullptr ? nullptr : tile.decoded + at,
      .gradient = static_cast<const std::byte*>(segment.gradient) + gradient_bytes,
      .gradient_dtype = segment.gradient_dtype,
      .elements = range.elements,
      .origin = segment.origin(),
      .tensor_begin = segment.tensor_begin + range.begin};
}

void adamw_q8_update_blocks(const TileUpdate& tile,
                            BlockRange range,
                            std::span<UpdateStats> stats) {
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    const ElementRange elements{.begin = block.begin, .elements = block.elements};
    stats[static_cast<std::size_t>(block.index - range.begin)] = adamw_q8_update(
        q8_span(tile, *block.segment, elements), adamw_constants(block.segment->scalars));
  });
}

}  // namespace headrace::optim

#endif  // HWY_ONCE
