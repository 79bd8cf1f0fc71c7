// Whether the device that a run asks for can train it.
//
// Thread: main's. Failure: it makes the errors. Nothing is made or changed; of CUDA nothing is
// called for the CPU.
#pragma once

#include "core/error.hpp"
#include "core/run_config.hpp"

namespace headrace::cli {

// For commands that compute by RUN.toml, before they do anything else. Errors: tiers.device is a
// GPU, and this binary has no CUDA runtime (kUsage); there is no driver or no such GPU
// (kHardwareAbsent); the driver is out of order (kOperating); there is one (kUsage: this version
// has no CUDA kernels).
[[nodiscard]] Status check_device(const RunConfig& config);

}  // namespace headrace::cli
