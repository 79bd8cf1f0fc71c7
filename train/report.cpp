#include "train/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/quantity.hpp"

namespace headrace::train {
namespace {

constexpr std::size_t kValueColumns = 64;

// A cause is named when it cost at least this part of the step.
constexpr double kStallShown = 0.01;

std::string milliseconds(double seconds) {
  return seconds < 10 ? fmt::format("{:.0f} ms", seconds * 1e3) : format_duration(seconds);
}

std::string stall_of(const StepMetrics& metrics) {
  const auto largest = std::max_element(
      metrics.stall_s.begin(), metrics.stall_s.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
  if (largest == metrics.stall_s.end() || largest->second < kStallShown * metrics.step_s) {
    return "no stall";
  }
  return fmt::format("stall {} {}", largest->first, milliseconds(largest->second));
}

}  // namespace

std::string format_settings(const std::vector<Setting>& settings) {
  std::size_t names = 0;
  for (const Setting& setting : settings) {
    names = std::max(names, setting.name.size());
  }
  const std::string rule = fmt::format("+-{:-<{}}-+-{:-<{}}-+\n", "", names, "", kValueColumns);
  std::string text = rule;
  for (const Setting& setting : settings) {
    std::string_view rest = setting.value;
    std::string_view name = setting.name;
    do {
      const std::string_view part = rest.substr(0, kValueColumns);
      text += fmt::format("| {:<{}} | {:<{}} |\n", name, names, part, kValueColumns);
      rest.remove_prefix(part.size());
      name = "";
    } while (!rest.empty());
  }
  return text + rule;
}

double percent_of_bound(const StepMetrics& metrics) {
  return metrics.step_s > 0 ? 100 * metrics.bound_s / metrics.step_s : 0;
}

std::string format_step(const StepMetrics& metrics, std::int64_t steps) {
  const std::size_t digits = fmt::formatted_size("{}", steps);
  std::string line = fmt::format("step {:>{}}/{} | ", metrics.step, digits, steps);
  if (metrics.skipped) {
    line += fmt::format("skipped: NaN or Inf in the gradient of {}[{}], {} in all | ",
                        metrics.skipped->tensor,
                        metrics.skipped->element,
                        metrics.skipped->count);
  } else {
    line += fmt::format("loss {:.6f} | norm {:.4f} | ", metrics.loss, metrics.grad_norm);
  }
  line += fmt::format("lr {:.2e} | {} | {:.0f} tok/s | {:.0f} % of bound | {}",
                      metrics.lr,
                      milliseconds(metrics.step_s),
                      metrics.tokens_per_s,
                      percent_of_bound(metrics),
                      stall_of(metrics));
  if (metrics.eval) {
    line += fmt::format(
        " | eval loss {:.6f}, perplexity {:.4f}", metrics.eval->loss, metrics.eval->perplexity());
  }
  return line;
}

}  // namespace headrace::train
