#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

namespace headrace::train {
namespace {

std::optional<ScheduleShape> shape_of(const std::string& name) {
  if (name == "constant") {
    return ScheduleShape::kConstant;
  }
  if (name == "linear") {
    return ScheduleShape::kLinear;
  }
  if (name == "cosine") {
    return ScheduleShape::kCosine;
  }
  if (name == "wsd") {
    return ScheduleShape::kWsd;
  }
  return std::nullopt;
}

std::string where_of(const RunConfig& config, const std::string& key) {
  const auto found = config.where.find(key);
  return found == config.where.end() ? std::string() : found->second;
}

double between(double low, double high, double part) {
  return low + (high - low) * part;
}

}  // namespace

Result<Schedule> make_schedule(const RunConfig& config, std::int64_t steps) {
  const OptimSection& optim = config.optim;
  const std::optional<ScheduleShape> shape = shape_of(optim.lr_schedule);
  if (!shape) {
    return usage_error("optim.lr_schedule: '" + optim.lr_schedule + "' is not a schedule")
        .with_hint("one of constant, linear, cosine, wsd")
        .with_where(where_of(config, "optim.lr_schedule"));
  }
  if (optim.min_lr > optim.lr) {
    return usage_error("optim.min_lr is above optim.lr")
        .with_hint("min_lr is where the schedule ends; lr is where it starts")
        .with_where(where_of(config, "optim.min_lr"));
  }
  if (optim.warmup_steps > steps) {
    return usage_error("optim.warmup_steps = " + std::to_string(optim.warmup_steps) +
                       " is longer than the run of " + std::to_string(steps) + " steps")
        .with_hint("lower optim.warmup_steps or raise run.steps")
        .with_where(where_of(config, "optim.warmup_steps"));
  }
  Schedule schedule;
  schedule.shape = *shape;
  schedule.lr = optim.lr;
  schedule.min_lr = optim.min_lr;
  schedule.warmup_steps = optim.warmup_steps;
  schedule.steps = steps;
  if (schedule.shape == ScheduleShape::kWsd) {
    schedule.decay_steps = optim.decay_steps.value_or(std::max<std::int64_t>(1, steps / 10));
    if (schedule.decay_steps + schedule.warmup_steps > steps) {
      return usage_error("optim.warmup_steps and optim.decay_steps together, " +
                         std::to_string(schedule.warmup_steps) + " + " +
                         std::to_string(schedule.decay_steps) + ", are longer than the run of " +
                         std::to_string(steps) + " steps")
          .with_hint("lower one of them or raise run.steps")
          .with_where(where_of(config, "optim.decay_steps"));
    }
  }
  return schedule;
}

double learning_rate(const Schedule& schedule, std::int64_t updates_before) {
  const std::int64_t u = updates_before;
  const std::int64_t w = schedule.warmup_steps;
  if (u < w) {
    return schedule.lr * static_cast<double>(u + 1) / static_cast<double>(w);
  }
  const std::int64_t span = std::max<std::int64_t>(1, schedule.steps - w);
  const double f = std::min(1.0, static_cast<double>(u - w) / static_cast<double>(span));
  switch (schedule.shape) {
    case ScheduleShape::kConstant:
      return schedule.lr;
    case ScheduleShape::kLinear:
      return between(schedule.min_lr, schedule.lr, 1.0 - f);
    case ScheduleShape::kCosine:
      return schedule.min_lr +
             0.5 * (schedule.lr - schedule.min_lr) * (1.0 + std::cos(std::numbers::pi * f));
    case ScheduleShape::kWsd:
      break;
  }
  const std::int64_t into_decay = u - (schedule.steps - schedule.decay_steps);
  if (into_decay <= 0) {
    return schedule.lr;
  }
  const double d =
      std::min(1.0, static_cast<double>(into_decay) / static_cast<double>(schedule.decay_steps));
  return between(schedule.min_lr, schedule.lr, 1.0 - d);
}

}  // namespace headrace::train
