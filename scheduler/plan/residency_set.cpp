// See residency_set.hpp. Units are added one after the other, and what another one beats is left
// out at once: it stays beaten, whatever is added.
#include "scheduler/plan/residency_set.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace headrace::plan {

bool alike(const UnitSpec& a, const UnitSpec& b) {
  return a.kind == UnitKind::kBlock && b.kind == UnitKind::kBlock &&
         a.cost.saved_bytes == b.cost.saved_bytes &&
         a.cost.forward.attention_forward_flops == b.cost.forward.attention_forward_flops &&
         same_layout(a, b);
}

namespace {

class Residencies {
 public:
  Residencies(const ModelSpec& model,
              const PlanSettings& settings,
              const Demands& demands,
              const std::vector<Frame>& frames)
      : model_(model), settings_(settings), demands_(demands), frames_(frames) {}

  [[nodiscard]] std::vector<Residency> make() {
    least_left_.assign(model_.units.size() + 1, {});
    for (std::size_t u = model_.units.size(); u-- > 0;) {
      for (std::size_t tier = 0; tier < kTiers; ++tier) {
        least_left_[u][tier] = least_left_[u + 1][tier] + least_bytes(demands_[u], tier);
      }
    }
    std::vector<Residency> all = {{}};
    for (std::size_t begin = 0, end = 0; begin < model_.units.size(); begin = end) {
      end = begin + 1;
      while (end < model_.units.size() && alike(model_.units[begin], model_.units[end])) {
        ++end;
      }
      all = joined(all, of_equals(begin, end));
    }
    return all;
  }

 private:
  static std::int64_t least_bytes(const std::vector<Demand>& demands, std::size_t tier) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Demand& demand : demands) {
      least = std::min(least, demand.bytes[tier]);
    }
    return least;
  }

  // Each unit's option is at most that of the one before it.
  [[nodiscard]] std::vector<Residency> of_equals(std::size_t begin, std::size_t end) {
    std::vector<Residency> all = {{}};
    for (std::size_t u = begin; u < end; ++u) {
      std::vector<Residency> longer;
      for (const Residency& one : all) {
        const std::size_t options =
            one.options.empty() ? demands_[u].size() : one.options.back() + std::size_t{1};
        for (std::size_t o = 0; o < options; ++o) {
          longer.push_back(
              {.options = one.options, .demand = together(one.demand, demands_[u][o])});
          longer.back().options.push_back(static_cast<std::uint8_t>(o));
        }
      }
      all = std::move(longer);
    }
    keep_best(all);
    return all;
  }

  [[nodiscard]] std::vector<Residency> joined(const std::vector<Residency>& first,
                                              const std::vector<Residency>& then) {
    std::vector<Residency> all;
    for (const Residency& a : first) {
      for (const Residency& b : then) {
        Residency one{.options = a.options, .demand = together(a.demand, b.demand)};
        one.options.insert(one.options.end(), b.options.begin(), b.options.end());
        if (may_fit(one)) {
          all.push_back(std::move(one));
        }
      }
    }
    keep_best(all);
    return all;
  }

  [[nodiscard]] bool may_fit(const Residency& residency) const {
    Demand least = residency.demand;
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      least.bytes[tier] += least_left_[residency.options.size()][tier];
    }
    return std::any_of(frames_.begin(), frames_.end(), [&](const Frame& frame) {
      return frame.fits(least, settings_);
    });
  }

  void keep_best(std::vector<Residency>& all) const {
    // What is as good as another comes after it.
    std::vector<std::pair<std::pair<std::int64_t, double>, std::size_t>> order;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Demand& demand = all[i].demand;
      const std::int64_t bytes = std::accumulate(
          demand.slot_bytes.begin(), demand.slot_bytes.end(), demand.bytes[0] + demand.bytes[1]);
      order.emplace_back(
          std::pair(bytes, std::accumulate(demand.asked.begin(), demand.asked.end(), 0.0)), i);
    }
    std::sort(order.begin(), order.end());
    std::vector<Residency> kept;
    for (const auto& [key, i] : order) {
      const bool spared = std::any_of(kept.begin(), kept.end(), [&](const Residency& other) {
        return other.demand.no_more_than(all[i].demand);
      });
      if (!spared) {
        kept.push_back(std::move(all[i]));
      }
    }
    all = std::move(kept);
  }

  const ModelSpec& model_;
  const PlanSettings& settings_;
  const Demands& demands_;
  const std::vector<Frame>& frames_;
  std::vector<TierBytes> least_left_;  // by unit: of those from it on
};

}  // namespace

std::vector<Residency> residencies_worth_a_look(const ModelSpec& model,
                                                const PlanSettings& settings,
                                                const Demands& demands,
                                                const std::vector<Frame>& frames) {
  return Residencies(model, settings, demands, frames).make();
}

}  // namespace headrace::plan
