// Text to tokens and back.
//
// Invariant: decode(encode(text)) == text, byte for byte. Thread: const, any. Failure: a token
// outside the vocabulary is an operating error; an unknown name is a usage error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace headrace::model {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  // Appends the tokens of `text`.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  // Appends the bytes of the tokens.
  [[nodiscard]] virtual Status decode(std::span<const std::int32_t> tokens,
                                      std::string& text) const = 0;
};

// Each byte is a token: 256 of them.
inline constexpr std::int64_t kByteVocab = 256;

// "bytes"; anything else (a tokenizer.json) is refused in this version.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& name);

}  // namespace headrace::model
