// The part of NVML's binary interface that nvml.cpp uses, as NVIDIA documents it: not every toolkit
// brings nvml.h, and the library is found at run time, never linked.
//
// Invariant: equal to nvml.h where there is one (checked by nvml_test.cpp when it is compiled).
#pragma once

#include <cstdint>

namespace headrace::tiers::gpu::nvml_abi {

using Return = int;  // nvmlReturn_t
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kNotFound = 6;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kFunctionNotFound = 13;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kResetRequired = 16;
inline constexpr Return kLibRmVersionMismatch = 18;
inline constexpr Return kNoData = 21;
inline constexpr Return kDeprecated = 26;

struct DeviceState;
using Device = DeviceState*;  // nvmlDevice_t

struct Memory {  // nvmlMemory_t
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t used_bytes = 0;
};

// nvmlProcessInfo_v2_t, which ..._v2 of the functions fill; ..._v3 do too, but not of every driver.
struct ProcessInfo {
  std::uint32_t pid = 0;
  std::uint64_t memory_bytes = 0;  // kNotAvailable: not known
  std::uint32_t gpu_instance = 0;
  std::uint32_t compute_instance = 0;
};

inline constexpr std::uint64_t kNotAvailable = UINT64_MAX;  // NVML_VALUE_NOT_AVAILABLE
inline constexpr unsigned kDriverVersionChars = 80;
inline constexpr int kTemperatureGpu = 0;
inline constexpr int kEccUncorrected = 1;
inline constexpr int kEccSinceDriverLoad = 0;

// nvmlClocksEventReason..., before CUDA 12.2 nvmlClocksThrottleReason...
inline constexpr std::uint64_t kReasonIdle = 0x1;
inline constexpr std::uint64_t kReasonApplicationClocks = 0x2;
inline constexpr std::uint64_t kReasonPowerCap = 0x4;
inline constexpr std::uint64_t kReasonHardwareSlowdown = 0x8;
inline constexpr std::uint64_t kReasonSyncBoost = 0x10;
inline constexpr std::uint64_t kReasonSoftwareThermal = 0x20;
inline constexpr std::uint64_t kReasonHardwareThermal = 0x40;
inline constexpr std::uint64_t kReasonPowerBrake = 0x80;
inline constexpr std::uint64_t kReasonDisplayClocks = 0x100;

using Init = Return();                                          // nvmlInit_v2
using Shutdown = Return();                                      // nvmlShutdown
using ErrorString = const char*(Return code);                   // nvmlErrorString
using DriverVersion = Return(char* text, unsigned chars);       // nvmlSystemGetDriverVersion
using FindDevice = Return(const char* pci_id, Device* device);  // ...GetHandleByPciBusId_v2
using GetMemory = Return(Device device, Memory* memory);        // nvmlDeviceGetMemoryInfo
using GetNumber = Return(Device device, unsigned* value);       // ...PcieLinkWidth and others
using GetTemperature = Return(Device, int sensor, unsigned* degrees);
using GetReasons = Return(Device device, std::uint64_t* reasons);  // ...CurrentClocksEventReasons
using GetEccErrors = Return(Device, int error_type, int counter, std::uint64_t* count);
using GetProcesses = Return(Device device, unsigned* count, ProcessInfo* infos);

}  // namespace headrace::tiers::gpu::nvml_abi
