// How a run keeps weights and optimizer state, as numbers: the bytes of a tile's two extents, and
// whether its weights must be decoded before the device can use them. exec makes it from the
// optimizer's table (scheduler/exec/state_format.hpp); the default is "fp32".
//
// Invariants: extents of a tile (a multiple of kPageElements) are whole pages. A frozen tile has no
// state, and its weights are floats in every format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "scheduler/plan/model_spec.hpp"

namespace headrace::plan {

struct StateFormat {
  std::string name = "fp32";        // run.toml's optim.state
  std::int64_t param_bytes = 4;     // of an element's part in the param extent
  std::int64_t group_bytes = 8;     // of the state of group_elements
  std::int64_t group_elements = 1;  // tensors start at multiples of it
  // The param extent is not what the device computes with: weights are made from both extents.
  bool decoded = false;

  // Of a trainable element, without padding.
  [[nodiscard]] double bytes_per_parameter() const {
    return static_cast<double>(param_bytes) +
           static_cast<double>(group_bytes) / static_cast<double>(group_elements);
  }

  [[nodiscard]] bool decodes(const TileSpec& tile) const { return decoded && !tile.frozen; }

  [[nodiscard]] std::size_t param_extent_bytes(const TileSpec& tile) const {
    constexpr std::int64_t kFloatBytes = 4;
    return static_cast<std::size_t>(tile.elements * (tile.frozen ? kFloatBytes : param_bytes));
  }

  [[nodiscard]] std::size_t state_extent_bytes(const TileSpec& tile) const {
    constexpr std::int64_t kPageBytes = 4096;
    const std::int64_t groups = (tile.elements + group_elements - 1) / group_elements;
    const std::int64_t pages = (groups * group_bytes + kPageBytes - 1) / kPageBytes;
    return tile.frozen ? 0 : static_cast<std::size_t>(pages * kPageBytes);
  }
};

}  // namespace headrace::plan
