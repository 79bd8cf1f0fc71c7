// Plain scalar loops. Nothing here is clever on purpose: this file is compared with the order of
// operations in the headers by eye, and with the vector kernels by tests.

#include "optim_cpu/reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/assert.hpp"
#include "core/dtype.hpp"
#include "optim_cpu/blocks.hpp"
#include "optim_cpu/lanes.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/rounding.hpp"
#include "optim_cpu/weights.hpp"

namespace headrace::optim {

namespace {

float gradient_value(const void* gradient, Dtype dtype, std::int64_t i) {
  if (dtype == Dtype::kBf16) {
    return float_from_bf16(static_cast<const std::uint16_t*>(gradient)[i]);
  }
  return static_cast<const float*>(gradient)[i];
}

float gradient_at(const AdamWSpan& span, std::int64_t i) {
  return gradient_value(span.gradient, span.gradient_dtype, i);
}

void add_square(SquareLanes& lanes, std::int64_t i, float value) {
  const double wide = value;
  lanes[i % kGroupElements] += wide * wide;
}

// One element; `p`, `m` and `v` become the new ones. Returns the change.
struct Element {
  float p, m, v;
};

float update_element(const AdamWConstants& c, float gradient, Element& e) {
  const float g = c.scale * gradient;
  e.m = (c.beta1 * e.m) + (c.one_minus_beta1 * g);
  e.v = (c.beta2 * e.v) + ((c.one_minus_beta2 * g) * g);
  const float decayed = c.decay * e.p;
  const float d = (std::sqrt(e.v) / c.sqrt_correction2) + c.eps;
  const float u = (c.step * e.m) / d;
  e.p = decayed - u;
  return u;
}

Element load(const AdamWSpan& span, std::int64_t i) {
  const bool bf16 = span.bf16_m != nullptr;
  return {.p = span.weight(i),
          .m = bf16 ? float_from_bf16(span.bf16_m[i]) : span.m[i],
          .v = bf16 ? float_from_bf16(span.bf16_v[i]) : span.v[i]};
}

void store(const AdamWSpan& span, std::int64_t i, const Element& e) {
  if (span.bf16_m != nullptr) {
    const std::int64_t element = span.tensor_begin + i;
    const RoundingBits bits = rounding_bits(rounding_key(span.origin, element), element);
    span.bf16_m[i] = bf16_stochastic(e.m, bits.first);
    span.bf16_v[i] = bf16_stochastic(e.v, bits.second);
  } else {
    span.m[i] = e.m;
    span.v[i] = e.v;
  }
  if (span.high != nullptr) {
    const SplitWeight split = split_weight(e.p);
    span.high[i] = split.high;
    span.low[i] = split.low;
  } else {
    span.param[i] = e.p;
  }
}

// The sum of squares of a change, in the order of adamw.hpp.
class ChangeSum {
 public:
  // `lane` 0..15.
  void add(std::int64_t lane, float square) { floats_[static_cast<std::size_t>(lane)] += square; }

  void add_fused(std::int64_t lane, float change) {
    float& sum = floats_[static_cast<std::size_t>(lane)];
    sum = std::fma(change, change, sum);
  }

  // Ends a run of elements that are added in float.
  void flush() {
    for (std::size_t lane = 0; lane < floats_.size(); ++lane) {
      lanes_[lane] += static_cast<double>(floats_[lane]);
    }
    floats_ = {};
  }

  [[nodiscard]] double total() {
    flush();
    return combine_lanes(lanes_);
  }

 private:
  std::array<float, kGroupElements> floats_ = {};
  SquareLanes lanes_ = {};
};

}  // namespace

UpdateStats adamw_reference(const AdamWSpan& span, const AdamWConstants& c) {
  ChangeSum sum;
  for (std::int64_t i = 0; i < span.elements; ++i) {
    const bool tail = i >= span.elements - span.elements % kGroupElements;
    if (i % kChangeSumElements == 0 || (tail && i % kGroupElements == 0)) {
      sum.flush();
    }
    Element e = load(span, i);
    const float u = update_element(c, gradient_at(span, i), e);
    sum.add(i % kGroupElements, u * u);
    store(span, i, e);
  }
  const NonFinite found =
      find_non_finite(span.elements, [&span](std::int64_t i) { return span.weight(i); });
  return {
      .sum_squares = sum.total(), .non_finite_count = found.count, .first_non_finite = found.first};
}

template <Dtype kWeight, Dtype kMoment>
void adamw_reference_blocks(const TileUpdate& tile,
                            BlockRange range,
                            std::span<UpdateStats> stats) {
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    const ElementRange elements{.begin = block.begin, .elements = block.elements};
    stats[static_cast<std::size_t>(block.index - range.begin)] = adamw_reference(
        adamw_span({.weight = kWeight, .moment = kMoment}, tile, *block.segment, elements),
        adamw_constants(block.segment->scalars));
  });
}

#define HEADRACE_INSTANTIATE(weight, moment)            \
  template void adamw_reference_blocks<weight, moment>( \
      const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats)
HEADRACE_INSTANTIATE(Dtype::kF32, Dtype::kF32);
HEADRACE_INSTANTIATE(Dtype::kF32, Dtype::kBf16);
HEADRACE_INSTANTIATE(Dtype::kBf16, Dtype::kF32);
HEADRACE_INSTANTIATE(Dtype::kBf16, Dtype::kBf16);
#undef HEADRACE_INSTANTIATE

namespace {

struct Q8Element {
  float p, m, root;
};

// What a group's codes are multiplied with.
struct Q8Factors {
  float m, v;
};

// `element` becomes the new one. Returns the change.
float q8_update_element(const Q8Constants& c,
                        Q8Factors factors,
                        float gradient,
                        std::uint8_t m_code,
                        std::uint8_t v_code,
                        Q8Element& e) {
  e.m = std::fma(q8_m_steps(m_code), factors.m, c.m_gradient * gradient);
  const float h = c.v_gradient * gradient;
  const float s = static_cast<float>(q8_root_steps(v_code)) * factors.v;
  e.root = std::sqrt(std::fma(h, h, s * s));
  const float u = e.m / std::fma(e.root, c.inverse_step, c.eps);
  e.p = std::fma(c.decay, e.p, -u);
  return u;
}

// Up to 32 elements from `begin` of the span on: a group.
void q8_reference_group(const Q8Span& span,
                        std::int64_t begin,
                        const Q8Constants& c,
                        ChangeSum& sum) {
  const std::int64_t elements = std::min(kQ8GroupElements, span.elements - begin);
  const Q8Planes& planes = span.planes;
  std::byte* scale_bytes =
      planes.scales + static_cast<std::size_t>(begin / kQ8GroupElements) * sizeof(Q8Scales);
  Q8Scales scales;
  std::memcpy(&scales, scale_bytes, sizeof(scales));
  const Q8Factors factors{.m = scales.m * c.m_keep, .v = scales.root * c.v_keep};
  scales = {};
  std::array<Q8Element, kQ8GroupElements> updated = {};
  std::array<float, kQ8GroupElements> changes = {};
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t byte = q8_byte(begin + i);
    Q8Element& e = updated[at];
    e.p = join_weight(
        ShortSplitWeight{.high = span.high[begin + i], .correction = planes.correction[byte]});
    const float gradient = gradient_value(span.gradient, span.gradient_dtype, begin + i);
    changes[at] = q8_update_element(c, factors, gradient, planes.m[byte], planes.v[byte], e);
    scales.m = std::max(scales.m, std::fabs(e.m));
    scales.root = std::max(scales.root, e.root);
  }
  for (std::size_t at = 0; at < changes.size(); ++at) {
    sum.add_fused(static_cast<std::int64_t>(at / 2), changes[at]);
  }
  std::memcpy(scale_bytes, &scales, sizeof(scales));
  const float m_factor = q8_encode_factor(scales.m, kQ8MSteps);
  const float root_factor = q8_encode_factor(scales.root, kQ8VSteps);
  const std::int64_t first_element = span.tensor_begin + begin;
  const RoundingKey key = rounding_key(span.origin, first_element);
  for (std::int64_t i = 0; i < elements; ++i) {
    const Q8Element& e = updated[static_cast<std::size_t>(i)];
    const std::int64_t byte = q8_byte(begin + i);
    const std::uint16_t second = rounding_bits(key, first_element + i).second;
    const ShortSplitWeight weight = split_weight_short(e.p, static_cast<std::uint8_t>(second));
    span.high[begin + i] = weight.high;
    planes.correction[byte] = weight.correction;
    planes.m[byte] = q8_encode_m(e.m, m_factor, q8_m_bits(key, first_element + i));
    planes.v[byte] = q8_encode_root(e.root, root_factor, q8_v_bits(second, first_element + i));
    if (span.decoded != nullptr) {
      span.decoded[begin + i] = join_weight(weight);
    }
  }
}

}  // namespace

UpdateStats adamw_q8_reference(const Q8Span& span, const Q8Constants& c) {
  ChangeSum sum;
  for (std::int64_t begin = 0; begin < span.elements; begin += kQ8GroupElements) {
    if (begin % kQ8ChunkElements == 0) {
      sum.flush();
    }
    q8_reference_group(span, begin, c, sum);
  }
  const NonFinite found = find_non_finite(
      span.elements, [&span](std::int64_t i) { return float_from_bf16(span.high[i]); });
  return {
      .sum_squares = sum.total(), .non_finite_count = found.count, .first_non_finite = found.first};
}

void adamw_q8_reference_blocks(const TileUpdate& tile,
                               BlockRange range,
                               std::span<UpdateStats> stats) {
  for_each_block(tile.segments, range, [&](const SegmentBlock& block) {
    const ElementRange elements{.begin = block.begin, .elements = block.elements};
    stats[static_cast<std::size_t>(block.index - range.begin)] = adamw_q8_reference(
        q8_span(tile, *block.segment, elements), q8_constants(block.segment->scalars));
  });
}

void decode_q8_weights_reference(const Q8WeightSpan& span) {
  for (std::int64_t i = 0; i < span.elements; ++i) {
    span.weights[i] = join_weight(
        ShortSplitWeight{.high = span.high[i], .correction = span.correction[q8_byte(i)]});
  }
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
