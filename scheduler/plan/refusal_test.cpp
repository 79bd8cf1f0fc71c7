// What does not fit is refused with lines that work; what wears the drive is warned of.
#include "scheduler/plan/refusal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "scheduler/plan/choices.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/test_model.hpp"

namespace headrace::plan {
namespace {

// The number behind `key` in a hint; 0: not there.
std::size_t number_after(const std::string& hint, const std::string& key) {
  const std::size_t at = hint.find(key);
  return at == std::string::npos ? 0 : std::strtoull(hint.c_str() + at + key.size(), nullptr, 10);
}

// State on NVMe, a drive that endures ten times what the run writes, and one byte less.
TEST(Plan, ARunThatWearsTheDriveIsWarnedOfWithALineThatMendsIt) {
  const ModelSpec model = make_model(256, 6, 3000, false, 2);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.steps = 1001;
  auto plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  const auto written = static_cast<double>(plan->written_bytes_per_step);
  ASSERT_GT(written, 0);
  settings.endurance_bytes = 10 * written * 1001;
  EXPECT_EQ(make_plan(model, settings, {})->wear_warning, "");

  // The machine is large enough.
  settings.endurance_bytes = 10 * written * 100;
  settings.host_memory_bytes = plan->host_arena_bytes;
  settings.usable_bytes = std::size_t{8} << 30;
  plan = make_plan(model, settings, {});
  EXPECT_NE(plan->wear_warning.find("tiers.place=\"auto\""), std::string::npos);
  PlanSettings mended = settings;
  mended.place.reset();
  mended.host_memory_bytes = number_after(plan->wear_warning, "tiers.host_memory=\"") << 20;
  EXPECT_EQ(make_plan(model, mended, {})->wear_warning, "") << plan->wear_warning;

  // It is not.
  settings.usable_bytes = settings.host_memory_bytes;
  plan = make_plan(model, settings, {});
  EXPECT_EQ(plan->wear_warning.find("tiers."), std::string::npos) << plan->wear_warning;
  ModelSpec larger = model;
  larger.accumulate =
      static_cast<std::int64_t>(number_after(plan->wear_warning, "batch.accumulate="));
  mended = settings;
  mended.steps = static_cast<std::int64_t>(number_after(plan->wear_warning, "run.steps="));
  EXPECT_GE(larger.accumulate * mended.steps, model.accumulate * settings.steps);
  mended.host_memory_bytes = std::size_t{8} << 30;  // of the activations
  EXPECT_EQ(make_plan(larger, mended, {})->wear_warning, "") << plan->wear_warning;

  // All is in memory, and every step is committed.
  settings = roomy();
  settings.place = Home::kHost;
  settings.steps = 1001;
  settings.store_slots = 2;
  settings.commit_interval = {.steps = 1, .seconds = 0};
  plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  settings.endurance_bytes = 1e4 * static_cast<double>(plan->written_bytes_per_step);
  plan = make_plan(model, settings, {});
  EXPECT_EQ(number_after(plan->wear_warning, "durability.checkpoint=\""), 1U) << plan->wear_warning;
}

// Sets what a way out says, of what the planner offers by itself.
void make_changes(const WayOut& way, PlanSettings& settings) {
  for (const std::string& set : way.sets) {
    const auto is = [&set](const char* key) { return set.starts_with(std::string(key) + "="); };
    const std::size_t mebibytes = number_after(set, "=\"");
    if (is("tiers.host_memory")) {
      settings.host_memory_bytes = mebibytes << 20;
    } else if (is("tiers.device_memory")) {
      settings.device_memory_bytes = mebibytes << 20;
    } else if (is("tiers.place")) {
      settings.place = Home::kNvme;
    } else if (is("batch.traversal")) {
      settings.group_size.reset();
    } else if (is("tiers.lookahead")) {
      settings.lookahead = 1;
    } else if (is("optim.update")) {
      settings.update = Update::kAfterBackward;
    } else {
      FAIL() << set;
    }
  }
}

TEST(Plan, ARunThatDoesNotFitIsRefusedWithLinesThatWork) {
  const ModelSpec model = make_model(256, 6, 3000, false, 4);
  std::size_t ways = 0;
  for (const auto place : {std::optional<Home>(), std::optional(Home::kHost)}) {
    for (const std::size_t host_mebibytes : {1U, 25U, 60U}) {
      for (const std::size_t device_mebibytes : {0U, 1U, 6U}) {
        PlanSettings settings = roomy();
        settings.place = place;
        settings.lookahead = 3;
        settings.group_size = kLayerMajor;
        settings.host_memory_bytes = host_mebibytes << 20;
        settings.separate_device = device_mebibytes > 0;
        if (settings.separate_device) {
          settings.device_memory_bytes = device_mebibytes << 20;
        }
        const auto refused = make_plan(model, settings, {});
        if (refused) {
          continue;
        }
        EXPECT_EQ(refused.error().code, ExitCode::kDoesNotFit);
        const Refusal refusal = refuse(model, settings);
        ASSERT_FALSE(refusal.ways.empty());
        for (const WayOut& way : refusal.ways) {
          EXPECT_NE(refused.error().hint.find(way.line()), std::string::npos);
          PlanSettings changed = settings;
          make_changes(way, changed);
          EXPECT_TRUE(make_plan(model, changed, {})) << way.line();
          ++ways;
        }
      }
    }
  }
  EXPECT_GT(ways, 20U);
}

TEST(Plan, ARefusalSaysByHowMuchToTheByte) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.host_memory_bytes = std::size_t{1} << 20;
  const Refusal refusal = refuse(model, settings);
  ASSERT_EQ(refusal.tiers.size(), 1U);
  EXPECT_EQ(refusal.tiers[0].budget_bytes, std::uint64_t{1} << 20);
  ASSERT_FALSE(refusal.largest.empty());
  for (std::size_t i = 1; i < refusal.largest.size(); ++i) {
    EXPECT_GE(refusal.largest[i - 1].bytes, refusal.largest[i].bytes);
  }
  settings.host_memory_bytes += refusal.tiers[0].missing_bytes();
  EXPECT_TRUE(make_plan(model, settings, {}));
  settings.host_memory_bytes -= 1;
  EXPECT_FALSE(make_plan(model, settings, {}));
}

TEST(Plan, ARefusalWithoutAWayOutSaysWhatIsNeeded) {
  PlanSettings settings = roomy();
  settings.host_memory_bytes = std::size_t{1} << 20;
  settings.usable_bytes = std::size_t{2} << 20;
  const auto refused = make_plan(make_model(256, 6, 3000, false, 1), settings, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().hint.find("2.0 MiB can be had"), std::string::npos)
      << refused.error().hint;
}

// A change of the caller's is one of the ways, the mildest of its group.
TEST(Plan, ChangesOfTheCallerAreTriedFromTheMildestOn) {
  PlanSettings settings = roomy();
  settings.host_memory_bytes = std::size_t{20} << 20;
  std::vector<Change> changes;
  for (const int blocks : {5, 2, 1, 0}) {
    changes.push_back({.group = "blocks",
                       .sets = {"model.layers=" + std::to_string(blocks)},
                       .changes_numbers = true,
                       .apply = [=](ModelSpec& model, PlanSettings&) {
                         model = make_model(256, blocks, 3000, false, 1);
                         return true;
                       }});
  }
  const Refusal refusal = refuse(make_model(256, 6, 3000, false, 1), settings, changes);
  int least = -1;
  for (const int blocks : {0, 1, 2, 5}) {
    least = make_plan(make_model(256, blocks, 3000, false, 1), settings, {}) ? blocks : least;
  }
  ASSERT_GE(least, 0);
  const auto found = std::find_if(refusal.ways.begin(), refusal.ways.end(), [&](const WayOut& way) {
    return way.line() == "--set model.layers=" + std::to_string(least);
  });
  ASSERT_NE(found, refusal.ways.end());
  EXPECT_TRUE(found->changes_numbers);
}

TEST(Plan, NothingIsSoughtWhereNothingIsMissing) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  EXPECT_FALSE(refuse(model, roomy()).tiers.empty());
  EXPECT_TRUE(refuse(model, roomy()).ways.empty());
}

TEST(Plan, OnlyTheBudgetThatIsTooSmallIsInTheHint) {
  PlanSettings settings = roomy();
  settings.host_memory_bytes = settings.host_available_bytes;  // as "auto" resolves
  settings.separate_device = true;
  settings.place = Home::kHost;
  settings.device_memory_bytes = std::size_t{64} << 10;
  const auto refused = make_plan(make_model(96, 3, 700, true), settings, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().hint.find("--set tiers.device_memory="), std::string::npos)
      << refused.error().hint;
  EXPECT_EQ(refused.error().hint.find("host_memory"), std::string::npos) << refused.error().hint;
}

}  // namespace
}  // namespace headrace::plan
