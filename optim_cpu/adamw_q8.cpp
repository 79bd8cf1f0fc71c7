// AdamW's kernel for state "q8" in every instruction set. See q8.hpp for the format, adamw_q8.hpp
// for the arithmetic.
//
// A chunk of blocks takes two passes: new moments and the largest of each group; with all scales
// known, new weights and all codes. So the long chains, from a moment through a square root and a
// division to a weight, and through the group's scale to a code, are walked for many blocks at
// once. In between moments lie in the nearest cache.
//
// Vectors of 16-bit lanes are read as pairs: the even elements are the lower halves of 32-bit
// lanes, the odd ones the upper halves. So float vectors hold every other element, whatever their
// width.

#include "optim_cpu/adamw_q8.hpp"

#include <cmath>
#include <cstring>
#include <limits>

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

inline constexpr std::int64_t kQ8ScalesPerBlock = 4;  // m's, v's of the first group, of the second

// A chunk between its passes. Scales and what is made of them are in their plane's order.
struct Q8Chunk {
  alignas(64) float m[kQ8ChunkElements];     // even elements of a vector pair, then odd ones
  alignas(64) float root[kQ8ChunkElements];  // sqrt(v), likewise
  alignas(64) float decode[kQ8ScalesPerBlock * kQ8ChunkBlocks];  // factors of old codes
  alignas(64) float largest[kQ8ScalesPerBlock * kQ8ChunkBlocks] = {};
  alignas(64) float encode[kQ8ScalesPerBlock * kQ8ChunkBlocks];  // of new ones
};

struct Q8Result {
  double sum_squares = 0.0;
  bool finite = true;  // all new parameters are
};

}  // namespace headrace::optim

#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim_cpu/adamw_q8.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "optim_cpu/adamw_inl.hpp"
#include "optim_cpu/q8_inl.hpp"
#include "optim_cpu/rounding_inl.hpp"
#include "optim_cpu/vectors_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

#if !HEADRACE_OPTIM_CPU_Q8_VECTORS

// The plain loop is the kernel.
Q8Result q8_kernel(const Q8Span& span, const Q8Constants& constants, RoundingKey /*key*/) {
  const UpdateStats stats = adamw_q8_reference(span, constants);
  return {.sum_squares = stats.sum_squares, .finite = stats.non_finite_count == 0};
}

#else

struct Q8Vectors {
  explicit HWY_INLINE Q8Vectors(const Q8Constants& c)
      : m_gradient(set(c.m_gradient)),
        v_gradient(set(c.v_gradient)),
        inverse_step(set(c.inverse_step)),
        eps(set(c.eps)),
        decay(set(c.decay)) {}

  static HWY_INLINE FloatVector set(float value) { return hn::Set(FloatTag(), value); }

  FloatVector m_gradient, v_gradient, inverse_step, eps, decay;
  Q8Bits bits;
};

struct Q8Sums {
  ChangeSums changes;  // of a chunk
  FloatVector badness;
};

static_assert(static_cast<std::size_t>(kPairsPerGroup) == kVectorsPerGroup);

// How a kernel reaches the elements of a block from `at` on. Here, those from `count` on do not
// exist: they are zeros, and no memory is touched for them but that of the records, which are
// whole.
struct Q8Padded {
  std::int64_t count;

  // Of the elements of one vector pair.
  HWY_INLINE std::size_t rest(std::int64_t at) const {
    return static_cast<std::size_t>(HWY_MIN(HWY_MAX(count - at, 0), kPairLanes));
  }

  HWY_INLINE auto exists(std::int64_t at, unsigned parity) const {
    const BitsTag tag;
    const BitsVector lane = hn::ShiftLeft<1>(hn::Iota(tag, 0U));
    const BitsVector index = hn::Add(lane, hn::Set(tag, static_cast<std::uint32_t>(at) + parity));
    const hn::RebindToSigned<BitsTag> numbers;
    return hn::RebindMask(
        FloatTag(),
        hn::Lt(hn::BitCast(numbers, index), hn::Set(numbers, static_cast<std::int32_t>(count))));
  }

  HWY_INLINE EvenOdd<FloatVector> existing(std::int64_t at, EvenOdd<FloatVector> values) const {
    return {hn::IfThenElseZero(exists(at, 0), values.even),
            hn::IfThenElseZero(exists(at, 1), values.odd)};
  }

  HWY_INLINE PairVector load_halves(const std::uint16_t* source, std::int64_t at) const {
#if HWY_TARGET == HWY_AVX3
    return hn::MaskedLoad(hn::FirstN(PairTag(), rest(at)), PairTag(), source + at);
#else
    alignas(64) std::uint16_t values[kPairLanes] = {};
    std::memcpy(values, source + at, rest(at) * sizeof(std::uint16_t));
    return hn::Load(PairTag(), values);
#endif
  }

  HWY_INLINE void store_halves(PairVector values, std::uint16_t* target, std::int64_t at) const {
#if HWY_TARGET == HWY_AVX3
    hn::BlendedStore(values, hn::FirstN(PairTag(), rest(at)), PairTag(), target + at);
#else
    alignas(64) std::uint16_t buffer[kPairLanes];
    hn::Store(values, PairTag(), buffer);
    std::memcpy(target + at, buffer, rest(at) * sizeof(std::uint16_t));
#endif
  }

  HWY_INLINE EvenOdd<FloatVector> load_floats(const float* source, std::int64_t at) const {
    alignas(64) float values[kPairLanes] = {};
    std::memcpy(values, source + at, rest(at) * sizeof(float));
    return interleaved_floats(values);
  }

  HWY_INLINE void store_floats(const EvenOdd<FloatVector>& values,
                               float* target,
                               std::int64_t at) const {
    alignas(64) float buffer[kPairLanes];
    hn::StoreInterleaved2(values.even, values.odd, FloatTag(), buffer);
    std::memcpy(target + at, buffer, rest(at) * sizeof(float));
  }

  // Bytes of others keep their value: of words `at` of a record.
  HWY_INLINE void store_record(const Q8Bits& c,
                               PairVector words,
                               std::uint8_t* record,
                               std::int64_t at) const {
    const SignedPairTag numbers;
    const auto lanes = hn::Iota(numbers, static_cast<std::int16_t>(at));
    const auto exist = [&](std::int64_t first) {
      const auto end = hn::Set(numbers, static_cast<std::int16_t>(count - first));
      return hn::BitCast(PairTag(), hn::VecFromMask(numbers, hn::Lt(lanes, end)));
    };
    const PairVector kept = merge_upper_bytes(c, {exist(0), exist(kQ8GroupElements)});
    store_words(hn::OrAnd(hn::AndNot(kept, load_words(record + 2 * at)), words, kept),
                record + 2 * at);
  }
};

// All exist.
struct Q8Full {
  HWY_INLINE EvenOdd<FloatVector> existing(std::int64_t /*at*/, EvenOdd<FloatVector> values) const {
    return values;
  }

  HWY_INLINE PairVector load_halves(const std::uint16_t* source, std::int64_t at) const {
    return hn::LoadU(PairTag(), source + at);
  }

  HWY_INLINE void store_halves(PairVector values, std::uint16_t* target, std::int64_t at) const {
    hn::StoreU(values, PairTag(), target + at);
  }

  HWY_INLINE EvenOdd<FloatVector> load_floats(const float* source, std::int64_t at) const {
    return interleaved_floats(source + at);
  }

  HWY_INLINE void store_floats(const EvenOdd<FloatVector>& values,
                               float* target,
                               std::int64_t at) const {
    hn::StoreInterleaved2(values.even, values.odd, FloatTag(), target + at);
  }

  HWY_INLINE void store_record(const Q8Bits& /*c*/,
                               PairVector words,
                               std::uint8_t* record,
                               std::int64_t at) const {
    store_words(words, record + 2 * at);
  }
};

template <class Block>
HWY_INLINE EvenOdd<FloatVector> load_gradients(const Q8Bits& c,
                                               Block block,
                                               const std::uint16_t* gradient,
                                               std::int64_t at) {
  return as_floats(upper_halves(c, block.load_halves(gradient, at)));
}

template <class Block>
HWY_INLINE EvenOdd<FloatVector> load_gradients(const Q8Bits& /*c*/,
                                               Block block,
                                               const float* gradient,
                                               std::int64_t at) {
  const FloatTag floats;
  const EvenOdd<FloatVector> values = block.load_floats(gradient, at);
  return {infinite_nans(floats, values.even), infinite_nans(floats, values.odd)};
}

// Where a block's values are, and its place in the chunk.
template <class Gradient, bool kDecoded>
struct Q8BlockView {
  static constexpr bool kHasDecoded = kDecoded;
  using GradientElement = Gradient;

  std::uint16_t* HWY_RESTRICT high;
  std::uint8_t* HWY_RESTRICT m;
  std::uint8_t* HWY_RESTRICT v;
  std::uint8_t* HWY_RESTRICT correction;
  float* HWY_RESTRICT decoded;  // null unless kHasDecoded
  const Gradient* HWY_RESTRICT gradient;
  std::int64_t index;
};

// Of four vectors, the largest lane of each.
struct FourLargest {
  FloatVector values[kQ8ScalesPerBlock];
};

HWY_INLINE void store_largest(const FourLargest& all, float* target) {
  const FloatTag floats;
  const auto fold = [floats](FloatVector a, FloatVector b) {
    return hn::Max(hn::InterleaveLower(floats, a, b), hn::InterleaveUpper(floats, a, b));
  };
  // In each 128 bits: the first and the third, the second and the fourth, then all in order.
  const FloatVector blocks =
      fold(fold(all.values[0], all.values[2]), fold(all.values[1], all.values[3]));
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

HWY_INLINE FloatVector larger_magnitude(FloatVector largest, FloatVector values) {
#if HWY_TARGET == HWY_AVX3
  constexpr int kLargerMagnitude = 0x0b;  // without its sign
  return FloatVector{_mm512_range_ps(largest.raw, values.raw, kLargerMagnitude)};
#else
  return hn::Max(hn::Abs(largest), hn::Abs(values));
#endif
}

// What a group's codes are multiplied with.
struct Q8Factors {
  FloatVector m, v;
};

// New moments of old ones in steps: m and sqrt(v).
HWY_INLINE void q8_update_moments(
    const Q8Vectors& c, Q8Factors factors, FloatVector gradient, FloatVector& m, FloatVector& v) {
  m = hn::MulAdd(m, factors.m, hn::Mul(c.m_gradient, gradient));
  const FloatVector h = hn::Mul(c.v_gradient, gradient);
  const FloatVector s = hn::Mul(v, factors.v);
  v = hn::Sqrt(hn::MulAdd(h, h, hn::Mul(s, s)));
}

HWY_INLINE FloatVector q8_change(const Q8Vectors& c, FloatVector m, FloatVector root) {
  return hn::Div(m, hn::MulAdd(root, c.inverse_step, c.eps));
}

// The first pass.
template <class View, class Block>
HWY_INLINE void q8_moments(const Q8Vectors& c, Block existence, const View& view, Q8Chunk& chunk) {
  const FloatTag floats;
  const float* const factors = chunk.decode + kQ8ScalesPerBlock * view.index;
  FourLargest largest;
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const GroupWords m_codes = upper_bytes(load_words(view.m + 2 * k * kPairLanes));
    const GroupWords v_codes =
        numbers_of_bytes(c.bits, at_least_one(c.bits, load_words(view.v + 2 * k * kPairLanes)));
#pragma GCC unroll 2
    for (std::int64_t group = 0; group < 2; ++group) {
      const std::int64_t at = group * kQ8GroupElements + k * kPairLanes;
      const Q8Factors group_factors = {.m = hn::Set(floats, factors[2 * group]),
                                       .v = hn::Set(floats, factors[2 * group + 1])};
      EvenOdd<FloatVector> m = m_steps(c.bits, group == 0 ? m_codes.first : m_codes.second);
      EvenOdd<FloatVector> root = v_steps(c.bits, group == 0 ? v_codes.first : v_codes.second);
      const EvenOdd<FloatVector> gradient = load_gradients(c.bits, existence, view.gradient, at);
      q8_update_moments(c, group_factors, gradient.even, m.even, root.even);
      q8_update_moments(c, group_factors, gradient.odd, m.odd, root.odd);
      m = existence.existing(at, m);
      root = existence.existing(at, root);
      float* const m_target = chunk.m + view.index * kQ8BlockElements + at;
      float* const root_target = chunk.root + view.index * kQ8BlockElements + at;
      hn::Store(m.even, floats, m_target);
      hn::Store(m.odd, floats, m_target + kFloatLanes);
      hn::Store(root.even, floats, root_target);
      hn::Store(root.odd, floats, root_target + kFloatLanes);
      FloatVector& m_largest = largest.values[2 * group];
      FloatVector& root_largest = largest.values[2 * group + 1];
      const FloatVector m_larger = larger_magnitude(m.even, m.odd);
      const FloatVector root_larger = hn::Max(root.even, root.odd);
      m_largest = k == 0 ? m_larger : larger_magnitude(m_largest, m_larger);
      root_largest = k == 0 ? root_larger : hn::Max(root_largest, root_larger);
    }
  }
  store_largest(largest, chunk.largest + kQ8ScalesPerBlock * view.index);
}

// Words whose upper byte is a group's part of the records.
struct Q8Words {
  PairVector m, v, correction;
};

// The second pass, of elements `at` of a block: new weights; returns what is for the records.
template <class View, class Block>
HWY_INLINE Q8Words q8_weights(const Q8Vectors& c,
                              Block existence,
                              const View& view,
                              std::int64_t at,
                              PairVector corrections,
                              RoundingVectors<PairTag>& rounding,
                              const Q8Chunk& chunk,
                              Q8Sums& sums) {
  const FloatTag floats;
  const std::int64_t group = at / kQ8GroupElements;
  const auto k = static_cast<std::size_t>(at % kQ8GroupElements / kPairLanes);
  const float* const m_source = chunk.m + view.index * kQ8BlockElements + at;
  const float* const root_source = chunk.root + view.index * kQ8BlockElements + at;
  const float* const factors = chunk.encode + kQ8ScalesPerBlock * view.index + 2 * group;
  const EvenOdd<FloatVector> m = {hn::Load(floats, m_source),
                                  hn::Load(floats, m_source + kFloatLanes)};
  const EvenOdd<FloatVector> root = {hn::Load(floats, root_source),
                                     hn::Load(floats, root_source + kFloatLanes)};
  const EvenOdd<FloatVector> u =
      existence.existing(at, {q8_change(c, m.even, root.even), q8_change(c, m.odd, root.odd)});
  const EvenOdd<FloatVector> old =
      decode_weights(c.bits, existence.load_halves(view.high, at), corrections);
  const EvenOdd<FloatVector> p = {hn::MulSub(c.decay, old.even, u.even),
                                  hn::MulSub(c.decay, old.odd, u.odd)};
  PairVector first;
  PairVector second;
  rounding.next(first, second);
  const EvenOdd<BitsVector> rounded = round_weights(c.bits, p, second);
  existence.store_halves(pairs_of_upper(c.bits, rounded), view.high, at);
  if constexpr (View::kHasDecoded) {
    existence.store_floats(decoded_weights(rounded), view.decoded, at);
  }
  sums.changes.sums[k] = hn::MulAdd(u.odd, u.odd, hn::MulAdd(u.even, u.even, sums.changes.sums[k]));
  const EvenOdd<FloatVector> seen = existence.existing(at, p);
  sums.badness = hn::MulAdd(hn::Add(seen.even, seen.odd), hn::Zero(floats), sums.badness);
  return {.m = encode_m(c.bits, m, hn::Set(floats, factors[0]), first),
          .v = encode_root(c.bits, root, hn::Set(floats, factors[1]), second),
          .correction = pairs_of_lower(c.bits, rounded)};
}

template <class View, class Block>
HWY_INLINE void q8_weights_of_block(const Q8Vectors& c,
                                    Block existence,
                                    const View& view,
                                    RoundingVectors<PairTag>& rounding,
                                    const Q8Chunk& chunk,
                                    Q8Sums& sums) {
  GroupWords old[kPairsPerGroup];
  Q8Words words[2][kPairsPerGroup];
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    old[k] = upper_bytes(load_words(view.correction + 2 * k * kPairLanes));
  }
#pragma GCC unroll 2
  for (std::int64_t group = 0; group < 2; ++group) {
#pragma GCC unroll 8
    for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
      const std::int64_t at = group * kQ8GroupElements + k * kPairLanes;
      const PairVector corrections = group == 0 ? old[k].first : old[k].second;
      words[group][k] = q8_weights(c, existence, view, at, corrections, rounding, chunk, sums);
    }
  }
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const std::int64_t at = k * kPairLanes;
    const Q8Words& first = words[0][k];
    const Q8Words& second = words[1][k];
    existence.store_record(c.bits, merge_upper_bytes(c.bits, {first.m, second.m}), view.m, at);
    existence.store_record(c.bits, merge_upper_bytes(c.bits, {first.v, second.v}), view.v, at);
    existence.store_record(c.bits,
                           merge_corrections(c.bits, first.correction, second.correction),
                           view.correction,
                           at);
  }
}

// Elements of a chunk: whole blocks, and a rest.
struct Q8ChunkRange {
  std::int64_t begin;   // the first block, of the span's
  std::int64_t blocks;  // whole ones
  std::int64_t rest;    // elements of one that is not
};

// 128 bits: the scales of a block.
using ScalesTag = hn::CappedTag<float, static_cast<std::size_t>(kQ8ScalesPerBlock)>;

// Of `blocks` blocks of a chunk.
HWY_INLINE void q8_decode_scales(const Q8Constants& constants,
                                 const std::byte* scales,
                                 std::int64_t blocks,
                                 Q8Chunk& chunk) {
  const ScalesTag tag;
  const float factors[kQ8ScalesPerBlock] = {
      constants.m_keep, constants.v_keep, constants.m_keep, constants.v_keep};
  const auto keep = hn::LoadU(tag, factors);
  for (std::int64_t i = 0; i < kQ8ScalesPerBlock * blocks; i += kQ8ScalesPerBlock) {
    const auto values = plain_nans(tag, hn::LoadU(tag, reinterpret_cast<const float*>(scales) + i));
    hn::Store(hn::Mul(values, keep), tag, chunk.decode + i);
  }
}

HWY_INLINE void q8_encode_scales(std::int64_t blocks, Q8Chunk& chunk) {
  const FloatTag floats;
  alignas(64) float steps[kGroupElements];
  for (std::int64_t i = 0; i < kGroupElements; ++i) {
    steps[i] = i % 2 == 0 ? kQ8MSteps : kQ8VSteps;
  }
  for (std::int64_t i = 0; i < kQ8ScalesPerBlock * blocks; i += kFloatLanes) {
    const FloatVector scales = hn::Load(floats, chunk.largest + i);
    const FloatVector factors = hn::Div(hn::Load(floats, steps + i % kGroupElements), scales);
    hn::Store(hn::IfThenElseZero(hn::Ge(scales, hn::Set(floats, kQ8ScaleMin)), factors),
              floats,
              chunk.encode + i);
  }
}

template <class View>
HWY_INLINE View block_of(const Q8Span& span, std::int64_t block, std::int64_t index) {
  const std::int64_t at = block * kQ8BlockElements;
  return {.high = span.high + at,
          .m = span.planes.m + at,
          .v = span.planes.v + at,
          .correction = span.planes.correction + at,
          .decoded = span.decoded == nullptr ? nullptr : span.decoded + at,
          .gradient = static_cast<const typename View::GradientElement*>(span.gradient) + at,
          .index = index};
}

// Those of groups that exist.
HWY_INLINE void q8_store_scales(const Q8Chunk& chunk, Q8ChunkRange range, std::byte* scales) {
  const ScalesTag tag;
  auto* target = reinterpret_cast<float*>(scales);
  const float* source = chunk.largest;
  for (std::int64_t i = 0; i < range.blocks; ++i) {
    hn::StoreU(hn::Load(tag, source), tag, target);
    source += kQ8ScalesPerBlock;
    target += kQ8ScalesPerBlock;
  }
  if (range.rest > 0) {
    std::memcpy(target, source, sizeof(Q8Scales));
  }
  if (range.rest > kQ8GroupElements) {
    std::memcpy(target + 2, source + 2, sizeof(Q8Scales));
  }
}

HWY_INLINE void prefetch_bytes(const void* data, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t at = 0; at < bytes; at += kLine) {
    hwy::Prefetch(static_cast<const std::byte*>(data) + at);
  }
}

// What each pass asks for of a block of the next chunk, so that memory is as busy in the one as in
// the other: a processor's own prefetching stops where a pass over a chunk does. Past the span's
// end it does nothing.
template <class View>
HWY_INLINE void q8_prefetch_moments(const Q8Span& span, std::int64_t block) {
  const auto view = block_of<View>(span, block, 0);
  prefetch_bytes(view.gradient, kQ8BlockElements * sizeof(*view.gradient));
  prefetch_bytes(view.m, kQ8BlockElements);
  prefetch_bytes(view.v, kQ8BlockElements);
}

template <class View>
HWY_INLINE void q8_prefetch_weights(const Q8Span& span, std::int64_t block) {
  const auto view = block_of<View>(span, block, 0);
  prefetch_bytes(view.high, kQ8BlockElements * sizeof(*view.high));
  prefetch_bytes(view.correction, kQ8BlockElements);
}

template <class View>
HWY_INLINE void q8_chunk(const Q8Vectors& c,
                         const Q8Constants& constants,
                         const Q8Span& span,
                         Q8ChunkRange range,
                         RoundingVectors<PairTag>& rounding,
                         Q8Chunk& chunk,
                         Q8Sums& sums) {
  const Q8Planes planes = span.planes.from_block(range.begin);
  const std::int64_t all = range.blocks + (range.rest > 0 ? 1 : 0);
  const auto block = [&](std::int64_t i) { return block_of<View>(span, range.begin + i, i); };
  q8_decode_scales(constants, planes.scales, all, chunk);
  {
    const Q8Vectors held = c;  // in registers, as many as there are
    for (std::int64_t i = 0; i < range.blocks; ++i) {
      q8_prefetch_moments<View>(span, range.begin + kQ8ChunkBlocks + i);
      q8_moments(held, Q8Full{}, block(i), chunk);
    }
  }
  if (range.rest > 0) {
    q8_moments(c, Q8Padded{range.rest}, block(range.blocks), chunk);
  }
  q8_store_scales(chunk, range, planes.scales);
  q8_encode_scales(all, chunk);
  {
    const Q8Vectors held = c;
    for (std::int64_t i = 0; i < range.blocks; ++i) {
      q8_prefetch_weights<View>(span, range.begin + kQ8ChunkBlocks + i);
      q8_weights_of_block(held, Q8Full{}, block(i), rounding, chunk, sums);
    }
  }
  if (range.rest > 0) {
    q8_weights_of_block(c, Q8Padded{range.rest}, block(range.blocks), rounding, chunk, sums);
  }
}

template <class View>
HWY_INLINE Q8Result q8_typed(const Q8Span& span, const Q8Constants& constants, RoundingKey key) {
  Q8Vectors c(constants);
  c.bits.hide();
  RoundingVectors<PairTag> rounding(key, span.tensor_begin);
  Q8Chunk chunk;
  SquareLanes lanes = {};
  Q8Sums sums;
  sums.badness = hn::Zero(FloatTag());
  for (std::int64_t at = 0; at < span.elements; at += kQ8ChunkElements) {
    const std::int64_t rest = span.elements - at;
    const std::int64_t begin = at / kQ8BlockElements;
    clear(sums.changes);
    if (rest >= kQ8ChunkElements) {  // of a length that the compiler knows
      const Q8ChunkRange whole = {.begin = begin, .blocks = kQ8ChunkBlocks, .rest = 0};
      q8_chunk<View>(c, constants, span, whole, rounding, chunk, sums);
    } else {
      const Q8ChunkRange last = {
          .begin = begin, .blocks = rest / kQ8BlockElements, .rest = rest % kQ8BlockElements};
      q8_chunk<View>(c, constants, span, last, rounding, chunk, sums);
    }
    add_to(sums.changes, lanes);
  }
  return {.sum_squares = combine_lanes(lanes), .finite = is_zero(sums.badness)};
}

template <class Gradient>
HWY_INLINE Q8Result q8_of_gradient(const Q8Span& span,
                                   const Q8Constants& constants,
                                   RoundingKey key) {
  if (span.decoded != nullptr) {
    return q8_typed<Q8BlockView<Gradient, true> >(span, constants, key);
  }
  return q8_typed<Q8BlockView<Gradient, false> >(span, constants, key);
}

// All elements share the rounding key.
Q8Result q8_kernel(const Q8Span& span, const Q8Constants& constants, RoundingKey key) {
  if (span.gradient_dtype == Dtype::kBf16) {
    return q8_of_gradient<std::uint16_t>(span, constants, key);
  }
  return q8_of_gradient<float>(span, constants, key);
}

#endif  // HEADRACE_OPTIM_CPU_Q8_VECTORS

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace headrace::optim {

HWY_EXPORT(q8_kernel);

namespace {

Q8Span part_of(const Q8Span& span, std::int64_t begin, std::int64_t elements) {
  const auto gradient_bytes = static_cast<std::size_t>(begin) * dtype_bytes(span.gradient_dtype);
  Q8Span part = span;
  part.high += begin;
  part.planes = span.planes.from_block(begin / kQ8BlockElements);
  part.decoded = span.decoded == nullptr ? nullptr : span.decoded + begin;
  part.gradient = static_cast<const std::byte*>(span.gradient) + gradient_bytes;
  part.elements = elements;
  part.tensor_begin += begin;
  return part;
}

}  // namespace

Q8Constants q8_constants(const AdamWScalars& scalars) {
  const BiasCorrections corrections = bias_corrections(scalars);
  const double root2 = std::sqrt(corrections.second);
  const double inverse_step = corrections.first / std::fabs(scalars.lr * root2);
  // Of an infinity, too, and of a NaN: eps and lr are 0.
  const auto finite = [](double value) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    return value < static_cast<double>(kLargest) ? static_cast<float>(value) : kLargest;
  };
  return {.m_gradient = static_cast<float>(scalars.clip_scale * (1.0 - scalars.beta1)),
          .m_keep = static_cast<float>(scalars.beta1 / static_cast<double>(kQ8MCodeMax)),
          .v_gradient = static_cast<float>(scalars.clip_scale * std::sqrt(1.0 - scalars.beta2)),
          .v_keep = static_cast<float>(std::sqrt(scalars.beta2) / static_cast<double>(kQ8VCodeMax)),
          .inverse_step = finite(inverse_step),
          .eps = finite(scalars.eps * root2 * inverse_step),
          .decay = static_cast<float>(1.0 - scalars.lr * scalars.weight_decay)};
}

Q8Planes q8_planes(std::byte* state, std::int64_t tile_elements) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(state);
  const std::int64_t plane_bytes = q8_blocks(tile_elements) * kQ8BlockElements;
  return {.m = bytes,
          .v = bytes + plane_bytes,
          .correction = bytes + 2 * plane_bytes,
          .scales = state + 3 * plane_bytes};
}

UpdateStats adamw_q8_update(const Q8Span& span, const Q8Constants& constants) {
  HEADRACE_ASSERT(span.elements >= 0, "a span has a length");
  HEADRACE_ASSERT(span.tensor_begin % kQ8BlockElements == 0, "a span starts with a block");
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
          .planes = q8_planes(tile.state, tile.tile_elements).from_block(at / kQ8BlockElements),
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
  const TileSegment* prepared = nullptr;  // whose constants these are
  Q8Constants constants;
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    if (prepared == nullptr || !(prepared->scalars == block.segment->scalars)) {
      constants = q8_constants(block.segment->scalars);
    }
    prepared = block.segment;
    const ElementRange elements{.begin = block.begin, .elements = block.elements};
    stats[static_cast<std::size_t>(block.index - range.begin)] =
        adamw_q8_update(q8_span(tile, *block.segment, elements), constants);
  });
}

}  // namespace headrace::optim

#endif  // HWY_ONCE
