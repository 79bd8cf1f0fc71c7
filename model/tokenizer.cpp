// The byte tokenizer, and which tokenizer a name means (tokenizer.hpp).
#include "model/tokenizer.hpp"

#include <fmt/format.h>

#include "core/files.hpp"
#include "model/tokenizers/tokenizer_json.hpp"

namespace headrace::model {

namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "bytes"; }

  [[nodiscard]] std::int64_t vocab() const override { return kByteVocab; }

  [[nodiscard]] Status encode(std::string_view text,
                              std::vector<std::int32_t>& tokens) const override {
    tokens.reserve(tokens.size() + text.size());
    for (const char character : text) {
      tokens.push_back(static_cast<unsigned char>(character));
    }
    return {};
  }

  [[nodiscard]] bool has_token(std::int32_t token) const override {
    return token >= 0 && token < kByteVocab;
  }

  [[nodiscard]] Status decode(std::span<const std::int32_t> tokens,
                              std::string& text) const override {
    for (const std::int32_t token : tokens) {
      if (!has_token(token)) {
        return operating_error(fmt::format("tokenizer 'bytes': token {} is not a byte", token))
            .with_hint("the model has a larger vocabulary: it needs its own tokenizer");
      }
      text += static_cast<char>(static_cast<unsigned char>(token));
    }
    return {};
  }

  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view content) const override {
    if (content.size() != 1) {
      return std::nullopt;
    }
    return static_cast<unsigned char>(content.front());
  }

  [[nodiscard]] std::size_t last_cut(std::string_view text) const override { return text.size(); }
};

}  // namespace

std::string tokenizer_file_in(const std::string& dir) {
  std::string file = fmt::format("{}/tokenizer.json", dir);
  return is_regular_file(file) ? file : std::string();
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& name) {
  if (name == "bytes") {
    return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  }
  const std::string file = is_directory(name) ? tokenizer_file_in(name) : name;
  if (!is_regular_file(file)) {
    return usage_error(fmt::format("tokenizer '{}' is not known", name))
        .with_why(is_directory(name) ? "the directory holds no tokenizer.json"
                                     : "there is no such file")
        .with_hint("use \"bytes\", a tokenizer.json, or a directory that holds one");
  }
  HEADRACE_ASSIGN(const std::string text, read_file(file, kTokenizerBytesMax));
  return parse_tokenizer_json(text, file);
}

}  // namespace headrace::model
