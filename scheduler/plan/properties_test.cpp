// What holds of every plan, over random models, budgets and machines: budgets, contents, waits,
// bounds, and that more memory does not hurt. HEADRACE_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "scheduler/plan/bound.hpp"
#include "scheduler/plan/exhaustive.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/program_checker.hpp"
#include "scheduler/plan/random_case.hpp"
#include "scheduler/plan/search.hpp"
#include "scheduler/plan/test_support.hpp"

namespace headrace::plan {
namespace {

// Each case from a seed of its own, so that one that fails can be run alone: HEADRACE_SEED gives
// the first of them.
template <class Check>
void for_each_case(int count, int blocks_max, Check check) {
  const std::uint64_t first = test_seed();
  for (int i = 0; i < count / kPart && !::testing::Test::HasFailure(); ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    const RandomCase one = random_case(random, blocks_max);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed) + ": " + describe(one));
    check(one, random);
  }
}

std::size_t device_budget(const PlanSettings& settings) {
  return settings.device_memory_bytes.value_or(settings.device_available_bytes);
}

// Runs the checker through a life: steps, a skipped one, drains and evaluations in between.
std::string live(ProgramChecker& checker, const Plan& plan, std::mt19937_64& random) {
  const bool held = plan.update != Update::kAfterBackward;
  const bool may_speculate = plan.update == Update::kSpeculative;
  std::string wrong;
  for (int step = 0; step < (may_speculate ? 8 : 5) && wrong.empty(); ++step) {
    const bool speculates =
        may_speculate && checker.pending() && (checker.rest_pending() || random() % 2 == 0);
    wrong = checker.compute(speculates);
    const bool skips = random() % 5 == 0;
    if (wrong.empty() && speculates) {
      checker.settle(!skips && random() % 3 != 0);
    }
    if (wrong.empty() && skips) {
      checker.skip();
    }
    const bool drains = checker.pending() && (!held || random() % 3 == 0);
    if (wrong.empty() && drains) {
      wrong = checker.drain();
    }
    if (wrong.empty() && !checker.pending() && random() % 2 == 0) {
      wrong = checker.evaluate();
    }
  }
  return wrong;
}

TEST(Properties, PeaksStayWithinBudgetsAndWhatFitsIsPlanned) {
  int planned = 0, refused = 0;
  for_each_case(900, 4, [&](const RandomCase& one, std::mt19937_64&) {
    const PlanSettings& settings = one.settings;
    const auto plan = make_plan(one.model, settings, one.machine);
    const bool smallest_fits = fits(smallest(one.model, settings), settings);
    if (!plan) {
      ++refused;
      EXPECT_FALSE(smallest_fits) << "refused, although the smallest plan fits";
      EXPECT_EQ(plan.error().code, ExitCode::kDoesNotFit);
      return;
    }
    ++planned;
    if (!settings.separate_device) {  // with two budgets the smallest in sum is not alone
      EXPECT_TRUE(smallest_fits) << "planned, although nothing should fit";
    }
    EXPECT_LE(plan->host_arena_bytes, settings.host_memory_bytes);
    EXPECT_LE(plan->device_arena_bytes, settings.separate_device ? device_budget(settings) : 0);
    EXPECT_LE(plan->host_arena_bytes, plan->host_peak_bytes);
    EXPECT_LE(plan->device_arena_bytes, plan->device_peak_bytes);
  });
  if (kPart == 1 && !HasFailure()) {
    EXPECT_GT(planned, 400);
    EXPECT_GT(refused, 50);
  }
}

// Recomputing is dear, the drive fast, and of the memory for everything some activations lack
// theirs, while nothing else gives way.
void make_spilling_pay(RandomCase& one, std::mt19937_64& random) {
  one.machine.gemm_fp32_flops_per_s = 1e8;
  one.machine.nvme_read_bytes_per_s = one.machine.nvme_write_bytes_per_s = 1e11;
  one.machine.nvme_mixed_bytes_per_s = 0;
  PlanSettings& settings = one.settings;
  settings.place = settings.separate_device ? Home::kDevice : Home::kHost;
  const auto all = make_plan(one.model, ample(settings), one.machine);
  ASSERT_TRUE(all);
  double saved = 0;
  for (const Buffer& buffer : all->buffers) {
    saved += buffer.name.starts_with("saved.") ? static_cast<double>(buffer.bytes) : 0;
  }
  const auto lacking = static_cast<std::size_t>(0.6 * uniform(random) * saved);
  settings.host_memory_bytes = all->host_arena_bytes;
  if (settings.separate_device) {
    settings.host_memory_bytes += lacking;  // where they wait
    settings.device_memory_bytes = all->device_arena_bytes - lacking;
  } else {
    settings.host_memory_bytes -= lacking;
  }
}

TEST(Properties, EveryAccessFindsItsDataInAnyOrderThatWaitsAllow) {
  int planned = 0, spilling = 0;
  for_each_case(450, 6, [&](RandomCase one, std::mt19937_64& random) {
    if (random() % 3 == 0) {
      make_spilling_pay(one, random);
    }
    const auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan) {
      return;
    }
    ++planned;
    spilling += plan->spilled_blocks > 0 ? 1 : 0;
    if (!plan->spilled.empty() && one.settings.nvme_room_bytes) {
      EXPECT_LE(plan->nvme_bytes, *one.settings.nvme_room_bytes);
    }
    for (const Program* program : programs_of(*plan)) {
      for (std::size_t i = 0; i < program->instructions.size(); ++i) {
        for (const int wait : program->instructions[i].waits) {
          ASSERT_LT(wait, static_cast<int>(i)) << program->name;
          ASSERT_GE(wait, 0) << program->name;
        }
      }
    }
    ProgramChecker checker(one.model, *plan, random);
    EXPECT_EQ(live(checker, *plan, random), "");
  });
  if (kPart == 1) {
    EXPECT_GT(planned, 200);
    EXPECT_GT(spilling, 10) << planned;
    std::cout << spilling << " of " << planned << " spill\n";
  }
}

// The checker sees what is wrong: of the waits that programs have, one is left out.
TEST(Properties, TheCheckerFindsAWaitThatIsLeftOut) {
  int found = 0, tried = 0;
  for_each_case(300, 3, [&](const RandomCase& one, std::mt19937_64& random) {
    auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan) {
      return;
    }
    Program& program = plan->update == Update::kAfterBackward || random() % 4 == 0 ? plan->compute
                       : plan->update == Update::kHeld || random() % 2 == 0
                           ? plan->compute_held
                           : plan->compute_rest_speculating;
    Instruction& instruction = program.instructions[random() % program.instructions.size()];
    if (instruction.waits.empty()) {
      return;
    }
    instruction.waits.pop_back();
    ++tried;
    ProgramChecker checker(one.model, *plan, random);
    found += live(checker, *plan, random).empty() ? 0 : 1;
  });
  // An order that does harm is drawn more often than not.
  if (kPart == 1) {
    EXPECT_GT(found * 4, tried);
  }
}

double bytes_of(const Prediction& prediction, const char* link) {
  const auto found = prediction.link_bytes.find(link);
  return found == prediction.link_bytes.end() ? 0.0 : static_cast<double>(found->second);
}

TEST(Properties, NoPlanBeatsTheBounds) {
  constexpr double kExact = 1 + 1e-9;
  double best = 0;
  for_each_case(900, 4, [&](const RandomCase& one, std::mt19937_64&) {
    const auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan) {
      return;
    }
    for (const Prediction& prediction : plan->predictions) {
      SCOPED_TRACE(prediction.variant);
      const Bound bound = bound_of(one.model, one.settings, one.machine, *plan, prediction.variant);
      EXPECT_LE(bound.placed.seconds.largest(), prediction.seconds * kExact)
          << bound.placed.seconds.limit();
      EXPECT_LE(bound.order_seconds, prediction.seconds * kExact);
      EXPECT_LE(bound.placed.bytes.nvme_read, bytes_of(prediction, "nvme_read"));
      EXPECT_LE(bound.placed.bytes.nvme_write,
                bytes_of(prediction, "nvme_write") + bytes_of(prediction, "commit"));
      EXPECT_LE(bound.placed.bytes.h2d, bytes_of(prediction, "h2d"));
      EXPECT_LE(bound.placed.bytes.d2h, bytes_of(prediction, "d2h"));
      EXPECT_EQ(prediction.bound_seconds, bound.placed.seconds.largest());
      EXPECT_EQ(prediction.order_bound_seconds, bound.order_seconds);
    }
    const Bound steady = bound_of(one.model, one.settings, one.machine, *plan);
    // Freedom never costs: what is bound by this residency is bound by any.
    EXPECT_LE(steady.budget.bytes.nvme_read, steady.placed.bytes.nvme_read * kExact);
    EXPECT_LE(steady.budget.bytes.nvme_write, steady.placed.bytes.nvme_write * kExact);
    EXPECT_LE(steady.budget.bytes.h2d, steady.placed.bytes.h2d * kExact);
    EXPECT_LE(steady.budget.bytes.d2h, steady.placed.bytes.d2h * kExact);
    EXPECT_LE(steady.resident_bytes, steady.state_bytes);
    best = std::max(best, steady.order_seconds / find_prediction(*plan, "steady")->seconds);
  });
  if (kPart == 1) {
    EXPECT_GT(best, 0.95) << "a bound that nothing comes near is no bound";
  }
}

double steady_seconds(const Plan& plan) {
  return find_prediction(plan, "steady")->seconds;
}

// The same with a little more, or much more, of one memory or of both.
PlanSettings with_more_memory(const PlanSettings& settings, std::mt19937_64& random) {
  PlanSettings more = settings;
  const auto raise = [&](std::size_t bytes) {
    const double factor = random() % 2 == 0 ? 0.02 : 0.5;
    return bytes + static_cast<std::size_t>(factor * uniform(random) * static_cast<double>(bytes));
  };
  const bool host = !settings.separate_device || random() % 3 != 0;
  if (host) {
    more.host_memory_bytes = raise(settings.host_memory_bytes);
  }
  if (settings.separate_device && (!host || random() % 2 == 0)) {
    more.device_memory_bytes = raise(device_budget(settings));
  }
  return more;
}

// Compares plans under two budgets. Small models are looked at wholly: there it holds without
// exception. Of the others, whose search is no proof and ignores gains below 1 %, few may be
// slower. What is written through to a store gives a drive that limits an order of work which more
// weights in memory can make worse: their searched times are not compared.
class Comparison {
 public:
  void compare(const RandomCase& one, const Plan& with_less, const Plan& with_more) {
    const double ratio = steady_seconds(with_more) / steady_seconds(with_less);
    if (searched_exhaustively(one.model, one.settings)) {
      EXPECT_LE(ratio, 1 + 1e-9);
      ++exact_;
    } else if (one.settings.place != Home::kNvme) {
      slower_ += ratio > kNoSlower ? 1 : 0;
      ++searched_;
    }
  }

  // Of all comparisons one in `one_in` may be slower.
  void expect(int least, int one_in) const {
    if (kPart == 1 && !::testing::Test::HasFailure()) {
      std::cerr << "compared: " << exact_ << " exactly, " << searched_ << " others, of which "
                << slower_ << " slower\n";
      EXPECT_GE(exact_ + searched_, least);
      EXPECT_LE(slower_, (exact_ + searched_) / one_in);
    }
  }

 private:
  static constexpr double kNoSlower = 1.02;

  int exact_ = 0, searched_ = 0, slower_ = 0;
};

void more_memory(int cases, int blocks_max, Comparison& comparison) {
  for_each_case(cases, blocks_max, [&](const RandomCase& one, std::mt19937_64& random) {
    const auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan) {
      return;
    }
    const PlanSettings more = with_more_memory(one.settings, random);
    const auto larger = make_plan(one.model, more, one.machine);
    ASSERT_TRUE(larger) << "more memory, and it does not fit";
    comparison.compare(one, *plan, *larger);
  });
}

TEST(Properties, MoreMemoryFitsAndIsPredictedNoSlower) {
  Comparison comparison;
  more_memory(600, 4, comparison);
  comparison.expect(150, 40);
}

TEST(Properties, MoreMemoryForManyUnitsIsRarelyPredictedSlower) {
  Comparison comparison;
  more_memory(60, 16, comparison);
  // About 2 % are: a sixteenth would fail by chance now and then.
  comparison.expect(20, 8);
}

PlanSettings with_its_own_peaks(const PlanSettings& settings, const Plan& plan) {
  PlanSettings exact = settings;
  exact.host_memory_bytes = plan.host_arena_bytes;
  exact.device_memory_bytes = plan.device_arena_bytes;
  return exact;
}

// Where weights are decoded, three kinds of slots can each be spared by another set of units, of
// which the search does not try all.
TEST(Properties, WhatAPlanTakesIsEnoughForIt) {
  Comparison comparison;
  for_each_case(600, 4, [&](const RandomCase& one, std::mt19937_64&) {
    const auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan) {
      return;
    }
    const auto again = make_plan(one.model, with_its_own_peaks(one.settings, *plan), one.machine);
    ASSERT_TRUE(again) << "its own peaks do not suffice";
    if (!one.settings.format.decoded || searched_exhaustively(one.model, one.settings)) {
      comparison.compare(one, *plan, *again);
    }
    if (searched_exhaustively(one.model, one.settings)) {
      comparison.compare(one, *again, *plan);
    }
  });
  comparison.expect(150, 40);
}

}  // namespace
}  // namespace headrace::plan
