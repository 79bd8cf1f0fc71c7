// The table of config.json's fields (config_json.hpp).
#include "model/config_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "model/config_json_rope.hpp"
#include "model/problems.hpp"

namespace headrace::model {

namespace {

enum class Use : std::uint8_t {
  kUsed,      // read into the Architecture
  kHarmless,  // no effect on what is trained
  kNumbers,   // changes the numbers unless neutral
  kDropout,   // trained as 0
};

// Whose config.json has the field.
enum Owners : std::uint8_t {
  kGpt2 = 1,
  kLlama = 2,
  kMistral = 4,
  kQwen2 = 8,
  kQwen3 = 16,
  kQwens = kQwen2 | kQwen3,
  kLlamas = kLlama | kMistral | kQwens,  // Llama's family
  kAll = kGpt2 | kLlamas,
  kLlamaOrQwen3 = kLlama | kQwen3,
  kLlamaOrMistral = kLlama | kMistral,
  kMistralOrQwens = kMistral | kQwens,
  kMistralOrQwen2 = kMistral | kQwen2,
  kAllButQwens = kGpt2 | kLlamaOrMistral
};

// What a config.json may name, and what it is here.
struct KnownModel {
  std::string_view architecture;
  std::string_view type;
  Owners owner;
  Family family;
  Dialect dialect;
};

constexpr std::array kKnownModels{
    KnownModel{"GPT2LMHeadModel", "gpt2", kGpt2, Family::kGpt2, Dialect::kLlama},
    KnownModel{"LlamaForCausalLM", "llama", kLlama, Family::kLlama, Dialect::kLlama},
    KnownModel{"MistralForCausalLM", "mistral", kMistral, Family::kLlama, Dialect::kMistral},
    KnownModel{"Qwen2ForCausalLM", "qwen2", kQwen2, Family::kLlama, Dialect::kQwen2},
    KnownModel{"Qwen3ForCausalLM", "qwen3", kQwen3, Family::kLlama, Dialect::kQwen3},
};

constexpr const char* kKnownText = "it computes GPT-2, Llama, Mistral, Qwen2 and Qwen3 only";

// The values of a kNumbers field that change nothing. null always does.
enum class Neutral : std::uint8_t {
  kNull,
  kFalse,
  kTrue,
  kZero,
  kOne,
  kEmpty,
  kGelu,
  kSilu,
  kFull
};

struct Rule {
  std::string_view field;
  Owners owners = kAll;
  Use use = Use::kHarmless;
  Neutral neutral = Neutral::kNull;
  std::int64_t Architecture::*size = nullptr;  // kUsed: where a plain value goes
  double Architecture::*number = nullptr;
  bool Architecture::*flag = nullptr;
  std::vector<std::int64_t> Architecture::*tokens = nullptr;
};

constexpr Rule used(std::string_view field, Owners owners) {
  return {.field = field, .owners = owners, .use = Use::kUsed};
}

constexpr Rule size_field(std::string_view field,
                          Owners owners,
                          std::int64_t Architecture::*target) {
  Rule rule = used(field, owners);
  rule.size = target;
  return rule;
}

constexpr Rule number_field(std::string_view field, Owners owners, double Architecture::*target) {
  Rule rule = used(field, owners);
  rule.number = target;
  return rule;
}

constexpr Rule flag_field(std::string_view field, Owners owners, bool Architecture::*target) {
  Rule rule = used(field, owners);
  rule.flag = target;
  return rule;
}

constexpr Rule token_field(std::string_view field,
                           std::vector<std::int64_t> Architecture::*target) {
  Rule rule = used(field, kAll);
  rule.tokens = target;
  return rule;
}

constexpr Rule numbers(std::string_view field, Owners owners, Neutral neutral) {
  return {.field = field, .owners = owners, .use = Use::kNumbers, .neutral = neutral};
}

constexpr Rule dropout(std::string_view field, Owners owners) {
  return {.field = field, .owners = owners, .use = Use::kDropout};
}

constexpr std::array kRules{
    // Used. Those without a place are read by name below.
    used("architectures", kAll),
    used("model_type", kAll),
    used("headrace", kAll),
    used("rope_parameters", kLlamas),
    used("rope_scaling", kLlamas),  // its older name
    used("pad_token_id", kLlamas),
    used("sliding_window", kMistralOrQwens),
    used("use_sliding_window", kQwens),
    used("max_window_layers", kQwens),
    used("layer_types", kQwens),
    size_field("vocab_size", kAll, &Architecture::vocab),
    size_field("n_layer", kGpt2, &Architecture::layers),
    size_field("n_embd", kGpt2, &Architecture::hidden),
    size_field("n_head", kGpt2, &Architecture::heads),
    size_field("n_inner", kGpt2, &Architecture::ffn),
    size_field("n_positions", kGpt2, &Architecture::max_seq_len),
    number_field("layer_norm_epsilon", kGpt2, &Architecture::norm_eps),
    size_field("num_hidden_layers", kLlamas, &Architecture::layers),
    size_field("hidden_size", kLlamas, &Architecture::hidden),
    size_field("num_attention_heads", kLlamas, &Architecture::heads),
    size_field("num_key_value_heads", kLlamas, &Architecture::kv_heads),
    size_field("head_dim", kLlamas, &Architecture::head_dim),
    size_field("intermediate_size", kLlamas, &Architecture::ffn),
    size_field("max_position_embeddings", kLlamas, &Architecture::max_seq_len),
    number_field("rms_norm_eps", kLlamas, &Architecture::norm_eps),
    number_field("rope_theta", kLlamas, &Architecture::rope_theta),
    number_field("initializer_range", kAll, &Architecture::initializer_range),
    flag_field("tie_word_embeddings", kAll, &Architecture::tied),
    flag_field("attention_bias", kLlamaOrQwen3, &Architecture::qkv_bias),  // and output_bias
    flag_field("mlp_bias", kLlama, &Architecture::mlp_bias),
    token_field("bos_token_id", &Architecture::bos_tokens),
    token_field("eos_token_id", &Architecture::eos_tokens),
    // Trained as 0.
    dropout("resid_pdrop", kGpt2),
    dropout("embd_pdrop", kGpt2),
    dropout("attn_pdrop", kGpt2),
    dropout("attention_dropout", kLlamas),
    dropout("hidden_dropout", kLlamas),
    dropout("mlp_dropout", kLlamas),
    // They change the numbers.
    numbers("activation_function", kGpt2, Neutral::kGelu),
    numbers("add_cross_attention", kAll, Neutral::kFalse),
    numbers("scale_attn_weights", kGpt2, Neutral::kTrue),
    numbers("scale_attn_by_inverse_layer_idx", kGpt2, Neutral::kFalse),
    numbers("reorder_and_upcast_attn", kGpt2, Neutral::kFalse),
    numbers("hidden_act", kLlamas, Neutral::kSilu),
    numbers("rope_interleaved", kLlamas, Neutral::kFalse),
    numbers("partial_rotary_factor", kLlamas, Neutral::kOne),
    numbers("pretraining_tp", kLlamas, Neutral::kOne),
    numbers("attention_bias", kMistralOrQwen2, Neutral::kFalse),
    numbers("sliding_window", kLlama, Neutral::kNull),
    numbers("use_sliding_window", kLlamaOrMistral, Neutral::kFalse),
    numbers("use_mrope", kQwens, Neutral::kFalse),
    numbers("layer_types", kLlamaOrMistral, Neutral::kFull),
    numbers("quantization_config", kAll, Neutral::kNull),
    numbers("pruned_heads", kAll, Neutral::kEmpty),
    numbers("chunk_size_feed_forward", kAll, Neutral::kZero),
    numbers("is_encoder_decoder", kAll, Neutral::kFalse),
    numbers("cross_attention_hidden_size", kAll, Neutral::kNull),
    numbers("tie_encoder_decoder", kAll, Neutral::kFalse),
    // Harmless: how the model was saved, how text is generated, other tasks' heads.
    Rule{"n_ctx"},
    Rule{"output_past"},
    Rule{"max_sequence_length"},
    Rule{"unsloth_version"},
    Rule{"unsloth_fixed"},
    Rule{"torch_dtype"},
    Rule{"dtype"},
    Rule{"transformers_version"},
    Rule{"_name_or_path"},
    Rule{"name_or_path"},
    Rule{"_commit_hash"},
    Rule{"attn_implementation"},
    Rule{"_attn_implementation"},
    Rule{"_attn_implementation_autoset"},
    Rule{"auto_map"},
    Rule{"gradient_checkpointing"},
    Rule{"is_decoder"},
    Rule{"is_llama_config"},
    Rule{"max_window_layers", kAllButQwens},
    Rule{"use_cache"},
    Rule{"torchscript"},
    Rule{"use_bfloat16"},
    Rule{"tf_legacy_loss"},
    Rule{"output_attentions"},
    Rule{"output_hidden_states"},
    Rule{"output_scores"},
    Rule{"return_dict"},
    Rule{"return_dict_in_generate"},
    Rule{"num_logits_to_keep"},
    Rule{"logits_to_keep"},
    Rule{"summary_activation"},
    Rule{"summary_first_dropout"},
    Rule{"summary_proj_to_labels"},
    Rule{"summary_type"},
    Rule{"summary_use_proj"},
    Rule{"task_specific_params"},
    Rule{"finetuning_task"},
    Rule{"problem_type"},
    Rule{"id2label"},
    Rule{"label2id"},
    Rule{"num_labels"},
    Rule{"prefix"},
    Rule{"n_special"},
    Rule{"predict_special_tokens"},
    Rule{"_num_labels"},
    Rule{"transformers.js_config"},
    Rule{"tokenizer_class"},
    Rule{.field = "pad_token_id", .owners = kGpt2},
    Rule{"sep_token_id"},
    Rule{"unk_token_id"},
    Rule{"decoder_start_token_id"},
    Rule{"forced_bos_token_id"},
    Rule{"forced_eos_token_id"},
    Rule{"max_length"},
    Rule{"min_length"},
    Rule{"max_new_tokens"},
    Rule{"do_sample"},
    Rule{"early_stopping"},
    Rule{"num_beams"},
    Rule{"num_beam_groups"},
    Rule{"diversity_penalty"},
    Rule{"temperature"},
    Rule{"top_k"},
    Rule{"top_p"},
    Rule{"typical_p"},
    Rule{"repetition_penalty"},
    Rule{"length_penalty"},
    Rule{"no_repeat_ngram_size"},
    Rule{"encoder_no_repeat_ngram_size"},
    Rule{"bad_words_ids"},
    Rule{"begin_suppress_tokens"},
    Rule{"suppress_tokens"},
    Rule{"num_return_sequences"},
    Rule{"remove_invalid_values"},
    Rule{"exponential_decay_length_penalty"},
};

const Rule* find_rule(std::string_view field, Owners owner) {
  const auto* found = std::find_if(kRules.begin(), kRules.end(), [&](const Rule& rule) {
    return rule.field == field && (rule.owners & owner) != 0;
  });
  return found == kRules.end() ? nullptr : found;
}

std::string_view neutral_text(Neutral neutral) {
  switch (neutral) {
    case Neutral::kNull:
      return "null";
    case Neutral::kFalse:
      return "false";
    case Neutral::kTrue:
      return "true";
    case Neutral::kZero:
      return "0";
    case Neutral::kOne:
      return "1";
    case Neutral::kEmpty:
      return "nothing";
    case Neutral::kGelu:
      return "\"gelu_new\"";
    case Neutral::kSilu:
      return "\"silu\"";
    case Neutral::kFull:
      return "\"full_attention\" everywhere";
  }
  return "";
}

bool is_text_of(const Json& value, std::initializer_list<std::string_view> texts) {
  const std::string* text = value.as_string();
  return text != nullptr && std::find(texts.begin(), texts.end(), *text) != texts.end();
}

bool is_neutral(const Json& value, Neutral neutral) {
  if (value.is_null()) {
    return true;
  }
  switch (neutral) {
    case Neutral::kNull:
      return false;
    case Neutral::kFalse:
      return value.as_bool() == false;
    case Neutral::kTrue:
      return value.as_bool() == true;
    case Neutral::kZero:
      return value.as_double() == 0.0;
    case Neutral::kOne:
      return value.as_double() == 1.0;
    case Neutral::kEmpty:
      return (value.as_object() != nullptr && value.as_object()->empty()) ||
             (value.as_array() != nullptr && value.as_array()->empty());
    case Neutral::kGelu:
      return is_text_of(value, {"gelu_new", "gelu_pytorch_tanh"});
    case Neutral::kSilu:
      return is_text_of(value, {"silu", "swish"});
    case Neutral::kFull: {
      const Json::Array* list = value.as_array();
      return list != nullptr && std::all_of(list->begin(), list->end(), [](const Json& entry) {
               return is_text_of(entry, {"full_attention"});
             });
    }
  }
  return false;
}

// One parse: the document, what it gave so far, and what was wrong.
class Parser {
 public:
  Parser(const Json& root, const ConfigJsonSource& source) : root_(root), source_(source) {}

  Result<ParsedConfigJson> parse() {
    if (const KnownModel* model = find_model()) {
      start_from_usual_values(*model);
      for (const Json::Member& member : *root_.as_object()) {
        read_member(member);
      }
      finish();
      note_what_was_ignored();
    }
    HEADRACE_TRY(std::move(problems_).status());
    HEADRACE_TRY(validate(result_.architecture, "'" + source_.path + "'"));
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool ignored(std::string_view field) const {
    return std::find(source_.ignore.begin(), source_.ignore.end(), field) != source_.ignore.end();
  }

  void complain(const std::string& text, std::string why = "", std::string hint = "") {
    if (why.empty() && hint.empty()) {
      hint = "correct it, or save the model again with transformers";
    }
    problems_.add(usage_error(fmt::format("'{}': {}", source_.path, text))
                      .with_why(std::move(why))
                      .with_hint(std::move(hint)));
  }

  // model_type, where it is given, names the same model.
  bool agrees(const Json* model_type, const KnownModel& model) {
    if (model_type == nullptr || model_type->is_null() || is_text_of(*model_type, {model.type})) {
      return true;
    }
    complain(fmt::format("model_type {} contradicts architectures {}",
                         model_type->dump(),
                         root_.find("architectures")->dump()),
             "they name different models",
             "correct the one that is wrong");
    return false;
  }

  // By architectures, or by model_type where that is absent or ignored. Null: complained of.
  const KnownModel* find_model() {
    const Json* model_type = root_.find("model_type");
    const Json* list = root_.find("architectures");
    const KnownModel* typed = nullptr;
    for (const KnownModel& model : kKnownModels) {
      typed = model_type != nullptr && is_text_of(*model_type, {model.type}) ? &model : typed;
    }
    if (list != nullptr && !list->is_null() && !ignored("architectures")) {
      const Json::Array* names = list->as_array();
      for (const KnownModel& model : kKnownModels) {
        if (names != nullptr && names->size() == 1 &&
            is_text_of(names->front(), {model.architecture})) {
          return agrees(model_type, model) ? &model : nullptr;
        }
      }
      complain(
          fmt::format("architecture {} is unknown to this version", list->dump()),
          kKnownText,
          typed != nullptr ? "model.ignore = [\"architectures\"] goes by model_type instead" : "");
      return nullptr;
    }
    if (typed == nullptr) {
      complain(model_type == nullptr
                   ? std::string("it has neither architectures nor model_type")
                   : fmt::format("model_type {} is unknown to this version", model_type->dump()),
               kKnownText);
    }
    return typed;
  }

  // The defaults of transformers' config classes. 0: must be given, or follows from others.
  void start_from_usual_values(const KnownModel& model) {
    Architecture& a = result_.architecture;
    owner_ = model.owner;
    a.family = model.family;
    a.dialect = model.dialect;
    a.tied = a.family == Family::kGpt2;
    a.norm_eps = a.family == Family::kGpt2 ? 1e-5 : 1e-6;
    switch (owner_) {
      case kGpt2:
        a.max_seq_len = 1024;
        break;
      case kMistral:
        a.max_seq_len = 131072;
        a.kv_heads = 8;
        break;
      case kQwen2:
        a.max_seq_len = 32768;
        a.kv_heads = 32;
        a.qkv_bias = true;
        break;
      case kQwen3:
        a.max_seq_len = 32768;
        a.kv_heads = 32;
        a.head_dim = 128;
        a.qk_norm = true;
        break;
      default:
        a.max_seq_len = 2048;
    }
  }

  void read_member(const Json::Member& member) {
    const Rule* rule = find_rule(member.key, owner_);
    if (ignored(member.key)) {
      const bool is_used = rule != nullptr && rule->use == Use::kUsed;
      const bool is_rope = member.key == "rope_parameters" || member.key == "rope_scaling";
      if (is_used && member.key != "architectures" && !is_rope) {
        complain(fmt::format("field '{}' cannot be ignored", member.key),
                 "the model is built from it",
                 "remove it from model.ignore");
        return;
      }
      passed_.push_back(member.key);
      if (rule == nullptr || !is_rope) {
        return;
      }
    }
    if (rule == nullptr) {
      complain(fmt::format("field '{}' is unknown", member.key),
               "it could change the numbers",
               fmt::format("if it does not matter: model.ignore = [\"{}\"]", member.key));
      return;
    }
    switch (rule->use) {
      case Use::kUsed:
        read_used(*rule, member.value);
        break;
      case Use::kHarmless:
        harmless_.push_back(member.key);
        break;
      case Use::kNumbers:
        read_numbers(*rule, member.value);
        break;
      case Use::kDropout:
        read_dropout(*rule, member.value);
        break;
    }
  }

  void read_numbers(const Rule& rule, const Json& value) {
    if (!is_neutral(value, rule.neutral)) {
      complain(fmt::format("field '{}' = {} changes the numbers", rule.field, value.dump()),
               fmt::format("this version computes with {} only", neutral_text(rule.neutral)),
               fmt::format("to train as if it were so: model.ignore = [\"{}\"]", rule.field));
    }
  }

  void read_dropout(const Rule& rule, const Json& value) {
    const std::optional<double> rate = value.as_double();
    if (!rate && !value.is_null()) {
      complain(fmt::format("field '{}' = {} is not a number", rule.field, value.dump()));
    } else if (rate.value_or(0.0) != 0.0) {
      result_.notes.push_back(fmt::format("'{}': {} = {} is trained as 0: there is no dropout here",
                                          source_.path,
                                          rule.field,
                                          value.dump()));
    }
  }

  void read_used(const Rule& rule, const Json& value) {
    Architecture& a = result_.architecture;
    if (rule.field == "headrace") {
      read_own(value);
    } else if (rule.field == "rope_parameters" || rule.field == "rope_scaling") {
      read_rope(rule.field, value);
    } else if (rule.tokens != nullptr) {
      a.*rule.tokens = read_tokens(rule, value);
    } else if (rule.field == "sliding_window") {
      read_window(rule, value);
    } else if (value.is_null()) {
      if (rule.field == "num_key_value_heads") {
        a.kv_heads = 0;  // as many as heads
      }                  // else: the usual value
    } else if (rule.size != nullptr) {
      take(rule, value, value.as_int(), a.*rule.size, "a whole number");
    } else if (rule.number != nullptr) {
      take(rule, value, value.as_double(), a.*rule.number, "a number");
    } else if (rule.flag != nullptr) {
      take(rule, value, value.as_bool(), a.*rule.flag, "true or false");
    } else if (rule.field == "use_sliding_window") {
      take(rule, value, value.as_bool(), windows_.are_used, "true or false");
    } else if (rule.field == "max_window_layers") {
      take(rule, value, value.as_int(), windows_.full_layers, "a whole number");
    } else if (rule.field == "layer_types") {
      read_layer_types(value);
    } else if (rule.field == "pad_token_id") {
      note_padding(value);
    }
  }

  void note_padding(const Json& value) {
    if (value.as_int().value_or(-1) >= 0) {
      result_.notes.push_back(fmt::format(
          "'{}': pad_token_id = {}: transformers gives its row no gradient where it is an input, "
          "here it is trained like any other; evaluation and generation are the same",
          source_.path,
          value.dump()));
    }
  }

  void read_window(const Rule& rule, const Json& value) {
    windows_.keys = 0;  // null: none
    if (value.is_null()) {
      return;
    }
    take(rule, value, value.as_int(), windows_.keys, "a whole number");
    if (value.as_int() && windows_.keys < 1) {
      complain(fmt::format("field 'sliding_window' = {}: at least 1 is due", value.dump()));
    }
  }

  void read_layer_types(const Json& value) {
    windows_.slides.emplace();
    const Json::Array* list = value.as_array();
    if (list == nullptr) {
      complain(fmt::format("field 'layer_types' = {} is not a list", value.dump()));
      return;
    }
    for (const Json& entry : *list) {
      windows_.slides->push_back(is_text_of(entry, {"sliding_attention"}));
      if (!windows_.slides->back() && !is_text_of(entry, {"full_attention"})) {
        complain(fmt::format("field 'layer_types' holds {}", entry.dump()),
                 "this version has \"full_attention\" and \"sliding_attention\"");
      }
    }
  }

  // Mistral: every layer has the window. Qwen: those that layer_types names, else all from
  // max_window_layers on; none unless use_sliding_window.
  void finish_windows() {
    Architecture& a = result_.architecture;
    const bool qwen = (owner_ & kQwens) != 0;
    if (owner_ == kMistral || (qwen && windows_.are_used)) {
      a.sliding_window = windows_.keys;
    }
    if (!qwen) {
      return;
    }
    std::vector<bool> slides = slides_of_layers();
    const auto slide = std::count(slides.begin(), slides.end(), true);
    if (slide > 0 && a.sliding_window == 0) {
      complain("layer_types has \"sliding_attention\", and there is no window",
               "use_sliding_window is false, or sliding_window null",
               "correct the one that is wrong");
    }
    a.sliding_window = slide > 0 ? a.sliding_window : 0;
    if (slide > 0 && slide < static_cast<std::ptrdiff_t>(slides.size())) {
      a.slides = std::move(slides);
    }  // else: none or all, which needs no list
  }

  std::vector<bool> slides_of_layers() {
    const Architecture& a = result_.architecture;
    std::vector<bool> slides;
    if (windows_.slides) {
      slides = *windows_.slides;
      if (static_cast<std::int64_t>(slides.size()) != a.layers) {
        complain(fmt::format(
            "field 'layer_types' has {} entries for {} layers", slides.size(), a.layers));
      }
      return slides;
    }
    for (std::int64_t layer = 0; layer < std::min(a.layers, kLayersMax); ++layer) {
      slides.push_back(a.sliding_window > 0 && layer >= windows_.full_layers);
    }
    return slides;
  }

  template <class T>
  void take(const Rule& rule,
            const Json& value,
            const std::optional<T>& found,
            T& target,
            std::string_view noun) {
    if (found) {
      target = *found;
    } else {
      complain(fmt::format("field '{}' = {} is not {}", rule.field, value.dump(), noun));
    }
  }

  // A number, a list of numbers, or null.
  std::vector<std::int64_t> read_tokens(const Rule& rule, const Json& value) {
    std::vector<std::int64_t> tokens;
    const Json::Array single = value.is_null() ? Json::Array() : Json::Array{value};
    for (const Json& entry : value.as_array() != nullptr ? *value.as_array() : single) {
      if (const std::optional<std::int64_t> token = entry.as_int()) {
        tokens.push_back(*token);
      } else {
        complain(fmt::format("field '{}' = {} is not a token", rule.field, value.dump()));
      }
    }
    return tokens;
  }

  // Whoever ignores one of its names means the scaling.
  [[nodiscard]] bool rope_is_ignored() const {
    return ignored("rope_parameters") || ignored("rope_scaling");
  }

  // {"rope_type": "default", "rope_theta": 10000.0}; older files have "type".
  void read_rope(std::string_view field, const Json& value) {
    if (value.is_null()) {
      return;
    }
    if (value.as_object() == nullptr) {
      complain(fmt::format("field '{}' = {} is not an object", field, value.dump()));
      return;
    }
    RopeFields rope = read_rope_fields(field, value, rope_is_ignored());
    for (RopeProblem& problem : rope.problems) {
      complain(problem.what,
               std::move(problem.why),
               fmt::format("to train without any scaling: model.ignore = [\"{}\"]", field));
    }
    if (rope.theta && rope_theta_ && *rope.theta != *rope_theta_) {
      complain("rope_parameters.rope_theta and rope_scaling.rope_theta contradict each other",
               "they are two names of one thing",
               "correct the one that is wrong");
    }
    rope_theta_ = rope.theta ? rope.theta : rope_theta_;
    if (rope_is_ignored()) {
      return;
    }
    if (rope_ && !(rope_->scaling == rope.scaling)) {
      complain("rope_parameters and rope_scaling contradict each other",
               "they are two names of one thing",
               "correct the one that is wrong");
    }
    rope_ = std::move(rope);
  }

  // The object's own theta counts before that beside it.
  void finish_rope() {
    Architecture& a = result_.architecture;
    a.rope_theta = rope_theta_.value_or(a.rope_theta);
    if (!rope_) {
      return;
    }
    a.rope_scaling = rope_->scaling;
    if (rope_->original_is_missing) {
      a.rope_scaling.original_max_position_embeddings = a.max_seq_len;
    }
    if (rope_->factor_is_null) {
      a.rope_scaling.factor = static_cast<double>(a.max_seq_len) /
                              static_cast<double>(a.rope_scaling.original_max_position_embeddings);
    }
  }

  void read_own(const Json& value) {
    if (value.as_object() == nullptr) {
      complain("field 'headrace' is not an object");
      return;
    }
    for (const auto& [key, entry] : *value.as_object()) {
      if (key == "tokenizer" && entry.as_string() != nullptr) {
        result_.architecture.tokenizer = *entry.as_string();
      } else {
        complain(fmt::format("field 'headrace.{}' = {} is unknown", key, entry.dump()),
                 "it was written by another version",
                 "");
      }
    }
  }

  // What follows from other fields.
  void finish() {
    Architecture& a = result_.architecture;
    const auto need = [&](std::string_view field, std::int64_t value) {
      const Json* given = root_.find(field);
      if (value == 0 && given == nullptr) {
        complain(fmt::format("field '{}' is missing", field));
      } else if (value == 0 && (given->is_null() || given->as_int() == 0)) {
        complain(fmt::format("field '{}' = {}: at least 1 is due", field, given->dump()));
      }  // else: what was said of it
    };
    const bool gpt2 = a.family == Family::kGpt2;
    need("vocab_size", a.vocab);
    need(gpt2 ? "n_layer" : "num_hidden_layers", a.layers);
    need(gpt2 ? "n_embd" : "hidden_size", a.hidden);
    need(gpt2 ? "n_head" : "num_attention_heads", a.heads);
    if (!gpt2) {
      need("intermediate_size", a.ffn);
    } else if (a.ffn == 0 && a.hidden <= (std::int64_t{1} << 40)) {
      a.ffn = 4 * a.hidden;
    }
    finish_rope();
    a.output_bias = owner_ != kQwen2 && a.qkv_bias;
    finish_windows();
    a.kv_heads = a.kv_heads == 0 ? a.heads : a.kv_heads;
    a.head_dim = a.head_dim == 0 && a.heads != 0 ? a.hidden / a.heads : a.head_dim;
  }

  void note_what_was_ignored() {
    if (!harmless_.empty()) {
      result_.notes.push_back(
          fmt::format("'{}': no effect on training: {}", source_.path, fmt::join(harmless_, ", ")));
    }
    if (!passed_.empty()) {
      result_.notes.push_back(
          fmt::format("'{}': ignored as asked: {}", source_.path, fmt::join(passed_, ", ")));
    }
    for (const std::string& field : source_.ignore) {
      if (root_.find(field) == nullptr) {
        result_.notes.push_back(
            fmt::format("model.ignore: '{}' is not in '{}'", field, source_.path));
      }
    }
  }

  const Json& root_;
  const ConfigJsonSource& source_;
  Owners owner_ = kAll;
  ParsedConfigJson result_;

  struct {
    std::int64_t keys = 4096;
    bool are_used = false;
    std::int64_t full_layers = 28;
    std::optional<std::vector<bool>> slides;
  } windows_;  // as transformers has them where a file is silent

  std::optional<RopeFields> rope_;
  std::optional<double> rope_theta_;  // of such an object
  Problems problems_;
  std::vector<std::string> harmless_;
  std::vector<std::string> passed_;
};

}  // namespace

Result<ParsedConfigJson> parse_config_json(std::string_view text, const ConfigJsonSource& source) {
  Result<Json> root = parse_json(text);
  if (!root || root->as_object() == nullptr) {
    Error error = corrupt_error(fmt::format("'{}' is not a JSON object", source.path));
    error.why = root ? "" : (root.error().why.empty() ? root.error().what : root.error().why);
    return error;
  }
  return Parser(*root, source).parse();
}

}  // namespace headrace::model
