#include "scheduler/plan/refusal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/quantity.hpp"
#include "scheduler/plan/exhaustive.hpp"
#include "scheduler/plan/residency.hpp"
#include "scheduler/plan/search.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kLargestShown = 4;
constexpr std::size_t kSinglesEnough = 3;  // then no two changes at once are looked for
constexpr std::size_t kPairsShown = 3;

std::size_t whole_mebibytes(std::size_t bytes) {
  return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
}

// What arenas need of a tier, and what it has.
struct Need {
  std::size_t host_bytes = 0, device_bytes = 0;
};

std::size_t device_budget(const PlanSettings& settings) {
  return settings.device_memory_bytes.value_or(settings.device_available_bytes);
}

std::size_t missing(const Need& need, const PlanSettings& settings) {
  const auto beyond = [](std::size_t bytes, std::size_t budget) {
    return bytes > budget ? bytes - budget : 0;
  };
  return beyond(need.host_bytes, settings.host_memory_bytes) +
         (settings.separate_device ? beyond(need.device_bytes, device_budget(settings)) : 0);
}

Need need_of(const Plan& plan) {
  return {.host_bytes = plan.host_arena_bytes, .device_bytes = plan.device_arena_bytes};
}

// Elements in the staging slots of a choice, which is all that the size of tiles decides here.
std::int64_t staged_elements(const ModelSpec& model, const Choices& choices) {
  std::int64_t largest = 0;
  for (const UnitSpec& unit : model.units) {
    largest = std::max(largest, unit.elements);
  }
  return choices.staging_slots * std::min(choices.tile_elements, largest);
}

// For each traversal, with inputs offloaded or not, the plan with the least memory.
std::vector<Plan> leanest(const ModelSpec& model, const PlanSettings& settings) {
  std::vector<Plan> plans;
  if (few_units(model)) {
    for (const Choices& choices : leanest_of_all(model, settings)) {
      plans.push_back(lay_out_candidate(model, settings, choices).plan);
    }
    return plans;
  }
  std::vector<Choices> best;
  for (Choices& choices : enumerate(model, settings)) {
    const auto same = std::find_if(best.begin(), best.end(), [&](const Choices& other) {
      return other.group_size == choices.group_size &&
             other.offload_inputs == choices.offload_inputs;
    });
    const auto size = [&](const Choices& one) {
      return std::pair(std::pair(one.kept_blocks, one.lookahead), staged_elements(model, one));
    };
    if (same == best.end()) {
      best.push_back(std::move(choices));
    } else if (size(choices) < size(*same)) {
      *same = std::move(choices);
    }
  }
  plans.reserve(best.size());
  for (const Choices& choices : best) {
    plans.push_back(lay_out_candidate(model, settings, leaner(model, settings, choices)).plan);
  }
  return plans;
}

// A run with some changes made.
struct Trial {
  ModelSpec model;
  PlanSettings settings;
  WayOut way;
};

bool apply(const Change& change, Trial& trial) {
  if (!change.apply(trial.model, trial.settings)) {
    return false;
  }
  trial.way.sets.insert(trial.way.sets.end(), change.sets.begin(), change.sets.end());
  trial.way.changes_numbers = trial.way.changes_numbers || change.changes_numbers;
  return true;
}

// Of the plan that needs the least beyond the budgets.
std::size_t least_missing(const Trial& trial) {
  std::size_t least = ~std::size_t{0};
  for (const Plan& plan : leanest(trial.model, trial.settings)) {
    least = std::min(least, missing(need_of(plan), trial.settings));
  }
  return least;
}

bool fits(const Trial& trial) {
  return least_missing(trial) == 0;
}

// A budget that nobody set is all that the machine has.
bool host_is_auto(const PlanSettings& settings) {
  return settings.reserve_bytes > 0;
}

// For arenas.
std::size_t machine_bytes(const PlanSettings& settings) {
  return settings.usable_bytes > 0 ? settings.usable_bytes : settings.host_available_bytes;
}

// Raises the budgets that are too small for `need`; false: the machine does not have as much.
bool raise(const Need& need, Trial& trial) {
  PlanSettings& settings = trial.settings;
  const std::size_t has = machine_bytes(settings);
  if (settings.separate_device && need.device_bytes > device_budget(settings)) {
    settings.device_memory_bytes = whole_mebibytes(need.device_bytes);
    trial.way.sets.push_back(
        fmt::format("tiers.device_memory=\"{}\"", mebibytes(need.device_bytes)));
    if (host_is_auto(settings)) {
      const std::size_t device = *settings.device_memory_bytes;
      settings.host_memory_bytes = has > device ? has - device : 0;
    }
  }
  if (need.host_bytes > settings.host_memory_bytes) {
    if (host_is_auto(settings)) {
      return false;
    }
    settings.host_memory_bytes = whole_mebibytes(need.host_bytes);
    trial.way.sets.push_back(fmt::format("tiers.host_memory=\"{}\"", mebibytes(need.host_bytes)));
  }
  // The CPU's separate arena comes out of the same memory.
  return need.host_bytes + need.device_bytes <= has;
}

// Larger budgets: for the plan that needs the fewest raised, and by the least.
std::optional<WayOut> with_larger_budgets(const Trial& trial) {
  std::optional<std::pair<std::pair<std::size_t, std::size_t>, Trial>> best;
  for (const Plan& plan : leanest(trial.model, trial.settings)) {
    Trial raised = trial;
    const Need need = need_of(plan);
    if (!raise(need, raised)) {
      continue;
    }
    const std::pair<std::size_t, std::size_t> cost(raised.way.sets.size(),
                                                   missing(need, trial.settings));
    if (!best || cost < best->first) {
      best.emplace(cost, std::move(raised));
    }
  }
  if (!best || !fits(best->second)) {
    return std::nullopt;
  }
  return std::move(best->second.way);
}

Change setting(std::string group,
               std::string set,
               std::function<bool(PlanSettings& settings)> apply) {
  return {.group = std::move(group),
          .sets = {std::move(set)},
          .changes_numbers = false,
          .apply = [apply = std::move(apply)](ModelSpec&, PlanSettings& settings) {
            return apply(settings);
          }};
}

// A freer place and order of work, which leave the numbers alone.
std::vector<Change> planner_changes() {
  std::vector<Change> changes;
  changes.push_back(setting("place", "tiers.place=\"nvme\"", [](PlanSettings& settings) {
    const bool can =
        settings.purpose == Purpose::kTrain && settings.place && *settings.place != Home::kNvme;
    settings.place = can ? Home::kNvme : settings.place;
    return can;
  }));
  changes.push_back(setting("traversal", "batch.traversal=\"auto\"", [](PlanSettings& settings) {
    return std::exchange(settings.group_size, std::nullopt).has_value();
  }));
  changes.push_back(setting("lookahead", "tiers.lookahead=1", [](PlanSettings& settings) {
    return std::exchange(settings.lookahead, 1).value_or(1) > 1;
  }));
  changes.push_back(
      setting("update", "optim.update=\"after-backward\"", [](PlanSettings& settings) {
        const bool can =
            settings.purpose == Purpose::kTrain && settings.update != Update::kAfterBackward;
        settings.update = Update::kAfterBackward;
        return can;
      }));
  return changes;
}

// Looks for ways out: single changes, then two, then as many as it takes.
class Finder {
 public:
  Finder(const ModelSpec& model, const PlanSettings& settings, const std::vector<Change>& changes)
      : start_{.model = model, .settings = settings, .way = {}} {
    for (const std::vector<Change>& more : {planner_changes(), changes}) {
      for (const Change& change : more) {
        if (groups_.empty() || groups_.back().front().group != change.group) {
          groups_.emplace_back();
        }
        groups_.back().push_back(change);
      }
    }
  }

  void find(Refusal& refusal) {
    if (const auto raised = with_larger_budgets(start_)) {
      ways_.push_back(*raised);
      budgets_help_ = true;
    } else if (const Trial all = with_all_changes(); !fits(all) && !with_larger_budgets(all)) {
      // Less helps even less. A large model would be laid out hundreds of times to see that.
      refusal.least_bytes = least_arenas(all);
      refusal.machine_bytes = machine_bytes(start_.settings);
      return;
    }
    std::vector<std::vector<Change>> left;
    for (const std::vector<Change>& group : groups_) {
      if (const auto way = mildest(start_, group)) {
        ways_.push_back(*way);
      } else {
        left.push_back(group);
      }
    }
    groups_ = std::move(left);
    if (ways_.size() < kSinglesEnough) {
      add_pairs();
    }
    if (ways_.empty()) {
      refusal.least_bytes = add_many();
      refusal.machine_bytes = machine_bytes(start_.settings);
    }
    refusal.ways = std::move(ways_);
  }

 private:
  // Each at its strongest.
  [[nodiscard]] Trial with_all_changes() const {
    Trial all = start_;
    for (const std::vector<Change>& group : groups_) {
      static_cast<void>(apply(group.back(), all));
    }
    return all;
  }

  [[nodiscard]] static std::uint64_t least_arenas(const Trial& trial) {
    std::uint64_t least = ~std::uint64_t{0};
    for (const Plan& plan : leanest(trial.model, trial.settings)) {
      least = std::min(
          least, std::uint64_t{plan.host_arena_bytes} + std::uint64_t{plan.device_arena_bytes});
    }
    return least;
  }

  // The mildest of a group with which the trial fits.
  [[nodiscard]] static std::optional<WayOut> mildest(const Trial& trial,
                                                     const std::vector<Change>& group) {
    Trial strongest = trial;
    if (!apply(group.back(), strongest) || !fits(strongest)) {
      return std::nullopt;
    }
    for (const Change& change : group) {
      Trial changed = trial;
      if (apply(change, changed) && fits(changed)) {
        return std::move(changed.way);
      }
    }
    return std::nullopt;
  }

  // Two changes, of which neither is enough. Larger budgets are the first to go with another; where
  // they would be enough by themselves the other one has to spare a tenth of what is missing.
  void add_pairs() {
    const std::size_t missing_bytes = least_missing(start_);
    const std::size_t shown_max = ways_.size() + kPairsShown;
    for (std::size_t a = 0; a < groups_.size() && ways_.size() < shown_max; ++a) {
      std::optional<WayOut> way = with_budgets(groups_[a], missing_bytes);
      for (std::size_t b = a + 1; !way && b < groups_.size(); ++b) {
        way = mildest_pair(groups_[a], groups_[b]);
      }
      if (way) {
        ways_.push_back(*std::move(way));
      }
    }
  }

  [[nodiscard]] std::optional<WayOut> mildest_pair(const std::vector<Change>& group,
                                                   const std::vector<Change>& other) const {
    Trial strongest = start_;
    if (!apply(group.back(), strongest) || !mildest(strongest, other)) {
      return std::nullopt;
    }
    for (const Change& change : group) {
      Trial changed = start_;
      std::optional<WayOut> way = apply(change, changed) ? mildest(changed, other) : std::nullopt;
      if (way) {
        return way;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<WayOut> with_budgets(const std::vector<Change>& group,
                                                   std::size_t missing_bytes) const {
    for (const Change& change : group) {
      Trial changed = start_;
      if (!apply(change, changed)) {
        continue;
      }
      const bool spares = 10 * least_missing(changed) <= 9 * missing_bytes;
      if (!budgets_help_ || spares) {
        if (auto way = with_larger_budgets(changed)) {
          return way;
        }
      }
    }
    return std::nullopt;
  }

  // One change after the other, each at its strongest, until it fits; what is needed after all.
  std::uint64_t add_many() {
    Trial changed = start_;
    for (const std::vector<Change>& group : groups_) {
      if (!apply(group.back(), changed)) {
        continue;
      }
      if (fits(changed)) {
        ways_.push_back(changed.way);
        break;
      }
      if (const auto raised = with_larger_budgets(changed)) {
        ways_.push_back(*raised);
        break;
      }
    }
    return least_arenas(changed);
  }

  Trial start_;
  std::vector<std::vector<Change>> groups_;
  std::vector<WayOut> ways_;
  bool budgets_help_ = false;  // alone
};

std::string need_text(const TierNeed& tier) {
  const std::string set = fmt::format("tiers.{}_memory", tier.tier);
  return tier.missing_bytes() > 0 ? fmt::format("{} of {} memory, {} more than {} ({})",
                                                format_bytes(tier.needed_bytes),
                                                tier.tier,
                                                format_bytes(tier.missing_bytes()),
                                                set,
                                                format_bytes(tier.budget_bytes))
                                  : fmt::format("{} of {} memory ({} is {})",
                                                format_bytes(tier.needed_bytes),
                                                tier.tier,
                                                set,
                                                format_bytes(tier.budget_bytes));
}

std::vector<LargeItem> largest_items(const Plan& plan, const std::vector<TierNeed>& tiers) {
  std::vector<LargeItem> items;
  for (const TierNeed& tier : tiers) {
    for (const MemoryRow& row : plan.memory) {
      const bool outside = row.purpose == "process" || row.purpose == "reserve";
      const std::uint64_t bytes = tier.tier == "host" ? row.host_bytes : row.device_bytes;
      if (tier.missing_bytes() > 0 && !outside && bytes > 0) {
        items.push_back({.purpose = row.purpose, .tier = tier.tier, .bytes = bytes});
      }
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const LargeItem& a, const LargeItem& b) {
    return a.bytes > b.bytes;
  });
  items.resize(std::min(items.size(), kLargestShown));
  return items;
}

}  // namespace

std::string WayOut::line() const {
  std::string text;
  for (const std::string& set : sets) {
    text += (text.empty() ? "--set " : " --set ") + set;
  }
  return text;
}

bool fits_at_least(const ModelSpec& model, const PlanSettings& settings) {
  const std::vector<Plan> plans = leanest(model, settings);
  return std::any_of(plans.begin(), plans.end(), [&](const Plan& plan) {
    return missing(need_of(plan), settings) == 0;
  });
}

Refusal refuse(const ModelSpec& model,
               const PlanSettings& settings,
               const std::vector<Change>& changes) {
  Refusal refusal;
  const std::vector<Plan> plans = leanest(model, settings);
  const Plan& nearest =
      *std::min_element(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) {
        return missing(need_of(a), settings) < missing(need_of(b), settings);
      });
  refusal.tiers.push_back({.tier = "host",
                           .needed_bytes = nearest.host_arena_bytes,
                           .budget_bytes = settings.host_memory_bytes});
  if (settings.separate_device) {
    refusal.tiers.push_back({.tier = "device",
                             .needed_bytes = nearest.device_arena_bytes,
                             .budget_bytes = device_budget(settings)});
  }
  refusal.largest = largest_items(nearest, refusal.tiers);
  if (missing(need_of(nearest), settings) > 0) {
    Finder(model, settings, changes).find(refusal);
  }
  return refusal;
}

Error refusal_error(const Refusal& refusal) {
  std::string why;
  for (const TierNeed& tier : refusal.tiers) {
    why += (why.empty() ? "the smallest plan needs " : "; ") + need_text(tier);
  }
  std::string items;
  for (const LargeItem& item : refusal.largest) {
    const std::string where = refusal.tiers.size() > 1 ? " (" + item.tier + ")" : "";
    items += fmt::format(
        "{}{} {}{}", items.empty() ? "" : ", ", item.purpose, format_bytes(item.bytes), where);
  }
  if (!items.empty()) {
    why += "\n        the largest items: " + items;
  }
  std::string hint = fmt::format(
      "no change of settings makes it fit (with all of them it needs {}, and {} can be had): use a "
      "smaller model, or a machine with more memory",
      format_bytes(refusal.least_bytes),
      format_bytes(refusal.machine_bytes));
  if (!refusal.ways.empty()) {
    hint = refusal.ways.size() == 1 ? "this makes it fit:" : "each of these lines makes it fit:";
    for (const WayOut& way : refusal.ways) {
      hint += "\n        " + way.line() + (way.changes_numbers ? "  (changes the numbers)" : "");
    }
  }
  return does_not_fit_error("the run does not fit")
      .with_why(std::move(why))
      .with_hint(std::move(hint));
}

Json refusal_to_json(const Refusal& refusal) {
  Json json = Json::object();
  json.set("schema", 1);
  json.set("fits", false);
  Json tiers = Json::array(), largest = Json::array(), ways = Json::array();
  for (const TierNeed& tier : refusal.tiers) {
    Json entry = Json::object();
    entry.set("tier", tier.tier);
    entry.set("needed_bytes", tier.needed_bytes);
    entry.set("budget_bytes", tier.budget_bytes);
    entry.set("missing_bytes", tier.missing_bytes());
    tiers.push_back(std::move(entry));
  }
  for (const LargeItem& item : refusal.largest) {
    Json entry = Json::object();
    entry.set("purpose", item.purpose);
    entry.set("tier", item.tier);
    entry.set("bytes", item.bytes);
    largest.push_back(std::move(entry));
  }
  for (const WayOut& way : refusal.ways) {
    Json entry = Json::object(), sets = Json::array();
    for (const std::string& set : way.sets) {
      sets.push_back(set);
    }
    entry.set("sets", std::move(sets));
    entry.set("line", way.line());
    entry.set("changes_numbers", way.changes_numbers);
    ways.push_back(std::move(entry));
  }
  json.set("tiers", std::move(tiers));
  json.set("largest", std::move(largest));
  json.set("ways", std::move(ways));
  return json;
}

}  // namespace headrace::plan
