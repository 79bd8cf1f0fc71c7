// A binary without a CUDA runtime: see cuda.hpp.
#include "cli/cuda.hpp"

namespace headrace::cli {

CudaFacts cuda_facts() {
  return {};
}

Status add_nvml_facts(CudaFacts& /*facts*/) {
  return usage_error("this headrace was built without CUDA: it cannot ask NVML")
      .with_hint("leave out --nvml, or build it where the CUDA toolkit is");
}

}  // namespace headrace::cli
