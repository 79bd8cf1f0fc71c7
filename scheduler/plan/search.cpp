// The search: which complete set of choices fits the budgets and is predicted fastest.
//
// Memory decides first: every set of choices is laid out with the least residency and then filled.
// Programs are built and simulated for the most promising ones, as many as a limit of instructions
// allows, so that a plan for a large model takes no longer than one for a small one.
#include "scheduler/plan/search.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

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

  // Turns on, in the order of benefit per byte, what still fits: weights kept on the device (each
  // is read twice a step), masters in host memory (read twice, written once), then state (read and
  // written once). A forced place is left as it is: but weights may be kept beside it, and what the
  // store is still given at once is as if it lived there. Then tiles are given room to be read
  // ahead and written late.
  void run() {
    if (settings_.separate_device) {
      turn_on([](UnitChoice& unit) { unit.pinned = true; });
    }
    if (!settings_.place && !settings_.format.decoded) {
      turn_on([](UnitChoice& unit) { unit.master_in_memory = true; });
      turn_on([](UnitChoice& unit) { unit.state_home = Home::kHost; });
    }
    if (!settings_.place && settings_.format.decoded) {
      turn_on([](UnitChoice& unit) {
        unit.state_home = Home::kHost;
        unit.master_in_memory = true;
      });
    }
    if (may_write_through(settings_)) {
      deepen_staging(choices_.staged_first);
      turn_on([](UnitChoice& unit) { unit.master_in_memory = unit.write_through = true; });
    }
    // Floats beside what they are decoded from spare decoding it twice a step.
    if (!settings_.separate_device && settings_.format.decoded) {
      turn_on([](UnitChoice& unit) { unit.pinned = unit.master_in_memory; });
    }
    deepen_staging(1);
  }

 private:
  using Change = std::function<void(UnitChoice&)>;

  [[nodiscard]] bool fits_now() const {
    return fits(lay_out_candidate(model_, settings_, choices_).plan, settings_);
  }

  // Runs of equal units in order, in each as many as fit.
  void turn_on(const Change& change) {
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

  void turn_on_run(const Change& change, std::size_t begin, std::size_t end) {
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
  const std::vector<double> staged_shares =
      may_write_through(settings) ? std::vector{0.0, 0.25, 0.5, 1.0} : std::vector{0.0};
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
          for (const double share : staged_shares) {
            choices.staged_first = share;
            all.push_back(choices);
          }
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
};

// Those that fit, filled; the most promising ones, in the order of enumerate.
std::vector<Ranked> promising(const ModelSpec& model,
                              const PlanSettings& settings,
                              const MachineProfile& machine) {
  std::vector<Ranked> all;
  for (Choices& choices : enumerate(model, settings)) {
    if (!fits(lay_out_candidate(model, settings, choices).plan, settings)) {
      continue;
    }
    Filling(model, settings, choices).run();
    const Plan plan = lay_out_candidate(model, settings, choices).plan;
    const double seconds = estimate_step(model, settings, machine, plan);
    all.push_back(
        {.choices = std::move(choices), .estimate_seconds = seconds, .number = all.size()});
  }
  std::stable_sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    return a.estimate_seconds < b.estimate_seconds;
  });
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
