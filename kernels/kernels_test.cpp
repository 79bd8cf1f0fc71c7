// Kernels on real queues: what the race checker sees, flush-to-zero in the team, bad arguments.

#include "kernels/kernels.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "tiers/race_checker.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::kernels {

namespace {

// x -> linear on one queue, GELU of its result on another.
std::vector<tiers::Race> run_on_two_queues(bool wait) {
  tiers::RaceChecker races;
  tiers::Runtime runtime;
  runtime.races = &races;
  tiers::ThreadQueue first(runtime, "first", {});
  tiers::ThreadQueue second(runtime, "second", {});
  const LinearShape shape = {.rows = 8, .inputs = 16, .outputs = 16};
  std::vector<float> x(128, 1.0F);
  std::vector<float> weight(256, 0.5F);
  std::vector<float> y(128);
  std::vector<float> activated(128);
  const std::size_t bytes = linear_workspace_bytes(shape, 1);
  std::vector<std::byte> memory(bytes + kWorkspaceAlignmentBytes);
  void* begin = memory.data();
  std::size_t space = memory.size();
  std::align(kWorkspaceAlignmentBytes, bytes, begin, space);
  linear({.queue = first, .workspace = {static_cast<std::byte*>(begin), bytes}},
         {.shape = shape, .x = {x.data()}, .weight = {weight.data()}, .y = {y.data()}});
  if (wait) {
    second.wait(first.record());
  }
  gelu({.queue = second}, {.elements = 128, .x = {y.data()}, .y = {activated.data()}});
  EXPECT_TRUE(first.record().wait_host().has_value());
  EXPECT_TRUE(second.record().wait_host().has_value());
  return races.races();
}

}  // namespace

TEST(Kernels, AWaitBetweenQueuesOrdersThemAndItsLackIsNamed) {
  EXPECT_TRUE(run_on_two_queues(true).empty());
  const std::vector<tiers::Race> races = run_on_two_queues(false);
  ASSERT_EQ(races.size(), 1U);
  EXPECT_NE(races[0].text.find("gelu"), std::string::npos) << races[0].text;
  EXPECT_NE(races[0].text.find("linear"), std::string::npos) << races[0].text;
}

TEST(Kernels, EveryThreadOfTheTeamFlushesToZero) {
  tiers::Runtime runtime;
  tiers::ThreadQueue queue(runtime, "compute", {});
  const std::int64_t count = 1 << 20;  // 64 blocks: each thread has some
  std::vector<float> tiny(static_cast<std::size_t>(count), 1.5e-39F);
  for (const int threads : {3, 1, 4}) {
    std::vector<float> sum(tiny.size(), 1.0F);
    add({.queue = queue, .threads = threads},
        {.elements = count, .a = {tiny.data()}, .b = {tiny.data()}, .y = {sum.data()}});
    ASSERT_TRUE(queue.record().wait_host().has_value());
    EXPECT_EQ(std::count(sum.begin(), sum.end(), 0.0F), count) << threads << " threads";
  }
}

using KernelsDeathTest = testing::Test;

TEST(KernelsDeathTest, MisuseAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  tiers::Runtime runtime;
  tiers::ThreadQueue queue(runtime, "compute", {});
  std::vector<float> x(16, 1.0F);
  const LinearShape shape = {.rows = 4, .inputs = 4, .outputs = 4};
  EXPECT_DEATH(gelu({.queue = queue}, {.elements = 16, .x = {x.data()}, .y = {}}), "missing");
  EXPECT_DEATH(
      gelu({.queue = queue}, {.elements = 16, .x = {x.data(), Dtype::kBf16}, .y = {x.data()}}),
      "fp32");
  EXPECT_DEATH(linear_backward_weight(
                   {.queue = queue},
                   {.shape = shape, .x = {x.data()}, .dy = {x.data()}, .dweight = x.data()}),
               "workspace");
  EXPECT_DEATH(head_score({.queue = queue},
                          {.shape = {.rows = 1, .columns = 1, .vocab = 9, .rows_per_chunk = 4},
                           .piece = {.first_row = 2, .row_count = 7}}),
               "inside a chunk");
}

}  // namespace headrace::kernels
