// Invariant 1 over combinations that nobody chose: placement, budgets, order and threads are drawn,
// with and without delays in every link, and the bits are those of the same run in memory. And a
// drive that goes away in the middle of a step: an error with its reason, and a last commit from
// which the run goes on to the same bits. HEADRACE_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <tuple>

#include "scheduler/exec/state_format.hpp"
#include "tests/engine/delays.hpp"
#include "tests/engine/harness.hpp"
#include "tiers/test_support.hpp"

namespace headrace::testing {
namespace {

using plan::Home;
using plan::kBlockElements;

#if defined(HEADRACE_SANITIZED)
constexpr int kCases = 6, kFailures = 3, kFewSteps = 2;
#else
constexpr int kCases = 70, kFailures = 20, kFewSteps = 3;
#endif

// About what norms are at first: of some steps it clips.
constexpr double kClipOfSomeSteps = 2.5;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  [[nodiscard]] bool chance(unsigned one_of) { return random_() % one_of == 0; }

  [[nodiscard]] std::int64_t between(std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }

  template <class T>
  [[nodiscard]] T of(std::initializer_list<T> choices) {
    return *(choices.begin() + static_cast<std::ptrdiff_t>(random_() % choices.size()));
  }

  [[nodiscard]] std::uint64_t number() { return random_(); }

 private:
  std::mt19937_64 random_;
};

// What makes the numbers; all else is placement.
struct Numbers {
  bool llama = false;
  std::int64_t accumulate = 1;
  Dtype grad = Dtype::kF32;
  std::string format;
  double clip = 1;

  friend bool operator<(const Numbers& a, const Numbers& b) {
    return std::tie(a.llama, a.accumulate, a.grad, a.format, a.clip) <
           std::tie(b.llama, b.accumulate, b.grad, b.format, b.clip);
  }
};

RunOptions options_of(const Numbers& numbers) {
  RunOptions options;
  options.architecture = numbers.llama ? small_llama() : small_gpt2();
  options.accumulate = numbers.accumulate;
  options.steps = kFewSteps;
  options.optim.lr = 1e-3;
  options.optim.clip = numbers.clip;
  options.settings = ample_settings();
  options.settings.grad = numbers.grad;
  options.settings.format = exec::state_format(numbers.format);
  return options;
}

const RunRecord& reference(const Numbers& numbers) {
  static std::map<Numbers, RunRecord> records;
  auto found = records.find(numbers);
  if (found == records.end()) {
    found = records.emplace(numbers, run_engine(options_of(numbers))).first;
  }
  return found->second;
}

Numbers draw_numbers(Draw& draw) {
  return {.llama = draw.chance(2),
          .accumulate = draw.between(1, 5),
          .grad = draw.of({Dtype::kF32, Dtype::kBf16}),
          .format = draw.of<std::string>({"fp32", "bf16", "q8"}),
          .clip = draw.of({1.0, 0.0, kClipOfSomeSteps})};
}

void draw_budgets(Draw& draw, RunOptions& options) {
  const std::size_t least = smallest_host_bytes(options);
  const std::size_t span = std::size_t{5} << 20U;
  options.settings.host_memory_bytes =
      least + static_cast<std::size_t>(draw.between(0, static_cast<std::int64_t>(span)));
  if (options.settings.separate_device && draw.chance(2)) {
    const std::size_t device = smallest_device_bytes(options);
    options.settings.device_memory_bytes =
        device + static_cast<std::size_t>(draw.between(0, static_cast<std::int64_t>(span / 4)));
  }
}

void draw_placement(Draw& draw, RunOptions& options) {
  plan::PlanSettings& settings = options.settings;
  settings.separate_device = draw.chance(2);
  if (draw.chance(2)) {
    settings.place = draw.of({Home::kDevice, Home::kHost, Home::kNvme, Home::kNvme});
  }
  settings.group_size = draw.of({plan::kLayerMajor, 3, 2, plan::kBatchMajor});
  settings.update = draw.of({plan::Update::kHeld,
                             plan::Update::kSpeculative,
                             plan::Update::kSpeculative,
                             plan::Update::kAfterBackward});
  if (draw.chance(2)) {
    settings.lookahead = static_cast<int>(draw.between(1, 5));
  }
  if (draw.chance(2)) {
    settings.tile_elements = kBlockElements * draw.between(1, 5);
  }
  options.optimizer_threads = static_cast<int>(draw.between(1, 4));
  options.folders = static_cast<int>(draw.between(1, 3));
  options.drive.io_depth = draw.of({1, 2, 8, 32});
  options.drive.request_bytes = std::size_t{1} << static_cast<unsigned>(draw.between(12, 20));
  if (draw.chance(4)) {
    options.evaluate_after = static_cast<int>(draw.between(0, kFewSteps - 1));
  }
  if (!settings.place || draw.chance(4)) {
    draw_budgets(draw, options);
  }
}

void draw_delays(Draw& draw, Delays& delays, RunOptions& options) {
  if (draw.chance(2)) {
    delays.slow_drive(options, static_cast<unsigned>(draw.between(1, 8)));
  }
  if (options.settings.separate_device && draw.chance(2)) {
    delays.slow_links(options, static_cast<unsigned>(draw.between(2, 12)));
  }
  if (draw.chance(2)) {
    delays.slow_kernels(options, static_cast<unsigned>(draw.between(4, 16)));
  }
}

std::string text(const RunOptions& options) {
  const plan::PlanSettings& s = options.settings;
  return std::string(s.format.name) + (s.separate_device ? ", separate device" : "") + ", place " +
         (s.place ? plan::home_name(*s.place) : "auto") + ", " +
         plan::traversal_name(*s.group_size, options.accumulate) + ", " +
         plan::update_name(*s.update) + ", accumulate " + std::to_string(options.accumulate) +
         ", host memory " + std::to_string(s.host_memory_bytes) + ", device memory " +
         std::to_string(s.device_memory_bytes.value_or(0)) + ", lookahead " +
         std::to_string(s.lookahead.value_or(0)) + ", tile " +
         std::to_string(s.tile_elements.value_or(0)) + ", depth " +
         std::to_string(options.drive.io_depth) + ", request " +
         std::to_string(options.drive.request_bytes) + ", folders " +
         std::to_string(options.folders);
}

// Cases that CTest runs side by side.
constexpr std::uint64_t kShards = 2;

class RandomRuns : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomRuns, HaveTheBitsOfTheRunInMemoryWhateverIsLate) {
  const std::uint64_t first = tiers::test_seed();
  std::uint64_t delayed = 0;
  int streamed = 0;
  for (std::uint64_t i = GetParam(); i < kCases && !HasFailure(); i += kShards) {
    Draw draw(first + i);
    const Numbers numbers = draw_numbers(draw);
    RunOptions options = options_of(numbers);
    draw_placement(draw, options);
    Delays delays(draw.number());
    draw_delays(draw, delays, options);
    const std::string what = "HEADRACE_SEED=" + std::to_string(first + i) + ": " + text(options);
    SCOPED_TRACE(what);
    const RunRecord record = run_engine(options);
    expect_same_bits(reference(numbers), record, what);
    EXPECT_LE(record.host_arena_bytes, options.settings.host_memory_bytes);
    delayed += delays.delayed();
    streamed += record.nvme_read_bytes > 0 ? 1 : 0;
  }
  std::cout << delayed << " operations were late; " << streamed << " runs streamed from NVMe\n";
  if (kCases > 10) {
    EXPECT_GT(delayed, 0U);
    EXPECT_GT(streamed, 0);
  }
}

// Few requests, of every kind: two blocks, everything on NVMe, a commit after each step.
RunOptions failing_run(Draw& draw) {
  RunOptions options = options_of({.llama = draw.chance(2),
                                   .accumulate = draw.between(1, 2),
                                   .grad = Dtype::kF32,
                                   .format = draw.of<std::string>({"fp32", "bf16", "q8"}),
                                   .clip = draw.of({0.0, kClipOfSomeSteps})});
  options.architecture.layers = 2;
  options.steps = 5;
  options.settings.place = Home::kNvme;
  options.settings.separate_device = draw.chance(2);
  options.settings.group_size = plan::kLayerMajor;
  options.settings.update =
      draw.of({plan::Update::kHeld, plan::Update::kAfterBackward, plan::Update::kSpeculative});
  options.settings.store_slots = 2;
  options.commit_every = static_cast<int>(draw.between(1, 3));
  options.may_fail = true;
  options.folders = static_cast<int>(draw.between(1, 2));
  return options;
}

TEST_P(RandomRuns, WhoseDriveGoesAwayEndInAnErrorAndGoOnFromTheLastCommit) {
  const std::uint64_t first = tiers::test_seed();
  int resumed = 0, failed = 0;
  for (std::uint64_t i = GetParam(); i < kFailures && !HasFailure(); i += kShards) {
    Draw draw(first + i);
    const RunOptions options = failing_run(draw);
    const std::string what = "HEADRACE_SEED=" + std::to_string(first + i) + ": " + text(options);
    SCOPED_TRACE(what);
    Delays counting(0);
    RunOptions whole = options;
    counting.fail_requests_from(whole, ~std::uint64_t{0});
    const RunRecord expected = run_engine(whole);
    ASSERT_FALSE(expected.error.has_value());
    ASSERT_GT(counting.requests(), 0U);
    Delays delays(draw.number());
    RunOptions failing = options;
    delays.fail_requests_from(failing, draw.number() % counting.requests());
    const RunRecord record = run_engine(failing);
    EXPECT_EQ(record.races, 0U) << record.first_race;
    if (!record.error) {  // the run needed fewer requests than the one that was counted
      expect_same_bits(expected, record, what);
      continue;
    }
    ++failed;
    EXPECT_EQ(record.error->code, ExitCode::kOperating);
    EXPECT_NE(record.error->what.find("nvme"), std::string::npos) << record.error->what;
    EXPECT_FALSE(record.error->why.empty()) << record.error->what;
    EXPECT_FALSE(record.error->hint.empty()) << record.error->what;
    if (record.resumed_at >= 0) {
      ++resumed;
      expect_same_bits(expected, record, what);
    }
  }
  std::cout << failed << " runs failed; " << resumed << " went on from a commit\n";
  if (kFailures > 10) {
    EXPECT_GT(failed, 0);
    EXPECT_GT(resumed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, RandomRuns, ::testing::Range(std::uint64_t{0}, kShards));

}  // namespace
}  // namespace headrace::testing
