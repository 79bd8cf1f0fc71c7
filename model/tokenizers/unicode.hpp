// What tokenizers ask about UTF-8 text: is it well-formed, what is a character, what is its NFC.
//
// Properties come from libunistring, in unicode.cpp alone. Functions that take a position want
// well-formed text and the start of a character. Thread: any. Failure: NFC returns a Status
// (memory).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace headrace::model {

// Bytes of the longest well-formed beginning.
[[nodiscard]] std::size_t utf8_prefix_bytes(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;
};

[[nodiscard]] CodePoint code_point_at(std::string_view text, std::size_t at);
// The one that ends at `end`, which is not 0.
[[nodiscard]] CodePoint code_point_before(std::string_view text, std::size_t end);

// Unicode's White_Space.
[[nodiscard]] bool is_white_space(char32_t character);
// \w of Unicode's regular expressions (UTS 18): letters, marks, decimal digits, connectors,
// joiners.
[[nodiscard]] bool is_word(char32_t character);
// General category N.
[[nodiscard]] bool is_numeric(char32_t character);

// True: the text is its own NFC. False: it may be or not.
[[nodiscard]] bool is_surely_nfc(std::string_view text);
// Replaces `normalized`.
[[nodiscard]] Status normalize_nfc(std::string_view text, std::string& normalized);

}  // namespace headrace::model
