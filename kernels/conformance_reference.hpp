// Plain float64 references of the operations in kernels.hpp, forward and backward.
//
// They are written for reading, not for speed. The analytic gradients here are themselves checked
// against finite differences of the forward functions (conformance_reference_test.cpp).
#pragma once

#include <cstdint>
#include <vector>

namespace headrace::kernels::conformance {

using Doubles = std::vector<double>;

// c[m, n] = sum_k a(m, k) b(k, n); strides of both indices of each.
struct ReferenceProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t a_row = 0;
  std::int64_t a_k = 0;
  std::int64_t b_k = 0;
  std::int64_t b_column = 0;
};

[[nodiscard]] Doubles reference_product(const ReferenceProduct& shape,
                                        const Doubles& a,
                                        const Doubles& b);

[[nodiscard]] double reference_gelu(double x);
[[nodiscard]] double reference_gelu_slope(double x);
[[nodiscard]] double reference_silu(double x);
[[nodiscard]] double reference_silu_slope(double x);

struct ReferenceNorm {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  double eps = 0.0;
  bool layer = false;  // LayerNorm; else RMSNorm
};

struct ReferenceNormResult {
  Doubles y;
  Doubles mean;
  Doubles rstd;
};

[[nodiscard]] ReferenceNormResult reference_norm(const ReferenceNorm& shape,
                                                 const Doubles& x,
                                                 const Doubles& gain,
                                                 const Doubles& bias);

struct ReferenceNormGradient {
  Doubles dx;
  Doubles dgain;
  Doubles dbias;
};

[[nodiscard]] ReferenceNormGradient reference_norm_backward(const ReferenceNorm& shape,
                                                            const Doubles& dy,
                                                            const Doubles& x,
                                                            const Doubles& gain);

// Dense [batch * sequence, heads * head_dim] and [.., kv_heads * head_dim].
struct ReferenceAttention {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1.0;
  std::int64_t window = 0;
};

struct ReferenceAttentionResult {
  Doubles out;
  Doubles lse;  // [batch, heads, sequence]
};

[[nodiscard]] ReferenceAttentionResult reference_attention(const ReferenceAttention& shape,
                                                           const Doubles& q,
                                                           const Doubles& k,
                                                           const Doubles& v);

struct ReferenceAttentionGradient {
  Doubles dq;
  Doubles dk;
  Doubles dv;
};

[[nodiscard]] ReferenceAttentionGradient reference_attention_backward(
    const ReferenceAttention& shape,
    const Doubles& q,
    const Doubles& k,
    const Doubles& v,
    const Doubles& dout);

struct ReferenceHead {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t vocab = 0;
};

struct ReferenceHeadResult {
  Doubles logits;
  Doubles lse;
  Doubles token_loss;
  double loss_sum = 0.0;
  Doubles dh;  // of loss_sum
  Doubles dweight;
};

[[nodiscard]] ReferenceHeadResult reference_head(const ReferenceHead& shape,
                                                 const Doubles& h,
                                                 const Doubles& weight,
                                                 const std::vector<std::int32_t>& targets);

}  // namespace headrace::kernels::conformance
