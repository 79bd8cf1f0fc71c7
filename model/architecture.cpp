// Presets, the families' usual values, and the checks of an architecture (architecture.hpp).
#include "model/architecture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"
#include "model/problems.hpp"

namespace headrace::model {

namespace {

// Bounds that keep every product of sizes far inside 64 bits.
constexpr std::int64_t kSizeMax = std::int64_t{1} << 30;

// Llama's feed-forward width: two thirds of 4 * hidden, rounded up to a multiple of this.
constexpr std::int64_t kLlamaFfnMultiple = 256;

struct Preset {
  const char* name;
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocab, max_seq_len;
  bool tied = false;
  double rope_theta = 10000.0;
  double llama3_factor = 0.0;  // of RopeType::kLlama3; 0: positions are not scaled
};

constexpr std::array kGpt2Presets{
    Preset{"gpt2-124m", 12, 768, 12, 12, 3072, 50257, 1024, true},
    Preset{"gpt2-355m", 24, 1024, 16, 16, 4096, 50257, 1024, true},
    Preset{"gpt2-774m", 36, 1280, 20, 20, 5120, 50257, 1024, true},
    Preset{"gpt2-1.5b", 48, 1600, 25, 25, 6400, 50257, 1024, true},
};

constexpr std::array kLlamaPresets{
    Preset{"smollm2-135m", 30, 576, 9, 3, 1536, 49152, 8192, true, 100000.0},
    Preset{"smollm2-360m", 32, 960, 15, 5, 2560, 49152, 8192, true, 100000.0},
    Preset{"tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, 2048},
    Preset{"llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, true, 500000.0, 32.0},
    Preset{"smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152, 8192, true, 130000.0},
    Preset{"llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, 131072, true, 500000.0, 32.0},
    Preset{"llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096},
    Preset{"llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, false, 500000.0},
    Preset{"llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072, false, 500000.0, 8.0},
    Preset{"solar-10.7b", 48, 4096, 32, 8, 14336, 32000, 4096},
    Preset{"llama-2-13b", 40, 5120, 40, 40, 13824, 32000, 4096},
    Preset{"llama-2-70b", 80, 8192, 64, 8, 28672, 32000, 4096},
    Preset{"llama-3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, false, 500000.0},
    Preset{"llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256, 131072, false, 500000.0, 8.0},
};

constexpr std::array kMistralPresets{
    Preset{"mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32768, false, 1e6},
};

constexpr std::array kQwen2Presets{
    Preset{"qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 32768, true, 1e6},
    Preset{"qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, true, 1e6},
    Preset{"qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 131072, false, 1e6},
};

constexpr std::array kQwen3Presets{
    Preset{"qwen3-0.6b", 28, 1024, 16, 8, 3072, 151936, 40960, true, 1e6},
    Preset{"qwen3-1.7b", 28, 2048, 16, 8, 6144, 151936, 40960, true, 1e6},
    Preset{"qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 40960, false, 1e6},
};

constexpr std::int64_t kQwen3HeadDim = 128;
constexpr std::int64_t kLlama3OriginalPositions = 8192;

struct PresetFamily {
  Family family;
  Dialect dialect;
  double norm_eps;
  std::span<const Preset> presets;
};

constexpr std::array kPresetFamilies{
    PresetFamily{Family::kGpt2, Dialect::kLlama, 1e-5, kGpt2Presets},
    PresetFamily{Family::kLlama, Dialect::kLlama, 1e-5, kLlamaPresets},
    PresetFamily{Family::kLlama, Dialect::kMistral, 1e-5, kMistralPresets},
    PresetFamily{Family::kLlama, Dialect::kQwen2, 1e-6, kQwen2Presets},
    PresetFamily{Family::kLlama, Dialect::kQwen3, 1e-6, kQwen3Presets},
};

Architecture from_preset(const PresetFamily& family, const Preset& preset) {
  Architecture result;
  result.family = family.family;
  result.dialect = family.dialect;
  result.layers = preset.layers;
  result.hidden = preset.hidden;
  result.heads = preset.heads;
  result.kv_heads = preset.kv_heads;
  result.head_dim =
      family.dialect == Dialect::kQwen3 ? kQwen3HeadDim : preset.hidden / preset.heads;
  result.ffn = preset.ffn;
  result.vocab = preset.vocab;
  result.max_seq_len = preset.max_seq_len;
  result.tied = preset.tied;
  result.qkv_bias = family.dialect == Dialect::kQwen2;
  result.qk_norm = family.dialect == Dialect::kQwen3;
  result.norm_eps = family.norm_eps;
  result.rope_theta = preset.rope_theta;
  if (preset.llama3_factor > 0.0) {
    result.rope_scaling.type = RopeType::kLlama3;
    result.rope_scaling.factor = preset.llama3_factor;
    result.rope_scaling.original_max_position_embeddings = kLlama3OriginalPositions;
  }
  return result;
}

std::optional<Architecture> find_preset(std::string_view name) {
  for (const PresetFamily& family : kPresetFamilies) {
    for (const Preset& preset : family.presets) {
      if (name == preset.name) {
        return from_preset(family, preset);
      }
    }
  }
  return std::nullopt;
}

Error unknown_preset(const std::string& name) {
  return usage_error(fmt::format("model.preset: '{}' is not known", name))
      .with_hint(fmt::format("one of: {}", fmt::join(preset_names(), ", ")));
}

// What may be changed of a preset: what does not alter the shape of a block.
void apply_preset_overrides(const ModelSection& section, Architecture& result, Problems& problems) {
  const std::array<std::pair<const char*, bool>, 6> structural{{
      {"layers", section.layers.has_value()},
      {"hidden", section.hidden.has_value()},
      {"heads", section.heads.has_value()},
      {"kv_heads", section.kv_heads.has_value()},
      {"head_dim", section.head_dim.has_value()},
      {"ffn", section.ffn.has_value()},
  }};
  for (const auto& [key, given] : structural) {
    if (given) {
      problems.add(usage_error(fmt::format("model.{}: a preset has its own", key))
                       .with_hint(fmt::format("use arch = \"{}\" instead of preset",
                                              family_name(result.family))));
    }
  }
  result.vocab = section.vocab.value_or(result.vocab);
  result.max_seq_len = section.max_seq_len.value_or(result.max_seq_len);
  result.tied = section.tied.value_or(result.tied);
  result.norm_eps = section.norm_eps.value_or(result.norm_eps);
}

std::int64_t usual_ffn(Family family, std::int64_t hidden) {
  if (family == Family::kGpt2) {
    return 4 * hidden;
  }
  const std::int64_t two_thirds = 8 * hidden / 3;
  return (two_thirds + kLlamaFfnMultiple - 1) / kLlamaFfnMultiple * kLlamaFfnMultiple;
}

void refuse_of_other_family(const ModelSection& section, Problems& problems) {
  const std::array<std::pair<const char*, bool>, 3> llama_only{{
      {"kv_heads", section.kv_heads.has_value()},
      {"head_dim", section.head_dim.has_value()},
      {"rope_theta", section.rope_theta.has_value()},
  }};
  for (const auto& [key, given] : llama_only) {
    if (given) {
      problems.add(usage_error(fmt::format("model.{}: GPT-2 has no such setting", key))
                       .with_hint("use arch = \"llama\", or remove the key"));
    }
  }
}

Architecture from_sizes(const ModelSection& section,
                        Family family,
                        std::optional<std::int64_t> tokenizer_vocab,
                        Problems& problems) {
  Architecture result;
  result.family = family;
  const auto required = [&](const char* key, const std::optional<std::int64_t>& value) {
    if (!value) {
      problems.add(usage_error(fmt::format("model.{}: needed with model.arch", key)));
    }
    return value.value_or(1);
  };
  result.layers = required("layers", section.layers);
  result.hidden = required("hidden", section.hidden);
  result.heads = required("heads", section.heads);
  const std::int64_t heads = std::max<std::int64_t>(result.heads, 1);
  result.kv_heads = section.kv_heads.value_or(result.heads);
  result.head_dim = section.head_dim.value_or(result.hidden / heads);
  result.ffn = section.ffn.value_or(usual_ffn(family, std::min(result.hidden, kSizeMax)));
  if (!section.vocab && !tokenizer_vocab) {
    problems.add(usage_error("model.vocab: needed, since there is no tokenizer to take it from")
                     .with_hint("set model.vocab, or data.tokenizer"));
  }
  result.vocab = section.vocab ? *section.vocab : tokenizer_vocab.value_or(1);
  result.max_seq_len = section.max_seq_len.value_or(family == Family::kGpt2 ? 1024 : 2048);
  result.tied = section.tied.value_or(family == Family::kGpt2);
  result.rope_theta = section.rope_theta.value_or(result.rope_theta);
  result.norm_eps = section.norm_eps.value_or(result.norm_eps);
  if (family == Family::kGpt2) {
    refuse_of_other_family(section, problems);
  }
  return result;
}

// The first layer of checks: each size on its own. The second one needs it.
void check_sizes(const Architecture& a, const std::string& source, Problems& problems) {
  const std::array<std::pair<const char*, std::int64_t>, 8> sizes{{
      {"layers", a.layers},
      {"hidden", a.hidden},
      {"heads", a.heads},
      {"kv_heads", a.kv_heads},
      {"head_dim", a.head_dim},
      {"ffn", a.ffn},
      {"vocab", a.vocab},
      {"max_seq_len", a.max_seq_len},
  }};
  for (const auto& [name, value] : sizes) {
    const std::int64_t limit = std::string_view(name) == "layers" ? kLayersMax : kSizeMax;
    if (value < 1 || value > limit) {
      problems.add(usage_error(
          fmt::format("{}: {} = {} is not within 1 .. {}", source, name, value, limit)));
    }
  }
  const std::array<std::pair<const char*, double>, 2> positive{
      {{"norm_eps", a.norm_eps}, {"rope_theta", a.rope_theta}}};
  for (const auto& [name, value] : positive) {
    if (!(value > 0.0 && value < 1e18)) {
      problems.add(usage_error(fmt::format("{}: {} = {} must be positive", source, name, value)));
    }
  }
  if (!(a.initializer_range >= 0.0 && a.initializer_range < 1e3)) {
    problems.add(usage_error(
        fmt::format("{}: initializer_range = {} is not sensible", source, a.initializer_range)));
  }
}

void check_relations(const Architecture& a, const std::string& source, Problems& problems) {
  if (a.family == Family::kGpt2 && a.hidden % a.heads != 0) {
    problems.add(usage_error(
        fmt::format("{}: hidden = {} is not a multiple of heads = {}", source, a.hidden, a.heads)));
  }
  if (a.family == Family::kGpt2 &&
      (a.kv_heads != a.heads || (a.hidden % a.heads == 0 && a.head_dim != a.hidden / a.heads))) {
    problems.add(usage_error(
        source + ": GPT-2 has as many kv_heads as heads, and head_dim = hidden / heads"));
  }
  if (a.heads % a.kv_heads != 0) {
    problems.add(usage_error(fmt::format(
        "{}: heads = {} is not a multiple of kv_heads = {}", source, a.heads, a.kv_heads)));
  }
  if (a.head_dim > kernels::kAttentionHeadDimMax) {
    problems.add(usage_error(fmt::format(
        "{}: head_dim = {} is above {}", source, a.head_dim, kernels::kAttentionHeadDimMax)));
  }
  if (a.family == Family::kLlama && a.head_dim % 2 != 0) {
    problems.add(usage_error(
        fmt::format("{}: head_dim = {} is odd; rotary positions turn pairs", source, a.head_dim)));
  }
  if (a.sliding_window < 0 || a.sliding_window > kSizeMax) {
    problems.add(usage_error(fmt::format(
        "{}: sliding_window = {} is not within 1 .. {}", source, a.sliding_window, kSizeMax)));
  }
  if (!a.slides.empty() && static_cast<std::int64_t>(a.slides.size()) != a.layers) {
    problems.add(usage_error(fmt::format(
        "{}: layer_types has {} entries for {} layers", source, a.slides.size(), a.layers)));
  }
  for (const std::string& problem : check_rope(rope_shape(a), a.rope_scaling)) {
    problems.add(usage_error(fmt::format("{}: {}", source, problem)));
  }
}

// What an architecture has that its config.json could not say.
void check_dialect(const Architecture& a, const std::string& source, Problems& problems) {
  const bool none = !a.qkv_bias && !a.output_bias && !a.mlp_bias && !a.qk_norm;
  const bool whole = a.sliding_window == 0;
  const bool both_or_none = a.qkv_bias == a.output_bias;
  bool said = true;
  switch (a.dialect) {
    case Dialect::kLlama:
      said = whole && (a.family == Family::kGpt2 ? none : both_or_none && !a.qk_norm);
      break;
    case Dialect::kMistral:
      said = none && a.slides.empty();
      break;
    case Dialect::kQwen2:
      said = a.qkv_bias && !a.output_bias && !a.mlp_bias && !a.qk_norm;
      break;
    case Dialect::kQwen3:
      said = both_or_none && !a.mlp_bias && a.qk_norm;
      break;
  }
  if (!said || (a.family == Family::kGpt2 && a.dialect != Dialect::kLlama)) {
    problems.add(usage_error(fmt::format(
        "{}: a {} has other biases, norms or windows of attention", source, model_type(a))));
  }
}

}  // namespace

std::string_view family_name(Family family) {
  return family == Family::kGpt2 ? "gpt2" : "llama";
}

std::int64_t window_of(const Architecture& architecture, std::int64_t layer) {
  const bool slides =
      architecture.slides.empty() || architecture.slides[static_cast<std::size_t>(layer)];
  return slides ? architecture.sliding_window : 0;
}

std::string_view model_type(const Architecture& architecture) {
  switch (architecture.dialect) {
    case Dialect::kLlama:
      break;
    case Dialect::kMistral:
      return "mistral";
    case Dialect::kQwen2:
      return "qwen2";
    case Dialect::kQwen3:
      return "qwen3";
  }
  return family_name(architecture.family);
}

Status validate(const Architecture& architecture, const std::string& source) {
  Problems problems;
  check_sizes(architecture, source, problems);
  if (problems.empty()) {
    check_relations(architecture, source, problems);
    check_dialect(architecture, source, problems);
  }
  return std::move(problems).status();
}

Result<Architecture> architecture_from_section(const ModelSection& section,
                                               std::optional<std::int64_t> tokenizer_vocab) {
  HEADRACE_ASSERT(section.path.empty(), "a model with a path is opened, not made from sizes");
  Problems problems;
  Architecture result;
  if (!section.ignore.empty()) {
    problems.add(usage_error("model.ignore: it is about fields of a config.json")
                     .with_hint("remove it, or set model.path"));
  }
  if (!section.preset.empty()) {
    const std::optional<Architecture> preset = find_preset(section.preset);
    if (!preset) {
      problems.add(unknown_preset(section.preset));
      return std::move(problems).status().error();
    }
    result = *preset;
    apply_preset_overrides(section, result, problems);
    if (section.rope_theta) {
      result.rope_theta = *section.rope_theta;
    }
  } else if (section.arch == "gpt2" || section.arch == "llama") {
    const Family family = section.arch == "gpt2" ? Family::kGpt2 : Family::kLlama;
    result = from_sizes(section, family, tokenizer_vocab, problems);
  } else {
    problems.add(section.arch.empty()
                     ? usage_error("model: no model is named")
                           .with_hint("set model.preset, model.path or model.arch")
                     : usage_error(fmt::format("model.arch: '{}' is not known", section.arch))
                           .with_hint("\"gpt2\" or \"llama\""));
    return std::move(problems).status().error();
  }
  if (problems.empty()) {
    problems.add(validate(result, "model"));
  }
  HEADRACE_TRY(std::move(problems).status());
  return result;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const PresetFamily& family : kPresetFamilies) {
    for (const Preset& preset : family.presets) {
      names.emplace_back(preset.name);
    }
  }
  return names;
}

}  // namespace headrace::model
