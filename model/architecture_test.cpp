// Presets, [model] arch and its defaults, contradictions; the byte tokenizer.
#include "model/architecture.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "model/spec.hpp"
#include "model/test_support.hpp"

namespace headrace::model {
namespace {

TEST(Architecture, EveryPresetIsValid) {
  for (const std::string& name : preset_names()) {
    ModelSection section;
    section.preset = name;
    const Result<Architecture> architecture = architecture_from_section(section, std::nullopt);
    EXPECT_TRUE(architecture) << name;
  }
}

// As published, and as transformers counts them.
TEST(Architecture, PresetsHaveTheParametersOfTheirModels) {
  const std::pair<const char*, std::int64_t> published[] = {
      {"gpt2-124m", 124439808},
      {"gpt2-355m", 354823168},
      {"gpt2-774m", 774030080},
      {"gpt2-1.5b", 1557611200},
      {"llama-3.2-1b", 1235814400},
      {"llama-3.2-3b", 3212749824},
      {"llama-3.1-8b", 8030261248},
      {"solar-10.7b", 10731524096},
      {"llama-3.1-70b", 70553706496},
      {"mistral-7b", 7248023552},
      {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-7b", 7615616512},
      {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},
      {"qwen3-8b", 8190735360},
  };
  for (const auto& [name, parameters] : published) {
    ModelSection section;
    section.preset = name;
    const Result<Architecture> architecture = architecture_from_section(section, std::nullopt);
    ASSERT_TRUE(architecture) << name;
    std::int64_t found = 0;
    for (const plan::UnitSpec& unit : name_units(*architecture)) {
      for (const plan::TensorSpec& tensor : unit.tensors) {
        found += std::accumulate(
            tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
      }
    }
    EXPECT_EQ(found, parameters) << name;
  }
}

TEST(Architecture, Llama31ScalesItsPositions) {
  ModelSection section;
  section.preset = "llama-3.1-8b";
  const Result<Architecture> architecture = architecture_from_section(section, std::nullopt);
  ASSERT_TRUE(architecture);
  EXPECT_EQ(architecture->rope_scaling.type, RopeType::kLlama3);
  EXPECT_EQ(architecture->rope_scaling.factor, 8.0);
  EXPECT_EQ(architecture->rope_scaling.original_max_position_embeddings, 8192);
}

TEST(Architecture, WhatArchLeavesOutTakesTheFamilysUsualValue) {
  ModelSection section;
  section.arch = "gpt2";
  section.layers = 2;
  section.hidden = 96;
  section.heads = 3;
  const Result<Architecture> gpt2 = architecture_from_section(section, 256);
  ASSERT_TRUE(gpt2) << text_of(gpt2.error());
  EXPECT_EQ(gpt2->ffn, 384);
  EXPECT_EQ(gpt2->vocab, 256);
  EXPECT_EQ(gpt2->max_seq_len, 1024);
  EXPECT_EQ(gpt2->head_dim, 32);
  EXPECT_TRUE(gpt2->tied);
  section.arch = "llama";
  section.vocab = 1000;
  const Result<Architecture> llama = architecture_from_section(section, 256);
  ASSERT_TRUE(llama);
  EXPECT_EQ(llama->ffn, 256);  // 8/3 * 96, rounded up to 256
  EXPECT_EQ(llama->vocab, 1000);
  EXPECT_EQ(llama->kv_heads, 3);
  EXPECT_FALSE(llama->tied);
  EXPECT_EQ(llama->rope_theta, 10000.0);
}

TEST(Architecture, APresetTakesVocabAndLengthButNoOtherShape) {
  ModelSection section;
  section.preset = "gpt2-124m";
  section.vocab = 256;
  section.max_seq_len = 64;
  const Result<Architecture> small = architecture_from_section(section, std::nullopt);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->vocab, 256);
  EXPECT_EQ(small->max_seq_len, 64);
  section.layers = 3;
  section.ffn = 17;
  const Result<Architecture> refused = architecture_from_section(section, std::nullopt);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  EXPECT_NE(text_of(refused.error()).find("model.layers"), std::string::npos);
  EXPECT_NE(text_of(refused.error()).find("model.ffn"), std::string::npos);
}

struct Refused {
  const char* name;
  ModelSection section;
  std::vector<const char*> says;
};

std::vector<Refused> refused_sections() {
  const auto llama = [] {
    ModelSection section;
    section.arch = "llama";
    section.layers = 1;
    section.hidden = 64;
    section.heads = 4;
    section.vocab = 10;
    return section;
  };
  std::vector<Refused> cases;
  const auto add =
      [&](const char* name, const ModelSection& section, std::vector<const char*> says) {
        cases.push_back({name, section, std::move(says)});
      };
  ModelSection section;
  add("Nothing", section, {"model.preset"});
  section.preset = "gpt3";
  add("UnknownPreset", section, {"'gpt3'", "gpt2-124m"});
  section = {};
  section.arch = "bert";
  add("UnknownArch", section, {"'bert'"});
  section.arch = "gpt2";
  add("NothingButArch", section, {"model.layers", "model.hidden", "model.heads", "model.vocab"});
  section = llama();
  section.kv_heads = 3;
  add("KvHeads", section, {"kv_heads = 3"});
  section = llama();
  section.head_dim = 7;
  add("OddHeadDim", section, {"head_dim = 7 is odd"});
  section = llama();
  section.head_dim = 512;
  add("WideHead", section, {"head_dim = 512 is above 256"});
  section = llama();
  section.layers = 0;
  section.ffn = -1;
  add("BadSizes", section, {"layers = 0", "ffn = -1"});
  section = llama();
  section.hidden = std::int64_t{1} << 60;
  add("HugeSize", section, {"hidden = 1152921504606846976"});
  section = llama();
  section.norm_eps = 0.0;
  add("ZeroEps", section, {"norm_eps"});
  section = llama();
  section.arch = "gpt2";
  section.hidden = 65;
  section.kv_heads = 2;
  add("Gpt2OfLlamasKeys", section, {"model.kv_heads"});
  section = llama();
  section.arch = "gpt2";
  section.hidden = 65;
  add("HeadsDoNotDivide", section, {"hidden = 65 is not a multiple of heads = 4"});
  section = llama();
  section.ignore = {"x"};
  add("IgnoreWithoutFile", section, {"model.ignore"});
  return cases;
}

TEST(Architecture, ContradictionsAreUsageErrorsThatNameTheKeyAllAtOnce) {
  for (const Refused& refused : refused_sections()) {
    const Result<Architecture> result = architecture_from_section(refused.section, std::nullopt);
    ASSERT_FALSE(result) << refused.name;
    EXPECT_EQ(result.error().code, ExitCode::kUsage) << refused.name;
    for (const char* text : refused.says) {
      EXPECT_NE(text_of(result.error()).find(text), std::string::npos)
          << refused.name << ": " << text_of(result.error());
    }
  }
}

}  // namespace
}  // namespace headrace::model
