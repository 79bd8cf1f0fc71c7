// The pattern's arithmetic, for host and device alike (nvcc reads this: no other headers of ours).
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define HEADRACE_HOST_DEVICE __host__ __device__
#else
#define HEADRACE_HOST_DEVICE
#endif

namespace headrace::bench {

inline constexpr std::size_t kPatternWordBytes = 8;

// SplitMix64's output function over a counter.
HEADRACE_HOST_DEVICE inline std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t value = seed * 0xD1342543DE82EF95ULL + (index + 1) * 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31U);
}

}  // namespace headrace::bench
