#include "model/tokenizers/added_tokens.hpp"

#include <algorithm>

#include "model/tokenizers/unicode.hpp"

namespace headrace::model {
namespace {

bool inside_a_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin > 0 && is_word(code_point_before(text, begin).value)) ||
         (end < text.size() && is_word(code_point_at(text, end).value));
}

// Not before `from`, where the text has been dealt with.
std::size_t space_before(std::string_view text, std::size_t begin, std::size_t from) {
  while (begin > from) {
    const CodePoint point = code_point_before(text, begin);
    if (!is_white_space(point.value)) {
      break;
    }
    begin -= point.bytes;
  }
  return begin;
}

std::size_t space_behind(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    const CodePoint point = code_point_at(text, end);
    if (!is_white_space(point.value)) {
      break;
    }
    end += point.bytes;
  }
  return end;
}

bool byte_less(const std::pair<unsigned char, std::uint32_t>& child, unsigned char byte) {
  return child.first < byte;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                                     const std::vector<std::string>& patterns) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens_.push_back({.id = tokens[i].id,
                       .single_word = tokens[i].single_word,
                       .lstrip = tokens[i].lstrip,
                       .rstrip = tokens[i].rstrip});
    insert(patterns[i], static_cast<std::int32_t>(i));
  }
}

void AddedTokenMatcher::insert(std::string_view pattern, std::int32_t token) {
  if (pattern.empty()) {
    return;
  }
  begins_[static_cast<unsigned char>(pattern.front())] = true;
  std::uint32_t at = 0;
  for (const char character : pattern) {
    const auto byte = static_cast<unsigned char>(character);
    const std::uint32_t* known = child(at, byte);
    if (known != nullptr) {
      at = *known;
      continue;
    }
    const auto made = static_cast<std::uint32_t>(nodes_.size());
    auto& children = nodes_[at].children;
    children.insert(std::lower_bound(children.begin(), children.end(), byte, byte_less),
                    {byte, made});
    nodes_.emplace_back();
    at = made;
  }
  if (nodes_[at].token < 0) {
    nodes_[at].token = token;
  }
}

const std::uint32_t* AddedTokenMatcher::child(std::uint32_t node, unsigned char byte) const {
  const auto& children = nodes_[node].children;
  const auto found = std::lower_bound(children.begin(), children.end(), byte, byte_less);
  return found != children.end() && found->first == byte ? &found->second : nullptr;
}

bool AddedTokenMatcher::longest(std::string_view text,
                                std::size_t begin,
                                std::size_t& end,
                                std::int32_t& token) const {
  token = -1;
  std::uint32_t node = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    const std::uint32_t* next = child(node, static_cast<unsigned char>(text[at]));
    if (next == nullptr) {
      break;
    }
    node = *next;
    if (nodes_[node].token >= 0) {
      token = nodes_[node].token;
      end = at + 1;
    }
  }
  return token >= 0;
}

AddedTokenMatcher::Found AddedTokenMatcher::next(std::string_view text,
                                                 std::size_t from,
                                                 std::size_t& searched) const {
  for (std::size_t at = std::max(from, searched); at < text.size(); ++at) {
    std::size_t end = 0;
    std::int32_t token = -1;
    if (!begins_[static_cast<unsigned char>(text[at])] || !longest(text, at, end, token)) {
      continue;
    }
    const Flags& flags = tokens_[static_cast<std::size_t>(token)];
    searched = end;
    if (flags.single_word && inside_a_word(text, at, end)) {
      at = end - 1;  // what it covers is not looked at again
      continue;
    }
    return {.begin = flags.lstrip ? space_before(text, at, from) : at,
            .end = flags.rstrip ? space_behind(text, end) : end,
            .id = flags.id};
  }
  searched = text.size();
  return {.begin = text.size(), .end = text.size(), .id = -1};
}

}  // namespace headrace::model
