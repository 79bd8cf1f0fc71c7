#include "train/measure.hpp"

#include <cmath>

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

}  // namespace headrace::train
