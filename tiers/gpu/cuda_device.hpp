// A CUDA GPU as a device: three streams, one allocation, and host arenas registered with the
// driver.
//
// Invariant: nothing is allocated, registered or synchronised after the first step began; a copy
// touches one registration and one allocation a CUDA call. Threads: the scheduler's; every CUDA
// call on the step path is the poller's (cuda_queue.hpp). Failure: the factories' and the setup's
// Results; then the runtime's fault. Destruction: queues drained, events and streams,
// registrations, memory. Its host memory is destroyed after it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/device.hpp"
#include "tiers/gpu/cuda_queue.hpp"

namespace headrace::tiers::gpu {

// What the driver keeps beside every arena that takes "all that is free".
inline constexpr std::size_t kDriverReserveBytes = std::size_t{256} << 20;

struct CudaDeviceFacts {
  int ordinal = 0;
  std::string name;    // "NVIDIA H200"
  std::string pci_id;  // "0000:3B:00.0"
  int compute_major = 0, compute_minor = 0;
  std::size_t memory_bytes = 0;
};

// The machine's GPUs, by ordinal. Errors (kHardwareAbsent): no driver, no GPU.
[[nodiscard]] Result<std::vector<CudaDeviceFacts>> list_cuda_devices();

// One line for people: which runtime this binary has, and which driver and GPUs it found, or why
// none. Never fails.
[[nodiscard]] std::string describe_cuda();

struct CudaDeviceOptions {
  int ordinal = 0;  // of "cuda:0"
  std::size_t ring_capacity = 256;
  // Host arenas are registered in pieces of so many bytes: one call for 100 GB would take half a
  // minute, and fail as a whole.
  std::size_t slab_bytes = std::size_t{1} << 30;
  std::function<void()> on_thread_start = {};  // of the poller; may be empty
  // Null: a plain body runs on the poller's thread. The emulated runtime's tests give one.
  BodyLauncher launch_body = nullptr;
};

// Errors: no driver or GPU (kHardwareAbsent), CUDA's, no thread.
[[nodiscard]] Result<std::unique_ptr<Device>> make_cuda_device(Runtime& runtime,
                                                               const CudaDeviceOptions& options);

// What an arena on the GPU can take now: what is free less kDriverReserveBytes. To be asked once
// every kernel and library of the run is loaded.
[[nodiscard]] Result<std::size_t> available_device_bytes(int ordinal);

}  // namespace headrace::tiers::gpu
