// The numbers of a transformer: what a preset, [model] arch or a config.json resolves to.
//
// Invariant: an Architecture that came out of a function here passed validate(): sizes are positive
// and fit together. Two families: GPT-2 (LayerNorm, learned positions, GELU, biases) and Llama
// (RMSNorm, rotary positions, SwiGLU, grouped-query attention).
// Thread: any; plain data. Failure: a usage error that holds every problem, not only the first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"

namespace headrace::model {

enum class Family : std::uint8_t { kGpt2, kLlama };

[[nodiscard]] std::string_view family_name(Family family);  // "gpt2", "llama"

struct Architecture {
  Family family = Family::kGpt2;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // GPT-2: heads
  std::int64_t head_dim = 0;  // GPT-2: hidden / heads
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_seq_len = 0;  // GPT-2: rows of the position table
  bool tied = false;             // the head's matrix is the token table
  bool attention_bias = false;   // Llama: biases on q, k, v and o (GPT-2 always has its own)
  bool mlp_bias = false;         // Llama: biases on gate, up and down
  double rope_theta = 10000.0;   // Llama
  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  // Carried along, without effect on numbers.
  std::vector<std::int64_t> bos_tokens;
  std::vector<std::int64_t> eos_tokens;
  std::string tokenizer;  // "bytes", a tokenizer.json or its directory, or "": not said

  friend bool operator==(const Architecture&, const Architecture&) = default;
};

// Every contradiction at once, in one usage error; `source` begins its text ("model", a path).
[[nodiscard]] Status validate(const Architecture& architecture, const std::string& source);

// By preset or by arch and sizes; `tokenizer_vocab` is what vocab is when nothing says it. A
// section with a path is the caller's to open (huggingface.hpp).
[[nodiscard]] Result<Architecture> architecture_from_section(
    const ModelSection& section, std::optional<std::int64_t> tokenizer_vocab);

// Names of the presets, ascending by family and size.
[[nodiscard]] std::vector<std::string> preset_names();

}  // namespace headrace::model
