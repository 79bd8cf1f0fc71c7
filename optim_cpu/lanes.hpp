// The 16 interleaved accumulators of a block's sum of squares (gradient.hpp), independent of the
// instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::optim {

// Elements that are processed together: a multiple of every vector's lanes. Tails are padded to it.
inline constexpr std::int64_t kGroupElements = 16;

using SquareLanes = double[kGroupElements];

// The fixed tree. Destroys the lanes.
inline double combine_lanes(SquareLanes& lanes) {
  for (std::size_t width = kGroupElements / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) {
      lanes[j] += lanes[j + width];
    }
  }
  return lanes[0];
}

}  // namespace headrace::optim
