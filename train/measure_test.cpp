// Statistics of repeated measurements, and when a measurement ends.
#include "train/measure.hpp"

#include <gtest/gtest.h>

namespace headrace::train {
namespace {

TEST(Measure, PercentilesLieBetweenTheirNeighbours) {
  const Sample sample = summarize({5, 1, 4, 2, 3});
  EXPECT_DOUBLE_EQ(sample.median, 3);
  EXPECT_DOUBLE_EQ(sample.p5, 1.2);
  EXPECT_DOUBLE_EQ(sample.p95, 4.8);
  EXPECT_EQ(sample.n, 5);
  EXPECT_DOUBLE_EQ(summarize({1, 2}).median, 1.5);
}

TEST(Measure, OneValueIsEveryPercentileAndNoneIsZero) {
  const Sample one = summarize({7});
  EXPECT_EQ(one.median, 7);
  EXPECT_EQ(one.p5, 7);
  EXPECT_EQ(one.p95, 7);
  EXPECT_EQ(summarize({}).n, 0);
}

TEST(Measure, WarmsUpOnceAndRepeatsAtLeastAsOftenAsAsked) {
  int rounds = 0;
  const Result<Sample> sample = measure_rate(
      {.time = std::chrono::milliseconds(0), .rounds_min = 4}, [&]() -> Result<double> {
        ++rounds;
        return 1.0;
      });
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->n, 4);
  EXPECT_EQ(rounds, 5);
}

TEST(Measure, EndsWhenTheRoundsAgree) {
  const Result<Sample> sample =
      measure_rate({.time = std::chrono::hours(1), .rounds_min = 1, .spread = 1e300},
                   [&]() -> Result<double> { return 1.0; });
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->n, kSpreadRoundsMin);
}

TEST(Measure, AFailedRoundEndsIt) {
  int rounds = 0;
  const Result<Sample> sample =
      measure_rate({.time = std::chrono::hours(1), .rounds_min = 1}, [&]() -> Result<double> {
        return ++rounds < 3 ? Result<double>(1.0) : Result<double>(operating_error("broken"));
      });
  ASSERT_FALSE(sample);
  EXPECT_EQ(sample.error().what, "broken");
}

}  // namespace
}  // namespace headrace::train
