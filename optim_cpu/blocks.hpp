// Walking the blocks of a tile, and the slow path once a value is known not to be finite. Internal
// to this folder.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "optim_cpu/update.hpp"

namespace headrace::optim {

// A block of a segment.
struct SegmentBlock {
  const TileSegment* segment = nullptr;
  std::int64_t begin = 0;     // elements from the segment's start
  std::int64_t elements = 0;  // 1..kBlockElements
  std::int64_t index = 0;     // among the blocks of the tile
};

// Calls visit(SegmentBlock) for each block of the range, ascending.
template <class Visit>
void for_each_block(std::span<const TileSegment> segments, BlockRange range, const Visit& visit) {
  std::int64_t first_index = 0;  // of the segment's blocks
  for (const TileSegment& segment : segments) {
    if (first_index >= range.end) {
      break;
    }
    const std::int64_t end_index = first_index + count_blocks(segment.elements);
    for (std::int64_t index = std::max(first_index, range.begin);
         index < std::min(end_index, range.end);
         ++index) {
      const std::int64_t begin = (index - first_index) * kBlockElements;
      visit(SegmentBlock{.segment = &segment,
                         .begin = begin,
                         .elements = std::min(kBlockElements, segment.elements - begin),
                         .index = index});
    }
    first_index = end_index;
  }
}

// By bits, so that no compiler option can fold it away.
[[nodiscard]] inline bool is_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7f800000U) != 0x7f800000U;
}

struct NonFinite {
  std::int64_t count = 0;
  std::int64_t first = -1;
  bool any_nan = false;
};

// value_at(i) -> float, for i in [0, elements).
template <class ValueAt>
[[nodiscard]] NonFinite find_non_finite(std::int64_t elements, const ValueAt& value_at) {
  NonFinite found;
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = value_at(i);
    if (!is_finite(value)) {
      found.first = found.count == 0 ? i : found.first;
      found.any_nan = found.any_nan || std::isnan(value);
      ++found.count;
    }
  }
  return found;
}

}  // namespace headrace::optim
