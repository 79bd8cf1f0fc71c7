// Plain scalar loops. Nothing here is clever on purpose: this file is compared with the order of
// operations in the headers by eye, and with the vector kernels by tests.

#include "optim_cpu/reference.hpp"

#include <cmath>
#include <limits>

#include "core/assert.hpp"
#include "core/dtype.hpp"
#include "optim_cpu/blocks.hpp"
#include "optim_cpu/lanes.hpp"

namespace headrace::optim {

namespace {

float gradient_at(const AdamWSpan& span, std::int64_t i) {
  if (span.gradient_dtype == Dtype::kBf16) {
    return float_from_bf16(static_cast<const std::uint16_t*>(span.gradient)[i]);
  }
  return static_cast<const float*>(span.gradient)[i];
}

void add_square(SquareLanes& lanes, std::int64_t i, float value) {
  const double wide = value;
  lanes[i % kGroupElements] += wide * wide;
}

}  // namespace

UpdateStats adamw_reference(const AdamWSpan& span, const AdamWConstants& c) {
  SquareLanes lanes = {};
  for (std::int64_t i = 0; i < span.elements; ++i) {
    const float g = c.scale * gradient_at(span, i);
    const float m = (c.beta1 * span.m[i]) + (c.one_minus_beta1 * g);
    const float v = (c.beta2 * span.v[i]) + ((c.one_minus_beta2 * g) * g);
    const float decayed = c.decay * span.param[i];
    const float d = (std::sqrt(v) / c.sqrt_correction2) + c.eps;
    const float u = (c.step * m) / d;
    span.m[i] = m;
    span.v[i] = v;
    span.param[i] = decayed - u;
    add_square(lanes, i, u);
  }
  const NonFinite found =
      find_non_finite(span.elements, [&span](std::int64_t i) { return span.param[i]; });
  return {.sum_squares = combine_lanes(lanes),
          .non_finite_count = found.count,
          .first_non_finite = found.first};
}

void adamw_reference_blocks(const TileUpdate& tile,
                            BlockRange range,
                            std::span<UpdateStats> stats) {
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    const ElementRange elements{.begin = block.begin, .elements = block.elements};
    stats[static_cast<std::size_t>(block.index - range.begin)] = adamw_reference(
        adamw_span(tile, *block.segment, elements), adamw_constants(block.segment->scalars));
  });
}

BlockSum collect_block_reference(const GradientSpan& span) {
  SquareLanes lanes = {};
  BlockSum block;
  bool any_nan = false;
  for (std::int64_t i = 0; i < span.elements; ++i) {
    float value = span.incoming[i];
    if (span.accumulated != nullptr) {
      value = span.accumulated[i] + value;
    }
    if (span.kind == GradientTarget::kBf16 || span.kind == GradientTarget::kBf16InF32) {
      const std::uint16_t rounded = bf16_from_float(value);
      value = float_from_bf16(rounded);
      if (span.kind == GradientTarget::kBf16) {
        static_cast<std::uint16_t*>(span.target)[i] = rounded;
      }
    }
    if (span.kind == GradientTarget::kF32 || span.kind == GradientTarget::kBf16InF32) {
      static_cast<float*>(span.target)[i] = value;
    }
    if (!is_finite(value)) {
      block.first_non_finite = block.non_finite_count == 0 ? i : block.first_non_finite;
      ++block.non_finite_count;
      any_nan = any_nan || std::isnan(value);
    }
    add_square(lanes, i, value);
  }
  block.sum_squares = combine_lanes(lanes);
  if (block.non_finite_count > 0) {
    block.sum_squares = any_nan ? std::numeric_limits<double>::quiet_NaN()
                                : std::numeric_limits<double>::infinity();
  }
  return block;
}

}  // namespace headrace::optim
