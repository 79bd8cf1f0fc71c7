// Writing config.json (config_json.hpp): the fields that transformers writes for each model.
#include <string_view>
#include <utility>

#include "model/config_json.hpp"
#include "model/config_json_rope.hpp"

namespace headrace::model {

namespace {

std::string_view torch_dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "float32";
    case Dtype::kBf16:
      return "bfloat16";
    case Dtype::kF16:
      return "float16";
  }
  return "";
}

Json tokens_json(const std::vector<std::int64_t>& tokens) {
  if (tokens.size() == 1) {
    return tokens.front();
  }
  Json list;
  for (const std::int64_t token : tokens) {
    list.push_back(token);
  }
  return list;  // null when there is none
}

void set_gpt2_fields(const Architecture& a, Json& config) {
  config.set("activation_function", "gelu_new")
      .set("attn_pdrop", 0.0)
      .set("embd_pdrop", 0.0)
      .set("layer_norm_epsilon", a.norm_eps)
      .set("n_embd", a.hidden)
      .set("n_head", a.heads)
      .set("n_inner", a.ffn == 4 * a.hidden ? Json() : Json(a.ffn))
      .set("n_layer", a.layers)
      .set("n_positions", a.max_seq_len)
      .set("reorder_and_upcast_attn", false)
      .set("resid_pdrop", 0.0)
      .set("scale_attn_by_inverse_layer_idx", false)
      .set("scale_attn_weights", true);
}

std::string_view architecture_name(const Architecture& a) {
  if (a.family == Family::kGpt2) {
    return "GPT2LMHeadModel";
  }
  switch (a.dialect) {
    case Dialect::kLlama:
      break;
    case Dialect::kMistral:
      return "MistralForCausalLM";
    case Dialect::kQwen2:
      return "Qwen2ForCausalLM";
    case Dialect::kQwen3:
      return "Qwen3ForCausalLM";
  }
  return "LlamaForCausalLM";
}

// layer_types says which layers slide; before it there was max_window_layers, the first that does.
void set_window_fields(const Architecture& a, Json& config) {
  Json types = Json::array();
  std::int64_t full = 0;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const bool slides = window_of(a, layer) > 0;
    full += !slides && full == layer ? 1 : 0;
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  config.set("use_sliding_window", a.sliding_window > 0)
      .set("max_window_layers", full)
      .set("layer_types", std::move(types));
}

// What the models of Llama's family differ in.
void set_dialect_fields(const Architecture& a, Json& config) {
  const bool qwen = a.dialect == Dialect::kQwen2 || a.dialect == Dialect::kQwen3;
  if (a.dialect == Dialect::kLlama || a.dialect == Dialect::kQwen3) {
    config.set("attention_bias", a.output_bias);
  }
  if (a.dialect == Dialect::kLlama) {
    config.set("mlp_bias", a.mlp_bias);
  } else {
    config.set("sliding_window", a.sliding_window > 0 ? Json(a.sliding_window) : Json());
  }
  if (qwen) {
    set_window_fields(a, config);
  }
}

// rope_theta for transformers before version 5, rope_parameters from then on.
void set_llama_fields(const Architecture& a, Json& config) {
  const Json scaling = rope_scaling_to_json(a.rope_scaling);
  const bool scaled = a.rope_scaling.type != RopeType::kDefault;
  Json rope = scaling;
  rope.set("rope_theta", a.rope_theta);
  config.set("attention_dropout", 0.0)
      .set("head_dim", a.head_dim)
      .set("hidden_act", "silu")
      .set("hidden_size", a.hidden)
      .set("intermediate_size", a.ffn)
      .set("max_position_embeddings", a.max_seq_len)
      .set("num_attention_heads", a.heads)
      .set("num_hidden_layers", a.layers)
      .set("num_key_value_heads", a.kv_heads)
      .set("rms_norm_eps", a.norm_eps)
      .set("rope_parameters", std::move(rope))
      .set("rope_scaling", scaled ? scaling : Json())
      .set("rope_theta", a.rope_theta);
  set_dialect_fields(a, config);
}

}  // namespace

Json config_to_json(const Architecture& architecture, Dtype weights) {
  const bool gpt2 = architecture.family == Family::kGpt2;
  Json config = Json::object();
  config.set("architectures", Json::Array{architecture_name(architecture)})
      .set("model_type", model_type(architecture))
      .set("torch_dtype", torch_dtype_name(weights))
      .set("vocab_size", architecture.vocab)
      .set("bos_token_id", tokens_json(architecture.bos_tokens))
      .set("eos_token_id", tokens_json(architecture.eos_tokens))
      .set("initializer_range", architecture.initializer_range)
      .set("tie_word_embeddings", architecture.tied)
      .set("use_cache", true);
  if (gpt2) {
    set_gpt2_fields(architecture, config);
  } else {
    set_llama_fields(architecture, config);
  }
  if (!architecture.tokenizer.empty()) {
    Json own = Json::object();
    own.set("tokenizer", architecture.tokenizer);
    config.set("headrace", std::move(own));
  }
  return config;
}

Json generation_config_to_json(const Architecture& architecture) {
  Json config = Json::object();
  config.set("_from_model_config", true)
      .set("bos_token_id", tokens_json(architecture.bos_tokens))
      .set("eos_token_id", tokens_json(architecture.eos_tokens));
  return config;
}

}  // namespace headrace::model
