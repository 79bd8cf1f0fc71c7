// See residency.hpp.
#include "scheduler/plan/residency.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "scheduler/plan/search.hpp"

namespace headrace::plan {

std::vector<UnitChoice> base_units(const ModelSpec& model, const PlanSettings& settings) {
  const bool training = settings.purpose == Purpose::kTrain;
  const Home home = settings.place.value_or(training ? Home::kNvme : Home::kHost);
  UnitChoice choice{
      .state_home = home, .master_in_memory = home != Home::kNvme, .pinned = home == Home::kDevice};
  return std::vector<UnitChoice>(model.units.size(), choice);
}

bool may_write_through(const PlanSettings& settings) {
  return settings.place == Home::kNvme && !settings.format.decoded &&
         settings.purpose == Purpose::kTrain;
}

std::vector<UnitChange> residencies(const PlanSettings& settings) {
  std::vector<UnitChange> all;
  if (settings.separate_device) {
    all.emplace_back([](UnitChoice& unit) { unit.pinned = true; });
  }
  if (!settings.place && !settings.format.decoded) {
    all.emplace_back([](UnitChoice& unit) { unit.master_in_memory = true; });
    all.emplace_back([](UnitChoice& unit) { unit.state_home = Home::kHost; });
  }
  if (!settings.place && settings.format.decoded) {
    all.emplace_back([](UnitChoice& unit) {
      unit.state_home = Home::kHost;
      unit.master_in_memory = true;
    });
  }
  if (may_write_through(settings)) {
    all.emplace_back([](UnitChoice& unit) { unit.master_in_memory = unit.write_through = true; });
  }
  // Floats beside what they are decoded from spare decoding it twice a step.
  if (!settings.separate_device && settings.format.decoded) {
    all.emplace_back([](UnitChoice& unit) { unit.pinned = unit.master_in_memory; });
  }
  return all;
}

bool few_units(const ModelSpec& model) {
  constexpr std::size_t kFewUnits = 8;
  return model.units.size() <= kFewUnits;
}

std::size_t arena_bytes(const Plan& plan) {
  return plan.host_arena_bytes + plan.device_arena_bytes;
}

std::size_t budget_bytes(const PlanSettings& settings) {
  return settings.host_memory_bytes +
         (settings.separate_device
              ? settings.device_memory_bytes.value_or(settings.device_available_bytes)
              : 0);
}

namespace {

// What is on its way through memory, at most: what residency can spare.
std::size_t slot_bytes(const Plan& plan) {
  std::size_t bytes = 0;
  for (const MemoryRow& row : plan.memory) {
    const bool slots = row.purpose == "staging" || row.purpose == "weights";
    bytes += slots ? row.host_bytes + row.device_bytes : 0;
  }
  return bytes;
}

std::int64_t trainable_elements(const UnitSpec& unit) {
  std::int64_t elements = 0;
  for (const TensorSpec& tensor : unit.tensors) {
    elements += tensor.frozen ? 0 : tensor.elements;
  }
  return elements;
}

// Orders of units, in each of which some first ones may spare more than they take: a slot is as
// large as the largest unit that needs it; where weights are decoded, the lookup has slots of its
// own, and what is frozen is kept once.
std::vector<std::vector<std::size_t>> sparing_orders(const ModelSpec& model,
                                                     const PlanSettings& settings) {
  std::vector<std::size_t> order(model.units.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return model.units[a].elements > model.units[b].elements;
  });
  std::vector<std::vector<std::size_t>> orders = {order};
  const auto largest_piece = [&](std::size_t u) {
    std::int64_t elements = 0;
    for (const PieceSpec& piece : model.units[u].pieces) {
      elements = std::max(elements, piece.elements);
    }
    return elements;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return largest_piece(a) > largest_piece(b);
  });
  orders.push_back(order);
  if (settings.format.decoded) {
    std::stable_partition(order.begin(), order.end(), [](std::size_t u) { return u == 0; });
    orders.push_back(order);
    std::stable_partition(order.begin(), order.end(), [&](std::size_t u) {
      return trainable_elements(model.units[u]) < model.units[u].elements;
    });
    orders.push_back(order);
  }
  return orders;
}

// With as much in memory as makes it need the least.
Choices spare_slots(const ModelSpec& model, const PlanSettings& settings, Choices choices) {
  std::vector<UnitChange> changes = residencies(settings);
  if (settings.format.decoded && changes.size() > 1) {
    changes.emplace_back([together = changes](UnitChoice& unit) {
      for (const UnitChange& change : together) {
        change(unit);
      }
    });
  }
  const Plan base = lay_out_candidate(model, settings, choices).plan;
  const std::size_t spared_max = slot_bytes(base);
  std::size_t least = arena_bytes(base);
  for (const UnitChange& change : changes) {
    for (const std::vector<std::size_t>& order : sparing_orders(model, settings)) {
      Choices trial = choices;
      std::size_t added = 0;  // at least
      for (std::size_t i = 0; i < order.size() && added <= spared_max; ++i) {
        const UnitSpec& unit = model.units[order[i]];
        change(trial.units[order[i]]);
        added += 2 * static_cast<std::size_t>(trainable_elements(unit));
        const bool equal_follows =
            i + 1 < order.size() && model.units[order[i + 1]].elements == unit.elements;
        if (added > spared_max || equal_follows) {
          continue;
        }
        const std::size_t bytes = arena_bytes(lay_out_candidate(model, settings, trial).plan);
        if (bytes < least) {
          least = bytes;
          choices.units = trial.units;
        }
      }
    }
  }
  return choices;
}

}  // namespace

std::vector<Choices> lean_choices(const ModelSpec& model,
                                  const PlanSettings& settings,
                                  const Choices& choices) {
  std::vector<Choices> all = {choices, spare_slots(model, settings, choices)};
  for (const UnitChange& change :
       few_units(model) ? residencies(settings) : std::vector<UnitChange>{}) {
    Choices full = choices;
    std::for_each(full.units.begin(), full.units.end(), change);
    all.push_back(full);
    all.push_back(spare_slots(model, settings, full));
  }
  return all;
}

Choices leaner(const ModelSpec& model, const PlanSettings& settings, const Choices& choices) {
  std::vector<Choices> all = lean_choices(model, settings, choices);
  const auto bytes = [&](const Choices& one) {
    return arena_bytes(lay_out_candidate(model, settings, one).plan);
  };
  return *std::min_element(all.begin(), all.end(), [&](const Choices& a, const Choices& b) {
    return bytes(a) < bytes(b);
  });
}

bool may_become_lean(const ModelSpec& model, const PlanSettings& settings, const Choices& choices) {
  const Plan plan = lay_out_candidate(model, settings, choices).plan;
  return arena_bytes(plan) <= budget_bytes(settings) + slot_bytes(plan);
}

}  // namespace headrace::plan
