// What is said of steps that differ from the plan.
#include "train/differences.hpp"

#include <gtest/gtest.h>

namespace headrace::train {
namespace {

StepMetrics step(double seconds, double read_s, double commit_s) {
  StepMetrics row;
  row.step_s = seconds;
  row.stall_s = {{"nvme_read", read_s}, {"commit", commit_s}};
  return row;
}

plan::Prediction prediction() {
  plan::Prediction steady;
  steady.seconds = 1.0;
  steady.stall_seconds = {{"optimizer", 0.2}};
  return steady;
}

TEST(Differences, TheLargestIsNamedFirstAndSmallOnesAreNot) {
  MeasuredSteps steps;
  steps.add(step(1.5, 0.6, 0));
  steps.add(step(2.5, 0.8, 1.0));  // of which a commit is a second
  const std::vector<Difference> found = steps.differences(prediction());
  ASSERT_EQ(found.size(), 2U);  // computing: 0.8 s, as predicted
  EXPECT_EQ(found[0].part, "waiting for reads of the drive");
  EXPECT_DOUBLE_EQ(found[0].measured_s, 0.7);
  EXPECT_EQ(found[0].predicted_s, 0);
  EXPECT_EQ(found[1].predicted_s, 0.2);
  EXPECT_EQ(found[1].measured_s, 0);
  const std::string text = format_differences(found);
  EXPECT_NE(text.find("reads of the drive took 700 ms a step, not 0"), std::string::npos) << text;
}

TEST(Differences, NothingIsSaidOfARunAsPredictedOrWithoutSteps) {
  MeasuredSteps steps;
  EXPECT_TRUE(steps.differences(prediction()).empty());
  StepMetrics row = step(1.01, 0, 0);
  row.stall_s["optimizer"] = 0.21;
  steps.add(row);
  EXPECT_TRUE(steps.differences(prediction()).empty());
  EXPECT_EQ(format_differences({}), "");
}

}  // namespace
}  // namespace headrace::train
