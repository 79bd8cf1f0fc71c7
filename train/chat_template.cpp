#include "train/chat_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/json.hpp"

namespace headrace::train {
namespace {

constexpr std::uint64_t kTemplateBytesMax = std::uint64_t{16} << 20U;

// ---- the text of a template --------------------------------------------------------------------

bool is_word(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_';
}

// Reads a literal that begins at `at`, and appends it in one spelling; returns where it ends.
std::size_t append_literal(std::string_view jinja, std::size_t at, std::string& out) {
  const char quote = jinja[at++];
  out += '"';
  for (; at < jinja.size() && jinja[at] != quote; ++at) {
    std::string_view character = jinja.substr(at, 1);
    if (character == "\\" && at + 1 < jinja.size()) {
      character = jinja.substr(at++, 2);
    }
    if (character == "\n") {
      out += "\\n";
    } else if (character == "\"") {
      out += "\\\"";
    } else {
      out += character == "\\'" ? "'" : character;
    }
  }
  out += '"';
  return at + 1;
}

// What stands between {{ and }} or {% and %}, without the spaces that only part it.
std::size_t append_block(std::string_view jinja, std::size_t at, std::string& out) {
  const std::string_view end = jinja[at + 1] == '{' ? "}}" : "%}";
  out += jinja.substr(at, 2);
  at += 2;
  bool space = false;
  while (at < jinja.size() && jinja.substr(at, 2) != end) {
    const char character = jinja[at];
    if (std::isspace(static_cast<unsigned char>(character)) != 0) {
      space = true;
      ++at;
      continue;
    }
    if (std::exchange(space, false) && is_word(out.back()) && is_word(character)) {
      out += ' ';
    }
    if (character == '\'' || character == '"') {
      at = append_literal(jinja, at, out);
    } else {
      out += character;
      ++at;
    }
  }
  out += end;
  return at + 2;
}

// Templates of equal canonical texts render equally.
std::string canonical(std::string_view jinja) {
  std::string out;
  if (jinja.ends_with('\n')) {
    jinja.remove_suffix(1);  // Jinja drops it
  }
  for (std::size_t at = 0; at < jinja.size();) {
    const std::string_view two = jinja.substr(at, 2);
    if (two == "{{" || two == "{%") {
      at = append_block(jinja, at, out);
    } else {
      out += jinja[at++];
    }
  }
  return out;
}

// ---- those that are known ----------------------------------------------------------------------

// Some templates begin with it; it changes nothing here, since a reply is asked for or not.
constexpr std::string_view kReplyDefault =
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
    "{% endif %}";
constexpr std::string_view kMessagesLoop = "{% for message in messages %}";
constexpr std::string_view kSystemBegin =
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n";
constexpr std::string_view kSystemEnd = "<|im_end|>\\n' }}{% endif %}";
constexpr std::string_view kChatMlMessage =
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr std::string_view kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | "
    "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
constexpr std::string_view kMistralBegin =
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
    "user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token";
constexpr std::string_view kMistralEnd =
    " }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}";

// Long ones, by XXH3 and length of their canonical text.
enum class Long : std::uint8_t { kQwen25, kQwen3, kQwen3Instruct, kLlama31 };

struct LongTemplate {
  std::uint64_t hash;
  std::size_t bytes;
  Long which;
};

constexpr std::array kLongTemplates = {
    LongTemplate{0xeb58835b526dec3c, 2345, Long::kQwen25},
    LongTemplate{0xf89b671488db4ae5, 3887, Long::kQwen3},
    LongTemplate{0x8bc24d6b3127ad96, 2453, Long::kQwen3Instruct},
    LongTemplate{0x1898c619a1e32099, 4337, Long::kLlama31},
};

std::optional<Long> long_template(std::string_view canonical_text) {
  const std::uint64_t hash = hash_text(canonical_text);
  const auto found =
      std::find_if(kLongTemplates.begin(), kLongTemplates.end(), [&](const LongTemplate& known) {
        return known.hash == hash && known.bytes == canonical_text.size();
      });
  return found == kLongTemplates.end() ? std::nullopt : std::optional(found->which);
}

// The system message that a ChatML template puts first, "" for none; nothing where it is another
// template.
std::optional<std::string> chatml_system(std::string_view text) {
  if (text == canonical(fmt::format("{}{}", kMessagesLoop, kChatMlMessage))) {
    return "";
  }
  constexpr std::string_view kMark = "@";
  const std::string whole = canonical(
      fmt::format("{}{}{}{}{}", kMessagesLoop, kSystemBegin, kMark, kSystemEnd, kChatMlMessage));
  const std::size_t mark = whole.find(kMark);
  const std::string_view begin = std::string_view(whole).substr(0, mark);
  const std::string_view end = std::string_view(whole).substr(mark + 1);
  if (!text.starts_with(begin) || !text.ends_with(end) || text.size() < whole.size()) {
    return std::nullopt;
  }
  const std::string_view system =
      text.substr(begin.size(), text.size() - begin.size() - end.size());
  // Another literal, or one with escapes, would be another template.
  return system.find_first_of("\"\\") == std::string_view::npos ? std::optional(std::string(system))
                                                                : std::nullopt;
}

constexpr std::string_view kKnown =
    "known are ChatML as in SmolLM2, Qwen2, Qwen2.5 and Qwen3, Llama 3 and 3.1, and Mistral's "
    "[INST]";
constexpr std::string_view kRenderFirst =
    "render with transformers: apply_chat_template(..., tokenize=False) gives the texts for lines "
    "of "
    "{\"prompt\": ..., \"completion\": ...}, which need no template; and --eos none if they have "
    "their end";

Error unknown_template(const std::string& place) {
  return usage_error(fmt::format("the chat template of '{}' is not known", place))
      .with_why(fmt::format("templates are recognised by their text, so that none is rendered "
                            "wrongly; {}",
                            kKnown))
      .with_hint(std::string(kRenderFirst));
}

// ---- text as Jinja treats it -------------------------------------------------------------------

// Bytes of the white space that a text begins with, as Python has it; 0: it begins otherwise.
std::size_t space_at_start(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text.front());
  if ((byte >= 9 && byte <= 13) || (byte >= 28 && byte <= 32)) {
    return 1;
  }
  if (text.starts_with("\xC2\x85") || text.starts_with("\xC2\xA0")) {
    return 2;
  }
  constexpr std::array<std::string_view, 6> kThree = {"\xE1\x9A\x80",
                                                      "\xE2\x80\xA8",
                                                      "\xE2\x80\xA9",
                                                      "\xE2\x80\xAF",
                                                      "\xE2\x81\x9F",
                                                      "\xE3\x80\x80"};
  const std::string_view three = text.substr(0, 3);
  const bool is_quad = three.size() == 3 && three.starts_with("\xE2\x80") &&
                       static_cast<unsigned char>(three[2]) <= 0x8A;
  return is_quad || std::find(kThree.begin(), kThree.end(), three) != kThree.end() ? 3 : 0;
}

// str.strip of Python, which is Jinja's trim.
std::string_view trim(std::string_view text) {
  while (!text.empty() && space_at_start(text) > 0) {
    text.remove_prefix(space_at_start(text));
  }
  for (std::size_t bytes = 1; bytes <= 3 && bytes <= text.size();) {
    const std::string_view last = text.substr(text.size() - bytes);
    if (space_at_start(last) == bytes) {
      text.remove_suffix(bytes);
      bytes = 1;
    } else {
      ++bytes;
    }
  }
  return text;
}

std::string_view strip_lines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) {
    text.remove_prefix(1);
  }
  while (right && text.ends_with('\n')) {
    text.remove_suffix(1);
  }
  return text;
}

std::optional<std::string> special_text(const Json& config, std::string_view name) {
  const Json* token = config.find(name);
  if (token != nullptr && token->as_object() != nullptr) {
    token = token->find("content");
  }
  return token != nullptr && token->as_string() != nullptr ? std::optional(*token->as_string())
                                                           : std::nullopt;
}

// Of tokenizer_config.json: a text, or a list of named ones.
const std::string* default_template(const Json& config) {
  const Json* found = config.find("chat_template");
  if (found == nullptr || found->as_array() == nullptr) {
    return found != nullptr ? found->as_string() : nullptr;
  }
  for (const Json& named : *found->as_array()) {
    const Json* name = named.find("name");
    const Json* text = named.find("template");
    if (name != nullptr && name->as_string() != nullptr && *name->as_string() == "default" &&
        text != nullptr) {
      return text->as_string();
    }
  }
  return nullptr;
}

}  // namespace

void ChatText::add(std::string_view more, bool is_learned) {
  if (is_learned && !more.empty()) {
    if (!learned.empty() && learned.back().end == text.size()) {
      learned.back().end += more.size();
    } else {
      learned.push_back({.begin = text.size(), .end = text.size() + more.size()});
    }
  }
  text += more;
}

Result<ChatTemplate> ChatTemplate::recognise(std::string_view jinja,
                                             Specials specials,
                                             const std::string& place) {
  const std::string whole = canonical(jinja);
  std::string_view text = whole;
  const std::string reply_default = canonical(kReplyDefault);
  if (text.starts_with(reply_default)) {
    text.remove_prefix(reply_default.size());
  }
  ChatTemplate made;
  made.reply_ = "<|im_start|>assistant\n";
  made.turn_end_ = "<|im_end|>";
  const std::optional<Long> known = long_template(text);
  if (const std::optional<std::string> system = chatml_system(text)) {
    made.default_system_ = *system;
    return made;
  }
  if (known && *known != Long::kLlama31) {
    made.kind_ = *known == Long::kQwen3 ? Kind::kQwen3 : Kind::kChatMl;
    made.default_system_ =
        *known == Long::kQwen25
            ? "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
            : "";
    return made;
  }
  const bool is_llama = known || text == canonical(kLlama3);
  const bool is_first_mistral =
      text == canonical(fmt::format("{} + ' '{}", kMistralBegin, kMistralEnd));
  if (!is_llama && !is_first_mistral &&
      text != canonical(fmt::format("{}{}", kMistralBegin, kMistralEnd))) {
    return unknown_template(place);
  }
  if (!specials.bos || (!is_llama && !specials.eos)) {
    return usage_error(fmt::format("'{}' does not say what {} is",
                                   place,
                                   specials.bos ? "eos_token" : "bos_token"))
        .with_why("its chat template uses it");
  }
  made.bos_ = *specials.bos;
  if (is_llama) {
    made.kind_ = known ? Kind::kLlama31 : Kind::kLlama3;
    made.reply_ = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    made.turn_end_ = "<|eot_id|>";
  } else {
    made.kind_ = Kind::kMistral;
    made.reply_ = "";
    made.turn_end_ = *specials.eos;
    made.after_turn_ = is_first_mistral ? " " : "";
  }
  return made;
}

Result<ChatTemplate> ChatTemplate::beside(const std::string& tokenizer_file) {
  const std::string folder = parent_path(tokenizer_file);
  const std::string config_file = folder + "/tokenizer_config.json";
  const std::string jinja_file = folder + "/chat_template.jinja";
  Json config;
  if (is_regular_file(config_file)) {
    HEADRACE_ASSIGN(const std::string text, read_file(config_file, kTemplateBytesMax));
    Result<Json> parsed = parse_json(text);
    if (!parsed) {
      Error error = std::move(parsed).error();
      error.what = fmt::format("'{}': {}", config_file, error.what);
      return error;
    }
    config = *std::move(parsed);
  }
  const Specials specials = {.bos = special_text(config, "bos_token"),
                             .eos = special_text(config, "eos_token")};
  if (is_regular_file(jinja_file)) {
    HEADRACE_ASSIGN(const std::string text, read_file(jinja_file, kTemplateBytesMax));
    return recognise(text, specials, jinja_file);
  }
  if (const std::string* found = default_template(config)) {
    return recognise(*found, specials, config_file);
  }
  return usage_error(fmt::format("'{}' has no chat template", folder))
      .with_why("it has no chat_template.jinja, and tokenizer_config.json no chat_template")
      .with_hint(
          "take the directory of the model's instruct version; or lines of {\"prompt\": "
          "..., \"completion\": ...}, which need no template");
}

Result<ChatText> ChatTemplate::render(std::span<const ChatMessage> messages, bool reply) const {
  ChatText out;
  if (messages.empty()) {
    return corrupt_error("there are no messages");
  }
  if (kind_ == Kind::kMistral) {
    HEADRACE_TRY(render_mistral(messages, out));
  } else if (kind_ == Kind::kLlama3 || kind_ == Kind::kLlama31) {
    render_llama(messages, out);
  } else {
    render_chatml(messages, out);
  }
  if (reply) {
    out.add(reply_);
  }
  return out;
}

void ChatTemplate::render_chatml(std::span<const ChatMessage> messages, ChatText& out) const {
  if (!default_system_.empty() && messages.front().role != "system") {
    out.add(fmt::format("<|im_start|>system\n{}<|im_end|>\n", default_system_));
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    out.add(fmt::format("<|im_start|>{}\n", message.role));
    const bool thinks = kind_ == Kind::kQwen3 && message.role == "assistant";
    out.add(thinks ? after_thinking(messages, i) : message.content, message.learned);
    out.add("<|im_end|>", message.learned);
    out.add("\n");
  }
}

// Qwen3 keeps what was thought in the turns after the last question only.
std::string ChatTemplate::after_thinking(std::span<const ChatMessage> messages, std::size_t index) {
  constexpr std::string_view kBegin = "<think>";
  constexpr std::string_view kEnd = "</think>";
  std::string_view content = messages[index].content;
  std::string_view thought;
  if (const std::size_t end = content.find(kEnd); end != std::string_view::npos) {
    thought = strip_lines(content.substr(0, end), false, true);
    const std::size_t begin = thought.rfind(kBegin);
    thought = begin == std::string_view::npos ? thought : thought.substr(begin + kBegin.size());
    thought = strip_lines(thought, true, false);
    content = strip_lines(content.substr(content.rfind(kEnd) + kEnd.size()), true, false);
  }
  std::size_t last_question = messages.size() - 1;
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string_view text = messages[i].content;
    if (messages[i].role == "user" &&
        !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))) {
      last_question = i;
      break;
    }
  }
  const bool is_last = index + 1 == messages.size();
  if (index > last_question && (is_last || !thought.empty())) {
    return fmt::format("<think>\n{}\n</think>\n\n{}",
                       strip_lines(thought, true, true),
                       strip_lines(content, true, false));
  }
  return std::string(content);
}

void ChatTemplate::render_llama(std::span<const ChatMessage> messages, ChatText& out) const {
  out.add(bos_);
  if (kind_ == Kind::kLlama31) {
    const bool has_system = messages.front().role == "system";
    out.add(
        fmt::format("<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
                    "December 2023\nToday Date: 26 Jul 2024\n\n{}<|eot_id|>",
                    has_system ? trim(messages.front().content) : ""));
    messages = messages.subspan(has_system ? 1 : 0);
  }
  for (const ChatMessage& message : messages) {
    out.add(fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", message.role));
    out.add(trim(message.content), message.learned);
    out.add("<|eot_id|>", message.learned);
  }
}

Status ChatTemplate::render_mistral(std::span<const ChatMessage> messages, ChatText& out) const {
  out.add(bos_);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "system") {
      return usage_error(fmt::format("message {} is of role 'system'", i + 1))
          .with_why("this chat template has no system message")
          .with_hint("put its text in front of the first user's");
    }
    if (message.role != (i % 2 == 0 ? "user" : "assistant")) {
      return corrupt_error(fmt::format("message {} is of role '{}'", i + 1, message.role))
          .with_why("this chat template has user and assistant in turn");
    }
    if (message.role == "user") {
      out.add(fmt::format("[INST] {} [/INST]", message.content));
    } else {
      out.add(message.content + turn_end_, message.learned);
      out.add(after_turn_);
    }
  }
  return {};
}

}  // namespace headrace::train
