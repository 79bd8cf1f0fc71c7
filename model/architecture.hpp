// The numbers of a transformer: what a preset, [model] arch or a config.json resolves to.
//
// Invariant: an Architecture that came out of a function here passed validate(): sizes are positive
// and fit together. Two families compute: GPT-2 (LayerNorm, learned positions, GELU, biases) and
// Llama (RMSNorm, rotary positions, SwiGLU, grouped-query attention). Mistral, Qwen2 and Qwen3 are
// Llama with other properties; their dialect is the config.json that describes them.
// Thread: any; plain data. Failure: a usage error that holds every problem, not only the first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "model/rope.hpp"

namespace headrace::model {

enum class Family : std::uint8_t { kGpt2, kLlama };

[[nodiscard]] std::string_view family_name(Family family);  // "gpt2", "llama"

// Of Llama's family: whose config.json a model has. GPT-2 has one only.
enum class Dialect : std::uint8_t { kLlama, kMistral, kQwen2, kQwen3 };

inline constexpr std::int64_t kLayersMax = 1 << 16;

struct Architecture {
  Family family = Family::kGpt2;
  Dialect dialect = Dialect::kLlama;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // GPT-2: heads
  std::int64_t head_dim = 0;  // GPT-2: hidden / heads
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_seq_len = 0;  // GPT-2: rows of the position table
  bool tied = false;             // the head's matrix is the token table
  bool qkv_bias = false;         // Llama: biases on q, k and v (GPT-2 always has its own)
  bool output_bias = false;      // Llama: on o
  bool mlp_bias = false;         // Llama: on gate, up and down
  bool qk_norm = false;          // Llama: RMSNorm of each head of q and k before it is rotated
  double rope_theta = 10000.0;   // Llama
  RopeScaling rope_scaling;      // Llama
  // Mistral, Qwen: keys that a query sees, its own the last; 0: all up to its own.
  std::int64_t sliding_window = 0;
  std::vector<bool> slides;  // which layers have the window; empty: each
  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  // Carried along, without effect on numbers.
  std::vector<std::int64_t> bos_tokens;
  std::vector<std::int64_t> eos_tokens;
  std::string tokenizer;  // "bytes", a tokenizer.json or its directory, or "": not said

  friend bool operator==(const Architecture&, const Architecture&) = default;
};

// Of a layer: sliding_window or 0.
[[nodiscard]] std::int64_t window_of(const Architecture& architecture, std::int64_t layer);

[[nodiscard]] inline RopeShape rope_shape(const Architecture& a) {
  return {.head_dim = a.head_dim, .theta = a.rope_theta, .max_seq_len = a.max_seq_len};
}

// "gpt2", "llama", "mistral", "qwen2", "qwen3": model_type of its config.json.
[[nodiscard]] std::string_view model_type(const Architecture& architecture);

// Every contradiction at once, in one usage error; `source` begins its text ("model", a path).
[[nodiscard]] Status validate(const Architecture& architecture, const std::string& source);

// By preset or by arch and sizes; `tokenizer_vocab` is what vocab is when nothing says it. A
// section with a path is the caller's to open (huggingface.hpp).
[[nodiscard]] Result<Architecture> architecture_from_section(
    const ModelSection& section, std::optional<std::int64_t> tokenizer_vocab);

// Names of the presets, ascending by family and size.
[[nodiscard]] std::vector<std::string> preset_names();

}  // namespace headrace::model
