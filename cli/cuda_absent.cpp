// A binary without a CUDA runtime: see cuda.hpp.
#include "cli/cuda.hpp"

namespace headrace::cli {

CudaFacts cuda_facts() {
  return {};
}

}  // namespace headrace::cli
