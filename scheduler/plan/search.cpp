// The search: which complete set of choices fits the budgets and is predicted fastest.
//
// Memory decides first: every set of choices is laid out with the least residency and then filled.
// Programs are built and simulated for the most promising ones, as many as a limit of instructions
// allows, so that a plan for a large model takes no longer than one for a small one.
#include "scheduler/plan/search.hpp"

#include <algorithm>
#include <set>

#include "core/assert.hpp"
#include "scheduler/plan/estimate.hpp"
#include "scheduler/plan/exhaustive.hpp"
#include "scheduler/plan/filling.hpp"
#include "scheduler/plan/residency.hpp"

namespace headrace::plan {

Candidate lay_out_candidate(const ModelSpec& model,
                            const PlanSettings& settings,
                            const Choices& choices) {
  Candidate candidate;
  candidate.choices = choices;
  candidate.layout = lay_out_memory(model, settings, choices, candidate.plan);
  return candidate;
}

bool may_be_spilled(const ModelSpec& model, const PlanSettings& settings, const Choices& choices) {
  if (spilled_blocks(model, choices) == 0 || !settings.nvme_room_bytes) {
    return spilled_blocks(model, choices) > 0;
  }
  const Plan plan = lay_out_candidate(model, settings, choices).plan;
  return plan.spilled.empty() || plan.nvme_bytes <= *settings.nvme_room_bytes;
}

bool fits(const Plan& plan, const PlanSettings& settings) {
  const std::size_t device_cap =
      settings.device_memory_bytes.value_or(settings.device_available_bytes);
  return plan.host_arena_bytes <= settings.host_memory_bytes &&
         (!settings.separate_device || plan.device_arena_bytes <= device_cap);
}

namespace {

// Tiles of each unit; equal blocks are cut once.
std::vector<std::vector<TileSpec>> cut_all_tiles(const ModelSpec& model, std::int64_t elements) {
  std::vector<std::vector<TileSpec>> tiles;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const bool again = u > 0 && model.units[u].pieces.size() == 1 &&
                       model.units[u - 1].pieces.size() == 1 &&
                       same_layout(model.units[u - 1], model.units[u]);
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
  const std::int64_t streams = groups_of(model.accumulate, choices.group_size);
  return kPerTile * tiles * streams + kPerPass * passes;
}

// Whether a way with activations is tried with these tiles: where laying out takes long only with
// those of the first choice, since the two have little to do with each other. Otherwise with all: a
// run that goes on has the tiles of its store, and is to find the plan that it had.
bool tried_with(const ModelSpec& model, const Choices& choices, const Choices& first) {
  constexpr std::int64_t kManyInstructions = 100'000;
  return choices.tiles == first.tiles || count_instructions(model, first) < kManyInstructions;
}

// Blocks whose activations are kept for nothing: where a micro-batch turns around before the next
// one comes, the last one's lie in the buffer that the others share.
int least_kept(const ModelSpec& model, int group_size) {
  return group_size == 1 && model.units.size() > 2 ? 1 : 0;
}

// All micro-batches together, one, and from half of them down in powers of two.
std::vector<int> group_sizes(const ModelSpec& model, const PlanSettings& settings) {
  const auto all = static_cast<int>(model.accumulate);
  if (settings.group_size) {
    return {std::min(*settings.group_size, all)};
  }
  std::vector<int> sizes = {all};
  while (sizes.back() > 1) {
    sizes.push_back((sizes.back() + 1) / 2);
  }
  return sizes;
}

}  // namespace

std::vector<Choices> enumerate(const ModelSpec& model, const PlanSettings& settings) {
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
  const int blocks = static_cast<int>(model.units.size()) - 2;
  const bool training = settings.purpose == Purpose::kTrain;
  std::vector<Choices> all;
  for (const int group_size : group_sizes(model, settings)) {
    for (const int kept :
         training ? std::vector{blocks, least_kept(model, group_size)} : std::vector{0}) {
      for (const int lookahead : lookaheads) {
        for (const Choices& tiled : by_tile) {
          Choices choices = tiled;
          choices.group_size = group_size;
          choices.lookahead = lookahead;
          // Two tiles ahead for each piece ahead: one being read, one being updated, one being
          // written.
          choices.staging_slots =
              tiled.tile_elements > 4 * kBlockElements ? 2 + lookahead : 2 * (1 + lookahead);
          choices.kept_blocks = kept;
          all.push_back(choices);
          // For want of memory, and so with few slots.
          if (training && settings.separate_device && lookahead == lookaheads.back() &&
              blocks >= lookahead + 2 && tried_with(model, tiled, by_tile.front())) {
            choices.offload_inputs = true;
            all.push_back(choices);
          }
        }
      }
    }
  }
  return all;
}

Plan smallest(const ModelSpec& model, const PlanSettings& settings) {
  std::vector<Choices> leanest;
  if (few_units(model)) {
    leanest = leanest_of_all(model, settings);
  } else {
    for (const Choices& choices : enumerate(model, settings)) {
      leanest.push_back(leaner(model, settings, choices));
    }
  }
  std::optional<Plan> best;
  for (const Choices& choices : leanest) {
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
  return a.tiles == b.tiles && a.group_size == b.group_size && a.lookahead == b.lookahead &&
         a.kept_blocks == b.kept_blocks && a.spilled_blocks == b.spilled_blocks &&
         a.offload_inputs == b.offload_inputs && a.staging_slots == b.staging_slots &&
         a.units == b.units;
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

// The same, and where activations would be recomputed: half of these spilled, all of them, and all
// with as few kept as spilling takes.
void add_spilling(const ModelSpec& model,
                  const PlanSettings& settings,
                  const Choices& choices,
                  std::vector<Choices>& all) {
  all.push_back(choices);
  const int others = static_cast<int>(model.units.size()) - 2 - choices.kept_blocks;
  const auto add = [&](int kept, int spilled) {
    Choices one = choices;
    one.kept_blocks = kept;
    one.spilled_blocks = spilled;
    const bool known = std::any_of(
        all.begin(), all.end(), [&](const Choices& other) { return same_memory(one, other); });
    if (!known && may_be_spilled(model, settings, one)) {
      all.push_back(std::move(one));
    }
  };
  if (settings.purpose != Purpose::kTrain || !settings.may_spill || others < 1) {
    return;
  }
  add(choices.kept_blocks, others);
  add(choices.kept_blocks, others / 2);
  if (choices.kept_blocks > kSpillSlotsLeast + 1) {
    add(kSpillSlotsLeast + 1, others + choices.kept_blocks - kSpillSlotsLeast - 1);
  }
}

// The sets of choices to fill. Where there is no room to keep all activations, as many as fit stand
// in for them, and half as many, which leaves room for weights and state.
std::vector<Choices> keeping_what_fits(const ModelSpec& model, const PlanSettings& settings) {
  std::vector<Choices> all;
  const std::vector<Choices> all_choices = enumerate(model, settings);
  for (const Choices& choices : all_choices) {
    const int least =
        settings.purpose == Purpose::kTrain ? least_kept(model, choices.group_size) : 0;
    Choices fewer = choices;
    fewer.kept_blocks = least;
    const bool room_for_least = choices.kept_blocks > least &&
                                fits(lay_out_candidate(model, settings, fewer).plan, settings);
    if (!room_for_least || fits(lay_out_candidate(model, settings, choices).plan, settings)) {
      all.push_back(choices);
      continue;
    }
    Filling(model, settings, fewer).keep_activations();
    const bool half = tried_with(model, choices, all_choices.front());
    for (const int kept : {fewer.kept_blocks, half ? fewer.kept_blocks / 2 : 0}) {
      if (kept > least) {
        Choices some = choices;
        some.kept_blocks = kept;
        add_spilling(model, settings, some, all);
      }
    }
  }
  return all;
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
  const bool training = settings.purpose == Purpose::kTrain;
  for (const Choices& choices : keeping_what_fits(model, settings)) {
    constexpr std::int64_t kFewInstructions = 5'000;
    const bool thorough =
        few_units(model) && count_instructions(model, choices) <= kFewInstructions;
    for (const Choices& start : starts(model, settings, choices, thorough)) {
      for (const FillingOrder& order : filling_orders(settings, thorough)) {
        Choices filled = start;
        Filling filling(model, settings, filled);
        filling.run(order);
        // What is left makes room for tiles to be read ahead and written late.
        const auto add_deepened = [&](Choices one) {
          if (thorough) {
            add(one);
          }
          Filling(model, settings, one).deepen_staging(1);
          add(one);
        };
        add_deepened(filled);
        if (training && filling.keep_activations()) {
          add_deepened(filled);
        }
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
  const auto others = std::stable_partition(
      all.begin(), all.end(), [&](const Ranked& one) { return seen.insert(one.group).second; });
  const auto firsts = static_cast<std::size_t>(others - all.begin());
  // The best in any case; then whatever there is still room for.
  constexpr std::int64_t kInstructionsMax = 100'000, kInstructionsOfFirstsMax = 600'000;
  std::int64_t instructions = 0;
  std::vector<Ranked> simulated;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t more = count_instructions(model, all[i].choices);
    if (i == 0 ||
        instructions + more <= (i < firsts ? kInstructionsOfFirstsMax : kInstructionsMax)) {
      instructions += more;
      simulated.push_back(std::move(all[i]));
    }
  }
  std::sort(simulated.begin(), simulated.end(), [](const Ranked& a, const Ranked& b) {
    return a.number < b.number;
  });
  return simulated;
}

}  // namespace

std::optional<Candidate> best_candidate(const ModelSpec& model,
                                        const PlanSettings& settings,
                                        const MachineProfile& machine) {
  if (searched_exhaustively(model, settings)) {
    return fastest_of_all(model, settings, machine);
  }
  const auto predicted = [&](Candidate candidate) {
    build_programs(model, settings, machine, candidate.choices, candidate.layout, candidate.plan);
    predict(settings, machine, candidate.plan);
    return candidate;
  };
  std::optional<Candidate> best;
  for (const Ranked& ranked : promising(model, settings, machine)) {
    Candidate candidate = predicted(lay_out_candidate(model, settings, ranked.choices));
    // Only a clear gain justifies a later candidate: predictions are not that sharp.
    if (!best || figure_of_merit(candidate.plan) < 0.99 * figure_of_merit(best->plan)) {
      best = std::move(candidate);
    }
  }
  if (best || !few_units(model)) {
    return best;
  }
  // Where filling starts nothing fits; something may.
  for (const Choices& choices : leanest_of_all(model, settings)) {
    Candidate candidate = lay_out_candidate(model, settings, choices);
    if (fits(candidate.plan, settings)) {
      return predicted(std::move(candidate));
    }
  }
  return std::nullopt;
}

}  // namespace headrace::plan
