// The table of config.json's fields (config_json.hpp).
#include "model/config_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "model/problems.hpp"

namespace headrace::model {

namespace {

enum class Use : std::uint8_t {
  kUsed,      // read into the Architecture
  kHarmless,  // no effect on what is trained
  kNumbers,   // changes the numbers unless neutral
  kDropout,   // trained as 0
};

// Which families have the field.
enum Families : std::uint8_t { kOnlyGpt2 = 1, kOnlyLlama = 2, kBoth = 3 };

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
  Families families = kBoth;
  Use use = Use::kHarmless;
  Neutral neutral = Neutral::kNull;
  std::int64_t Architecture::*size = nullptr;  // kUsed: where a plain value goes
  double Architecture::*number = nullptr;
  bool Architecture::*flag = nullptr;
  std::vector<std::int64_t> Architecture::*tokens = nullptr;
};

constexpr Rule used(std::string_view field, Families families) {
  return {.field = field, .families = families, .use = Use::kUsed};
}

constexpr Rule size_field(std::string_view field,
                          Families families,
                          std::int64_t Architecture::*target) {
  Rule rule = used(field, families);
  rule.size = target;
  return rule;
}

constexpr Rule number_field(std::string_view field,
                            Families families,
                            double Architecture::*target) {
  Rule rule = used(field, families);
  rule.number = target;
  return rule;
}

constexpr Rule flag_field(std::string_view field, Families families, bool Architecture::*target) {
  Rule rule = used(field, families);
  rule.flag = target;
  return rule;
}

constexpr Rule token_field(std::string_view field,
                           std::vector<std::int64_t> Architecture::*target) {
  Rule rule = used(field, kBoth);
  rule.tokens = target;
  return rule;
}

constexpr Rule numbers(std::string_view field, Families families, Neutral neutral) {
  return {.field = field, .families = families, .use = Use::kNumbers, .neutral = neutral};
}

constexpr Rule dropout(std::string_view field, Families families) {
  return {.field = field, .families = families, .use = Use::kDropout};
}

constexpr std::array kRules{
    // Used. Those without a place are read by name below.
    used("architectures", kBoth),
    used("model_type", kBoth),
    used("headrace", kBoth),
    used("rope_parameters", kOnlyLlama),
    size_field("vocab_size", kBoth, &Architecture::vocab),
    size_field("n_layer", kOnlyGpt2, &Architecture::layers),
    size_field("n_embd", kOnlyGpt2, &Architecture::hidden),
    size_field("n_head", kOnlyGpt2, &Architecture::heads),
    size_field("n_inner", kOnlyGpt2, &Architecture::ffn),
    size_field("n_positions", kOnlyGpt2, &Architecture::max_seq_len),
    number_field("layer_norm_epsilon", kOnlyGpt2, &Architecture::norm_eps),
    size_field("num_hidden_layers", kOnlyLlama, &Architecture::layers),
    size_field("hidden_size", kOnlyLlama, &Architecture::hidden),
    size_field("num_attention_heads", kOnlyLlama, &Architecture::heads),
    size_field("num_key_value_heads", kOnlyLlama, &Architecture::kv_heads),
    size_field("head_dim", kOnlyLlama, &Architecture::head_dim),
    size_field("intermediate_size", kOnlyLlama, &Architecture::ffn),
    size_field("max_position_embeddings", kOnlyLlama, &Architecture::max_seq_len),
    number_field("rms_norm_eps", kOnlyLlama, &Architecture::norm_eps),
    number_field("rope_theta", kOnlyLlama, &Architecture::rope_theta),
    number_field("initializer_range", kBoth, &Architecture::initializer_range),
    flag_field("tie_word_embeddings", kBoth, &Architecture::tied),
    flag_field("attention_bias", kOnlyLlama, &Architecture::attention_bias),
    flag_field("mlp_bias", kOnlyLlama, &Architecture::mlp_bias),
    token_field("bos_token_id", &Architecture::bos_tokens),
    token_field("eos_token_id", &Architecture::eos_tokens),
    // Trained as 0.
    dropout("resid_pdrop", kOnlyGpt2),
    dropout("embd_pdrop", kOnlyGpt2),
    dropout("attn_pdrop", kOnlyGpt2),
    dropout("attention_dropout", kOnlyLlama),
    dropout("hidden_dropout", kOnlyLlama),
    dropout("mlp_dropout", kOnlyLlama),
    // They change the numbers.
    numbers("activation_function", kOnlyGpt2, Neutral::kGelu),
    numbers("add_cross_attention", kBoth, Neutral::kFalse),
    numbers("scale_attn_weights", kOnlyGpt2, Neutral::kTrue),
    numbers("scale_attn_by_inverse_layer_idx", kOnlyGpt2, Neutral::kFalse),
    numbers("reorder_and_upcast_attn", kOnlyGpt2, Neutral::kFalse),
    numbers("hidden_act", kOnlyLlama, Neutral::kSilu),
    numbers("rope_scaling", kOnlyLlama, Neutral::kNull),  // and rope_type "default": see below
    numbers("rope_interleaved", kOnlyLlama, Neutral::kFalse),
    numbers("partial_rotary_factor", kOnlyLlama, Neutral::kOne),
    numbers("pretraining_tp", kOnlyLlama, Neutral::kOne),
    numbers("sliding_window", kOnlyLlama, Neutral::kNull),
    numbers("use_sliding_window", kOnlyLlama, Neutral::kFalse),
    numbers("layer_types", kOnlyLlama, Neutral::kFull),
    numbers("quantization_config", kBoth, Neutral::kNull),
    numbers("pruned_heads", kBoth, Neutral::kEmpty),
    numbers("chunk_size_feed_forward", kBoth, Neutral::kZero),
    numbers("is_encoder_decoder", kBoth, Neutral::kFalse),
    numbers("cross_attention_hidden_size", kBoth, Neutral::kNull),
    numbers("tie_encoder_decoder", kBoth, Neutral::kFalse),
    // Harmless: how the model was saved, how text is generated, other tasks' heads.
    Rule{"n_ctx"},
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
    Rule{"max_window_layers"},
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
    Rule{"pad_token_id"},
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

constexpr std::array<std::pair<std::string_view, Family>, 2> kArchitectures{
    {{"GPT2LMHeadModel", Family::kGpt2}, {"LlamaForCausalLM", Family::kLlama}}};

const Rule* find_rule(std::string_view field, Family family) {
  const unsigned bit = family == Family::kGpt2 ? kOnlyGpt2 : kOnlyLlama;
  const auto* found = std::find_if(kRules.begin(), kRules.end(), [&](const Rule& rule) {
    return rule.field == field && (rule.families & bit) != 0;
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
    if (const std::optional<Family> family = find_family()) {
      start_from_usual_values(*family);
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

  // model_type, where it is given, names the same family.
  bool agrees(const Json* model_type, Family family) {
    if (model_type == nullptr || model_type->is_null() ||
        is_text_of(*model_type, {family_name(family)})) {
      return true;
    }
    complain(fmt::format("model_type {} contradicts architectures {}",
                         model_type->dump(),
                         root_.find("architectures")->dump()),
             "they name different models",
             "correct the one that is wrong");
    return false;
  }

  // By architectures, or by model_type where that is absent or ignored.
  std::optional<Family> find_family() {
    const Json* model_type = root_.find("model_type");
    const Json* list = root_.find("architectures");
    if (list != nullptr && !list->is_null() && !ignored("architectures")) {
      const Json::Array* names = list->as_array();
      const std::string* name =
          names != nullptr && names->size() == 1 ? names->front().as_string() : nullptr;
      for (const auto& [known, family] : kArchitectures) {
        if (name != nullptr && *name == known) {
          return agrees(model_type, family) ? std::optional(family) : std::nullopt;
        }
      }
      complain(fmt::format("architecture {} is unknown to this version", list->dump()),
               "it computes GPT2LMHeadModel and LlamaForCausalLM only",
               model_type != nullptr && is_text_of(*model_type, {"gpt2", "llama"})
                   ? "model.ignore = [\"architectures\"] goes by model_type instead"
                   : "");
      return std::nullopt;
    }
    if (model_type != nullptr && is_text_of(*model_type, {"gpt2"})) {
      return Family::kGpt2;
    }
    if (model_type != nullptr && is_text_of(*model_type, {"llama"})) {
      return Family::kLlama;
    }
    complain(model_type == nullptr
                 ? std::string("it has neither architectures nor model_type")
                 : fmt::format("model_type {} is unknown to this version", model_type->dump()),
             "it computes gpt2 and llama only");
    return std::nullopt;
  }

  // The defaults of transformers' config classes. 0: must be given, or follows from others.
  void start_from_usual_values(Family family) {
    Architecture& a = result_.architecture;
    a.family = family;
    a.tied = family == Family::kGpt2;
    a.max_seq_len = family == Family::kGpt2 ? 1024 : 2048;
    a.norm_eps = family == Family::kGpt2 ? 1e-5 : 1e-6;
  }

  void read_member(const Json::Member& member) {
    const Rule* rule = find_rule(member.key, result_.architecture.family);
    if (ignored(member.key)) {
      const bool is_used = rule != nullptr && rule->use == Use::kUsed;
      if (is_used && member.key != "architectures" && member.key != "rope_parameters") {
        complain(fmt::format("field '{}' cannot be ignored", member.key),
                 "the model is built from it",
                 "remove it from model.ignore");
        return;
      }
      passed_.push_back(member.key);
      if (member.key != "rope_parameters") {
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
    if (rule.field == "rope_scaling" && value.as_object() != nullptr) {
      read_rope(rule.field, value);
    } else if (!is_neutral(value, rule.neutral)) {
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
    } else if (rule.field == "rope_parameters") {
      read_rope(rule.field, value);
    } else if (rule.tokens != nullptr) {
      a.*rule.tokens = read_tokens(rule, value);
    } else if (value.is_null()) {
      return;  // the usual value
    } else if (rule.size != nullptr) {
      take(rule, value, value.as_int(), a.*rule.size, "a whole number");
    } else if (rule.number != nullptr) {
      take(rule, value, value.as_double(), a.*rule.number, "a number");
    } else if (rule.flag != nullptr) {
      take(rule, value, value.as_bool(), a.*rule.flag, "true or false");
    }
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

  // {"rope_type": "default", "rope_theta": 10000.0}; older files have "type".
  void read_rope(std::string_view field, const Json& value) {
    if (value.is_null()) {
      return;
    }
    if (value.as_object() == nullptr) {
      complain(fmt::format("field '{}' = {} is not an object", field, value.dump()));
      return;
    }
    const bool passed = ignored(field);
    for (const auto& [key, entry] : *value.as_object()) {
      const bool is_type = key == "rope_type" || key == "type";
      const bool neutral = (is_type && (entry.is_null() || is_text_of(entry, {"default"}))) ||
                           (key == "partial_rotary_factor" && is_neutral(entry, Neutral::kOne));
      if (key == "rope_theta") {
        const Rule rule = used(key, kOnlyLlama);
        take(rule, entry, entry.as_double(), result_.architecture.rope_theta, "a number");
      } else if (!passed && !neutral) {
        complain(fmt::format("field '{}.{}' = {} changes the numbers", field, key, entry.dump()),
                 "this version turns positions without scaling (rope_type \"default\")",
                 fmt::format("to train as if it were so: model.ignore = [\"{}\"]", field));
      }
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
  ParsedConfigJson result_;
  Problems problems_;
  std::vector<std::string> harmless_;
  std::vector<std::string> passed_;
};

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

// rope_theta for transformers before version 5, rope_parameters from then on.
void set_llama_fields(const Architecture& a, Json& config) {
  Json rope = Json::object();
  rope.set("rope_theta", a.rope_theta).set("rope_type", "default");
  config.set("attention_bias", a.attention_bias)
      .set("attention_dropout", 0.0)
      .set("head_dim", a.head_dim)
      .set("hidden_act", "silu")
      .set("hidden_size", a.hidden)
      .set("intermediate_size", a.ffn)
      .set("max_position_embeddings", a.max_seq_len)
      .set("mlp_bias", a.mlp_bias)
      .set("num_attention_heads", a.heads)
      .set("num_hidden_layers", a.layers)
      .set("num_key_value_heads", a.kv_heads)
      .set("rms_norm_eps", a.norm_eps)
      .set("rope_parameters", std::move(rope))
      .set("rope_scaling", Json())
      .set("rope_theta", a.rope_theta);
}

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

Json config_to_json(const Architecture& architecture, Dtype weights) {
  const bool gpt2 = architecture.family == Family::kGpt2;
  Json config = Json::object();
  config.set("architectures", Json::Array{gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"})
      .set("model_type", family_name(architecture.family))
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
