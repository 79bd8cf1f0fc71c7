// config.json: the three lists of fields, the families' defaults, what is refused, and back.
#include "model/config_json.hpp"

#include <gtest/gtest.h>

#include "model/test_support.hpp"

namespace headrace::model {
namespace {

constexpr const char* kGpt2 = R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
  "vocab_size": 50257, "n_positions": 64, "n_ctx": 64, "n_embd": 48, "n_layer": 3, "n_head": 4,
  "activation_function": "gelu_new", "summary_type": "cls_index", "output_past": true,
  "resid_pdrop": 0.1,
  "bos_token_id": 50256, "eos_token_id": 50256, "layer_norm_epsilon": 1e-05})";

constexpr const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 256, "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "hidden_act": "silu",
  "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
  "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "eos_token_id": [1, 2],
  "attention_bias": true, "pretraining_tp": 1, "use_cache": true})";

// As they are published, sizes changed.
constexpr const char* kMistral = R"({"architectures": ["MistralForCausalLM"],
  "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 112,
  "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 3,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.36.0", "use_cache": true, "vocab_size": 256})";

constexpr const char* kQwen2 = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
  "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
  "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 112,
  "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 4,
  "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
  "use_mrope": false, "use_sliding_window": false, "vocab_size": 256})";

constexpr const char* kQwen3 = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 16, "hidden_act": "silu", "hidden_size": 48,
  "initializer_range": 0.02, "intermediate_size": 112, "max_position_embeddings": 40960,
  "max_window_layers": 28, "num_attention_heads": 4, "num_hidden_layers": 3,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
  "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 256})";

// `text` with one more field, which wins over an earlier one only in that it must not be there
// twice.
std::string with(const std::string& text, const std::string& field) {
  return text.substr(0, text.rfind('}')) + ", " + field + "}";
}

Result<ParsedConfigJson> parse(const std::string& text, std::vector<std::string> ignore = {}) {
  return parse_config_json(text, {.path = "dir/config.json", .ignore = std::move(ignore)});
}

TEST(ConfigJson, Gpt2IsReadWithItsDefaults) {
  const Result<ParsedConfigJson> parsed = parse(kGpt2);
  ASSERT_TRUE(parsed) << text_of(parsed.error());
  const Architecture& a = parsed->architecture;
  EXPECT_EQ(a.family, Family::kGpt2);
  EXPECT_EQ(a.layers, 3);
  EXPECT_EQ(a.hidden, 48);
  EXPECT_EQ(a.heads, 4);
  EXPECT_EQ(a.head_dim, 12);
  EXPECT_EQ(a.ffn, 192);  // n_inner is absent
  EXPECT_EQ(a.vocab, 50257);
  EXPECT_EQ(a.max_seq_len, 64);
  EXPECT_TRUE(a.tied);  // absent
  EXPECT_EQ(a.eos_tokens, std::vector<std::int64_t>{50256});
  ASSERT_EQ(parsed->notes.size(), 2U);
  EXPECT_NE(parsed->notes[0].find("resid_pdrop = 0.1 is trained as 0"), std::string::npos);
  EXPECT_NE(parsed->notes[1].find("n_ctx, summary_type, output_past"), std::string::npos);
}

TEST(ConfigJson, LlamaIsReadInBothFormsOfItsRotaryFields) {
  const Result<ParsedConfigJson> parsed = parse(kLlama);
  ASSERT_TRUE(parsed) << text_of(parsed.error());
  const Architecture& a = parsed->architecture;
  EXPECT_EQ(a.family, Family::kLlama);
  EXPECT_EQ(a.kv_heads, 2);
  EXPECT_EQ(a.head_dim, 12);
  EXPECT_EQ(a.rope_theta, 500.0);
  EXPECT_TRUE(a.tied);
  EXPECT_TRUE(a.qkv_bias);
  EXPECT_TRUE(a.output_bias);
  EXPECT_FALSE(a.mlp_bias);
  EXPECT_EQ(a.eos_tokens, (std::vector<std::int64_t>{1, 2}));
  const Result<ParsedConfigJson> older = parse(R"({"model_type": "llama", "vocab_size": 256,
    "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
    "rope_theta": 500.0, "rope_scaling": null, "torch_dtype": "bfloat16"})");
  ASSERT_TRUE(older) << text_of(older.error());
  EXPECT_EQ(older->architecture.rope_theta, 500.0);
  EXPECT_EQ(older->architecture.kv_heads, 4);
  EXPECT_EQ(older->architecture.max_seq_len, 2048);
  EXPECT_EQ(older->architecture.norm_eps, 1e-6);
  EXPECT_FALSE(older->architecture.tied);
}

TEST(ConfigJson, MistralAndQwenAreLlamaWithTheirOwnProperties) {
  const Result<ParsedConfigJson> mistral = parse(kMistral);
  ASSERT_TRUE(mistral) << text_of(mistral.error());
  EXPECT_EQ(mistral->architecture.dialect, Dialect::kMistral);
  EXPECT_FALSE(mistral->architecture.qkv_bias);
  const Result<ParsedConfigJson> qwen2 = parse(kQwen2);
  ASSERT_TRUE(qwen2) << text_of(qwen2.error());
  EXPECT_TRUE(qwen2->architecture.qkv_bias);
  EXPECT_FALSE(qwen2->architecture.output_bias);
  EXPECT_FALSE(qwen2->architecture.qk_norm);
  EXPECT_EQ(qwen2->architecture.head_dim, 12);
  const Result<ParsedConfigJson> qwen3 = parse(kQwen3);
  ASSERT_TRUE(qwen3) << text_of(qwen3.error());
  EXPECT_TRUE(qwen3->architecture.qk_norm);
  EXPECT_FALSE(qwen3->architecture.qkv_bias);
  EXPECT_EQ(qwen3->architecture.head_dim, 16);
  EXPECT_EQ(qwen3->architecture.rope_theta, 1e6);
  for (const auto* parsed : {&mistral, &qwen2, &qwen3}) {
    EXPECT_EQ((*parsed)->architecture.family, Family::kLlama);
    EXPECT_EQ((*parsed)->architecture.kv_heads, 2);
  }
}

TEST(ConfigJson, WhatIsSoAnywayMayBeSaidAndAPaddingRowIsTold) {
  for (const std::string& model : {std::string(kMistral), std::string(kQwen2)}) {
    EXPECT_TRUE(parse(with(model, R"("attention_bias": false)")));
    EXPECT_FALSE(parse(with(model, R"("attention_bias": true)")));
    const auto padded = parse(with(model, R"("pad_token_id": 3)"));
    ASSERT_TRUE(padded) << text_of(padded.error());
    EXPECT_TRUE(std::any_of(padded->notes.begin(), padded->notes.end(), [](const auto& note) {
      return note.find("pad_token_id = 3") != std::string::npos;
    }));
  }
}

// What transformers' config classes take where a file is silent.
TEST(ConfigJson, FieldsThatAreAbsentHaveTheirModelsUsualValues) {
  const auto of = [](const std::string& type, const std::string& more = "") {
    return parse(R"({"model_type": ")" + type + R"(", "vocab_size": 64, "hidden_size": 4096,
      "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 32)" +
                 more + "}");
  };
  const Result<ParsedConfigJson> mistral = of("mistral");
  ASSERT_TRUE(mistral) << text_of(mistral.error());
  EXPECT_EQ(mistral->architecture.kv_heads, 8);
  EXPECT_EQ(mistral->architecture.max_seq_len, 131072);
  EXPECT_EQ(mistral->architecture.norm_eps, 1e-6);
  EXPECT_EQ(mistral->architecture.sliding_window, 4096);
  const Result<ParsedConfigJson> qwen2 = of("qwen2");
  ASSERT_TRUE(qwen2) << text_of(qwen2.error());
  EXPECT_EQ(qwen2->architecture.kv_heads, 32);
  EXPECT_EQ(qwen2->architecture.max_seq_len, 32768);
  EXPECT_FALSE(qwen2->architecture.tied);
  const Result<ParsedConfigJson> qwen3 = of("qwen3", R"(, "num_key_value_heads": null)");
  ASSERT_TRUE(qwen3) << text_of(qwen3.error());
  EXPECT_EQ(qwen3->architecture.kv_heads, 32);  // null: as heads
  EXPECT_EQ(qwen3->architecture.head_dim, 128);
}

struct Case {
  const char* base;
  const char* field;  // as text of JSON
  const char* name;   // what model.ignore calls it
  bool may_be_ignored;
};

TEST(ConfigJson, FieldsThatChangeTheNumbersAreErrorsUnlessNeutralOrIgnored) {
  const Case cases[] = {
      {kGpt2, R"("scale_attn_weights": false)", "scale_attn_weights", true},
      {kGpt2,
       R"("scale_attn_by_inverse_layer_idx": true)",
       "scale_attn_by_inverse_layer_idx",
       true},
      {kGpt2, R"("reorder_and_upcast_attn": true)", "reorder_and_upcast_attn", true},
      {kGpt2, R"("add_cross_attention": true)", "add_cross_attention", true},
      {kGpt2, R"("quantization_config": {"bits": 4})", "quantization_config", true},
      {kGpt2, R"("pruned_heads": {"0": [1]})", "pruned_heads", true},
      {kGpt2, R"("sliding_window": null)", "sliding_window", true},  // unknown to GPT-2
      {kGpt2, R"("never_heard_of": 1)", "never_heard_of", true},
      {kLlama, R"("sliding_window": 4096)", "sliding_window", true},
      {kLlama, R"("partial_rotary_factor": 0.5)", "partial_rotary_factor", true},
      {kLlama, R"("layer_types": ["full_attention", "sliding_attention"])", "layer_types", true},
      {kLlama, R"("n_embd": 5)", "n_embd", true},  // GPT-2's
      {kLlama, R"("headrace": {"from_the_future": 1})", "headrace", false},
      {kLlama, R"("mlp_bias": "yes")", "mlp_bias", false},
      {kLlama, R"("bos_token_id": "x")", "bos_token_id", false},
  };
  for (const Case& entry : cases) {
    const std::string text = with(entry.base, entry.field);
    const Result<ParsedConfigJson> refused = parse(text);
    ASSERT_FALSE(refused) << entry.field;
    EXPECT_EQ(refused.error().code, ExitCode::kUsage);
    EXPECT_NE(text_of(refused.error()).find(entry.name), std::string::npos)
        << text_of(refused.error());
    const Result<ParsedConfigJson> ignored = parse(text, {entry.name});
    EXPECT_EQ(static_cast<bool>(ignored), entry.may_be_ignored) << entry.field;
  }
}

TEST(ConfigJson, NeutralValuesPass) {
  for (const char* field : {R"("sliding_window": null)",
                            R"("rope_scaling": {"rope_type": "default", "rope_theta": 500.0})",
                            R"("layer_types": ["full_attention", "full_attention"])",
                            R"("partial_rotary_factor": 1.0)",
                            R"("rope_interleaved": false)",
                            R"("attention_dropout": 0.0)",
                            R"("quantization_config": null)",
                            R"("headrace": {"tokenizer": "bytes"})",
                            R"("mlp_bias": null)"}) {
    const Result<ParsedConfigJson> parsed = parse(with(kLlama, field));
    EXPECT_TRUE(parsed) << field << text_of(parsed.error());
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

// kQwen3 with use_sliding_window, a window of 6 and one more field.
Result<ParsedConfigJson> parse_windows(const std::string& field) {
  std::string text = replaced(kQwen3, R"("sliding_window": null)", R"("sliding_window": 6)");
  text = replaced(text, R"("use_sliding_window": false)", R"("use_sliding_window": true)");
  return parse(replaced(text, R"("max_window_layers": 28)", field));
}

TEST(ConfigJson, WindowsAreReadAsTransformersDoes) {
  const Result<ParsedConfigJson> mistral =
      parse(replaced(kMistral, R"("sliding_window": null)", R"("sliding_window": 4096)"));
  ASSERT_TRUE(mistral) << text_of(mistral.error());
  EXPECT_EQ(window_of(mistral->architecture, 2), 4096);
  const auto windows = [](const Result<ParsedConfigJson>& parsed) {
    EXPECT_TRUE(parsed) << text_of(parsed.error());
    std::vector<std::int64_t> found;
    for (std::int64_t layer = 0; parsed && layer < 3; ++layer) {
      found.push_back(window_of(parsed->architecture, layer));
    }
    return found;
  };
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(windows(parse_windows(R"("max_window_layers": 28)")), Windows({0, 0, 0}));
  EXPECT_EQ(windows(parse_windows(R"("max_window_layers": 1)")), Windows({0, 6, 6}));
  EXPECT_EQ(windows(parse_windows(R"("max_window_layers": 0)")), Windows({6, 6, 6}));
  const std::string mixed = R"("max_window_layers": 0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])";
  EXPECT_EQ(windows(parse_windows(mixed)), Windows({6, 0, 6}));
  for (const char* field : {R"("max_window_layers": 1)", R"("max_window_layers": 0)"}) {
    const Architecture architecture = parse_windows(field)->architecture;
    const Result<ParsedConfigJson> again = parse(config_to_json(architecture, Dtype::kF32).dump());
    ASSERT_TRUE(again) << text_of(again.error());
    EXPECT_EQ(again->architecture, architecture);
  }
  const Architecture architecture = parse_windows(mixed)->architecture;
  EXPECT_EQ(parse(config_to_json(architecture, Dtype::kF32).dump())->architecture, architecture);
}

TEST(ConfigJson, WindowsThatContradictThemselvesAreRefused) {
  const auto refused = [](const Result<ParsedConfigJson>& parsed, const char* says) {
    ASSERT_FALSE(parsed) << says;
    EXPECT_NE(text_of(parsed.error()).find(says), std::string::npos) << text_of(parsed.error());
  };
  refused(parse(replaced(kMistral, R"("sliding_window": null)", R"("sliding_window": 0)")),
          "'sliding_window' = 0");
  refused(parse_windows(R"("layer_types": ["sliding_attention"])"), "1 entries for 3 layers");
  refused(parse_windows(R"("layer_types": ["chunked_attention", "full_attention",
            "full_attention"])"),
          "chunked_attention");
  refused(parse(with(kQwen2, R"("layer_types": ["sliding_attention", "full_attention",
            "full_attention"])")),
          "there is no window");
}

// kMistral has no rope fields but theta.
Result<ParsedConfigJson> parse_rope(const std::string& object,
                                    const std::string& field = "rope_scaling",
                                    std::vector<std::string> ignore = {}) {
  return parse(with(kMistral, "\"" + field + "\": " + object), std::move(ignore));
}

TEST(ConfigJson, RotaryScalingIsReadInBothSpellings) {
  // As Llama 3.1, Qwen2.5 and older models have it.
  const std::string llama3 = R"({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"})";
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const Result<ParsedConfigJson> parsed = parse_rope(llama3, field);
    ASSERT_TRUE(parsed) << text_of(parsed.error());
    const RopeScaling& scaling = parsed->architecture.rope_scaling;
    EXPECT_EQ(scaling.type, RopeType::kLlama3);
    EXPECT_EQ(scaling.factor, 8.0);
    EXPECT_EQ(scaling.low_freq_factor, 1.0);
    EXPECT_EQ(scaling.high_freq_factor, 4.0);
    EXPECT_EQ(scaling.original_max_position_embeddings, 8192);
    EXPECT_EQ(parsed->architecture.rope_theta, 1e6);
  }
  const Result<ParsedConfigJson> yarn =
      parse_rope(R"({"factor": 4.0, "type": "yarn", "mscale": null, "rope_theta": 500.0})");
  ASSERT_TRUE(yarn) << text_of(yarn.error());
  EXPECT_EQ(yarn->architecture.rope_scaling.type, RopeType::kYarn);
  EXPECT_EQ(yarn->architecture.rope_scaling.original_max_position_embeddings, 32768);
  EXPECT_EQ(yarn->architecture.rope_scaling.mscale, std::nullopt);
  EXPECT_EQ(yarn->architecture.rope_theta, 500.0);  // of the object, before that beside it
  const Result<ParsedConfigJson> by_ratio = parse_rope(
      R"({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 8192})");
  ASSERT_TRUE(by_ratio) << text_of(by_ratio.error());
  EXPECT_EQ(by_ratio->architecture.rope_scaling.factor, 4.0);
  for (const char* plain : {R"({"type": "linear", "factor": 2})",
                            R"({"rope_type": "dynamic", "factor": 2.0})",
                            R"({"rope_type": "dynamic", "factor": 2.0,
                                "original_max_position_embeddings": 4096})",
                            R"({"rope_type": "linear", "factor": 2.0,
                                "original_max_position_embeddings": 4096})",
                            R"({"rope_type": "default", "partial_rotary_factor": 1.0})",
                            R"({})"}) {
    const Result<ParsedConfigJson> parsed = parse_rope(plain);
    EXPECT_TRUE(parsed) << plain << text_of(parsed.error());
  }
}

TEST(ConfigJson, RotaryScalingThatIsNotComputedIsRefusedAndMayBeIgnored) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"rope_type": "longrope", "factor": 4.0})", "rope_scaling.rope_type"},
      {R"({"type": "mrope", "mrope_section": [16, 24, 24]})", "rope_scaling.type"},
      {R"({"rope_type": "linear"})", "'rope_scaling.factor' is missing"},
      {R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0})", "high_freq_factor"},
      {R"({"rope_type": "linear", "factor": 2.0, "beta_fast": 32})", "rope_scaling.beta_fast"},
      {R"({"rope_type": "default", "partial_rotary_factor": 0.5})", "partial_rotary_factor"},
      {R"({"rope_type": "linear", "factor": "2"})", "has the wrong type"},
      {R"({"rope_type": "yarn", "factor": 2.0, "truncate": 1})", "rope_scaling.truncate"},
  };
  for (const auto& [object, says] : refused) {
    const Result<ParsedConfigJson> parsed = parse_rope(object);
    ASSERT_FALSE(parsed) << object;
    EXPECT_EQ(parsed.error().code, ExitCode::kUsage);
    EXPECT_NE(text_of(parsed.error()).find(says), std::string::npos) << text_of(parsed.error());
    const Result<ParsedConfigJson> ignored = parse_rope(object, "rope_scaling", {"rope_scaling"});
    ASSERT_TRUE(ignored) << text_of(ignored.error());
    EXPECT_EQ(ignored->architecture.rope_scaling, RopeScaling{});
  }
  EXPECT_FALSE(parse_rope(R"({"rope_type": "linear", "factor": -1.0})"));
  const Result<ParsedConfigJson> twice =
      parse(with(kLlama, R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})"));
  ASSERT_FALSE(twice);
  EXPECT_NE(text_of(twice.error()).find("contradict"), std::string::npos);
  const std::string linear = R"({"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0})";
  const std::string both = "\"rope_parameters\": " + linear + ", \"rope_scaling\": ";
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const auto neither = parse(with(kMistral, both + linear), {name});
    ASSERT_TRUE(neither) << text_of(neither.error());
    EXPECT_EQ(neither->architecture.rope_scaling, RopeScaling{}) << "of either name";
  }
  const auto thetas =
      parse(with(kMistral, both + R"({"rope_type": "linear", "factor": 2.0, "rope_theta": 6.0})"));
  ASSERT_FALSE(thetas);
  EXPECT_NE(text_of(thetas.error()).find("rope_scaling.rope_theta contradict"), std::string::npos);
  const Result<ParsedConfigJson> ignored = parse_rope(
      R"({"rope_type": "longrope", "rope_theta": 7.0})", "rope_parameters", {"rope_parameters"});
  ASSERT_TRUE(ignored) << text_of(ignored.error());
  EXPECT_EQ(ignored->architecture.rope_theta, 7.0);
}

TEST(ConfigJson, WrittenRotaryScalingReadsBackEqual) {
  for (const char* object :
       {R"({"rope_type": "linear", "factor": 2.5})",
        R"({"rope_type": "dynamic", "factor": 3.0})",
        R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5,
            "high_freq_factor": 4.25, "original_max_position_embeddings": 77})",
        R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "mscale": 0.7,
            "mscale_all_dim": 0.3, "truncate": false})",
        R"({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25})"}) {
    const Result<ParsedConfigJson> parsed = parse_rope(object);
    ASSERT_TRUE(parsed) << text_of(parsed.error());
    const std::string written = config_to_json(parsed->architecture, Dtype::kF32).dump();
    const Result<ParsedConfigJson> again = parse(written);
    ASSERT_TRUE(again) << text_of(again.error());
    EXPECT_EQ(again->architecture, parsed->architecture) << written;
  }
}

TEST(ConfigJson, AllProblemsAreReportedAtOnce) {
  const Result<ParsedConfigJson> parsed =
      parse(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": "wide", "hidden_act": "gelu",
                "odd_field": 1, "sliding_window": 7})");
  ASSERT_FALSE(parsed);
  const std::string text = text_of(parsed.error());
  for (const char* name : {"hidden_size",
                           "hidden_act",
                           "odd_field",
                           "sliding_window",
                           "vocab_size",
                           "num_hidden_layers",
                           "num_attention_heads",
                           "intermediate_size"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name << "\n" << text;
  }
}

TEST(ConfigJson, OtherArchitecturesAreRefusedByName) {
  for (const char* text : {R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"})",
                           R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen3"})",
                           R"({"model_type": "qwen2_moe"})",
                           R"({"architectures": ["A", "B"]})",
                           R"({"architectures": "GPT2LMHeadModel"})",
                           R"({})"}) {
    const Result<ParsedConfigJson> parsed = parse(text, {});
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ExitCode::kUsage);
  }
  const Result<ParsedConfigJson> gemma = parse(R"({"architectures": ["GemmaForCausalLM"]})");
  EXPECT_NE(text_of(gemma.error()).find("GemmaForCausalLM"), std::string::npos);
  std::string other_head = kGpt2;
  other_head.replace(other_head.find("GPT2LMHeadModel"), 15, "GPT2DoubleHeads");
  EXPECT_FALSE(parse(other_head));
  EXPECT_TRUE(parse(other_head, {"architectures"}));
}

TEST(ConfigJson, UsedFieldsCannotBeIgnoredAndUnknownIgnoresAreNoted) {
  EXPECT_FALSE(parse(kGpt2, {"n_embd"}));
  const Result<ParsedConfigJson> parsed = parse(kGpt2, {"no_such_field"});
  ASSERT_TRUE(parsed);
  EXPECT_NE(parsed->notes.back().find("no_such_field"), std::string::npos);
}

TEST(ConfigJson, TextThatIsNoJsonObjectIsCorrupt) {
  for (const char* text : {"", "{", "[]", "7", R"({"a": 1, "a": 2})"}) {
    const Result<ParsedConfigJson> parsed = parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ExitCode::kCorrupt) << text;
  }
}

TEST(ConfigJson, WhatIsWrittenReadsBackEqual) {
  for (const char* text : {kGpt2, kLlama, kMistral, kQwen2, kQwen3}) {
    Architecture architecture = parse(text)->architecture;
    architecture.ffn += 5;
    architecture.norm_eps = 1.0 / 3.0;
    architecture.tokenizer = "bytes";
    architecture.tied = !architecture.tied;
    const std::string written = config_to_json(architecture, Dtype::kBf16).dump(2);
    const Result<ParsedConfigJson> again = parse(written);
    ASSERT_TRUE(again) << text_of(again.error());
    EXPECT_EQ(again->architecture, architecture) << written;
    EXPECT_NE(written.find("bfloat16"), std::string::npos);
  }
}

}  // namespace
}  // namespace headrace::model
