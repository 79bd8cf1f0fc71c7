// Tokens of the concatenated data files, read on demand.
//
// Kinds of files: llm.c token files (both magics), raw token files (token_width), chat files
// (train/token_writer.hpp), text with the byte tokenizer. Reading is by pread into a small buffer,
// with a bounded number of open files, so that data of any size costs neither memory nor
// descriptors. `open` reads every byte once: it hashes what a resume must find again, and checks
// every token against the vocabulary.
//
// Invariant: token i is the same on every read; a file that changes while it is in use is an error.
// Thread: any. Failure: Result, with the file and the position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace headrace::train {

inline constexpr std::size_t kTokenBufferBytes = std::size_t{256} << 10U;
inline constexpr std::size_t kOpenFilesMax = 64;

struct TokenOptions {
  std::string tokenizer;            // "bytes", "" or a tokenizer.json: token files only
  std::optional<int> token_width;   // bytes of a raw file's tokens: 2 or 4
  std::optional<std::int64_t> eos;  // put after each text file
  std::int64_t vocab = 0;           // tokens must be below it
  std::string where;                // place of data.train in the user's file, for messages
};

// A token of a chat file is negative where it is one to learn: the lowest 31 bits are the token.
[[nodiscard]] constexpr bool is_learned(std::int32_t word) {
  return word < 0;
}

[[nodiscard]] constexpr std::int32_t token_of(std::int32_t word) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word) & 0x7fffffffU);
}

// Of tokens, or of examples where the data are chat files.
struct DataRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// What a resume compares.
struct DataIdentity {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;   // of the files
  std::uint64_t tokens = 0;  // of all files, eos included
  std::uint64_t hash = 0;    // XXH3 over each file's kind, length and content, in order
};

class TokenSource {
 public:
  // `files` in the order of their concatenation (no patterns).
  [[nodiscard]] static Result<std::unique_ptr<TokenSource>> open(
      const std::vector<std::string>& files, const TokenOptions& options);
  ~TokenSource();
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;

  [[nodiscard]] std::int64_t tokens() const;
  // Whether the files are chat files: all of them or none.
  [[nodiscard]] bool is_chat() const;
  // What a range counts: tokens, or examples of chat files.
  [[nodiscard]] DataRange whole() const;
  [[nodiscard]] const DataIdentity& identity() const;
  // Tokens [first, first + out.size()); the range must lie within tokens().
  [[nodiscard]] Status read(std::int64_t first, std::span<std::int32_t> out);
  // The tokens of examples [first, first + out.size()), each at least two; read together.
  [[nodiscard]] Status examples(std::int64_t first, std::span<DataRange> out);
  // The tokens of an example, at least two.
  [[nodiscard]] Result<DataRange> example(std::int64_t index);
  // "example 7 of 'chat.bin'", counted from 1.
  [[nodiscard]] std::string example_name(std::int64_t index) const;

 private:
  struct State;
  explicit TokenSource(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace::train
