// A libnvidia-ml of the tests: a shared library that nvml.cpp loads by its path, as it loads the
// real one by its name. Tests only.
//
// The test loads the same file and calls fake_nvml_state(): one copy lies in the process, so what
// it sets is what nvml.cpp is answered, and what it reads is what nvml.cpp did. Thread: one.
#pragma once

#include <array>
#include <cstdint>

#include "tiers/gpu/nvml_abi.hpp"

namespace headrace::tiers::gpu {

struct FakeNvmlState {
  static constexpr unsigned kProcessesMax = 300;
  const char* pci_id = "0000:3B:00.0";  // the only GPU
  nvml_abi::Return init_result = nvml_abi::kSuccess;
  nvml_abi::Return query_result = nvml_abi::kSuccess;  // of every question about the GPU
  const char* failing = "";        // if not empty: query_result is that of this function only
  unsigned compute_processes = 0;  // pids 1000, 1001, ... of 1 GiB each
  std::array<nvml_abi::ProcessInfo, 2> graphics_processes = {};
  unsigned graphics_process_count = 0;
  std::uint64_t reasons = 0;
  // What was called.
  int inits = 0;
  int shutdowns = 0;
  int questions_without_init = 0;
};

using FakeNvmlStateFunction = FakeNvmlState*();  // fake_nvml_state

}  // namespace headrace::tiers::gpu
