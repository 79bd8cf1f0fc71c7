// AdamW over the state format "q8" (q8.hpp), in one pass over memory.
//
// The arithmetic is AdamW's (adamw.hpp) with its constants folded into one another and into the
// scales of the codes, since at 12.5 bytes a parameter it is arithmetic, not memory, that takes the
// time. fma(a, b, c) is a * b + c rounded once (IEEE fusedMultiplyAdd), every other operation is
// rounded by itself; M and C are the codes in steps (q8.hpp), C at least 1. Upper-case names are
// constants, computed in double and rounded to float once; M_FACTOR and V_FACTOR are of the group:
//   m  = fma(M, M_FACTOR, M_GRADIENT * gradient)       M_GRADIENT = SCALE * (1 - beta1)
//        M_FACTOR = scale of m * M_KEEP                M_KEEP = beta1 / 29.5
//   h  = V_GRADIENT * gradient                         V_GRADIENT = SCALE * sqrt(1 - beta2)
//   s  = C * V_FACTOR                                  V_FACTOR = scale of v * V_KEEP
//   v  = fma(h, h, s * s)                              V_KEEP = sqrt(beta2) / 255
//   d  = fma(sqrt(v), 1/STEP, EPS)                     EPS = eps * sqrt(1 - beta2^t) / STEP
//   u  = m / d                                         STEP = lr * sqrt(1 - beta2^t)
//                                                             / (1 - beta1^t)
//   p  = fma(DECAY, p, -u)                             DECAY = 1 - lr * weight_decay
// An update by it differs from one in AdamW's own order by units in the last place. Where lr is 0,
// 1/STEP and EPS are the largest float, so that u is 0.
//
// Processors of x86 without fused operations (before 2013) take the plain loop of reference.hpp.
//
// Random bits of an element (rounding.hpp): 18 for m (q8_m_bits), 15 of `second` for v
// (q8_v_bits), its lower byte for the weight; so of v's bits the ones that count least are the
// weight's, too.
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

// The constants above, for one group of parameters and one step.
struct Q8Constants {
  float m_gradient = 0.0F;
  float m_keep = 0.0F;
  float v_gradient = 0.0F;
  float v_keep = 0.0F;
  float inverse_step = 0.0F;
  float eps = 0.0F;
  float decay = 1.0F;
};

// Aborts unless update_count >= 1 and both betas are in [0, 1).
[[nodiscard]] Q8Constants q8_constants(const AdamWScalars& scalars);

// The planes of a state extent, from the record of some block on. Not aligned.
struct Q8Planes {
  std::uint8_t* m = nullptr;
  std::uint8_t* v = nullptr;
  std::uint8_t* correction = nullptr;
  std::byte* scales = nullptr;  // Q8Scales of each group

  [[nodiscard]] Q8Planes from_block(std::int64_t block) const {
    const std::int64_t bytes = block * kQ8BlockElements;
    return {m + bytes, v + bytes, correction + bytes, scales + block * kQ8ScaleBytes};
  }
};

[[nodiscard]] Q8Planes q8_planes(std::byte* state, std::int64_t tile_elements);

// Elements in place; element 0 is the first of a block. Pointers are aligned to their element, no
// more. Buffers do not overlap. Of a last block that has fewer elements, bytes of those beyond the
// end keep their value, and so do the scales of a group that has none.
struct Q8Span {
  std::uint16_t* high = nullptr;
  Q8Planes planes = {};      // q8_blocks(elements) records each
  float* decoded = nullptr;  // the new weights as floats, or null
  const void* gradient = nullptr;
  Dtype gradient_dtype = Dtype::kF32;  // kF32 or kBf16
  std::int64_t elements = 0;           // >= 0
  RoundingOrigin origin = {};
  std::int64_t tensor_begin = 0;  // of element 0, from its tensor's start: a multiple of a block
};

// One fused pass on the calling thread. stats.sum_squares is that of u: 16 lanes, lane j of
// elements 2 j and 2 j + 1 of each group, by fused operations in float over 32 groups, then in
// double; it is meant to be read, not compared with the other formats' sums.
UpdateStats adamw_q8_update(const Q8Span& span, const Q8Constants& constants);

// Where a range of a segment lies in a tile. The range begins with a block.
[[nodiscard]] Q8Span q8_span(const TileUpdate& tile,
                             const TileSegment& segment,
                             ElementRange range);

// The entry of the table in optimizers.hpp.
void adamw_q8_update_blocks(const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats);

// Blocks that go through the kernel's passes together: so many that the nearest cache holds them.
inline constexpr std::int64_t kQ8ChunkBlocks = 16;
inline constexpr std::int64_t kQ8ChunkElements = kQ8ChunkBlocks * kQ8BlockElements;

}  // namespace headrace::optim
