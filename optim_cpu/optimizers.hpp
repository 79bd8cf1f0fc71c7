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

#include "core/dtype.hpp"
#include "optim_cpu/threads.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

// One plane of a state extent: records of `record_bytes`, each for `record_elements` elements of
// the tile (one, but for formats that keep groups). Planes follow each other in table order.
struct StatePlane {
  std::string_view name;
  std::int64_t record_bytes = 0;
  std::int64_t record_elements = 1;

  [[nodiscard]] constexpr std::int64_t bytes(std::int64_t tile_elements) const {
    const std::int64_t records = tile_elements / record_elements;
    return (records + (tile_elements % record_elements != 0 ? 1 : 0)) * record_bytes;
  }
};

struct Optimizer {
  std::string_view name;   // "adamw"
  std::string_view state;  // "fp32", "bf16" or "q8": run.toml's optim.state
  // Names the byte map in what is kept on a drive: a map that takes another's place has a new name.
  std::string_view layout;
  std::span<const StatePlane> planes;
  Dtype param_dtype =
      Dtype::kF32;  // of the param extent; for "q8" kBf16 whatever the device computes
  std::int64_t group_elements = 1;  // segments start at multiples of it
  // Updates the blocks of a range and sets stats[i - range.begin] of each; on the calling thread.
  void (*update_blocks)(const TileUpdate& tile,
                        BlockRange range,
                        std::span<UpdateStats> stats) = nullptr;
  // The same as a plain loop, for tests.
  void (*reference_blocks)(const TileUpdate& tile,
                           BlockRange range,
                           std::span<UpdateStats> stats) = nullptr;

  [[nodiscard]] std::int64_t param_element_bytes() const {
    return static_cast<std::int64_t>(dtype_bytes(param_dtype));
  }

  // Of a tile's state extent: what is kept besides the param extent.
  [[nodiscard]] std::int64_t state_bytes(std::int64_t tile_elements) const;
};

[[nodiscard]] std::span<const Optimizer> optimizers();

// `compute` is the dtype that the device computes with, kF32 or kBf16.
[[nodiscard]] const Optimizer* find_optimizer(std::string_view name,
                                              std::string_view state,
                                              Dtype compute = Dtype::kF32);

// Updates a tile in place. block_stats has count_blocks(tile.segments) entries, one for each block
// of each segment, in order; added in order over a tensor's segments they do not depend on tiling.
// Nothing is allocated by us but a few words a thread.
void update_tile(const Optimizer& optimizer,
                 const TileUpdate& tile,
                 std::span<UpdateStats> block_stats,
                 Threads& threads);

// Block statistics of one segment, or of a whole tensor, added in order. first_non_finite becomes
// an index from the first block's start.
[[nodiscard]] UpdateStats sum_stats(std::span<const UpdateStats> block_stats);

}  // namespace headrace::optim
