// See filling.hpp.
#include "scheduler/plan/filling.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>

#include "scheduler/plan/search.hpp"

namespace headrace::plan {

namespace {

constexpr std::size_t kStagingSlotsMax = 256;

}  // namespace

Filling::Filling(const ModelSpec& model, const PlanSettings& settings, Choices& choices)
    : model_(model), settings_(settings), choices_(choices) {
  // Units of equal size are equally worth a byte; the vocabulary matrix of a tied head is read
  // by the lookup and twice by the head, so it comes first; a lookup alone is read once, last.
  order_.resize(model.units.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (!model.tied) {
    std::rotate(order_.begin(), order_.begin() + 1, order_.end());
  }
}

void Filling::run(const FillingOrder& order) {
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

void Filling::deepen_staging(double share) {
  std::size_t streamed = 0;  // tiles whose state lives on NVMe
  for (std::size_t u = 0; u < choices_.units.size(); ++u) {
    if (choices_.units[u].state_home == Home::kNvme) {
      streamed += (*choices_.tiles)[u].size();
    }
  }
  const auto wanted = static_cast<std::size_t>(share * static_cast<double>(streamed));
  raise(&Choices::staging_slots, static_cast<int>(std::min(wanted, kStagingSlotsMax)));
}

bool Filling::keep_activations() {
  const int before = choices_.kept_blocks;
  raise(&Choices::kept_blocks, static_cast<int>(choices_.units.size()) - 2);
  return choices_.kept_blocks > before;
}

// To the largest count up to `most` that fits; the present one does. Memory grows evenly with it
// but for what is shared and rounded, so few layouts find it.
void Filling::raise(int Choices::*count, int most) {
  int fitting = choices_.*count;
  if (most <= fitting) {
    return;
  }
  const Plan lower = laid_out();
  choices_.*count = most;
  const Plan upper = laid_out();
  if (fits(upper, settings_)) {
    return;
  }
  double share = 1;  // of the way to `most`
  const auto limit = [&](std::size_t lower_bytes, std::size_t upper_bytes, std::size_t budget) {
    if (upper_bytes > std::max(lower_bytes, budget)) {
      const auto room = static_cast<double>(budget - std::min(budget, lower_bytes));
      share = std::min(share, room / static_cast<double>(upper_bytes - lower_bytes));
    }
  };
  limit(lower.host_arena_bytes, upper.host_arena_bytes, settings_.host_memory_bytes);
  if (settings_.separate_device) {
    limit(lower.device_arena_bytes,
          upper.device_arena_bytes,
          settings_.device_memory_bytes.value_or(settings_.device_available_bytes));
  }
  int too_many = most;
  int probe = fitting + static_cast<int>(share * (most - fitting));
  constexpr int kNeighbours = 3;  // of the guess, before the rest is halved
  for (int round = 0; fitting + 1 < too_many; ++round) {
    probe = std::clamp(probe, fitting + 1, too_many - 1);
    choices_.*count = probe;
    const bool fit = fits_now();
    (fit ? fitting : too_many) = probe;
    probe = round < kNeighbours ? probe + (fit ? 1 : -1) : (fitting + too_many) / 2;
  }
  choices_.*count = fitting;
}

void Filling::empty(bool state_first) {
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

Plan Filling::laid_out() const {
  return lay_out_candidate(model_, settings_, choices_).plan;
}

bool Filling::fits_now() const {
  return fits(laid_out(), settings_);
}

// Runs of equal units in order, in each as many as fit.
void Filling::turn_on(const UnitChange& change) {
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

void Filling::turn_on_run(const UnitChange& change, std::size_t begin, std::size_t end) {
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
void Filling::turn_on_best(const UnitChange& change) {
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

}  // namespace headrace::plan
