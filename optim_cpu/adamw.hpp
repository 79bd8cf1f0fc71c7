// AdamW with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", ICLR 2019), in one pass over memory.
//
// The order of operations, the same in every instruction set, in the state formats "fp32" and
// "bf16" and in the reference ("q8": adamw_q8.hpp). Every line is one IEEE float operation per
// element, round to nearest even, never fused; upper-case names are constants, computed in double
// and rounded to float once:
//   g  = SCALE * gradient                SCALE = clip_scale; a bf16 gradient is widened first,
//   exactly m  = (BETA1 * m) + (ONE_MINUS_BETA1 * g) v  = (BETA2 * v) + ((ONE_MINUS_BETA2 * g) * g)
//   p  = DECAY * p                       DECAY = 1 - lr * weight_decay
//   d  = (sqrt(v) / SQRT_CORRECTION2) + EPS         SQRT_CORRECTION2 = sqrt(1 - beta2^t)
//   u  = (STEP * m) / d                  STEP = lr / (1 - beta1^t)
//   p  = p - u
// A format decodes p, m and v to floats before, and rounds the new ones after (rounding.hpp,
// q8.hpp); within an update they are floats. The powers are products of doubles by repeated
// squaring (no libm), so they are the same everywhere. Where flush-to-zero is set, subnormal inputs
// and results of each operation are zero; the engine's threads have it set.
//
// Threads: free functions, no state. Failure: none; programmers' errors abort.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "optim_cpu/update.hpp"
#include "optim_cpu/weights.hpp"

namespace headrace::optim {

using AdamWScalars = UpdateScalars;

// The constants above, for one group and one step.
struct AdamWConstants {
  float scale = 1.0F;
  float beta1 = 0.0F;
  float one_minus_beta1 = 0.0F;
  float beta2 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float decay = 1.0F;
  float step = 0.0F;
  float sqrt_correction2 = 1.0F;
  float eps = 0.0F;
};

// 1 - beta1^t and 1 - beta2^t. Aborts unless update_count >= 1 and both betas are in [0, 1).
struct BiasCorrections {
  double first = 1.0;
  double second = 1.0;
};

[[nodiscard]] BiasCorrections bias_corrections(const AdamWScalars& scalars);

// Aborts as bias_corrections() does.
[[nodiscard]] AdamWConstants adamw_constants(const AdamWScalars& scalars);

// Buffers of `elements` each, updated in place, in one of the planar formats (update.hpp): weights
// are `param`, or `high` and `low`; moments are `m` and `v`, or `bf16_m` and `bf16_v`; the others
// are null. Pointers are aligned to their element, no more. They do not overlap.
struct AdamWSpan {
  float* param = nullptr;
  std::uint16_t* high = nullptr;
  std::uint16_t* low = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  std::uint16_t* bf16_m = nullptr;
  std::uint16_t* bf16_v = nullptr;
  const void* gradient = nullptr;
  Dtype gradient_dtype = Dtype::kF32;  // kF32 or kBf16
  std::int64_t elements = 0;           // >= 0
  RoundingOrigin origin = {};          // of bf16 moments
  std::int64_t tensor_begin = 0;       // of element 0, from its tensor's start

  [[nodiscard]] float weight(std::int64_t i) const {
    return param != nullptr ? param[i] : join_weight({.high = high[i], .low = low[i]});
  }

  // Elements [begin, begin + count) of it.
  [[nodiscard]] AdamWSpan part(std::int64_t begin, std::int64_t count) const;
};

// The sum of squares of u is a statistic, to six digits: 16 lanes (lane j: elements j, j + 16, ...)
// in float over 512 elements at a time, added up in double, and then as gradient.hpp adds its
// lanes. Whole double arithmetic would cost a quarter of an update's time.
inline constexpr std::int64_t kChangeSumElements = 512;

// One fused pass on the calling thread. stats.sum_squares is NaN or Inf if a u is.
UpdateStats adamw_update(const AdamWSpan& span, const AdamWConstants& constants);
UpdateStats adamw_update(const AdamWSpan& span, const AdamWScalars& scalars);

// A part of a segment.
struct ElementRange {
  std::int64_t begin = 0;  // from the segment's start
  std::int64_t elements = 0;
};

// Where it lies in a tile of the given planar format.
struct PlanarFormat {
  Dtype weight = Dtype::kF32;  // kF32: one master plane; kBf16: high and low
  Dtype moment = Dtype::kF32;  // kF32 or kBf16
};

[[nodiscard]] AdamWSpan adamw_span(PlanarFormat format,
                                   const TileUpdate& tile,
                                   const TileSegment& segment,
                                   ElementRange range);

// The entries of the table in optimizers.hpp: update a range of a tile's blocks; stats[i -
// range.begin] receives block i's statistics.
template <Dtype kWeight, Dtype kMoment>
void adamw_update_blocks(const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats);

}  // namespace headrace::optim
