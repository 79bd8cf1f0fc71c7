#include "train/chat_example.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "train/token_writer.hpp"

namespace headrace::train {
namespace {

constexpr std::string_view kForms =
    "a line is {\"messages\": [...]} or {\"prompt\": ..., \"completion\": ...}";

bool is_empty(const Json* json) {
  return json == nullptr || json->is_null() || (json->as_array() && json->as_array()->empty()) ||
         (json->as_object() && json->as_object()->empty());
}

// What would change the text, and is not rendered here.
Status check_absent(const Json& json, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (!is_empty(json.find(key))) {
      return usage_error(fmt::format("\"{}\" is not supported", key))
          .with_why(
              "chat templates are rendered without tools, thoughts of their own key or "
              "options")
          .with_hint(
              "render with transformers' apply_chat_template(..., tokenize=False) to texts "
              "{\"prompt\": ..., \"completion\": ...}, or leave such lines out");
    }
  }
  return {};
}

// Whether an assistant's turn is learned, where its list is.
Result<bool> weight_of(const Json& message) {
  const Json* weight = message.find("weight");
  if (weight == nullptr || weight->is_null()) {
    return true;
  }
  const std::optional<double> value = weight->as_double();
  if (!value || (*value != 0 && *value != 1)) {
    return usage_error("\"weight\" is neither 0 nor 1")
        .with_hint("0 keeps a turn from being learned; other weights are not supported");
  }
  return *value == 1;
}

Status add_message(const Json& json, bool learned, std::vector<ChatMessage>& messages) {
  const auto at = [&](Error error) {
    error.what = fmt::format("message {}: {}", messages.size() + 1, error.what);
    return error;
  };
  const Json* role = json.find("role");
  const Json* content = json.find("content");
  if (role == nullptr || role->as_string() == nullptr || content == nullptr ||
      content->as_string() == nullptr) {
    return at(corrupt_error(role == nullptr || role->as_string() == nullptr
                                ? "there is no \"role\" that is a text"
                                : "there is no \"content\" that is a text")
                  .with_hint("a message is {\"role\": ..., \"content\": ...}"));
  }
  if (Status status = check_absent(
          json, {"tool_calls", "tool_call_id", "function_call", "reasoning_content", "thinking"});
      !status) {
    return at(std::move(status).error());
  }
  const std::string& name = *role->as_string();
  if (name != "system" && name != "user" && name != "assistant") {
    return at(usage_error(fmt::format("the role '{}' is not supported", name))
                  .with_hint("system, user and assistant are"));
  }
  Result<bool> weight = weight_of(json);
  if (!weight) {
    return at(std::move(weight).error());
  }
  messages.push_back({.role = name,
                      .content = *content->as_string(),
                      .learned = learned && *weight && name == "assistant"});
  return {};
}

Status add_messages(const Json& list, bool learned, std::vector<ChatMessage>& messages) {
  for (const Json& message : *list.as_array()) {
    HEADRACE_TRY(add_message(message, learned, messages));
  }
  return {};
}

Error unknown_form(const Json& line) {
  if (line.find("conversations") != nullptr) {
    return corrupt_error("\"conversations\" is not read")
        .with_hint(fmt::format("rename it to \"messages\", from and value to role and content, "
                               "human and gpt to user and assistant; {}",
                               kForms));
  }
  return corrupt_error("this is no example").with_hint(std::string(kForms));
}

// A place in the text. `cut` comes before it: the tokens of the text up to there are known to be
// the whole's. Those of the bytes between, alone, need not be.
struct Place {
  std::size_t offset = 0;
  std::size_t cut = 0;
  std::size_t known = 0;  // tokens up to the cut
  std::vector<std::int32_t> rest;
};

// Where a place may be in decoded text: from `low`, up to where everything is what stands before
// the place, to `high`, from where on everything is what stands behind it.
struct Bounds {
  std::size_t low = 0;
  std::size_t high = 0;
};

bool is_inside_character(std::string_view text, std::size_t at) {
  return at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
}

// A tokenizer that composes characters, adds spaces or takes them decodes to another text than it
// was given, so that nothing can be counted in the bytes that it was given. All are decoded here.
Bounds bounds_of(std::string_view whole, std::string_view before, std::string_view behind) {
  const auto same = std::mismatch(whole.begin(), whole.end(), before.begin(), before.end());
  const auto end = std::mismatch(whole.rbegin(), whole.rend(), behind.rbegin(), behind.rend());
  Bounds bounds{.low = static_cast<std::size_t>(same.first - whole.begin()),
                .high = static_cast<std::size_t>(whole.rend() - end.first)};
  if (bounds.low < bounds.high) {  // two characters may share their first or last bytes
    while (is_inside_character(whole, bounds.low)) {
      --bounds.low;
    }
    while (is_inside_character(whole, bounds.high)) {
      ++bounds.high;
    }
  }
  return bounds;
}

// Tokens that begin before a place, and those that end before or at it.
struct TokenCounts {
  std::size_t begun = 0;
  std::size_t ended = 0;
};

TokenCounts counts_at(std::span<const std::size_t> ends, std::size_t at) {
  const auto ended = std::upper_bound(ends.begin(), ends.end(), at);
  const auto count = static_cast<std::size_t>(ended - ends.begin());
  const std::size_t end = count == 0 ? 0 : ends[count - 1];
  return {.begun = count + (end < at ? 1 : 0), .ended = count};
}

Error untold_place(std::string_view text, std::size_t offset) {
  return corrupt_error(
             fmt::format("byte {} of the text, where what is learned begins or ends, is at no "
                         "place in its tokens",
                         offset))
      .with_why(fmt::format(
          "the tokenizer makes one of the characters on both sides, or changes spaces there ({} "
          "bytes of text)",
          text.size()))
      .with_hint(
          "leave the line out, or move the first or last characters of the completion to the "
          "other side");
}

// How many of the tokens lie before a place; one that reaches beyond it counts as asked. `next` is
// a later place whose cut is not before this one, or the end.
Result<std::size_t> tokens_before(const Place& place,
                                  const Place& next,
                                  std::string_view text,
                                  std::span<const std::int32_t> tokens,
                                  const model::Tokenizer& tokenizer,
                                  bool count_crossing) {
  const std::span<const std::int32_t> after = tokens.subspan(place.known, next.known - place.known);
  if (after.size() >= place.rest.size() &&
      std::equal(place.rest.begin(), place.rest.end(), after.begin())) {
    return place.known + place.rest.size();
  }
  std::string whole;
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < after.size(); ++i) {
    HEADRACE_TRY(tokenizer.decode(after.subspan(i, 1), whole));
    ends.push_back(whole.size());
  }
  std::string before;
  HEADRACE_TRY(tokenizer.decode(place.rest, before));
  std::vector<std::int32_t> behind_tokens;
  std::string behind;
  HEADRACE_TRY(tokenizer.encode(text.substr(place.offset, next.cut - place.offset), behind_tokens));
  HEADRACE_TRY(tokenizer.decode(behind_tokens, behind));
  const Bounds bounds = bounds_of(whole, before, behind);
  const TokenCounts low = counts_at(ends, bounds.low);
  const TokenCounts high = counts_at(ends, bounds.high);
  // Made of both sides: one token holds all of it.
  const bool is_fused = bounds.low < bounds.high && high.begun == low.ended + 1;
  // Wherever it is between the two, it is the same one for the tokens.
  const bool is_told =
      bounds.low >= bounds.high && low.begun == high.begun && low.ended == high.ended;
  if (!is_fused && !is_told) {
    return untold_place(text, place.offset);
  }
  return place.known + (count_crossing ? high.begun : low.ended);
}

}  // namespace

Result<SpannedTokens> encode_spans(const model::Tokenizer& tokenizer, const ChatText& text) {
  SpannedTokens out;
  const std::string_view whole = text.text;
  std::size_t done = 0;
  std::vector<Place> places;
  const auto go_to = [&](std::size_t offset) -> Status {
    const std::string_view before = whole.substr(done, offset - done);
    const std::size_t cut = tokenizer.last_cut(before);
    HEADRACE_TRY(tokenizer.encode(before.substr(0, cut), out.tokens));
    done += cut;
    Place& place = places.emplace_back(
        Place{.offset = offset, .cut = done, .known = out.tokens.size(), .rest = {}});
    return tokenizer.encode(before.substr(cut), place.rest);
  };
  for (const TextSpan& span : text.learned) {
    HEADRACE_TRY(go_to(span.begin));
    HEADRACE_TRY(go_to(span.end));
  }
  HEADRACE_TRY(tokenizer.encode(whole.substr(done), out.tokens));
  places.push_back(
      {.offset = whole.size(), .cut = whole.size(), .known = out.tokens.size(), .rest = {}});
  const auto count_at = [&](std::size_t index, bool count_crossing) {
    const Place& place = places[index];
    const auto next = std::find_if(places.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                                   places.end(),
                                   [&](const Place& other) { return other.cut >= place.offset; });
    return tokens_before(place, *next, whole, out.tokens, tokenizer, count_crossing);
  };
  for (std::size_t i = 0; i + 1 < places.size(); i += 2) {
    TextSpan& span = out.spans.emplace_back();
    HEADRACE_ASSIGN(span.begin, count_at(i, false));
    HEADRACE_ASSIGN(span.end, count_at(i + 1, true));
  }
  return out;
}

ChatEncoder::ChatEncoder(const model::Tokenizer& tokenizer,
                         Result<ChatTemplate> chat_template,
                         Result<std::optional<std::int32_t>> eos)
    : tokenizer_(tokenizer), template_(std::move(chat_template)), eos_(std::move(eos)) {}

Result<ChatText> ChatEncoder::text_of(const Json& line, bool& is_plain) const {
  HEADRACE_TRY(check_absent(line, {"tools", "functions", "documents", "chat_template_kwargs"}));
  const Json* messages = line.find("messages");
  const Json* prompt = line.find("prompt");
  const Json* completion = line.find("completion");
  if (messages != nullptr && (prompt != nullptr || completion != nullptr)) {
    return corrupt_error("there are \"messages\" beside \"prompt\" or \"completion\"")
        .with_hint(std::string(kForms));
  }
  if (prompt != nullptr && completion != nullptr && prompt->as_string() != nullptr &&
      completion->as_string() != nullptr) {
    is_plain = true;
    ChatText text;
    text.add(*prompt->as_string());
    text.add(*completion->as_string(), true);
    return text;
  }
  std::vector<ChatMessage> all;
  if (messages != nullptr && messages->as_array() != nullptr) {
    HEADRACE_TRY(add_messages(*messages, true, all));
  } else if (prompt != nullptr && completion != nullptr && prompt->as_array() != nullptr &&
             completion->as_array() != nullptr) {
    HEADRACE_TRY(add_messages(*prompt, false, all));
    HEADRACE_TRY(add_messages(*completion, true, all));
  } else {
    return unknown_form(line);
  }
  if (!template_) {
    return template_.error();
  }
  return template_->render(all, false);
}

Status ChatEncoder::append(const ChatText& text,
                           bool is_plain,
                           std::vector<std::uint32_t>& words) const {
  HEADRACE_ASSIGN(SpannedTokens found, encode_spans(tokenizer_, text));
  if (is_plain) {
    if (!eos_) {
      return eos_.error();
    }
    const bool has_end = !found.tokens.empty() && found.tokens.back() == *eos_;
    if (*eos_ && !has_end) {
      found.tokens.push_back(**eos_);
      found.spans.push_back({.begin = found.tokens.size() - 1, .end = found.tokens.size()});
    }
  }
  const std::size_t first = words.size();
  for (const std::int32_t token : found.tokens) {
    words.push_back(static_cast<std::uint32_t>(token));
  }
  bool any = false;
  for (const TextSpan& span : found.spans) {
    // Nothing comes before the first token that it could be learned from.
    for (std::size_t i = std::max<std::size_t>(1, span.begin); i < span.end; ++i) {
      words[first + i] |= kLearnedBit;
      any = true;
    }
  }
  if (!any) {
    return corrupt_error("there is nothing to learn")
        .with_why("no turn of an assistant, or a completion of no token")
        .with_hint("leave the line out");
  }
  return {};
}

Status ChatEncoder::encode(const Json& line, std::vector<std::uint32_t>& words) const {
  bool is_plain = false;
  HEADRACE_ASSIGN(const ChatText text, text_of(line, is_plain));
  return append(text, is_plain, words);
}

}  // namespace headrace::train
