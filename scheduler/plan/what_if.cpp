#include "scheduler/plan/what_if.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "core/nearest_name.hpp"
#include "core/quantity.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/report.hpp"
#include "scheduler/plan/summary.hpp"

namespace headrace::plan {

namespace {

void scale(double factor, SizedRates& sized) {
  for (double& rate : sized.rates) {
    rate *= factor;
  }
}

enum class Unit : std::uint8_t { kBytesPerS, kFlopsPerS, kCountPerS, kBytes };

// A name, what it stands for today (0: not measured, or not there), and how it is changed.
struct Knob {
  const char* name;
  Unit unit;
  double (*get)(const WhatIf& what_if);
  void (*set)(double value, WhatIf& what_if);
};

double capped(double rate, const std::optional<double>& cap) {
  return cap ? std::min(rate, *cap) : rate;
}

// Bytes a second of reads and writes by turns, so many of each as the share says.
double by_turns(const MachineProfile& machine, double read_share) {
  return 1 / (read_share / machine.nvme_read_bytes_per_s +
              (1 - read_share) / machine.nvme_write_bytes_per_s);
}

struct MixedRate {
  double MachineProfile::*rate;
  double read_share;
};

constexpr MixedRate kMixedRates[] = {
    {&MachineProfile::nvme_mixed_bytes_per_s, 0.5},
    {&MachineProfile::nvme_mixed_reads_bytes_per_s, 0.75},
    {&MachineProfile::nvme_mixed_writes_bytes_per_s, 0.25},
};

// A drive that reads or writes at another rate, and otherwise is as it was.
void set_drive(double MachineProfile::*rate, double value, MachineProfile& machine) {
  const MachineProfile before = machine;
  machine.*rate = value;
  if (before.nvme_read_bytes_per_s <= 0 || before.nvme_write_bytes_per_s <= 0) {
    return;
  }
  for (const MixedRate& mixed : kMixedRates) {
    machine.*mixed.rate *= by_turns(machine, mixed.read_share) / by_turns(before, mixed.read_share);
  }
}

void set_read(double value, WhatIf& what_if) {
  set_drive(&MachineProfile::nvme_read_bytes_per_s, value, what_if.machine);
  if (what_if.settings.nvme_read_cap) {
    what_if.settings.nvme_read_cap = value;
  }
}

void set_write(double value, WhatIf& what_if) {
  set_drive(&MachineProfile::nvme_write_bytes_per_s, value, what_if.machine);
  if (what_if.settings.nvme_write_cap) {
    what_if.settings.nvme_write_cap = value;
  }
}

void set_mixed(double value, WhatIf& what_if) {
  const double factor = value / what_if.machine.nvme_mixed_bytes_per_s;
  for (const MixedRate& mixed : kMixedRates) {
    what_if.machine.*mixed.rate *= factor;
  }
}

double copy_rate(const WhatIf& what_if, std::optional<double> PlanSettings::*cap) {
  return what_if.settings.separate_device
             ? capped(what_if.machine.host_copy_bytes_per_s, what_if.settings.*cap)
             : 0;
}

// One way; the other stays as it is.
void set_copy(double value,
              std::optional<double> PlanSettings::*cap,
              std::optional<double> PlanSettings::*other,
              WhatIf& what_if) {
  what_if.settings.*other = copy_rate(what_if, other);
  what_if.settings.*cap = value;
  what_if.machine.host_copy_bytes_per_s = std::max(what_if.machine.host_copy_bytes_per_s, value);
}

void set_updates(double value, WhatIf& what_if) {
  const std::string& state = what_if.settings.format.name;
  const double factor =
      value / update_rates(what_if.machine, what_if.settings.format).update_params_per_s;
  UpdateRates all = update_rates(what_if.machine, what_if.settings.format);
  what_if.machine.update_rates[state] = all;
  for (auto& [name, rates] : what_if.machine.update_rates) {
    rates.update_params_per_s *= factor;
    rates.update_decoded_params_per_s *= factor;
    rates.decode_params_per_s *= factor;
  }
}

void set_host_memory(double value, WhatIf& what_if) {
  PlanSettings& settings = what_if.settings;
  settings.host_memory_bytes = static_cast<std::size_t>(value);
  settings.host_available_bytes =
      std::max(settings.host_available_bytes, settings.host_memory_bytes);
  settings.usable_bytes = std::max(settings.usable_bytes, settings.host_memory_bytes);
  settings.reserve_bytes = 0;
}

const Knob kKnobs[] = {
    {"nvme.read",
     Unit::kBytesPerS,
     [](const WhatIf& w) {
       return capped(w.machine.nvme_read_bytes_per_s, w.settings.nvme_read_cap);
     },
     set_read},
    {"nvme.write",
     Unit::kBytesPerS,
     [](const WhatIf& w) {
       return capped(w.machine.nvme_write_bytes_per_s, w.settings.nvme_write_cap);
     },
     set_write},
    {"nvme.mixed",
     Unit::kBytesPerS,
     [](const WhatIf& w) { return w.machine.nvme_mixed_bytes_per_s; },
     set_mixed},
    {"h2d",
     Unit::kBytesPerS,
     [](const WhatIf& w) { return copy_rate(w, &PlanSettings::h2d_cap); },
     [](double value, WhatIf& w) {
       set_copy(value, &PlanSettings::h2d_cap, &PlanSettings::d2h_cap, w);
     }},
    {"d2h",
     Unit::kBytesPerS,
     [](const WhatIf& w) { return copy_rate(w, &PlanSettings::d2h_cap); },
     [](double value, WhatIf& w) {
       set_copy(value, &PlanSettings::d2h_cap, &PlanSettings::h2d_cap, w);
     }},
    {"memory",
     Unit::kBytesPerS,
     [](const WhatIf& w) { return w.machine.memory_bytes_per_s; },
     [](double value, WhatIf& w) {
       scale_memory(value / w.machine.memory_bytes_per_s, w.machine);
     }},
    {"gemm",
     Unit::kFlopsPerS,
     [](const WhatIf& w) { return w.machine.gemm_fp32_flops_per_s; },
     [](double value, WhatIf& w) {
       scale_gemm(value / w.machine.gemm_fp32_flops_per_s, w.machine);
     }},
    {"update",
     Unit::kCountPerS,
     [](const WhatIf& w) { return update_rates(w.machine, w.settings.format).update_params_per_s; },
     set_updates},
    {"host_memory",
     Unit::kBytes,
     [](const WhatIf& w) { return static_cast<double>(w.settings.host_memory_bytes); },
     set_host_memory},
    {"device_memory",
     Unit::kBytes,
     [](const WhatIf& w) {
       return w.settings.separate_device
                  ? static_cast<double>(
                        w.settings.device_memory_bytes.value_or(w.settings.device_available_bytes))
                  : 0;
     },
     [](double value, WhatIf& w) {
       w.settings.device_memory_bytes = static_cast<std::size_t>(value);
     }},
};

std::vector<std::string> knob_names() {
  std::vector<std::string> names;
  for (const Knob& knob : kKnobs) {
    names.emplace_back(knob.name);
  }
  return names;
}

Result<const Knob*> find_knob(const std::string& name) {
  for (const Knob& knob : kKnobs) {
    if (knob.name == name) {
      return &knob;
    }
  }
  const std::vector<std::string> names = knob_names();
  const std::string nearest = nearest_name(name, names);
  return usage_error(fmt::format("--what-if: there is no '{}'", name))
      .with_hint(fmt::format("{}{}{}",
                             nearest.empty() ? "" : "the nearest is " + nearest + "; ",
                             "they are ",
                             fmt::join(names, ", ")));
}

// "309.6 GFLOP/s".
std::string flops_text(double value) {
  std::string text = format_count(value);
  text.back() = text.back() == 'B' ? 'G' : text.back();
  return text + "FLOP/s";
}

std::string text_of(double value, Unit unit) {
  switch (unit) {
    case Unit::kBytesPerS:
      return format_rate(value);
    case Unit::kFlopsPerS:
      return flops_text(value);
    case Unit::kCountPerS:
      return format_count(value) + " parameters/s";
    case Unit::kBytes:
      return format_bytes(static_cast<std::uint64_t>(value));
  }
  return "";
}

Result<double> parse_value(std::string_view text, Unit unit) {
  switch (unit) {
    case Unit::kBytesPerS:
      return parse_rate(text);
    case Unit::kFlopsPerS:
      return parse_flop_rate(text);
    case Unit::kCountPerS:
      return parse_count_rate(text);
    case Unit::kBytes:
      break;
  }
  HEADRACE_ASSIGN(const std::uint64_t bytes, parse_bytes(text));
  return static_cast<double>(bytes);
}

// "2x", "0.5x"; nothing where it is no factor.
std::optional<double> factor_of(std::string_view text) {
  double factor = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, factor);
  const bool good = code == std::errc() && stop + 1 == end && *stop == 'x';
  constexpr double kFactorMax = 1e6;
  return good && factor >= 1 / kFactorMax && factor <= kFactorMax ? std::optional(factor)
                                                                  : std::nullopt;
}

Result<double> wanted_value(const Knob& knob, std::string_view text, double before) {
  if (const std::optional<double> factor = factor_of(text)) {
    return *factor * before;
  }
  Result<double> value = parse_value(text, knob.unit);
  if (!value) {
    Error error = std::move(value).error();
    error.what = fmt::format("--what-if {}: {}", knob.name, error.what);
    error.hint += "; or a factor of today's, as in \"2x\"";
    return error;
  }
  return value;
}

struct Row {
  std::string label, today, then;
};

void add_rows_of(const Compared& plans,
                 const StepSummary& today,
                 const StepSummary& then,
                 std::vector<Row>& rows) {
  const auto busiest = [](const StepSummary& step) {
    return step.dominant.empty()
               ? "-"
               : fmt::format("{} {}", step.dominant, format_percent(step.resources.front().share));
  };
  const auto stall = [](const StepSummary& step) {
    return step.largest_stall.empty()
               ? "-"
               : fmt::format(
                     "{} {}", step.largest_stall, format_duration(step.largest_stall_seconds));
  };
  rows.push_back({"step", format_duration(today.seconds), format_duration(then.seconds)});
  rows.push_back({"tokens/s", format_count(today.tokens_per_s), format_count(then.tokens_per_s)});
  rows.push_back(
      {"bound", format_duration(today.bound_seconds), format_duration(then.bound_seconds)});
  rows.push_back({"of bound", format_percent(today.bound_share), format_percent(then.bound_share)});
  rows.push_back({"busiest", busiest(today), busiest(then)});
  rows.push_back({"stall", stall(today), stall(then)});
  rows.push_back({"host",
                  format_bytes(plans.today.host_arena_bytes),
                  format_bytes(plans.then.host_arena_bytes)});
  if (plans.today.separate_device) {
    rows.push_back({"device",
                    format_bytes(plans.today.device_arena_bytes),
                    format_bytes(plans.then.device_arena_bytes)});
  }
}

double gain_of(const StepSummary& today, const StepSummary& then) {
  return today.tokens_per_s > 0 ? then.tokens_per_s / today.tokens_per_s - 1 : 0;
}

}  // namespace

void scale_gemm(double factor, MachineProfile& machine) {
  machine.gemm_fp32_flops_per_s *= factor;
  for (auto& by_layout : machine.gemm) {
    for (SizedRates& rates : by_layout) {
      scale(factor, rates);
    }
  }
  scale(factor, machine.attention_forward);
  scale(factor, machine.attention_backward);
}

void scale_memory(double factor, MachineProfile& machine) {
  machine.memory_bytes_per_s *= factor;
  machine.collect_params_per_s *= factor;
  for (double& rate : machine.elements_per_s) {
    rate *= factor;
  }
}

Status apply_what_if(std::string_view text, WhatIf& what_if) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return usage_error(fmt::format("--what-if: '{}' has no '='", text))
        .with_hint("as in --what-if nvme.read=12GB/s, or nvme.read=2x");
  }
  HEADRACE_ASSIGN(const Knob* const knob, find_knob(std::string(text.substr(0, equals))));
  const double before = knob->get(what_if);
  if (before <= 0) {
    const std::string_view name = knob->name;
    const bool of_device = name == "h2d" || name == "d2h" || name == "device_memory";
    return usage_error(fmt::format("--what-if: this run has no '{}' to change", name))
        .with_why(of_device && !what_if.settings.separate_device
                      ? "its device shares the host's memory"
                      : "the machine profile says nothing of it")
        .with_hint(of_device ? "tiers.device_memory makes the device an arena of its own"
                             : "have the machine measured again, or give --machine");
  }
  HEADRACE_ASSIGN(const double after, wanted_value(*knob, text.substr(equals + 1), before));
  knob->set(after, what_if);
  what_if.changes.push_back({.name = knob->name,
                             .before_text = text_of(before, knob->unit),
                             .after_text = text_of(after, knob->unit),
                             .before = before,
                             .after = after});
  return {};
}

std::string format_what_if(const WhatIf& what_if, const Compared& plans, std::int64_t tokens) {
  std::string text;
  for (const RateChange& change : what_if.changes) {
    add_line(text,
             "what if",
             fmt::format("{} = {} (today {})", change.name, change.after_text, change.before_text));
  }
  const StepSummary today = summarize(plans.model, plans.today);
  const StepSummary then = summarize(plans.model, plans.then);
  std::vector<Row> rows;
  add_rows_of(plans, today, then, rows);
  if (tokens > 0) {
    rows.push_back({format_count(static_cast<double>(tokens)) + " tokens",
                    format_duration(budget_tokens(plans.today, today, tokens).seconds),
                    format_duration(budget_tokens(plans.then, then, tokens).seconds)});
  }
  text += fmt::format("\n{:<13} {:>20} {:>20}\n", "", "today", "then");
  for (const Row& row : rows) {
    text += fmt::format("{:<13} {:>20} {:>20}\n", row.label, row.today, row.then);
  }
  const double gain = gain_of(today, then);
  text += "\n";
  add_line(text,
           "gain",
           fmt::format("{:+.1f} % tokens/s{}",
                       100 * gain,
                       today.dominant == then.dominant || then.dominant.empty()
                           ? ""
                           : fmt::format("; then the busiest is {}", then.dominant)));
  return text;
}

Json what_if_to_json(const WhatIf& what_if, const Compared& plans) {
  const StepSummary today = summarize(plans.model, plans.today);
  const StepSummary then = summarize(plans.model, plans.then);
  Json json = Json::object(), changes = Json::array();
  for (const RateChange& change : what_if.changes) {
    Json entry = Json::object();
    entry.set("name", change.name);
    entry.set("before", change.before);
    entry.set("after", change.after);
    changes.push_back(std::move(entry));
  }
  json.set("changes", std::move(changes));
  json.set("today", summary_to_json(today));
  json.set("then", summary_to_json(then));
  json.set("gain", gain_of(today, then));
  return json;
}

}  // namespace headrace::plan
