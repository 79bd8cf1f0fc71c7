// Byte-pair merges: a piece of text to tokens, by the vocabulary and the ranked merges of a
// tokenizer.json.
//
// Invariant: of all neighbours that a merge joins, the lowest rank goes first, the leftmost of
// equals; O(n log n) in the piece's length. Thread: BpeModel is const and for any; MergeScratch and
// WordCache belong to one at a time. Failure: make returns a Result that names the field; a byte
// without a token is an operating error of merge.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"

namespace headrace::model {

// Bytes as the characters that tokenizer.json writes them in, and back.
[[nodiscard]] std::string byte_level_text(std::string_view bytes);
// None: a character stands for no byte.
[[nodiscard]] std::optional<std::string> byte_level_bytes(std::string_view text);

// Working memory of merges.
struct MergeScratch {
  struct Symbol {
    std::int32_t id;  // -1: merged into the one before
    std::uint32_t previous;
    std::uint32_t next;
  };

  struct Candidate {
    std::uint32_t rank;
    std::uint32_t at;  // its left symbol
    std::int32_t id;   // what the two become
  };

  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::uint64_t candidates = 0;  // that were ever queued: what the time goes with
};

class BpeModel {
 public:
  // Of the member "model".
  [[nodiscard]] static Result<BpeModel> make(const Json& json);

  // One more than the highest id.
  [[nodiscard]] std::int64_t vocab() const { return static_cast<std::int64_t>(tokens_.size()); }

  // Number of tokens in the vocabulary.
  [[nodiscard]] std::size_t size() const { return ids_.size(); }

  // By the text that the file has for it.
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view text) const;
  // Nullptr: no token has this id.
  [[nodiscard]] const std::string* bytes_of(std::int64_t id) const;

  // -1: the vocabulary lacks it.
  [[nodiscard]] std::int32_t byte_token(unsigned char byte) const { return byte_tokens_[byte]; }

  // Appends the tokens of a piece.
  [[nodiscard]] Status merge(std::string_view piece,
                             MergeScratch& scratch,
                             std::vector<std::int32_t>& tokens) const;

 private:
  struct Merge {
    std::uint64_t pair;
    std::uint32_t rank;
    std::int32_t id;
  };

  Status read_vocab(const Json& json);
  Status read_merges(const Json& json);
  Status add_merge(std::size_t index, std::string_view left, std::string_view right);
  [[nodiscard]] const Merge* find(std::int32_t left, std::int32_t right) const;
  void queue(std::uint32_t at, MergeScratch& scratch) const;

  bool ignore_merges_ = false;
  std::unordered_map<std::string, std::int32_t> ids_;         // by the file's text
  std::unordered_map<std::string_view, std::int32_t> words_;  // by bytes; with ignore_merges
  std::vector<std::optional<std::string>> tokens_;            // bytes, by id
  std::array<std::int32_t, 256> byte_tokens_ = {};
  std::vector<Merge> merges_;  // open addressing; a power of two; rank kNoRank: free
};

// Tokens of short pieces seen lately; a new one takes the place of an old one.
class WordCache {
 public:
  WordCache();

  struct Entry {
    static constexpr std::size_t kBytesMax = 30;
    static constexpr std::size_t kTokensMax = 8;

    std::uint8_t bytes;  // 0: free
    std::uint8_t count;
    std::array<char, kBytesMax> word;
    std::array<std::int32_t, kTokensMax> tokens;
  };

  static_assert(sizeof(Entry) == 64, "one cache line");

  // The place of a word of 1 to kBytesMax bytes; it holds that word or another.
  [[nodiscard]] Entry& at(std::string_view word);

 private:
  std::vector<Entry> entries_;
};

}  // namespace headrace::model
