// The search: which complete set of choices fits the budgets and is predicted fastest.
//
// Memory decides first: every set of choices is laid out with the least residency and then filled.
// Programs are built and simulated for the most promising ones, as many as a limit of instructions
// allows, so that a plan for a large model takes no longer than one for a small one.
#include "scheduler/plan/search.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>

#include "core/assert.hpp"
#include "scheduler/plan/estimate.hpp"

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

// Weights may be kept in memory although everything is to live on NVMe.
bool may_write_through(const PlanSettings& settings) {
  return settings.place == Home::kNvme && !settings.format.decoded &&
         settings.purpose == Purpose::kTrain;
}

using UnitChange = std::function<void(UnitChoice&)>;

// What can be turned on for a unit, in the order of benefit per byte: weights kept on the device
// (each is read twice a step), masters in host memory (read twice, written once), then state (read
// and written once). A forced place is left as it is: but weights may be kept beside it, and what
// the store is still given at once is as if it lived there.
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

// What is small is planned with more care.
bool few_units(const ModelSpec& model) {
  constexpr std::size_t kFewUnits = 8;
  return model.units.size() <= kFewUnits;
}

std::size_t arena_bytes(const Plan& plan) {
  return plan.host_arena_bytes + plan.device_arena_bytes;
}

// Of both tiers.
std::size_t budget_bytes(const PlanSettings& settings) {
  return settings.host_memory_bytes +
         (settings.separate_device
              ? settings.device_memory_bytes.value_or(settings.device_available_bytes)
              : 0);
}

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

// The choice, and what needs less memory: what is all in memory needs no slots.
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

}  // namespace

Choices leaner(const ModelSpec& model, const PlanSettings& settings, const Choices& choices) {
  std::vector<Choices> all = lean_choices(model, settings, choices);
  const auto bytes = [&](const Choices& one) {
    return arena_bytes(lay_out_candidate(model, settings, one).plan);
  };
  return *std::min_element(all.begin(), all.end(), [&](const Choices& a, const Choices& b) {
    return bytes(a) < bytes(b);
  });
}

namespace {

// In which order what the budgets leave is given away.
struct FillingOrder {
  bool state_first = false;  // before weights
  double staged_first = 0;   // share of tiles that get room to be on their way before all else
  bool best_set = false;     // of units: the most elements that fit, not the first
};

// Fills what the budgets leave with what is worth most per byte.
class Filling {
 public:
  Filling(const ModelSpec& model, const PlanSettings& settings, Choices& choices)
      : model_(model), settings_(settings), choices_(choices) {
    // Units of equal size are equally worth a byte; the vocabulary matrix of a tied head is read
    // by the lookup and twice by the head, so it comes first; a lookup alone is read once, last.
    order_.resize(model.units.size());
    std::iota(order_.begin(), order_.end(), 0);
    if (!model.tied) {
      std::rotate(order_.begin(), order_.begin() + 1, order_.end());
    }
  }

  // Turns on what still fits.
  void run(const FillingOrder& order) {
    std::vector<UnitChange> changes = residencies(settings_);
    if (order.state_first) {
      std::reverse(changes.begin(), changes.end());
    }
    if (order.staged_first > 0) {
      deepen_staging(order.staged_first);
    }
    for (const UnitChange& change : changes) {
      if (order.best_set) {
        turn_on_best(change);
      } else {
        turn_on(change);
      }
    }
  }

  // More tiles on their way, up to a share of those that stream: read before the step that needs
  // them, written after it.
  void deepen_staging(double share) {
    std::size_t streamed = 0;  // tiles whose state lives on NVMe
    for (std::size_t u = 0; u < choices_.units.size(); ++u) {
      if (choices_.units[u].state_home == Home::kNvme) {
        streamed += (*choices_.tiles)[u].size();
      }
    }
    const auto wanted = static_cast<std::size_t>(share * static_cast<double>(streamed));
    int fitting = choices_.staging_slots;
    int too_many = static_cast<int>(std::min(wanted, kStagingSlotsMax)) + 1;
    while (fitting + 1 < too_many) {
      choices_.staging_slots = (fitting + too_many) / 2;
      (fits_now() ? fitting : too_many) = choices_.staging_slots;
    }
    choices_.staging_slots = fitting;
  }

  // From everything down, what is worth least first, until it fits.
  void empty(bool state_first) {
    const std::vector<UnitChoice> none = choices_.units;
    std::vector<UnitChange> changes = residencies(settings_);
    if (state_first) {
      std::reverse(changes.begin(), changes.end());
    }
    for (std::size_t left = changes.size() * order_.size(); left > 0; --left) {
      choices_.units = none;
      for (std::size_t i = 0; i < left; ++i) {
        changes[i / order_.size()](choices_.units[order_[i % order_.size()]]);
      }
      if (fits_now()) {
        return;
      }
    }
    choices_.units = none;
  }

 private:
  [[nodiscard]] Plan laid_out() const {
    return lay_out_candidate(model_, settings_, choices_).plan;
  }

  [[nodiscard]] bool fits_now() const { return fits(laid_out(), settings_); }

  // Runs of equal units in order, in each as many as fit.
  void turn_on(const UnitChange& change) {
    std::size_t begin = 0;
    while (begin < order_.size()) {
      std::size_t end = begin + 1;
      while (end < order_.size() && unit_at(end).elements == unit_at(begin).elements) {
        ++end;
      }
      turn_on_run(change, begin, end);
      begin = end;
    }
  }

  void turn_on_run(const UnitChange& change, std::size_t begin, std::size_t end) {
    const std::vector<UnitChoice> before = choices_.units;
    const auto apply = [&](std::size_t count) {
      choices_.units = before;
      for (std::size_t i = begin; i < begin + count; ++i) {
        change(choices_.units[order_[i]]);
      }
    };
    // All at once may take less than all but one, whose slots it spares.
    apply(end - begin);
    if (fits_now()) {
      return;
    }
    std::size_t fitting = 0, too_many = end - begin;
    while (fitting + 1 < too_many) {
      const std::size_t middle = (fitting + too_many) / 2;
      apply(middle);
      (fits_now() ? fitting : too_many) = middle;
    }
    apply(fitting);
  }

  // The set of units with the most elements that fits. For few units only: every set is looked at.
  void turn_on_best(const UnitChange& change) {
    const std::vector<UnitChoice> before = choices_.units;
    const std::size_t count = order_.size();
    const std::size_t now = arena_bytes(laid_out());
    std::vector<std::size_t> added(count);  // beside the slots that are spared
    for (std::size_t i = 0; i < count; ++i) {
      change(choices_.units[i]);
      const std::size_t with = arena_bytes(laid_out());
      added[i] = with > now ? with - now : 0;
      choices_.units = before;
    }

    struct Set {
      std::uint32_t units = 0;
      std::int64_t elements = 0;
      std::size_t added = 0;
    };

    std::vector<Set> sets;
    for (std::uint32_t units = 0; units < (1U << count); ++units) {
      Set set{.units = units};
      for (std::size_t i = 0; i < count; ++i) {
        const bool in = (units >> i & 1U) != 0;
        set.elements += in ? model_.units[i].elements : 0;
        set.added += in ? added[i] : 0;
      }
      sets.push_back(set);
    }
    std::sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) {
      return std::tuple(-a.elements, a.added, a.units) < std::tuple(-b.elements, b.added, b.units);
    });
    const std::size_t free = budget_bytes(settings_) - now;
    for (const Set& set : sets) {
      const bool all = set.units + 1 == 1U << count;  // needs no slots
      if (set.added > free && !all) {
        continue;
      }
      for (std::size_t i = 0; i < count; ++i) {
        if ((set.units >> i & 1U) != 0) {
          change(choices_.units[i]);
        }
      }
      if (fits_now()) {
        return;
      }
      choices_.units = before;
    }
  }

  [[nodiscard]] const UnitSpec& unit_at(std::size_t i) const { return model_.units[order_[i]]; }

  static constexpr std::size_t kStagingSlotsMax = 256;

  const ModelSpec& model_;
  const PlanSettings& settings_;
  Choices& choices_;
  std::vector<std::size_t> order_;
};

// Tiles of each unit; equal blocks are cut once.
std::vector<std::vector<TileSpec>> cut_all_tiles(const ModelSpec& model, std::int64_t elements) {
  std::vector<std::vector<TileSpec>> tiles;
  const auto alike = [](const UnitSpec& a, const UnitSpec& b) {
    return a.elements == b.elements && a.pieces.size() == b.pieces.size() && a.pieces.size() == 1 &&
           std::equal(a.tensors.begin(),
                      a.tensors.end(),
                      b.tensors.begin(),
                      b.tensors.end(),
                      [](const TensorSpec& x, const TensorSpec& y) {
                        return x.offset == y.offset && x.elements == y.elements &&
                               x.frozen == y.frozen;
                      });
  };
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const bool again = u > 0 && alike(model.units[u - 1], model.units[u]);
    tiles.push_back(again ? tiles.back() : cut_tiles(model.units[u], elements));
  }
  return tiles;
}

// Small tiles need little memory; those of large units are larger, since each costs instructions.
std::vector<std::int64_t> tile_sizes(const ModelSpec& model, const PlanSettings& settings) {
  if (settings.tile_elements) {
    return {*settings.tile_elements};
  }
  std::int64_t largest = 0;
  for (const UnitSpec& unit : model.units) {
    largest = std::max(largest, unit.elements);
  }
  constexpr std::int64_t kLargeUnitElements = std::int64_t{1} << 28;
  return largest < kLargeUnitElements ? std::vector{16 * kBlockElements, 4 * kBlockElements}
                                      : std::vector{kTileElementsAutoMax, 16 * kBlockElements};
}

// Instructions of all programs, about.
std::int64_t count_instructions(const ModelSpec& model, const Choices& choices) {
  std::int64_t tiles = 0;
  for (const std::vector<TileSpec>& of_unit : *choices.tiles) {
    tiles += static_cast<std::int64_t>(of_unit.size());
  }
  constexpr std::int64_t kPerTile = 24, kPerPass = 8;
  const std::int64_t passes = static_cast<std::int64_t>(model.units.size()) * model.accumulate;
  const std::int64_t streams = choices.traversal == Traversal::kBatchMajor ? model.accumulate : 1;
  return kPerTile * tiles * streams + kPerPass * passes;
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
  std::vector<Choices> by_tile;
  for (const std::int64_t elements : tile_sizes(model, settings)) {
    Choices choices;
    choices.tile_elements = elements;
    choices.tiles =
        std::make_shared<const std::vector<std::vector<TileSpec>>>(cut_all_tiles(model, elements));
    choices.update = settings.update.value_or(Update::kHeld);
    choices.units = base_units(model, settings);
    by_tile.push_back(std::move(choices));
  }
  std::vector<Choices> all;
  for (const Traversal traversal : traversals) {
    for (const bool keep : {true, false}) {
      for (const int lookahead : lookaheads) {
        for (const Choices& tiled : by_tile) {
          Choices choices = tiled;
          choices.traversal = traversal;
          choices.lookahead = lookahead;
          // Two tiles ahead for each piece ahead: one being read, one being updated, one being
          // written.
          choices.staging_slots =
              tiled.tile_elements > 4 * kBlockElements ? 2 + lookahead : 2 * (1 + lookahead);
          choices.keep_activations = keep && settings.purpose == Purpose::kTrain;
          all.push_back(choices);
        }
      }
      if (settings.purpose != Purpose::kTrain) {
        break;  // nothing to keep
      }
    }
  }
  return all;
}

Plan smallest(const ModelSpec& model, const PlanSettings& settings) {
  std::optional<Plan> best;
  for (const Choices& choices : enumerate(model, settings)) {
    Plan plan = lay_out_candidate(model, settings, leaner(model, settings, choices)).plan;
    if (!best || plan.device_arena_bytes + plan.host_arena_bytes <
                     best->device_arena_bytes + best->host_arena_bytes) {
      best = std::move(plan);
    }
  }
  HEADRACE_ASSERT(best.has_value(), "there is always a smallest plan");
  return *std::move(best);
}

namespace {

double figure_of_merit(const Plan& plan) {
  const Prediction* steady = find_prediction(plan, "steady");
  const Prediction* prediction = steady != nullptr ? steady : find_prediction(plan, "evaluation");
  HEADRACE_ASSERT(prediction != nullptr, "every plan predicts its evaluation");
  return prediction->seconds;
}

struct Ranked {
  Choices choices;
  double estimate_seconds = 0;
  std::size_t number = 0;  // in the order of enumerate
  std::size_t group = 0;   // which of enumerate
};

bool same_memory(const Choices& a, const Choices& b) {
  return a.tiles == b.tiles && a.traversal == b.traversal && a.lookahead == b.lookahead &&
         a.keep_activations == b.keep_activations && a.staging_slots == b.staging_slots &&
         a.units == b.units;
}

// Whether what does not fit could without any slots.
bool may_become_lean(const ModelSpec& model, const PlanSettings& settings, const Choices& choices) {
  const Plan plan = lay_out_candidate(model, settings, choices).plan;
  return arena_bytes(plan) <= budget_bytes(settings) + slot_bytes(plan);
}

// Where filling starts: with the least residency, with the least memory, and with everything of one
// kind, which needs no slots.
std::vector<Choices> starts(const ModelSpec& model,
                            const PlanSettings& settings,
                            const Choices& choices,
                            bool thorough) {
  std::vector<Choices> all;
  const auto add = [&](const Choices& one) {
    const bool known = std::any_of(
        all.begin(), all.end(), [&](const Choices& other) { return other.units == one.units; });
    if (!known && fits(lay_out_candidate(model, settings, one).plan, settings)) {
      all.push_back(one);
    }
  };
  if (thorough) {
    for (const Choices& lean : lean_choices(model, settings, choices)) {
      add(lean);
    }
  } else {
    add(choices);
    if (all.empty() && may_become_lean(model, settings, choices)) {
      add(leaner(model, settings, choices));
    }
  }
  if (all.empty()) {
    return all;
  }
  for (const bool state_first : thorough ? std::vector{false, true} : std::vector<bool>{}) {
    Choices emptied = choices;
    Filling(model, settings, emptied).empty(state_first);
    add(emptied);
  }
  return all;
}

std::vector<FillingOrder> filling_orders(const PlanSettings& settings, bool thorough) {
  std::vector<FillingOrder> orders = {{}};
  if (may_write_through(settings)) {
    for (const double share : {0.25, 0.5, 1.0}) {
      orders.push_back({.staged_first = share});
    }
  }
  if (thorough) {
    orders.push_back({.best_set = true});
    orders.push_back({.state_first = true, .best_set = true});
    orders.push_back({.staged_first = 1, .best_set = true});
  }
  return orders;
}

// Those that fit, filled; the most promising ones, in the order of enumerate.
std::vector<Ranked> promising(const ModelSpec& model,
                              const PlanSettings& settings,
                              const MachineProfile& machine) {
  std::vector<Ranked> all;
  std::size_t group = 0;
  const auto add = [&](const Choices& choices) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const Ranked& other) {
      return same_memory(other.choices, choices);
    });
    if (known) {
      return;
    }
    const Plan plan = lay_out_candidate(model, settings, choices).plan;
    const double seconds = estimate_step(model, settings, machine, plan);
    all.push_back(
        {.choices = choices, .estimate_seconds = seconds, .number = all.size(), .group = group});
  };
  for (const Choices& choices : enumerate(model, settings)) {
    constexpr std::int64_t kFewInstructions = 5'000;
    const bool thorough =
        few_units(model) && count_instructions(model, choices) <= kFewInstructions;
    for (const Choices& start : starts(model, settings, choices, thorough)) {
      for (const FillingOrder& order : filling_orders(settings, thorough)) {
        Choices filled = start;
        Filling filling(model, settings, filled);
        filling.run(order);
        if (thorough) {
          add(filled);
        }
        // What is left makes room for tiles to be read ahead and written late.
        filling.deepen_staging(1);
        add(filled);
      }
    }
    ++group;
  }
  std::stable_sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    return a.estimate_seconds < b.estimate_seconds;
  });
  // An estimate tells residency better than it tells tiles and orders of work: of each of these the
  // best comes first.
  std::set<std::size_t> seen;
  std::stable_partition(
      all.begin(), all.end(), [&](const Ranked& one) { return seen.insert(one.group).second; });
  constexpr std::int64_t kInstructionsMax = 100'000;
  std::int64_t instructions = 0;
  std::size_t kept = 0;
  for (; kept < all.size(); ++kept) {
    instructions += count_instructions(model, all[kept].choices);
    if (kept > 0 && instructions > kInstructionsMax) {
      break;
    }
  }
  all.resize(kept);
  std::sort(
      all.begin(), all.end(), [](const Ranked& a, const Ranked& b) { return a.number < b.number; });
  return all;
}

}  // namespace

std::optional<Candidate> best_candidate(const ModelSpec& model,
                                        const PlanSettings& settings,
                                        const MachineProfile& machine) {
  std::optional<Candidate> best;
  for (const Ranked& ranked : promising(model, settings, machine)) {
    Candidate candidate = lay_out_candidate(model, settings, ranked.choices);
    build_programs(model, settings, machine, candidate.choices, candidate.layout, candidate.plan);
    predict(settings, machine, candidate.plan);
    // Only a clear gain justifies a later candidate: predictions are not that sharp.
    if (!best || figure_of_merit(candidate.plan) < 0.99 * figure_of_merit(best->plan)) {
      best = std::move(candidate);
    }
  }
  return best;
}

}  // namespace headrace::plan
