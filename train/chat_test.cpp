// Conversations against transformers: text, tokens, and which of them are learned
// (train/testdata/chat/make_cases.py makes the cases).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/files.hpp"
#include "core/json.hpp"
#include "model/tokenizer.hpp"
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

TEST(ChatTemplate, DamagedTemplatesEnd) {
  for (const std::string jinja :
       {"", "{", "{{", "{%", "{{ '", "{{ '\\", "{{ 'a", "{% \"", "{{ }", "{#"}) {
    EXPECT_FALSE(ChatTemplate::recognise(jinja, kSpecials, "x")) << jinja;
  }
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
