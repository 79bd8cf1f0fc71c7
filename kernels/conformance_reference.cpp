// The float64 references: one formula, one loop nest each.

#include "kernels/conformance_reference.hpp"

#include <algorithm>
#include <cmath>

namespace headrace::kernels::conformance {

namespace {

Doubles zeros(std::int64_t count) {
  return Doubles(static_cast<std::size_t>(count), 0.0);
}

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

constexpr double kGeluSlope = 0.79788456080286535588;  // sqrt(2/pi)

// Softmax probabilities of one row of attention, and its log-sum-exp.
struct AttentionRow {
  Doubles p;
  double lse = 0.0;
};

struct HeadPlace {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t position;
};

std::int64_t q_at(const ReferenceAttention& s, const HeadPlace& place) {
  return ((place.batch * s.sequence + place.position) * s.heads + place.head) * s.head_dim;
}

std::int64_t kv_at(const ReferenceAttention& s, const HeadPlace& place, std::int64_t position) {
  const std::int64_t kv_head = place.head / (s.heads / s.kv_heads);
  return ((place.batch * s.sequence + position) * s.kv_heads + kv_head) * s.head_dim;
}

double dot(
    const Doubles& a, std::int64_t a_at, const Doubles& b, std::int64_t b_at, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += a[at(a_at + i)] * b[at(b_at + i)];
  }
  return sum;
}

AttentionRow attention_row(const ReferenceAttention& s,
                           const HeadPlace& place,
                           const Doubles& q,
                           const Doubles& k) {
  AttentionRow row;
  double maximum = -HUGE_VAL;
  for (std::int64_t j = 0; j <= place.position; ++j) {
    const bool seen = s.window == 0 || j > place.position - s.window;
    const double score = s.scale * dot(q, q_at(s, place), k, kv_at(s, place, j), s.head_dim);
    row.p.push_back(seen ? score : -HUGE_VAL);
    maximum = std::max(maximum, row.p.back());
  }
  double sum = 0.0;
  for (const double score : row.p) {
    sum += std::exp(score - maximum);
  }
  row.lse = maximum + std::log(sum);
  for (double& value : row.p) {
    value = std::exp(value - row.lse);
  }
  return row;
}

// Calls body(place) for each (batch, head, position).
template <class F>
void for_places(const ReferenceAttention& s, const F& body) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t t = 0; t < s.sequence; ++t) {
        body(HeadPlace{b, h, t});
      }
    }
  }
}

}  // namespace

Doubles reference_product(const ReferenceProduct& shape, const Doubles& a, const Doubles& b) {
  Doubles c = zeros(shape.m * shape.n);
  for (std::int64_t m = 0; m < shape.m; ++m) {
    for (std::int64_t k = 0; k < shape.k; ++k) {
      const double value = a[at(m * shape.a_row + k * shape.a_k)];
      for (std::int64_t n = 0; n < shape.n; ++n) {
        c[at(m * shape.n + n)] += value * b[at(k * shape.b_k + n * shape.b_column)];
      }
    }
  }
  return c;
}

double reference_gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(kGeluSlope * (x + 0.044715 * x * x * x)));
}

double reference_gelu_slope(double x) {
  const double t = std::tanh(kGeluSlope * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kGeluSlope * (1.0 + 3.0 * 0.044715 * x * x);
}

double reference_silu(double x) {
  return x / (1.0 + std::exp(-x));
}

double reference_silu_slope(double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  return s * (1.0 + x * (1.0 - s));
}

ReferenceNormResult reference_norm(const ReferenceNorm& shape,
                                   const Doubles& x,
                                   const Doubles& gain,
                                   const Doubles& bias) {
  ReferenceNormResult result = {
      zeros(shape.rows * shape.columns), zeros(shape.rows), zeros(shape.rows)};
  const auto columns = static_cast<double>(shape.columns);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    double mean = 0.0;
    for (std::int64_t c = 0; shape.layer && c < shape.columns; ++c) {
      mean += x[at(row * shape.columns + c)] / columns;
    }
    double variance = 0.0;
    for (std::int64_t c = 0; c < shape.columns; ++c) {
      const double centred = x[at(row * shape.columns + c)] - mean;
      variance += centred * centred / columns;
    }
    const double rstd = 1.0 / std::sqrt(variance + shape.eps);
    result.mean[at(row)] = mean;
    result.rstd[at(row)] = rstd;
    for (std::int64_t c = 0; c < shape.columns; ++c) {
      const double unit = (x[at(row * shape.columns + c)] - mean) * rstd;
      result.y[at(row * shape.columns + c)] =
          unit * gain[at(c)] + (shape.layer ? bias[at(c)] : 0.0);
    }
  }
  return result;
}

ReferenceNormGradient reference_norm_backward(const ReferenceNorm& shape,
                                              const Doubles& dy,
                                              const Doubles& x,
                                              const Doubles& gain) {
  const ReferenceNormResult forward = reference_norm(shape, x, gain, zeros(shape.columns));
  ReferenceNormGradient result = {
      zeros(shape.rows * shape.columns), zeros(shape.columns), zeros(shape.columns)};
  const auto columns = static_cast<double>(shape.columns);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int64_t begin = row * shape.columns;
    double sum = 0.0;
    double sum_unit = 0.0;
    const auto unit_at = [&](std::int64_t c) {
      return (x[at(begin + c)] - forward.mean[at(row)]) * forward.rstd[at(row)];
    };
    for (std::int64_t c = 0; c < shape.columns; ++c) {
      const double pulled = dy[at(begin + c)] * gain[at(c)];
      sum += shape.layer ? pulled / columns : 0.0;
      sum_unit += pulled * unit_at(c) / columns;
      result.dgain[at(c)] += dy[at(begin + c)] * unit_at(c);
      result.dbias[at(c)] += dy[at(begin + c)];
    }
    for (std::int64_t c = 0; c < shape.columns; ++c) {
      result.dx[at(begin + c)] =
          forward.rstd[at(row)] * (dy[at(begin + c)] * gain[at(c)] - sum - unit_at(c) * sum_unit);
    }
  }
  return result;
}

ReferenceAttentionResult reference_attention(const ReferenceAttention& shape,
                                             const Doubles& q,
                                             const Doubles& k,
                                             const Doubles& v) {
  ReferenceAttentionResult result;
  result.out = zeros(shape.batch * shape.sequence * shape.heads * shape.head_dim);
  for_places(shape, [&](const HeadPlace& place) {
    const AttentionRow row = attention_row(shape, place, q, k);
    result.lse.push_back(row.lse);
    for (std::int64_t j = 0; j <= place.position; ++j) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        result.out[at(q_at(shape, place) + d)] += row.p[at(j)] * v[at(kv_at(shape, place, j) + d)];
      }
    }
  });
  return result;
}

ReferenceAttentionGradient reference_attention_backward(const ReferenceAttention& shape,
                                                        const Doubles& q,
                                                        const Doubles& k,
                                                        const Doubles& v,
                                                        const Doubles& dout) {
  const std::int64_t rows = shape.batch * shape.sequence;
  ReferenceAttentionGradient result = {zeros(rows * shape.heads * shape.head_dim),
                                       zeros(rows * shape.kv_heads * shape.head_dim),
                                       zeros(rows * shape.kv_heads * shape.head_dim)};
  for_places(shape, [&](const HeadPlace& place) {
    const AttentionRow row = attention_row(shape, place, q, k);
    const std::int64_t query = q_at(shape, place);
    Doubles dp;
    double mean = 0.0;
    for (std::int64_t j = 0; j <= place.position; ++j) {
      dp.push_back(dot(dout, query, v, kv_at(shape, place, j), shape.head_dim));
      mean += dp.back() * row.p[at(j)];
    }
    for (std::int64_t j = 0; j <= place.position; ++j) {
      const double ds = row.p[at(j)] * (dp[at(j)] - mean) * shape.scale;
      const std::int64_t key = kv_at(shape, place, j);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        result.dq[at(query + d)] += ds * k[at(key + d)];
        result.dk[at(key + d)] += ds * q[at(query + d)];
        result.dv[at(key + d)] += row.p[at(j)] * dout[at(query + d)];
      }
    }
  });
  return result;
}

ReferenceHeadResult reference_head(const ReferenceHead& shape,
                                   const Doubles& h,
                                   const Doubles& weight,
                                   const std::vector<std::int32_t>& targets) {
  ReferenceHeadResult result;
  result.logits = reference_product({.m = shape.rows,
                                     .n = shape.vocab,
                                     .k = shape.columns,
                                     .a_row = shape.columns,
                                     .a_k = 1,
                                     .b_k = 1,
                                     .b_column = shape.columns},
                                    h,
                                    weight);
  result.dh = zeros(shape.rows * shape.columns);
  result.dweight = zeros(shape.vocab * shape.columns);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const double* logits = result.logits.data() + row * shape.vocab;
    const double maximum = *std::max_element(logits, logits + shape.vocab);
    double sum = 0.0;
    for (std::int64_t i = 0; i < shape.vocab; ++i) {
      sum += std::exp(logits[i] - maximum);
    }
    result.lse.push_back(maximum + std::log(sum));
    const std::int64_t target = targets[at(row)];
    result.token_loss.push_back(target < 0 ? 0.0 : result.lse.back() - logits[target]);
    result.loss_sum += result.token_loss.back();
    for (std::int64_t i = 0; target >= 0 && i < shape.vocab; ++i) {
      const double dlogit = std::exp(logits[i] - result.lse.back()) - (i == target ? 1.0 : 0.0);
      for (std::int64_t c = 0; c < shape.columns; ++c) {
        result.dh[at(row * shape.columns + c)] += dlogit * weight[at(i * shape.columns + c)];
        result.dweight[at(i * shape.columns + c)] += dlogit * h[at(row * shape.columns + c)];
      }
    }
  }
  return result;
}

}  // namespace headrace::kernels::conformance
