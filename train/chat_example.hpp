// A line of instruction data as tokens, each with whether it is one to learn.
//
//   {"messages": [{"role", "content"}...]}    every turn of the assistant is learned
//   {"prompt": [...], "completion": [...]}    lists of such messages: those of the completion
//   {"prompt": "...", "completion": "..."}    texts: the completion, and the end of a text
//
// A turn is learned with the token that ends it, not with what the template puts in front or after.
// "weight": 0 beside a role keeps a turn from being learned. The tokens are those of the whole
// text; one that reaches into what is learned counts as learned. Where that cannot be told, since
// the tokenizer changes the text there, is an error, never a guess. Thread: const, any. Failure:
// Result, for whoever knows file and line.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "model/tokenizer.hpp"
#include "train/chat_template.hpp"

namespace headrace::train {

class ChatEncoder {
 public:
  // Either may be an error, which counts where a line needs it. `eos` ends a completion that is
  // a text.
  ChatEncoder(const model::Tokenizer& tokenizer,
              Result<ChatTemplate> chat_template,
              Result<std::optional<std::int32_t>> eos);

  // Appends the example's words: token, and kLearnedBit (train/token_writer.hpp).
  [[nodiscard]] Status encode(const Json& line, std::vector<std::uint32_t>& words) const;

 private:
  [[nodiscard]] Result<ChatText> text_of(const Json& line, bool& is_plain) const;
  [[nodiscard]] Status append(const ChatText& text,
                              bool is_plain,
                              std::vector<std::uint32_t>& words) const;

  const model::Tokenizer& tokenizer_;
  Result<ChatTemplate> template_;
  Result<std::optional<std::int32_t>> eos_;
};

// The tokens of a text, and of each of its spans the first and the one after its last.
struct SpannedTokens {
  std::vector<std::int32_t> tokens;
  std::vector<TextSpan> spans;  // of tokens
};

[[nodiscard]] Result<SpannedTokens> encode_spans(const model::Tokenizer& tokenizer,
                                                 const ChatText& text);

}  // namespace headrace::train
