// NUMA nodes, made up of this process's own cores: who gets threads, what each works on, where
// whoever works may run, and that nothing of it shows in a result.
#include "optim_cpu/nodes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "optim_cpu/gradient.hpp"
#include "optim_cpu/test_support.hpp"
#include "optim_cpu/threads.hpp"

namespace headrace::optim {
namespace {

std::vector<unsigned> own_cores() {
  const auto mask = CoreMask::of_this_thread();
  EXPECT_TRUE(mask.has_value());
  return mask ? mask->cores() : std::vector<unsigned>{0};
}

// Each of one core; more nodes than cores take turns.
std::vector<NodeCores> pretended_nodes(std::size_t count) {
  const std::vector<unsigned> cores = own_cores();
  std::vector<NodeCores> nodes;
  nodes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    nodes.push_back({cores[i % cores.size()]});
  }
  return nodes;
}

std::vector<int> shares_of(int count, const std::vector<NodeCores>& nodes) {
  std::vector<int> threads;
  for (const NodeThreads& node : share_threads(count, nodes)) {
    threads.push_back(node.threads);
  }
  return threads;
}

TEST(Nodes, ThreadsAreSharedOutByCores) {
  const NodeCores four = {0, 1, 2, 3}, two = {4, 5}, one = {6}, none;
  using Shares = std::vector<int>;
  EXPECT_EQ(shares_of(6, {four, two}), (Shares{4, 2}));
  EXPECT_EQ(shares_of(12, {four, two}), (Shares{8, 4}));
  EXPECT_EQ(shares_of(5, {four, two}), (Shares{3, 2}));
  EXPECT_EQ(shares_of(7, {four, none, two, one}), (Shares{4, 2, 1}));
  EXPECT_EQ(shares_of(2, {two, two, two, two}), (Shares{1, 1})) << "fewer threads than nodes";
  EXPECT_EQ(shares_of(3, {two, two, two, two}), (Shares{1, 1, 1}));
  EXPECT_EQ(share_threads(2, std::vector<NodeCores>{{0}, {1}, {2}, {3}})[0].cores, NodeCores{1});
}

TEST(Nodes, ThreadsOfOneNodeAreNotShared) {
  const NodeCores cores = {0, 1};
  EXPECT_TRUE(shares_of(4, {}).empty());
  EXPECT_TRUE(shares_of(4, {cores}).empty());
  EXPECT_TRUE(shares_of(4, {cores, {}}).empty());
  EXPECT_TRUE(shares_of(4, {{}, {}}).empty());
  EXPECT_TRUE(shares_of(1, {cores, cores, cores}).empty());
}

TEST(Nodes, ThreadsAndPartsAddUpWhateverTheNodes) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    std::vector<NodeCores> nodes(2 + random() % 7);
    for (NodeCores& node : nodes) {
      node.resize(random() % 70);
    }
    const int count = 1 + static_cast<int>(random() % 200);
    const std::vector<NodeThreads> shares = share_threads(count, nodes);
    int threads = 0;
    for (const NodeThreads& share : shares) {
      EXPECT_GT(share.threads, 0);
      EXPECT_FALSE(share.cores.empty());
      threads += share.threads;
    }
    if (shares.empty()) {
      continue;
    }
    EXPECT_EQ(threads, count);
    const auto total = static_cast<std::int64_t>(random() >> (random() % 60 + 1)) + 1;
    EXPECT_EQ(part_begin(shares, 0, total), 0);
    EXPECT_EQ(part_begin(shares, shares.size(), total), total);
    for (std::size_t node = 0; node < shares.size(); ++node) {
      const std::int64_t begin = part_begin(shares, node, total);
      const std::int64_t end = part_begin(shares, node + 1, total);
      ASSERT_LE(begin, end);
      if (begin < end) {
        EXPECT_EQ(node_of(shares, begin, total), node);
        EXPECT_EQ(node_of(shares, end - 1, total), node);
      }
    }
  }
}

TEST(Nodes, EveryIndexIsDoneOnceOnAnyNodes) {
  for (const std::size_t nodes : {1U, 2U, 4U}) {
    for (const int count : {1, 2, 3, 5, 8}) {
      const auto threads = Threads::create(count, pretended_nodes(nodes)).value();
      EXPECT_EQ(threads->count(), count);
      EXPECT_LE(threads->nodes().size(), std::min(nodes, static_cast<std::size_t>(count)));
      for (const std::int64_t indices : {0, 1, 2, 7, 1000, 12'345}) {
        for (const Threads::Within within :
             {Threads::Within{}, {0, indices}, {indices, 2 * indices}, {5, 3 * indices + 5}}) {
          std::vector<std::atomic<int>> done(static_cast<std::size_t>(indices));
          threads->parallel_for(
              indices,
              [&](std::int64_t index) { done[static_cast<std::size_t>(index)].fetch_add(1); },
              within);
          EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](const auto& n) { return n == 1; }));
        }
      }
    }
  }
}

// Whoever is bound somewhere else than before has come back when the work is done.
TEST(Nodes, WhoWorksIsOnItsNodesCoresAndTheCallerComesBack) {
  const std::vector<unsigned> before = own_cores();
  const std::vector<NodeCores> nodes = pretended_nodes(2);
  for (int round = 0; round < 20; ++round) {
    const auto threads = Threads::create(4, nodes).value();
    ASSERT_EQ(threads->nodes().size(), 2U) << "the process may bind its threads";
    std::mutex mutex;
    std::set<std::vector<unsigned>> seen;
    threads->parallel_for(256, [&](std::int64_t) {
      const std::lock_guard lock(mutex);
      seen.insert(own_cores());
    });
    for (const std::vector<unsigned>& cores : seen) {
      EXPECT_NE(std::find(nodes.begin(), nodes.end(), cores), nodes.end());
    }
    EXPECT_EQ(own_cores(), before);
    const auto unbound = Threads::create(4).value();
    EXPECT_TRUE(unbound->nodes().empty());
    unbound->parallel_for(256, [&](std::int64_t) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(own_cores(), before) << "a worker that another arena had bound";
    });
  }
}

// One thread a node. Neither takes of the other's part before its own is gone, so of two threads
// only one can have done so.
TEST(Nodes, WhoWorksTakesItsNodesPartFirst) {
  if (own_cores().size() < 2) {
    GTEST_SKIP() << "two nodes that can be told apart need two cores";
  }
  constexpr std::int64_t kCount = 1000;
  const std::vector<NodeCores> nodes = pretended_nodes(2);
  const auto threads = Threads::create(2, nodes).value();
  ASSERT_EQ(threads->nodes().size(), 2U);
  for (const Threads::Within within : {Threads::Within{}, {kCount / 2, 3 * kCount}}) {
    const std::int64_t total = within.total == 0 ? kCount : within.total;
    std::atomic<int> foreign[2] = {0, 0};
    threads->parallel_for(
        kCount,
        [&](std::int64_t index) {
          const std::size_t here = own_cores() == nodes[0] ? 0 : 1;
          if (node_of(threads->nodes(), within.begin + index, total) != here) {
            foreign[here].fetch_add(1);
          }
        },
        within);
    EXPECT_TRUE(foreign[0] == 0 || foreign[1] == 0) << foreign[0] << " and " << foreign[1];
  }
}

TEST(Nodes, ARefusedBindingIsAWarningAndTheWorkIsDone) {
  const std::vector<unsigned> before = own_cores();
  constexpr unsigned kNoCore = CoreMask::kCoresMax - 1;
  ::testing::internal::CaptureStderr();
  const auto threads =
      Threads::create(3, std::vector<NodeCores>{{before.front()}, {kNoCore}}).value();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("not bound to the 2 NUMA nodes"), std::string::npos) << said;
  EXPECT_TRUE(threads->nodes().empty());
  EXPECT_EQ(own_cores(), before);
  std::atomic<std::int64_t> sum{0};
  threads->parallel_for(100, [&](std::int64_t index) { sum.fetch_add(index); });
  EXPECT_EQ(sum.load(), 4950);
}

TEST(Nodes, SumsDoNotDependOnThem) {
  std::mt19937_64 random(test_seed());
  constexpr std::int64_t kElements = 9 * kBlockElements + 123;
  const std::vector<float> incoming = mixed_floats(random, kElements, -9, 6);
  const auto collect = [&](Threads& threads) {
    std::vector<double> sums(static_cast<std::size_t>(count_blocks(kElements)));
    const GradientCheck check = collect_blocks({.incoming = incoming.data(),
                                                .accumulated = nullptr,
                                                .target = nullptr,
                                                .kind = GradientTarget::kNone,
                                                .elements = kElements},
                                               sums,
                                               threads,
                                               {.begin = 2, .total = 20});
    EXPECT_EQ(check.non_finite_count, 0);
    return sums;
  };
  const std::vector<double> expected = collect(*Threads::create(1).value());
  for (const std::size_t nodes : {1U, 2U, 4U}) {
    for (const int count : {2, 3, 7}) {
      EXPECT_EQ(collect(*Threads::create(count, pretended_nodes(nodes)).value()), expected);
    }
  }
}

}  // namespace
}  // namespace headrace::optim
