// Decoding of weights of state "q8" in every instruction set. See q8.hpp for the format.
//
// Whole blocks go through vectors as they lie; a last block that has fewer elements goes through
// the same vectors in a padded buffer. Of a long span the floats are stored past the caches: their
// lines need not be read before they are written, which is 4 bytes of 11.

#include "optim_cpu/decode_q8.hpp"

#include <cstring>

#include "core/assert.hpp"
#include "optim_cpu/highway_targets.hpp"
#include "optim_cpu/reference.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim_cpu/decode_q8.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "optim_cpu/q8_inl.hpp"

HWY_BEFORE_NAMESPACE();

namespace headrace::optim::HWY_NAMESPACE {

#if !HEADRACE_OPTIM_CPU_Q8_PAIRS

// The plain loop is the kernel.
void decode_kernel(const Q8WeightSpan& span) {
  decode_q8_weights_reference(span);
}

#else

constexpr std::size_t kCacheLineBytes = 64;

HWY_INLINE void decode_block(const Q8Bits& c,
                             const std::uint16_t* high,
                             const std::uint8_t* record,
                             float* weights) {
#pragma GCC unroll 8
  for (std::int64_t k = 0; k < kPairsPerGroup; ++k) {
    const GroupWords corrections = upper_bytes(load_words(record + 2 * k * kPairLanes));
#pragma GCC unroll 2
    for (std::int64_t group = 0; group < 2; ++group) {
      const std::int64_t at = group * kQ8GroupElements + k * kPairLanes;
      const EvenOdd<FloatVector> values = decode_weights(
          c, hn::LoadU(PairTag(), high + at), group == 0 ? corrections.first : corrections.second);
      hn::StoreInterleaved2(values.even, values.odd, FloatTag(), weights + at);
    }
  }
}

// The same; `weights` starts a cache line.
HWY_INLINE void stream_block(const Q8Bits& c,
                             const std::uint16_t* high,
                             const std::uint8_t* record,
                             float* weights) {
  const FloatTag floats;
  alignas(kCacheLineBytes) float values[kQ8BlockElements];
  decode_block(c, high, record, values);
#pragma GCC unroll 16
  for (std::int64_t at = 0; at < kQ8BlockElements; at += kFloatLanes) {
    hn::Stream(hn::Load(floats, values + at), floats, weights + at);
  }
}

// A last block that has fewer elements.
HWY_INLINE void decode_rest(const Q8Bits& c,
                            const std::uint16_t* high,
                            const std::uint8_t* record,
                            float* weights,
                            std::size_t count) {
  alignas(kCacheLineBytes) std::uint16_t padded[kQ8BlockElements] = {};
  alignas(kCacheLineBytes) float values[kQ8BlockElements];
  std::memcpy(padded, high, count * sizeof(std::uint16_t));
  decode_block(c, padded, record, values);
  std::memcpy(weights, values, count * sizeof(float));
}

// Past the span's end it does nothing.
HWY_INLINE void prefetch_block(const std::uint16_t* high, const std::uint8_t* record) {
  constexpr std::int64_t kAhead = 512;
  hwy::Prefetch(high + kAhead);
  hwy::Prefetch(high + kAhead + kQ8GroupElements);
  hwy::Prefetch(record + kAhead);
}

void decode_kernel(const Q8WeightSpan& span) {
  const Q8Bits c;
  const bool streams = span.elements >= kQ8StreamedElements &&
                       reinterpret_cast<std::uintptr_t>(span.weights) % kCacheLineBytes == 0;
  const std::int64_t rest = span.elements % kQ8BlockElements;
  const std::int64_t whole = span.elements - rest;
  for (std::int64_t at = 0; at < whole; at += kQ8BlockElements) {
    prefetch_block(span.high + at, span.correction + at);
    if (streams) {
      stream_block(c, span.high + at, span.correction + at, span.weights + at);
    } else {
      decode_block(c, span.high + at, span.correction + at, span.weights + at);
    }
  }
  if (streams) {
    hwy::FlushStream();  // whoever is told that the weights are there may read them
  }
  if (rest > 0) {
    decode_rest(c,
                span.high + whole,
                span.correction + whole,
                span.weights + whole,
                static_cast<std::size_t>(rest));
  }
}

#endif  // HEADRACE_OPTIM_CPU_Q8_PAIRS

}  // namespace headrace::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace headrace::optim {

HWY_EXPORT(decode_kernel);

void decode_q8_weights(const Q8WeightSpan& span) {
  HEADRACE_ASSERT(span.elements >= 0, "a span has a length");
  HWY_DYNAMIC_DISPATCH(decode_kernel)(span);
}

}  // namespace headrace::optim

#endif  // HWY_ONCE
