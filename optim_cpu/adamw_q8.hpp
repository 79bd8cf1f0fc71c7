// AdamW over the state format "q8" (q8.hpp), in one pass over memory. The order of operations is
// AdamW's (adamw.hpp), between decoding and encoding.
//
// Threads: free functions, no state. Failure: none; programmers' errors abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "optim_cpu/adamw.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

// Elements in place; element 0 is the first of a group. Pointers are aligned to their element, no
// more, `records` not at all. Buffers do not overlap.
struct Q8Span {
  std::uint16_t* high = nullptr;
  std::byte* records = nullptr;  // q8_records(elements) of them; in the last one, bytes of elements
                                 // beyond the end are left alone
  float* decoded = nullptr;      // the new weights as floats, or null
  const void* gradient = nullptr;
  Dtype gradient_dtype = Dtype::kF32;  // kF32 or kBf16
  std::int64_t elements = 0;           // >= 0
  RoundingOrigin origin = {};
  std::int64_t tensor_begin = 0;  // of element 0, from its tensor's start: a multiple of a group
};

// One fused pass on the calling thread. stats.sum_squares is that of u: 16 lanes, lane j of
// elements 2 j and 2 j + 1 of each group, in float over 32 groups, then in double; it is meant to
// be read, not compared with the other formats' sums.
UpdateStats adamw_q8_update(const Q8Span& span, const AdamWConstants& constants);

// Where a range of a segment lies in a tile. The range begins with a group.
[[nodiscard]] Q8Span q8_span(const TileUpdate& tile,
                             const TileSegment& segment,
                             ElementRange range);

// The entry of the table in optimizers.hpp.
void adamw_q8_update_blocks(const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats);

// Groups that go through the kernel's passes together: so many that the nearest cache holds them.
inline constexpr std::int64_t kQ8ChunkGroups = 32;
inline constexpr std::int64_t kQ8ChunkElements = kQ8ChunkGroups * kQ8GroupElements;

}  // namespace headrace::optim
