// The plan as text: the table of `headrace plan`, 100 columns wide.
#include "scheduler/plan/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/quantity.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/summary.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kColumnsMax = 100;

std::string cell(std::uint64_t bytes) {
  return bytes == 0 ? "-" : format_bytes(bytes);
}

void append_baseline(std::string& text, const ModelSpec& model, const StateFormat& format) {
  const auto parameters = static_cast<double>(model.parameters());
  const auto trainable = static_cast<double>(model.trainable_parameters());
  add_line(text,
           "parameters",
           fmt::format("{} ({} trainable); mixed-precision Adam keeps 16 B each (2+2+4+4+4): "
                       "{}",
                       format_count(parameters),
                       format_count(trainable),
                       format_bytes(static_cast<std::uint64_t>(16 * parameters))));
  const auto param_bytes = static_cast<double>(format.param_bytes);
  const double state_bytes = format.bytes_per_parameter() - param_bytes;
  add_line(text,
           "here",
           fmt::format("state \"{}\": weights {} + state {} = {} B each: {}{}",
                       format.name,
                       param_bytes,
                       state_bytes,
                       param_bytes + state_bytes,
                       format_bytes(static_cast<std::uint64_t>(
                           4 * (parameters - trainable) + (param_bytes + state_bytes) * trainable)),
                       format.decoded ? "; decoded to 4 B each where they are used" : ""));
}

std::string activations_of(const ModelSpec& model, const Plan& plan) {
  const int blocks = static_cast<int>(model.units.size()) - 2;
  if (plan.kept_blocks == blocks) {
    return "kept";
  }
  if (plan.kept_blocks == 0) {
    return "recomputed";
  }
  std::string text = fmt::format("of {} of {} blocks kept", plan.kept_blocks, blocks);
  if (plan.spilled_blocks > 0) {
    text += fmt::format(
        ", of {} {}", plan.spilled_blocks, plan.separate_device ? "in host memory" : "on NVMe");
  }
  return plan.kept_blocks + plan.spilled_blocks < blocks ? text + ", the rest recomputed" : text;
}

void append_choices(std::string& text, const ModelSpec& model, const Plan& plan) {
  int on_nvme = 0, masters = 0, pinned = 0;
  for (const UnitPlan& unit : plan.units) {
    on_nvme += unit.home == Home::kNvme ? 1 : 0;
    masters += unit.master >= 0 ? 1 : 0;
    pinned += unit.pinned ? 1 : 0;
  }
  add_line(text,
           "step",
           fmt::format("{} micro-batch(es) of {} x {}, {}, update {}, activations {}{}",
                       model.accumulate,
                       model.micro_batch,
                       model.seq_len,
                       traversal_name(plan.group_size, model.accumulate),
                       update_name(plan.update),
                       activations_of(model, plan),
                       plan.offload_inputs ? "; inputs of blocks offloaded to the host" : ""));
  add_line(text,
           "placement",
           fmt::format("{} units: state of {} on nvme, weights of {} in memory, {} pinned on the "
                       "device; lookahead {}, tiles of {} blocks",
                       plan.units.size(),
                       on_nvme,
                       masters,
                       pinned,
                       plan.lookahead,
                       plan.tile_elements / kBlockElements));
}

void append_memory(std::string& text, const Plan& plan, const PlanSettings& settings) {
  text += fmt::format("\n{:<12} {:>12} {:>12} {:>12}\n", "memory", "device", "host", "nvme");
  for (const MemoryRow& row : plan.memory) {
    text += fmt::format("{:<12} {:>12} {:>12} {:>12}\n",
                        row.purpose,
                        cell(row.device_bytes),
                        cell(row.host_bytes),
                        cell(row.nvme_bytes));
  }
  text += fmt::format("{:<12} {:>12} {:>12} {:>12}\n",
                      "arenas",
                      cell(plan.device_arena_bytes),
                      cell(plan.host_arena_bytes),
                      cell(plan.nvme_bytes));
  const std::string device_cap =
      settings.separate_device
          ? cell(settings.device_memory_bytes.value_or(settings.device_available_bytes))
          : "(host)";
  text += fmt::format(
      "{:<12} {:>12} {:>12} {:>12}\n", "budget", device_cap, cell(settings.host_memory_bytes), "-");
}

std::string largest_stall(const Prediction& prediction) {
  const auto* largest = static_cast<const std::pair<const std::string, double>*>(nullptr);
  for (const auto& entry : prediction.stall_seconds) {
    if (largest == nullptr || entry.second > largest->second) {
      largest = &entry;
    }
  }
  return largest == nullptr || largest->second < 1e-6
             ? "-"
             : fmt::format("{} {}", largest->first, format_duration(largest->second));
}

std::uint64_t link(const Prediction& prediction, const char* name) {
  const auto found = prediction.link_bytes.find(name);
  return found == prediction.link_bytes.end() ? 0 : found->second;
}

void append_predictions(std::string& text, const Plan& plan) {
  text += fmt::format("\n{:<11} {:>11} {:>11} {:>10} {:>10} {:>10} {:>10}  {}\n",
                      "predicted",
                      "step",
                      "bound",
                      "nvme read",
                      "nvme write",
                      "h2d",
                      "d2h",
                      "largest stall");
  for (const Prediction& prediction : plan.predictions) {
    text += fmt::format("{:<11} {:>11} {:>11} {:>10} {:>10} {:>10} {:>10}  {}\n",
                        prediction.variant,
                        format_duration(prediction.seconds),
                        format_duration(prediction.bound_seconds),
                        cell(link(prediction, "nvme_read")),
                        cell(link(prediction, "nvme_write") + link(prediction, "commit")),
                        cell(link(prediction, "h2d")),
                        cell(link(prediction, "d2h")),
                        largest_stall(prediction));
  }
}

std::string moved(const ResourceUse& use) {
  std::string text;
  for (const auto& [name, bytes] : use.bytes) {
    const bool written = name.ends_with("_write"), read = name.ends_with("_read");
    text += fmt::format("{}{}{}",
                        text.empty() ? "" : ", ",
                        format_bytes(bytes),
                        written ? " written"
                        : read  ? " read"
                                : "");
  }
  if (use.name == "device") {
    return "its kernels";
  }
  return use.name == "cores" ? "kernels, updates and copies of rows" : text;
}

// Where the order of updates (held, or after backward) costs something.
std::string order_bound(const StepSummary& step) {
  constexpr double kWorthSaying = 1.01;
  return step.order_bound_seconds < kWorthSaying * step.bound_seconds
             ? ""
             : fmt::format("; no step with updates in this order takes less than {}",
                           format_duration(step.order_bound_seconds));
}

// Who works for how much of a step, and how near that comes to the bound.
void append_resources(std::string& text, const StepSummary& step) {
  text += fmt::format("\n{:<11} {:>11} {:>11}\n", "of a step", "busy", "share");
  for (const ResourceUse& use : step.resources) {
    text += fmt::format("{:<11} {:>11} {:>11}  {}\n",
                        use.name,
                        format_duration(use.busy_seconds),
                        format_percent(use.share),
                        moved(use));
  }
  add_line(text,
           "bound",
           step.dominant.empty()
               ? "nothing takes time"
               : fmt::format("{}: a step of {} reaches {} of it; the busiest is {}{}",
                             format_duration(step.bound_seconds),
                             format_duration(step.seconds),
                             format_percent(step.bound_share),
                             step.dominant,
                             order_bound(step)));
  add_line(text,
           "stalls",
           step.largest_stall.empty()
               ? "the device never waits"
               : fmt::format("the device waits for {} of a step, longest for {}: {} ({})",
                             format_duration(step.stalled_seconds),
                             step.largest_stall,
                             format_duration(step.largest_stall_seconds),
                             format_percent(step.largest_stall_seconds / step.seconds)));
}

void append_speed(std::string& text,
                  const Plan& plan,
                  const StepSummary& step,
                  const TokenBudget& budget) {
  add_line(
      text,
      "speed",
      fmt::format("{} tokens/s ({} tokens a step)", format_count(step.tokens_per_s), step.tokens));
  if (budget.tokens <= 0) {
    return;
  }
  std::string line = fmt::format("{} tokens, {} steps: {}",
                                 format_count(static_cast<double>(budget.tokens)),
                                 format_count(budget.steps),
                                 format_duration(budget.seconds));
  if (plan.written_bytes_per_step > 0) {
    line +=
        fmt::format("; {} written", format_bytes(static_cast<std::uint64_t>(budget.written_bytes)));
  }
  if (budget.endurance_share > 0) {
    line += fmt::format(", {} of the drive's life", format_percent(budget.endurance_share));
  }
  add_line(text, "run", line);
}

void append_update_rates(std::string& text, const Plan& plan) {
  const UpdateRates& rates = plan.update_rates;
  std::string line = fmt::format(
      "state \"{}\": {} parameters/s", plan.format.name, format_count(rates.update_params_per_s));
  if (plan.format.decoded) {
    line += fmt::format("; {}/s with the new weights decoded, {}/s decoding alone",
                        format_count(rates.update_decoded_params_per_s),
                        format_count(rates.decode_params_per_s));
  }
  add_line(text, "updates", line);
}

void append_drive(std::string& text, const Plan& plan) {
  std::string line = "nothing is written during a step";
  if (plan.written_bytes_per_step > 0) {
    line = fmt::format("{} written per step, {} per day",
                       format_bytes(plan.written_bytes_per_step),
                       format_bytes(static_cast<std::uint64_t>(plan.written_bytes_per_day)));
    if (plan.drive_life_days > 0) {
      constexpr double kSecondsPerDay = 86400;
      line += fmt::format("; at that rate the drive lasts {}",
                          format_duration(plan.drive_life_days * kSecondsPerDay));
    }
  }
  add_line(text, "drive", line);
  if (!plan.wear_warning.empty()) {
    add_line(text, "warning", plan.wear_warning);
  }
  for (const std::string& note : plan.notes) {
    add_line(text, "note", note);
  }
}

// Where a line that begins at `at` ends: before a space, not between a number and its unit.
std::size_t end_of_line(const std::string& words, std::size_t at, std::size_t room) {
  if (words.size() - at <= room) {
    return words.size();
  }
  std::size_t gap = words.rfind(' ', at + room);
  while (gap != std::string::npos && gap > at && words[gap - 1] >= '0' && words[gap - 1] <= '9') {
    gap = words.rfind(' ', gap - 1);
  }
  if (gap == std::string::npos || gap <= at) {
    gap = words.find(' ', at + room);  // a word that is longer than a line
  }
  return std::min(gap, words.size());
}

}  // namespace

void add_line(std::string& text, const std::string& label, const std::string& words) {
  std::string line = fmt::format("{:<{}}", label, kLabelColumns);
  const std::string indent(kLabelColumns, ' ');
  std::size_t at = 0;
  while (at < words.size()) {
    const std::size_t end = end_of_line(words, at, kColumnsMax - line.size());
    text += line + words.substr(at, end - at) + "\n";
    line = indent;
    at = end < words.size() ? end + 1 : end;
  }
}

std::string format_percent(double share) {
  const double percent = 100 * share;
  if (percent > 0 && percent < 0.1) {
    return "< 0.1 %";
  }
  return percent > 0 && percent < 10 ? fmt::format("{:.1f} %", percent)
                                     : fmt::format("{:.0f} %", percent);
}

std::string format_plan(const Plan& plan,
                        const ModelSpec& model,
                        const PlanSettings& settings,
                        std::int64_t tokens) {
  const StepSummary step = summarize(model, plan);
  const std::int64_t wanted = tokens > 0 ? tokens : settings.steps * step.tokens;
  std::string text;
  append_baseline(text, model, plan.format);
  append_choices(text, model, plan);
  append_memory(text, plan, settings);
  append_predictions(text, plan);
  append_resources(text, step);
  text += "\n";
  append_speed(text, plan, step, budget_tokens(plan, step, wanted));
  if (settings.purpose == Purpose::kTrain) {
    append_update_rates(text, plan);
  }
  append_drive(text, plan);
  return text;
}

}  // namespace headrace::plan
