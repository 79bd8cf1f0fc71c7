// Weights of state "q8" (q8.hpp) as floats: what a device that computes in fp32 needs of a tile
// that was not updated as it came. Bits are moved, nothing is computed, so every pair of parts
// gives the bits of join_weight (weights.hpp), NaNs included, whatever the floating-point mode.
//
// Threads: a free function on the calling thread; read_weights (convert.hpp) has them for a tile.
// Failure: none.
#pragma once

#include <cstdint>

namespace headrace::optim {

// Element 0 is the first of a block. Pointers are aligned to their element, no more. Buffers do not
// overlap.
struct Q8WeightSpan {
  const std::uint16_t* high = nullptr;
  const std::uint8_t* correction = nullptr;  // q8_blocks(elements) records
  float* weights = nullptr;
  std::int64_t elements = 0;  // >= 0
};

// Spans of so many elements that start a cache line are stored past the caches: longer than the
// nearest cache, they would have left it before they are read.
inline constexpr std::int64_t kQ8StreamedElements = 16384;

void decode_q8_weights(const Q8WeightSpan& span);

}  // namespace headrace::optim
