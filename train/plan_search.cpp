#include "train/plan_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "core/quantity.hpp"
#include "scheduler/exec/state_format.hpp"
#include "scheduler/plan/refusal.hpp"
#include "scheduler/plan/report.hpp"

namespace headrace::train {
namespace {

constexpr std::int64_t kAccumulateMax = 4096;  // that batch.accumulate takes
constexpr std::size_t kSplitsMax = 6;          // of a step into micro-batches

// A run with some settings changed.
struct Variant {
  RunConfig config;
  std::vector<std::string> sets;
  bool changes_numbers = false;
};

// What is left to the planner where the run does not force it.
Variant freed(const PlanInputs& inputs) {
  Variant variant{.config = inputs.config, .sets = {}};
  RunConfig& config = variant.config;
  const auto leave_open = [&](auto& setting, const char* key) {
    if (setting) {
      setting.reset();
      variant.sets.push_back(fmt::format("{}=\"auto\"", key));
    }
  };
  leave_open(config.batch.traversal, "batch.traversal");
  leave_open(config.optim.update, "optim.update");
  leave_open(config.tiers.place, "tiers.place");
  leave_open(config.tiers.lookahead, "tiers.lookahead");
  leave_open(config.tiers.tile_elements, "tiers.tile");
  return variant;
}

void set_batch(std::int64_t micro_batch, std::int64_t accumulate, Variant& variant) {
  BatchSection& batch = variant.config.batch;
  const auto set = [&](std::int64_t& value, std::int64_t wanted, const char* key) {
    if (value != wanted) {
      value = wanted;
      variant.sets.push_back(fmt::format("{}={}", key, wanted));
      variant.changes_numbers = true;
    }
  };
  set(batch.micro_batch, micro_batch, "batch.micro_batch");
  set(batch.accumulate, accumulate, "batch.accumulate");
}

void set_state(const std::string& state, Variant& variant) {
  if (variant.config.optim.state != state) {
    variant.config.optim.state = state;
    variant.sets.push_back(fmt::format("optim.state=\"{}\"", state));
    variant.changes_numbers = true;
  }
}

// Micro-batches that divide the sequences of a step, ascending; at most kSplitsMax, the run's own
// among them where it does.
std::vector<std::int64_t> splits_of(std::int64_t sequences, std::int64_t own) {
  std::vector<std::int64_t> all;
  for (std::int64_t micro = 1; micro <= sequences; ++micro) {
    if (sequences % micro == 0 && sequences / micro <= kAccumulateMax) {
      all.push_back(micro);
    }
  }
  if (all.size() <= kSplitsMax) {
    return all;
  }
  std::vector<std::int64_t> some;
  for (std::size_t i = 0; i < kSplitsMax; ++i) {
    some.push_back(all[i * (all.size() - 1) / (kSplitsMax - 1)]);
  }
  if (std::find(all.begin(), all.end(), own) != all.end() &&
      std::find(some.begin(), some.end(), own) == some.end()) {
    // In the place of its neighbour.
    *std::min_element(some.begin(), some.end(), [&](std::int64_t a, std::int64_t b) {
      return std::abs(a - own) < std::abs(b - own);
    }) = own;
  }
  return some;
}

class Searcher {
 public:
  explicit Searcher(const PlanInputs& inputs) : inputs_(inputs) {}

  // The speed; 0: it does not fit. The same settings are planned once.
  Result<double> attempt(const Variant& variant) {
    const auto known = speeds_.find(variant.sets);
    if (known != speeds_.end()) {
      return known->second;
    }
    HEADRACE_ASSIGN(const double speed, plan_variant(variant));
    speeds_[variant.sets] = speed;
    return speed;
  }

  PlanSearch take() {
    std::stable_sort(search_.ranked.begin(),
                     search_.ranked.end(),
                     [](const SearchCandidate& a, const SearchCandidate& b) {
                       return a.step.tokens_per_s > b.step.tokens_per_s;
                     });
    return std::move(search_);
  }

 private:
  Result<double> plan_variant(const Variant& variant) {
    ++search_.tried;
    const Result<plan::ModelSpec> spec = make_run_spec(variant.config, inputs_.architecture);
    if (!spec) {
      ++search_.too_large;
      return 0.0;
    }
    HEADRACE_ASSIGN(const plan::PlanSettings settings,
                    make_plan_settings(variant.config, inputs_.request));
    if (!plan::fits_at_least(*spec, settings)) {
      ++search_.too_large;
      return 0.0;
    }
    Result<Planned> planned =
        make_planned(variant.config, inputs_.architecture, inputs_.machine, inputs_.request);
    if (!planned) {
      if (planned.error().code != ExitCode::kDoesNotFit) {
        return std::move(planned).error();
      }
      ++search_.too_large;
      return 0.0;
    }
    add(variant, *planned);
    return search_.ranked.back().step.tokens_per_s;
  }

  void add(const Variant& variant, const Planned& planned) {
    const plan::Plan& plan = planned.plan;
    SearchCandidate candidate;
    candidate.sets = variant.sets;
    candidate.changes_numbers = variant.changes_numbers;
    candidate.micro_batch = variant.config.batch.micro_batch;
    candidate.accumulate = variant.config.batch.accumulate;
    candidate.state = variant.config.optim.state;
    candidate.group_size = plan.group_size;
    candidate.kept_blocks = plan.kept_blocks;
    candidate.spilled_blocks = plan.spilled_blocks;
    candidate.host_bytes = plan.host_arena_bytes;
    candidate.device_bytes = plan.device_arena_bytes;
    candidate.units = static_cast<int>(plan.units.size());
    candidate.units_on_nvme =
        static_cast<int>(std::count_if(plan.units.begin(), plan.units.end(), [](const auto& unit) {
          return unit.home == plan::Home::kNvme;
        }));
    candidate.step = plan::summarize(planned.spec, plan);
    search_.ranked.push_back(std::move(candidate));
  }

  const PlanInputs& inputs_;
  PlanSearch search_;
  std::map<std::vector<std::string>, double> speeds_;  // by sets
};

Result<std::int64_t> sequences_of(const PlanInputs& inputs,
                                  std::optional<std::int64_t> tokens_per_step) {
  const BatchSection& batch = inputs.config.batch;
  if (!tokens_per_step) {
    return batch.micro_batch * batch.accumulate;
  }
  if (inputs.request.stored_tile_elements) {
    return usage_error("--tokens-per-step: the run is under way, and keeps its numbers")
        .with_hint("leave it out: placement is searched");
  }
  constexpr std::int64_t kSequencesMax = 1'000'000;
  const std::int64_t sequences = *tokens_per_step / batch.seq_len;
  if (*tokens_per_step % batch.seq_len != 0 || sequences < 1 || sequences > kSequencesMax) {
    return usage_error(fmt::format("--tokens-per-step: {} is not 1 to {} sequences of {} tokens",
                                   *tokens_per_step,
                                   kSequencesMax,
                                   batch.seq_len))
        .with_hint(fmt::format("a multiple of batch.seq_len: --tokens-per-step {}",
                               std::max<std::int64_t>(1, sequences) * batch.seq_len));
  }
  return sequences;
}

// Splits of the step in the run's own format; then the other formats with the split that was
// fastest, or with the least memory where none fits.
Status search_batches(const Variant& base, std::int64_t sequences, Searcher& searcher) {
  const BatchSection own = base.config.batch;
  std::int64_t best_micro = 1;
  double best_speed = 0;
  for (const std::int64_t micro : splits_of(sequences, own.micro_batch)) {
    Variant variant = base;
    set_batch(micro, sequences / micro, variant);
    HEADRACE_ASSIGN(const double speed, searcher.attempt(variant));
    if (speed > best_speed) {
      best_micro = micro;
      best_speed = speed;
    }
  }
  for (const plan::StateFormat& format : exec::state_formats()) {
    if (format.name == base.config.optim.state) {
      continue;
    }
    Variant variant = base;
    set_batch(best_micro, sequences / best_micro, variant);
    set_state(format.name, variant);
    HEADRACE_ASSIGN(const double speed, searcher.attempt(variant));
    static_cast<void>(speed);
  }
  return {};
}

std::string line_of(const SearchCandidate& candidate) {
  const plan::WayOut way{.sets = candidate.sets};
  return candidate.sets.empty() ? "the run as it is" : way.line();
}

}  // namespace

const SearchCandidate* PlanSearch::best_of_same_numbers() const {
  const auto found =
      std::find_if(ranked.begin(), ranked.end(), [](const SearchCandidate& candidate) {
        return !candidate.changes_numbers;
      });
  return found == ranked.end() ? nullptr : &*found;
}

Result<PlanSearch> search_plans(const PlanInputs& inputs,
                                std::optional<std::int64_t> tokens_per_step) {
  HEADRACE_ASSIGN(const std::int64_t sequences, sequences_of(inputs, tokens_per_step));
  Searcher searcher(inputs);
  const Variant as_set{.config = inputs.config, .sets = {}};
  HEADRACE_ASSIGN(const double speed, searcher.attempt(as_set));
  static_cast<void>(speed);
  Variant base = freed(inputs);
  const bool under_way = inputs.request.stored_tile_elements.has_value();
  if (under_way) {  // the store keeps its tiles
    base.config.tiers.tile_elements = inputs.config.tiers.tile_elements;
    std::erase_if(base.sets, [](const std::string& set) { return set.starts_with("tiers.tile="); });
  }
  HEADRACE_ASSIGN(const double freed_speed, searcher.attempt(base));
  static_cast<void>(freed_speed);
  if (!under_way) {
    HEADRACE_TRY(search_batches(base, sequences, searcher));
  }
  PlanSearch search = searcher.take();
  if (search.ranked.empty()) {
    Result<Planned> as_it_is =
        make_planned(inputs.config, inputs.architecture, inputs.machine, inputs.request);
    HEADRACE_ASSERT(!as_it_is, "the run as it is was the first that did not fit");
    return std::move(as_it_is).error();
  }
  return search;
}

std::string format_search(const PlanSearch& search) {
  std::string text = fmt::format("{:>2} {:>9} {:>11} {:>11} {:>11} {:>8} {:>13}  {:<6}{:<13}{}\n",
                                 "",
                                 "tokens/s",
                                 "step",
                                 "host",
                                 "device",
                                 "on nvme",
                                 "batch",
                                 "state",
                                 "traversal",
                                 "numbers");
  int rank = 0;
  for (const SearchCandidate& one : search.ranked) {
    text += fmt::format("{:>2} {:>9} {:>11} {:>11} {:>11} {:>8} {:>13}  {:<6}{:<13}{}\n",
                        ++rank,
                        format_count(one.step.tokens_per_s),
                        format_duration(one.step.seconds),
                        format_bytes(one.host_bytes),
                        one.device_bytes > 0 ? format_bytes(one.device_bytes) : "-",
                        fmt::format("{}/{}", one.units_on_nvme, one.units),
                        fmt::format("{} x {}", one.micro_batch, one.accumulate),
                        one.state,
                        plan::traversal_name(one.group_size, one.accumulate),
                        one.sets.empty()      ? "as set"
                        : one.changes_numbers ? "others"
                                              : "the same");
  }
  text += "\n";
  // Not broken into lines: to be copied.
  text += fmt::format("best         {}\n", line_of(search.ranked.front()));
  const SearchCandidate* same = search.best_of_same_numbers();
  if (same != nullptr && same != &search.ranked.front()) {
    text += fmt::format("same numbers {}\n", line_of(*same));
  }
  plan::add_line(text,
                 "note",
                 fmt::format("{} tried, {} of them too large; batch: micro_batch x accumulate; on "
                             "nvme: units whose state is there. Another batch or state format "
                             "changes the numbers, placement and traversal do not",
                             search.tried,
                             search.too_large));
  return text;
}

Json search_to_json(const PlanSearch& search) {
  Json json = Json::object(), candidates = Json::array();
  for (const SearchCandidate& one : search.ranked) {
    Json entry = Json::object(), sets = Json::array();
    for (const std::string& set : one.sets) {
      sets.push_back(set);
    }
    entry.set("sets", std::move(sets));
    entry.set("changes_numbers", one.changes_numbers);
    entry.set("micro_batch", one.micro_batch);
    entry.set("accumulate", one.accumulate);
    entry.set("state", one.state);
    entry.set("traversal", plan::traversal_name(one.group_size, one.accumulate));
    entry.set("kept_blocks", one.kept_blocks);
    entry.set("spilled_blocks", one.spilled_blocks);
    entry.set("host_bytes", one.host_bytes);
    entry.set("device_bytes", one.device_bytes);
    entry.set("units", one.units);
    entry.set("units_on_nvme", one.units_on_nvme);
    entry.set("step", plan::summary_to_json(one.step));
    candidates.push_back(std::move(entry));
  }
  json.set("schema", 1);
  json.set("tried", search.tried);
  json.set("too_large", search.too_large);
  json.set("candidates", std::move(candidates));
  const SearchCandidate* same = search.best_of_same_numbers();
  json.set("best", line_of(search.ranked.front()));
  json.set("best_of_same_numbers", same == nullptr ? Json() : Json(line_of(*same)));
  return json;
}

}  // namespace headrace::train
