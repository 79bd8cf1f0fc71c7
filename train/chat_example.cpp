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

// A place in the text: tokens before it that are known to be the whole's, then the tokens of the
// bytes left up to it, which need not be.
struct Place {
  std::size_t known = 0;
  std::size_t bytes = 0;
  std::vector<std::int32_t> rest;
};

// How many of the tokens lie before a place; one that reaches beyond it counts as asked.
Result<std::size_t> tokens_before(const Place& place,
                                  std::span<const std::int32_t> tokens,
                                  const model::Tokenizer& tokenizer,
                                  bool count_crossing) {
  const std::span<const std::int32_t> after = tokens.subspan(place.known);
  if (after.size() >= place.rest.size() &&
      std::equal(place.rest.begin(), place.rest.end(), after.begin())) {
    return place.known + place.rest.size();
  }
  std::string text;
  for (std::size_t count = 0; count < after.size(); ++count) {
    HEADRACE_TRY(tokenizer.decode(after.subspan(count, 1), text));
    if (text.size() > place.bytes) {
      return place.known + count + (count_crossing ? 1 : 0);
    }
  }
  return tokens.size();
}

}  // namespace

Result<SpannedTokens> encode_spans(const model::Tokenizer& tokenizer, const ChatText& text) {
  SpannedTokens out;
  std::string_view left = text.text;
  std::vector<Place> places;
  const auto go_to = [&](std::size_t offset) -> Status {
    const std::string_view before = left.substr(0, offset - (text.text.size() - left.size()));
    const std::size_t cut = tokenizer.last_cut(before);
    HEADRACE_TRY(tokenizer.encode(before.substr(0, cut), out.tokens));
    left.remove_prefix(cut);
    Place& place = places.emplace_back(
        Place{.known = out.tokens.size(), .bytes = before.size() - cut, .rest = {}});
    return tokenizer.encode(before.substr(cut), place.rest);
  };
  for (const TextSpan& span : text.learned) {
    HEADRACE_TRY(go_to(span.begin));
    HEADRACE_TRY(go_to(span.end));
  }
  HEADRACE_TRY(tokenizer.encode(left, out.tokens));
  for (std::size_t i = 0; i < places.size(); i += 2) {
    TextSpan& span = out.spans.emplace_back();
    HEADRACE_ASSIGN(span.begin, tokens_before(places[i], out.tokens, tokenizer, false));
    HEADRACE_ASSIGN(span.end, tokens_before(places[i + 1], out.tokens, tokenizer, true));
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
