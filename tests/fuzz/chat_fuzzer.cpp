// Instruction data under libFuzzer: an input that begins with { is a line, another one a template.
//
// Invariant: whatever the input is, reading and rendering return; an example has at least two
// tokens within the vocabulary, the first is not one to learn, another one is. Thread: one.
// Failure: abort, which libFuzzer reports with its input.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "model/tokenizers/tokenizer_json.hpp"
#include "train/chat_example.hpp"
#include "train/chat_template.hpp"
#include "train/token_writer.hpp"

namespace headrace::train {
namespace {

void require(bool fact) {
  if (!fact) {
    std::abort();
  }
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<model::Tokenizer> read_tokenizer(const std::string& name) {
  auto tokenizer = model::parse_tokenizer_json(
      read_text(std::string(HEADRACE_MODEL_TESTDATA "/tokenizers/") + name + ".json"), name);
  require(tokenizer.has_value());
  return *std::move(tokenizer);
}

void fuzz_template(std::string_view input) {
  const auto made = ChatTemplate::recognise(input, {.bos = "<", .eos = ">"}, "fuzz");
  if (!made) {
    require(!made.error().what.empty());
    return;
  }
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "a"}};
  const auto text = made->render(messages, true);
  // Every template that is recognised renders a single turn, and puts the answer last.
  require(text.has_value() && text->learned.empty());
  const std::vector<ChatMessage> answered = {
      {.role = "user", .content = "a"}, {.role = "assistant", .content = "b", .learned = true}};
  const auto whole = made->render(answered, false);
  require(whole.has_value() && !whole->learned.empty());
  std::string learned;
  for (const TextSpan& span : whole->learned) {
    require(span.begin <= span.end && span.end <= whole->text.size());
    learned += whole->text.substr(span.begin, span.end - span.begin);
  }
  require(learned.ends_with("b" + made->turn_end()));
}

// For each template of the cases, with its tokenizer.
struct Known {
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::unique_ptr<ChatEncoder> encoder;
};

std::vector<Known> read_known() {
  const auto cases = parse_json(read_text(HEADRACE_CHAT_TESTDATA "/cases.json"));
  require(cases.has_value());
  std::vector<Known> all;
  for (const Json& one : *cases->as_array()) {
    Known& known = all.emplace_back();
    known.tokenizer = read_tokenizer(*one.require_string("tokenizer"));
    known.encoder = std::make_unique<ChatEncoder>(
        *known.tokenizer,
        ChatTemplate::recognise(
            *one.require_string("template"), {.bos = "<|end|>", .eos = "<|endoftext|>"}, "fuzz"),
        std::optional<std::int32_t>(0));
  }
  return all;
}

void fuzz_line(std::string_view input) {
  static const std::vector<Known> all = read_known();
  const auto line = parse_json(input);
  if (!line) {
    return;
  }
  for (const Known& known : all) {
    std::vector<std::uint32_t> words;
    const Status status = known.encoder->encode(*line, words);
    if (!status) {
      require(!status.error().what.empty());
      continue;
    }
    require(words.size() >= 2 && words.front() < kLearnedBit);
    bool any = false;
    for (const std::uint32_t word : words) {
      require(static_cast<std::int64_t>(word & ~kLearnedBit) < known.tokenizer->vocab());
      any = any || word >= kLearnedBit;
    }
    require(any);
  }
}

void fuzz_chat(std::string_view input) {
  if (input.starts_with('{') && !input.starts_with("{{") && !input.starts_with("{%")) {
    fuzz_line(input);
  } else {
    fuzz_template(input);
  }
}

}  // namespace
}  // namespace headrace::train

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headrace::train::HEADRACE_FUZZ_PARSER({reinterpret_cast<const char*>(data), size});
  return 0;
}
