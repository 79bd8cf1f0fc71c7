#include "model/tokenizers/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "core/hash.hpp"
#include "model/tokenizers/unicode.hpp"

namespace headrace::model {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kPieceBytesMax = std::size_t{1} << 31U;
constexpr std::size_t kCacheEntries = std::size_t{1} << 15U;
// Ids may have holes, but no more than what the file's size pays for.
constexpr std::size_t kIdsPerToken = 2;
constexpr std::size_t kIdsSpare = 1024;

struct Alphabet {
  std::array<char32_t, 256> character = {};
  std::array<std::int16_t, 512> byte = {};  // -1: no byte
};

// GPT-2's: printable bytes of Latin-1 are themselves, the others follow at U+0100.
const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet table;
    table.byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      table.character[byte] = printable ? byte : next++;
      table.byte[table.character[byte]] = static_cast<std::int16_t>(byte);
    }
    return table;
  }();
  return made;
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
}

std::size_t slot_of(std::uint64_t pair, std::size_t mask) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
  const std::uint64_t mixed = pair * kOdd;
  return static_cast<std::size_t>(mixed ^ (mixed >> 32U)) & mask;
}

bool later(const MergeScratch::Candidate& a, const MergeScratch::Candidate& b) {
  return std::pair(a.rank, a.at) > std::pair(b.rank, b.at);
}

// A setting that changes ids, unless it is absent or neutral.
Status check_neutral(const Json& json) {
  const Json* dropout = json.find("dropout");
  if (dropout != nullptr && !dropout->is_null() && dropout->as_double() != 0.0) {
    return usage_error("model.dropout is set")
        .with_why("merges would be left out at random, and tokens would differ from run to run");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* text = json.find(key);
    if (text != nullptr && !text->is_null() &&
        (text->as_string() == nullptr || !text->as_string()->empty())) {
      return usage_error(fmt::format("model.{} is set", key))
          .with_why("byte-level BPE does without, and this version has nothing else");
    }
  }
  const Json* fallback = json.find("byte_fallback");
  if (fallback != nullptr && !fallback->is_null() && fallback->as_bool() != false) {
    return usage_error("model.byte_fallback is on")
        .with_why("it belongs to SentencePiece vocabularies; this version has byte-level BPE");
  }
  return {};
}

Status check_type(const Json& json) {
  const Json* type = json.find("type");
  // Old files leave it out.
  if (type == nullptr || (type->as_string() != nullptr && *type->as_string() == "BPE")) {
    return {};
  }
  if (type->as_string() == nullptr) {
    return corrupt_error("model.type is no text");
  }
  return usage_error(fmt::format("model.type is \"{}\"", *type->as_string()))
      .with_why("byte-level BPE is what this version has");
}

}  // namespace

std::string byte_level_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const char32_t character = alphabet().character[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0U | (character >> 6U));
      text += static_cast<char>(0x80U | (character & 0x3FU));
    }
  }
  return text;
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value >= alphabet().byte.size() || alphabet().byte[point.value] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(alphabet().byte[point.value]);
    at += point.bytes;
  }
  return bytes;
}

Result<BpeModel> BpeModel::make(const Json& json) {
  if (json.as_object() == nullptr) {
    return corrupt_error("model is no object");
  }
  HEADRACE_TRY(check_type(json));
  HEADRACE_TRY(check_neutral(json));
  BpeModel made;
  if (const Json* ignore = json.find("ignore_merges"); ignore != nullptr && !ignore->is_null()) {
    if (!ignore->as_bool()) {
      return corrupt_error("model.ignore_merges is neither true nor false");
    }
    made.ignore_merges_ = *ignore->as_bool();
  }
  HEADRACE_TRY(made.read_vocab(json));
  HEADRACE_TRY(made.read_merges(json));
  const auto lacking = std::count(made.byte_tokens_.begin(), made.byte_tokens_.end(), -1);
  const Json* unknown = json.find("unk_token");
  if (lacking > 0 && unknown != nullptr && !unknown->is_null()) {
    return usage_error("model.unk_token is set, and the vocabulary lacks bytes")
        .with_why(fmt::format("{} of the 256 bytes have no token; putting unk_token there would "
                              "lose them, which this version does not do",
                              lacking));
  }
  return made;
}

Status BpeModel::read_vocab(const Json& json) {
  const Json* vocab = json.find("vocab");
  if (vocab == nullptr || vocab->as_object() == nullptr) {
    return corrupt_error("model.vocab is no object");
  }
  const Json::Object& members = *vocab->as_object();
  const std::size_t ids_max = members.size() * kIdsPerToken + kIdsSpare;
  ids_.reserve(members.size());
  for (const Json::Member& member : members) {
    const std::optional<std::uint64_t> id = member.value.as_uint();
    if (!id || *id >= ids_max) {
      return corrupt_error(
                 fmt::format("model.vocab[\"{}\"] is no id below {}", member.key, ids_max))
          .with_why(fmt::format("the vocabulary has {} tokens", members.size()));
    }
    tokens_.resize(std::max<std::size_t>(tokens_.size(), *id + 1));
    std::optional<std::string>& token = tokens_[*id];
    if (token) {
      return corrupt_error(
          fmt::format("model.vocab[\"{}\"] has the id {} of another token", member.key, *id));
    }
    // A text outside the alphabet is never merged to; it stands for itself.
    token = byte_level_bytes(member.key).value_or(member.key);
    ids_.emplace(member.key, static_cast<std::int32_t>(*id));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    byte_tokens_[byte] = id_of(byte_level_text({&character, 1})).value_or(-1);
  }
  if (ignore_merges_) {
    for (const auto& [text, id] : ids_) {
      if (byte_level_bytes(text)) {
        words_.emplace(*tokens_[static_cast<std::size_t>(id)], id);
      }
    }
  }
  return {};
}

Status BpeModel::read_merges(const Json& json) {
  const Json* merges = json.find("merges");
  if (merges == nullptr || merges->as_array() == nullptr) {
    return corrupt_error("model.merges is no array");
  }
  const Json::Array& list = *merges->as_array();
  merges_.assign(std::bit_ceil(list.size() * 2 + 1), {.pair = 0, .rank = kNoRank, .id = 0});
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json::Array* pair = list[i].as_array();
    if (pair != nullptr && pair->size() == 2 && (*pair)[0].as_string() != nullptr &&
        (*pair)[1].as_string() != nullptr) {
      HEADRACE_TRY(add_merge(i, *(*pair)[0].as_string(), *(*pair)[1].as_string()));
      continue;
    }
    const std::string* whole = list[i].as_string();
    const std::string_view text = whole != nullptr ? std::string_view(*whole) : std::string_view();
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return corrupt_error(
          fmt::format("model.merges[{}] is neither \"a b\" nor [\"a\", \"b\"]", i));
    }
    HEADRACE_TRY(add_merge(i, text.substr(0, space), text.substr(space + 1)));
  }
  return {};
}

Status BpeModel::add_merge(std::size_t index, std::string_view left, std::string_view right) {
  std::array<std::int32_t, 3> ids = {};
  const std::string joined = fmt::format("{}{}", left, right);
  const std::array<std::string_view, 3> texts = {left, right, joined};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::optional<std::int32_t> id = id_of(texts[i]);
    if (!id) {
      return corrupt_error(
          fmt::format("model.merges[{}]: \"{}\" is not in model.vocab", index, texts[i]));
    }
    ids[i] = *id;
  }
  const std::uint64_t pair = pair_of(ids[0], ids[1]);
  const std::size_t mask = merges_.size() - 1;
  std::size_t slot = slot_of(pair, mask);
  while (merges_[slot].rank != kNoRank && merges_[slot].pair != pair) {
    slot = (slot + 1) & mask;
  }
  merges_[slot] = {.pair = pair, .rank = static_cast<std::uint32_t>(index), .id = ids[2]};
  return {};
}

std::optional<std::int32_t> BpeModel::id_of(std::string_view text) const {
  const auto found = ids_.find(std::string(text));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BpeModel::bytes_of(std::int64_t id) const {
  if (id < 0 || id >= vocab()) {
    return nullptr;
  }
  const std::optional<std::string>& token = tokens_[static_cast<std::size_t>(id)];
  return token ? &*token : nullptr;
}

const BpeModel::Merge* BpeModel::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t slot = slot_of(pair, mask); merges_[slot].rank != kNoRank;
       slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) {
      return &merges_[slot];
    }
  }
  return nullptr;
}

// Queues what the symbol and its next would become, if a merge joins them.
void BpeModel::queue(std::uint32_t at, MergeScratch& scratch) const {
  const MergeScratch::Symbol& left = scratch.symbols[at];
  if (left.next == kNone) {
    return;
  }
  const Merge* merge = find(left.id, scratch.symbols[left.next].id);
  if (merge != nullptr) {
    scratch.candidates += 1;
    scratch.heap.push_back({.rank = merge->rank, .at = at, .id = merge->id});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
  }
}

Status BpeModel::merge(std::string_view piece,
                       MergeScratch& scratch,
                       std::vector<std::int32_t>& tokens) const {
  if (ignore_merges_) {
    if (const auto whole = words_.find(piece); whole != words_.end()) {
      tokens.push_back(whole->second);
      return {};
    }
  }
  if (piece.size() >= kPieceBytesMax) {
    return operating_error("tokenizer: a piece of text of 2 GiB or more cannot be merged")
        .with_hint("cut the text into documents");
  }
  auto& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const std::int32_t id = byte_token(static_cast<unsigned char>(piece[i]));
    if (id < 0) {
      return operating_error(fmt::format("tokenizer: the byte 0x{:02X} has no token",
                                         static_cast<unsigned char>(piece[i])))
          .with_why("the vocabulary lacks it, so the text cannot be encoded without loss")
          .with_hint("leave such text out, or use a tokenizer with all 256 bytes");
    }
    const auto at = static_cast<std::uint32_t>(i);
    symbols.push_back({.id = id, .previous = at - 1, .next = at + 1});
  }
  symbols.front().previous = kNone;
  symbols.back().next = kNone;
  for (std::uint32_t at = 0; at < symbols.size(); ++at) {
    queue(at, scratch);
  }
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    const MergeScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    MergeScratch::Symbol& left = symbols[best.at];
    if (left.id < 0 || left.next == kNone) {
      continue;
    }
    MergeScratch::Symbol& right = symbols[left.next];
    const Merge* merge = find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) {
      continue;  // one of the two was merged meanwhile
    }
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) {
      symbols[left.next].previous = best.at;
    }
    if (left.previous != kNone) {
      queue(left.previous, scratch);
    }
    queue(best.at, scratch);
  }
  for (std::uint32_t at = 0; at != kNone; at = symbols[at].next) {
    tokens.push_back(symbols[at].id);
  }
  return {};
}

WordCache::WordCache() : entries_(kCacheEntries) {}

WordCache::Entry& WordCache::at(std::string_view word) {
  return entries_[static_cast<std::size_t>(hash_text(word)) & (kCacheEntries - 1)];
}

}  // namespace headrace::model
