// Owners of what the CUDA runtime gives to the link benchmark, and waiting for it.
//
// Threads: as CUDA's calls. Failure: Results, by tiers/gpu/cuda_error.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/unique.hpp"
#include "tiers/gpu/cuda_error.hpp"
#include "tiers/gpu/cuda_queue.hpp"

namespace headrace::bench {

template <cudaError_t (*kRelease)(void*)>
struct CudaMemoryTraits {
  using Handle = void*;
  static constexpr std::nullptr_t kEmpty = nullptr;

  // An error of a release could not be acted on.
  static void close(Handle handle) noexcept {
    [[maybe_unused]] const cudaError_t error = kRelease(handle);
  }
};

using DeviceMemory = Unique<CudaMemoryTraits<cudaFree>>;
using PinnedMemory = Unique<CudaMemoryTraits<cudaFreeHost>>;
using Registration = Unique<CudaMemoryTraits<cudaHostUnregister>>;

[[nodiscard]] inline Result<DeviceMemory> take_device_memory(int device, std::size_t bytes) {
  void* memory = nullptr;
  // tidy_test: this measures the runtime itself
  HEADRACE_TRY(tiers::gpu::check(cudaMalloc(&memory, bytes), "cudaMalloc", device));
  return DeviceMemory(memory);
}

[[nodiscard]] inline Result<PinnedMemory> take_pinned_memory(int device, std::size_t bytes) {
  void* memory = nullptr;
  HEADRACE_TRY(tiers::gpu::check(
      cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc", device));
  return PinnedMemory(memory);
}

[[nodiscard]] inline Result<Registration> register_memory(int device, std::span<std::byte> memory) {
  HEADRACE_TRY(
      tiers::gpu::check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault),
                        "cudaHostRegister",
                        device));
  return Registration(memory.data());
}

// A stream and an event that stands behind what was put on it last.
class Lane {
 public:
  [[nodiscard]] static Result<Lane> create(int device) {
    Lane lane(device);
    cudaStream_t stream = nullptr;
    HEADRACE_TRY(tiers::gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                   "cudaStreamCreateWithFlags",
                                   device));
    lane.stream_ = tiers::gpu::UniqueStream(stream);
    cudaEvent_t event = nullptr;
    HEADRACE_TRY(tiers::gpu::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags",
                                   device));
    lane.event_ = tiers::gpu::UniqueCudaEvent(event);
    return lane;
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }

  [[nodiscard]] Status record() const {
    return tiers::gpu::check(
        cudaEventRecord(event_.get(), stream_.get()), "cudaEventRecord", device_);
  }

  // Until what was recorded last is over; asks without pause.
  [[nodiscard]] Status wait() const {
    cudaError_t error = cudaErrorNotReady;
    while (error == cudaErrorNotReady) {
      error = cudaEventQuery(event_.get());
    }
    return tiers::gpu::check(error, "cudaEventQuery", device_);
  }

  // Copies, `host` to the device or back.
  [[nodiscard]] Status copy(void* target,
                            const void* source,
                            std::size_t bytes,
                            cudaMemcpyKind kind) const {
    return tiers::gpu::check(
        cudaMemcpyAsync(target, source, bytes, kind, stream_.get()), "cudaMemcpyAsync", device_);
  }

 private:
  explicit Lane(int device) : device_(device) {}

  int device_;
  tiers::gpu::UniqueStream stream_;
  tiers::gpu::UniqueCudaEvent event_;
};

}  // namespace headrace::bench
