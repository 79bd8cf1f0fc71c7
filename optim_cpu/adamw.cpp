// AdamW's kernel for every instruction set, and its constants. See adamw.hpp for the order of
// operations, which this file follows literally.
//
// The vector code handles groups of 16 elements; the tail is copied to a padded group and back, so
// body and tail are the same instructions.

#include "optim_cpu/adamw.hpp"

#include <cmath>
#include <cstring>

#include "core/assert.hpp"
#include "optim_cpu/blocks.hpp"
#include "optim_cpu/highway_targets.hpp"

// What a kernel returns, outside the instruction sets' namespaces and compiled once.
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
#include "hwy/foreach_target.h"
#include "optim_cpu/vectors_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

struct AdamWVectors {
  FloatVector scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, step, sqrt_correction2,
      eps;
};

HWY_INLINE AdamWVectors broadcast(const AdamWConstants& constants) {
  const FloatTag floats;
  return {hn::Set(floats, constants.scale),
          hn::Set(floats, constants.beta1),
          hn::Set(floats, constants.one_minus_beta1),
          hn::Set(floats, constants.beta2),
          hn::Set(floats, constants.one_minus_beta2),
          hn::Set(floats, constants.decay),
          hn::Set(floats, constants.step),
          hn::Set(floats, constants.sqrt_correction2),
          hn::Set(floats, constants.eps)};
}

HWY_INLINE FloatVector load_gradient(const float* gradient) {
  return hn::LoadU(FloatTag(), gradient);
}

// bf16: the upper half of a float.
HWY_INLINE FloatVector load_gradient(const std::uint16_t* gradient) {
  const auto bits = hn::PromoteTo(BitsTag(), hn::LoadU(HalfBitsTag(), gradient));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits));
}

struct AdamWSums {
  SquareSums squares;  // of u
  FloatVector bad;     // NaN in some lane once a new parameter was not finite
};

// A group of which all elements exist.
struct Full {
  HWY_INLINE FloatVector existing(std::size_t /*k*/, FloatVector values) const { return values; }
};

// A padded group: elements from `count` on do not exist, and change nothing (the padding may divide
// zero by zero).
struct Padded {
  std::size_t count;

  HWY_INLINE FloatVector existing(std::size_t k, FloatVector values) const {
    const std::size_t begin = k * kFloatLanes;
    const std::size_t lanes = count > begin ? count - begin : 0;
    return hn::IfThenElseZero(hn::FirstN(FloatTag(), lanes < kFloatLanes ? lanes : kFloatLanes),
                              values);
  }
};

template <class Gradient, class Group>
HWY_INLINE void adamw_group(const AdamWVectors& c,
                            Group group,
                            float* HWY_RESTRICT param,
                            float* HWY_RESTRICT m_plane,
                            float* HWY_RESTRICT v_plane,
                            const Gradient* HWY_RESTRICT gradient,
                            AdamWSums& sums) {
  const FloatTag floats;
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectorsPerGroup; ++k) {
    const std::size_t at = k * kFloatLanes;
    const FloatVector g = hn::Mul(c.scale, load_gradient(gradient + at));
    const FloatVector m =
        hn::Add(hn::Mul(c.beta1, hn::LoadU(floats, m_plane + at)), hn::Mul(c.one_minus_beta1, g));
    const FloatVector v = hn::Add(hn::Mul(c.beta2, hn::LoadU(floats, v_plane + at)),
                                  hn::Mul(hn::Mul(c.one_minus_beta2, g), g));
    const FloatVector decayed = hn::Mul(c.decay, hn::LoadU(floats, param + at));
    const FloatVector d = hn::Add(hn::Div(hn::Sqrt(v), c.sqrt_correction2), c.eps);
    const FloatVector u = group.existing(k, hn::Div(hn::Mul(c.step, m), d));
    const FloatVector p = hn::Sub(decayed, u);
    hn::StoreU(m, floats, m_plane + at);
    hn::StoreU(v, floats, v_plane + at);
    hn::StoreU(p, floats, param + at);
    add_squares(sums.squares, k, u);
    sums.bad = hn::Add(sums.bad, hn::Sub(p, p));
  }
}

// The last elements, fewer than a group, in padded buffers.
template <class Gradient>
HWY_INLINE void adamw_tail(const AdamWVectors& c,
                           const AdamWSpan& span,
                           std::int64_t begin,
                           AdamWSums& sums) {
  alignas(64) float param[kGroupElements] = {};
  alignas(64) float m[kGroupElements] = {};
  alignas(64) float v[kGroupElements] = {};
  alignas(64) Gradient gradient[kGroupElements] = {};
  const auto count = static_cast<std::size_t>(span.elements - begin);
  std::memcpy(param, span.param + begin, count * sizeof(float));
  std::memcpy(m, span.m + begin, count * sizeof(float));
  std::memcpy(v, span.v + begin, count * sizeof(float));
  std::memcpy(
      gradient, static_cast<const Gradient*>(span.gradient) + begin, count * sizeof(Gradient));
  adamw_group(c, Padded{count}, param, m, v, gradient, sums);
  std::memcpy(span.param + begin, param, count * sizeof(float));
  std::memcpy(span.m + begin, m, count * sizeof(float));
  std::memcpy(span.v + begin, v, count * sizeof(float));
}

template <class Gradient>
HWY_INLINE AdamWResult adamw_typed(const AdamWSpan& span, const AdamWConstants& constants) {
  const AdamWVectors c = broadcast(constants);
  const auto* gradient = static_cast<const Gradient*>(span.gradient);
  AdamWSums sums;
  clear(sums.squares);
  sums.bad = hn::Zero(FloatTag());
  const std::int64_t body_end = span.elements - span.elements % kGroupElements;
  float* const param = span.param;
  float* const m = span.m;
  float* const v = span.v;
  for (std::int64_t i = 0; i < body_end; i += kGroupElements) {
    adamw_group(c, Full{}, param + i, m + i, v + i, gradient + i, sums);
  }
  if (body_end < span.elements) {
    adamw_tail<Gradient>(c, span, body_end, sums);
  }
  alignas(64) float bad[kFloatLanes];
  hn::Store(sums.bad, FloatTag(), bad);
  bool finite = true;
  for (const float lane : bad) {
    finite = finite && lane == 0.0F;
  }
  return {.sum_squares = total(sums.squares), .finite = finite};
}

AdamWResult adamw_kernel(const AdamWSpan& span, const AdamWConstants& constants) {
  if (span.gradient_dtype == Dtype::kBf16) {
    return adamw_typed<std::uint16_t>(span, constants);
  }
  return adamw_typed<float>(span, constants);
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

AdamWConstants adamw_constants(const AdamWScalars& scalars) {
  HEADRACE_ASSERT(scalars.update_count >= 1, "updates are counted from 1");
  HEADRACE_ASSERT(is_decay_rate(scalars.beta1) && is_decay_rate(scalars.beta2),
                  "betas lie in [0, 1)");
  const double correction1 = 1.0 - power(scalars.beta1, scalars.update_count);
  const double correction2 = 1.0 - power(scalars.beta2, scalars.update_count);
  return {.scale = static_cast<float>(scalars.clip_scale),
          .beta1 = static_cast<float>(scalars.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - scalars.beta1),
          .beta2 = static_cast<float>(scalars.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - scalars.beta2),
          .decay = static_cast<float>(1.0 - scalars.lr * scalars.weight_decay),
          .step = static_cast<float>(scalars.lr / correction1),
          .sqrt_correction2 = static_cast<float>(std::sqrt(correction2)),
          .eps = static_cast<float>(scalars.eps)};
}

UpdateStats adamw_update(const AdamWSpan& span, const AdamWConstants& constants) {
  HEADRACE_ASSERT(span.elements >= 0, "a span has a length");
  HEADRACE_ASSERT(span.gradient_dtype == Dtype::kF32 || span.gradient_dtype == Dtype::kBf16,
                  "gradients are fp32 or bf16");
  const AdamWResult result = HWY_DYNAMIC_DISPATCH(adamw_kernel)(span, constants);
  UpdateStats stats{.sum_squares = result.sum_squares};
  if (!result.finite) {
    const NonFinite found =
        find_non_finite(span.elements, [&span](std::int64_t i) { return span.param[i]; });
    stats.non_finite_count = found.count;
    stats.first_non_finite = found.first;
  }
  return stats;
}

UpdateStats adamw_update(const AdamWSpan& span, const AdamWScalars& scalars) {
  return adamw_update(span, adamw_constants(scalars));
}

AdamWSpan adamw_span(const TileUpdate& tile, const TileSegment& segment, ElementRange range) {
  const std::int64_t at = segment.offset_elements + range.begin;
  auto* m_plane = reinterpret_cast<float*>(tile.state);
  const auto gradient_offset =
      static_cast<std::size_t>(range.begin) * dtype_bytes(segment.gradient_dtype);
  return {.param = reinterpret_cast<float*>(tile.param) + at,
          .m = m_plane + at,
          .v = m_plane + tile.tile_elements + at,
          .gradient = static_cast<const std::byte*>(segment.gradient) + gradient_offset,
          .gradient_dtype = segment.gradient_dtype,
          .elements = range.elements};
}

void adamw_update_blocks(const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats) {
  const TileSegment* prepared = nullptr;  // whose constants these are
  AdamWConstants constants;
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    if (prepared == nullptr || !(prepared->scalars == block.segment->scalars)) {
      constants = adamw_constants(block.segment->scalars);
    }
    prepared = block.segment;
    stats[static_cast<std::size_t>(block.index - range.begin)] = adamw_update(
        adamw_span(tile, *block.segment, {.begin = block.begin, .elements = block.elements}),
        constants);
  });
}

}  // namespace headrace::optim

#endif  // HWY_ONCE
