// Added tokens: texts that are one token each, found before anything else cuts the text.
//
// Found leftmost first and longest of those, without overlaps, as Hugging Face's AddedVocabulary
// does. Invariant: the pieces and the tokens found, in order, are the text, save for spaces that a
// token with lstrip or rstrip takes. Thread: const, any. Failure: none; the caller checked
// contents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::model {

// A search takes time with the length of the text times that of the longest content.
inline constexpr std::size_t kAddedTokenBytesMax = 1024;

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only between characters that are not of a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in normalized text
  bool special = false;
};

class AddedTokenMatcher {
 public:
  // `patterns`: what is looked for, of the token with the same index.
  AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                    const std::vector<std::string>& patterns);

  [[nodiscard]] bool empty() const { return nodes_.size() == 1; }

  struct Found {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t id = -1;  // -1: a piece of text between tokens
  };

  // The next token from `from` on, with the white space that it takes; id -1: none, the rest is
  // text. `searched`: where the search goes on after it.
  [[nodiscard]] Found next(std::string_view text, std::size_t from, std::size_t& searched) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;  // sorted by byte
    std::int32_t token = -1;                                        // index into tokens_
  };

  struct Flags {
    std::int32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
  };

  void insert(std::string_view pattern, std::int32_t token);
  [[nodiscard]] const std::uint32_t* child(std::uint32_t node, unsigned char byte) const;
  // The longest pattern at `begin`; false: none.
  [[nodiscard]] bool longest(std::string_view text,
                             std::size_t begin,
                             std::size_t& end,
                             std::int32_t& token) const;

  std::vector<Flags> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_ = {};  // a pattern begins with this byte
};

}  // namespace headrace::model
