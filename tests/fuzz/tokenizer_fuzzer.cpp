// Tokenizers under libFuzzer: an input that begins with { is a tokenizer.json, another one a text.
//
// Invariant: whatever the input is, reading and encoding return; tokens lie within the vocabulary;
// decode(encode(text)) is text for files that change nothing; a text may be cut where last_cut
// says. Thread: one. Failure: abort, which libFuzzer reports with its input.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/tokenizer_json.hpp"

namespace headrace::model {
namespace {

void require(bool fact) {
  if (!fact) {
    std::abort();
  }
}

std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> tokens;
  if (!tokenizer.encode(text, tokens)) {
    tokens.clear();
  }
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < tokenizer.vocab());
  }
  return tokens;
}

void fuzz_file(std::string_view input) {
  const auto tokenizer = parse_tokenizer_json(input, "fuzz");
  if (!tokenizer) {
    require(!tokenizer.error().what.empty());
    return;
  }
  for (const std::string_view text :
       {std::string_view("ab ab  a1\n\nb<mask> \xff\xe2\x82"), input.substr(0, 64)}) {
    std::string back;
    require((*tokenizer)->decode(encoded(**tokenizer, text), back).has_value());
    static_cast<void>((*tokenizer)->last_cut(text));
  }
}

std::unique_ptr<Tokenizer> read_kind(const std::string& name) {
  std::ifstream file(std::string(HEADRACE_MODEL_TESTDATA "/tokenizers/") + name + ".json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto tokenizer = parse_tokenizer_json(text, name);
  require(tokenizer.has_value());
  return *std::move(tokenizer);
}

// Its first byte says which kind.
void fuzz_text(std::string_view input) {
  constexpr std::size_t kNfcKind = 2;
  static const std::array<std::unique_ptr<Tokenizer>, 4> kinds = {
      read_kind("gpt2"), read_kind("llama3"), read_kind("qwen2"), read_kind("smollm2")};
  if (input.empty()) {
    return;
  }
  const std::size_t kind = static_cast<unsigned char>(input.front()) % kinds.size();
  const Tokenizer& tokenizer = *kinds[kind];
  const std::string_view text = input.substr(1);
  const std::vector<std::int32_t> tokens = encoded(tokenizer, text);
  std::string back;
  require(tokenizer.decode(tokens, back).has_value());
  require(kind == kNfcKind || back == text);
  for (std::size_t shown = 0; shown < text.size(); shown += 1 + shown / 4) {
    const std::size_t cut = tokenizer.last_cut(text.substr(0, shown));
    std::vector<std::int32_t> parts = encoded(tokenizer, text.substr(0, cut));
    const std::vector<std::int32_t> rest = encoded(tokenizer, text.substr(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    require(parts == tokens);
  }
}

void fuzz_tokenizer(std::string_view input) {
  if (input.starts_with('{')) {
    fuzz_file(input);
  } else {
    fuzz_text(input);
  }
}

}  // namespace
}  // namespace headrace::model

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headrace::model::HEADRACE_FUZZ_PARSER({reinterpret_cast<const char*>(data), size});
  return 0;
}
