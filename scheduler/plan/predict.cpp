// Programs, simulated -> what each variant of a step takes.
#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/plan/search.hpp"
#include "scheduler/plan/simulate.hpp"

namespace headrace::plan {

namespace {

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
  plan.predictions.push_back(std::move(total));
}

std::uint64_t memory_tile_bytes(const Plan& plan) {
  std::uint64_t bytes = 0;
  for (const UnitPlan& unit : plan.units) {
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      const bool in_memory = unit.param[t].buffer >= 0 && !unit.write_through;
      bytes += in_memory ? unit.param[t].bytes : 0;
      bytes += unit.state_of[t].buffer >= 0 ? unit.state_of[t].bytes : 0;
    }
  }
  return bytes;
}

}  // namespace

void predict(const PlanSettings& settings, const MachineProfile& machine, Plan& plan) {
  const Contention contention = contention_of(machine, settings);
  const auto simulated = [&](const Program& program) {
    return simulate(program, contention).prediction;
  };
  const Prediction evaluation = simulated(plan.evaluation);
  if (settings.purpose == Purpose::kTrain) {
    const Prediction compute = simulated(plan.compute);
    const Prediction drain = simulated(plan.drain);
    const bool held = plan.update != Update::kAfterBackward;
    const bool speculative = plan.update == Update::kSpeculative;
    std::vector<Prediction> steady = {simulated(steady_program(plan))};
    const std::vector<Prediction> steady_drained = {
        steady.front(), speculative ? simulated(plan.drain_rest) : drain};
    if (!held) {
      steady = steady_drained;
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
    if (speculative) {
      add_prediction(plan, "clipped", {simulated(plan.compute_held)});
      add_prediction(plan, "recovered", {simulated(plan.compute_held_speculating)});
    }
    add_prediction(plan, "last", steady_drained);
  }
  add_prediction(plan, "evaluation", {evaluation});
}

}  // namespace headrace::plan
