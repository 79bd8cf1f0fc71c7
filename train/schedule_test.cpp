// Learning rates against closed forms and against tables worked out by hand.
#include "train/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace headrace::train {
namespace {

RunConfig config_of(const std::string& shape) {
  RunConfig config;
  config.optim.lr = 1e-3;
  config.optim.min_lr = 1e-4;
  config.optim.lr_schedule = shape;
  return config;
}

std::vector<double> table(const RunConfig& config, std::int64_t steps) {
  const Result<Schedule> schedule = make_schedule(config, steps);
  EXPECT_TRUE(schedule);
  std::vector<double> rates;
  for (std::int64_t update = 0; update < steps; ++update) {
    rates.push_back(learning_rate(*schedule, update));
  }
  return rates;
}

TEST(Schedule, ConstantWarmsUpLinearlyAndStays) {
  RunConfig config = config_of("constant");
  config.optim.warmup_steps = 4;
  const std::vector<double> rates = table(config, 6);
  EXPECT_DOUBLE_EQ(rates[0], 0.25e-3);
  EXPECT_DOUBLE_EQ(rates[1], 0.50e-3);
  EXPECT_DOUBLE_EQ(rates[3], 1e-3);
  EXPECT_DOUBLE_EQ(rates[5], 1e-3);
}

// What a LambdaLR of the same rule gives for 12 steps with 3 of warm-up, the settings of the golden
// case gpt2-accumulate-cosine: f = (s - 3) / 9.
TEST(Schedule, CosineFollowsTheClosedFormOfTheGoldenCases) {
  RunConfig config = config_of("cosine");
  config.optim.warmup_steps = 3;
  const std::vector<double> rates = table(config, 12);
  EXPECT_DOUBLE_EQ(rates[0], 1e-3 / 3);
  EXPECT_DOUBLE_EQ(rates[2], 1e-3);
  EXPECT_DOUBLE_EQ(rates[3], 1e-3);
  for (int s = 3; s < 12; ++s) {
    const double f = (s - 3) / 9.0;
    EXPECT_NEAR(rates[static_cast<std::size_t>(s)],
                1e-4 + 0.5 * 9e-4 * (1 + std::cos(std::numbers::pi * f)),
                1e-18);
  }
  // cos(pi / 3) = 1/2 and cos(2 pi / 3) = -1/2: exact by hand.
  EXPECT_NEAR(rates[6], 1e-4 + 0.75 * 9e-4, 1e-15);
  EXPECT_NEAR(rates[9], 1e-4 + 0.25 * 9e-4, 1e-15);
}

TEST(Schedule, LinearFallsInEqualSteps) {
  RunConfig config = config_of("linear");
  config.optim.warmup_steps = 2;
  const std::vector<double> rates = table(config, 12);
  EXPECT_DOUBLE_EQ(rates[2], 1e-3);
  EXPECT_NEAR(rates[7], 5.5e-4, 1e-15);  // half way: the mean of both ends
  EXPECT_NEAR(rates[3] - rates[4], 9e-5, 1e-15);
  EXPECT_NEAR(rates[11], 1.9e-4, 1e-15);  // the last update is one step before min_lr
}

TEST(Schedule, WsdHoldsThenFallsOverADefaultTenth) {
  const std::vector<double> rates = table(config_of("wsd"), 40);
  EXPECT_DOUBLE_EQ(rates[35], 1e-3);
  EXPECT_DOUBLE_EQ(rates[36], 1e-3);
  EXPECT_NEAR(rates[37], 7.75e-4, 1e-15);
  EXPECT_NEAR(rates[38], 5.5e-4, 1e-15);
  EXPECT_NEAR(rates[39], 3.25e-4, 1e-15);
}

TEST(Schedule, WsdTakesGivenDecaySteps) {
  RunConfig config = config_of("wsd");
  config.optim.warmup_steps = 2;
  config.optim.decay_steps = 9;
  const std::vector<double> rates = table(config, 12);
  EXPECT_DOUBLE_EQ(rates[2], 1e-3);
  EXPECT_DOUBLE_EQ(rates[3], 1e-3);
  EXPECT_NEAR(rates[4], 9e-4, 1e-15);
  EXPECT_NEAR(rates[11], 2e-4, 1e-15);
}

TEST(Schedule, StaysAtTheMinimumPastItsEnd) {
  for (const char* shape : {"linear", "cosine", "wsd"}) {
    const Result<Schedule> schedule = make_schedule(config_of(shape), 10);
    ASSERT_TRUE(schedule);
    EXPECT_NEAR(learning_rate(*schedule, 10), 1e-4, 1e-18) << shape;
    EXPECT_NEAR(learning_rate(*schedule, 1000), 1e-4, 1e-18) << shape;
  }
}

TEST(Schedule, RefusesContradictions) {
  EXPECT_EQ(make_schedule(config_of("step"), 10).error().code, ExitCode::kUsage);
  RunConfig config = config_of("cosine");
  config.optim.warmup_steps = 11;
  EXPECT_EQ(make_schedule(config, 10).error().code, ExitCode::kUsage);
  config = config_of("wsd");
  config.optim.warmup_steps = 5;
  config.optim.decay_steps = 6;
  EXPECT_EQ(make_schedule(config, 10).error().code, ExitCode::kUsage);
  config = config_of("linear");
  config.optim.min_lr = 1.0;
  EXPECT_EQ(make_schedule(config, 10).error().code, ExitCode::kUsage);
}

}  // namespace
}  // namespace headrace::train
