// Batches of skipped steps: what is read back is what was trained on, and how many stay.
#include "train/skipped_batches.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

class SkippedBatches : public TestFolder {
 protected:
  SkippedBatches() {
    batch_.micro_batch = 2;
    batch_.seq_len = 4;
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found = list_directory(path("skipped")).value();
    std::sort(found.begin(), found.end());
    return found;
  }

  BatchSection batch_;
};

TEST_F(SkippedBatches, ARunOverTheFileSeesTheSameRows) {
  StepBatch batch(batch_);
  batch.tokens = {5, 6, 7, 8, 1, 2, 0, 0};
  batch.targets = {6, 7, 8, 9, -1, 3, -1, -1};
  // Inputs after the last target are of no account: the third is 3.
  batch.tokens[6] = 3;
  const auto file = save_skipped_batch(path("skipped"), 12, batch, 4);
  ASSERT_TRUE(file);
  EXPECT_EQ(*file, path("skipped/step-00000012.bin"));
  TokenOptions options;
  options.vocab = 10;
  auto source = TokenSource::open({*file}, options);
  ASSERT_TRUE(source);
  auto loader = TrainLoader::make(
      **source, (*source)->whole(), {.order = "sequential", .batch = batch_, .seed = 0});
  ASSERT_TRUE(loader);
  StepBatch again(batch_);
  ASSERT_TRUE(loader->fill(0, again));
  EXPECT_EQ(again.targets, batch.targets);
  batch.tokens[6] = 0;
  EXPECT_EQ(again.tokens, batch.tokens);
  EXPECT_EQ(again.unmasked_targets, 5);
}

TEST_F(SkippedBatches, TheNewestStayAndARunTakesAwayWhatItMakesAnew) {
  ASSERT_TRUE(drop_skipped_batches(path("skipped"), 0));  // nothing is there
  StepBatch batch(batch_);
  batch.targets.assign(8, 1);
  for (int step = 1; step <= 20; ++step) {
    ASSERT_TRUE(save_skipped_batch(path("skipped"), step, batch, 4));
    write("skipped/note.txt", "of somebody else");
  }
  std::vector<std::string> expected = {"note.txt"};
  for (int step = 5; step <= 20; ++step) {
    expected.push_back(fmt::format("step-{:08}.bin", step));
  }
  EXPECT_EQ(names(), expected);
  write("skipped/step-00000007.bin.partial", "of a process that was killed");
  ASSERT_TRUE(drop_skipped_batches(path("skipped"), 18));
  expected.resize(expected.size() - 2);
  EXPECT_EQ(names(), expected);
  ASSERT_TRUE(drop_skipped_batches(path("skipped"), 0));
  EXPECT_EQ(names(), std::vector<std::string>{"note.txt"});
}

}  // namespace
}  // namespace headrace::train
