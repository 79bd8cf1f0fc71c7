// Tokenizers against Hugging Face's tokens (testdata/tokenizers/make_cases.py), and what they
// refuse.
#include "model/tokenizer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "core/files.hpp"
#include "core/json.hpp"
#include "model/test_support.hpp"
#include "model/tokenizers/bpe.hpp"
#include "model/tokenizers/regex.hpp"
#include "model/tokenizers/tokenizer_json.hpp"
#include "model/tokenizers/unicode.hpp"

namespace headrace::model {
namespace {

constexpr std::uint64_t kFixtureBytesMax = 1U << 20U;

std::string fixture_path(const std::string& name) {
  return fmt::format("{}/tokenizers/{}", HEADRACE_MODEL_TESTDATA, name);
}

Json fixture(const std::string& name) {
  const auto text = read_file(fixture_path(name), kFixtureBytesMax);
  EXPECT_TRUE(text);
  auto json = parse_json(*text);
  EXPECT_TRUE(json);
  return *std::move(json);
}

// `json` with the member "x" or "model.x" replaced.
void set_member(Json& json, const std::string& name, const Json& value) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) {
    json.set(name, value);
    return;
  }
  Json inner = *json.find(name.substr(0, dot));
  set_member(inner, name.substr(dot + 1), value);
  json.set(name.substr(0, dot), inner);
}

Result<std::unique_ptr<Tokenizer>> made_of(const std::string& base,
                                           const std::vector<std::pair<std::string, Json>>& set) {
  Json json = fixture(base + ".json");
  for (const auto& [name, value] : set) {
    set_member(json, name, value);
  }
  return parse_tokenizer_json(json.dump(), base);
}

std::unique_ptr<Tokenizer> tokenizer_of(const std::string& base) {
  auto made = made_of(base, {});
  EXPECT_TRUE(made) << format_error(made.error(), true);
  return *std::move(made);
}

std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> tokens;
  const Status status = tokenizer.encode(text, tokens);
  EXPECT_TRUE(status) << format_error(status.error(), true);
  return tokens;
}

std::string decoded(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens) {
  std::string text;
  EXPECT_TRUE(tokenizer.decode(tokens, text));
  return text;
}

Json json_of(const std::string& text) {
  auto json = parse_json(text);
  EXPECT_TRUE(json) << text;
  return *std::move(json);
}

const std::vector<std::string>& kinds() {
  static const std::vector<std::string> names = {"gpt2", "llama3", "qwen2", "smollm2"};
  return names;
}

std::vector<std::string> all_texts() {
  std::vector<std::string> texts;
  const Json json = fixture("texts.json");
  for (const Json& text : *json.as_array()) {
    texts.push_back(*text.as_string());
  }
  return texts;
}

// Text of the fixtures' pieces, and bytes at random.
std::string random_text(std::mt19937_64& random, bool any_bytes) {
  static const std::vector<std::string> texts = all_texts();
  std::string text;
  for (std::uint64_t i = random() % 8; i > 0; --i) {
    const std::string& piece = texts[random() % texts.size()];
    text += any_bytes ? piece.substr(random() % (piece.size() + 1)) : piece;
    if (any_bytes && random() % 2 == 0) {
      text += static_cast<char>(random() % 256);
    }
  }
  return text;
}

TEST(Tokenizer, TokensAreThoseOfHuggingFace) {
  const std::vector<std::string> texts = all_texts();
  std::size_t compared = 0;
  const Json cases = fixture("cases.json");
  for (const Json& one : *cases.as_array()) {
    std::vector<std::pair<std::string, Json>> set;
    for (const Json::Member& member : *one.find("set")->as_object()) {
      set.emplace_back(member.key, member.value);
    }
    const auto tokenizer = made_of(*one.find("base")->as_string(), set);
    const std::string label = one.find("base")->dump() + one.find("set")->dump();
    ASSERT_TRUE(tokenizer) << label << format_error(tokenizer.error(), true);
    auto at = static_cast<std::size_t>(*one.find("first")->as_int());
    for (const Json& ids : *one.find("ids")->as_array()) {
      std::vector<std::int32_t> expected;
      for (const Json& id : *ids.as_array()) {
        expected.push_back(static_cast<std::int32_t>(*id.as_int()));
      }
      EXPECT_EQ(encoded(**tokenizer, texts[at]), expected) << label << Json(texts[at]).dump();
      at += static_cast<std::size_t>(*one.find("every")->as_int());
      ++compared;
    }
  }
  EXPECT_GT(compared, 2000U);
}

TEST(Tokenizer, DecodingGivesTheBytesBack) {
  std::mt19937_64 random(test_seed());
  for (const char* kind : {"gpt2", "llama3", "smollm2"}) {
    const auto tokenizer = tokenizer_of(kind);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random, i % 2 == 0);
      ASSERT_EQ(decoded(*tokenizer, encoded(*tokenizer, text)), text) << kind << Json(text).dump();
    }
  }
}

TEST(Tokenizer, NfcIsDecodedAsNfc) {
  const auto tokenizer = tokenizer_of("qwen2");
  EXPECT_EQ(decoded(*tokenizer, encoded(*tokenizer, "e\u0301 \u212b")), "\u00e9 \u00c5");
}

TEST(Tokenizer, BytesThatAreNotUtf8AreTheirOwnTokens) {
  const auto tokenizer = tokenizer_of("gpt2");
  const std::vector<std::int32_t> broken = encoded(*tokenizer, "the \xff\xfe\xe2\x82 the");
  std::vector<std::int32_t> expected = encoded(*tokenizer, "the ");
  for (const char* byte : {"\xff", "\xfe", "\xe2", "\x82"}) {
    const std::vector<std::int32_t> one = encoded(*tokenizer, byte);
    ASSERT_EQ(one.size(), 1U);
    expected.push_back(one.front());
  }
  const std::vector<std::int32_t> rest = encoded(*tokenizer, " the");
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(broken, expected);
}

TEST(Tokenizer, AByteWithoutATokenIsAnError) {
  Json vocab = Json::object();
  const Json gpt2 = fixture("gpt2.json");
  for (const Json::Member& member : *gpt2.find("model")->find("vocab")->as_object()) {
    if (member.key != byte_level_text("\xfe")) {
      vocab.add(member.key, member.value);
    }
  }
  const auto tokenizer = made_of("gpt2", {{"model.vocab", vocab}});
  ASSERT_TRUE(tokenizer) << format_error(tokenizer.error(), true);
  std::vector<std::int32_t> tokens;
  const Status status = (*tokenizer)->encode("a\xfe", tokens);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("0xFE"), std::string::npos);
  // With a token for what is unknown, Hugging Face would put that there.
  const auto unknown = made_of("gpt2", {{"model.vocab", vocab}, {"model.unk_token", "a"}});
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().what.find("model.unk_token"), std::string::npos);
}

TEST(Tokenizer, ATextMayBeCutWhereItSays) {
  std::mt19937_64 random(test_seed());
  std::size_t cuts = 0;
  for (const std::string& kind : kinds()) {
    const auto tokenizer = tokenizer_of(kind);
    for (int i = 0; i < 400; ++i) {
      const std::string text = random_text(random, i % 4 == 0);
      const std::vector<std::int32_t> whole = encoded(*tokenizer, text);
      for (std::size_t shown = 1; shown < text.size(); shown += 1 + random() % 16) {
        const std::size_t cut = tokenizer->last_cut(std::string_view(text).substr(0, shown));
        std::vector<std::int32_t> parts = encoded(*tokenizer, text.substr(0, cut));
        const std::vector<std::int32_t> rest = encoded(*tokenizer, text.substr(cut));
        parts.insert(parts.end(), rest.begin(), rest.end());
        ASSERT_EQ(parts, whole) << kind << " at " << cut << Json(text).dump();
        cuts += cut > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(cuts, 1000U);
}

TEST(Tokenizer, NoPlaceToCutIsKnownWhereTokensMayLieAcross) {
  const std::string text = "one\ntwo three\nfour";
  EXPECT_GT(tokenizer_of("qwen2")->last_cut(text), 0U);
  EXPECT_GT(tokenizer_of("gpt2")->last_cut(text), 0U);
  const Json strips =
      json_of(R"([{"id":620,"content":"<m>","single_word":false,"lstrip":true,"rstrip":false,)"
              R"("normalized":false,"special":true}])");
  for (const auto& [member, value] : std::vector<std::pair<std::string, Json>>{
           {"added_tokens", strips},
           {"pre_tokenizer", json_of(R"({"type":"ByteLevel","add_prefix_space":true})")},
           {"pre_tokenizer",
            json_of(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})")}}) {
    const auto tokenizer = made_of("gpt2", {{member, value}});
    ASSERT_TRUE(tokenizer) << format_error(tokenizer.error(), true);
    EXPECT_EQ((*tokenizer)->last_cut(text), 0U) << value.dump();
  }
}

TEST(Tokenizer, ManyThreadsEncodeAtOnce) {
  const auto tokenizer = tokenizer_of("llama3");
  const std::vector<std::string> texts = all_texts();
  std::vector<std::vector<std::int32_t>> alone;
  alone.reserve(texts.size());
  for (const std::string& text : texts) {
    alone.push_back(encoded(*tokenizer, text));
  }
  std::vector<int> different(4);
  std::vector<std::thread> threads;
  threads.reserve(different.size());
  for (int& count : different) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        count += encoded(*tokenizer, texts[i]) == alone[i] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(different, std::vector<int>(4));
}

// What is queued bounds the work; a merge that scanned the piece each time would take n^2.
TEST(Tokenizer, LongPiecesTakeWorkInTheirLength) {
  const Json llama3 = fixture("llama3.json");
  const auto model = BpeModel::make(*llama3.find("model"));
  ASSERT_TRUE(model);
  for (const char* unit : {" ", "a", "ab", "the wheel"}) {
    std::string piece;
    while (piece.size() < 200'000) {
      piece += unit;
    }
    MergeScratch scratch;
    std::vector<std::int32_t> tokens;
    ASSERT_TRUE(model->merge(piece, scratch, tokens));
    EXPECT_LE(scratch.candidates, 3 * piece.size()) << unit;
  }
  // Would not end within the test's time.
  const auto tokenizer = tokenizer_of("qwen2");
  for (const char* unit : {" ", "a", "\n", "=", "\u0323\u0307"}) {
    std::string text;
    while (text.size() < 4'000'000) {
      text += unit;
    }
    EXPECT_EQ(decoded(*tokenizer, encoded(*tokenizer, text)).size(), text.size());
  }
}

TEST(Tokenizer, WhatWouldGiveOtherTokensIsRefusedByItsField) {
  struct Case {
    std::string member;
    std::string value;
    std::string named;
  };

  const std::vector<Case> cases = {
      {"normalizer", R"({"type":"NFKC"})", "normalizer.type \"NFKC\""},
      {"normalizer",
       R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]})",
       "normalizer.normalizers[1]"},
      {"normalizer", "7", "normalizer.type"},
      {"model.type", "\"Unigram\"", "model.type"},
      {"model.dropout", "0.1", "model.dropout"},
      {"model.byte_fallback", "true", "model.byte_fallback"},
      {"model.continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
      {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
      {"model.vocab", R"({"a":0,"b":0})", "model.vocab[\"b\"]"},
      {"model.vocab", R"({"a":-1})", "model.vocab[\"a\"]"},
      {"model.vocab", R"({"a":4000000000})", "model.vocab[\"a\"]"},
      {"model.vocab", "[]", "model.vocab"},
      {"model.merges", R"(["a"])", "model.merges[0]"},
      {"model.merges", R"(["a b c"])", "model.merges[0]"},
      {"model.merges", R"([["a","b","c"]])", "model.merges[0]"},
      {"model.merges", R"([["a","nowhere"]])", "\"nowhere\""},
      {"model", "null", "model"},
      {"pre_tokenizer", "null", "pre_tokenizer"},
      {"pre_tokenizer", R"({"type":"Metaspace"})", "pre_tokenizer: type \"Metaspace\""},
      {"pre_tokenizer", R"({"type":"Digits"})", "no ByteLevel"},
      {"pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})",
       "pre_tokenizer.pretokenizers[1]"},
      {"pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"["},)"
       R"("behavior":"Isolated"}]})",
       "pre_tokenizer.pretokenizers[0]"},
      {"pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"})", "\"Odd\""},
      {"added_tokens", R"([{"id":5}])", "added_tokens[0]"},
      {"added_tokens",
       R"([{"id":5,"content":"<x>","single_word":false,"lstrip":false,"rstrip":false,)"
       R"("normalized":false,"special":true}])",
       "added_tokens[0]"},
      {"added_tokens", "{}", "added_tokens"},
  };
  for (const Case& one : cases) {
    const auto made = made_of("gpt2", {{one.member, json_of(one.value)}});
    ASSERT_FALSE(made) << one.member << one.value;
    EXPECT_NE(made.error().what.find("tokenizer 'gpt2'"), std::string::npos) << made.error().what;
    EXPECT_NE(made.error().what.find(one.named), std::string::npos) << made.error().what;
  }
}

TEST(Tokenizer, PatternsThatTheDialectsReadDifferentlyAreRefused) {
  for (const char* pattern :
       {"^a",   "a$",  "a{1,2}+", "a{,2}", "[a[b]]",  "[a&&b]",     "[]a]",         "\\h",
        "\\b",  "\\1", "\\xE9",   "(?x)a", "(*FAIL)", "(?<name>a)", "\\p{Nowhere}", "(",
        "\\pL", "\\",  "[\\W]",   "\\x{",  "\\p{",    "a(?i)b|c",   "\\|(?i)b",     "a{2}?"}) {
    EXPECT_FALSE(Regex::compile(pattern)) << pattern;
  }
  for (const char* pattern : {"(?i)a|b", "((?i)a|b)c", "(?:a|(?i)b)", "a{2,3}?", "a{2}"}) {
    EXPECT_TRUE(Regex::compile(pattern)) << pattern;
  }
  EXPECT_EQ(*pcre2_pattern_of("[^\\s\\p{Han}]\\x0A\\u00e9"),
            "[^\\p{White_Space}\\p{sc:Han}]\\x{0A}\\x{00e9}");
}

TEST(Tokenizer, NamesMeanBytesFilesAndDirectories) {
  ASSERT_TRUE(make_tokenizer("bytes"));
  const auto tokenizer = make_tokenizer(fixture_path("gpt2.json"));
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ((*tokenizer)->vocab(), 620);
  EXPECT_EQ((*tokenizer)->token_id("<|endoftext|>"), 0);
  EXPECT_FALSE((*tokenizer)->token_id("<|nowhere|>"));
  const auto folder = make_tokenizer(fixture_path(""));
  ASSERT_FALSE(folder);
  EXPECT_NE(folder.error().why.find("no tokenizer.json"), std::string::npos);
  EXPECT_EQ(make_tokenizer("gpt5").error().code, ExitCode::kUsage);
}

TEST(Tokenizer, AnIdOutsideTheVocabularyIsAnError) {
  const auto tokenizer = tokenizer_of("gpt2");
  std::string text;
  EXPECT_TRUE(tokenizer->has_token(0));
  EXPECT_TRUE(tokenizer->has_token(619));
  for (const std::int32_t token : {-1, 620, 1 << 30}) {
    EXPECT_FALSE(tokenizer->has_token(token));
    EXPECT_FALSE(tokenizer->decode({&token, 1}, text));
  }
}

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  const auto tokenizer = make_tokenizer("bytes");
  ASSERT_TRUE(tokenizer);
  std::string text;
  std::vector<std::int32_t> expected;
  for (int byte = 0; byte < 256; ++byte) {
    text += static_cast<char>(byte);
    expected.push_back(byte);
  }
  EXPECT_EQ(encoded(**tokenizer, text), expected);
  EXPECT_EQ(decoded(**tokenizer, expected), text);
  EXPECT_EQ((*tokenizer)->vocab(), 256);
  for (const std::int32_t outside : {-1, 256}) {
    EXPECT_FALSE((*tokenizer)->decode({&outside, 1}, text));
  }
}

}  // namespace
}  // namespace headrace::model
