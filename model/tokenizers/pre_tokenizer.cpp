#include "model/tokenizers/pre_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "model/tokenizers/unicode.hpp"

namespace headrace::model {
namespace {

constexpr std::size_t kStagesMax = 32;

// The pattern of ByteLevel with use_regex: GPT-2's.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct BehaviorName {
  std::string_view name;
  SplitBehavior behavior;
};

constexpr std::array kBehaviors = {
    BehaviorName{"Removed", SplitBehavior::kRemoved},
    BehaviorName{"Isolated", SplitBehavior::kIsolated},
    BehaviorName{"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    BehaviorName{"MergedWithNext", SplitBehavior::kMergedWithNext},
    BehaviorName{"Contiguous", SplitBehavior::kContiguous},
};

Error in_field(Error error, std::string_view field) {
  error.what = fmt::format("{}: {}", field, error.what);
  return error;
}

Result<bool> flag(const Json& json, std::string_view key, bool otherwise) {
  if (json.find(key) == nullptr) {
    return otherwise;
  }
  return json.require_bool(key);
}

// Text as a pattern that finds it.
std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char character : text) {
    if (std::string_view("\\^$.[]|()?*+{}-").find(character) != std::string_view::npos) {
      pattern += '\\';
    }
    pattern += character;
  }
  return pattern;
}

Status set_regex(std::string_view pattern, PreTokenizerStage& stage) {
  HEADRACE_ASSIGN(stage.regex, Regex::compile(pattern));
  stage.pattern = pattern;
  return {};
}

Result<PreTokenizerStage> split_stage(const Json& json) {
  PreTokenizerStage stage;
  HEADRACE_ASSIGN(const Json* pattern, json.require_object("pattern"));
  if (const Json* text = pattern->find("String"); text != nullptr && text->as_string() != nullptr) {
    HEADRACE_TRY(set_regex(literal_pattern(*text->as_string()), stage));
  } else if (const Json* regex = pattern->find("Regex");
             regex != nullptr && regex->as_string() != nullptr) {
    HEADRACE_TRY(set_regex(*regex->as_string(), stage));
  } else {
    return corrupt_error("\"pattern\" has neither a \"Regex\" nor a \"String\"");
  }
  HEADRACE_ASSIGN(const std::string behavior, json.require_string("behavior"));
  const auto* known = std::find_if(kBehaviors.begin(),
                                   kBehaviors.end(),
                                   [&](const BehaviorName& one) { return one.name == behavior; });
  if (known == kBehaviors.end()) {
    return usage_error(fmt::format("behavior \"{}\" is not known", behavior));
  }
  stage.behavior = known->behavior;
  HEADRACE_ASSIGN(stage.invert, flag(json, "invert", false));
  return stage;
}

Result<PreTokenizerStage> byte_level_stage(const Json& json) {
  PreTokenizerStage stage;
  HEADRACE_ASSIGN(stage.add_prefix_space, flag(json, "add_prefix_space", true));
  HEADRACE_ASSIGN(const bool use_regex, flag(json, "use_regex", true));
  if (use_regex) {
    HEADRACE_TRY(set_regex(kGpt2Pattern, stage));
  }
  return stage;
}

Result<PreTokenizerStage> digits_stage(const Json& json) {
  PreTokenizerStage stage;
  stage.digits = true;
  HEADRACE_ASSIGN(const bool individual, flag(json, "individual_digits", false));
  stage.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  return stage;
}

Result<PreTokenizerStage> make_stage(const Json& json, const std::string& type) {
  if (type == "Split") {
    return split_stage(json);
  }
  if (type == "Digits") {
    return digits_stage(json);
  }
  if (type == "ByteLevel") {
    return byte_level_stage(json);
  }
  return usage_error(fmt::format("type \"{}\" is not supported", type))
      .with_why("byte-level BPE with Split, Digits and ByteLevel is what this version has");
}

// What a Sequence holds, or the one that there is, with the field of each.
Result<std::vector<std::pair<std::string, const Json*>>> parts_of(const Json& json) {
  std::vector<std::pair<std::string, const Json*>> parts;
  HEADRACE_ASSIGN(const std::string type, json.require_string("type"));
  if (type != "Sequence") {
    parts.emplace_back("pre_tokenizer", &json);
    return parts;
  }
  HEADRACE_ASSIGN(const Json::Array* list, json.require_array("pretokenizers"));
  if (list->size() > kStagesMax) {
    return usage_error(fmt::format(
        "{} pretokenizers, of which {} are read at the most", list->size(), kStagesMax));
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    parts.emplace_back(fmt::format("pre_tokenizer.pretokenizers[{}]", i), &(*list)[i]);
  }
  return parts;
}

}  // namespace

Result<PreTokenizer> PreTokenizer::make(const Json& json) {
  auto parts = parts_of(json);
  if (!parts) {
    return in_field(std::move(parts).error(), "pre_tokenizer");
  }
  PreTokenizer made;
  bool byte_level = false;
  for (const auto& [field, part] : *parts) {
    Result<std::string> type = part->require_string("type");
    if (!type) {
      return in_field(std::move(type).error(), field);
    }
    if (byte_level) {
      return usage_error(fmt::format("{}: \"{}\" stands behind ByteLevel", field, *type))
          .with_why("ByteLevel turns text into bytes, so it is the last one here");
    }
    byte_level = *type == "ByteLevel";
    Result<PreTokenizerStage> stage = make_stage(*part, *type);
    if (!stage) {
      return in_field(std::move(stage).error(), field);
    }
    made.stages_.push_back(*std::move(stage));
  }
  if (!byte_level) {
    return usage_error("pre_tokenizer: there is no ByteLevel")
        .with_why("byte-level BPE is what this version has");
  }
  return made;
}

// Why a cut is safe: text behind it is cut as if it stood alone, since no stage looks back and a
// match ends there; text before it, since the end of the text ends its last match as what follows
// does.
//   GPT-2: no alternative holds white space behind another character, and the lookahead of
//     \s+(?!\S) sees white space and the character behind it only. So before white space.
//   Llama 3, Qwen2: a run of white space with a line feed in it goes to [\r\n]* of the punctuation
//     before it or to \s*[\r\n]+, both of which end with the run's last line feed, and nothing
//     takes that line feed with what follows. So behind a line feed, when no white space follows.
// Digits cuts at numbers beforehand, which changes neither.
CutRule PreTokenizer::cut_rule() const {
  CutRule rule = CutRule::kNowhere;
  for (const PreTokenizerStage& stage : stages_) {
    if (stage.add_prefix_space) {
      return CutRule::kNowhere;
    }
    if (!stage.regex) {
      continue;
    }
    if (rule != CutRule::kNowhere || stage.behavior != SplitBehavior::kIsolated) {
      return CutRule::kNowhere;
    }
    if (stage.pattern == kGpt2Pattern) {
      rule = CutRule::kBeforeSpace;
    } else if (stage.pattern == kLlama3Pattern || stage.pattern == kQwen2Pattern) {
      rule = CutRule::kAfterNewline;
    } else {
      return CutRule::kNowhere;
    }
  }
  return rule;
}

PieceCutter::PieceCutter(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {
  for (const PreTokenizerStage& stage : pre_tokenizer.stages()) {
    matchers_.push_back(stage.regex ? std::make_unique<RegexMatcher>(*stage.regex) : nullptr);
  }
}

Status PieceCutter::cut(std::string_view text, const PieceSink& sink) {
  return cut_from(0, text, sink);
}

Status PieceCutter::cut_from(std::size_t stage, std::string_view text, const PieceSink& sink) {
  if (text.empty()) {
    return {};
  }
  if (stage == pre_tokenizer_.stages().size()) {
    return sink(text);
  }
  const PreTokenizerStage& settings = pre_tokenizer_.stages()[stage];
  if (settings.add_prefix_space && text.front() != ' ') {
    const std::string prefixed = fmt::format(" {}", text);
    return isolate(stage, prefixed, sink);
  }
  return settings.behavior == SplitBehavior::kIsolated ? isolate(stage, text, sink)
                                                       : split(stage, text, sink);
}

Status PieceCutter::isolate(std::size_t stage, std::string_view text, const PieceSink& sink) {
  return match(stage, text, [&](const Part& part) {
    return cut_from(stage + 1, text.substr(part.begin, part.end - part.begin), sink);
  });
}

// Hugging Face's NormalizedString::split, for the behaviours that join or drop parts.
Status PieceCutter::split(std::size_t stage, std::string_view text, const PieceSink& sink) {
  std::vector<Part> parts;
  HEADRACE_TRY(match(stage, text, [&](const Part& part) -> Status {
    parts.push_back(part);
    return {};
  }));
  const SplitBehavior behavior = pre_tokenizer_.stages()[stage].behavior;
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) {
    std::reverse(parts.begin(), parts.end());
  }
  std::vector<Part> joined;
  bool before = false;  // whether the part before was a match
  for (const Part& part : parts) {
    if (behavior == SplitBehavior::kRemoved) {
      if (!part.matched) {
        joined.push_back(part);
      }
      continue;
    }
    const bool joins =
        behavior == SplitBehavior::kContiguous ? part.matched == before : part.matched && !before;
    before = part.matched;
    if (!joins || joined.empty()) {
      joined.push_back(part);
    } else if (backwards) {
      joined.back().begin = part.begin;
    } else {
      joined.back().end = part.end;
    }
  }
  if (backwards) {
    std::reverse(joined.begin(), joined.end());
  }
  for (const Part& part : joined) {
    HEADRACE_TRY(cut_from(stage + 1, text.substr(part.begin, part.end - part.begin), sink));
  }
  return {};
}

template <class Visit>
Status PieceCutter::match_digits(std::string_view text, const Visit& visit) {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80 && (byte < '0' || byte > '9')) {
      ++at;
      continue;
    }
    const CodePoint point = code_point_at(text, at);
    const std::size_t end = at + point.bytes;
    if (is_numeric(point.value)) {
      if (done < at) {
        HEADRACE_TRY(visit(Part{.begin = done, .end = at, .matched = false}));
      }
      HEADRACE_TRY(visit(Part{.begin = at, .end = end, .matched = true}));
      done = end;
    }
    at = end;
  }
  if (done < text.size()) {
    return visit(Part{.begin = done, .end = text.size(), .matched = false});
  }
  return {};
}

template <class Visit>
Status PieceCutter::match(std::size_t stage, std::string_view text, const Visit& visit) {
  const PreTokenizerStage& settings = pre_tokenizer_.stages()[stage];
  if (settings.digits) {
    return match_digits(text, visit);
  }
  RegexMatcher* matcher = matchers_[stage].get();
  if (matcher == nullptr) {
    return visit(Part{.begin = 0, .end = text.size(), .matched = false});
  }
  std::size_t done = 0;  // the end of the last match
  bool found_one = false;
  for (std::size_t from = 0; from <= text.size();) {
    const RegexMatcher::Outcome outcome = matcher->search(text, from);
    if (outcome == RegexMatcher::Outcome::kLimit) {
      return operating_error("tokenizer: a pattern of pre_tokenizer backtracks without end")
          .with_why(fmt::format("'{}' in a text of {} bytes", settings.pattern, text.size()));
    }
    if (outcome == RegexMatcher::Outcome::kNothing) {
      break;
    }
    const std::size_t begin = matcher->begin();
    const std::size_t end = matcher->end();
    if (begin == end && found_one && end == done) {
      // An empty match at the end of the last one does not count.
      from += from < text.size() ? code_point_at(text, from).bytes : 1;
      continue;
    }
    found_one = true;
    if (done < begin) {
      HEADRACE_TRY(visit(Part{.begin = done, .end = begin, .matched = settings.invert}));
    }
    HEADRACE_TRY(visit(Part{.begin = begin, .end = end, .matched = !settings.invert}));
    done = end;
    from = end;
  }
  if (done < text.size()) {
    return visit(Part{.begin = done, .end = text.size(), .matched = settings.invert});
  }
  return {};
}

}  // namespace headrace::model
