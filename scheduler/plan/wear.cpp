// See wear.hpp.
#include "scheduler/plan/wear.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/quantity.hpp"
#include "scheduler/plan/choices.hpp"

namespace headrace::plan {

namespace {

constexpr double kSecondsPerDay = 86400;
constexpr double kEnduranceBytesPerByte = 600;  // 600 TBW per TB of capacity, where unknown
constexpr double kLifePartMax = 0.1;            // of the drive's life: more is warned of

// What commits write, a step: tiles in memory are written at each of them.
std::uint64_t commit_bytes_per_step(const PlanSettings& settings,
                                    const Plan& plan,
                                    double step_seconds) {
  const Prediction* commit = find_prediction(plan, "commit");
  const Interval& interval = settings.commit_interval;
  const double steps = interval.steps > 0 ? static_cast<double>(interval.steps)
                                          : std::max(1.0, interval.seconds / step_seconds);
  if (commit == nullptr || interval.never()) {
    return 0;
  }
  const auto bytes = commit->link_bytes.find("commit");
  return bytes == commit->link_bytes.end()
             ? 0
             : static_cast<std::uint64_t>(static_cast<double>(bytes->second) / steps);
}

std::uint64_t steady_bytes(const Plan& plan) {
  const Prediction* steady = find_prediction(plan, "steady");
  if (steady == nullptr) {
    return 0;
  }
  const auto written = steady->link_bytes.find("nvme_write");
  return written == steady->link_bytes.end() ? 0 : written->second;
}

// Of a step and its part of the commits.
std::uint64_t written_per_step(const PlanSettings& settings, const Plan& plan) {
  const Prediction* steady = find_prediction(plan, "steady");
  if (steady == nullptr || steady->seconds <= 0) {
    return steady_bytes(plan);
  }
  return steady_bytes(plan) + commit_bytes_per_step(settings, plan, steady->seconds);
}

// What the drive may be written over its life; 0: unknown.
double endurance_of(const PlanSettings& settings, const MachineProfile& machine, Plan& plan) {
  if (settings.endurance_bytes && *settings.endurance_bytes > 0) {
    return *settings.endurance_bytes;
  }
  const double assumed = kEnduranceBytesPerByte * static_cast<double>(machine.nvme_capacity_bytes);
  plan.notes.emplace_back(
      assumed > 0
          ? "the drive's endurance is unknown: 600 TBW per TB of capacity assumed (set tiers.nvme "
            "endurance)"
          : "the drive's capacity and endurance are unknown: its life is not predicted");
  return assumed;
}

double written_by_run(const PlanSettings& settings, const Plan& plan) {
  return static_cast<double>(written_per_step(settings, plan)) *
         static_cast<double>(settings.steps);
}

// "--set" lines with which a run stays below `bytes_max` written, each tried before it is given.
class DriveSparer {
 public:
  DriveSparer(const ModelSpec& model,
              const PlanSettings& settings,
              const Replan& replan,
              const Plan& plan,
              double bytes_max)
      : model_(model), settings_(settings), replan_(replan), plan_(plan), bytes_max_(bytes_max) {}

  [[nodiscard]] std::string advice() const {
    for (const std::string& line :
         {fewer_commits(), no_spills(), state_in_memory(), larger_steps()}) {
      if (!line.empty()) {
        return line;
      }
    }
    return "use a drive that endures more";
  }

 private:
  [[nodiscard]] std::string fewer_commits() const {
    for (const int hours : {1, 12}) {
      PlanSettings seldom = settings_;
      seldom.commit_interval = {.steps = 0, .seconds = hours * kSecondsPerDay / 24};
      if (!settings_.commit_interval.never() && written_by_run(seldom, plan_) <= bytes_max_) {
        return fmt::format("commit less often: --set durability.checkpoint=\"{}h\"", hours);
      }
    }
    return "";
  }

  [[nodiscard]] std::string no_spills() const {
    PlanSettings recomputing = settings_;
    recomputing.may_spill = false;
    if (plan_.spilled.empty()) {
      return "";
    }
    const std::optional<Plan> other = replan_(recomputing);
    return other && written_by_run(recomputing, *other) <= bytes_max_
               ? "recompute activations instead: --set tiers.spill_activations=false"
               : "";
  }

  [[nodiscard]] std::string state_in_memory() const {
    PlanSettings in_memory = settings_;
    std::string sets;
    if (settings_.place == Home::kNvme) {
      in_memory.place.reset();
      sets += " --set tiers.place=\"auto\"";
    }
    const std::size_t wanted = plan_.host_arena_bytes + (plan_.nvme_bytes - spilled_bytes(plan_)) /
                                                            static_cast<std::size_t>(physical_slots(
                                                                settings_, plan_.update));
    if (wanted > settings_.host_memory_bytes) {
      in_memory.host_memory_bytes = (wanted + kMebibyte - 1) / kMebibyte * kMebibyte;
      sets += fmt::format(" --set tiers.host_memory=\"{}\"", mebibytes(wanted));
    }
    if (sets.empty() || wanted + plan_.device_arena_bytes > settings_.usable_bytes) {
      return "";
    }
    const std::optional<Plan> other = replan_(in_memory);
    return other && written_by_run(in_memory, *other) <= bytes_max_
               ? "keep the state in memory:" + sets
               : "";
  }

  // Commits that follow the clock are as many as before. What is spilled grows with the step.
  [[nodiscard]] std::string larger_steps() const {
    if (!plan_.spilled.empty()) {
      return "";
    }
    const auto step_bytes = static_cast<double>(steady_bytes(plan_));
    const double all_bytes = written_by_run(settings_, plan_);
    const bool by_clock = settings_.commit_interval.seconds > 0;
    const double left =
        by_clock ? bytes_max_ - (all_bytes - step_bytes * static_cast<double>(settings_.steps))
                 : bytes_max_;
    const double each =
        by_clock ? step_bytes : static_cast<double>(written_per_step(settings_, plan_));
    if (each <= 0 || left < each) {
      return "";
    }
    const auto steps = static_cast<std::int64_t>(left / each);
    const std::int64_t larger = (settings_.steps + steps - 1) / steps;
    return fmt::format("take fewer, larger steps: --set batch.accumulate={} --set run.steps={}",
                       model_.accumulate * larger,
                       (settings_.steps + larger - 1) / larger);
  }

  const ModelSpec& model_;
  const PlanSettings& settings_;
  const Replan& replan_;
  const Plan& plan_;
  double bytes_max_;
};

}  // namespace

void count_wear(const ModelSpec& model,
                const PlanSettings& settings,
                const MachineProfile& machine,
                const Replan& replan,
                Plan& plan) {
  const Prediction* steady = find_prediction(plan, "steady");
  plan.written_bytes_per_step = written_per_step(settings, plan);
  if (steady == nullptr || plan.written_bytes_per_step == 0 || steady->seconds <= 0) {
    return;
  }
  plan.written_bytes_per_day =
      static_cast<double>(plan.written_bytes_per_step) / steady->seconds * kSecondsPerDay;
  const double endurance = endurance_of(settings, machine, plan);
  if (endurance <= 0) {
    return;
  }
  plan.endurance_bytes = endurance;
  plan.drive_life_days = endurance / plan.written_bytes_per_day;
  const double run_bytes = written_by_run(settings, plan);
  const double bytes_max = endurance * kLifePartMax;
  if (run_bytes > bytes_max) {
    plan.wear_warning =
        fmt::format("this run would write {} to the drive, {:.0f} % of its life; {}",
                    format_bytes(static_cast<std::uint64_t>(run_bytes)),
                    100 * run_bytes / endurance,
                    DriveSparer(model, settings, replan, plan, bytes_max).advice());
  }
}

}  // namespace headrace::plan
