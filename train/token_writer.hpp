// Writes a token file: llm.c's (a header of 1024 bytes) or raw (nanoGPT's).
//
// Invariant: the file has its name only when it is whole and on the disk; until then it is
// PATH.partial, which goes away with a failure and which one process at a time writes. Thread: one
// at a time. Failure: Result, with the path.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/unique.hpp"

namespace headrace::train {

enum class TokenFormat : std::uint8_t { kLlmc, kRaw };

// As the words in llm.c's header.
inline constexpr std::int32_t kLlmcMagicU16 = 20240520;  // 16 bits, version 1
inline constexpr std::int32_t kLlmcVersionU16 = 1;
inline constexpr std::int32_t kLlmcMagicU32 = 20240801;  // 32 bits, version 7
inline constexpr std::int32_t kLlmcVersionU32 = 7;
inline constexpr std::size_t kLlmcHeaderBytes = 1024;

class TokenWriter {
 public:
  // `width`: bytes of a token, 2 or 4.
  [[nodiscard]] static Result<std::unique_ptr<TokenWriter>> create(const std::string& path,
                                                                   TokenFormat format,
                                                                   int width);
  ~TokenWriter();

  // Where the file is until it is whole.
  [[nodiscard]] static std::string partial_of(const std::string& path) { return path + ".partial"; }

  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Whole tokens, little-endian.
  [[nodiscard]] Status append(std::string_view bytes);

  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }

  // Gives it its name; nothing may follow.
  [[nodiscard]] Status finish();

 private:
  TokenWriter(std::string path, TokenFormat format, int width);
  [[nodiscard]] Status begin();

  std::string path_;
  std::string partial_;
  TokenFormat format_;
  int width_;
  std::uint64_t tokens_ = 0;
  UniqueFd file_;
};

}  // namespace headrace::train
