// make_plan: search, refusal, wear and notes; the programs of a plan.
#include "scheduler/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "scheduler/plan/bound.hpp"
#include "scheduler/plan/builder.hpp"
#include "scheduler/plan/choices.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/refusal.hpp"
#include "scheduler/plan/search.hpp"
#include "scheduler/plan/wear.hpp"

namespace headrace::plan {

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

namespace {

// What both a held step and a drain stage first, as far as there are slots: so that whatever
// precedes them can read it.
StagedTiles staged_first(const BuilderInputs& inputs, bool held) {
  Builder drain(inputs, "drain");
  drain.drain();
  StagedTiles first = drain.staged();
  const auto keep = [](std::vector<StagedTile>& tiles, std::size_t count) {
    tiles.resize(std::min(tiles.size(), count));
  };
  keep(first.params, inputs.layout.staging_param.size());
  keep(first.states, inputs.layout.staging_state.size());
  if (held) {
    Builder step(inputs, "compute.held");
    step.training_step(true, {});
    const auto keep_equal = [&](std::vector<StagedTile>& tiles,
                                const std::vector<StagedTile>& others) {
      const std::size_t count = std::min(tiles.size(), others.size());
      const auto end = tiles.begin() + static_cast<std::ptrdiff_t>(count);
      keep(tiles,
           static_cast<std::size_t>(std::mismatch(tiles.begin(), end, others.begin()).first -
                                    tiles.begin()));
    };
    keep_equal(first.params, step.staged().params);
    keep_equal(first.states, step.staged().states);
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
    const bool held = choices.update == Update::kHeld;
    const StagedTiles next = staged_first(inputs, held);
    plan.prefetched_tiles = static_cast<int>(next.states.size());
    if (all || !held) {
      plan.compute =
          make("compute", {}, [&](Builder& builder) { builder.training_step(false, next); });
      plan.drain = make("drain", next, [](Builder& builder) { builder.drain(); });
    }
    if (held) {
      plan.compute_held =
          make("compute.held", next, [&](Builder& builder) { builder.training_step(true, next); });
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
  return plan.update == Update::kHeld ? std::vector{&plan.compute_held}
                                      : std::vector{&plan.compute, &plan.drain};
}

bool is_recomputed(const Plan& plan, int unit) {
  const int blocks = static_cast<int>(plan.units.size()) - 2;
  return unit <= blocks - plan.kept_blocks;
}

const Prediction* find_prediction(const Plan& plan, const std::string& variant) {
  const auto found = std::find_if(
      plan.predictions.begin(), plan.predictions.end(), [&](const Prediction& prediction) {
        return prediction.variant == variant;
      });
  return found == plan.predictions.end() ? nullptr : &*found;
}

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
  add_bounds(model, settings, machine, best->plan);
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
    if (std::string note = missing_compute_rates(machine); !note.empty()) {
      best->plan.notes.push_back(std::move(note));
    }
  }
  return std::move(best->plan);
}

}  // namespace headrace::plan
