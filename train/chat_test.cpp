// Conversations against transformers: text, tokens, and which of them are learned
// (train/testdata/chat/make_cases.py makes the cases).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/files.hpp"
#include "core/json.hpp"
#include "model/tokenizer.hpp"
#include "model/tokenizers/bpe.hpp"
#include "model/tokenizers/tokenizer_json.hpp"
#include "train/chat_example.hpp"
#include "train/chat_template.hpp"
#include "train/test_folder.hpp"
#include "train/token_writer.hpp"

namespace headrace::train {
namespace {

const ChatTemplate::Specials kSpecials = {.bos = "<|end|>", .eos = "<|endoftext|>"};

Json read_cases() {
  const Result<std::string> text = read_file(HEADRACE_CHAT_TESTDATA "/cases.json", 1U << 30U);
  EXPECT_TRUE(text);
  return parse_json(*text).value();
}

std::string text_of(const Json& json, std::string_view key) {
  return json.require_string(key).value();
}

std::unique_ptr<model::Tokenizer> tokenizer_of(const std::string& name) {
  return model::make_tokenizer(fmt::format("{}/tokenizers/{}.json", HEADRACE_MODEL_TESTDATA, name))
      .value();
}

std::vector<ChatMessage> messages_of(const Json& one) {
  std::vector<ChatMessage> messages;
  for (const Json& message : *one.find("messages")->as_array()) {
    const std::string role = text_of(message, "role");
    messages.push_back(
        {.role = role, .content = text_of(message, "content"), .learned = role == "assistant"});
  }
  return messages;
}

// "0" and "1" for each token.
std::string learned_of(const std::vector<std::uint32_t>& words) {
  std::string learned;
  for (const std::uint32_t word : words) {
    learned += word >= kLearnedBit ? '1' : '0';
  }
  return learned;
}

Json ids_of(const std::vector<std::uint32_t>& words) {
  Json ids = Json::array();
  for (const std::uint32_t word : words) {
    ids.push_back(static_cast<std::int64_t>(word & ~kLearnedBit));
  }
  return ids;
}

TEST(ChatTemplate, TextsAreThoseOfTransformers) {
  const Json all = read_cases();
  for (const Json& one : *all.as_array()) {
    const std::string name = text_of(one, "name");
    const auto made = ChatTemplate::recognise(text_of(one, "template"), kSpecials, name);
    ASSERT_TRUE(made) << name;
    for (const Json& each : *one.find("cases")->as_array()) {
      std::vector<ChatMessage> messages = messages_of(each);
      EXPECT_EQ(made->render(messages, false)->text, text_of(each, "text")) << name;
      messages.pop_back();
      EXPECT_EQ(made->render(messages, true)->text, text_of(each, "asked")) << name;
    }
  }
}

TEST(ChatEncoder, TokensAreThoseOfTransformersAndTheAssistantsAreLearned) {
  const Json all = read_cases();
  for (const Json& one : *all.as_array()) {
    const std::string name = text_of(one, "name");
    const auto tokenizer = tokenizer_of(text_of(one, "tokenizer"));
    const ChatEncoder encoder(*tokenizer,
                              ChatTemplate::recognise(text_of(one, "template"), kSpecials, name),
                              std::optional<std::int32_t>());
    for (const Json& each : *one.find("cases")->as_array()) {
      std::vector<std::uint32_t> words;
      ASSERT_TRUE(encoder.encode(each, words)) << name << each.dump();
      EXPECT_EQ(ids_of(words), *each.find("ids")) << name << each.dump();
      EXPECT_EQ(learned_of(words), text_of(each, "learned")) << name << each.dump();
    }
  }
}

TEST(ChatTemplate, AnyOtherTemplateIsRefused) {
  const Json all = read_cases();
  for (const Json& one : *all.as_array()) {
    const std::string name = text_of(one, "name");
    const std::string jinja = text_of(one, "template");
    // Jinja drops a last line feed.
    EXPECT_EQ(ChatTemplate::recognise(jinja + "\n", kSpecials, name).has_value(),
              !jinja.ends_with('\n'));
    for (std::size_t at = 0; at < jinja.size(); at += 1 + jinja.size() / 60) {
      std::string other = jinja;
      other[at] = other[at] == 'q' ? 'p' : 'q';
      const auto made = ChatTemplate::recognise(other, kSpecials, "dir/tokenizer_config.json");
      if (made) {
        // Only the default system message may be another one.
        const std::vector<ChatMessage> user = {{.role = "user", .content = "x"}};
        EXPECT_NE(made->render(user, true)->text.find('q'), std::string::npos) << other;
        continue;
      }
      EXPECT_EQ(made.error().code, ExitCode::kUsage);
      EXPECT_NE(made.error().hint.find("apply_chat_template"), std::string::npos);
    }
  }
}

TEST(ChatTemplate, SpacesAndQuotesOfABlockChangeNothing) {
  const Json all = read_cases();
  std::string jinja = text_of((*all.as_array())[0], "template");
  const auto replace = [&](std::string_view from, std::string_view to) {
    const std::size_t at = jinja.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    jinja.replace(at, from.size(), to);
  };
  replace("message['role'] +", "message[\"role\"]\n+");
  replace("{% for message", "{%for  message");
  replace("assistant\n", "assistant\\n");
  EXPECT_TRUE(ChatTemplate::recognise(jinja, kSpecials, "x")) << jinja;
  replace("{%for", "a{%for");
  EXPECT_FALSE(ChatTemplate::recognise(jinja, kSpecials, "x")) << jinja;
}

TEST(ChatTemplate, ASystemMessageThatATemplateLacksIsAnErrorOfUsage) {
  const Json all = read_cases();
  int seen = 0;
  for (const Json& one : *all.as_array()) {
    if (!text_of(one, "name").starts_with("mistral")) {
      continue;
    }
    const auto made = ChatTemplate::recognise(text_of(one, "template"), kSpecials, "x");
    const std::vector<ChatMessage> messages = {{.role = "system", .content = "s"},
                                               {.role = "user", .content = "u"}};
    const auto text = made->render(messages, true);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, ExitCode::kUsage);
    EXPECT_NE(text.error().why.find("no system message"), std::string::npos);
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

TEST(ChatTemplate, DamagedTemplatesEnd) {
  for (const std::string jinja :
       {"", "{", "{{", "{%", "{{ '", "{{ '\\", "{{ 'a", "{% \"", "{{ }", "{#"}) {
    EXPECT_FALSE(ChatTemplate::recognise(jinja, kSpecials, "x")) << jinja;
  }
}

// A tokenizer whose tokens are bytes and what these merges make of them.
struct MadeTokenizer {
  std::vector<std::pair<std::string, std::string>> merges;
  std::string pattern = "[^\\n]+|\\n";
  bool nfc = false;
  bool add_prefix_space = false;
  bool lstrip = false;  // of the added token <x>
  bool rstrip = false;

  [[nodiscard]] std::unique_ptr<model::Tokenizer> make() const {
    Json vocab = Json::object();
    std::int64_t id = 0;
    for (int byte = 0; byte < 256; ++byte) {
      vocab.add(model::byte_level_text(std::string(1, static_cast<char>(byte))), id++);
    }
    Json pairs = Json::array();
    for (const auto& [left, right] : merges) {
      vocab.add(model::byte_level_text(left + right), id++);
      pairs.push_back(model::byte_level_text(left) + " " + model::byte_level_text(right));
    }
    Json model = Json::object();
    model.add("type", "BPE").add("vocab", vocab).add("merges", pairs);
    Json added = Json::object();
    added.add("id", id).add("content", "<x>").add("single_word", false).add("lstrip", lstrip);
    added.add("rstrip", rstrip).add("normalized", false).add("special", true);
    Json split = Json::object();
    split.add("type", "Split").add("pattern", Json::object().add("Regex", pattern));
    split.add("behavior", "Isolated").add("invert", false);
    Json bytes = Json::object();
    bytes.add("type", "ByteLevel").add("add_prefix_space", add_prefix_space);
    bytes.add("trim_offsets", true).add("use_regex", false);
    Json sequence = Json::object();
    sequence.add("type", "Sequence");
    sequence.add("pretokenizers", Json::array().push_back(split).push_back(bytes));
    Json file = Json::object();
    file.add("added_tokens", Json::array().push_back(added));
    if (nfc) {
      file.add("normalizer", Json::object().add("type", "NFC"));
    }
    file.add("pre_tokenizer", add_prefix_space ? bytes : sequence);
    file.add("decoder", Json::object().add("type", "ByteLevel")).add("model", model);
    auto made = model::parse_tokenizer_json(file.dump(), "made");
    EXPECT_TRUE(made) << (made ? "" : made.error().what + made.error().why);
    return std::move(made).value();
  }

  // The tokens' texts, with [ where what is learned begins and ] where it ends; "!": refused.
  [[nodiscard]] std::string spans(const std::string& prompt,
                                  const std::string& completion,
                                  const std::string& more = "") const {
    const auto tokenizer = make();
    ChatText text;
    text.add(prompt);
    text.add(completion, true);
    text.add(more);
    const auto found = encode_spans(*tokenizer, text);
    if (!found) {
      EXPECT_EQ(found.error().code, ExitCode::kCorrupt);
      return "!";
    }
    std::string shown;
    for (std::size_t i = 0; i <= found->tokens.size(); ++i) {
      shown += i == found->spans[0].begin ? "[" : "";
      shown += i == found->spans[0].end ? "]" : "";
      if (i < found->tokens.size()) {
        EXPECT_TRUE(tokenizer->decode(std::span(found->tokens).subspan(i, 1), shown));
        shown += '|';
      }
    }
    return shown;
  }
};

// A token of both sides makes the tokens of the prompt alone differ from the whole's.
const std::pair<std::string, std::string> kAcross = {"a", "b"};

TEST(ChatSpans, ACharacterThatIsComposedCountsAsItIsDecoded) {
  const MadeTokenizer made{.merges = {kAcross, {"\xC3", "\xA9"}}, .nfc = true};
  EXPECT_EQ(made.spans("e\u0301e\u0301a", "bcd"), "é|é|[ab|c|d|]");
  EXPECT_EQ(made.spans("z", "e\u0301a", "bcd"), "z|[é|ab|]c|d|");
  // One made of both sides reaches into what is learned.
  EXPECT_EQ(made.spans("ze", "\u0301d"), "z|[é|d|]");
  // In two tokens it is of neither side.
  const MadeTokenizer bytes{.merges = {}, .nfc = true};
  EXPECT_EQ(bytes.spans("ze", "\u0301d"), "!");
}

TEST(ChatSpans, SpacesThatAreAddedAreNoneOfTheTexts) {
  const MadeTokenizer made{.merges = {kAcross}, .add_prefix_space = true};
  EXPECT_EQ(made.spans("c<x>zza", "bd"), " |c|<x>| |z|z|[ab|d|]");
  EXPECT_EQ(made.spans("c", "<x>zza", "bd"), " |c|[<x>| |z|z|ab|]d|");
}

TEST(ChatSpans, SpacesThatAnAddedTokenTakesAreNotCounted) {
  const MadeTokenizer behind{.merges = {kAcross}, .rstrip = true};
  EXPECT_EQ(behind.spans("<x>   zza", "bdefg"), "<x>|z|z|[ab|d|e|f|g|]");
  EXPECT_EQ(behind.spans("<x>", "   zz"), "<x>|[z|z|]");
  const MadeTokenizer before{.merges = {kAcross}, .lstrip = true};
  EXPECT_EQ(before.spans("c   ", "<x>d"), "c|[<x>|d|]");
  EXPECT_EQ(before.spans("c", "d   ", "<x>e"), "c|[d|]<x>|e|");
}

TEST(ChatSpans, AnEndBetweenTwoTokensIsThere) {
  // Two spaces are one token where nothing stands behind them.
  const MadeTokenizer made{.merges = {{" ", " "}}, .pattern = "\\s+(?!\\S)|\\s|\\S+"};
  EXPECT_EQ(made.spans("c", "d  ", "e"), "c|[d| | |]e|");
  EXPECT_EQ(made.spans("d  ", "e"), "d| | |[e|]");
}

class ChatFiles : public TestFolder {};

TEST_F(ChatFiles, TheTemplateBesideATokenizerIsFound) {
  const Json all = read_cases();
  const std::string jinja = text_of((*all.as_array())[0], "template");
  const std::string tokenizer = path("tokenizer.json");
  EXPECT_EQ(ChatTemplate::beside(tokenizer).error().code, ExitCode::kUsage);
  Json config = Json::object();
  config.add("chat_template", jinja);
  write("tokenizer_config.json", config.dump());
  EXPECT_TRUE(ChatTemplate::beside(tokenizer));
  Json named = Json::object();
  named.add("name", "default").add("template", jinja);
  config.set("chat_template", Json::array().push_back(named));
  write("tokenizer_config.json", config.dump());
  EXPECT_TRUE(ChatTemplate::beside(tokenizer));
  write("chat_template.jinja", "{{ other }}");  // comes before what the configuration says
  const auto other = ChatTemplate::beside(tokenizer);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().what.find("chat_template.jinja"), std::string::npos);
  write("tokenizer_config.json", "{");
  EXPECT_EQ(ChatTemplate::beside(tokenizer).error().code, ExitCode::kCorrupt);
}

// By bytes: what is learned can be read off.
class ChatLines : public ::testing::Test {
 protected:
  ChatLines()
      : tokenizer_(model::make_tokenizer("bytes").value()),
        encoder_(*tokenizer_,
                 ChatTemplate::recognise(text_of((*cases_.as_array())[0], "template"), {}, "x"),
                 std::optional<std::int32_t>(256)) {}

  // The learned bytes; '$' is the end.
  std::string learned(const std::string& line) {
    std::vector<std::uint32_t> words;
    const Status status = encoder_.encode(parse_json(line).value(), words);
    EXPECT_TRUE(status) << line;
    std::string text;
    for (const std::uint32_t word : words) {
      const std::uint32_t token = word & ~kLearnedBit;
      if (word >= kLearnedBit) {
        text += token == 256 ? '$' : static_cast<char>(token);
      }
    }
    return text;
  }

  Error error(const std::string& line) {
    std::vector<std::uint32_t> words;
    const Status status = encoder_.encode(parse_json(line).value(), words);
    EXPECT_FALSE(status) << line;
    return status ? Error{} : status.error();
  }

  Json cases_ = read_cases();
  std::unique_ptr<model::Tokenizer> tokenizer_;
  ChatEncoder encoder_;
};

TEST_F(ChatLines, WhatIsLearned) {
  EXPECT_EQ(learned(R"({"prompt":"ab","completion":"cd"})"), "cd$");
  EXPECT_EQ(learned(R"({"prompt":"","completion":"cd"})"), "d$");  // nothing leads to the first
  EXPECT_EQ(learned(R"({"prompt":"a","completion":""})"), "$");
  const std::string user = R"({"role":"user","content":"u"})";
  const auto says = [](const std::string& text, const std::string& more = "") {
    return fmt::format(R"({{"role":"assistant","content":"{}"{}}})", text, more);
  };
  EXPECT_EQ(learned(fmt::format(R"({{"messages":[{0},{1},{0},{2}]}})", user, says("a"), says("b"))),
            "a<|im_end|>b<|im_end|>");
  EXPECT_EQ(learned(fmt::format(
                R"({{"prompt":[{0},{1},{0}],"completion":[{2}]}})", user, says("a"), says("b"))),
            "b<|im_end|>");
  EXPECT_EQ(learned(fmt::format(R"({{"messages":[{0},{1},{0},{2}]}})",
                                user,
                                says("a", R"(,"weight":0)"),
                                says("b", R"(,"weight":1,"tool_calls":null)"))),
            "b<|im_end|>");
}

TEST_F(ChatLines, WhatCannotBeRenderedIsRefusedByItsName) {
  const auto message = [](const std::string& members) {
    return fmt::format(R"({{"messages":[{{{}}}]}})", members);
  };
  EXPECT_NE(error(R"({"text":"a"})").hint.find("messages"), std::string::npos);
  EXPECT_NE(error(R"(["a"])").hint.find("messages"), std::string::npos);
  EXPECT_NE(error(R"({"conversations":[]})").hint.find("rename"), std::string::npos);
  EXPECT_NE(error(R"({"prompt":"a","completion":[]})").hint.find("messages"), std::string::npos);
  EXPECT_NE(error(R"({"messages":[],"prompt":"a"})").what.find("beside"), std::string::npos);
  EXPECT_NE(error(R"({"messages":[]})").what.find("no messages"), std::string::npos);
  EXPECT_NE(error(R"({"messages":[5]})").what.find("role"), std::string::npos);
  EXPECT_NE(error(R"({"messages":[],"tools":[1]})").what.find("tools"), std::string::npos);
  EXPECT_NE(error(message(R"("role":"user","content":null)")).what.find("content"),
            std::string::npos);
  EXPECT_NE(
      error(message(R"("role":"tool","content":"a")")).what.find("message 1: the role 'tool'"),
      std::string::npos);
  EXPECT_NE(error(message(R"("role":"assistant","content":"","tool_calls":[1])")).what.find("tool"),
            std::string::npos);
  EXPECT_NE(error(message(R"("role":"assistant","content":"","weight":0.5)")).what.find("weight"),
            std::string::npos);
  EXPECT_EQ(error(message(R"("role":"user","content":"a")")).what, "there is nothing to learn");
}

}  // namespace
}  // namespace headrace::train
