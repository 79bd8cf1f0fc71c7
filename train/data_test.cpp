// Token files, batches of both orders, and the tail that is held out.
#include "train/data.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>

#include "train/test_folder.hpp"
#include "train/tokens.hpp"

namespace headrace::train {
namespace {

using Tokens = std::vector<std::int32_t>;

TokenOptions options_of(std::int64_t vocab, const std::string& tokenizer = "") {
  TokenOptions options;
  options.vocab = vocab;
  options.tokenizer = tokenizer;
  return options;
}

Tokens all_tokens(TokenSource& source) {
  Tokens tokens(static_cast<std::size_t>(source.tokens()));
  EXPECT_TRUE(source.read(0, tokens));
  return tokens;
}

std::vector<std::uint16_t> ascending(int count) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  return values;
}

class TokensTest : public TestFolder {
 protected:
  static ExitCode code_of(const Result<std::unique_ptr<TokenSource>>& result) {
    return result ? ExitCode::kOk : result.error().code;
  }
};

TEST_F(TokensTest, TextIsItsBytes) {
  auto source =
      TokenSource::open({write("a.txt", "ab\xff"), write("b.txt", "c")}, options_of(256, "bytes"));
  ASSERT_TRUE(source);
  EXPECT_EQ(all_tokens(**source), (Tokens{'a', 'b', 255, 'c'}));
}

TEST_F(TokensTest, TextForATokenizerFileIsRefusedWithTheCommandThatMakesTokens) {
  TokenOptions options = options_of(300, "it's/tokenizer.json");
  options.eos = 7;
  const std::string text = write("a.txt", "ab");
  const auto source = TokenSource::open({text}, options);
  EXPECT_EQ(code_of(source), ExitCode::kUsage);
  EXPECT_NE(
      source.error().hint.find("headrace tokenize --tokenizer 'it'\\''s/tokenizer.json' --to " +
                               text + ".bin --eos 7 " + text),
      std::string::npos)
      << source.error().hint;
  options.token_width = 2;
  EXPECT_TRUE(TokenSource::open({write("a.bin", std::string("\1\0", 2))}, options));
}

TEST_F(TokensTest, EndOfTextFollowsEachTextFile) {
  TokenOptions options = options_of(257, "bytes");
  options.eos = 256;
  const std::vector<std::string> files = {
      write("a.txt", "ab"), write("empty.txt", ""), write("c.txt", "c")};
  auto source = TokenSource::open(files, options);
  ASSERT_TRUE(source);
  EXPECT_EQ(all_tokens(**source), (Tokens{'a', 'b', 256, 256, 'c', 256}));
  Tokens two(2);
  ASSERT_TRUE((*source)->read(2, two));
  EXPECT_EQ(two, (Tokens{256, 256}));
  ASSERT_TRUE((*source)->read(3, two));
  EXPECT_EQ(two, (Tokens{256, 'c'}));
}

TEST_F(TokensTest, BothMagicsOfLlmcAndRawFilesGiveTheSameTokens) {
  const std::vector<std::uint16_t> narrow = {1, 500, 0, 65535};
  const std::vector<std::uint32_t> wide = {1, 500, 0, 65535};
  const Tokens expected = {1, 500, 0, 65535};
  for (const std::string& file :
       {write("16.bin", llmc_bytes(narrow, 4)), write("32.bin", llmc_bytes(wide, 4))}) {
    auto source = TokenSource::open({file}, options_of(65536));
    ASSERT_TRUE(source) << file;
    EXPECT_EQ(all_tokens(**source), expected) << file;
  }
  TokenOptions raw = options_of(65536);
  raw.token_width = 2;
  auto source = TokenSource::open({write_values("raw2.bin", narrow)}, raw);
  ASSERT_TRUE(source);
  EXPECT_EQ(all_tokens(**source), expected);
  raw.token_width = 4;
  source = TokenSource::open({write_values("raw4.bin", wide)}, raw);
  ASSERT_TRUE(source);
  EXPECT_EQ(all_tokens(**source), expected);
}

TEST_F(TokensTest, ASizeThatIsNotTheHeadersIsCorrupt) {
  const std::vector<std::uint16_t> tokens = ascending(10);
  for (const std::int32_t count : {9, 11, -1, 0x7fffffff}) {
    EXPECT_EQ(
        code_of(TokenSource::open({write("t.bin", llmc_bytes(tokens, count))}, options_of(100))),
        ExitCode::kCorrupt)
        << count;
  }
  TokenOptions raw = options_of(65536);
  raw.token_width = 2;
  EXPECT_EQ(code_of(TokenSource::open({write("odd.bin", "abc")}, raw)), ExitCode::kCorrupt);
}

TEST_F(TokensTest, ATokenBeyondTheVocabularyIsNamedWithItsPlace) {
  std::vector<std::uint16_t> tokens(200000, 7);
  tokens[150001] = 50;
  auto source = TokenSource::open({write("t.bin", llmc_bytes(tokens, 200000))}, options_of(50));
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code, ExitCode::kUsage);
  EXPECT_NE(source.error().what.find("token 50"), std::string::npos) << source.error().what;
  EXPECT_NE(source.error().why.find("token 150001 of the file, at byte 301026"), std::string::npos)
      << source.error().why;
  EXPECT_EQ(code_of(TokenSource::open({write("t.txt", "az")}, options_of(122, "bytes"))),
            ExitCode::kUsage);
  EXPECT_EQ(code_of(TokenSource::open({write("t.txt", "az")}, options_of(123, "bytes"))),
            ExitCode::kOk);
}

TEST_F(TokensTest, WhatCannotBeToldIsRefused) {
  const std::string text = write("t.txt", "plain text");
  EXPECT_EQ(code_of(TokenSource::open({text}, options_of(256))), ExitCode::kUsage);
  TokenOptions both = options_of(256, "bytes");
  both.token_width = 2;
  EXPECT_EQ(code_of(TokenSource::open({text}, both)), ExitCode::kUsage);
  EXPECT_EQ(code_of(TokenSource::open({path("absent")}, options_of(256, "bytes"))),
            ExitCode::kOperating);
  EXPECT_EQ(code_of(TokenSource::open({folder_}, options_of(256, "bytes"))), ExitCode::kUsage);
  EXPECT_EQ(code_of(TokenSource::open({write("t.idx", std::string("MMIDIDX\0\0", 9))},
                                      options_of(256, "bytes"))),
            ExitCode::kUsage);
  TokenOptions eos = options_of(256, "bytes");
  eos.eos = 256;
  EXPECT_EQ(code_of(TokenSource::open({text}, eos)), ExitCode::kUsage);
}

TEST_F(TokensTest, TheIdentityFollowsTheContentAndNotTheNames) {
  const TokenOptions options = options_of(256, "bytes");
  const auto hash_of = [&](const std::vector<std::string>& files) {
    auto source = TokenSource::open(files, options);
    EXPECT_TRUE(source);
    return (*source)->identity().hash;
  };
  const std::uint64_t base = hash_of({write("a", "one"), write("b", "two")});
  EXPECT_EQ(hash_of({write("c", "one"), write("d", "two")}), base);
  EXPECT_NE(hash_of({path("b"), path("a")}), base);
  EXPECT_NE(hash_of({write("e", "onet"), write("f", "wo")}), base);
  EXPECT_NE(hash_of({write("g", "onf"), path("b")}), base);
}

TEST_F(TokensTest, MoreFilesThanMayBeOpenAreRead) {
  std::vector<std::string> files;
  Tokens expected;
  for (std::size_t i = 0; i < 3 * kOpenFilesMax; ++i) {
    const std::string text(1, static_cast<char>('a' + i % 26));
    files.push_back(write("f" + std::to_string(i), text));
    expected.push_back(text[0]);
  }
  auto source = TokenSource::open(files, options_of(256, "bytes"));
  ASSERT_TRUE(source);
  EXPECT_EQ(all_tokens(**source), expected);
  EXPECT_EQ(all_tokens(**source), expected);
}

TEST_F(TokensTest, AFileThatChangesDuringTheRunIsAnError) {
  const std::string file = write("a.txt", "abcdef");
  auto source = TokenSource::open({file}, options_of(256, "bytes"));
  ASSERT_TRUE(source);
  write("a.txt", "abc");
  Tokens tokens(6);
  EXPECT_FALSE((*source)->read(0, tokens));
}

BatchSection batch_of(std::int64_t micro_batch, std::int64_t seq_len, std::int64_t accumulate) {
  BatchSection batch;
  batch.micro_batch = micro_batch;
  batch.seq_len = seq_len;
  batch.accumulate = accumulate;
  return batch;
}

class LoaderTest : public TestFolder {
 protected:
  // Token i has the value i.
  std::unique_ptr<TokenSource> numbered(int count) {
    auto source =
        TokenSource::open({write("n.bin", llmc_bytes(ascending(count), count))}, options_of(65536));
    EXPECT_TRUE(source);
    return std::move(*source);
  }

  static TrainLoader loader_of(TokenSource& source,
                               const std::string& order,
                               const BatchSection& batch,
                               std::uint64_t seed = 1) {
    auto loader = TrainLoader::make(source,
                                    {.first = 0, .count = source.tokens()},
                                    {.order = order, .batch = batch, .seed = seed});
    EXPECT_TRUE(loader);
    return std::move(*loader);
  }
};

TEST_F(LoaderTest, SequentialIsLlmcsStrideAndWraps) {
  // 3 micro-batches of 2 x 4 fit in 31 tokens: 24 + 1 are used, a fourth would need 33.
  auto source = numbered(31);
  const BatchSection batch = batch_of(2, 4, 2);
  TrainLoader loader = loader_of(*source, "sequential", batch);
  StepBatch step(batch);
  ASSERT_TRUE(loader.fill(1, step));  // micro-batches 2 and 3; 3 wraps to 0
  EXPECT_EQ(step.tokens, (Tokens{16, 17, 18, 19, 20, 21, 22, 23, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(step.targets, (Tokens{17, 18, 19, 20, 21, 22, 23, 24, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(step.unmasked_targets, 16);
}

TEST_F(LoaderTest, AnExactFitUsesItsLastToken) {
  auto source = numbered(33);
  const BatchSection batch = batch_of(2, 4, 4);
  TrainLoader loader = loader_of(*source, "sequential", batch);
  StepBatch step(batch);
  ASSERT_TRUE(loader.fill(0, step));
  EXPECT_EQ(step.tokens.back(), 31);
  EXPECT_EQ(step.targets.back(), 32);
  EXPECT_EQ(loader.steps_in(2.0), 2);
}

TEST_F(LoaderTest, AnEpochIsEveryWindowOnce) {
  auto source = numbered(10 * 7 + 1);
  const BatchSection batch = batch_of(2, 7, 1);
  TrainLoader loader = loader_of(*source, "shuffled", batch);
  StepBatch step(batch);
  std::vector<Tokens> epochs(2);
  for (std::int64_t s = 0; s < 10; ++s) {
    ASSERT_TRUE(loader.fill(s, step));
    for (std::size_t row = 0; row < 14; row += 7) {
      EXPECT_EQ(step.tokens[row] % 7, 0);
      for (std::size_t i = 0; i < 7; ++i) {
        EXPECT_EQ(step.tokens[row + i], step.tokens[row] + static_cast<int>(i));
        EXPECT_EQ(step.targets[row + i], step.tokens[row + i] + 1);
      }
      epochs[static_cast<std::size_t>(s / 5)].push_back(step.tokens[row]);
    }
  }
  for (const Tokens& epoch : epochs) {
    EXPECT_EQ(std::set<std::int32_t>(epoch.begin(), epoch.end()).size(), 10U);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST_F(LoaderTest, AStepDependsOnItsNumberAndTheSeedOnly) {
  auto source = numbered(1000);
  const BatchSection batch = batch_of(3, 5, 2);
  TrainLoader first = loader_of(*source, "shuffled", batch);
  TrainLoader second = loader_of(*source, "shuffled", batch);
  TrainLoader other = loader_of(*source, "shuffled", batch, 2);
  StepBatch a(batch);
  StepBatch b(batch);
  for (std::int64_t s = 0; s < 40; ++s) {
    ASSERT_TRUE(first.fill(s, a));
  }
  ASSERT_TRUE(second.fill(39, b));
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_TRUE(other.fill(39, b));
  EXPECT_NE(a.tokens, b.tokens);
}

TEST_F(LoaderTest, MicroBatchesOfAStepAreTheSameHoweverTheyAreCut) {
  auto source = numbered(1000);
  StepBatch a(batch_of(8, 5, 1));
  StepBatch b(batch_of(1, 5, 8));
  TrainLoader whole = loader_of(*source, "shuffled", batch_of(8, 5, 1));
  TrainLoader cut = loader_of(*source, "shuffled", batch_of(1, 5, 8));
  ASSERT_TRUE(whole.fill(3, a));
  ASSERT_TRUE(cut.fill(3, b));
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.targets, b.targets);
}

TEST_F(LoaderTest, TooLittleDataIsRefused) {
  auto source = numbered(8);
  for (const auto& [order, batch] :
       {std::pair{"shuffled", batch_of(1, 8, 1)}, std::pair{"sequential", batch_of(2, 4, 1)}}) {
    auto loader = TrainLoader::make(
        *source, {.first = 0, .count = 8}, {.order = order, .batch = batch, .seed = 1});
    ASSERT_FALSE(loader) << order;
    EXPECT_EQ(loader.error().code, ExitCode::kUsage);
  }
}

// A window that no memory holds is known not to be in the data before it is made.
TEST_F(LoaderTest, AWindowBeyondAnyMemoryIsTooLittleData) {
  auto source = numbered(8);
  const DataRange range = {.first = 0, .count = 8};
  const BatchSection long_batch = batch_of(1, std::numeric_limits<std::int64_t>::max(), 1);
  auto eval = EvalLoader::make(*source, range, {.batch = long_batch, .micro_batches = {}});
  ASSERT_FALSE(eval);
  EXPECT_EQ(eval.error().code, ExitCode::kUsage);
  const BatchSection wide_batch = batch_of(1000000, 100000000, 1);
  auto train =
      TrainLoader::make(*source, range, {.order = "sequential", .batch = wide_batch, .seed = 1});
  ASSERT_FALSE(train);
  EXPECT_EQ(train.error().code, ExitCode::kUsage);
}

TEST_F(LoaderTest, EndlessEpochsAreALongRun) {
  auto source = numbered(100);
  const TrainLoader loader = loader_of(*source, "shuffled", batch_of(1, 3, 1));
  EXPECT_EQ(loader.steps_in(1e300), 1000000000000);
  EXPECT_EQ(loader.steps_in(1e-300), 1);
}

TEST_F(LoaderTest, EvaluationReadsInOrderAndMasksTheRest) {
  auto source = numbered(40);
  const BatchSection batch = batch_of(2, 3, 2);
  // 15 tokens from 20: four whole windows of 3 + 1.
  auto loader = EvalLoader::make(
      *source, {.first = 20, .count = 17}, {.batch = batch, .micro_batches = std::nullopt});
  ASSERT_TRUE(loader);
  ASSERT_EQ(loader->batches(), 2);
  StepBatch step(batch);
  ASSERT_TRUE(loader->fill(0, step));
  EXPECT_EQ(step.tokens, (Tokens{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}));
  EXPECT_EQ(step.unmasked_targets, 12);
  ASSERT_TRUE(loader->fill(1, step));
  EXPECT_EQ(step.targets, (Tokens{33, 34, 35, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(step.unmasked_targets, 3);
  loader =
      EvalLoader::make(*source, {.first = 0, .count = 40}, {.batch = batch, .micro_batches = 1});
  ASSERT_TRUE(loader);
  ASSERT_TRUE(loader->fill(0, step));
  EXPECT_EQ(loader->batches(), 1);
  EXPECT_EQ(step.unmasked_targets, 6);
}

TEST_F(LoaderTest, TheHeldOutTailIsNotTrainedOn) {
  const DataSplit split = split_tail({.first = 0, .count = 1001}, 0.1);
  EXPECT_EQ(split.train.count, 901);
  EXPECT_EQ(split.eval.first, 901);
  EXPECT_EQ(split.eval.count, 100);
  EXPECT_EQ(split_tail({.first = 0, .count = 1001}, std::nullopt).train.count, 1001);
}

TEST(StepBatches, TheirMemoryIsWhatAPlanIsTold) {
  BatchSection batch;
  batch.micro_batch = 3;
  batch.seq_len = 8;
  batch.accumulate = 5;
  const StepBatch made(batch);
  EXPECT_EQ(step_batch_bytes(batch),
            (made.tokens.size() + made.targets.size()) * sizeof made.tokens[0]);
}

}  // namespace
}  // namespace headrace::train
