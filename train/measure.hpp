// Rates by repetition: rounds of some work, timed, until they agree or the time is up.
//
// Invariant: the first round warms up and is not counted; at least `rounds_min` are counted.
// Thread: the caller's. Failure: that of a round, at once.
#pragma once

#include <algorithm>
#include <chrono>
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

// Work per second of `round`, which returns a Status.
template <class Round>
[[nodiscard]] Result<Sample> measure_rate(const Effort& effort,
                                          double work_of_round,
                                          const Round& round) {
  using Clock = std::chrono::steady_clock;
  HEADRACE_TRY(round());
  std::vector<double> rates;
  const Clock::time_point end = Clock::now() + effort.time;
  while (Clock::now() < end || static_cast<int>(rates.size()) < effort.rounds_min) {
    const Clock::time_point begin = Clock::now();
    HEADRACE_TRY(round());
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    rates.push_back(work_of_round / std::max(seconds.count(), 1e-9));
    if (effort.spread > 0 && static_cast<int>(rates.size()) >= kSpreadRoundsMin) {
      const Sample sample = summarize(rates);
      if (sample.p95 - sample.p5 <= effort.spread * sample.median) {
        break;
      }
    }
  }
  return summarize(std::move(rates));
}

}  // namespace headrace::train
