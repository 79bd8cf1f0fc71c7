#include "train/differences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/quantity.hpp"

namespace headrace::train {
namespace {

constexpr std::string_view kComputing = "computing";

std::string part_of(const std::string& cause) {
  static constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"nvme_read", "waiting for reads of the drive"},
      {"nvme_write", "waiting for writes of the drive"},
      {"h2d", "waiting for copies to the device"},
      {"d2h", "waiting for copies from the device"},
      {"optimizer", "waiting for updates, and for what these read"},
      {"host", "waiting for work of the host"},
      {"data", "waiting for the data loader"}};
  for (const auto& [name, part] : kParts) {
    if (name == cause) {
      return std::string(part);
    }
  }
  return "waiting for " + cause;
}

double sum_of(const std::map<std::string, double>& values) {
  double sum = 0;
  for (const auto& [name, value] : values) {
    sum += value;
  }
  return sum;
}

}  // namespace

void MeasuredSteps::add(const StepMetrics& row) {
  ++count_;
  seconds_ += row.step_s;
  for (const auto& [cause, seconds] : row.stall_s) {
    if (cause == "commit") {
      seconds_ -= seconds;
    } else {
      stall_s_[cause] += seconds;
    }
  }
}

std::vector<Difference> MeasuredSteps::differences(const plan::Prediction& steady) const {
  std::vector<Difference> all;
  if (count_ == 0) {
    return all;
  }
  const auto steps = static_cast<double>(count_);
  all.push_back({.part = std::string(kComputing),
                 .predicted_s = steady.seconds - sum_of(steady.stall_seconds),
                 .measured_s = (seconds_ - sum_of(stall_s_)) / steps});
  std::map<std::string, std::pair<double, double>> causes;
  for (const auto& [cause, seconds] : steady.stall_seconds) {
    causes[cause].first = seconds;
  }
  for (const auto& [cause, seconds] : stall_s_) {
    causes[cause].second = seconds / steps;
  }
  for (const auto& [cause, seconds] : causes) {
    all.push_back(
        {.part = part_of(cause), .predicted_s = seconds.first, .measured_s = seconds.second});
  }
  const auto size = [](const Difference& one) {
    return std::abs(one.measured_s - one.predicted_s);
  };
  std::erase_if(
      all, [&](const Difference& one) { return size(one) < kDifferenceShown * steady.seconds; });
  std::sort(all.begin(), all.end(), [&](const Difference& a, const Difference& b) {
    return size(a) > size(b);
  });
  return all;
}

std::string format_differences(const std::vector<Difference>& differences) {
  std::string text;
  for (const Difference& one : differences) {
    text += fmt::format("differs: {} took {} a step, not {}\n",
                        one.part,
                        format_duration(one.measured_s),
                        format_duration(one.predicted_s));
  }
  return text;
}

}  // namespace headrace::train
