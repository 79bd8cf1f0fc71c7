// Threads: every index once, on at most so many threads, all of which flush subnormals; and which
// instruction set runs.

#include "optim_cpu/threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/float_environment.hpp"
#include "optim_cpu/targets.hpp"

namespace headrace::optim {
namespace {

TEST(Threads, EveryIndexIsDoneOnce) {
  for (const int count : {1, 2, 3, 5}) {
    const auto threads = Threads::create(count).value();
    EXPECT_EQ(threads->count(), count);
    for (const std::int64_t indices : {0, 1, 2, 7, 1000, 12'345}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(indices));
      threads->parallel_for(
          indices, [&](std::int64_t index) { done[static_cast<std::size_t>(index)].fetch_add(1); });
      EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](const auto& n) { return n == 1; }));
    }
  }
}

TEST(Threads, RangesCoverEverythingWithoutOverlap) {
  const auto threads = Threads::create(3).value();
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> ranges;
  threads->parallel_for_ranges(100'003, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace(begin, end);
  });
  std::int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    EXPECT_EQ(begin, at);
    EXPECT_LT(begin, end);
    at = end;
  }
  EXPECT_EQ(at, 100'003);
}

// More threads than processors are really there: each of the three waits until the others have
// come.
TEST(Threads, AsManyThreadsWorkAsWereAskedFor) {
  constexpr int kCount = 3;
  const auto threads = Threads::create(kCount).value();
  std::atomic<int> arrived{0};
  std::mutex mutex;
  std::set<std::thread::id> ids;
  threads->parallel_for_ranges(64, [&](std::int64_t, std::int64_t) {
    {
      const std::lock_guard lock(mutex);
      if (ids.insert(std::this_thread::get_id()).second) {
        arrived.fetch_add(1);
      }
    }
    while (arrived.load() < kCount) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(ids.size(), static_cast<std::size_t>(kCount));
}

TEST(Threads, EveryThreadFlushesSubnormalsAndTheCallerGetsItsModeBack) {
  ASSERT_FALSE(flush_to_zero_is_set());
  for (const int count : {1, 3}) {
    const auto threads = Threads::create(count).value();
    std::atomic<int> arrived{0};
    std::atomic<int> without{0};
    for (int round = 0; round < 3; ++round) {
      arrived = 0;
      thread_local int last_round = -1;
      threads->parallel_for(64, [&, round](std::int64_t) {
        without.fetch_add(flush_to_zero_is_set() ? 0 : 1);
        if (last_round != round) {
          last_round = round;
          arrived.fetch_add(1);
        }
        while (arrived.load() < count) {
          std::this_thread::yield();
        }
      });
      last_round = -1;
      EXPECT_EQ(without.load(), 0);
      EXPECT_FALSE(flush_to_zero_is_set());
    }
  }
}

// Whoever made them may round another way.
TEST(Threads, EveryThreadRoundsToNearest) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const auto threads = Threads::create(3).value();
  std::atomic<int> others{0};
  threads->parallel_for(1000, [&](std::int64_t /*index*/) {
    others.fetch_add(std::fegetround() == FE_TONEAREST ? 0 : 1);
  });
  EXPECT_EQ(std::fegetround(), FE_UPWARD) << "the caller gets its mode back";
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(others.load(), 0);
}

TEST(Threads, SeveralArenasWorkAtOnce) {
  std::vector<std::thread> callers;
  callers.reserve(3);
  std::atomic<std::int64_t> total{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&total] {
      const auto threads = Threads::create(2).value();
      for (int round = 0; round < 50; ++round) {
        threads->parallel_for(100, [&](std::int64_t index) { total.fetch_add(index); });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(total.load(), 3 * 50 * 4950);
}

TEST(Threads, ANumberThatIsNoneIsAUsersError) {
  for (const int count : {0, -1, Threads::kCountMax + 1}) {
    const auto threads = Threads::create(count);
    ASSERT_FALSE(threads.has_value());
    EXPECT_EQ(threads.error().code, ExitCode::kUsage);
    EXPECT_NE(threads.error().hint.find("optim.threads"), std::string::npos);
  }
}

TEST(Targets, TheActiveOneIsTheBestThatIsAvailable) {
  const std::vector<std::string> targets = available_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "scalar");
  EXPECT_EQ(active_target(), targets.front());
}

TEST(Targets, ForcingOneLastsAsLongAsItsScope) {
  const std::string best = active_target();
  for (const std::string& target : available_targets()) {
    {
      const ForcedTarget forced(target);
      EXPECT_EQ(active_target(), target);
    }
    EXPECT_EQ(active_target(), best);
  }
}

}  // namespace
}  // namespace headrace::optim
