// Specs: names and layout of tied and untied models, groups, pieces, chunks, refusals; initial
// weights.
#include "model/spec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/assert.hpp"
#include "model/initialize.hpp"
#include "model/test_support.hpp"

namespace headrace::model {
namespace {

Architecture small(Family family, bool tied) {
  Architecture a;
  a.family = family;
  a.layers = 3;
  a.hidden = 48;
  a.heads = 4;
  a.kv_heads = family == Family::kGpt2 ? 4 : 2;
  a.head_dim = 12;
  a.ffn = 112;
  a.vocab = 300;
  a.max_seq_len = 64;
  a.tied = tied;
  return a;
}

constexpr BatchShape kBatch{.micro_batch = 2, .seq_len = 16, .accumulate = 3, .compute_threads = 1};

plan::ModelSpec spec_of(const Architecture& a,
                        const BatchShape& batch = kBatch,
                        const OptimSection& optim = {}) {
  Result<plan::ModelSpec> spec = make_model_spec(a, batch, optim);
  HEADRACE_ASSERT(spec, "the test's model is valid");
  return std::move(*spec);
}

Architecture preset(const char* name) {
  ModelSection section;
  section.preset = name;
  return *architecture_from_section(section, std::nullopt);
}

const plan::TensorSpec& tensor_of(const plan::ModelSpec& spec, const std::string& name) {
  for (const plan::UnitSpec& unit : spec.units) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      if (tensor.name == name) {
        return tensor;
      }
    }
  }
  ADD_FAILURE() << name << " is not in the spec";
  return spec.units[0].tensors[0];
}

TEST(Spec, Gpt2HasHuggingFacesNamesAndShapes) {
  const plan::ModelSpec spec = spec_of(small(Family::kGpt2, true));
  ASSERT_EQ(spec.units.size(), 5U);
  EXPECT_EQ(spec.units[2].name, "block.1");
  EXPECT_EQ(tensor_of(spec, "transformer.wpe.weight").shape, (std::vector<std::int64_t>{64, 48}));
  EXPECT_EQ(tensor_of(spec, "transformer.h.2.attn.c_attn.weight").shape,
            (std::vector<std::int64_t>{48, 144}));
  EXPECT_EQ(tensor_of(spec, "transformer.h.2.mlp.c_proj.weight").shape,
            (std::vector<std::int64_t>{112, 48}));
  EXPECT_EQ(spec.units.back().tensors.size(), 2U);
  EXPECT_EQ(spec.tables.size(), 2U);
  EXPECT_EQ(spec.tables[1].rows, 64);
  EXPECT_TRUE(spec.tied);
  EXPECT_EQ(spec.rows(), 32);
}

TEST(Spec, ParametersOfPublishedModels) {
  EXPECT_EQ(spec_of(preset("gpt2-124m")).parameters(), 124'439'808);
  EXPECT_EQ(spec_of(preset("gpt2-1.5b")).parameters(), 1'557'611'200);
  EXPECT_EQ(spec_of(preset("smollm2-135m")).parameters(), 134'515'008);
  EXPECT_EQ(spec_of(preset("tinyllama-1.1b")).parameters(), 1'100'048'384);
  EXPECT_EQ(spec_of(preset("llama-2-7b")).parameters(), 6'738'415'616);
  EXPECT_EQ(spec_of(preset("llama-3-8b")).parameters(), 8'030'261'248);
}

// Pieces lie on pages, do not overlap, and rows cover the vocabulary once, in whole chunks.
void expect_pieces(const plan::ModelSpec& spec) {
  for (const plan::UnitSpec& unit : spec.units) {
    std::int64_t at = 0;
    for (const plan::PieceSpec& piece : unit.pieces) {
      EXPECT_GE(piece.begin, at);
      EXPECT_EQ(piece.begin % plan::kPageElements, 0);
      EXPECT_EQ(piece.elements % plan::kPageElements, 0);
      at = piece.begin + piece.elements;
    }
    EXPECT_LE(at, unit.elements);
    if (unit.kind == plan::UnitKind::kBlock) {
      ASSERT_EQ(unit.pieces.size(), 1U);
      EXPECT_EQ(at, unit.elements);
    }
  }
  std::int64_t row = 0;
  for (const plan::RowPiece& rows : spec.head.rows) {
    EXPECT_EQ(rows.first_row, row);
    EXPECT_EQ(rows.first_row % spec.head.rows_per_chunk, 0);
    row += rows.rows;
  }
  EXPECT_EQ(row, spec.vocab);
}

TEST(Spec, TiedRowsArePiecesOfTheEmbeddingUntiedOnesOfTheHead) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const plan::ModelSpec tied = spec_of(small(family, true));
    expect_pieces(tied);
    EXPECT_EQ(tied.head.rows.front().unit, 0);
    EXPECT_EQ(tied.units.back().pieces.size(), 1U);
    const plan::ModelSpec untied = spec_of(small(family, false));
    expect_pieces(untied);
    const plan::UnitSpec& head = untied.units.back();
    EXPECT_EQ(untied.head.rows.front().unit, 4);
    EXPECT_EQ(head.tensors.back().name, "lm_head.weight");
    EXPECT_EQ(head.pieces[0].elements, head.tensors.back().offset);
    EXPECT_TRUE(untied.units.front().pieces.empty());
    EXPECT_EQ(untied.parameters(), tied.parameters() + std::int64_t{300} * 48);
  }
}

TEST(Spec, LargeVocabulariesAreCutInPiecesOfAbout16MiB) {
  for (const char* name : {"gpt2-124m", "gpt2-1.5b", "llama-3-8b"}) {
    for (const std::int64_t rows : {64, 1024, 8192}) {
      const plan::ModelSpec spec = spec_of(preset(name), {.micro_batch = rows / 64, .seq_len = 64});
      expect_pieces(spec);
      EXPECT_GT(spec.head.rows.size(), 1U);
      const std::int64_t chunk = spec.head.rows_per_chunk;
      EXPECT_GE(chunk, 64);
      EXPECT_LE(chunk * rows * 4, kChunkBytesMax);
      for (const plan::RowPiece& piece : spec.head.rows) {
        EXPECT_LE(piece.rows * spec.hidden * 4, 2 * kRowPieceBytes);
      }
    }
  }
}

TEST(Spec, TheChunkDependsOnArchitectureAndBatchOnly) {
  EXPECT_EQ(rows_per_chunk(small(Family::kGpt2, true), kBatch), 320);  // 300, rounded up to 64
  EXPECT_EQ(rows_per_chunk(preset("gpt2-124m"), {.micro_batch = 4, .seq_len = 256}), 4096);
  EXPECT_EQ(rows_per_chunk(preset("gpt2-124m"), {.micro_batch = 1000, .seq_len = 1024}), 64);
}

TEST(Spec, OddHiddenSizesStillCutWholeRows) {
  Architecture a = small(Family::kLlama, false);
  a.hidden = 50;
  a.vocab = 100'003;
  expect_pieces(spec_of(a));
}

TEST(Spec, WeightDecayIsForMatricesUnlessAGroupSaysOtherwise) {
  OptimSection optim;
  optim.weight_decay = 0.25;
  const plan::ModelSpec plain = spec_of(small(Family::kGpt2, true), kBatch, optim);
  const auto decay = [](const plan::ModelSpec& spec, const std::string& name) {
    return spec.groups.at(static_cast<std::size_t>(tensor_of(spec, name).group)).weight_decay;
  };
  EXPECT_EQ(plain.groups.size(), 2U);
  EXPECT_EQ(decay(plain, "transformer.wte.weight"), 0.25);
  EXPECT_EQ(decay(plain, "transformer.h.0.ln_1.weight"), 0.0);
  EXPECT_EQ(decay(plain, "transformer.h.0.attn.c_attn.bias"), 0.0);

  OptimGroup first;
  first.match = {"*.h.0.*", "*.wpe.*"};
  first.lr_scale = 0.5;
  OptimGroup second;
  second.match = {"*.ln_?.*"};
  second.weight_decay = 0.125;
  second.betas = {0.5, 0.75};
  second.eps = 1e-3;
  optim.group = {first, second};
  const plan::ModelSpec grouped = spec_of(small(Family::kGpt2, true), kBatch, optim);
  EXPECT_EQ(decay(grouped, "transformer.h.0.ln_1.weight"), 0.0);  // the first group that matches
  EXPECT_EQ(decay(grouped, "transformer.h.1.ln_1.weight"), 0.125);
  EXPECT_EQ(decay(grouped, "transformer.h.0.attn.c_attn.weight"), 0.25);
  const auto group = [&](const std::string& name) {
    return grouped.groups.at(static_cast<std::size_t>(tensor_of(grouped, name).group));
  };
  EXPECT_EQ(group("transformer.wpe.weight").lr_scale, 0.5);
  EXPECT_EQ(group("transformer.h.2.ln_2.bias").beta2, 0.75);
  EXPECT_EQ(group("transformer.h.2.ln_2.bias").eps, 1e-3);
  EXPECT_EQ(group("transformer.h.2.mlp.c_fc.weight").beta2, optim.betas[1]);
}

TEST(Spec, FrozenTensorsAreMarkedAndLieOnPagesOfTheirOwn) {
  OptimSection optim;
  OptimGroup frozen;
  frozen.match = {"*.c_attn.bias", "*.wte.*"};
  frozen.frozen = true;
  optim.group = {frozen};
  const plan::ModelSpec spec = spec_of(small(Family::kGpt2, false), kBatch, optim);
  EXPECT_TRUE(tensor_of(spec, "transformer.wte.weight").frozen);
  const plan::TensorSpec& bias = tensor_of(spec, "transformer.h.1.attn.c_attn.bias");
  EXPECT_TRUE(bias.frozen);
  EXPECT_EQ(bias.offset % plan::kPageElements, 0);
  EXPECT_FALSE(tensor_of(spec, "lm_head.weight").frozen);
  EXPECT_EQ(spec.parameters() - spec.trainable_parameters(),
            std::int64_t{300} * 48 + std::int64_t{3} * 144);
}

TEST(Spec, WhatCannotBeTrainedIsAUsageErrorThatSaysWhy) {
  const auto error_of =
      [](const Architecture& a, const BatchShape& batch, const OptimSection& optim) {
        const Result<plan::ModelSpec> spec = make_model_spec(a, batch, optim);
        EXPECT_FALSE(spec);
        return spec ? std::string() : text_of(spec.error());
      };
  const Architecture gpt2 = small(Family::kGpt2, true);
  EXPECT_NE(error_of(gpt2, {.micro_batch = 1, .seq_len = 65}, {}).find("--set batch.seq_len=64"),
            std::string::npos);
  EXPECT_TRUE(make_model_spec(small(Family::kLlama, true), {.micro_batch = 1, .seq_len = 65}, {}));
  const std::string batch = error_of(gpt2, {.micro_batch = 0, .seq_len = -1, .accumulate = 0}, {});
  for (const char* key : {"micro_batch", "seq_len", "accumulate"}) {
    EXPECT_NE(batch.find(key), std::string::npos);
  }
  OptimSection optim;
  optim.group.resize(2);
  optim.group[0].match = {"*"};
  optim.group[0].frozen = true;
  optim.group[1].match = {"lm_head.weight"};
  const std::string groups = error_of(gpt2, kBatch, optim);
  EXPECT_NE(groups.find("'lm_head.weight'"), std::string::npos);
  EXPECT_NE(groups.find("every tensor is frozen"), std::string::npos);
  Architecture bad = gpt2;
  bad.heads = 5;
  error_of(bad, kBatch, {});
}

// ---- initial weights ---------------------------------------------------------------------------

std::vector<float> whole_unit(const plan::ModelSpec& spec, const Architecture& a, int unit) {
  std::vector<float> all(
      static_cast<std::size_t>(spec.units.at(static_cast<std::size_t>(unit)).elements));
  initialize_range(spec, a, {.seed = 5, .unit = unit}, all);
  return all;
}

TEST(Initialize, AWeightDoesNotDependOnTheRangeThatItIsAskedForIn) {
  std::mt19937_64 random(test_seed());
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const Architecture a = small(family, false);
    const plan::ModelSpec spec = spec_of(a);
    for (int unit = 0; unit < 5; ++unit) {
      const std::vector<float> all = whole_unit(spec, a, unit);
      std::size_t begin = 0;
      while (begin < all.size()) {
        const std::size_t count = std::min<std::size_t>(1 + random() % 3001, all.size() - begin);
        std::vector<float> part(count, NAN);
        initialize_range(
            spec, a, {.seed = 5, .unit = unit, .begin = static_cast<std::int64_t>(begin)}, part);
        ASSERT_TRUE(same_bits(part, std::span(all).subspan(begin, count)));
        begin += count;
      }
    }
  }
}

TEST(Initialize, DeviationsGainsBiasesAndPaddingAreGpt2s) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    Architecture a = small(family, false);
    a.qkv_bias = a.output_bias = a.mlp_bias = family == Family::kLlama;
    a.initializer_range = 0.08;
    const plan::ModelSpec spec = spec_of(a);
    const double scaled = 0.08 / std::sqrt(2.0 * 3.0);
    for (int unit = 0; unit < 5; ++unit) {
      const plan::UnitSpec& layout = spec.units[static_cast<std::size_t>(unit)];
      std::vector<float> all = whole_unit(spec, a, unit);
      for (const plan::TensorSpec& tensor : layout.tensors) {
        const std::span<float> part = std::span(all).subspan(
            static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.elements));
        if (tensor.shape.size() == 1) {
          const float expected = tensor.name.ends_with(".bias") ? 0.0F : 1.0F;
          EXPECT_TRUE(
              std::all_of(part.begin(), part.end(), [&](float x) { return x == expected; }));
        } else {
          const double square = std::inner_product(part.begin(), part.end(), part.begin(), 0.0);
          const bool residual = tensor.name.find("c_proj") != std::string::npos ||
                                tensor.name.find("o_proj") != std::string::npos ||
                                tensor.name.find("down_proj") != std::string::npos;
          const double expected = residual ? scaled : 0.08;
          EXPECT_NEAR(
              std::sqrt(square / static_cast<double>(part.size())), expected, 0.1 * expected)
              << tensor.name;
        }
        std::fill(part.begin(), part.end(), 0.0F);
      }
      EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](float x) { return x == 0.0F; }));
    }
  }
}

TEST(Initialize, TensorsAndSeedsDiffer) {
  const Architecture a = small(Family::kLlama, false);
  const plan::ModelSpec spec = spec_of(a);
  EXPECT_FALSE(same_bits(whole_unit(spec, a, 1), whole_unit(spec, a, 2)));
  std::vector<float> other(static_cast<std::size_t>(spec.units[1].elements));
  initialize_range(spec, a, {.seed = 6, .unit = 1}, other);
  EXPECT_FALSE(same_bits(whole_unit(spec, a, 1), other));
}

}  // namespace
}  // namespace headrace::model
