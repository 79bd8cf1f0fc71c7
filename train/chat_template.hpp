// Conversations as text, as a model's chat template has them.
//
// A template is a program in Jinja; it is not run here but recognised: by its whole text, up to
// quotes and spaces that change nothing. So what is rendered is what transformers renders, and any
// other template is refused. Known are those of ChatML (SmolLM2, Qwen2, Qwen2.5, Qwen3 and others,
// with the system message that they put first), Llama 3 and 3.1, and Mistral's [INST], for messages
// of system, user and assistant without tools.
//
// Thread: const, any. Failure: Result; what a template refuses itself is refused too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace headrace::train {

struct ChatMessage {
  std::string role;  // "system" | "user" | "assistant"
  std::string content;
  bool learned = false;  // an assistant's, and one to learn
};

// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct ChatText {
  std::string text;
  std::vector<TextSpan> learned;  // what an assistant says, with the token that ends its turn

  void add(std::string_view more, bool is_learned = false);
};

class ChatTemplate {
 public:
  // What tokenizer_config.json calls the first and the last token of a text.
  struct Specials {
    std::optional<std::string> bos;
    std::optional<std::string> eos;
  };

  // `place` is the file, for messages.
  [[nodiscard]] static Result<ChatTemplate> recognise(std::string_view jinja,
                                                      Specials specials,
                                                      const std::string& place);
  // From chat_template.jinja or tokenizer_config.json beside a tokenizer.json.
  [[nodiscard]] static Result<ChatTemplate> beside(const std::string& tokenizer_file);

  // With `reply`, up to where the assistant begins to answer.
  [[nodiscard]] Result<ChatText> render(std::span<const ChatMessage> messages, bool reply) const;

  // The text of the token that ends an assistant's turn.
  [[nodiscard]] const std::string& turn_end() const { return turn_end_; }

 private:
  enum class Kind : std::uint8_t { kChatMl, kQwen3, kLlama3, kLlama31, kMistral };

  ChatTemplate() = default;
  void render_chatml(std::span<const ChatMessage> messages, ChatText& out) const;
  void render_llama(std::span<const ChatMessage> messages, ChatText& out) const;
  [[nodiscard]] Status render_mistral(std::span<const ChatMessage> messages, ChatText& out) const;
  [[nodiscard]] static std::string after_thinking(std::span<const ChatMessage> messages,
                                                  std::size_t index);

  Kind kind_ = Kind::kChatMl;
  std::string reply_;           // what begins an assistant's turn
  std::string turn_end_;        // and what ends it
  std::string default_system_;  // put first where no system message is; "": none
  std::string bos_;
  std::string after_turn_;  // Mistral's first version has a space
};

}  // namespace headrace::train
