#include "model/tokenizers/tokenizer_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/json.hpp"
#include "model/tokenizers/added_tokens.hpp"
#include "model/tokenizers/bpe.hpp"
#include "model/tokenizers/pre_tokenizer.hpp"
#include "model/tokenizers/unicode.hpp"

namespace headrace::model {
namespace {

struct Parts {
  BpeModel bpe;
  PreTokenizer pre_tokenizer;
  bool nfc = false;
  std::vector<AddedToken> added;
};

// What one encode at a time works with.
struct Scratch {
  explicit Scratch(const PreTokenizer& pre_tokenizer) : cutter(pre_tokenizer) {}

  PieceCutter cutter;
  MergeScratch merges;
  WordCache cache;
  std::string normalized;
};

std::vector<AddedToken> selected(const std::vector<AddedToken>& all, bool normalized) {
  std::vector<AddedToken> tokens;
  std::copy_if(all.begin(), all.end(), std::back_inserter(tokens), [&](const AddedToken& token) {
    return token.normalized == normalized;
  });
  return tokens;
}

std::vector<std::string> contents(const std::vector<AddedToken>& tokens) {
  std::vector<std::string> texts;
  std::transform(
      tokens.begin(), tokens.end(), std::back_inserter(texts), [](const AddedToken& token) {
        return token.content;
      });
  return texts;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(std::string name, Parts parts, const std::vector<std::string>& normalized_contents)
      : name_(std::move(name)),
        parts_(std::move(parts)),
        plain_(selected(parts_.added, false), contents(selected(parts_.added, false))),
        normalized_(selected(parts_.added, true), normalized_contents),
        cut_rule_(safe_cut_rule()) {
    vocab_ = parts_.bpe.vocab();
    for (const AddedToken& token : parts_.added) {
      vocab_ = std::max<std::int64_t>(vocab_, token.id + std::int64_t{1});
      added_by_id_[token.id] = token.content;
      added_by_content_[token.content] = token.id;
    }
  }

  [[nodiscard]] std::string_view name() const override { return name_; }

  [[nodiscard]] std::int64_t vocab() const override { return vocab_; }

  [[nodiscard]] Status encode(std::string_view text,
                              std::vector<std::int32_t>& tokens) const override {
    std::unique_ptr<Scratch> scratch = take_scratch();
    Status status = encode_bytes(text, *scratch, tokens);
    give_back(std::move(scratch));
    return status;
  }

  [[nodiscard]] bool has_token(std::int32_t token) const override {
    return bytes_of(token) != nullptr;
  }

  [[nodiscard]] Status decode(std::span<const std::int32_t> tokens,
                              std::string& text) const override {
    for (const std::int32_t token : tokens) {
      const std::string* bytes = bytes_of(token);
      if (bytes == nullptr) {
        return operating_error(fmt::format("tokenizer '{}': no token has the id {}", name_, token))
            .with_hint("the tokens were made with another tokenizer");
      }
      text += *bytes;
    }
    return {};
  }

  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view content) const override {
    const auto added = added_by_content_.find(std::string(content));
    return added != added_by_content_.end() ? added->second : parts_.bpe.id_of(content);
  }

  [[nodiscard]] std::size_t last_cut(std::string_view text) const override {
    if (cut_rule_ == CutRule::kNowhere) {
      return 0;
    }
    for (std::size_t at = text.size(); at-- > 1;) {
      if (is_cut(text, at)) {
        return at;
      }
    }
    return 0;
  }

 private:
  // Null: there is no such token.
  [[nodiscard]] const std::string* bytes_of(std::int32_t token) const {
    const auto added = added_by_id_.find(token);
    return added != added_by_id_.end() ? &added->second : parts_.bpe.bytes_of(token);
  }

  // An added token that white space is part of, or that takes what stands beside it, may lie
  // across.
  [[nodiscard]] CutRule safe_cut_rule() const {
    const bool across =
        std::any_of(parts_.added.begin(), parts_.added.end(), [](const AddedToken& token) {
          return token.lstrip || token.rstrip ||
                 token.content.find_first_of(" \t\n\v\f\r") != std::string::npos;
        });
    return across ? CutRule::kNowhere : parts_.pre_tokenizer.cut_rule();
  }

  // Neither side of a cut composes with the other in NFC, since a space or line feed stands there.
  [[nodiscard]] bool is_cut(std::string_view text, std::size_t at) const {
    if (cut_rule_ == CutRule::kBeforeSpace) {
      return (text[at] == '\n' || text[at] == ' ') && !is_space_or_broken(text, at);
    }
    if (text[at - 1] != '\n') {
      return false;
    }
    const std::size_t shown = std::min<std::size_t>(text.size() - at, 4);
    return utf8_prefix_bytes(text.substr(at, shown)) > 0 &&
           !is_white_space(code_point_at(text, at).value);
  }

  // Whether the character before `at` is white space or no whole character.
  static bool is_space_or_broken(std::string_view text, std::size_t at) {
    std::size_t begin = at - 1;
    while (begin > 0 && at - begin < 4 &&
           (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
      --begin;
    }
    return utf8_prefix_bytes(text.substr(begin, at - begin)) != at - begin ||
           is_white_space(code_point_at(text.substr(0, at), begin).value);
  }

  [[nodiscard]] std::unique_ptr<Scratch> take_scratch() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return std::make_unique<Scratch>(parts_.pre_tokenizer);
    }
    std::unique_ptr<Scratch> scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }

  void give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

  Status encode_bytes(std::string_view text,
                      Scratch& scratch,
                      std::vector<std::int32_t>& tokens) const {
    while (!text.empty()) {
      const std::size_t valid = utf8_prefix_bytes(text);
      HEADRACE_TRY(encode_text(text.substr(0, valid), scratch, tokens));
      if (valid == text.size()) {
        break;
      }
      // A byte that is no part of a character is no part of a word: ignore_merges does not matter.
      HEADRACE_TRY(parts_.bpe.merge(text.substr(valid, 1), scratch.merges, tokens));
      text.remove_prefix(valid + 1);
    }
    return {};
  }

  Status encode_text(std::string_view text,
                     Scratch& scratch,
                     std::vector<std::int32_t>& tokens) const {
    return each_added(plain_, text, tokens, [&](std::string_view between) -> Status {
      if (!parts_.nfc || is_surely_nfc(between)) {
        return encode_normalized(between, scratch, tokens);
      }
      HEADRACE_TRY(normalize_nfc(between, scratch.normalized));
      return encode_normalized(scratch.normalized, scratch, tokens);
    });
  }

  Status encode_normalized(std::string_view text,
                           Scratch& scratch,
                           std::vector<std::int32_t>& tokens) const {
    return each_added(normalized_, text, tokens, [&](std::string_view between) {
      return scratch.cutter.cut(
          between, [&](std::string_view piece) { return encode_piece(piece, scratch, tokens); });
    });
  }

  template <class EncodeBetween>
  static Status each_added(const AddedTokenMatcher& matcher,
                           std::string_view text,
                           std::vector<std::int32_t>& tokens,
                           const EncodeBetween& encode_between) {
    if (matcher.empty()) {
      return encode_between(text);
    }
    std::size_t searched = 0;
    for (std::size_t done = 0; done < text.size();) {
      const AddedTokenMatcher::Found found = matcher.next(text, done, searched);
      if (found.begin > done) {
        HEADRACE_TRY(encode_between(text.substr(done, found.begin - done)));
      }
      if (found.id >= 0) {
        tokens.push_back(found.id);
      }
      done = found.end;
    }
    return {};
  }

  Status encode_piece(std::string_view piece,
                      Scratch& scratch,
                      std::vector<std::int32_t>& tokens) const {
    if (piece.size() > WordCache::Entry::kBytesMax) {
      return parts_.bpe.merge(piece, scratch.merges, tokens);
    }
    WordCache::Entry& entry = scratch.cache.at(piece);
    if (entry.bytes == piece.size() &&
        std::memcmp(entry.word.data(), piece.data(), piece.size()) == 0) {
      tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.begin() + entry.count);
      return {};
    }
    const std::size_t before = tokens.size();
    HEADRACE_TRY(parts_.bpe.merge(piece, scratch.merges, tokens));
    const std::size_t count = tokens.size() - before;
    if (count <= WordCache::Entry::kTokensMax) {
      entry.bytes = static_cast<std::uint8_t>(piece.size());
      entry.count = static_cast<std::uint8_t>(count);
      std::memcpy(entry.word.data(), piece.data(), piece.size());
      std::copy_n(tokens.end() - static_cast<std::ptrdiff_t>(count), count, entry.tokens.begin());
    }
    return {};
  }

  std::string name_;
  Parts parts_;
  AddedTokenMatcher plain_;       // in the text as it is
  AddedTokenMatcher normalized_;  // in normalized text
  CutRule cut_rule_;
  std::int64_t vocab_ = 0;
  std::map<std::int32_t, std::string> added_by_id_;
  std::map<std::string, std::int32_t> added_by_content_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // one for each encode that ran at once
};

// null, NFC, and sequences of them.
Result<bool> read_normalizer(const Json* json, const std::string& field) {
  if (json == nullptr || json->is_null()) {
    return false;
  }
  const Json* type = json->find("type");
  if (type == nullptr || type->as_string() == nullptr) {
    return corrupt_error(fmt::format("{}.type is no text", field));
  }
  if (*type->as_string() == "NFC") {
    return true;
  }
  const Json* list = json->find("normalizers");
  if (*type->as_string() != "Sequence" || list == nullptr || list->as_array() == nullptr) {
    return usage_error(fmt::format("{}.type \"{}\" is not supported", field, *type->as_string()))
        .with_why("null and NFC are what this version has");
  }
  bool nfc = false;
  for (std::size_t i = 0; i < list->as_array()->size(); ++i) {
    const Json& part = (*list->as_array())[i];
    const Json* inner = part.find("type");
    if (inner == nullptr || inner->as_string() == nullptr || *inner->as_string() != "NFC") {
      return usage_error(fmt::format("{}.normalizers[{}] is not supported", field, i))
          .with_why("null and NFC are what this version has");
    }
    nfc = true;
  }
  return nfc;
}

Result<AddedToken> read_added_token(const Json& json) {
  AddedToken token;
  HEADRACE_ASSIGN(const std::uint64_t id, json.require_uint("id"));
  if (id > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
    return corrupt_error("\"id\" is no id of a token");
  }
  token.id = static_cast<std::int32_t>(id);
  HEADRACE_ASSIGN(token.content, json.require_string("content"));
  if (token.content.size() > kAddedTokenBytesMax) {
    return usage_error(fmt::format("\"content\" is longer than {} bytes", kAddedTokenBytesMax));
  }

  struct Flag {
    std::string_view key;
    bool* value;
  };

  for (const Flag& flag : {Flag{"single_word", &token.single_word},
                           Flag{"lstrip", &token.lstrip},
                           Flag{"rstrip", &token.rstrip},
                           Flag{"normalized", &token.normalized},
                           Flag{"special", &token.special}}) {
    HEADRACE_ASSIGN(*flag.value, json.require_bool(flag.key));
  }
  return token;
}

// Hugging Face numbers a token by the vocabulary if that has it, else onwards: an id that says
// otherwise would be another token there.
Result<std::vector<AddedToken>> read_added_tokens(const Json* json, const BpeModel& bpe) {
  std::vector<AddedToken> tokens;
  if (json == nullptr || json->is_null()) {
    return tokens;
  }
  if (json->as_array() == nullptr) {
    return corrupt_error("added_tokens is no array");
  }
  std::map<std::string, std::int32_t> seen;
  auto next = static_cast<std::int64_t>(bpe.size());
  for (std::size_t i = 0; i < json->as_array()->size(); ++i) {
    Result<AddedToken> token = read_added_token((*json->as_array())[i]);
    if (!token) {
      Error error = std::move(token).error();
      error.what = fmt::format("added_tokens[{}]: {}", i, error.what);
      return error;
    }
    if (token->content.empty() || seen.contains(token->content)) {
      continue;
    }
    const std::int64_t expected =
        bpe.id_of(token->content).value_or(static_cast<std::int32_t>(next));
    if (token->id != expected) {
      return corrupt_error(
                 fmt::format(
                     "added_tokens[{}]: \"{}\" has the id {}", i, token->content, token->id))
          .with_why(fmt::format("Hugging Face's tokenizers would give it {}", expected));
    }
    next = std::max(next, expected + 1);
    seen[token->content] = token->id;
    tokens.push_back(*std::move(token));
  }
  return tokens;
}

Result<std::unique_ptr<Tokenizer>> read_tokenizer(const Json& json, const std::string& name) {
  const Json* model = json.find("model");
  const Json* pre_tokenizer = json.find("pre_tokenizer");
  if (model == nullptr) {
    return corrupt_error("there is no \"model\"").with_hint("is it a tokenizer.json?");
  }
  Parts parts;
  HEADRACE_ASSIGN(parts.nfc, read_normalizer(json.find("normalizer"), "normalizer"));
  if (pre_tokenizer == nullptr || pre_tokenizer->is_null()) {
    return usage_error("there is no pre_tokenizer")
        .with_why("byte-level BPE is what this version has");
  }
  HEADRACE_ASSIGN(parts.bpe, BpeModel::make(*model));
  HEADRACE_ASSIGN(parts.pre_tokenizer, PreTokenizer::make(*pre_tokenizer));
  HEADRACE_ASSIGN(parts.added, read_added_tokens(json.find("added_tokens"), parts.bpe));
  std::vector<std::string> normalized = contents(selected(parts.added, true));
  for (std::string& content : normalized) {
    if (parts.nfc && !is_surely_nfc(content)) {
      const std::string plain = content;
      HEADRACE_TRY(normalize_nfc(plain, content));
    }
  }
  return std::unique_ptr<Tokenizer>(
      std::make_unique<BpeTokenizer>(name, std::move(parts), normalized));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text,
                                                        const std::string& name) {
  Result<Json> json = parse_json(text);
  Result<std::unique_ptr<Tokenizer>> made =
      json ? read_tokenizer(*json, name)
           : Result<std::unique_ptr<Tokenizer>>(std::move(json).error());
  if (!made) {
    Error error = std::move(made).error();
    error.what = fmt::format("tokenizer '{}': {}", name, error.what);
    return error;
  }
  return made;
}

}  // namespace headrace::model
