#include "model/tokenizers/unicode.hpp"

#include <unictype.h>
#include <uninorm.h>
#include <unistr.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace headrace::model {
namespace {

constexpr std::uint64_t kHighBits = 0x8080808080808080U;
// The first byte of U+0300, below which every character is its own NFC and composes with none.
constexpr unsigned char kFirstMark = 0xCC;

const std::uint8_t* units(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

std::size_t ascii_prefix_bytes(std::string_view text) {
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & kHighBits) != 0) {
      break;
    }
  }
  return at;
}

}  // namespace

std::size_t utf8_prefix_bytes(std::string_view text) {
  const std::size_t ascii = ascii_prefix_bytes(text);
  if (ascii == text.size()) {
    return ascii;
  }
  const std::uint8_t* bad = u8_check(units(text) + ascii, text.size() - ascii);
  return bad == nullptr ? text.size() : static_cast<std::size_t>(bad - units(text));
}

CodePoint code_point_at(std::string_view text, std::size_t at) {
  ucs4_t value = 0;
  const int bytes = u8_mbtouc_unsafe(&value, units(text) + at, text.size() - at);
  return {.value = value, .bytes = static_cast<std::size_t>(std::max(bytes, 1))};
}

CodePoint code_point_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
    --begin;
  }
  return code_point_at(text.substr(0, end), begin);
}

bool is_white_space(char32_t character) {
  return uc_is_property_white_space(character);
}

bool is_word(char32_t character) {
  constexpr std::uint32_t kMask = UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd | UC_CATEGORY_MASK_Pc;
  return uc_is_property_alphabetic(character) ||
         uc_is_general_category_withtable(character, kMask) ||
         uc_is_property_join_control(character);
}

bool is_numeric(char32_t character) {
  return uc_is_general_category_withtable(character, UC_CATEGORY_MASK_N);
}

bool is_surely_nfc(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char unit) {
    return static_cast<unsigned char>(unit) >= kFirstMark;
  });
}

Status normalize_nfc(std::string_view text, std::string& normalized) {
  std::size_t bytes = 0;
  const std::unique_ptr<std::uint8_t, decltype(&std::free)> result(
      u8_normalize(UNINORM_NFC, units(text), text.size(), nullptr, &bytes), &std::free);
  if (result == nullptr && !text.empty()) {
    return errno_error("tokenizer: cannot normalize a text to NFC", errno);
  }
  normalized.assign(reinterpret_cast<const char*>(result.get()), bytes);
  return {};
}

}  // namespace headrace::model
