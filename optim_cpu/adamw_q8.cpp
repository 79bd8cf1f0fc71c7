// AdamW's kernel for state "q8" in every instruction set. See q8.hpp for the format.
//
// A chunk of groups takes two steps: decode, update, new weights and the largest moments of each
// group; then, with all scales known, the codes. So the long chain from a moment to its group's scale
// to its code is walked for many groups at once. In between moments lie in the nearest cache.
//
// Vectors of 16-bit lanes are read as pairs: the even elements are the lower halves of 32-bit lanes,
// the odd ones the upper halves. So float vectors hold every other element, whatever their width.

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

// A chunk between its two steps.
struct Q8Chunk {
  alignas(64) float m[kQ8ChunkElements];     // even elements of a vector pair, then odd ones
  alignas(64) float root[kQ8ChunkElements];  // sqrt(v), likewise
  alignas(64) std::uint16_t random[kQ8ChunkElements];
  alignas(64) float m_scale[kQ8ChunkGroups];
  alignas(64) float v_scale[kQ8ChunkGroups];
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

using PairTag = hn::Repartition<std::uint16_t, FloatTag>;  // two elements in each float's lane
using SignedPairTag = hn::RebindToSigned<PairTag>;
using ByteTag = hn::Rebind<std::uint8_t, PairTag>;  // as many bytes as PairTag has lanes
using PairVector = hn::Vec<PairTag>;
using BitsVector = hn::Vec<BitsTag>;

inline constexpr auto kPairLanes = static_cast<std::int64_t>(2 * kFloatLanes);
inline constexpr std::int64_t kPairsPerGroup = kQ8GroupElements / kPairLanes;

// The even and the odd elements of a PairTag vector.
template <class Vector>
struct EvenOdd {
  Vector even, odd;
};

HWY_INLINE EvenOdd<BitsVector> upper_halves(PairVector pairs) {
  const BitsTag tag;
  const BitsVector bits = hn::BitCast(tag, pairs);
  return {hn::ShiftLeft<16>(bits), hn::And(bits, hn::Set(tag, 0xffff0000U))};
}

HWY_INLINE EvenOdd<BitsVector> lower_halves(PairVector pairs) {
  const BitsTag tag;
  const BitsVector bits = hn::BitCast(tag, pairs);
  return {hn::And(bits, hn::Set(tag, 0xffffU)), hn::ShiftRight<16>(bits)};
}

HWY_INLINE PairVector pairs_of_upper(const EvenOdd<BitsVector>& bits) {
  return hn::BitCast(PairTag(),
                     hn::OrAnd(hn::ShiftRight<16>(bits.even),
                               bits.odd,
                               hn::Set(BitsTag(), 0xffff0000U)));
}

HWY_INLINE PairVector pairs_of_lower(const EvenOdd<BitsVector>& bits) {
  return hn::BitCast(
      PairTag(),
      hn::OrAnd(hn::ShiftLeft<16>(bits.odd), bits.even, hn::Set(BitsTag(), 0xffffU)));
}

HWY_INLINE EvenOdd<FloatVector> as_floats(const EvenOdd<BitsVector>& bits) {
  return {hn::BitCast(FloatTag(), bits.even), hn::BitCast(FloatTag(), bits.odd)};
}

HWY_INLINE PairVector load_bytes(const std::uint8_t* bytes) {
  return hn::PromoteTo(PairTag(), hn::LoadU(ByteTag(), bytes));
}

HWY_INLINE void store_bytes(PairVector values, std::uint8_t* bytes) {
  hn::StoreU(hn::TruncateTo(ByteTag(), values), ByteTag(), bytes);
}

HWY_INLINE EvenOdd<FloatVector> load_gradients(const std::uint16_t* gradient) {
  return as_floats(upper_halves(hn::LoadU(PairTag(), gradient)));
}

HWY_INLINE EvenOdd<FloatVector> load_gradients(const float* gradient) {
  EvenOdd<FloatVector> result;
  hn::LoadInterleaved2(FloatTag(), gradient, result.even, result.odd);
  return result;
}

// The upper halves of M(c) for each magnitude c in 0..127.
HWY_INLINE PairVector lookup_magnitudes(PairVector c) {
#if HWY_TARGET == HWY_AVX3
  // Four registers hold half the table each two: a permutation picks by the lower six bits.
  const __m512i* table = reinterpret_cast<const __m512i*>(kQ8Magnitudes.data());
  const __m512i low = _mm512_permutex2var_epi16(
      _mm512_loadu_si512(table), c.raw, _mm512_loadu_si512(table + 1));
  const __m512i high = _mm512_permutex2var_epi16(
      _mm512_loadu_si512(table + 2), c.raw, _mm512_loadu_si512(table + 3));
  return PairVector{_mm512_mask_blend_epi16(
      _mm512_test_epi16_mask(c.raw, _mm512_set1_epi16(64)), low, high)};
#else
  alignas(64) std::uint16_t values[kPairLanes];
  hn::Store(c, PairTag(), values);
  for (std::uint16_t& value : values) {
    value = kQ8Magnitudes[value];
  }
  return hn::Load(PairTag(), values);
#endif
}

HWY_INLINE EvenOdd<FloatVector> decode_m(const std::uint8_t* codes, FloatVector scale) {
  const SignedPairTag tag;
  const auto numbers =
      hn::PromoteTo(tag, hn::BitCast(hn::RebindToSigned<ByteTag>(), hn::LoadU(ByteTag(), codes)));
  const PairVector magnitudes = lookup_magnitudes(hn::BitCast(PairTag(), hn::Abs(numbers)));
  const PairVector with_sign =
      hn::OrAnd(magnitudes,
                hn::BitCast(PairTag(), numbers),
                hn::Set(PairTag(), static_cast<std::uint16_t>(0x8000U)));
  const EvenOdd<FloatVector> values = as_floats(upper_halves(with_sign));
  return {hn::Mul(values.even, scale), hn::Mul(values.odd, scale)};
}

HWY_INLINE FloatVector root_of(BitsVector code, FloatVector factor) {
  const auto number = hn::BitCast(hn::RebindToSigned<FloatTag>(), code);
  return hn::Mul(hn::ConvertTo(FloatTag(), number), factor);
}

HWY_INLINE EvenOdd<FloatVector> decode_v(const std::uint8_t* codes, FloatVector factor) {
  const EvenOdd<BitsVector> numbers = lower_halves(load_bytes(codes));
  const FloatVector even = root_of(numbers.even, factor);
  const FloatVector odd = root_of(numbers.odd, factor);
  return {hn::Mul(even, even), hn::Mul(odd, odd)};
}

HWY_INLINE EvenOdd<FloatVector> decode_weights(const std::uint16_t* high,
                                               const std::uint8_t* correction) {
  const BitsTag tag;
  const EvenOdd<BitsVector> upper = upper_halves(hn::LoadU(PairTag(), high));
  const EvenOdd<BitsVector> excess =
      lower_halves(hn::Xor(hn::ShiftLeft<8>(load_bytes(correction)),
                           hn::Set(PairTag(), static_cast<std::uint16_t>(0x8000U))));
  const BitsVector half = hn::Set(tag, 0x8000U);
  return as_floats({hn::Sub(hn::Or(upper.even, excess.even), half),
                    hn::Sub(hn::Or(upper.odd, excess.odd), half)});
}

HWY_INLINE BitsVector weight_bits(FloatVector values) {
  const BitsTag tag;
  return hn::IfThenElse(hn::RebindMask(tag, hn::IsNaN(values)),
                        hn::Set(tag, kDefaultNan),
                        hn::BitCast(tag, values));
}

// Rounds by 8 random bits a lane, splits, stores.
HWY_INLINE void encode_weights(const EvenOdd<FloatVector>& p,
                               PairVector random,
                               std::uint16_t* high,
                               std::uint8_t* correction,
                               float* decoded) {
  const BitsTag tag;
  const EvenOdd<BitsVector> added = lower_halves(
      hn::Or(random, hn::Set(PairTag(), static_cast<std::uint16_t>(0x8000U))));
  const EvenOdd<BitsVector> excess = {hn::Add(weight_bits(p.even), added.even),
                                      hn::Add(weight_bits(p.odd), added.odd)};
  hn::StoreU(pairs_of_upper(excess), PairTag(), high);
  store_bytes(hn::Xor(hn::ShiftRight<8>(pairs_of_lower(excess)),
                      hn::Set(PairTag(), static_cast<std::uint16_t>(0x80U))),
              correction);
  if (decoded != nullptr) {
    const auto kept = [tag](BitsVector bits) {
      return hn::BitCast(FloatTag(),
                         hn::And(hn::Sub(bits, hn::Set(tag, 0x8000U)), hn::Set(tag, ~0xffU)));
    };
    hn::StoreInterleaved2(kept(excess.even), kept(excess.odd), FloatTag(), decoded);
  }
}

struct Q8Sums {
  FloatVector squares[kPairsPerGroup];  // of u, over a chunk
  FloatVector badness;
};

// Elements from `count` of a group on do not exist.
struct Q8Padded {
  std::int64_t count;

  HWY_INLINE auto exists(std::int64_t at, unsigned parity) const {
    const BitsTag tag;
    const BitsVector lane = hn::ShiftLeft<1>(hn::Iota(tag, 0U));
    const BitsVector index = hn::Add(lane, hn::Set(tag, static_cast<std::uint32_t>(at) + parity));
    const hn::RebindToSigned<BitsTag> numbers;
    return hn::RebindMask(FloatTag(),
                          hn::Lt(hn::BitCast(numbers, index),
                                 hn::Set(numbers, static_cast<std::int32_t>(count))));
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

// The first step of group `group` of the chunk.
template <class Gradient, class Group>
HWY_INLINE void q8_update_group(const AdamWVectors& c,
                                Group existence,
                                const Q8GroupView<Gradient>& view,
                                std::int64_t group,
                                RoundingVectors<PairTag>& rounding,
                                Q8Chunk& chunk,
                                Q8Sums& sums) {
  const FloatTag floats;
  const FloatVector m_scale = hn::Set(floats, view.scale(kMScaleAt));
  const FloatVector v_factor = hn::Set(floats, view.scale(kVScaleAt) * kQ8InverseVCodes);
  FloatVector m_largest = hn::Zero(floats);
  FloatVector v_largest = hn::Zero(floats);
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const std::int64_t at = k * kPairLanes;
    const std::int64_t in_chunk = group * kQ8GroupElements + at;
    const EvenOdd<FloatVector> p = decode_weights(view.high + at, view.record + kCorrectionAt + at);
    const EvenOdd<FloatVector> m = decode_m(view.record + kMAt + at, m_scale);
    const EvenOdd<FloatVector> v = decode_v(view.record + kVAt + at, v_factor);
    const EvenOdd<FloatVector> gradient = load_gradients(view.gradient + at);
    AdamWElements even{.p = p.even, .m = m.even, .v = v.even, .root = v.even, .u = v.even};
    AdamWElements odd{.p = p.odd, .m = m.odd, .v = v.odd, .root = v.odd, .u = v.odd};
    const auto existing_even = existence.existing(at, 0);
    const auto existing_odd = existence.existing(at, 1);
    adamw_elements(c, gradient.even, existing_even, even);
    adamw_elements(c, gradient.odd, existing_odd, odd);
    even.m = existing_even(even.m);
    odd.m = existing_odd(odd.m);
    even.root = existing_even(even.root);
    odd.root = existing_odd(odd.root);
    PairVector first;
    PairVector second;
    rounding.next(first, second);
    encode_weights({even.p, odd.p},
                   hn::ShiftRight<8>(second),
                   view.high + at,
                   view.record + kCorrectionAt + at,
                   view.decoded == nullptr ? nullptr : view.decoded + at);
    hn::Store(even.m, floats, chunk.m + in_chunk);
    hn::Store(odd.m, floats, chunk.m + in_chunk + kFloatLanes);
    hn::Store(even.root, floats, chunk.root + in_chunk);
    hn::Store(odd.root, floats, chunk.root + in_chunk + kFloatLanes);
    hn::Store(first, PairTag(), chunk.random + in_chunk);
    m_largest = hn::Max(m_largest, hn::Max(hn::Abs(even.m), hn::Abs(odd.m)));
    v_largest = hn::Max(v_largest, hn::Max(even.root, odd.root));
    sums.squares[k] =
        hn::Add(sums.squares[k], hn::Add(hn::Mul(even.u, even.u), hn::Mul(odd.u, odd.u)));
    add_badness(sums.badness, hn::Add(existing_even(even.p), existing_odd(odd.p)));
  }
  chunk.m_scale[group] = hn::GetLane(hn::MaxOfLanes(floats, m_largest));
  chunk.v_scale[group] = hn::GetLane(hn::MaxOfLanes(floats, v_largest));
}

// floor(steps + random / 256): steps rounded to whole numbers by an addition, the rest in 16 bits.
HWY_INLINE PairVector whole_steps(FloatVector even, FloatVector odd) {
  const FloatTag floats;
  const BitsTag tag;
  const FloatVector shift = hn::Set(floats, 0x1.8p23F);
  return pairs_of_lower(
      {hn::BitCast(tag, hn::Add(even, shift)), hn::BitCast(tag, hn::Add(odd, shift))});
}

HWY_INLINE FloatVector m_steps(FloatVector m, FloatVector scale) {
  return hn::Mul(hn::Div(m, hn::Add(scale, hn::Abs(m))), hn::Set(FloatTag(), kQ8MSteps));
}

HWY_INLINE FloatVector v_steps(FloatVector root, FloatVector factor) {
  const FloatTag floats;
  const FloatVector steps = hn::Max(hn::Mul(root, factor), hn::Set(floats, 256.0F));
  return hn::IfThenElseZero(hn::Gt(root, hn::Zero(floats)), steps);
}

// The second step of group `group` of the chunk.
HWY_INLINE void q8_encode_group(const Q8Chunk& chunk,
                                std::int64_t group,
                                std::uint8_t* HWY_RESTRICT record) {
  const FloatTag floats;
  const float m_scale = chunk.m_scale[group];
  const float v_scale = chunk.v_scale[group];
  std::memcpy(record + kMScaleAt, &m_scale, sizeof(float));
  std::memcpy(record + kVScaleAt, &v_scale, sizeof(float));
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

HWY_INLINE void clear(Q8Sums& sums) {
  for (FloatVector& squares : sums.squares) {
    squares = hn::Zero(FloatTag());
  }
}

HWY_INLINE void add_squares(const Q8Sums& sums, SquareLanes& lanes) {
  alignas(64) float squares[kGroupElements];
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    hn::Store(sums.squares[k], FloatTag(), squares + k * static_cast<std::int64_t>(kFloatLanes));
  }
  for (std::int64_t lane = 0; lane < kGroupElements; ++lane) {
    lanes[lane] += static_cast<double>(squares[lane]);
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

// The last `count` elements, fewer than a group, by way of padded copies. What the padding decodes to
// stays in the copies.
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
  q8_update_group(c,
                  Q8Padded{count},
                  Q8GroupView<Gradient>{high, record, decoded, gradient},
                  0,
                  rounding,
                  chunk,
                  sums);
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
    clear(sums);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto view = group_of<Gradient>(span, begin + i);
      q8_update_group(c, Q8Full{}, view, i, rounding, chunk, sums);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      q8_encode_group(chunk, i, group_of<Gradient>(span, begin + i).record);
    }
    add_squares(sums, lanes);
  }
  if (rest > 0) {
    clear(sums);
    q8_tail(c, group_of<Gradient>(span, groups), rest, rounding, chunk, sums);
    add_squares(sums, lanes);
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
  return {.high = reinterpret_cast<std::uint16_t*>(tile.param) + at,
          .records =
              tile.state + static_cast<std::size_t>(at / kQ8GroupElements) * sizeof(Q8Record),
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
