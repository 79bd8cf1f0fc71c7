// Optimizer state as floats, from and to any format: for devices that compute with floats, import,
// export and conversion of stores.
//
// Invariants: reading a tile of state "fp32" and writing it to another of "fp32" (either compute
// dtype) keeps every bit; so does reading and writing "bf16", and "q8" but for v, whose scale may
// move by units in its last place. Writing rounds to nearest, since it happens once. Threads: free
// functions on the calling thread, but for read_weights; ranges that do not overlap (and, for "q8",
// share no group) may be written at once. Failure: none; programmers' errors abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/threads.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

// The extents of a tile (update.hpp has their byte maps).
struct TileMemory {
  std::byte* param = nullptr;
  std::byte* state = nullptr;
  std::int64_t tile_elements = 0;
};

// Spans of one length.
struct StateValues {
  std::span<float> param, m, v;
};

// Elements [begin, begin + values.param.size()) of the tile; begin is a multiple of the format's
// group_elements. Where only weights are wanted, m and v may be empty.
void read_state(const Optimizer& format,
                const TileMemory& tile,
                std::int64_t begin,
                const StateValues& values);

// All weights of a tile: tile.tile_elements floats.
void read_weights(const Optimizer& format,
                  const TileMemory& tile,
                  float* weights,
                  Threads& threads);

// All three spans. A group that is written in part keeps the bytes of its other elements: write
// whole tensors, or parts that begin and end with groups.
void write_state(const Optimizer& format,
                 const TileMemory& tile,
                 std::int64_t begin,
                 const StateValues& values);

// Elements [begin, begin + elements) of one tile from another of the same length: one tensor's, or
// a part of it as for write_state.
struct ConvertRange {
  std::int64_t begin = 0;
  std::int64_t elements = 0;
};

void convert_state(const Optimizer& source_format,
                   const TileMemory& source,
                   const Optimizer& target_format,
                   const TileMemory& target,
                   ConvertRange range);

}  // namespace headrace::optim
