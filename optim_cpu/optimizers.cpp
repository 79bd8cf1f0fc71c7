// The table, and the parallel walk over a tile's blocks.

#include "optim_cpu/optimizers.hpp"

#include <array>

#include "core/assert.hpp"
#include "optim_cpu/adamw.hpp"
#include "optim_cpu/reference.hpp"

namespace headrace::optim {

namespace {

constexpr std::array kAdamWFp32Planes = {StatePlane{.name = "m", .element_bytes = 4},
                                         StatePlane{.name = "v", .element_bytes = 4}};

constexpr std::array kOptimizers = {
    Optimizer{.name = "adamw",
              .state = "fp32",
              .planes = kAdamWFp32Planes,
              .param_element_bytes = 4,
              .update_blocks = adamw_update_blocks,
              .reference_blocks = adamw_reference_blocks},
};

void check(const TileUpdate& tile) {
  std::int64_t end = 0;
  for (const TileSegment& segment : tile.segments) {
    HEADRACE_ASSERT(segment.elements >= 0 && segment.offset_elements >= end,
                    "segments ascend and do not overlap");
    end = segment.offset_elements + segment.elements;
    HEADRACE_ASSERT(end <= tile.tile_elements, "segments lie within their tile");
  }
}

}  // namespace

std::int64_t Optimizer::state_element_bytes() const {
  std::int64_t bytes = 0;
  for (const StatePlane& plane : planes) {
    bytes += plane.element_bytes;
  }
  return bytes;
}

std::span<const Optimizer> optimizers() {
  return kOptimizers;
}

const Optimizer* find_optimizer(std::string_view name, std::string_view state) {
  for (const Optimizer& optimizer : kOptimizers) {
    if (optimizer.name == name && optimizer.state == state) {
      return &optimizer;
    }
  }
  return nullptr;
}

void update_tile(const Optimizer& optimizer,
                 const TileUpdate& tile,
                 std::span<UpdateStats> block_stats,
                 Threads& threads) {
  check(tile);
  const std::int64_t blocks = count_blocks(tile.segments);
  HEADRACE_ASSERT(static_cast<std::int64_t>(block_stats.size()) == blocks,
                  "one entry for each block");
  threads.parallel_for_ranges(blocks, [&](std::int64_t begin, std::int64_t end) {
    optimizer.update_blocks(tile,
                            {.begin = begin, .end = end},
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
