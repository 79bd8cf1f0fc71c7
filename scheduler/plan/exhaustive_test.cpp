// Small models: every residency tried by loops of the test's own, and runs that go on.
#include "scheduler/plan/exhaustive.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "scheduler/plan/demand.hpp"
#include "scheduler/plan/random_case.hpp"
#include "scheduler/plan/residency_set.hpp"
#include "scheduler/plan/search.hpp"
#include "scheduler/plan/simulate.hpp"
#include "scheduler/plan/step_bound.hpp"
#include "scheduler/plan/test_model.hpp"
#include "scheduler/plan/test_support.hpp"

namespace headrace::plan {
namespace {

struct Tried {
  double seconds = 0, bytes = 0;
};

// A steady step of a candidate whose memory is laid out.
Tried step_of(const RandomCase& one, Candidate& candidate) {
  build_steady(
      one.model, one.settings, one.machine, candidate.choices, candidate.layout, candidate.plan);
  Tried tried;
  for (const Program* program : steady_programs(one.settings, candidate.plan)) {
    tried.seconds +=
        simulate(*program, contention_of(one.machine, one.settings)).prediction.seconds;
    for (const Instruction& instruction : program->instructions) {
      tried.bytes +=
          instruction.queue == QueueKind::kNvme ? static_cast<double>(instruction.link_bytes) : 0.0;
    }
  }
  return tried;
}

// All that a unit may be, from what the settings mean.
std::vector<UnitChoice> all_of_a_unit(const PlanSettings& settings) {
  std::vector<UnitChoice> all;
  for (int bits = 0; bits < 8; ++bits) {
    const bool pinned = (bits & 1) != 0, master = (bits & 2) != 0, state = (bits & 4) != 0;
    UnitChoice unit;
    unit.pinned = pinned;
    unit.master_in_memory = master;
    unit.state_home = state ? Home::kHost : Home::kNvme;
    if (settings.place && *settings.place != Home::kNvme) {
      // What is at home on the device has its weights there.
      if (!master || !state ||
          (!pinned && *settings.place == Home::kDevice &&
           (settings.separate_device || settings.format.decoded))) {
        continue;
      }
      unit.state_home = *settings.place;
    } else if (settings.place) {
      if (state || (settings.format.decoded && master)) {
        continue;
      }
      unit.write_through = master;
    } else if (settings.format.decoded && master != state) {
      continue;
    }
    // Without a device of its own only decoded weights have a second place.
    if (pinned && !settings.separate_device && !(settings.format.decoded && master)) {
      continue;
    }
    all.push_back(unit);
  }
  return all;
}

// Calls each(choices) for every residency of every order of work, with few slots.
template <class Each>
void for_every_choice(const RandomCase& one, const Each& each) {
  const std::vector<UnitChoice> options = all_of_a_unit(one.settings);
  const std::size_t units = one.model.units.size();
  for (Choices choices : enumerate(one.model, one.settings)) {
    const int most = choices.kept_blocks;
    for (choices.kept_blocks = 0; choices.kept_blocks <= most; ++choices.kept_blocks) {
      std::vector<std::size_t> digits(units, 0);
      for (bool more = true; more;) {
        for (std::size_t u = 0; u < units; ++u) {
          choices.units[u] = options[digits[u]];
        }
        each(choices);
        more = false;
        for (std::size_t u = 0; u < units && !more; ++u) {
          digits[u] = (digits[u] + 1) % options.size();
          more = digits[u] != 0;
        }
      }
    }
  }
}

// What is speculated is searched. It takes the memory of what is held.
RandomCase looked_at_case(std::mt19937_64& random, int blocks_max) {
  RandomCase one = random_case(random, blocks_max);
  if (one.settings.update == Update::kSpeculative) {
    one.settings.update = Update::kHeld;
  }
  return one;
}

double tile_bytes(const Plan& plan) {
  std::size_t largest = 0;
  for (const UnitPlan& unit : plan.units) {
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      largest = std::max(largest, unit.param[t].bytes + unit.state_of[t].bytes);
    }
  }
  return 2 * static_cast<double>(largest);  // read and written
}

// Of all that fits, what moves the fewest bytes moves at most a tile less than the plan; or the
// plan moves more because that is predicted faster than anything that moves fewer.
TEST(Exhaustive, APlanMovesTheFewestBytesOrIsFasterThanWhatMovesFewer) {
  const std::uint64_t first = test_seed();
  int planned = 0, fewest = 0;
  for (int i = 0; i < 120 / kPart && !HasFailure(); ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    const RandomCase one = looked_at_case(random, random() % 2 == 0 ? 2 : 1);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed) + ": " + describe(one));
    const auto plan = make_plan(one.model, one.settings, one.machine);
    constexpr std::size_t kUnitsMax = 3;
    if (!plan || (one.settings.separate_device && one.model.units.size() > kUnitsMax)) {
      continue;
    }
    ASSERT_TRUE(searched_exhaustively(one.model, one.settings));
    const Prediction& steady = *find_prediction(*plan, "steady");
    double bytes = 0;
    for (const char* link : {"nvme_read", "nvme_write"}) {
      const auto found = steady.link_bytes.find(link);
      bytes += found == steady.link_bytes.end() ? 0.0 : static_cast<double>(found->second);
    }
    double least_bytes = bytes, least_seconds_of_fewer = 1e300;
    for_every_choice(one, [&](const Choices& choices) {
      Candidate candidate = lay_out_candidate(one.model, one.settings, choices);
      if (fits(candidate.plan, one.settings)) {
        const Tried tried = step_of(one, candidate);
        least_bytes = std::min(least_bytes, tried.bytes);
        if (tried.bytes < bytes) {
          least_seconds_of_fewer = std::min(least_seconds_of_fewer, tried.seconds);
        }
      }
    });
    ++planned;
    if (bytes <= least_bytes + tile_bytes(*plan)) {
      ++fewest;
    } else {
      EXPECT_LE(steady.seconds, least_seconds_of_fewer * (1 + 1e-9));
    }
  }
  if (kPart == 1 && !HasFailure()) {
    EXPECT_GT(planned, 25);
    EXPECT_GT(fewest, planned / 2);
  }
}

// What is told of a residency without laying it out: its memory to the byte, and no more time than
// it takes.
TEST(Exhaustive, MemoryOfUnitsAddsUpAndNoStepIsFasterThanItsBound) {
  const std::uint64_t first = test_seed();
  for (int i = 0; i < 300 / kPart && !HasFailure(); ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    const RandomCase one = looked_at_case(random, 4);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed) + ": " + describe(one));
    const StepBound bound(one.model, one.settings, one.machine);
    const std::vector<UnitChoice> options = unit_choices(one.model, one.settings);
    std::vector<Choices> all = enumerate(one.model, one.settings);
    Choices choices = all[random() % all.size()];
    const Demands demands = unit_demands(one.model, one.settings, one.machine, choices, options);
    choices.staging_slots += static_cast<int>(random() % 8);
    const Frame frame = frame_of(one.model, one.settings, choices, options, demands);
    for (int draw = 0; draw < 4; ++draw) {
      Demand demand;
      for (std::size_t u = 0; u < one.model.units.size(); ++u) {
        const std::size_t option = random() % options.size();
        choices.units[u] = options[option];
        demand = u == 0 ? demands[u][option] : together(demand, demands[u][option]);
      }
      Candidate candidate = lay_out_candidate(one.model, one.settings, choices);
      const TierBytes arenas = frame.arenas(demand);
      EXPECT_EQ(arenas[0], static_cast<std::int64_t>(candidate.plan.host_arena_bytes));
      EXPECT_EQ(arenas[1], static_cast<std::int64_t>(candidate.plan.device_arena_bytes));
      const Tried tried = step_of(one, candidate);
      EXPECT_LE(bound.seconds(bound.spared(frame, {{.options = {}, .demand = demand}}), demand),
                tried.seconds * (1 + 1e-9));
      EXPECT_LE(demand.asked[kNvmeBytes], tried.bytes);
    }
  }
}

// What a run that goes on must find again: its store has the tiles of the plan that it began with.
std::string summary_of(const Plan& plan) {
  std::string text = "groups of " + std::to_string(plan.group_size) + " lookahead " +
                     std::to_string(plan.lookahead) + " kept " + std::to_string(plan.kept_blocks) +
                     " slots " + std::to_string(plan.staging_slots) + " offloaded " +
                     std::to_string(static_cast<int>(plan.offload_inputs)) + " arenas " +
                     std::to_string(plan.host_arena_bytes) + " " +
                     std::to_string(plan.device_arena_bytes);
  for (const UnitPlan& unit : plan.units) {
    text += std::string(" ") + home_name(unit.home) + (unit.master >= 0 ? " master" : "") +
            (unit.pinned ? " pinned" : "");
  }
  return text;
}

bool found_again(RandomCase one) {
  one.settings.tile_elements.reset();
  const auto plan = make_plan(one.model, one.settings, one.machine);
  if (!plan) {
    return true;
  }
  one.settings.tile_elements = plan->tile_elements;
  const auto again = make_plan(one.model, one.settings, one.machine);
  return again && summary_of(*again) == summary_of(*plan);
}

TEST(Exhaustive, ARunThatGoesOnFindsThePlanThatItHad) {
  const std::uint64_t first = test_seed();
  for (int i = 0; i < 150 / kPart && !HasFailure(); ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    const RandomCase one = looked_at_case(random, 4);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed) + ": " + describe(one));
    if (searched_exhaustively(one.model, one.settings)) {
      EXPECT_TRUE(found_again(one));
    }
  }
}

// The same of models that are searched, not enumerated.
TEST(Search, ARunThatGoesOnFindsThePlanThatItHad) {
  const std::uint64_t first = test_seed();
  int others = 0;
  for (int i = 0; i < 24 / kPart && !HasFailure(); ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    RandomCase one = random_case(random, 1);
    const int blocks = 10 + static_cast<int>(random() % 15);
    one.model =
        make_model(256, blocks, 3000, random() % 2 == 0, 1 + static_cast<int>(random() % 2));
    const Plan least = smallest(one.model, one.settings);
    one.settings = ample(one.settings);
    one.settings.host_memory_bytes =
        least.host_arena_bytes + random() % (2 * least.host_arena_bytes);
    one.settings.device_memory_bytes =
        least.device_arena_bytes + random() % (2 * least.device_arena_bytes + 1);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed) + ": " + describe(one));
    others += found_again(one) ? 0 : 1;
  }
  EXPECT_LE(others, 3) << "the search is no proof";
}

// What is said to be missing is what is missing.
TEST(Exhaustive, TheSmallestPlanIsTheSmallestOfAll) {
  const std::uint64_t first = test_seed();
  for (int i = 0; i < 60 / kPart && !HasFailure(); ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    const RandomCase one = random_case(random, 1);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed) + ": " + describe(one));
    std::size_t least = ~std::size_t{0};
    for_every_choice(one, [&](const Choices& choices) {
      const Plan plan = lay_out_candidate(one.model, one.settings, choices).plan;
      least = std::min(least, plan.host_arena_bytes + plan.device_arena_bytes);
    });
    const Plan smallest_plan = smallest(one.model, one.settings);
    EXPECT_EQ(smallest_plan.host_arena_bytes + smallest_plan.device_arena_bytes, least);
  }
}

}  // namespace
}  // namespace headrace::plan
