// The search: which complete set of choices fits the budgets and is predicted fastest; and, when
// none fits, the nearest that would.
#include "scheduler/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/assert.hpp"
#include "core/quantity.hpp"
#include "scheduler/plan/builder.hpp"
#include "scheduler/plan/choices.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/wear.hpp"

namespace headrace::plan {

namespace {

struct Candidate {
  Plan plan;
  Choices choices;
  Layout layout;
};

Candidate lay_out_candidate(const ModelSpec& model,
                            const PlanSettings& settings,
                            const Choices& choices) {
  Candidate candidate;
  candidate.choices = choices;
  candidate.layout = lay_out_memory(model, settings, choices, candidate.plan);
  return candidate;
}

bool fits(const Plan& plan, const PlanSettings& settings) {
  const std::size_t device_cap =
      settings.device_memory_bytes.value_or(settings.device_available_bytes);
  return plan.host_arena_bytes <= settings.host_memory_bytes &&
         (!settings.separate_device || plan.device_arena_bytes <= device_cap);
}

// Everything where `place` says; without one, everything on NVMe and nothing pinned: the least
// memory.
std::vector<UnitChoice> base_units(const ModelSpec& model, const PlanSettings& settings) {
  const bool training = settings.purpose == Purpose::kTrain;
  const Home home = settings.place.value_or(training ? Home::kNvme : Home::kHost);
  UnitChoice choice{
      .state_home = home, .master_in_memory = home != Home::kNvme, .pinned = home == Home::kDevice};
  return std::vector<UnitChoice>(model.units.size(), choice);
}

// Turns on, one at a time and in the order of benefit per byte, what still fits: weights kept on
// the device (each is read twice a step), masters in host memory (read and written), then state. A
// forced place is left as it is, save what stays on the device.
void fill(const ModelSpec& model, const PlanSettings& settings, Choices& choices) {
  const auto attempt = [&](const std::function<void(UnitChoice&)>& change) {
    for (UnitChoice& unit : choices.units) {
      const UnitChoice before = unit;
      change(unit);
      if (!fits(lay_out_candidate(model, settings, choices).plan, settings)) {
        unit = before;
        return;  // later units are of the same size or larger: stop at the first that does not fit
      }
    }
  };
  if (settings.separate_device) {
    attempt([](UnitChoice& unit) { unit.pinned = true; });
  }
  if (!settings.place && !settings.format.decoded) {
    attempt([](UnitChoice& unit) { unit.master_in_memory = true; });
    attempt([](UnitChoice& unit) { unit.state_home = Home::kHost; });
  }
  if (!settings.place && settings.format.decoded) {
    attempt([](UnitChoice& unit) {
      unit.state_home = Home::kHost;
      unit.master_in_memory = true;
    });
  }
  // Floats beside what they are decoded from spare decoding it twice a step.
  if (!settings.separate_device && settings.format.decoded) {
    attempt([](UnitChoice& unit) { unit.pinned = unit.master_in_memory; });
  }
}

std::vector<Choices> enumerate(const ModelSpec& model, const PlanSettings& settings) {
  std::vector<Traversal> traversals = {Traversal::kLayerMajor};
  if (model.accumulate > 1) {
    traversals.push_back(Traversal::kBatchMajor);
  }
  if (settings.traversal) {
    traversals = {*settings.traversal};
  }
  const std::vector<int> lookaheads =
      settings.lookahead ? std::vector<int>{*settings.lookahead} : std::vector<int>{2, 1};
  const std::vector<std::int64_t> tiles =
      settings.tile_elements ? std::vector<std::int64_t>{*settings.tile_elements}
                             : std::vector<std::int64_t>{16 * kBlockElements, 4 * kBlockElements};
  std::vector<Choices> all;
  for (const Traversal traversal : traversals) {
    for (const bool keep : {true, false}) {
      for (const int lookahead : lookaheads) {
        for (const std::int64_t tile : tiles) {
          Choices choices;
          choices.traversal = traversal;
          choices.update = settings.update.value_or(Update::kHeld);
          choices.lookahead = lookahead;
          // Two tiles ahead for each piece ahead: one being read, one being updated, one being
          // written.
          choices.staging_slots = tile > 4 * kBlockElements ? 2 + lookahead : 2 * (1 + lookahead);
          choices.tile_elements = tile;
          choices.keep_activations = keep && settings.purpose == Purpose::kTrain;
          choices.units = base_units(model, settings);
          all.push_back(std::move(choices));
        }
      }
      if (settings.purpose != Purpose::kTrain) {
        break;  // nothing to keep
      }
    }
  }
  return all;
}

void add_prediction(Plan& plan,
                    const std::string& variant,
                    const std::vector<Prediction>& parts,
                    double extra_write_seconds = 0,
                    std::uint64_t commit_bytes = 0) {
  Prediction total;
  total.variant = variant;
  for (const Prediction& part : parts) {
    total.seconds += part.seconds;
    for (const auto& [key, value] : part.busy_seconds) {
      total.busy_seconds[key] += value;
    }
    for (const auto& [key, value] : part.stall_seconds) {
      total.stall_seconds[key] += value;
    }
    for (const auto& [key, value] : part.link_bytes) {
      total.link_bytes[key] += value;
    }
  }
  if (commit_bytes > 0) {
    total.seconds += extra_write_seconds;
    total.busy_seconds["nvme"] += extra_write_seconds;
    total.link_bytes["commit"] += commit_bytes;
  }
  for (const auto& [key, value] : total.busy_seconds) {
    total.bound_seconds = std::max(total.bound_seconds, value);
  }
  plan.predictions.push_back(std::move(total));
}

std::uint64_t memory_tile_bytes(const Plan& plan) {
  std::uint64_t bytes = 0;
  for (const UnitPlan& unit : plan.units) {
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      bytes += unit.param[t].buffer >= 0 ? unit.param[t].bytes : 0;
      bytes += unit.state_of[t].buffer >= 0 ? unit.state_of[t].bytes : 0;
    }
  }
  return bytes;
}

void predict(const PlanSettings& settings, const MachineProfile& machine, Plan& plan) {
  const Prediction evaluation = simulate(plan.evaluation);
  if (settings.purpose == Purpose::kTrain) {
    const Prediction compute = simulate(plan.compute);
    const Prediction drain = simulate(plan.drain);
    const bool held = plan.update == Update::kHeld;
    const std::vector<Prediction> steady =
        held ? std::vector<Prediction>{simulate(plan.compute_held)}
             : std::vector<Prediction>{compute, drain};
    std::vector<Prediction> steady_drained = steady;
    if (held) {
      steady_drained.push_back(drain);
    }
    const std::uint64_t commit_bytes = memory_tile_bytes(plan);
    double write_rate = machine.nvme_write_bytes_per_s > 0 ? machine.nvme_write_bytes_per_s : 1e9;
    write_rate =
        settings.nvme_write_cap ? std::min(write_rate, *settings.nvme_write_cap) : write_rate;
    add_prediction(plan, "first", held ? std::vector<Prediction>{compute} : steady);
    add_prediction(plan, "steady", steady);
    add_prediction(plan,
                   "commit",
                   steady_drained,
                   static_cast<double>(commit_bytes) / write_rate,
                   commit_bytes);
    add_prediction(plan, "skipped", {compute});
    add_prediction(plan, "last", steady_drained);
  }
  add_prediction(plan, "evaluation", {evaluation});
}

// The plan with the least memory among what the settings leave open.
Plan smallest(const ModelSpec& model, const PlanSettings& settings) {
  std::optional<Plan> best;
  for (const Choices& choices : enumerate(model, settings)) {
    Plan plan = lay_out_candidate(model, settings, choices).plan;
    if (!best || plan.device_arena_bytes + plan.host_arena_bytes <
                     best->device_arena_bytes + best->host_arena_bytes) {
      best = std::move(plan);
    }
  }
  HEADRACE_ASSERT(best.has_value(), "there is always a smallest plan");
  return *std::move(best);
}

struct Way {
  std::string sets;  // "--set a=b --set c=d"
  ModelSpec model;
  PlanSettings settings;
};

// What could be changed, nearest first: budgets up to what the machine has, a freer place, bf16
// gradients.
std::vector<Way> ways_out(const ModelSpec& model, const PlanSettings& settings) {
  std::vector<Way> ways;
  std::vector<Way> bases = {{.sets = "", .model = model, .settings = settings}};
  if (settings.place == Home::kHost || settings.place == Home::kDevice) {
    Way way = bases.front();
    way.settings.place = Home::kNvme;
    way.sets = " --set tiers.place=\"nvme\"";
    bases.push_back(way);
  }
  if (settings.purpose == Purpose::kTrain && settings.grad == Dtype::kF32) {
    Way way = bases.back();
    way.settings.grad = Dtype::kBf16;
    way.sets += " --set precision.grad=\"bf16\"";
    bases.push_back(way);
  }
  for (const Way& base : bases) {
    ways.push_back(base);
    const Plan plan = smallest(base.model, base.settings);
    Way raised = base;
    if (plan.host_arena_bytes > base.settings.host_memory_bytes) {
      raised.settings.host_memory_bytes =
          (plan.host_arena_bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
      raised.sets +=
          fmt::format(" --set tiers.host_memory=\"{}\"", mebibytes(plan.host_arena_bytes));
    }
    const std::size_t device_cap =
        base.settings.device_memory_bytes.value_or(base.settings.device_available_bytes);
    if (base.settings.separate_device && plan.device_arena_bytes > device_cap) {
      raised.settings.device_memory_bytes =
          (plan.device_arena_bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
      raised.sets +=
          fmt::format(" --set tiers.device_memory=\"{}\"", mebibytes(plan.device_arena_bytes));
    }
    // The CPU's separate arena comes out of the same memory.
    const bool possible =
        plan.host_arena_bytes + plan.device_arena_bytes <= base.settings.host_available_bytes;
    if (possible) {
      ways.push_back(raised);
    }
  }
  return ways;
}

Error refusal(const ModelSpec& model, const PlanSettings& settings) {
  const Plan plan = smallest(model, settings);
  const std::size_t device_cap =
      settings.device_memory_bytes.value_or(settings.device_available_bytes);
  std::string why =
      fmt::format("the smallest plan needs {} of host memory (tiers.host_memory is {})",
                  format_bytes(plan.host_arena_bytes),
                  format_bytes(settings.host_memory_bytes));
  if (settings.separate_device) {
    why += fmt::format(" and {} of device memory (tiers.device_memory is {})",
                       format_bytes(plan.device_arena_bytes),
                       format_bytes(device_cap));
  }
  std::string hint =
      "no single change helps: use a smaller model, batch.micro_batch or batch.seq_len, or a "
      "machine with more memory";
  for (const Way& way : ways_out(model, settings)) {
    if (!way.sets.empty() && fits(smallest(way.model, way.settings), way.settings)) {
      hint = "the nearest plan that fits:" + way.sets;
      break;
    }
  }
  return does_not_fit_error("the run does not fit")
      .with_why(std::move(why))
      .with_hint(std::move(hint));
}

void build(const ModelSpec& model,
           const PlanSettings& settings,
           const MachineProfile& machine,
           Candidate& candidate) {
  build_programs(model, settings, machine, candidate.choices, candidate.layout, candidate.plan);
  predict(settings, machine, candidate.plan);
}

double figure_of_merit(const Plan& plan) {
  const Prediction* steady = find_prediction(plan, "steady");
  const Prediction* prediction = steady != nullptr ? steady : find_prediction(plan, "evaluation");
  HEADRACE_ASSERT(prediction != nullptr, "every plan predicts its evaluation");
  return prediction->seconds;
}

std::optional<Candidate> best_candidate(const ModelSpec& model,
                                        const PlanSettings& settings,
                                        const MachineProfile& machine) {
  std::optional<Candidate> best;
  for (Choices& choices : enumerate(model, settings)) {
    if (!fits(lay_out_candidate(model, settings, choices).plan, settings)) {
      continue;
    }
    fill(model, settings, choices);
    Candidate candidate = lay_out_candidate(model, settings, choices);
    build(model, settings, machine, candidate);
    // Only a clear gain justifies a later candidate: predictions are not that sharp.
    if (!best || figure_of_merit(candidate.plan) < 0.99 * figure_of_merit(best->plan)) {
      best = std::move(candidate);
    }
  }
  return best;
}

}  // namespace

std::string mebibytes(std::size_t bytes) {
  return fmt::format("{}MiB", (bytes + kMebibyte - 1) / kMebibyte);
}

const char* home_name(Home home) {
  return home == Home::kDevice ? "device" : home == Home::kHost ? "host" : "nvme";
}

const char* traversal_name(Traversal traversal) {
  return traversal == Traversal::kLayerMajor ? "layer-major" : "batch-major";
}

const char* update_name(Update update) {
  return update == Update::kHeld ? "held" : "after-backward";
}

void build_programs(const ModelSpec& model,
                    const PlanSettings& settings,
                    const MachineProfile& machine,
                    const Choices& choices,
                    const Layout& layout,
                    Plan& plan) {
  plan.update_rates = update_rates(machine, plan.format);
  const BuilderInputs inputs{
      .model = model, .settings = settings, .machine = machine, .layout = layout, .plan = plan};
  const auto make = [&](const char* name, const std::function<void(Builder&)>& fill_program) {
    Builder builder(inputs, name);
    fill_program(builder);
    return builder.take();
  };
  if (settings.purpose == Purpose::kTrain) {
    plan.compute = make("compute", [](Builder& builder) { builder.training_step(false); });
    plan.drain = make("drain", [](Builder& builder) { builder.drain(); });
    if (choices.update == Update::kHeld) {
      plan.compute_held =
          make("compute.held", [](Builder& builder) { builder.training_step(true); });
    }
  }
  plan.evaluation = make("evaluation", [](Builder& builder) { builder.evaluation(); });
}

const Prediction* find_prediction(const Plan& plan, const std::string& variant) {
  const auto found = std::find_if(
      plan.predictions.begin(), plan.predictions.end(), [&](const Prediction& prediction) {
        return prediction.variant == variant;
      });
  return found == plan.predictions.end() ? nullptr : &*found;
}

Result<Plan> make_plan(const ModelSpec& model,
                       const PlanSettings& asked,
                       const MachineProfile& machine) {
  PlanSettings settings = asked;
  if (settings.purpose != Purpose::kTrain) {
    settings.place.reset();  // there is no state to place; the weights are in host memory
    settings.format = {};
  }
  std::optional<Candidate> best = best_candidate(model, settings, machine);
  if (!best) {
    return refusal(model, settings);
  }
  const auto replan = [&](const PlanSettings& other) {
    std::optional<Candidate> found = best_candidate(model, other, machine);
    return found ? std::optional(std::move(found->plan)) : std::nullopt;
  };
  count_wear(model, settings, machine, replan, best->plan);
  if (machine.gemm_fp32_flops_per_s <= 0) {
    best->plan.notes.emplace_back("no machine profile: times are guesses for a modest desktop");
  } else if (settings.purpose == Purpose::kTrain) {
    for (std::string& note : missing_update_rates(machine, settings.format)) {
      best->plan.notes.push_back(std::move(note));
    }
  }
  return std::move(best->plan);
}

}  // namespace headrace::plan
