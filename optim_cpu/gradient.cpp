// Gradient collection for every instruction set. See gradient.hpp for the order of sums.
//
// As in adamw.cpp: groups of 16 elements, tails in a padded group. The parallel forms hand out
// whole blocks.

#include "optim_cpu/gradient.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/assert.hpp"
#include "core/dtype.hpp"
#include "optim_cpu/blocks.hpp"
#include "optim_cpu/highway_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim_cpu/gradient.cpp"
#include "hwy/foreach_target.h"
#include "optim_cpu/vectors_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

// The bits of a float rounded to bf16, to nearest, ties to even; the lower half is zero. A NaN
// stays one, made quiet.
HWY_INLINE hn::Vec<BitsTag> round_to_bf16(FloatVector values) {
  const BitsTag bits_tag;
  const auto bits = hn::BitCast(bits_tag, values);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1U));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(bits_tag, 0x7fffU)), odd);
  const auto quiet = hn::Or(bits, hn::Set(bits_tag, 0x00400000U));
  const auto is_nan = hn::RebindMask(bits_tag, hn::IsNaN(values));
  return hn::And(hn::IfThenElse(is_nan, quiet, rounded), hn::Set(bits_tag, 0xffff0000U));
}

// Where a group's values go, by kind: GroupTarget<kKind>::Element is what the buffer holds.
template <GradientTarget kKind>
struct GroupTarget {
  using Element = float;
};

template <>
struct GroupTarget<GradientTarget::kBf16> {
  using Element = std::uint16_t;
};

// Rounds as `kind` says, stores unless it is kNone, and returns the values that count.
template <GradientTarget kKind>
HWY_INLINE FloatVector finish(FloatVector values, typename GroupTarget<kKind>::Element* target) {
  const FloatTag floats;
  if constexpr (kKind == GradientTarget::kNone) {
    return values;
  } else if constexpr (kKind == GradientTarget::kF32) {
    hn::StoreU(values, floats, target);
    return values;
  } else {
    const auto bits = round_to_bf16(values);
    const FloatVector rounded = hn::BitCast(floats, bits);
    if constexpr (kKind == GradientTarget::kBf16InF32) {
      hn::StoreU(rounded, floats, target);
    } else {
      const HalfBitsTag half_bits;
      hn::StoreU(hn::TruncateTo(half_bits, hn::ShiftRight<16>(bits)), half_bits, target);
    }
    return rounded;
  }
}

template <GradientTarget kKind, bool kAccumulates>
HWY_INLINE void collect_group(const float* incoming,
                              const float* accumulated,
                              typename GroupTarget<kKind>::Element* target,
                              SquareSums& squares) {
  const FloatTag floats;
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectorsPerGroup; ++k) {
    const std::size_t at = k * kFloatLanes;
    FloatVector values = hn::LoadU(floats, incoming + at);
    if constexpr (kAccumulates) {
      values = hn::Add(hn::LoadU(floats, accumulated + at), values);
    }
    if constexpr (kKind == GradientTarget::kNone) {
      add_squares(squares, k, finish<kKind>(values, nullptr));
    } else {
      add_squares(squares, k, finish<kKind>(values, target + at));
    }
  }
}

template <GradientTarget kKind, bool kAccumulates>
HWY_INLINE double collect_typed(const GradientSpan& span) {
  using Element = typename GroupTarget<kKind>::Element;
  auto* target = static_cast<Element*>(span.target);
  SquareSums squares;
  clear(squares);
  const std::int64_t body_end = span.elements - span.elements % kGroupElements;
  for (std::int64_t i = 0; i < body_end; i += kGroupElements) {
    collect_group<kKind, kAccumulates>(span.incoming + i,
                                       kAccumulates ? span.accumulated + i : nullptr,
                                       kKind == GradientTarget::kNone ? nullptr : target + i,
                                       squares);
  }
  if (body_end < span.elements) {
    const auto count = static_cast<std::size_t>(span.elements - body_end);
    alignas(64) float incoming[kGroupElements] = {};
    alignas(64) float accumulated[kGroupElements] = {};
    alignas(64) Element padded[kGroupElements];
    std::memcpy(incoming, span.incoming + body_end, count * sizeof(float));
    if constexpr (kAccumulates) {
      std::memcpy(accumulated, span.accumulated + body_end, count * sizeof(float));
    }
    collect_group<kKind, kAccumulates>(incoming, accumulated, padded, squares);
    if constexpr (kKind != GradientTarget::kNone) {
      std::memcpy(target + body_end, padded, count * sizeof(Element));
    }
  }
  return total(squares);
}

template <GradientTarget kKind>
HWY_INLINE double collect_kind(const GradientSpan& span) {
  return span.accumulated != nullptr ? collect_typed<kKind, true>(span)
                                     : collect_typed<kKind, false>(span);
}

double collect_kernel(const GradientSpan& span) {
  switch (span.kind) {
    case GradientTarget::kNone:
      return collect_kind<GradientTarget::kNone>(span);
    case GradientTarget::kF32:
      return collect_kind<GradientTarget::kF32>(span);
    case GradientTarget::kBf16InF32:
      return collect_kind<GradientTarget::kBf16InF32>(span);
    case GradientTarget::kBf16:
      return collect_kind<GradientTarget::kBf16>(span);
  }
  return 0.0;
}

void add_micro_batch_kernel(float* accumulated, const float* incoming, std::int64_t elements) {
  const FloatTag floats;
  const auto lanes = static_cast<std::int64_t>(kFloatLanes);
  const std::int64_t body_end = elements - elements % lanes;
  for (std::int64_t i = 0; i < body_end; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(floats, accumulated + i), hn::LoadU(floats, incoming + i)),
               floats,
               accumulated + i);
  }
  for (std::int64_t i = body_end; i < elements; ++i) {
    accumulated[i] += incoming[i];  // a single IEEE operation: the same in any form
  }
}

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace headrace::optim {

HWY_EXPORT(collect_kernel);
HWY_EXPORT(add_micro_batch_kernel);

namespace {

// Element i of the collected gradient, read back (or, when it was not stored, made again).
float collected_value(const GradientSpan& span, std::int64_t i) {
  switch (span.kind) {
    case GradientTarget::kNone:
      return span.accumulated != nullptr ? span.accumulated[i] + span.incoming[i]
                                         : span.incoming[i];
    case GradientTarget::kBf16:
      return float_from_bf16(static_cast<const std::uint16_t*>(span.target)[i]);
    case GradientTarget::kF32:
    case GradientTarget::kBf16InF32:
      break;
  }
  return static_cast<const float*>(span.target)[i];
}

void check(const GradientSpan& span) {
  HEADRACE_ASSERT(span.elements >= 0, "a span has a length");
  HEADRACE_ASSERT(
      (span.kind == GradientTarget::kNone) == (span.target == nullptr) || span.elements == 0,
      "a target exactly where one is wanted");
}

// Block `index` of a span.
GradientSpan block_of(const GradientSpan& span, std::int64_t index) {
  const std::int64_t begin = index * kBlockElements;
  const std::size_t target_bytes =
      static_cast<std::size_t>(begin) *
      dtype_bytes(span.kind == GradientTarget::kBf16 ? Dtype::kBf16 : Dtype::kF32);
  GradientSpan block = span;
  block.incoming = span.incoming + begin;
  block.accumulated = span.accumulated == nullptr ? nullptr : span.accumulated + begin;
  block.target =
      span.target == nullptr ? nullptr : static_cast<std::byte*>(span.target) + target_bytes;
  block.elements = std::min(kBlockElements, span.elements - begin);
  return block;
}

}  // namespace

BlockSum collect_block(const GradientSpan& span) {
  check(span);
  HEADRACE_ASSERT(span.elements <= kBlockElements, "longer spans are for collect_blocks");
  BlockSum block{.sum_squares = HWY_DYNAMIC_DISPATCH(collect_kernel)(span)};
  if (!std::isfinite(block.sum_squares)) {
    const NonFinite found = find_non_finite(
        span.elements, [&span](std::int64_t i) { return collected_value(span, i); });
    HEADRACE_ASSERT(found.count > 0, "a block's sum of finite squares is finite");
    block.non_finite_count = found.count;
    block.first_non_finite = found.first;
    block.sum_squares = found.any_nan ? std::numeric_limits<double>::quiet_NaN()
                                      : std::numeric_limits<double>::infinity();
  }
  return block;
}

GradientCheck collect_blocks(const GradientSpan& span,
                             std::span<double> block_sums,
                             Threads& threads,
                             Threads::Within within) {
  check(span);
  const std::int64_t blocks = count_blocks(span.elements);
  HEADRACE_ASSERT(static_cast<std::int64_t>(block_sums.size()) == blocks, "one sum for each block");
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> first{kNone};
  const auto collect = [&](std::int64_t index) {
    const BlockSum block = collect_block(block_of(span, index));
    block_sums[static_cast<std::size_t>(index)] = block.sum_squares;
    if (block.non_finite_count > 0) {
      count.fetch_add(block.non_finite_count);
      const std::int64_t found = index * kBlockElements + block.first_non_finite;
      std::int64_t lowest = first.load();
      while (found < lowest && !first.compare_exchange_weak(lowest, found)) {
      }
    }
  };
  threads.parallel_for(blocks, collect, within);
  return {.non_finite_count = count.load(),
          .first_non_finite = first.load() == kNone ? -1 : first.load()};
}

void add_micro_batch(std::span<float> accumulated, std::span<const float> incoming) {
  HEADRACE_ASSERT(accumulated.size() == incoming.size(), "gradients of one shape");
  HWY_DYNAMIC_DISPATCH(add_micro_batch_kernel)
  (accumulated.data(), incoming.data(), static_cast<std::int64_t>(incoming.size()));
}

void add_micro_batch(std::span<float> accumulated,
                     std::span<const float> incoming,
                     Threads& threads) {
  HEADRACE_ASSERT(accumulated.size() == incoming.size(), "gradients of one shape");
  constexpr auto kBlock = static_cast<std::size_t>(kBlockElements);
  const std::int64_t blocks = count_blocks(static_cast<std::int64_t>(incoming.size()));
  threads.parallel_for(blocks, [&](std::int64_t index) {
    const std::size_t begin = static_cast<std::size_t>(index) * kBlock;
    const std::size_t elements = std::min(kBlock, incoming.size() - begin);
    add_micro_batch(accumulated.subspan(begin, elements), incoming.subspan(begin, elements));
  });
}

double total_norm(std::span<const double> block_sums) {
  double sum = 0.0;
  for (const double block : block_sums) {
    sum += block;
  }
  return std::sqrt(sum);
}

double clip_scale(double norm, double clip) {
  HEADRACE_ASSERT(clip >= 0.0, "a clip of 0 turns clipping off");
  return clip > 0.0 && norm > clip ? clip / (norm + 1e-6) : 1.0;
}

}  // namespace headrace::optim

#endif  // HWY_ONCE
