// See exhaustive.hpp.
#include "scheduler/plan/exhaustive.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "scheduler/plan/demand.hpp"
#include "scheduler/plan/residency.hpp"
#include "scheduler/plan/residency_set.hpp"
#include "scheduler/plan/simulate.hpp"
#include "scheduler/plan/step_bound.hpp"

namespace headrace::plan {

namespace {

// Slots from few to one for every tile, each time twice as many.
std::vector<int> staging_ladder(const Choices& choices) {
  constexpr std::size_t kStagingSlotsMax = 256;
  std::size_t tiles = 0;
  for (const std::vector<TileSpec>& of_unit : *choices.tiles) {
    tiles += of_unit.size();
  }
  const int most = static_cast<int>(std::min(tiles, kStagingSlotsMax));
  std::vector<int> ladder = {choices.staging_slots};
  while (ladder.back() < most) {
    ladder.push_back(std::min(2 * ladder.back(), most));
  }
  return ladder;
}

bool same_frame(const Choices& a, const Choices& b) {
  return a.group_size == b.group_size && a.update == b.update && a.lookahead == b.lookahead &&
         a.staging_slots == b.staging_slots && a.kept_blocks == b.kept_blocks &&
         a.spilled_blocks == b.spilled_blocks && a.offload_inputs == b.offload_inputs &&
         a.tile_elements == b.tile_elements;
}

// As many kept as given or half of them, and all others spilled or recomputed; where few are kept,
// as few as spilling takes.
std::vector<Choices> ways_with_activations(const ModelSpec& model,
                                           const PlanSettings& settings,
                                           const Choices& choices,
                                           int least) {
  const int blocks = static_cast<int>(model.units.size()) - 2;
  std::vector<Choices> all;
  for (const int kept : {choices.kept_blocks, (choices.kept_blocks + least) / 2}) {
    all.push_back(choices);
    all.back().kept_blocks = kept;
  }
  if (settings.purpose != Purpose::kTrain || !settings.may_spill || choices.kept_blocks < blocks) {
    return all;
  }
  for (const int kept : {(choices.kept_blocks + least) / 2, kSpillSlotsLeast}) {
    Choices one = choices;
    one.kept_blocks = kept;
    one.spilled_blocks = blocks - kept;
    if (kept < blocks && may_be_spilled(model, settings, one)) {
      all.push_back(std::move(one));
    }
  }
  return all;
}

// Everything but residency. `lean`: with no more slots than must be.
std::vector<Choices> all_choices(const ModelSpec& model, const PlanSettings& settings, bool lean) {
  const std::vector<Choices> given = enumerate(model, settings);
  std::vector<Choices> all;
  for (const Choices& choices : given) {
    int least = choices.kept_blocks;
    for (const Choices& other : given) {
      least = other.group_size == choices.group_size ? std::min(least, other.kept_blocks) : least;
    }
    if (lean && choices.kept_blocks > least) {
      continue;
    }
    for (const Choices& kept : ways_with_activations(model, settings, choices, least)) {
      for (const int slots : lean ? std::vector{choices.staging_slots} : staging_ladder(choices)) {
        Choices one = kept;
        one.staging_slots = slots;
        const bool known = std::any_of(
            all.begin(), all.end(), [&](const Choices& other) { return same_frame(one, other); });
        if (!known) {
          all.push_back(std::move(one));
        }
      }
    }
  }
  return all;
}

// Everything that may be planned: frames, by what they ask of residencies, and these.
struct Family {
  std::vector<Frame> frames;
  Demands demands;
  std::vector<Residency> residencies;
};

bool same_family(const Choices& a, const Choices& b) {
  return a.group_size == b.group_size && a.update == b.update && a.tile_elements == b.tile_elements;
}

// `measure`: choices -> demands.
template <class Measure>
std::vector<Family> families_of(const ModelSpec& model,
                                const PlanSettings& settings,
                                const std::vector<Choices>& all_choices,
                                const std::vector<UnitChoice>& options,
                                const Measure& measure) {
  std::vector<Family> families;
  for (const Choices& choices : all_choices) {
    auto family = std::find_if(families.begin(), families.end(), [&](const Family& other) {
      return same_family(other.frames.front().choices, choices);
    });
    if (family == families.end()) {
      families.emplace_back().demands = measure(choices);
      family = families.end() - 1;
    }
    Frame frame = frame_of(model, settings, choices, options, family->demands);
    if (!family->frames.empty()) {
      Choices fewer = family->frames.back().choices;
      const int slots = std::exchange(fewer.staging_slots, choices.staging_slots);
      frame.fewer_slots = same_frame(fewer, choices) ? slots : 0;
    }
    family->frames.push_back(std::move(frame));
  }
  for (Family& family : families) {
    family.residencies = residencies_worth_a_look(model, settings, family.demands, family.frames);
  }
  return families;
}

// Smaller is better.
struct Rank {
  std::int64_t seconds = std::numeric_limits<std::int64_t>::max();  // their logarithm, in steps
  double nvme_bytes = 0, copied_bytes = 0;
  std::int64_t arena_bytes = 0;
  std::size_t number = 0;

  [[nodiscard]] auto operator<=>(const Rank&) const = default;

  // Of a bound: whether nothing that it is a bound of comes before `other`. Rounding may have made
  // it a little too large.
  [[nodiscard]] bool rules_out(const Rank& other) const {
    Rank tied = *this;
    tied.seconds = other.seconds;
    return seconds > other.seconds + 1 || (seconds >= other.seconds - 1 && other < tied);
  }
};

// Times that differ by rounding are equal.
std::int64_t rounded(double seconds) {
  constexpr double kSteps = 2e9;
  constexpr double kLeast = 1e-300;
  return std::llround(kSteps * std::log(std::max(seconds, kLeast)));
}

struct Entry {
  Rank least;  // seconds and bytes are bounds
  const Frame* frame = nullptr;
  const Residency* residency = nullptr;
};

// What fits.
std::vector<Entry> fitting(const PlanSettings& settings,
                           const StepBound& bound,
                           const std::vector<Family>& families) {
  std::vector<Entry> all;
  std::size_t number = 0;
  for (const Family& family : families) {
    for (const Frame& frame : family.frames) {
      const StepBound::Spared spared = bound.spared(frame, family.residencies);
      for (const Residency& residency : family.residencies) {
        const bool idle =
            frame.fewer_slots > 0 && frame.fewer_slots >= residency.demand.asked[kReads];
        if (idle || !frame.fits(residency.demand, settings)) {
          continue;
        }
        const double seconds = bound.seconds(spared, residency.demand);
        const TierBytes arenas = frame.arenas(residency.demand);
        all.push_back({.least = {.seconds = rounded(seconds),
                                 .nvme_bytes = residency.demand.asked[kNvmeBytes],
                                 .copied_bytes = residency.demand.asked[kCopiedBytes],
                                 .arena_bytes = arenas[0] + arenas[1],
                                 .number = number++},
                       .frame = &frame,
                       .residency = &residency});
      }
    }
  }
  return all;
}

Choices choices_of(const Frame& frame,
                   const Residency& residency,
                   const std::vector<UnitChoice>& options) {
  Choices choices = frame.choices;
  for (std::size_t u = 0; u < choices.units.size(); ++u) {
    choices.units[u] = options[residency.options[u]];
  }
  return choices;
}

double bytes_over(const Prediction& prediction, std::initializer_list<const char*> links) {
  double bytes = 0;
  for (const char* link : links) {
    const auto found = prediction.link_bytes.find(link);
    bytes += found == prediction.link_bytes.end() ? 0.0 : static_cast<double>(found->second);
  }
  return bytes;
}

// Of a candidate whose memory is laid out.
Rank priced(const ModelSpec& model,
            const PlanSettings& settings,
            const MachineProfile& machine,
            Candidate& candidate) {
  build_steady(model, settings, machine, candidate.choices, candidate.layout, candidate.plan);
  const Contention contention = contention_of(machine, settings);
  Rank rank{.arena_bytes = static_cast<std::int64_t>(arena_bytes(candidate.plan))};
  double seconds = 0;
  for (const Program* program : steady_programs(settings, candidate.plan)) {
    const Prediction prediction = simulate(*program, contention).prediction;
    seconds += prediction.seconds;
    rank.nvme_bytes += bytes_over(prediction, {"nvme_read", "nvme_write"});
    rank.copied_bytes += bytes_over(prediction, {"h2d", "d2h"});
  }
  rank.seconds = rounded(seconds);
  return rank;
}

// The best of what fits, the most promising first; no more of them are priced than must be.
std::optional<Choices> best_of(const ModelSpec& model,
                               const PlanSettings& settings,
                               const MachineProfile& machine,
                               const std::vector<UnitChoice>& options,
                               std::vector<Entry> entries) {
  const auto later = [](const Entry& a, const Entry& b) { return b.least < a.least; };
  std::make_heap(entries.begin(), entries.end(), later);
  std::optional<Choices> best;
  Rank best_rank;
  for (auto end = entries.end(); end != entries.begin(); --end) {
    if (best && entries.front().least.seconds - 1 > best_rank.seconds) {
      break;
    }
    std::pop_heap(entries.begin(), end, later);
    const Entry& entry = *(end - 1);
    if (best && entry.least.rules_out(best_rank)) {
      continue;
    }
    Candidate candidate =
        lay_out_candidate(model, settings, choices_of(*entry.frame, *entry.residency, options));
    if (!fits(candidate.plan, settings)) {
      continue;
    }
    Rank rank = priced(model, settings, machine, candidate);
    rank.number = entry.least.number;
    if (!best || rank < best_rank) {
      best_rank = rank;
      best = std::move(candidate.choices);
    }
  }
  return best;
}

}  // namespace

bool searched_exhaustively(const ModelSpec& model, const PlanSettings& settings) {
  // Beside a separate device many take as long as the best, which bounds do not tell.
  constexpr double kResidenciesMax = 4096, kSeparateResidenciesMax = 512;
  constexpr std::int64_t kInstructionsMax = 5'000, kPerTile = 24, kPerPass = 8;
  const Update update = settings.update.value_or(Update::kHeld);
  const bool counted = update == Update::kHeld || update == Update::kAfterBackward;
  if (!few_units(model) || !counted) {
    return false;
  }
  const auto options = static_cast<double>(unit_choices(model, settings).size());
  double residencies = 1, equals = 0;
  std::int64_t tiles = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    // Of n equal units with k choices: (k + n - 1) over n.
    equals = u > 0 && alike(model.units[u - 1], model.units[u]) ? equals + 1 : 1;
    residencies *= (options + equals - 1) / equals;
    tiles += static_cast<std::int64_t>(cut_tiles(model.units[u], 4 * kBlockElements).size());
  }
  const auto units = static_cast<std::int64_t>(model.units.size());
  return residencies <= (settings.separate_device ? kSeparateResidenciesMax : kResidenciesMax) &&
         (kPerTile * tiles + kPerPass * units) * model.accumulate <= kInstructionsMax;
}

std::optional<Candidate> fastest_of_all(const ModelSpec& model,
                                        const PlanSettings& settings,
                                        const MachineProfile& machine) {
  const StepBound bound(model, settings, machine);
  const std::vector<UnitChoice> options = unit_choices(model, settings);
  const std::vector<Family> families = families_of(
      model, settings, all_choices(model, settings, false), options, [&](const Choices& choices) {
        return unit_demands(model, settings, machine, choices, options);
      });
  const std::optional<Choices> best =
      best_of(model, settings, machine, options, fitting(settings, bound, families));
  if (!best) {
    return std::nullopt;
  }
  Candidate found = lay_out_candidate(model, settings, *best);
  build_programs(model, settings, machine, found.choices, found.layout, found.plan);
  predict(settings, machine, found.plan);
  return found;
}

std::vector<Choices> leanest_of_all(const ModelSpec& model, const PlanSettings& asked) {
  PlanSettings settings = asked;  // whatever the budgets
  settings.host_memory_bytes = std::numeric_limits<std::int64_t>::max();
  settings.device_memory_bytes = settings.host_memory_bytes;
  const std::vector<UnitChoice> options = unit_choices(model, settings);
  const std::vector<Family> families = families_of(
      model, settings, all_choices(model, settings, true), options, [&](const Choices& choices) {
        return unit_demands(model, settings, choices, options);
      });

  struct Lean {
    TierBytes arenas{};
    const Frame* frame = nullptr;
    const Residency* residency = nullptr;
  };

  std::vector<Lean> all;
  for (const Family& family : families) {
    for (const Frame& frame : family.frames) {
      for (const Residency& residency : family.residencies) {
        all.push_back({frame.arenas(residency.demand), &frame, &residency});
      }
    }
  }
  std::stable_sort(
      all.begin(), all.end(), [](const Lean& a, const Lean& b) { return a.arenas < b.arenas; });
  std::vector<Choices> leanest;
  std::int64_t device_least = std::numeric_limits<std::int64_t>::max();
  for (const Lean& one : all) {
    if (one.arenas[1] < device_least) {
      device_least = one.arenas[1];
      leanest.push_back(choices_of(*one.frame, *one.residency, options));
    }
  }
  return leanest;
}

}  // namespace headrace::plan
