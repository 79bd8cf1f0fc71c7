// Launchers of the kernels in gpu_pattern.cu (nvcc reads this: nothing heavy).
//
// Each puts one kernel on the stream and returns its cudaError_t. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace headrace::bench {

// words[i] = the pattern's, for i < count.
[[nodiscard]] int launch_fill(CUstream_st* stream,
                              std::uint64_t* words,
                              std::uint64_t count,
                              std::uint64_t seed);

// *wrong += how many of them differ from it. `wrong` is memory of the device.
[[nodiscard]] int launch_count_wrong(CUstream_st* stream,
                                     const std::uint64_t* words,
                                     std::uint64_t count,
                                     std::uint64_t seed,
                                     unsigned long long* wrong);

}  // namespace headrace::bench
