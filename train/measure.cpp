#include "train/measure.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace headrace::train {
namespace {

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

}  // namespace

Sample summarize(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::sort(values.begin(), values.end());
  return {.median = percentile(values, 0.5),
          .p5 = percentile(values, 0.05),
          .p95 = percentile(values, 0.95),
          .n = static_cast<int>(values.size())};
}

Result<Sample> measure_rate(const Effort& effort, const Load& load) {
  using Clock = std::chrono::steady_clock;
  HEADRACE_TRY(load());
  std::vector<double> rates;
  const Clock::time_point end = Clock::now() + effort.time;
  while (Clock::now() < end || static_cast<int>(rates.size()) < effort.rounds_min) {
    const Clock::time_point begin = Clock::now();
    HEADRACE_ASSIGN(const double work, load());
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    rates.push_back(work / std::max(seconds.count(), 1e-9));
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
