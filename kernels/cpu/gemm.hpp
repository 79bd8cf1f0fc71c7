// Matrix products by oneDNN, prepared once per shape.
//
// Why the matmul primitive and not dnnl_sgemm: equal speed (docs in kernels/README.md), but its
// code is generated beforehand and its scratch is ours, while sgemm allocates at every call.
//
// Invariant: bits depend on (shape, threads), not on addresses or on what the workspace held.
// Threads: any, but never inside an OpenMP region or a oneTBB task. Failure: Status.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "core/error.hpp"

namespace headrace::kernels::cpu {

// c[m, n] (+)= op(a)[m, k] op(b)[k, n] (+ bias[n]). Rows of the arrays as stored are a_stride,
// b_stride and c_stride (0: n) elements apart; `transpose_a` says that a is stored as [k, m].
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t a_stride = 0;
  std::int64_t b_stride = 0;
  std::int64_t c_stride = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool bias = false;
  bool accumulate = false;
  auto operator<=>(const GemmShape&) const = default;
};

struct GemmOperands {
  const float* a = nullptr;
  const float* b = nullptr;
  const float* bias = nullptr;
  float* c = nullptr;
  std::byte* workspace = nullptr;
};

// Prepares the shape for a team of `threads`; returns the bytes of workspace that it needs, a
// multiple of kWorkspaceAlignmentBytes.
[[nodiscard]] std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads);

// Runs it on the calling thread's team, which is set to `threads`. k == 0 gives zeros (or bias).
[[nodiscard]] Status gemm(const GemmShape& shape, int threads, const GemmOperands& operands);

}  // namespace headrace::kernels::cpu
