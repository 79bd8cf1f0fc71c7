// The learning rate of each update.
//
// Pure functions of the number of updates that were applied before (0 for the first one). A skipped
// step applies none, so the schedule does not advance with it. Any thread; nothing fails: the
// settings were checked when they were read (make_schedule).
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "core/run_config.hpp"

namespace headrace::train {

enum class ScheduleShape : std::uint8_t { kConstant, kLinear, kCosine, kWsd };

// With u = updates before this one, w = warmup_steps, n = steps and f = (u - w) / max(1, n - w):
//   u < w      lr * (u + 1) / w
//   constant   lr
//   linear     min_lr + (lr - min_lr) * (1 - f)
//   cosine     min_lr + 0.5 * (lr - min_lr) * (1 + cos(pi * f))
//   wsd        lr until n - decay_steps, then linear: with d = u - (n - decay_steps),
//              min_lr + (lr - min_lr) * (1 - d / decay_steps)
// After the end (u >= n, where steps was lowered) every shape but constant stays at min_lr.
struct Schedule {
  ScheduleShape shape = ScheduleShape::kCosine;
  double lr = 0;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 0;
  std::int64_t decay_steps = 0;  // wsd only
};

// Checks the settings against `steps` (of the whole run) and fills defaults: decay_steps is a tenth
// of the steps, at least 1. Errors: unknown shape; a warm-up that is longer than the run, or that
// leaves no room for the decay; min_lr above lr.
[[nodiscard]] Result<Schedule> make_schedule(const RunConfig& config, std::int64_t steps);

[[nodiscard]] double learning_rate(const Schedule& schedule, std::int64_t updates_before);

}  // namespace headrace::train
