// Rotary positions: by how much a pair of elements turns from one position to the next, with the
// scalings that transformers has.
//
// Invariant: what transformers computes in float32 is computed here in double, by the same
// formulas. Thread: any; plain data. Failure: none; check_rope says what has no meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::model {

enum class RopeType : std::uint8_t {
  kDefault,
  kLinear,   // positions are divided by factor
  kDynamic,  // beyond max_seq_len theta grows with the sequence (NTK)
  kYarn,     // Peng et al. 2023
  kLlama3,   // Llama 3.1
};

// Fields have their names in config.json. What a type does not have stays as it is here.
struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1.0;
  std::int64_t original_max_position_embeddings = 0;  // llama3, yarn
  double low_freq_factor = 1.0;                       // llama3
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // yarn
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct RopeShape {
  std::int64_t head_dim = 0;
  double theta = 10000.0;
  std::int64_t max_seq_len = 0;  // max_position_embeddings
};

// What has no meaning, as "factor = 0 must be positive"; empty: nothing.
[[nodiscard]] std::vector<std::string> check_rope(const RopeShape& shape,
                                                  const RopeScaling& scaling);

struct RopeFrequencies {
  std::vector<double> radians;  // [head_dim / 2], from one position to the next
  double amplitude = 1.0;       // of cosine and sine
};

// For sequences of seq_len tokens: the dynamic type depends on it.
[[nodiscard]] RopeFrequencies rope_frequencies(const RopeShape& shape,
                                               const RopeScaling& scaling,
                                               std::int64_t seq_len);

}  // namespace headrace::model
