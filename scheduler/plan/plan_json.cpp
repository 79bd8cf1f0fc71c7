// plan.json: a plan as a document.
#include <string>

#include "core/json.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/summary.hpp"

namespace headrace::plan {

namespace {

Json prediction_json(const Prediction& prediction) {
  Json json = Json::object();
  json.set("variant", prediction.variant);
  json.set("seconds", prediction.seconds);
  json.set("bound_seconds", prediction.bound_seconds);
  json.set("order_bound_seconds", prediction.order_bound_seconds);
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

Json budget_json(const TokenBudget& budget) {
  Json json = Json::object();
  json.set("tokens", budget.tokens);
  json.set("steps", budget.steps);
  json.set("seconds", budget.seconds);
  json.set("written_bytes", budget.written_bytes);
  json.set("endurance_share", budget.endurance_share);
  return json;
}

Json memory_json(const Plan& plan) {
  Json memory = Json::array();
  for (const MemoryRow& row : plan.memory) {
    Json entry = Json::object();
    entry.set("purpose", row.purpose);
    entry.set("device_bytes", row.device_bytes);
    entry.set("host_bytes", row.host_bytes);
    entry.set("nvme_bytes", row.nvme_bytes);
    memory.push_back(std::move(entry));
  }
  return memory;
}

Json units_json(const Plan& plan, const ModelSpec& model) {
  Json units = Json::array();
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    Json entry = Json::object();
    entry.set("name", model.units[u].name);
    entry.set("elements", model.units[u].elements);
    entry.set("state_home", home_name(plan.units[u].home));
    entry.set("weights_in_memory", plan.units[u].master >= 0);
    entry.set("pinned", plan.units[u].pinned);
    entry.set("speculated", plan.units[u].speculated);
    entry.set("tiles", plan.units[u].tiles.size());
    units.push_back(std::move(entry));
  }
  return units;
}

}  // namespace

Json summary_to_json(const StepSummary& step) {
  Json json = Json::object();
  json.set("seconds", step.seconds);
  json.set("bound_seconds", step.bound_seconds);
  json.set("order_bound_seconds", step.order_bound_seconds);
  json.set("bound_share", step.bound_share);
  json.set("dominant", step.dominant);
  json.set("tokens", step.tokens);
  json.set("tokens_per_s", step.tokens_per_s);
  Json resources = Json::array();
  for (const ResourceUse& use : step.resources) {
    Json entry = Json::object();
    entry.set("name", use.name);
    entry.set("busy_seconds", use.busy_seconds);
    entry.set("share", use.share);
    Json bytes = Json::object();
    for (const auto& [link, moved] : use.bytes) {
      bytes.set(link, moved);
    }
    entry.set("bytes", std::move(bytes));
    resources.push_back(std::move(entry));
  }
  json.set("resources", std::move(resources));
  json.set("stalled_seconds", step.stalled_seconds);
  json.set("largest_stall", step.largest_stall);
  json.set("largest_stall_seconds", step.largest_stall_seconds);
  return json;
}

Json plan_to_json(const Plan& plan,
                  const ModelSpec& model,
                  const PlanSettings& settings,
                  std::int64_t tokens) {
  Json json = Json::object();
  json.set("schema", 1);
  json.set("fits", true);
  json.set("parameters", model.parameters());
  json.set("trainable_parameters", model.trainable_parameters());
  json.set("traversal", traversal_name(plan.group_size, model.accumulate));
  json.set("group_size", plan.group_size);
  json.set("update", update_name(plan.update));
  json.set("lookahead", plan.lookahead);
  json.set("tile_elements", plan.tile_elements);
  json.set("grad", dtype_name(plan.grad));
  json.set("state", plan.format.name);
  json.set("bytes_per_parameter", plan.format.bytes_per_parameter());
  json.set("update_rates", update_rates_json(plan));
  json.set("separate_device", plan.separate_device);
  json.set("kept_blocks", plan.kept_blocks);
  json.set("spilled_blocks", plan.spilled_blocks);
  json.set("offload_inputs", plan.offload_inputs);
  json.set("memory", memory_json(plan));
  json.set("device_peak_bytes", plan.device_peak_bytes);
  json.set("host_peak_bytes", plan.host_peak_bytes);
  json.set("device_budget_bytes",
           settings.separate_device
               ? Json(settings.device_memory_bytes.value_or(settings.device_available_bytes))
               : Json());
  json.set("host_budget_bytes", settings.host_memory_bytes);
  json.set("process_bytes", plan.process_bytes);
  json.set("nvme_bytes", plan.nvme_bytes);
  json.set("units", units_json(plan, model));
  Json predictions = Json::array();
  for (const Prediction& prediction : plan.predictions) {
    predictions.push_back(prediction_json(prediction));
  }
  json.set("predictions", std::move(predictions));
  const StepSummary step = summarize(model, plan);
  json.set("step", summary_to_json(step));
  const std::int64_t wanted = tokens > 0 ? tokens : settings.steps * step.tokens;
  json.set("token_budget", budget_json(budget_tokens(plan, step, wanted)));
  json.set("written_bytes_per_step", plan.written_bytes_per_step);
  json.set("written_bytes_per_day", plan.written_bytes_per_day);
  json.set("drive_life_days", plan.drive_life_days);
  json.set("endurance_bytes", plan.endurance_bytes);
  json.set("wear_warning", plan.wear_warning);
  Json notes = Json::array();
  for (const std::string& note : plan.notes) {
    notes.push_back(note);
  }
  json.set("notes", std::move(notes));
  json.set("instructions_per_step", steady_program(plan).instructions.size());
  return json;
}

}  // namespace headrace::plan
