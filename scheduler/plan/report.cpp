// The plan as text (the table of `headrace plan`) and as plan.json.
#include <fmt/format.h>

#include <string>

#include "core/quantity.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::plan {

namespace {

std::string cell(std::uint64_t bytes) {
  return bytes == 0 ? "-" : format_bytes(bytes);
}

void append_baseline(std::string& text, const ModelSpec& model, const StateFormat& format) {
  const auto parameters = static_cast<double>(model.parameters());
  const auto trainable = static_cast<double>(model.trainable_parameters());
  text += fmt::format(
      "parameters   {} ({} trainable); mixed-precision Adam would keep 2+2+4+4+4 = 16 B each: {}\n",
      format_count(parameters),
      format_count(trainable),
      format_bytes(static_cast<std::uint64_t>(16 * parameters)));
  const auto param_bytes = static_cast<double>(format.param_bytes);
  const double state_bytes = format.bytes_per_parameter() - param_bytes;
  text += fmt::format("here         state \"{}\": weights {} + state {} = {} B each: {}{}\n",
                      format.name,
                      param_bytes,
                      state_bytes,
                      param_bytes + state_bytes,
                      format_bytes(static_cast<std::uint64_t>(
                          4 * (parameters - trainable) + (param_bytes + state_bytes) * trainable)),
                      format.decoded ? "; decoded to 4 B each where they are used" : "");
}

void append_choices(std::string& text, const ModelSpec& model, const Plan& plan) {
  int on_nvme = 0, masters = 0, pinned = 0;
  for (const UnitPlan& unit : plan.units) {
    on_nvme += unit.home == Home::kNvme ? 1 : 0;
    masters += unit.master >= 0 ? 1 : 0;
    pinned += unit.pinned ? 1 : 0;
  }
  text += fmt::format("step         {} micro-batch(es) of {} x {}, {}, update {}, activations {}\n",
                      model.accumulate,
                      model.micro_batch,
                      model.seq_len,
                      traversal_name(plan.traversal),
                      update_name(plan.update),
                      plan.keep_activations ? "kept" : "recomputed");
  text += fmt::format(
      "placement    {} units: state of {} on nvme, weights of {} in memory, {} pinned on the "
      "device; lookahead {}, tiles of {} blocks\n",
      plan.units.size(),
      on_nvme,
      masters,
      pinned,
      plan.lookahead,
      plan.tile_elements / kBlockElements);
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
  text += fmt::format("\n{:<12} {:>10} {:>10} {:>11} {:>11} {:>11} {:>11}  {}\n",
                      "predicted",
                      "step",
                      "bound",
                      "nvme read",
                      "nvme write",
                      "h2d",
                      "d2h",
                      "largest stall");
  for (const Prediction& prediction : plan.predictions) {
    text += fmt::format("{:<12} {:>10} {:>10} {:>11} {:>11} {:>11} {:>11}  {}\n",
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

void append_update_rates(std::string& text, const Plan& plan) {
  const UpdateRates& rates = plan.update_rates;
  text += fmt::format("\nupdates      state \"{}\": {} parameters/s",
                      plan.format.name,
                      format_count(rates.update_params_per_s));
  if (plan.format.decoded) {
    text += fmt::format("; {}/s with the new weights decoded, {}/s decoding alone",
                        format_count(rates.update_decoded_params_per_s),
                        format_count(rates.decode_params_per_s));
  }
  text += "\n";
}

void append_drive(std::string& text, const Plan& plan) {
  if (plan.written_bytes_per_step == 0) {
    text += "\ndrive        nothing is written during a step\n";
  } else {
    text += fmt::format("\ndrive        {} written per step, {} per day",
                        format_bytes(plan.written_bytes_per_step),
                        format_bytes(static_cast<std::uint64_t>(plan.written_bytes_per_day)));
    text += plan.drive_life_days > 0
                ? fmt::format("; at that rate the drive lasts {:.0f} days\n", plan.drive_life_days)
                : "\n";
  }
  if (!plan.wear_warning.empty()) {
    text += "warning      " + plan.wear_warning + "\n";
  }
  for (const std::string& note : plan.notes) {
    text += "note         " + note + "\n";
  }
}

Json prediction_json(const Prediction& prediction) {
  Json json = Json::object();
  json.set("variant", prediction.variant);
  json.set("seconds", prediction.seconds);
  json.set("bound_seconds", prediction.bound_seconds);
  Json busy = Json::object(), stall = Json::object(), bytes = Json::object();
  for (const auto& [key, value] : prediction.busy_seconds) {
    busy.set(key, value);
  }
  for (const auto& [key, value] : prediction.stall_seconds) {
    stall.set(key, value);
  }
  for (const auto& [key, value] : prediction.link_bytes) {
    bytes.set(key, value);
  }
  json.set("busy_seconds", std::move(busy));
  json.set("stall_seconds", std::move(stall));
  json.set("bytes", std::move(bytes));
  return json;
}

Json update_rates_json(const Plan& plan) {
  Json json = Json::object();
  json.set("update_params_per_s", plan.update_rates.update_params_per_s);
  if (plan.format.decoded) {
    json.set("update_decoded_params_per_s", plan.update_rates.update_decoded_params_per_s);
    json.set("decode_params_per_s", plan.update_rates.decode_params_per_s);
  }
  return json;
}

}  // namespace

std::string format_plan(const Plan& plan, const ModelSpec& model, const PlanSettings& settings) {
  std::string text;
  append_baseline(text, model, plan.format);
  append_choices(text, model, plan);
  append_memory(text, plan, settings);
  append_predictions(text, plan);
  if (settings.purpose == Purpose::kTrain) {
    append_update_rates(text, plan);
  }
  append_drive(text, plan);
  return text;
}

Json plan_to_json(const Plan& plan, const ModelSpec& model) {
  Json json = Json::object();
  json.set("schema", 1);
  json.set("parameters", model.parameters());
  json.set("trainable_parameters", model.trainable_parameters());
  json.set("traversal", traversal_name(plan.traversal));
  json.set("update", update_name(plan.update));
  json.set("lookahead", plan.lookahead);
  json.set("tile_elements", plan.tile_elements);
  json.set("grad", dtype_name(plan.grad));
  json.set("state", plan.format.name);
  json.set("bytes_per_parameter", plan.format.bytes_per_parameter());
  json.set("update_rates", update_rates_json(plan));
  json.set("separate_device", plan.separate_device);
  json.set("keep_activations", plan.keep_activations);
  Json memory = Json::array();
  for (const MemoryRow& row : plan.memory) {
    Json entry = Json::object();
    entry.set("purpose", row.purpose);
    entry.set("device_bytes", row.device_bytes);
    entry.set("host_bytes", row.host_bytes);
    entry.set("nvme_bytes", row.nvme_bytes);
    memory.push_back(std::move(entry));
  }
  json.set("memory", std::move(memory));
  json.set("device_peak_bytes", plan.device_peak_bytes);
  json.set("host_peak_bytes", plan.host_peak_bytes);
  json.set("process_bytes", plan.process_bytes);
  json.set("nvme_bytes", plan.nvme_bytes);
  Json units = Json::array();
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    Json entry = Json::object();
    entry.set("name", model.units[u].name);
    entry.set("elements", model.units[u].elements);
    entry.set("state_home", home_name(plan.units[u].home));
    entry.set("weights_in_memory", plan.units[u].master >= 0);
    entry.set("pinned", plan.units[u].pinned);
    entry.set("tiles", plan.units[u].tiles.size());
    units.push_back(std::move(entry));
  }
  json.set("units", std::move(units));
  Json predictions = Json::array();
  for (const Prediction& prediction : plan.predictions) {
    predictions.push_back(prediction_json(prediction));
  }
  json.set("predictions", std::move(predictions));
  json.set("written_bytes_per_step", plan.written_bytes_per_step);
  json.set("written_bytes_per_day", plan.written_bytes_per_day);
  json.set("drive_life_days", plan.drive_life_days);
  json.set("wear_warning", plan.wear_warning);
  Json notes = Json::array();
  for (const std::string& note : plan.notes) {
    notes.push_back(note);
  }
  json.set("notes", std::move(notes));
  json.set("instructions_per_step",
           plan.compute_held.instructions.empty() ? plan.compute.instructions.size()
                                                  : plan.compute_held.instructions.size());
  return json;
}

}  // namespace headrace::plan
