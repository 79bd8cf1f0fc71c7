// State formats: invariant 1 holds in each of them, weights are what the format keeps, and a step
// that is skipped leaves every byte.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "scheduler/exec/state_format.hpp"
#include "tests/engine/harness.hpp"

namespace headrace::testing {
namespace {

using plan::Home;
using plan::kBlockElements;

std::string format_test_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

class Formats : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static RunOptions base(model::Architecture (*architecture)()) {
    RunOptions options;
    options.architecture = architecture();
    options.accumulate = 2;
    options.steps = std::clamp(kSteps, 4, 12);
    options.optim.lr = 1e-3;
    options.settings = ample_settings();
    options.settings.format = exec::state_format(GetParam());
    return options;
  }

  // Everything in memory, nothing streams.
  [[nodiscard]] static const RunRecord& reference(model::Architecture (*architecture)()) {
    static std::map<std::pair<std::string, model::Architecture (*)()>, RunRecord> records;
    const std::pair key(std::string(GetParam()), architecture);
    auto found = records.find(key);
    if (found == records.end()) {
      found = records.emplace(key, run_engine(base(architecture))).first;
    }
    return found->second;
  }
};

TEST_P(Formats, TrainAndDifferFromFp32) {
  const RunRecord& record = reference(small_gpt2);
  EXPECT_EQ(record.nvme_read_bytes, 0U);
  RunOptions fp32 = base(small_gpt2);
  fp32.settings.format = {};
  const RunRecord exact = run_engine(fp32);
  ASSERT_EQ(record.losses.size(), exact.losses.size());
  EXPECT_EQ(record.losses.back() != exact.losses.back(), std::string(GetParam()) != "fp32");
  EXPECT_NEAR(record.losses.back(), exact.losses.back(), 0.01 * exact.losses.back());
}

TEST_P(Formats, OnTheDriveWithAnyTileThreadsAndLookahead) {
  for (const auto architecture : {small_gpt2, small_llama}) {
    for (const bool separate : {false, true}) {
      for (const int lookahead : {1, 4}) {
        RunOptions options = base(architecture);
        options.settings.separate_device = separate;
        options.settings.place = Home::kNvme;
        options.settings.lookahead = lookahead;
        options.settings.tile_elements = (lookahead == 1 ? 1 : 5) * kBlockElements;
        options.optimizer_threads = lookahead == 1 ? 3 : 1;
        const RunRecord record = run_engine(options);
        EXPECT_GT(record.nvme_write_bytes, 0U);
        expect_same_bits(
            reference(architecture),
            record,
            "nvme, lookahead " + std::to_string(lookahead) + (separate ? ", separate device" : ""));
      }
    }
  }
}

TEST_P(Formats, InMemoryKeptOnTheDeviceOrStreamedToIt) {
  for (const Home home : {Home::kDevice, Home::kHost}) {
    RunOptions options = base(small_gpt2);
    options.settings.separate_device = true;
    options.settings.place = home;
    expect_same_bits(reference(small_gpt2), run_engine(options), plan::home_name(home));
  }
  RunOptions small = base(small_llama);
  small.settings.separate_device = true;
  small.settings.place = Home::kHost;
  small.settings.lookahead = 1;
  small.settings.device_memory_bytes = smallest_device_bytes(small);
  expect_same_bits(reference(small_llama), run_engine(small), "two slots on the device");
}

// In host memory, but with no room for floats of every weight beside it; and partly on the drive.
TEST_P(Formats, TheSmallestHostBudgets) {
  for (const std::optional<Home> place : {std::optional(Home::kHost), std::optional<Home>()}) {
    for (const double share : {0.0, 0.4}) {
      RunOptions options = base(small_gpt2);
      options.settings.place = place;
      const std::size_t smallest = smallest_host_bytes(options);
      const std::size_t all = reference(small_gpt2).host_arena_bytes;
      options.settings.host_memory_bytes =
          smallest + (all > smallest
                          ? static_cast<std::size_t>(share * static_cast<double>(all - smallest))
                          : 0);
      const RunRecord record = run_engine(options);
      EXPECT_LE(record.host_arena_bytes, options.settings.host_memory_bytes);
      expect_same_bits(reference(small_gpt2), record, "a small host budget");
    }
  }
}

TEST_P(Formats, TraversalUpdateOrderAndEvaluation) {
  for (const bool nvme : {false, true}) {
    for (const int group_size : {plan::kLayerMajor, plan::kBatchMajor}) {
      RunOptions options = base(small_llama);
      options.settings.group_size = group_size;
      options.settings.update =
          group_size == plan::kLayerMajor ? plan::Update::kAfterBackward : plan::Update::kHeld;
      options.settings.separate_device = nvme;
      options.evaluate_after = 1;
      if (nvme) {
        options.settings.place = Home::kNvme;
      }
      expect_same_bits(reference(small_llama),
                       run_engine(options),
                       plan::traversal_name(group_size, options.accumulate));
    }
  }
}

TEST_P(Formats, FrozenTensorsStayWhatTheyWere) {
  RunOptions options = base(small_gpt2);
  options.optim.group = {{.match = {"*.0.*", "*wpe*"},
                          .lr_scale = 1.0,
                          .betas = {},
                          .eps = {},
                          .weight_decay = {},
                          .frozen = true}};
  options.settings.tile_elements = kBlockElements;
  const RunRecord expected = run_engine(options);
  for (const bool separate : {false, true}) {
    for (const Home home : {Home::kHost, Home::kNvme}) {
      RunOptions other = options;
      other.settings.separate_device = separate;
      other.settings.place = home;
      other.settings.tile_elements = 5 * kBlockElements;
      expect_same_bits(expected, run_engine(other), plan::home_name(home));
    }
  }
}

// A run that commits after every step and loses everything else goes on with the same bits.
TEST_P(Formats, ACommitIsResumedExactly) {
  for (const Home home : {Home::kHost, Home::kNvme}) {
    RunOptions options = base(small_gpt2);
    options.settings.place = home;
    options.commit_every = 1;
    options.stop_after = 3;
    const RunRecord record = run_engine(options);
    EXPECT_EQ(record.resumed_at, 3);
    RunRecord expected = reference(small_gpt2);
    for (int step = 0; step < 3; ++step) {  // of those only the commit remains
      expected.losses[static_cast<std::size_t>(step)] =
          record.losses[static_cast<std::size_t>(step)];
      expected.norms[static_cast<std::size_t>(step)] = record.norms[static_cast<std::size_t>(step)];
    }
    expect_same_bits(expected, record, plan::home_name(home));
  }
}

constexpr std::int32_t kPoisonedToken = 1000;

// The last step uses a row of the token table that is not finite: it is skipped, and every byte of
// both extents of every tile is what the commit before it had.
TEST_P(Formats, ASkippedStepLeavesEveryByte) {
  for (const Home home : {Home::kHost, Home::kNvme}) {
    RunOptions options = base(small_llama);
    options.settings.place = home;
    options.steps = 3;
    options.on_weights = [hidden = options.architecture.hidden](
                             int unit, std::int64_t begin, std::span<float> values) {
      const std::int64_t element = kPoisonedToken * hidden + 5 - begin;
      if (unit == 0 && element >= 0 && element < static_cast<std::int64_t>(values.size())) {
        values[static_cast<std::size_t>(element)] = std::numeric_limits<float>::infinity();
      }
    };
    RunOptions two = options;
    two.steps = 2;
    options.on_tokens = [](int step, std::vector<std::int32_t>& tokens) {
      if (step == 2) {
        tokens[3] = kPoisonedToken;
      }
    };
    const RunRecord before = run_engine(two), after = run_engine(options);
    ASSERT_EQ(after.skipped, (std::vector<char>{0, 0, 1}));
    EXPECT_EQ(after.update_count, 2);
    ASSERT_FALSE(before.extents.empty());
    EXPECT_TRUE(before.extents == after.extents) << plan::home_name(home);
  }
}

INSTANTIATE_TEST_SUITE_P(States,
                         Formats,
                         ::testing::Values("fp32", "bf16", "q8"),
                         format_test_name);

}  // namespace
}  // namespace headrace::testing
