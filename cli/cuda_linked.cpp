// A binary with the CUDA runtime: see cuda.hpp.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <utility>

#include "cli/cuda.hpp"
#include "core/files.hpp"
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

// As the kernel spells the id: in lower case, the domain with four digits.
std::optional<int> numa_node_of(const std::string& pci_id) {
  std::string name;
  std::transform(pci_id.begin(), pci_id.end(), std::back_inserter(name), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  constexpr std::uint64_t kBytesMax = 4096;
  const Result<std::string> text =
      read_file(fmt::format("/sys/bus/pci/devices/{}/numa_node", name), kBytesMax);
  int node = -1;
  if (text) {
    std::from_chars(text->data(), text->data() + text->size(), node);
  }
  return node < 0 ? std::nullopt : std::optional(node);  // -1: the machine has no nodes
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
    facts.gpus.back().numa_node = numa_node_of(facts.gpus.back().pci_id);
  }
  return facts;
}

Status add_nvml_facts(CudaFacts& facts) {
  HEADRACE_ASSIGN(const tiers::gpu::Nvml nvml, tiers::gpu::Nvml::open());
  for (Gpu& gpu : facts.gpus) {
    HEADRACE_ASSIGN(gpu.nvml, nvml.facts(gpu.pci_id));
    gpu.warnings = tiers::gpu::nvml_warnings(*gpu.nvml);
  }
  return {};
}

}  // namespace headrace::cli
