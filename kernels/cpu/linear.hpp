// The gradient of a weight by the gradient rule: shared by linear layers and the head.
//
// Invariant: the GEMM calls are the same in both modes; kAdd runs them into scratch and adds.
#pragma once

#include "core/error.hpp"
#include "kernels/cpu/common.hpp"
#include "kernels/cpu/gemm.hpp"

namespace headrace::kernels::cpu {

// gradient[rows, columns] = a^T b with a [k, rows], b [k, columns], cut in row ranges of at most
// kWeightTileElements.
struct WeightGradient {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t k = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* gradient = nullptr;
  GradientMode mode = GradientMode::kStore;
};

[[nodiscard]] std::size_t weight_gradient_workspace_bytes(const WeightGradient& what, int threads);
[[nodiscard]] Status weight_gradient(const WeightGradient& what, int threads, std::byte* workspace);

// target += source, on a team.
void add_in_parallel(int threads, const float* source, float* target, std::int64_t elements);

}  // namespace headrace::kernels::cpu
