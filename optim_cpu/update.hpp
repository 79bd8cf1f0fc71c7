// The words that all optimizers share: the scalars of a step, a tile with its segments, statistics
// of an update.
//
// A tile's parameters and its optimizer state are two buffers (extents). The byte maps, for a tile
// of N elements (padding between tensors included):
//   state, compute   param extent            state extent, planes one after the other
//   fp32, fp32       master, float: 4 N      m, float: 4 N    v, float: 4 N
//   fp32, bf16       high, bf16:    2 N      m, float: 4 N    v, float: 4 N    low, int16: 2 N
//   bf16, fp32       master, float: 4 N      m, bf16:  2 N    v, bf16:  2 N
//   bf16, bf16       high, bf16:    2 N      m, bf16:  2 N    v, bf16:  2 N    low, int16: 2 N
//   q8, either       high, bf16:    2 N      planes of records of 64 elements: 3.25 N (q8.hpp)
// Element i of the tile is value i of each plane, or in record i / 64. High and low are two parts
// of a master weight (weights.hpp). Zero bytes are zero moments, and weights that are exactly
// `high`. Bytes that belong to no segment are never written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"

namespace headrace::optim {

// Blocks are the unit of sums and of parallel work: 65,536 elements counted from a tensor's start;
// a tensor's last block may be shorter.
inline constexpr std::int64_t kBlockElements = 65536;

[[nodiscard]] constexpr std::int64_t count_blocks(std::int64_t elements) {
  return elements / kBlockElements + (elements % kBlockElements != 0 ? 1 : 0);
}

// What a parameter group's update depends on, besides its elements. `lr` is already scheduled and
// scaled for the group.
struct UpdateScalars {
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t update_count = 1;  // of this update, 1-based: the t of bias correction
  double clip_scale =
      1.0;  // every gradient element is multiplied by it (clip_scale() in gradient.hpp)
  std::uint64_t seed = 0;  // the run's, for stochastic rounding; formats "bf16" and "q8"

  friend bool operator==(const UpdateScalars&, const UpdateScalars&) = default;
};

// Of one update, over one span or one block of a segment.
struct UpdateStats {
  double sum_squares = 0.0;           // of the change that the optimizer computed, weight decay not
                                      // included; see each optimizer
  std::int64_t non_finite_count = 0;  // new parameters that are Inf or NaN
  std::int64_t first_non_finite = -1;  // index of the first, from the start of the span; -1 if none

  friend bool operator==(const UpdateStats&, const UpdateStats&) = default;
};

// What the random bits of a tensor's elements depend on in one update, besides the element.
struct RoundingOrigin {
  std::uint64_t seed = 0;
  std::int64_t update = 0;   // the update count
  std::uint32_t tensor = 0;  // the tensor's index in the model's order
};

// A contiguous part of one tensor within a tile. It starts at the tensor's start or at a multiple
// of kBlockElements from it, so that blocks of the segment are blocks of the tensor.
struct TileSegment {
  std::int64_t offset_elements = 0;  // from the tile's start
  std::int64_t elements = 0;
  const void* gradient = nullptr;      // `elements` of gradient_dtype
  Dtype gradient_dtype = Dtype::kF32;  // kF32 or kBf16
  UpdateScalars scalars = {};
  std::uint32_t tensor = 0;       // its index in the model's order
  std::int64_t tensor_begin = 0;  // of the segment's first element, from the tensor's start

  [[nodiscard]] RoundingOrigin origin() const {
    return {.seed = scalars.seed, .update = scalars.update_count, .tensor = tensor};
  }
};

// A tile to update in place. Segments ascend and do not overlap. The buffers are aligned to their
// elements at least; nothing is retained.
struct TileUpdate {
  std::byte* param = nullptr;
  std::byte* state = nullptr;
  std::int64_t tile_elements = 0;
  std::span<const TileSegment> segments = {};
  // Format "q8" only: where the tile's new weights go as floats (as they are kept, that is
  // rounded), for devices that compute in fp32; null where they compute with `high`.
  float* decoded = nullptr;
};

// The blocks of a tile are those of its segments, in order.
[[nodiscard]] constexpr std::int64_t count_blocks(std::span<const TileSegment> segments) {
  std::int64_t blocks = 0;
  for (const TileSegment& segment : segments) {
    blocks += count_blocks(segment.elements);
  }
  return blocks;
}

// A range of a tile's blocks.
struct BlockRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

}  // namespace headrace::optim
