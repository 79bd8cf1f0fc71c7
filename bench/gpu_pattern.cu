// Kernels that fill memory of the device with the pattern and count what differs from it.
//
// A thread takes every (blocks x threads)-th word. No block waits for another; the sum's order
// cannot show, since it is of integers.
#include <cuda_runtime.h>

#include "bench/gpu_pattern_kernels.hpp"
#include "bench/gpu_pattern_word.hpp"

namespace headrace::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kBlocksMax = 4096;

__global__ void fill_kernel(std::uint64_t* words, std::uint64_t count, std::uint64_t seed) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] = pattern_word(seed, i);
  }
}

__global__ void count_wrong_kernel(const std::uint64_t* words,
                                   std::uint64_t count,
                                   std::uint64_t seed,
                                   unsigned long long* wrong) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  unsigned long long mine = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    mine += words[i] != pattern_word(seed, i) ? 1 : 0;
  }
  if (mine != 0) {
    atomicAdd(wrong, mine);
  }
}

cudaLaunchConfig_t config_for(cudaStream_t stream, std::uint64_t count) {
  const std::uint64_t blocks = (count + kThreads - 1) / kThreads;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks < kBlocksMax ? blocks : kBlocksMax));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return config;
}

}  // namespace

int launch_fill(CUstream_st* stream,
                std::uint64_t* words,
                std::uint64_t count,
                std::uint64_t seed) {
  const cudaLaunchConfig_t config = config_for(stream, count);
  return count == 0 ? cudaSuccess : cudaLaunchKernelEx(&config, fill_kernel, words, count, seed);
}

int launch_count_wrong(CUstream_st* stream,
                       const std::uint64_t* words,
                       std::uint64_t count,
                       std::uint64_t seed,
                       unsigned long long* wrong) {
  const cudaLaunchConfig_t config = config_for(stream, count);
  return count == 0 ? cudaSuccess
                    : cudaLaunchKernelEx(&config, count_wrong_kernel, words, count, seed, wrong);
}

}  // namespace headrace::bench
