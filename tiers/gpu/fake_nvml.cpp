// See fake_nvml.hpp. Built three times: HEADRACE_FAKE_NVML_AGE 0 is a current library; 1 lacks what
// came in recent years, under its newer names; 2 lacks a function that there is no doing without.
#include "tiers/gpu/fake_nvml.hpp"

#include <algorithm>
#include <cstring>

namespace abi = headrace::tiers::gpu::nvml_abi;

// NOLINTBEGIN(readability-identifier-naming): the names are NVML's.
#define FAKE_NVML_EXPORT extern "C" [[gnu::visibility("default")]]

namespace {

headrace::tiers::gpu::FakeNvmlState state;

// Its address is the only GPU's handle.
abi::Device only_gpu() {
  return reinterpret_cast<abi::Device>(&state);
}

// The result of a question about a GPU.
abi::Return answer(const char* function, abi::Device device) {
  state.questions_without_init += state.inits == state.shutdowns ? 1 : 0;
  constexpr abi::Return kInvalidArgument = 2;
  if (device != only_gpu()) {
    return kInvalidArgument;
  }
  const bool is_meant = *state.failing == '\0' || std::strcmp(state.failing, function) == 0;
  return is_meant ? state.query_result : abi::kSuccess;
}

template <class Value>
abi::Return give(const char* function, abi::Device device, Value* target, Value value) {
  const abi::Return result = answer(function, device);
  if (result == abi::kSuccess) {
    *target = value;
  }
  return result;
}

abi::Return give_processes(abi::Return result,
                           const abi::ProcessInfo* source,
                           unsigned source_count,
                           unsigned* count,
                           abi::ProcessInfo* infos) {
  if (result != abi::kSuccess) {
    return result;
  }
  if (*count < source_count) {
    *count = source_count;
    return abi::kInsufficientSize;
  }
  *count = source_count;
  std::copy_n(source, source_count, infos);
  return abi::kSuccess;
}

abi::Return give_compute_processes(const char* function,
                                   abi::Device device,
                                   unsigned* count,
                                   abi::ProcessInfo* infos) {
  constexpr std::uint32_t kFirstPid = 1000;
  std::array<abi::ProcessInfo, headrace::tiers::gpu::FakeNvmlState::kProcessesMax> all = {};
  for (unsigned i = 0; i < state.compute_processes; ++i) {
    all.at(i) = {.pid = kFirstPid + i, .memory_bytes = std::uint64_t{1} << 30};
  }
  return give_processes(
      answer(function, device), all.data(), state.compute_processes, count, infos);
}

#if HEADRACE_FAKE_NVML_AGE == 0
// The entries of some drivers' newer functions (ask_processes).
struct LongProcessInfo {
  abi::ProcessInfo info;
  std::uint64_t protected_memory_bytes = 0;
};

abi::Return give_long_entry(abi::Return result, unsigned* count, LongProcessInfo* infos) {
  if (result == abi::kSuccess && *count >= 2) {
    *count = 2;
    infos[0] = infos[1] = {.info = {.pid = 1}};
  }
  return result;
}
#endif

}  // namespace

FAKE_NVML_EXPORT headrace::tiers::gpu::FakeNvmlState* fake_nvml_state() {
  return &state;
}

FAKE_NVML_EXPORT abi::Return nvmlInit_v2() {
  state.inits += state.init_result == abi::kSuccess ? 1 : 0;
  return state.init_result;
}

FAKE_NVML_EXPORT abi::Return nvmlShutdown() {
  ++state.shutdowns;
  return abi::kSuccess;
}

FAKE_NVML_EXPORT const char* nvmlErrorString(abi::Return code) {
  return code == abi::kLibRmVersionMismatch ? "Driver/library version mismatch" : "Some Error";
}

FAKE_NVML_EXPORT abi::Return nvmlSystemGetDriverVersion(char* text, unsigned chars) {
  std::strncpy(text, "580.82.07", chars);
  return abi::kSuccess;
}

#if HEADRACE_FAKE_NVML_AGE < 2
FAKE_NVML_EXPORT abi::Return nvmlDeviceGetHandleByPciBusId_v2(const char* pci_id,
                                                              abi::Device* device) {
  if (std::strcmp(pci_id, state.pci_id) != 0) {
    return abi::kNotFound;
  }
  return give(__func__, only_gpu(), device, only_gpu());
}
#endif

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetMemoryInfo(abi::Device device, abi::Memory* memory) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  return give(__func__,
              device,
              memory,
              {.total_bytes = 24 * kGib, .free_bytes = 18 * kGib, .used_bytes = 6 * kGib});
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetCurrPcieLinkGeneration(abi::Device device,
                                                                 unsigned* value) {
  return give(__func__, device, value, 1U);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetMaxPcieLinkGeneration(abi::Device device,
                                                                unsigned* value) {
  return give(__func__, device, value, 5U);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetCurrPcieLinkWidth(abi::Device device, unsigned* value) {
  return give(__func__, device, value, 8U);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetMaxPcieLinkWidth(abi::Device device, unsigned* value) {
  return give(__func__, device, value, 16U);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetTemperature(abi::Device device,
                                                      int sensor,
                                                      unsigned* degrees) {
  return give(__func__, device, degrees, sensor == abi::kTemperatureGpu ? 41U : 0U);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetTotalEccErrors(abi::Device device,
                                                         int error_type,
                                                         int counter,
                                                         std::uint64_t* count) {
  const bool is_expected =
      error_type == abi::kEccUncorrected && counter == abi::kEccSinceDriverLoad;
  return give(__func__, device, count, std::uint64_t{is_expected ? 3U : 99U});
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetComputeRunningProcesses_v2(abi::Device device,
                                                                     unsigned* count,
                                                                     abi::ProcessInfo* infos) {
  return give_compute_processes(__func__, device, count, infos);
}

#if HEADRACE_FAKE_NVML_AGE == 0
FAKE_NVML_EXPORT abi::Return nvmlDeviceGetCurrentClocksEventReasons(abi::Device device,
                                                                    std::uint64_t* reasons) {
  return give(__func__, device, reasons, state.reasons);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetGraphicsRunningProcesses_v2(abi::Device device,
                                                                      unsigned* count,
                                                                      abi::ProcessInfo* infos) {
  return give_processes(answer(__func__, device),
                        state.graphics_processes.data(),
                        state.graphics_process_count,
                        count,
                        infos);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetComputeRunningProcesses_v3(abi::Device device,
                                                                     unsigned* count,
                                                                     LongProcessInfo* infos) {
  return give_long_entry(answer(__func__, device), count, infos);
}

FAKE_NVML_EXPORT abi::Return nvmlDeviceGetGraphicsRunningProcesses_v3(abi::Device device,
                                                                      unsigned* count,
                                                                      LongProcessInfo* infos) {
  return give_long_entry(answer(__func__, device), count, infos);
}
#else
FAKE_NVML_EXPORT abi::Return nvmlDeviceGetCurrentClocksThrottleReasons(abi::Device device,
                                                                       std::uint64_t* reasons) {
  return give(__func__, device, reasons, state.reasons);
}
#endif
// NOLINTEND(readability-identifier-naming)
