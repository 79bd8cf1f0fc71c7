// A binary with the CUDA runtime: see cuda.hpp.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

#include "cli/cuda.hpp"
#include "tiers/gpu/cuda_device.hpp"
#include "tiers/gpu/cuda_error.hpp"

namespace headrace::cli {
namespace {

using tiers::gpu::check;
using tiers::gpu::CudaDeviceFacts;

// 13000 is 13.0; 0 is none.
std::string version_text(int version) {
  constexpr int kMajor = 1000;
  constexpr int kMinor = 10;
  return version == 0 ? "" : fmt::format("{}.{}", version / kMajor, version % kMajor / kMinor);
}

}  // namespace

CudaFacts cuda_facts() {
  CudaFacts facts = {.linked = true};
  int version = 0;
  Status asked = check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion", 0);
  facts.runtime = version_text(version);
  version = 0;
  if (asked) {
    asked = check(cudaDriverGetVersion(&version), "cudaDriverGetVersion", 0);
    facts.driver = version_text(version);
  }
  if (!asked) {
    facts.problem = std::move(asked).error();
    return facts;
  }
  Result<std::vector<CudaDeviceFacts>> devices = tiers::gpu::list_cuda_devices();
  if (!devices) {
    facts.problem = std::move(devices).error();
    return facts;
  }
  for (CudaDeviceFacts& device : *devices) {
    facts.gpus.push_back({.ordinal = device.ordinal,
                          .name = std::move(device.name),
                          .pci_id = std::move(device.pci_id),
                          .compute_major = device.compute_major,
                          .compute_minor = device.compute_minor,
                          .memory_bytes = device.memory_bytes});
  }
  return facts;
}

}  // namespace headrace::cli
