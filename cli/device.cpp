#include "cli/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/cuda.hpp"
#include "core/config.hpp"

namespace headrace::cli {
namespace {

constexpr const char* kUseCpu =
    "use tiers.device = \"cpu\": this version has no CUDA kernels, so no GPU would train";

std::string names_of(const std::vector<Gpu>& gpus) {
  std::string names;
  for (const Gpu& gpu : gpus) {
    names += fmt::format("{}cuda:{} {}", names.empty() ? "" : ", ", gpu.ordinal, gpu.name);
  }
  return names;
}

Error refusal(const std::string& device, const CudaFacts& cuda, int ordinal) {
  const std::string what = fmt::format("tiers.device = \"{}\"", device);
  if (!cuda.linked) {
    return usage_error(what + ": this headrace was built without CUDA")
        .with_why("the CUDA toolkit was not found, or was left out, when it was built")
        .with_hint(kUseCpu);
  }
  if (cuda.problem) {
    const bool absent = cuda.problem->code == ExitCode::kHardwareAbsent;
    if (cuda.lacks_driver()) {
      // CUDA's own words for it speak of a version that is too old.
      return make_error(cuda.problem->code, what + ": this machine has no NVIDIA driver")
          .with_why("CUDA finds no libcuda.so.1, which the driver brings")
          .with_hint(kUseCpu);
    }
    return make_error(
               cuda.problem->code,
               what + (absent ? ": this machine has no GPU for CUDA" : ": the GPU cannot be asked"))
        .with_why(cuda.problem->why)
        .with_hint(kUseCpu);
  }
  const auto gpu = std::find_if(cuda.gpus.begin(), cuda.gpus.end(), [&](const Gpu& candidate) {
    return candidate.ordinal == ordinal;
  });
  if (gpu == cuda.gpus.end()) {
    return make_error(ExitCode::kHardwareAbsent, what + ": there is no such GPU")
        .with_why(cuda.gpus.empty() ? "this machine has none"
                                    : "this machine has " + names_of(cuda.gpus))
        .with_hint(kUseCpu);
  }
  return usage_error(fmt::format("{} ({}): this version cannot train on it", what, gpu->name))
      .with_why("it has no CUDA kernels: its GPU tier moves and orders bytes only")
      .with_hint("use tiers.device = \"cpu\"");
}

}  // namespace

Status check_device(const RunConfig& config) {
  const std::string device = config.tiers.device.value_or("cpu");
  const std::optional<int> ordinal = cuda_ordinal(device);
  if (!ordinal) {
    return {};
  }
  return refusal(device, cuda_facts(), *ordinal).with_where(config_place(config, "tiers.device"));
}

}  // namespace headrace::cli
