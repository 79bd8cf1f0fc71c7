// Rates by repetition: rounds of some work, timed, until they agree or the time is up.
//
// Invariant: the first round warms up and is not counted; at least `rounds_min` are counted.
// Thread: the caller's. Failure: that of a round, at once.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "core/error.hpp"

namespace headrace::train {

// Rates of the rounds, or whatever else was repeated.
struct Sample {
  double median = 0, p5 = 0, p95 = 0;
  int n = 0;
};

// Percentiles lie on the line between the two values around them.
[[nodiscard]] Sample summarize(std::vector<double> values);

struct Effort {
  std::chrono::milliseconds time{80};
  int rounds_min = 3;
  double spread = 0;  // p95 - p5 as a share of the median that is small enough; 0: use the time
};

inline constexpr int kSpreadRoundsMin = 8;  // before a small spread is believed

// Something that can be repeated: does some work, waits for its end, returns how much it was.
using Load = std::function<Result<double>()>;

// Work per second of a load.
[[nodiscard]] Result<Sample> measure_rate(const Effort& effort, const Load& load);

}  // namespace headrace::train
