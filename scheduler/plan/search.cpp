// The search: which complete set of choices fits the budgets and is predicted fastest.
#include "scheduler/plan/search.hpp"

#include <algorithm>
#include <functional>

#include "core/assert.hpp"

namespace headrace::plan {

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace headrace::plan
