#include "scheduler/plan/summary.hpp"

#include <algorithm>

namespace headrace::plan {

namespace {

constexpr double kStallMin = 1e-6;  // seconds; below it nothing is said

// "nvme" moves what goes by "nvme_read" and "nvme_write".
bool moves(const std::string& resource, const std::string& link) {
  return link == resource || link.starts_with(resource + "_");
}

std::vector<ResourceUse> resources_of(const Prediction& prediction) {
  std::vector<ResourceUse> resources;
  for (const auto& [name, seconds] : prediction.busy_seconds) {
    ResourceUse use{.name = name,
                    .busy_seconds = seconds,
                    .share = prediction.seconds > 0 ? seconds / prediction.seconds : 0,
                    .bytes = {}};
    for (const auto& [link, bytes] : prediction.link_bytes) {
      if (moves(name, link) && bytes > 0) {
        use.bytes.emplace_back(link, bytes);
      }
    }
    if (seconds > 0 || !use.bytes.empty()) {
      resources.push_back(std::move(use));
    }
  }
  std::stable_sort(
      resources.begin(), resources.end(), [](const ResourceUse& a, const ResourceUse& b) {
        return a.busy_seconds > b.busy_seconds;
      });
  return resources;
}

}  // namespace

StepSummary summarize(const ModelSpec& model, const Plan& plan) {
  const Prediction* steady = find_prediction(plan, "steady");
  const Prediction* prediction = steady != nullptr ? steady : find_prediction(plan, "evaluation");
  StepSummary step;
  step.tokens = model.rows() * (steady != nullptr ? model.accumulate : 1);
  if (prediction == nullptr || prediction->seconds <= 0) {
    return step;
  }
  step.seconds = prediction->seconds;
  step.bound_seconds = prediction->bound_seconds;
  step.order_bound_seconds = prediction->order_bound_seconds;
  step.bound_share = step.bound_seconds / step.seconds;
  step.resources = resources_of(*prediction);
  step.dominant = step.resources.empty() ? "" : step.resources.front().name;
  for (const auto& [cause, seconds] : prediction->stall_seconds) {
    step.stalled_seconds += seconds;
    if (seconds > step.largest_stall_seconds && seconds >= kStallMin) {
      step.largest_stall = cause;
      step.largest_stall_seconds = seconds;
    }
  }
  step.tokens_per_s = static_cast<double>(step.tokens) / step.seconds;
  return step;
}

TokenBudget budget_tokens(const Plan& plan, const StepSummary& step, std::int64_t tokens) {
  TokenBudget budget;
  if (tokens <= 0 || step.tokens <= 0) {
    return budget;
  }
  budget.tokens = tokens;
  const std::int64_t steps = (tokens + step.tokens - 1) / step.tokens;
  budget.steps = static_cast<double>(steps);
  budget.seconds = budget.steps * step.seconds;
  budget.written_bytes = budget.steps * static_cast<double>(plan.written_bytes_per_step);
  budget.endurance_share =
      plan.endurance_bytes > 0 ? budget.written_bytes / plan.endurance_bytes : 0;
  return budget;
}

}  // namespace headrace::plan
