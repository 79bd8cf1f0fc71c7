// Steps whose gradients are not finite: reported with tensor and element, nothing updated, and what
// follows is as if they had not been.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/engine/harness.hpp"

namespace headrace::testing {
namespace {

constexpr std::int32_t kPoisonedToken = 1000;

// An untied model in whose token table one row, that no other step uses, is `value`. The step
// `poisoned` uses it.
RunOptions poisoned_run(float value, std::optional<int> poisoned, int steps) {
  RunOptions options;
  options.architecture = small_llama();
  options.settings = ample_settings();
  options.optim.lr = 1e-3;
  options.steps = steps;
  options.on_weights = [value, hidden = options.architecture.hidden](
                           int unit, std::int64_t begin, std::span<float> values) {
    const std::int64_t element = kPoisonedToken * hidden + 5;
    if (unit == 0 && element >= begin &&
        element < begin + static_cast<std::int64_t>(values.size())) {
      values[static_cast<std::size_t>(element - begin)] = value;
    }
  };
  options.on_tokens = [poisoned](int step, std::vector<std::int32_t>& tokens) {
    if (poisoned && step == *poisoned) {
      tokens[3] = kPoisonedToken;
    }
  };
  return options;
}

class Skip : public ::testing::TestWithParam<float> {};

TEST_P(Skip, ReportsTensorAndElementAndDoesNotCountTheUpdate) {
  for (const bool nvme : {false, true}) {
    for (const double clip : {1.0, 0.0}) {
      RunOptions options = poisoned_run(GetParam(), 1, 3);
      options.optim.clip = clip;
      if (nvme) {
        options.settings.place = plan::Home::kNvme;
      }
      const RunRecord record = run_engine(options);
      ASSERT_EQ(record.skipped, (std::vector<char>{0, 1, 0}));
      EXPECT_EQ(record.update_count, 2);
      ASSERT_EQ(record.non_finite.size(), 1U);
      EXPECT_FALSE(record.non_finite[0].tensor.empty());
      EXPECT_GT(record.non_finite[0].count, 0);
      EXPECT_TRUE(std::isfinite(record.losses[2]));
    }
  }
}

TEST_P(Skip, LeavesWeightsAndStateAsTheyWere) {
  // The last of three steps is skipped: what is left is what two steps leave. And both go on alike.
  for (const plan::Update update :
       {plan::Update::kHeld, plan::Update::kAfterBackward, plan::Update::kSpeculative}) {
    RunOptions two = poisoned_run(GetParam(), {}, 2);
    two.settings.update = update;
    RunOptions three = poisoned_run(GetParam(), 2, 3);
    three.settings.update = update;
    if (update == plan::Update::kSpeculative) {  // of what does not stream nothing is speculated
      two.settings.place = three.settings.place = plan::Home::kNvme;
      two.optim.clip = three.optim.clip = 0;
    }
    const RunRecord expected = run_engine(two);
    RunRecord actual = run_engine(three);
    actual.losses.resize(2);
    actual.norms.resize(2);
    expect_same_bits(expected, actual, plan::update_name(update));
  }
}

// No step uses the row: only the update, which decays it, can tell.
TEST_P(Skip, AWeightThatIsNotFiniteIsReported) {
  for (const plan::Home place : {plan::Home::kHost, plan::Home::kNvme}) {
    RunOptions options = poisoned_run(GetParam(), {}, 2);
    options.settings.place = place;
    const RunRecord record = run_engine(options);
    ASSERT_TRUE(record.bad_weight.has_value());
    EXPECT_EQ(record.bad_weight->tensor, "model.embed_tokens.weight");
    EXPECT_EQ(record.bad_weight->element, kPoisonedToken * options.architecture.hidden + 5);
    EXPECT_EQ(record.bad_weight->count, 1);
    options.on_weights = nullptr;
    EXPECT_FALSE(run_engine(options).bad_weight.has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Values,
                         Skip,
                         ::testing::Values(std::numeric_limits<float>::infinity(),
                                           -std::numeric_limits<float>::infinity(),
                                           std::numeric_limits<float>::quiet_NaN()));

}  // namespace
}  // namespace headrace::testing
