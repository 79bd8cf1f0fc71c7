// The GPUs as this binary sees them. Two definitions, of which CMake links one: cuda_linked.cpp
// over tiers/gpu where the toolkit's static runtime was found, cuda_absent.cpp elsewhere.
//
// Invariant: nothing of CUDA is called before a command asks here, no context is made on a GPU, and
// no device memory is taken. Threads: main's. Failure: none; `problem` says why there is no GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/gpu/nvml.hpp"

namespace headrace::cli {

struct Gpu {
  int ordinal = 0;  // of "cuda:0"
  std::string name;
  std::string pci_id;  // "0000:3B:00.0"
  int compute_major = 0, compute_minor = 0;
  std::uint64_t memory_bytes = 0;
  std::optional<int> numa_node = {};  // whose memory is nearest
  // What the driver's management library knows besides; nothing: not asked, or it cannot tell.
  std::optional<tiers::gpu::NvmlFacts> nvml = {};
  std::vector<std::string> warnings = {};  // that follow from it
};

struct CudaFacts {
  bool linked = false;         // whether this binary has a CUDA runtime; if not, that is all
  std::string runtime = {};    // its version: "13.0"
  std::string driver = {};     // the newest CUDA that the driver takes; "": there is no driver
  std::vector<Gpu> gpus = {};  // by ordinal
  // No driver, no GPU (kHardwareAbsent), or one that cannot be asked (kOperating).
  std::optional<Error> problem = {};

  // There is none, rather than one that is out of order.
  [[nodiscard]] bool lacks_driver() const {
    return driver.empty() && problem && problem->code == ExitCode::kHardwareAbsent;
  }
};

[[nodiscard]] CudaFacts cuda_facts();

// Adds what NVML knows to each GPU. Returned: that it cannot be asked, or not about one of them
// (kHardwareAbsent: there is no such library or driver; kUsage: this binary has no CUDA).
[[nodiscard]] Status add_nvml_facts(CudaFacts& facts);

}  // namespace headrace::cli
