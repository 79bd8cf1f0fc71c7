// make_plan: search, refusal, wear and notes; the programs of a plan.
#include "scheduler/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/quantity.hpp"
#include "scheduler/plan/bound.hpp"
#include "scheduler/plan/builder.hpp"
#include "scheduler/plan/choices.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/refusal.hpp"
#include "scheduler/plan/search.hpp"
#include "scheduler/plan/simulate.hpp"
#include "scheduler/plan/wear.hpp"

namespace headrace::plan {

std::string mebibytes(std::size_t bytes) {
  return fmt::format("{}MiB", (bytes + kMebibyte - 1) / kMebibyte);
}

const char* home_name(Home home) {
  return home == Home::kDevice ? "device" : home == Home::kHost ? "host" : "nvme";
}

std::string traversal_name(int group_size, std::int64_t accumulate) {
  if (group_size >= accumulate) {
    return "layer-major";
  }
  return group_size == kBatchMajor ? "batch-major" : fmt::format("layer-major by {}", group_size);
}

const char* update_name(Update update) {
  switch (update) {
    case Update::kHeld:
      return "held";
    case Update::kAfterBackward:
      return "after-backward";
    case Update::kSpeculative:
      break;
  }
  return "speculative";
}

namespace {

// What a step with held updates and a drain stage first alike, as far as there are slots: so that
// whatever precedes them can read it.
StagedTiles staged_first(const BuilderInputs& inputs, Update update) {
  Builder drain(inputs, "drain");
  drain.drain(Pending::kAll);
  StagedTiles first = drain.staged();
  const auto keep = [](std::vector<StagedTile>& tiles, std::size_t count) {
    tiles.resize(std::min(tiles.size(), count));
  };
  keep(first.params, inputs.layout.staging_param.size());
  keep(first.states, inputs.layout.staging_state.size());
  const auto keep_equal = [&](std::vector<StagedTile>& tiles,
                              const std::vector<StagedTile>& others) {
    const std::size_t count = std::min(tiles.size(), others.size());
    const auto end = tiles.begin() + static_cast<std::ptrdiff_t>(count);
    keep(tiles,
         static_cast<std::size_t>(std::mismatch(tiles.begin(), end, others.begin()).first -
                                  tiles.begin()));
  };
  const auto keep_what_is_staged_by = [&](const std::function<void(Builder&)>& fill_program) {
    Builder other(inputs, "");
    fill_program(other);
    keep_equal(first.params, other.staged().params);
    keep_equal(first.states, other.staged().states);
  };
  if (update != Update::kAfterBackward) {
    keep_what_is_staged_by([](Builder& step) { step.training_step(Pending::kAll, false, {}); });
  }
  if (update == Update::kSpeculative) {
    keep_what_is_staged_by([](Builder& step) { step.training_step(Pending::kRest, true, {}); });
    keep_what_is_staged_by([](Builder& step) { step.drain(Pending::kRest); });
  }
  return first;
}

// All programs, or those that a steady step runs.
void build(const ModelSpec& model,
           const PlanSettings& settings,
           const MachineProfile& machine,
           const Choices& choices,
           const Layout& layout,
           bool all,
           Plan& plan) {
  plan.update_rates = update_rates(machine, plan.format);
  const BuilderInputs inputs{
      .model = model, .settings = settings, .machine = machine, .layout = layout, .plan = plan};
  const auto make = [&](const char* name,
                        const StagedTiles& entry,
                        const std::function<void(Builder&)>& fill_program) {
    Builder builder(inputs, name, entry);
    fill_program(builder);
    return builder.take();
  };
  if (settings.purpose == Purpose::kTrain) {
    const StagedTiles next = staged_first(inputs, choices.update);
    plan.prefetched_tiles = static_cast<int>(next.states.size());
    const auto step = [&](const char* name, Pending pending, bool speculates) {
      const StagedTiles none;
      return make(name, pending == Pending::kNone ? none : next, [&](Builder& builder) {
        builder.training_step(pending, speculates, next);
      });
    };
    const auto drain = [&](const char* name, Pending pending) {
      return make(name, next, [&](Builder& builder) { builder.drain(pending); });
    };
    if (all || choices.update == Update::kAfterBackward) {
      plan.compute = step("compute", Pending::kNone, false);
      plan.drain = drain("drain", Pending::kAll);
    }
    if (choices.update == Update::kHeld || (all && choices.update == Update::kSpeculative)) {
      plan.compute_held = step("compute.held", Pending::kAll, false);
    }
    if (choices.update == Update::kSpeculative) {
      plan.compute_rest_speculating = step("compute.rest.speculating", Pending::kRest, true);
    }
    if (all && choices.update == Update::kSpeculative) {
      plan.compute_held_speculating = step("compute.held.speculating", Pending::kAll, true);
      plan.drain_rest = drain("drain.rest", Pending::kRest);
    }
  }
  if (all || settings.purpose != Purpose::kTrain) {
    plan.evaluation = make("evaluation", {}, [](Builder& builder) { builder.evaluation(); });
  }
}

}  // namespace

void build_programs(const ModelSpec& model,
                    const PlanSettings& settings,
                    const MachineProfile& machine,
                    const Choices& choices,
                    const Layout& layout,
                    Plan& plan) {
  build(model, settings, machine, choices, layout, true, plan);
}

void build_steady(const ModelSpec& model,
                  const PlanSettings& settings,
                  const MachineProfile& machine,
                  const Choices& choices,
                  const Layout& layout,
                  Plan& plan) {
  build(model, settings, machine, choices, layout, false, plan);
}

std::vector<const Program*> steady_programs(const PlanSettings& settings, const Plan& plan) {
  if (settings.purpose != Purpose::kTrain) {
    return {&plan.evaluation};
  }
  std::vector<const Program*> programs = {&steady_program(plan)};
  if (plan.update == Update::kAfterBackward) {
    programs.push_back(&plan.drain);
  }
  return programs;
}

bool is_recomputed(const Plan& plan, int unit) {
  const int blocks = static_cast<int>(plan.units.size()) - 2;
  return unit <= blocks - plan.kept_blocks - plan.spilled_blocks;
}

std::size_t spilled_bytes(const Plan& plan) {
  std::size_t bytes = 0;
  for (const SpilledSaved& spilled : plan.spilled) {
    bytes += spilled.bytes;
  }
  return bytes;
}

bool is_spilled(const Plan& plan, int unit) {
  const int blocks = static_cast<int>(plan.units.size()) - 2;
  return unit >= 1 && unit <= blocks - plan.kept_blocks && !is_recomputed(plan, unit);
}

const Program& steady_program(const Plan& plan) {
  switch (plan.update) {
    case Update::kHeld:
      return plan.compute_held;
    case Update::kSpeculative:
      return plan.compute_rest_speculating;
    case Update::kAfterBackward:
      break;
  }
  return plan.compute;
}

std::vector<const Program*> programs_of(const Plan& plan) {
  std::vector<const Program*> programs;
  for (const Program* program : {&plan.compute,
                                 &plan.compute_held,
                                 &plan.compute_held_speculating,
                                 &plan.compute_rest_speculating,
                                 &plan.drain,
                                 &plan.drain_rest,
                                 &plan.evaluation}) {
    if (!program->instructions.empty()) {
      programs.push_back(program);
    }
  }
  return programs;
}

const Prediction* find_prediction(const Plan& plan, const std::string& variant) {
  const auto found = std::find_if(
      plan.predictions.begin(), plan.predictions.end(), [&](const Prediction& prediction) {
        return prediction.variant == variant;
      });
  return found == plan.predictions.end() ? nullptr : &*found;
}

namespace {

// Of two steps one follows a drain, and is not speculated.
bool drains_often(const PlanSettings& settings) {
  return settings.commit_interval.steps == 1 || settings.commit_interval.steps == 2;
}

// The same placement with updates that are speculated: its steady step. Nothing: none would be.
std::optional<double> seconds_if_speculated(const ModelSpec& model,
                                            const PlanSettings& settings,
                                            const MachineProfile& machine,
                                            const Candidate& held) {
  Choices choices = held.choices;
  choices.update = Update::kSpeculative;
  Candidate other = lay_out_candidate(model, settings, choices);
  if (std::none_of(other.plan.units.begin(), other.plan.units.end(), [](const UnitPlan& unit) {
        return unit.speculated;
      })) {
    return std::nullopt;
  }
  other.plan.update_rates = held.plan.update_rates;
  Builder step({.model = model,
                .settings = settings,
                .machine = machine,
                .layout = other.layout,
                .plan = other.plan},
               "compute.rest.speculating");
  step.training_step(Pending::kRest, true, {});  // the other programs take their time to be made
  return simulate(step.take(), contention_of(machine, settings)).prediction.seconds;
}

// Nobody has said when updates are made: they are speculated where that spares more of a step than
// a slot of the drive is worth, or anything at all where the store has that slot. `best` becomes
// that plan, and `settings` say so; or it stays, with a note if it is only for want of space.
void speculate_where_worth_it(const ModelSpec& model,
                              const MachineProfile& machine,
                              PlanSettings& settings,
                              Candidate& best) {
  constexpr double kWorthASlot = 0.95;
  if (settings.purpose != Purpose::kTrain || settings.update || best.plan.lanes == 0 ||
      !settings.undo_slot.value_or(true) || drains_often(settings)) {
    return;
  }
  const double held = find_prediction(best.plan, "steady")->seconds;
  const double enough = (settings.undo_slot ? 1.0 : kWorthASlot) * held;
  const std::optional<double> placed = seconds_if_speculated(model, settings, machine, best);
  if (!placed || *placed >= enough) {
    return;
  }
  PlanSettings speculating = settings;
  speculating.update = Update::kSpeculative;
  std::optional<Candidate> other = best_candidate(model, speculating, machine);
  if (!other || find_prediction(other->plan, "steady")->seconds >= enough) {
    return;
  }
  const double then = find_prediction(other->plan, "steady")->seconds;
  const std::uint64_t space = std::max(other->plan.nvme_bytes, best.plan.nvme_bytes);
  const std::string more = format_bytes(space - best.plan.nvme_bytes);
  if (space > settings.nvme_room_bytes.value_or(space)) {
    best.plan.notes.push_back(
        fmt::format("updates that are speculated would take {} a step, not {}, while no step is "
                    "clipped: they need {} more of the drive, which has no room for it",
                    format_duration(then),
                    format_duration(held),
                    more));
    return;
  }
  best = std::move(*other);
  settings = std::move(speculating);
  if (!settings.undo_slot) {
    best.plan.notes.push_back(
        fmt::format("updates are speculated: {} a step, not {}, while no step is clipped, for {} "
                    "more of the drive (--set optim.update=held gives that back)",
                    format_duration(then),
                    format_duration(held),
                    more));
  }
}

}  // namespace

Result<Plan> make_plan(const ModelSpec& model,
                       const PlanSettings& settings,
                       const MachineProfile& machine) {
  return make_plan(model, settings, machine, {});
}

Result<Plan> make_plan(const ModelSpec& model,
                       const PlanSettings& asked,
                       const MachineProfile& machine,
                       const std::vector<Change>& changes) {
  PlanSettings settings = asked;
  if (settings.purpose != Purpose::kTrain) {
    settings.place.reset();  // there is no state to place; the weights are in host memory
    settings.format = {};
  }
  std::optional<Candidate> best = best_candidate(model, settings, machine);
  if (!best) {
    return refusal_error(refuse(model, settings, changes));
  }
  speculate_where_worth_it(model, machine, settings, *best);
  add_bounds(model, settings, machine, best->plan);
  const auto replan = [&](const PlanSettings& other) {
    std::optional<Candidate> found = best_candidate(model, other, machine);
    return found ? std::optional(std::move(found->plan)) : std::nullopt;
  };
  count_wear(model, settings, machine, replan, best->plan);
  if (best->plan.update == Update::kSpeculative && drains_often(settings)) {
    best->plan.notes.push_back(fmt::format(
        "with a commit every {}, few steps or none are speculated: each commit drains updates, and "
        "two steps are not as predicted for a steady one",
        settings.commit_interval.steps == 1 ? "step" : "2 steps"));
  }
  if (machine.gemm_fp32_flops_per_s <= 0) {
    best->plan.notes.emplace_back("no machine profile: times are guesses for a modest desktop");
  } else if (settings.purpose == Purpose::kTrain) {
    for (std::string& note : missing_update_rates(machine, settings.format)) {
      best->plan.notes.push_back(std::move(note));
    }
    if (std::string note = missing_compute_rates(machine); !note.empty()) {
      best->plan.notes.push_back(std::move(note));
    }
  }
  return std::move(best->plan);
}

}  // namespace headrace::plan
