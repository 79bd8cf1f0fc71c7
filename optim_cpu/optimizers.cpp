// The table, and the parallel walk over a tile's blocks.

#include "optim_cpu/optimizers.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "core/assert.hpp"
#include "optim_cpu/adamw.hpp"
#include "optim_cpu/adamw_q8.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/reference.hpp"

namespace headrace::optim {

namespace {

constexpr std::array kFp32Planes = {StatePlane{.name = "m", .record_bytes = 4},
                                    StatePlane{.name = "v", .record_bytes = 4}};
constexpr std::array kFp32SplitPlanes = {StatePlane{.name = "m", .record_bytes = 4},
                                         StatePlane{.name = "v", .record_bytes = 4},
                                         StatePlane{.name = "low", .record_bytes = 2}};
constexpr std::array kBf16Planes = {StatePlane{.name = "m", .record_bytes = 2},
                                    StatePlane{.name = "v", .record_bytes = 2}};
constexpr std::array kBf16SplitPlanes = {StatePlane{.name = "m", .record_bytes = 2},
                                         StatePlane{.name = "v", .record_bytes = 2},
                                         StatePlane{.name = "low", .record_bytes = 2}};
constexpr std::array kQ8StatePlanes = {
    StatePlane{.name = "m", .record_bytes = kQ8BlockElements, .record_elements = kQ8BlockElements},
    StatePlane{.name = "v", .record_bytes = kQ8BlockElements, .record_elements = kQ8BlockElements},
    StatePlane{.name = "correction",
               .record_bytes = kQ8BlockElements,
               .record_elements = kQ8BlockElements},
    StatePlane{
        .name = "scales", .record_bytes = kQ8ScaleBytes, .record_elements = kQ8BlockElements}};

constexpr std::array kOptimizers = {
    Optimizer{.name = "adamw",
              .state = "fp32",
              .layout = "fp32",
              .planes = kFp32Planes,
              .param_dtype = Dtype::kF32,
              .update_blocks = adamw_update_blocks<Dtype::kF32, Dtype::kF32>,
              .reference_blocks = adamw_reference_blocks<Dtype::kF32, Dtype::kF32>},
    Optimizer{.name = "adamw",
              .state = "fp32",
              .layout = "fp32",
              .planes = kFp32SplitPlanes,
              .param_dtype = Dtype::kBf16,
              .update_blocks = adamw_update_blocks<Dtype::kBf16, Dtype::kF32>,
              .reference_blocks = adamw_reference_blocks<Dtype::kBf16, Dtype::kF32>},
    Optimizer{.name = "adamw",
              .state = "bf16",
              .layout = "bf16",
              .planes = kBf16Planes,
              .param_dtype = Dtype::kF32,
              .update_blocks = adamw_update_blocks<Dtype::kF32, Dtype::kBf16>,
              .reference_blocks = adamw_reference_blocks<Dtype::kF32, Dtype::kBf16>},
    Optimizer{.name = "adamw",
              .state = "bf16",
              .layout = "bf16",
              .planes = kBf16SplitPlanes,
              .param_dtype = Dtype::kBf16,
              .update_blocks = adamw_update_blocks<Dtype::kBf16, Dtype::kBf16>,
              .reference_blocks = adamw_reference_blocks<Dtype::kBf16, Dtype::kBf16>},
    Optimizer{.name = "adamw",
              .state = "q8",
              .layout = "q8-planes",
              .planes = kQ8StatePlanes,
              .param_dtype = Dtype::kBf16,
              .group_elements = kQ8BlockElements,
              .update_blocks = adamw_q8_update_blocks,
              .reference_blocks = adamw_q8_reference_blocks},
};

void check(const Optimizer& optimizer, const TileUpdate& tile) {
  std::int64_t end = 0;
  for (const TileSegment& segment : tile.segments) {
    HEADRACE_ASSERT(segment.elements >= 0 && segment.offset_elements >= end,
                    "segments ascend and do not overlap");
    end = segment.offset_elements + segment.elements;
    HEADRACE_ASSERT(end <= tile.tile_elements, "segments lie within their tile");
    HEADRACE_ASSERT(segment.offset_elements % optimizer.group_elements == 0 &&
                        segment.tensor_begin % optimizer.group_elements == 0,
                    "segments start where a group does");
  }
}

// The segments from a block's on, and how many blocks come before them.
struct SegmentsFrom {
  std::size_t segment = 0;
  std::int64_t first_block = 0;
};

// Of `parts` equal parts of a tile's blocks, each not empty: found in one walk, since a tile may
// have thousands of small tensors.
std::vector<SegmentsFrom> find_parts(std::span<const TileSegment> segments,
                                     std::int64_t blocks,
                                     std::int64_t parts) {
  std::vector<SegmentsFrom> found;
  found.reserve(static_cast<std::size_t>(parts));
  std::int64_t first_block = 0;
  std::int64_t part = 0;
  for (std::size_t i = 0; i < segments.size() && part < parts; ++i) {
    const std::int64_t end = first_block + count_blocks(segments[i].elements);
    for (; part < parts && blocks * part / parts < end; ++part) {
      found.push_back({.segment = i, .first_block = first_block});
    }
    first_block = end;
  }
  return found;
}

}  // namespace

std::int64_t Optimizer::state_bytes(std::int64_t tile_elements) const {
  std::int64_t sum = 0;
  for (const StatePlane& plane : planes) {
    sum += plane.bytes(tile_elements);
  }
  return sum;
}

std::span<const Optimizer> optimizers() {
  return kOptimizers;
}

const Optimizer* find_optimizer(std::string_view name, std::string_view state, Dtype compute) {
  for (const Optimizer& optimizer : kOptimizers) {
    const bool either = optimizer.group_elements > 1;  // such formats decode their weights
    if (optimizer.name == name && optimizer.state == state &&
        (either || optimizer.param_dtype == compute)) {
      return &optimizer;
    }
  }
  return nullptr;
}

void update_tile(const Optimizer& optimizer,
                 const TileUpdate& tile,
                 std::span<UpdateStats> block_stats,
                 Threads& threads) {
  check(optimizer, tile);
  const std::int64_t blocks = count_blocks(tile.segments);
  HEADRACE_ASSERT(static_cast<std::int64_t>(block_stats.size()) == blocks,
                  "one entry for each block");
  constexpr std::int64_t kPartsPerThread = 16;  // so that a late thread costs little
  const std::int64_t parts = std::min(blocks, kPartsPerThread * threads.count());
  const std::vector<SegmentsFrom> found = find_parts(tile.segments, blocks, parts);
  threads.parallel_for(parts, [&](std::int64_t part) {
    const std::int64_t begin = blocks * part / parts;
    const std::int64_t end = blocks * (part + 1) / parts;
    const SegmentsFrom from = found[static_cast<std::size_t>(part)];
    TileUpdate rest = tile;
    rest.segments = tile.segments.subspan(from.segment);
    optimizer.update_blocks(rest,
                            {.begin = begin - from.first_block, .end = end - from.first_block},
                            block_stats.subspan(static_cast<std::size_t>(begin),
                                                static_cast<std::size_t>(end - begin)));
  });
}

UpdateStats sum_stats(std::span<const UpdateStats> block_stats) {
  UpdateStats sum;
  std::int64_t block_begin = 0;
  for (const UpdateStats& block : block_stats) {
    sum.sum_squares += block.sum_squares;
    if (block.non_finite_count > 0 && sum.non_finite_count == 0) {
      sum.first_non_finite = block_begin + block.first_non_finite;
    }
    sum.non_finite_count += block.non_finite_count;
    block_begin += kBlockElements;
  }
  return sum;
}

}  // namespace headrace::optim
