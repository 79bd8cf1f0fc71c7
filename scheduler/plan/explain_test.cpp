// What is said of each unit adds up to what is said of the step, over random models, budgets and
// machines.
#include "scheduler/plan/explain.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/quantity.hpp"
#include "scheduler/plan/random_case.hpp"
#include "scheduler/plan/test_model.hpp"
#include "scheduler/plan/test_support.hpp"

namespace headrace::plan {
namespace {

constexpr int kCases = 60;

// Bytes over all links of the steady step.
std::uint64_t moved_bytes(const Prediction& prediction) {
  std::uint64_t bytes = 0;
  for (const auto& [link, moved] : prediction.link_bytes) {
    bytes += moved;
  }
  return bytes;
}

// Inputs, targets and losses are of no unit.
std::uint64_t bytes_of_no_unit(const Plan& plan) {
  std::uint64_t bytes = 0;
  const bool drains = plan.update == Update::kAfterBackward;
  for (const Program* program : {&steady_program(plan), &plan.drain}) {
    for (const Instruction& instruction : program->instructions) {
      const bool of_step = drains || program != &plan.drain;
      bytes += of_step && instruction.unit < 0 ? instruction.link_bytes : 0;
    }
  }
  return bytes;
}

double stalled_seconds(const Prediction& prediction) {
  double all = 0;
  for (const auto& [cause, seconds] : prediction.stall_seconds) {
    all += seconds;
  }
  return all;
}

TEST(Explain, UnitsAddUpToTheStep) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  int explained = 0;
  for (int round = 0; round < kCases; ++round) {
    const RandomCase one = random_case(random);
    const auto plan = make_plan(one.model, one.settings, one.machine);
    const Prediction* steady = plan ? find_prediction(*plan, "steady") : nullptr;
    if (steady == nullptr) {
      continue;
    }
    std::uint64_t moved = bytes_of_no_unit(*plan);
    double waited = 0;
    for (const UnitSpec& unit : one.model.units) {
      const auto explanation = explain_unit(one.model, one.settings, one.machine, *plan, unit.name);
      ASSERT_TRUE(explanation) << describe(one);
      for (const UnitMoment& moment : explanation->moments) {
        moved += moment.link_bytes;
        EXPECT_LE(moment.begin, moment.end);
        EXPECT_LE(moment.end, explanation->step_seconds * (1 + 1e-9));
      }
      EXPECT_NEAR(explanation->step_seconds, steady->seconds, 1e-9 * steady->seconds);
      EXPECT_FALSE(explanation->things.empty());
      waited += explanation->waited_seconds;
    }
    EXPECT_EQ(moved, moved_bytes(*steady)) << "seed " << seed << ": " << describe(one);
    EXPECT_NEAR(waited, stalled_seconds(*steady), 1e-6 * steady->seconds + 1e-9)
        << "seed " << seed << ": " << describe(one);
    ++explained;
  }
  EXPECT_GT(explained, kCases / 4);
}

// What would be spared is what crosses the drive, and only what is not in memory.
TEST(Explain, WhatIsOnTheDriveSaysWhatKeepingItWouldSpare) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < kCases; ++round) {
    const RandomCase one = random_case(random);
    const auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan || find_prediction(*plan, "steady") == nullptr) {
      continue;
    }
    for (std::size_t u = 0; u < one.model.units.size(); ++u) {
      const auto explanation =
          explain_unit(one.model, one.settings, one.machine, *plan, one.model.units[u].name);
      ASSERT_TRUE(explanation);
      for (const UnitBenefit& benefit : explanation->benefits) {
        const bool state = benefit.what == "state in host memory";
        EXPECT_TRUE(!state || plan->units[u].state < 0) << describe(one);
        EXPECT_TRUE(benefit.what != "weights in host memory" || plan->units[u].master < 0);
        EXPECT_DOUBLE_EQ(benefit.per_byte * static_cast<double>(benefit.takes_bytes),
                         static_cast<double>(benefit.spares_bytes));
        EXPECT_FALSE(benefit.why_not.empty());
      }
    }
  }
}

// The benefits of all units, told as if the budgets had room for all of them.
std::vector<UnitBenefit> benefits_with_room(const ModelSpec& model,
                                            PlanSettings settings,
                                            const MachineProfile& machine,
                                            const Plan& plan) {
  settings.place.reset();
  settings.host_memory_bytes = std::size_t{1} << 40;
  settings.device_memory_bytes = std::size_t{1} << 40;
  std::vector<UnitBenefit> all;
  for (const UnitSpec& unit : model.units) {
    const auto explanation = explain_unit(model, settings, machine, plan, unit.name);
    EXPECT_TRUE(explanation);
    all.insert(all.end(), explanation->benefits.begin(), explanation->benefits.end());
  }
  return all;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(Explain, WhatHasRoomAndIsNotTakenSaysWhatLimitsTheStep) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  int told = 0;
  for (int round = 0; round < kCases; ++round) {
    RandomCase one = random_case(random);
    one.settings = ample(one.settings);
    one.settings.place = Home::kNvme;
    const auto plan = make_plan(one.model, one.settings, one.machine);
    if (!plan || find_prediction(*plan, "steady") == nullptr) {
      continue;
    }
    for (const UnitBenefit& benefit :
         benefits_with_room(one.model, one.settings, one.machine, *plan)) {
      EXPECT_FALSE(benefit.busiest.empty());
      EXPECT_GT(benefit.busiest_seconds, 0);
      EXPECT_LE(benefit.busiest_seconds, benefit.step_seconds * (1 + 1e-9))
          << "seed " << seed << ": " << describe(one);
      expect_contains(benefit.why_not, " are left, but ");
      expect_contains(benefit.why_not, format_duration(benefit.step_seconds));
      expect_contains(benefit.why_not,
                      "for " + format_duration(benefit.busiest_seconds) + " of it");
      ++told;
    }
  }
  EXPECT_GT(told, 0);
}

// State on the drive, with cores that are slower than anything, and with a drive that is.
TEST(Explain, ALimitIsThatOfTheStepWithoutWhatIsSpared) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e6;
  machine.nvme_read_bytes_per_s = machine.nvme_write_bytes_per_s = 1e13;
  auto plan = make_plan(model, settings, machine);
  ASSERT_TRUE(plan);
  double step = find_prediction(*plan, "steady")->seconds;
  auto benefits = benefits_with_room(model, settings, machine, *plan);
  EXPECT_FALSE(benefits.empty());
  for (const UnitBenefit& benefit : benefits) {
    EXPECT_EQ(benefit.busiest, "cores");
    EXPECT_NEAR(benefit.step_seconds, step, 0.005 * step);
    expect_contains(benefit.why_not, "the step would still take");
    expect_contains(benefit.why_not, "the cores work for");
  }

  machine.gemm_fp32_flops_per_s = 1e15;
  machine.nvme_read_bytes_per_s = machine.nvme_write_bytes_per_s = 1e6;
  plan = make_plan(model, settings, machine);
  ASSERT_TRUE(plan);
  step = find_prediction(*plan, "steady")->seconds;
  benefits = benefits_with_room(model, settings, machine, *plan);
  EXPECT_FALSE(benefits.empty());
  for (const UnitBenefit& benefit : benefits) {
    EXPECT_EQ(benefit.busiest, "nvme");
    // Reads and writes go side by side: what one of them is spared, the other may still take.
    EXPECT_GE(benefit.step_seconds, step - benefit.spares_seconds - 1e-6 * step);
    if (benefit.spares_seconds > 0.1 * step) {
      expect_contains(benefit.why_not,
                      "with all else as it is the step would come from " + format_duration(step));
      expect_contains(benefit.why_not, "the drive moves bytes for");
    }
  }
}

TEST(Explain, AnUnknownUnitIsAnErrorWithTheNearest) {
  std::mt19937_64 random(1);
  RandomCase one = random_case(random);
  one.settings = ample(one.settings);
  const auto plan = make_plan(one.model, one.settings, one.machine);
  ASSERT_TRUE(plan);
  const auto explanation = explain_unit(one.model, one.settings, one.machine, *plan, "heda");
  ASSERT_FALSE(explanation);
  EXPECT_EQ(explanation.error().code, ExitCode::kUsage);
  EXPECT_NE(explanation.error().hint.find("head"), std::string::npos);
}

}  // namespace
}  // namespace headrace::plan
