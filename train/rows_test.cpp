// Rows of chat files: what they hold, what is cut and left out, and the loaders over them.
#include "train/rows.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>

#include "train/data.hpp"
#include "train/interrupt.hpp"
#include "train/test_folder.hpp"
#include "train/token_writer.hpp"

namespace headrace::train {
namespace {

using Row = std::vector<std::int32_t>;

// A token, to be learned where it is negative.
using Example = std::vector<int>;

class RowsTest : public TestFolder {
 protected:
  std::string chat(const std::string& name, const std::vector<Example>& examples) {
    auto writer = TokenWriter::create(path(name), TokenFormat::kChat, 4);
    EXPECT_TRUE(writer);
    for (const Example& example : examples) {
      std::vector<std::uint32_t> words;
      for (const int token : example) {
        words.push_back(static_cast<std::uint32_t>(std::abs(token)) |
                        (token < 0 ? kLearnedBit : 0));
      }
      const auto length = static_cast<std::uint32_t>(words.size());
      EXPECT_TRUE((*writer)->append(
          {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]}));
      EXPECT_TRUE((*writer)->end_examples({&length, 1}));
    }
    EXPECT_TRUE((*writer)->finish());
    return path(name);
  }

  static Result<std::unique_ptr<TokenSource>> open(const std::vector<std::string>& files,
                                                   std::int64_t vocab = 1000) {
    TokenOptions options;
    options.vocab = vocab;
    return TokenSource::open(files, options);
  }

  // Inputs and targets, one behind the other.
  static Row read_row(const Rows& rows, std::int64_t row, std::size_t length) {
    Row tokens(length);
    Row targets(length);
    EXPECT_TRUE(rows.read(row, tokens, targets));
    tokens.insert(tokens.end(), targets.begin(), targets.end());
    return tokens;
  }
};

TEST_F(RowsTest, AnExampleIsARowPaddedWithMaskedTargets) {
  auto source = open({chat("a", {{1, 2, -3}}), chat("b", {{4, -5, 6, -7}, {8, -9}})});
  ASSERT_TRUE(source);
  EXPECT_TRUE((*source)->is_chat());
  EXPECT_EQ((*source)->whole().count, 3);
  EXPECT_EQ((*source)->example_name(1), "example 1 of '" + path("b") + "'");
  auto rows = Rows::make(**source, (*source)->whole(), {.length = 3});
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->count(), 3);
  EXPECT_EQ(read_row(*rows, 0, 3), (Row{1, 2, 0, -1, 3, -1}));
  EXPECT_EQ(read_row(*rows, 1, 3), (Row{4, 5, 6, 5, -1, 7}));
  EXPECT_EQ(read_row(*rows, 2, 3), (Row{8, 0, 0, 9, -1, -1}));
  EXPECT_DOUBLE_EQ(rows->filled_share(), 6.0 / 9);
}

TEST_F(RowsTest, LongExamplesAreCutAndThoseWithoutATargetLeftOut) {
  auto source =
      open({chat("a", {{1, 2, 3, 4, -5}, {6, -7, 8, 9, -10}, {11, 12, 13, -14}, {15, -16}})});
  ASSERT_TRUE(source);
  auto rows = Rows::make(**source, (*source)->whole(), {.length = 2});
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->count(), 2);
  EXPECT_EQ(read_row(*rows, 0, 2), (Row{6, 7, 7, -1}));
  EXPECT_EQ(read_row(*rows, 1, 2), (Row{15, 0, 16, -1}));
  auto none = Rows::make(**source, {.first = 0, .count = 1}, {.length = 2});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ExitCode::kUsage);
  EXPECT_FALSE(Rows::make(**source, {.first = 0, .count = 0}, {.length = 2}));
}

TEST_F(RowsTest, PackedRowsAreCutFromAllExamplesOneAfterTheOther) {
  auto source = open({chat("a", {{1, -2}, {3, 4, 5, 6, -7}, {8, -9}})});
  ASSERT_TRUE(source);
  auto rows = Rows::make(**source, (*source)->whole(), {.length = 3, .packed = true});
  ASSERT_TRUE(rows);
  // 1 2 3 | 4 5 6 | 7 8 and the token after each.
  ASSERT_EQ(rows->count(), 3);
  EXPECT_EQ(read_row(*rows, 0, 3), (Row{1, 2, 3, 2, -1, -1}));
  EXPECT_EQ(read_row(*rows, 1, 3), (Row{4, 5, 6, -1, -1, 7}));
  EXPECT_EQ(read_row(*rows, 2, 3), (Row{7, 8, 0, -1, 9, -1}));
  auto tail = Rows::make(**source, {.first = 1, .count = 2}, {.length = 2, .packed = true});
  ASSERT_TRUE(tail);
  // 3 4 has no target and is left out; 5 6 | 7 8.
  ASSERT_EQ(tail->count(), 2);
  EXPECT_EQ(read_row(*tail, 0, 2), (Row{5, 6, -1, 7}));
  EXPECT_EQ(read_row(*tail, 1, 2), (Row{7, 8, -1, 9}));
}

TEST_F(RowsTest, AnExampleWithoutATargetIsNamedAtTheStart) {
  auto source = open({chat("a", {{1, -2}, {-3, 4}, {5, 6, 7}})});
  ASSERT_TRUE(source);
  const auto rows = Rows::make(**source, (*source)->whole(), {.length = 3});
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code, ExitCode::kCorrupt);
  EXPECT_NE(rows.error().what.find("example 2 of"), std::string::npos);
  EXPECT_TRUE(Rows::make(**source, {.first = 0, .count = 1}, {.length = 3}));
}

TEST_F(RowsTest, ManyExamplesInSeveralFilesAreFound) {
  std::vector<std::string> files;
  files.reserve(3);
  for (int file = 0; file < 3; ++file) {
    files.push_back(chat(std::to_string(file), std::vector<Example>(5000, {file + 1, 9, -8})));
  }
  auto source = open(files);
  ASSERT_TRUE(source);
  const auto rows = Rows::make(**source, (*source)->whole(), {.length = 2});
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->count(), 15000);
  for (const std::int64_t row : {0, 4095, 4999, 5000, 8192, 14999}) {
    EXPECT_EQ(read_row(*rows, row, 2), (Row{static_cast<int>(row / 5000) + 1, 9, -1, 8}));
  }
}

TEST_F(RowsTest, ExamplesBeyondWhatTheWriterHoldsAreFound) {
  constexpr std::int64_t kExamples = 3 * 65536 + 5;  // three times what it holds, and some
  auto writer = TokenWriter::create(path("many"), TokenFormat::kChat, 4);
  ASSERT_TRUE(writer);
  std::vector<std::uint32_t> words;
  std::vector<std::uint32_t> lengths;
  for (std::int64_t i = 0; i < kExamples; ++i) {
    lengths.push_back(static_cast<std::uint32_t>(2 + i % 3));
    words.insert(words.end(), lengths.back() - 1, static_cast<std::uint32_t>(i % 999));
    words.push_back(5U | kLearnedBit);
  }
  ASSERT_TRUE((*writer)->append(
      {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]}));
  ASSERT_TRUE((*writer)->end_examples(lengths));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("")), {}), 1);
  ASSERT_TRUE((*writer)->finish());
  auto source = open({path("many")});
  ASSERT_TRUE(source);
  ASSERT_EQ((*source)->whole().count, kExamples);
  std::vector<DataRange> found(kExamples);
  ASSERT_TRUE((*source)->examples(0, found));
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < kExamples; ++i) {
    ASSERT_EQ(found[static_cast<std::size_t>(i)].first, first) << i;
    ASSERT_EQ(found[static_cast<std::size_t>(i)].count, 2 + i % 3) << i;
    first += 2 + i % 3;
  }
}

TEST_F(RowsTest, AnInterruptEndsTheLookAtTheData) {
  const std::string file = chat("a", {{1, -2}});
  const auto opens = [&] {
    install_interrupt(InterruptMode::kPolled);
    static_cast<void>(std::raise(SIGINT));
    const auto source = open({file});
    std::exit(source ? 0 : static_cast<int>(source.error().code));
  };
  EXPECT_EXIT(opens(), ::testing::ExitedWithCode(130), "");
}

TEST_F(RowsTest, PackingIsOfChatFiles) {
  TokenOptions options;
  options.vocab = 1000;
  auto source =
      TokenSource::open({write("t", llmc_bytes(std::vector<std::uint16_t>(9, 1), 9))}, options);
  ASSERT_TRUE(source);
  BatchSection batch;
  batch.micro_batch = 1;
  batch.seq_len = 2;
  const auto loader = [&](bool packed) {
    return TrainLoader::make(**source,
                             (*source)->whole(),
                             {.order = "shuffled", .batch = batch, .seed = 1, .packed = packed});
  };
  EXPECT_TRUE(loader(false));
  const auto packed = loader(true);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().code, ExitCode::kUsage);
  EXPECT_NE(packed.error().what.find("data.packing"), std::string::npos);
}

// Against a list of what stays, for every set of rows left out.
TEST_F(RowsTest, RowsLeftOutAreSkippedWhereverTheyAre) {
  for (unsigned set = 0; set + 1 < 64; ++set) {
    std::vector<Example> examples;
    Row kept;
    for (int i = 0; i < 6; ++i) {
      const bool is_out = (set >> static_cast<unsigned>(i) & 1U) != 0;
      examples.push_back({100 + i, is_out ? 1 : -1, 2, -3});
      if (!is_out) {
        kept.push_back(100 + i);
      }
    }
    auto source = open({chat("set" + std::to_string(set), examples)});
    ASSERT_TRUE(source);
    auto rows = Rows::make(**source, (*source)->whole(), {.length = 1});
    ASSERT_TRUE(rows);
    Row found;
    for (std::int64_t row = 0; row < rows->count(); ++row) {
      found.push_back(read_row(*rows, row, 1).front());
    }
    EXPECT_EQ(found, kept);
  }
}

TEST_F(RowsTest, LoadersOverExamples) {
  std::vector<Example> examples(10);
  for (int i = 0; i < 10; ++i) {
    examples[static_cast<std::size_t>(i)] = {10 * i + 1, -(10 * i + 2), 3};
  }
  auto source = open({chat("a", examples)});
  ASSERT_TRUE(source);
  const DataSplit split = split_tail((*source)->whole(), 0.2);
  BatchSection batch;
  batch.micro_batch = 2;
  batch.seq_len = 4;
  auto loader =
      TrainLoader::make(**source, split.train, {.order = "shuffled", .batch = batch, .seed = 3});
  ASSERT_TRUE(loader);
  EXPECT_EQ(loader->steps_in(1), 4);
  StepBatch step(batch);
  std::set<std::int32_t> seen;
  for (std::int64_t s = 0; s < 4; ++s) {
    ASSERT_TRUE(loader->fill(s, step));
    EXPECT_EQ(step.unmasked_targets, 2);
    seen.insert({step.tokens[0], step.tokens[4]});
  }
  EXPECT_EQ(seen, (std::set<std::int32_t>{1, 11, 21, 31, 41, 51, 61, 71}));
  auto in_order =
      TrainLoader::make(**source, split.train, {.order = "sequential", .batch = batch, .seed = 3});
  ASSERT_TRUE(in_order && in_order->fill(5, step));  // rows 10 and 11 of 8: 2 and 3
  EXPECT_EQ(step.tokens, (Row{21, 22, 0, 0, 31, 32, 0, 0}));
  auto eval = EvalLoader::make(**source, split.eval, {.batch = batch, .micro_batches = {}});
  ASSERT_TRUE(eval && eval->fill(0, step));
  EXPECT_EQ(step.tokens, (Row{81, 82, 0, 0, 91, 92, 0, 0}));
  EXPECT_EQ(step.targets, (Row{82, -1, -1, -1, 92, -1, -1, -1}));
}

TEST_F(RowsTest, DamageIsNamed) {
  const auto code = [&](const std::string& bytes) {
    const auto source = open({write("bad", bytes)});
    return source ? ExitCode::kOk : source.error().code;
  };
  chat("a", {{1, -2}, {3, -4}});
  const std::string good = read("a");
  ASSERT_EQ(code(good), ExitCode::kOk);
  ASSERT_EQ(good.size(), 1024U + 16 + 16);
  EXPECT_EQ(code(good.substr(0, good.size() - 1)), ExitCode::kCorrupt);
  EXPECT_EQ(code(good + "x"), ExitCode::kCorrupt);
  const auto changed = [&](std::size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return bytes;
  };
  EXPECT_EQ(code(changed(4, 2)), ExitCode::kUsage);    // version
  EXPECT_EQ(code(changed(8, 5)), ExitCode::kCorrupt);  // tokens
  EXPECT_EQ(code(changed(15, '\x80')), ExitCode::kCorrupt);
  EXPECT_EQ(code(changed(16, 3)), ExitCode::kCorrupt);    // examples
  EXPECT_EQ(code(changed(1040, 1)), ExitCode::kCorrupt);  // the first end
  EXPECT_EQ(code(changed(1040, 3)), ExitCode::kCorrupt);
  EXPECT_EQ(code(changed(1048, 3)), ExitCode::kCorrupt);           // the last end
  EXPECT_EQ(open({path("a")}, 4).error().code, ExitCode::kUsage);  // token 4
  EXPECT_TRUE(open({path("a")}, 5));
  // An example that has lost its mask is found when the rows are.
  auto source = open({write("unmasked", changed(1024 + 15, 0))});
  ASSERT_TRUE(source);
  auto rows = Rows::make(**source, (*source)->whole(), {.length = 4});
  ASSERT_FALSE(rows);
  EXPECT_NE(rows.error().what.find("example 2 of '"), std::string::npos);
  const auto mixed = open({path("a"), write("b.bin", llmc_bytes<std::uint16_t>({1, 2}, 2))});
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ExitCode::kUsage);
}

}  // namespace
}  // namespace headrace::train
