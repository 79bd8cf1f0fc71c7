// Text to tokens and back.
//
// Invariant: decode(encode(text)) == text, byte for byte and for any bytes, save for what a
// tokenizer.json says to change (NFC, a space in front, pieces to remove, spaces beside an added
// token). Thread: const, any. Failure: a byte or a token outside the vocabulary is an operating
// error; an unknown name or what this version does not have is a usage error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  // One more than the highest token.
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  // Appends the tokens of `text`.
  [[nodiscard]] virtual Status encode(std::string_view text,
                                      std::vector<std::int32_t>& tokens) const = 0;
  // Whether decode knows it: there may be gaps below vocab().
  [[nodiscard]] virtual bool has_token(std::int32_t token) const = 0;
  // Appends the bytes of the tokens.
  [[nodiscard]] virtual Status decode(std::span<const std::int32_t> tokens,
                                      std::string& text) const = 0;
  // The token that stands for itself as "<|endoftext|>" does.
  [[nodiscard]] virtual std::optional<std::int32_t> token_id(std::string_view content) const = 0;
  // `text` begins a longer one: the last place in it where that may be cut in two so that the
  // tokens of both, one after the other, are those of the whole. 0: no such place is known.
  [[nodiscard]] virtual std::size_t last_cut(std::string_view text) const = 0;
};

// Each byte is a token: 256 of them.
inline constexpr std::int64_t kByteVocab = 256;

inline constexpr std::uint64_t kTokenizerBytesMax = std::uint64_t{128} << 20U;  // of a file

// "bytes", a tokenizer.json, or a directory that holds one.
[[nodiscard]] Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& name);

// The tokenizer.json of a directory, or "" where there is none.
[[nodiscard]] std::string tokenizer_file_in(const std::string& dir);

}  // namespace headrace::model
