#include "tiers/gpu/cuda_error.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace headrace::tiers::gpu {

// Those that the toolkit documents as leaving the process unable to do further CUDA work.
bool loses_device(int code) {
  switch (static_cast<cudaError_t>(code)) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorMpsConnectionFailed:
      return true;
    default:
      return false;
  }
}

Status check(int code, const char* call, int device) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) {
    return {};
  }
  [[maybe_unused]] const cudaError_t cleared = cudaGetLastError();
  const std::string label = "cuda:" + std::to_string(device);
  std::string why =
      std::string(call) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  if (error == cudaErrorInsufficientDriver) {
    return make_error(ExitCode::kHardwareAbsent,
                      label + ": this machine has no NVIDIA driver, or one that is too old")
        .with_why(std::move(why))
        .with_hint("use device = \"cpu\", or install a driver for CUDA 13");
  }
  if (error == cudaErrorNoDevice || error == cudaErrorInvalidDevice) {
    return make_error(ExitCode::kHardwareAbsent, label + ": there is no such GPU")
        .with_why(std::move(why))
        .with_hint("`nvidia-smi -L` lists them; CUDA_VISIBLE_DEVICES may hide some");
  }
  if (error == cudaErrorMemoryAllocation) {
    return does_not_fit_error(label + ": out of memory")
        .with_why(std::move(why))
        .with_hint("lower tiers.device_memory or tiers.host_memory, or end other programs");
  }
  if (loses_device(code)) {
    return operating_error(label + ": the device is lost to this process")
        .with_why(std::move(why))
        .with_hint(
            "run it again: it resumes at the last commit. If it happens twice at one "
            "operation, look at the driver's Xid messages (`dmesg`)");
  }
  return operating_error(label + ": a CUDA call failed").with_why(std::move(why));
}

}  // namespace headrace::tiers::gpu
