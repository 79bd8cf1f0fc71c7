// Batches read by another thread are those of the loader, with delays on either side.
#include "train/batches_ahead.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>

#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

BatchSection small_batch() {
  BatchSection batch;
  batch.micro_batch = 2;
  batch.seq_len = 8;
  batch.accumulate = 2;
  return batch;
}

class BatchesAheadTest : public TestFolder {
 protected:
  void SetUp() override {
    TestFolder::SetUp();
    std::vector<std::uint16_t> tokens(5000);
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
    TokenOptions options;
    options.vocab = 65536;
    source_ = std::move(*TokenSource::open(
        {write("a.bin", llmc_bytes(tokens, 5000)), write("b.bin", llmc_bytes(tokens, 5000))},
        options));
    loader_.emplace(*TrainLoader::make(
        *source_, source_->whole(), {.order = "shuffled", .batch = small_batch(), .seed = 7}));
  }

  std::unique_ptr<TokenSource> source_;
  std::optional<TrainLoader> loader_;
};

void pause(std::mt19937& random) {
  const std::chrono::microseconds length(random() % 300);
  std::this_thread::sleep_for(length);  // tidy_test: changes the order of threads, asserts no time
}

TEST_F(BatchesAheadTest, TheyAreTheLoadersWhateverTheTiming) {
  constexpr std::int64_t kFirst = 3;
  constexpr std::int64_t kEnd = 203;
  for (const bool slowly : {false, true}) {
    std::mt19937 random(1);
    auto ahead = BatchesAhead::start(*loader_, small_batch(), {.first = kFirst, .end = kEnd});
    StepBatch expected(small_batch());
    for (std::int64_t step = kFirst; step < kEnd; ++step) {
      const Result<const StepBatch*> batch = ahead->take();
      ASSERT_TRUE(batch);
      // While this one is in use, the data are read here too, as an evaluation does.
      ASSERT_TRUE(loader_->fill(step, expected));
      if (slowly) {
        pause(random);
      }
      EXPECT_EQ((*batch)->tokens, expected.tokens) << step;
      EXPECT_EQ((*batch)->targets, expected.targets) << step;
      EXPECT_EQ((*batch)->unmasked_targets, 32);
    }
  }
}

TEST_F(BatchesAheadTest, TheyEndWhereverTheyAre) {
  std::mt19937 random(2);
  for (int taken = 0; taken < 12; ++taken) {
    auto ahead = BatchesAhead::start(*loader_, small_batch(), {.first = 0, .end = 1000000});
    for (int i = 0; i < taken; ++i) {
      ASSERT_TRUE(ahead->take());
    }
    pause(random);
  }
  const auto none = BatchesAhead::start(*loader_, small_batch(), {.first = 5, .end = 5});
}

TEST_F(BatchesAheadTest, AnErrorComesOutAtItsStep) {
  // The first step whose batch is of the file that changes.
  StepBatch step_batch(small_batch());
  auto ahead = BatchesAhead::start(*loader_, small_batch(), {.first = 0, .end = 50});
  ASSERT_TRUE(ahead->take());
  std::filesystem::resize_file(path("a.bin"), 2000);
  std::int64_t failing = 1;
  while (loader_->fill(failing, step_batch)) {
    ++failing;
  }
  // Step 1 may have been read before the file changed.
  std::int64_t step = 1;
  Result<const StepBatch*> batch = ahead->take();
  while (batch) {
    ++step;
    batch = ahead->take();
  }
  EXPECT_GE(step, failing);
  EXPECT_LE(step, failing + 1);
  EXPECT_NE(batch.error().what.find("a.bin"), std::string::npos);
  EXPECT_FALSE(ahead->take());
}

TEST_F(BatchesAheadTest, WhatIsThrownComesOutAsAnError) {
  const auto fill = [](std::int64_t step, StepBatch&) -> Status {
    if (step == 2) {
      throw std::bad_alloc();
    }
    return {};
  };
  auto ahead = BatchesAhead::start(fill, small_batch(), {.first = 0, .end = 50});
  ASSERT_TRUE(ahead->take());
  ASSERT_TRUE(ahead->take());
  const auto batch = ahead->take();
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code, ExitCode::kOperating);
  EXPECT_NE(batch.error().what.find("out of memory"), std::string::npos);
}

}  // namespace
}  // namespace headrace::train
