// The table of optimizers and state formats, and the update of a tile through it. Adding an
// optimizer or a format adds one file and one line here.
//
// Invariant: parameters and state after update_tile do not depend on the number of threads or on
// how tensors were cut into tiles; neither do the statistics of a block. Threads: as `Threads`.
// Failure: none at run time; find_optimizer returns null for a name that is not in the table.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "optim_cpu/threads.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

// One plane of a state extent: `tile elements` values. Planes follow each other in table order.
struct StatePlane {
  std::string_view name;
  std::int64_t element_bytes = 0;
};

struct Optimizer {
  std::string_view name;   // "adamw"
  std::string_view state;  // "fp32": run.toml's optim.state
  std::span<const StatePlane> planes;
  std::int64_t param_element_bytes = 0;  // of the param extent
  // Updates the blocks of a range and sets stats[i - range.begin] of each; on the calling thread.
  void (*update_blocks)(const TileUpdate& tile,
                        BlockRange range,
                        std::span<UpdateStats> stats) = nullptr;
  // The same as a plain loop, for tests.
  void (*reference_blocks)(const TileUpdate& tile,
                           BlockRange range,
                           std::span<UpdateStats> stats) = nullptr;

  // Of optimizer state alone, without the parameter.
  [[nodiscard]] std::int64_t state_element_bytes() const;

  [[nodiscard]] std::int64_t state_bytes(std::int64_t tile_elements) const {
    return tile_elements * state_element_bytes();
  }
};

[[nodiscard]] std::span<const Optimizer> optimizers();
[[nodiscard]] const Optimizer* find_optimizer(std::string_view name, std::string_view state);

// Updates a tile in place. block_stats has count_blocks(tile.segments) entries, one for each block
// of each segment, in order; added in order over a tensor's segments they do not depend on tiling.
// Nothing is allocated by us.
void update_tile(const Optimizer& optimizer,
                 const TileUpdate& tile,
                 std::span<UpdateStats> block_stats,
                 Threads& threads);

// Block statistics of one segment, or of a whole tensor, added in order. first_non_finite becomes
// an index from the first block's start.
[[nodiscard]] UpdateStats sum_stats(std::span<const UpdateStats> block_stats);

}  // namespace headrace::optim
