// Writes a token file: llm.c's (a header of 1024 bytes), raw (nanoGPT's), or a chat file.
//
// A chat file, little-endian: a header of 1024 bytes (ChatHeader, zeros); the tokens of all
// examples as u32, bit 31 set where the token is one to learn; then for each example, as u64, how
// many tokens end with it. An example has at least two tokens, its first is not one to learn, and
// another one is.
// Invariant: the file has its name only when it is whole and on the disk; until then it is
// PATH.partial, which goes away with a failure and which one process at a time writes. The ends of
// many examples wait in another file of that folder, which has no name; memory does not grow with
// them. Thread: one at a time. Failure: Result, with the path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/unique.hpp"

namespace headrace::train {

enum class TokenFormat : std::uint8_t { kLlmc, kRaw, kChat };

// As the words in llm.c's header.
inline constexpr std::int32_t kLlmcMagicU16 = 20240520;  // 16 bits, version 1
inline constexpr std::int32_t kLlmcVersionU16 = 1;
inline constexpr std::int32_t kLlmcMagicU32 = 20240801;  // 32 bits, version 7
inline constexpr std::int32_t kLlmcVersionU32 = 7;
inline constexpr std::size_t kLlmcHeaderBytes = 1024;

struct ChatHeader {
  std::int32_t magic = 20261201;
  std::int32_t version = 1;
  std::int64_t tokens = 0;
  std::int64_t examples = 0;
};

inline constexpr std::size_t kChatHeaderBytes = 1024;
inline constexpr std::uint32_t kLearnedBit = 1U << 31U;

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
  // Of a chat file: the tokens just appended are these examples.
  [[nodiscard]] Status end_examples(std::span<const std::uint32_t> lengths);

  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }

  // Gives it its name; nothing may follow.
  [[nodiscard]] Status finish();

 private:
  TokenWriter(std::string path, TokenFormat format, int width);
  [[nodiscard]] Status begin();
  [[nodiscard]] Status write_header();
  [[nodiscard]] Status write_ends();
  [[nodiscard]] Status append_ends();

  std::string path_;
  std::string partial_;
  TokenFormat format_;
  int width_;
  std::uint64_t tokens_ = 0;
  std::uint64_t examples_ = 0;
  std::uint64_t last_end_ = 0;  // of the examples so far
  std::vector<std::uint64_t>
      ends_;  // of examples; at most kEndsTogether, the rest are in ends_file_
  UniqueFd file_;
  UniqueFd ends_file_;  // without a name; none as long as ends_ has room
};

}  // namespace headrace::train
