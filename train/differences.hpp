// Where the steps of a run differ from the simulated step, in words: the user's first look when a
// run is slower than its plan, and ours when a prediction is wrong.
//
// Compared are steady steps only (with a held update, nothing skipped), without commits. Threads:
// one. Failure: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/plan/plan.hpp"
#include "train/metrics.hpp"

namespace headrace::train {

// One part of a step: computing, or waiting for one cause. Seconds a step.
struct Difference {
  std::string part;  // "computing", "waiting for reads of the drive"
  double predicted_s = 0;
  double measured_s = 0;
};

class MeasuredSteps {
 public:
  void add(const StepMetrics& row);

  [[nodiscard]] std::int64_t count() const { return count_; }

  // Parts that differ by at least kDifferenceShown of the predicted step, the largest first.
  [[nodiscard]] std::vector<Difference> differences(const plan::Prediction& steady) const;

 private:
  std::int64_t count_ = 0;
  double seconds_ = 0;                     // commits left out
  std::map<std::string, double> stall_s_;  // by cause
};

inline constexpr double kDifferenceShown = 0.03;

// "computing took 1.12 s, not 1.01 s", one a line; "" without differences.
[[nodiscard]] std::string format_differences(const std::vector<Difference>& differences);

}  // namespace headrace::train
