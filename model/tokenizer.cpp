// The byte tokenizer (tokenizer.hpp).
#include "model/tokenizer.hpp"

#include <fmt/format.h>

namespace headrace::model {

namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "bytes"; }

  [[nodiscard]] std::int64_t vocab() const override { return kByteVocab; }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    tokens.reserve(tokens.size() + text.size());
    for (const char character : text) {
      tokens.push_back(static_cast<unsigned char>(character));
    }
  }

  [[nodiscard]] Status decode(std::span<const std::int32_t> tokens,
                              std::string& text) const override {
    for (const std::int32_t token : tokens) {
      if (token < 0 || token >= kByteVocab) {
        return operating_error(fmt::format("tokenizer 'bytes': token {} is not a byte", token))
            .with_hint("the model has a larger vocabulary: it needs its own tokenizer");
      }
      text += static_cast<char>(static_cast<unsigned char>(token));
    }
    return {};
  }
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& name) {
  if (name == "bytes") {
    return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  }
  return usage_error(fmt::format("tokenizer '{}' is not known", name))
      .with_why("this version has the byte tokenizer only")
      .with_hint("use \"bytes\", or token files made elsewhere");
}

}  // namespace headrace::model
