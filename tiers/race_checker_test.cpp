// The race checker against brute force, on queues that run nothing in parallel: its findings are a
// matter of order, not of luck. Planted missing waits in each link of a training step.
#include "tiers/race_checker.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tiers/queue.hpp"
#include "tiers/test_support.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers {
namespace {

// Runs everything when it is submitted: whatever the checker finds, it finds although nothing ever
// goes wrong.
class InlineQueue final : public Queue {
 public:
  using Queue::Queue;

 protected:
  void push(const Operation&, Body body) override {
    EXPECT_TRUE(body().has_value());
    finish(next_ticket());
  }

  void push_wait(const Event&) override { finish(next_ticket()); }
};

struct Access {
  std::vector<MemorySpan> reads = {};
  std::vector<MemorySpan> writes = {};
};

void submit(Queue& queue, const char* name, std::uint64_t id, const Access& access) {
  queue.submit({.name = name, .reads = access.reads, .writes = access.writes, .id = id}, [] {});
}

MemorySpan bytes(std::uint64_t begin, std::uint64_t size) {
  return {reinterpret_cast<const void*>(begin), size};  // NOLINT(performance-no-int-to-ptr)
}

class RaceCheckerTest : public ::testing::Test {
 protected:
  RaceCheckerTest() { runtime_.races = &checker_; }

  std::vector<std::string> texts() const {
    std::vector<std::string> found;
    for (const Race& race : checker_.races()) {
      found.push_back(race.text);
    }
    return found;
  }

  RaceChecker checker_;
  Runtime runtime_;
};

TEST_F(RaceCheckerTest, AReportNamesBothOperationsTheirQueuesAndTheOverlap) {
  InlineQueue lane(runtime_, "nvme.3");
  InlineQueue compute(runtime_, "compute");
  submit(lane, "read tile", 9, {.writes = {bytes(0x1000, 0x1000)}});
  submit(compute, "forward", 12, {.reads = {bytes(0x1800, 0x1000)}});
  EXPECT_EQ(texts(),
            std::vector<std::string>{
                "'forward' (#12 on compute) reads memory [0x1800, +2048) that 'read tile' (#9 on "
                "nvme.3) writes; no wait orders them"});
}

TEST_F(RaceCheckerTest, OnlyOverlapsWithAWriterConflict) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  submit(one, "read", 1, {.reads = {bytes(100, 50)}});
  submit(two, "read", 2, {.reads = {bytes(100, 50)}});
  submit(two, "write beside", 3, {.writes = {bytes(50, 50), bytes(150, 50)}});
  submit(two, "write nothing", 4, {.writes = {bytes(120, 0)}});
  submit(one, "write elsewhere", 5, {.writes = {MemorySpan::storage(100, 50)}});
  EXPECT_TRUE(texts().empty());
  submit(one, "write", 6, {.writes = {bytes(149, 2)}});
  // Once against the reader of byte 149, once against the writer of byte 150.
  ASSERT_EQ(texts().size(), 2U);
  EXPECT_NE(texts()[0].find("[0x95, +1) that 'read' (#2 on two) reads"), std::string::npos);
  EXPECT_NE(texts()[1].find("[0x96, +1) that 'write beside' (#3 on two) writes"),
            std::string::npos);
}

TEST_F(RaceCheckerTest, StorageRangesConflictLikeMemory) {
  InlineQueue one(runtime_, "nvme.0");
  InlineQueue two(runtime_, "nvme.1");
  submit(one, "write tile", 1, {.writes = {MemorySpan::storage(4096, 8192)}});
  submit(two, "read tile", 2, {.reads = {MemorySpan::storage(8192, 100)}});
  ASSERT_EQ(texts().size(), 1U);
  EXPECT_NE(texts()[0].find("storage [8192, +100)"), std::string::npos);
}

TEST_F(RaceCheckerTest, WaitsOrderThroughOtherQueuesAndThroughTheHost) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  InlineQueue three(runtime_, "three");
  submit(one, "write", 1, {.writes = {bytes(0, 64)}});
  two.wait(one.record());
  three.wait(two.record());
  submit(three, "read", 2, {.reads = {bytes(0, 64)}});
  ASSERT_TRUE(three.drain().has_value());
  InlineQueue four(runtime_, "four");
  submit(four, "write", 3, {.writes = {bytes(0, 64)}});
  EXPECT_TRUE(texts().empty());
}

TEST_F(RaceCheckerTest, AnEventOrdersWhatCameBeforeItOnly) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  submit(one, "write", 1, {.writes = {bytes(0, 64)}});
  const Event event = one.record();
  submit(one, "write", 2, {.writes = {bytes(64, 64)}});
  two.wait(event);
  submit(two, "read", 3, {.reads = {bytes(0, 64)}});
  EXPECT_TRUE(texts().empty());
  submit(two, "read", 4, {.reads = {bytes(64, 64)}});
  EXPECT_EQ(texts().size(), 1U);
}

TEST_F(RaceCheckerTest, AnEventRecordedBeforeAWaitDoesNotIncludeIt) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  InlineQueue three(runtime_, "three");
  submit(one, "write", 1, {.writes = {bytes(0, 64)}});
  submit(two, "other", 2, {});
  const Event before = two.record();
  two.wait(one.record());
  const Event after = two.record();
  three.wait(before);
  submit(three, "read", 3, {.reads = {bytes(0, 64)}});
  EXPECT_EQ(texts().size(), 1U);
  three.wait(after);
  submit(three, "read", 4, {.reads = {bytes(0, 64)}});
  EXPECT_EQ(texts().size(), 1U);
}

TEST_F(RaceCheckerTest, APolledEventOrdersNothing) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  submit(one, "write", 1, {.writes = {bytes(0, 64)}});
  ASSERT_TRUE(one.record().done());
  submit(two, "read", 2, {.reads = {bytes(0, 64)}});
  EXPECT_EQ(texts().size(), 1U);
}

TEST_F(RaceCheckerTest, TheHostsOwnReadsAndWritesCount) {
  InlineQueue d2h(runtime_, "d2h");
  const std::array<MemorySpan, 1> result = {bytes(0, 64)};
  submit(d2h, "copy", 1, {.writes = {result[0]}});
  checker_.on_host_access({.name = "read loss", .reads = result, .id = 2});
  ASSERT_EQ(texts().size(), 1U);
  EXPECT_NE(texts()[0].find("'read loss' (#2 on the host) reads"), std::string::npos);
  ASSERT_TRUE(d2h.drain().has_value());
  checker_.on_host_access({.name = "read loss", .reads = result, .id = 3});
  // What is submitted after the host's access comes after it.
  submit(d2h, "copy", 4, {.writes = {result[0]}});
  EXPECT_EQ(texts().size(), 1U);
  // The host's write of an input that is still being read.
  InlineQueue compute(runtime_, "compute");
  const std::array<MemorySpan, 1> tokens = {bytes(128, 64)};
  checker_.on_host_access({.name = "write tokens", .writes = tokens, .id = 5});
  submit(compute, "embed", 6, {.reads = {tokens[0]}});
  EXPECT_EQ(texts().size(), 1U);
  checker_.on_host_access({.name = "write tokens", .writes = tokens, .id = 7});
  EXPECT_EQ(texts().size(), 2U);
}

TEST_F(RaceCheckerTest, AnOperationMayReadAndWriteTheSameRange) {
  InlineQueue one(runtime_, "one");
  submit(one, "in place", 1, {.reads = {bytes(0, 64)}, .writes = {bytes(0, 64)}});
  submit(one, "in place", 2, {.reads = {bytes(0, 64)}, .writes = {bytes(32, 64)}});
  EXPECT_TRUE(texts().empty());
}

TEST_F(RaceCheckerTest, ANewQueueIsNotMistakenForADestroyedOne) {
  {
    InlineQueue old(runtime_, "old");
    submit(old, "write", 1, {.writes = {bytes(0, 64)}});
  }
  InlineQueue fresh(runtime_, "fresh");
  submit(fresh, "read", 2, {.reads = {bytes(0, 64)}});
  ASSERT_EQ(texts().size(), 1U);
  EXPECT_NE(texts()[0].find("(#1 on old)"), std::string::npos);
}

TEST_F(RaceCheckerTest, RepeatedRacesAreListedOnceAndCountedEachTime) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  for (int step = 0; step < 5; ++step) {
    submit(one, "write", 1, {.writes = {bytes(0, 64)}});
    submit(two, "read", 2, {.reads = {bytes(0, 64)}});
    two.wait(one.record());
    one.wait(two.record());
  }
  EXPECT_EQ(checker_.races().size(), 1U);
  EXPECT_EQ(checker_.race_count(), 5U);
  EXPECT_EQ(checker_.operations_checked(), 10U);
}

TEST_F(RaceCheckerTest, WaitsThatOthersImplyAreCounted) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  InlineQueue three(runtime_, "three");
  submit(one, "write", 1, {});
  const Event first = one.record();
  two.wait(first);
  EXPECT_EQ(checker_.implied_waits(), 0U);
  two.wait(first);  // again
  EXPECT_EQ(checker_.implied_waits(), 1U);
  three.wait(two.record());
  three.wait(first);  // through two
  EXPECT_EQ(checker_.implied_waits(), 2U);
  submit(one, "write", 2, {});
  const Event second = one.record();
  three.wait(second);
  EXPECT_EQ(checker_.implied_waits(), 2U);
  submit(one, "write", 3, {});
  const Event third = one.record();
  ASSERT_TRUE(third.wait_host().has_value());
  two.wait(third);  // through the host
  EXPECT_EQ(checker_.implied_waits(), 3U);
  EXPECT_EQ(checker_.waits_checked(), 6U);
}

TEST_F(RaceCheckerTest, WhatTheHostHasWaitedForIsForgotten) {
  InlineQueue one(runtime_, "one");
  InlineQueue two(runtime_, "two");
  for (int step = 0; step < 10; ++step) {
    for (int i = 0; i < 20; ++i) {
      submit(one, "write", 1, {.writes = {bytes(0, 64)}});
      two.wait(one.record());
      submit(two, "read", 2, {.reads = {bytes(0, 64)}});
      one.wait(two.record());
    }
    EXPECT_GT(checker_.event_clocks_held(), 0U);
    ASSERT_TRUE(one.drain().has_value());
    EXPECT_EQ(checker_.event_clocks_held(), 0U);
  }
  EXPECT_TRUE(texts().empty());
}

// ---- a training step in small, each link's waits left out one at a time ----------------------

// Operations in the order of their submission, with the operations that each waits for. Memory:
// weights and state in storage, two host slots, two device slots, activations, a gradient.
struct PlannedOperation {
  const char* queue;
  const char* name;
  Access access;
  std::vector<std::size_t> waits;  // by index; all of other queues
};

std::vector<PlannedOperation> planned_step() {
  const MemorySpan stored = MemorySpan::storage(0, 4096);
  const MemorySpan host = bytes(0x10000, 4096);
  const MemorySpan device = bytes(0x20000, 4096);
  const MemorySpan activation = bytes(0x30000, 4096);
  const MemorySpan gradient = bytes(0x40000, 4096);
  const MemorySpan host_gradient = bytes(0x50000, 4096);
  return {
      {"nvme.0", "read weights", {{stored}, {host}}, {}},                                 // 0
      {"h2d", "copy weights", {{host}, {device}}, {0}},                                   // 1: RAW
      {"compute", "forward", {{device}, {activation}}, {1}},                              // 2: RAW
      {"nvme.1", "read next weights", {{MemorySpan::storage(8192, 4096)}, {host}}, {1}},  // 3: WAR
      {"h2d", "copy next weights", {{host}, {device}}, {2, 3}},            // 4: WAR, RAW
      {"compute", "backward", {{device, activation}, {gradient}}, {4}},    // 5: RAW
      {"d2h", "copy gradient", {{gradient}, {host_gradient}}, {5}},        // 6: RAW
      {"compute", "clear gradient", {{}, {gradient}}, {6}},                // 7: WAR
      {"update", "adamw", {{host_gradient, host}, {host}}, {6}},           // 8: RAW, WAR
      {"nvme.0", "write weights", {{host}, {stored}}, {8}},                // 9: RAW
      {"update", "reuse slot", {{}, {host}}, {9}},                         // 10: WAR
      {"nvme.1", "read weights again", {{stored}, {host_gradient}}, {9}},  // 11: RAW, WAR
  };
}

// Submits the step, leaving out wait `skipped` (counted over all operations); returns how many
// waits there are.
template <class MakeQueue>
std::size_t run_step(MakeQueue make_queue, std::size_t skipped) {
  const std::vector<PlannedOperation> plan = planned_step();
  std::vector<Event> events;
  std::size_t wait_count = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    Queue& queue = make_queue(plan[i].queue);
    for (const std::size_t wait : plan[i].waits) {
      if (wait_count++ != skipped) {
        queue.wait(events[wait]);
      }
    }
    submit(queue, plan[i].name, i, plan[i].access);
    events.push_back(queue.record());
  }
  return wait_count;
}

TEST(RaceCheckerLinks, AMissingWaitInAnyLinkIsFoundOnRealQueues) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t waits = 0;
  for (std::size_t skipped = kNone; skipped == kNone || skipped < waits; ++skipped) {
    RaceChecker checker;
    Runtime runtime;
    runtime.races = &checker;
    std::vector<std::unique_ptr<ThreadQueue>> queues;
    const auto queue_named = [&](const std::string& name) -> Queue& {
      for (const auto& queue : queues) {
        if (queue->name() == name) {
          return *queue;
        }
      }
      return *queues.emplace_back(
          std::make_unique<ThreadQueue>(runtime, name, ThreadQueueOptions{}));
    };
    waits = run_step(queue_named, skipped);
    for (const auto& queue : queues) {
      ASSERT_TRUE(queue->drain().has_value());
    }
    if (skipped == kNone) {
      EXPECT_EQ(checker.race_count(), 0U);
      EXPECT_EQ(checker.implied_waits(), 0U) << "every wait of the step is needed";
    } else {
      EXPECT_GT(checker.race_count(), 0U) << "wait " << skipped << " left out";
    }
  }
  EXPECT_EQ(waits, 12U);
}

// ---- random programs against brute force -------------------------------------------------------

constexpr std::size_t kHost = ~std::size_t{0};  // as the queue of a step: the host itself

struct ProgramWait {
  std::size_t from = 0;  // waits after operation `from` of another queue ...
  std::size_t to = 0;    // ... before operation `to`
};

struct Program {
  std::size_t queues = 0;
  std::vector<std::size_t> queue;  // of each step
  std::vector<Access> access;
  std::vector<ProgramWait> waits;
};

bool overlap(const std::vector<MemorySpan>& a, const std::vector<MemorySpan>& b) {
  return std::any_of(a.begin(), a.end(), [&](const MemorySpan& x) {
    return std::any_of(b.begin(), b.end(), [&](const MemorySpan& y) {
      return x.bytes > 0 && y.bytes > 0 && x.space == y.space && x.begin < y.begin + y.bytes &&
             y.begin < x.begin + x.bytes;
    });
  });
}

bool conflict(const Access& a, const Access& b) {
  return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
}

// Pairs (earlier, later) that conflict and that neither queue order nor any chain of waits orders.
std::size_t unordered_conflicts(const Program& program, std::size_t skipped_wait) {
  const std::size_t count = program.queue.size();
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
  for (std::size_t to = 0; to < count; ++to) {
    const auto include = [&](std::size_t from) {
      before[from][to] = true;
      for (std::size_t i = 0; i < from; ++i) {
        before[i][to] = before[i][to] || before[i][from];
      }
    };
    // What comes before on the same queue, and what the host had done and waited for.
    for (const std::size_t queue : {program.queue[to], kHost}) {
      for (std::size_t from = to; from-- > 0;) {
        if (program.queue[from] == queue) {
          include(from);
          break;
        }
      }
    }
    for (std::size_t w = 0; w < program.waits.size(); ++w) {
      if (program.waits[w].to == to && w != skipped_wait) {
        include(program.waits[w].from);
      }
    }
  }
  std::size_t found = 0;
  for (std::size_t to = 0; to < count; ++to) {
    for (std::size_t from = 0; from < to; ++from) {
      if (!before[from][to] && conflict(program.access[from], program.access[to])) {
        ++found;
      }
    }
  }
  return found;
}

Program random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  Program program;
  program.queues = 2 + below(5);
  const std::size_t count = 10 + below(25);
  for (std::size_t i = 0; i < count; ++i) {
    program.queue.push_back(below(8) == 0 ? kHost : below(program.queues));
    Access access;
    const auto span = [&] {
      const std::uint64_t begin = below(40);
      const std::uint64_t size = below(12);
      return below(4) == 0 ? MemorySpan::storage(begin, size) : bytes(begin, size);
    };
    for (std::size_t r = below(3); r-- > 0;) {
      access.reads.push_back(span());
    }
    for (std::size_t w = below(3); w-- > 0;) {
      access.writes.push_back(span());
    }
    // Every wait that the data needs, some of them implied, and now and then one for nothing.
    for (std::size_t from = 0; from < i; ++from) {
      const bool needed = conflict(program.access[from], access);
      const bool other = program.queue[from] != program.queue[i] && program.queue[from] != kHost;
      if (other && (needed || below(30) == 0)) {
        program.waits.push_back({.from = from, .to = i});
      }
    }
    program.access.push_back(std::move(access));
  }
  return program;
}

std::uint64_t races_of(const Program& program, std::size_t skipped_wait) {
  RaceChecker checker;
  Runtime runtime;
  runtime.races = &checker;
  std::vector<std::unique_ptr<InlineQueue>> queues;
  for (std::size_t i = 0; i < program.queues; ++i) {
    queues.push_back(std::make_unique<InlineQueue>(runtime, "queue." + std::to_string(i)));
  }
  std::vector<Event> events;
  for (std::size_t i = 0; i < program.queue.size(); ++i) {
    Queue* queue = program.queue[i] == kHost ? nullptr : queues[program.queue[i]].get();
    for (std::size_t w = 0; w < program.waits.size(); ++w) {
      if (program.waits[w].to != i || w == skipped_wait) {
        continue;
      }
      const Event& event = events[program.waits[w].from];
      if (queue != nullptr) {
        queue->wait(event);
      } else {
        EXPECT_TRUE(event.wait_host().has_value());
      }
    }
    const Access& access = program.access[i];
    if (queue != nullptr) {
      submit(*queue, "operation", i, access);
    } else {
      checker.on_host_access(
          {.name = "access", .reads = access.reads, .writes = access.writes, .id = i});
    }
    events.push_back(queue != nullptr ? queue->record() : Event());
  }
  return checker.race_count();
}

TEST(RaceCheckerPrograms, ItFindsARaceExactlyWhereBruteForceDoes) {
  const std::uint64_t base_seed = test_seed();
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t needed = 0;
  std::size_t redundant = 0;
  for (std::uint64_t seed = base_seed; seed < base_seed + 200; ++seed) {
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed));
    const Program program = random_program(seed);
    ASSERT_EQ(unordered_conflicts(program, kNone), 0U);
    ASSERT_EQ(races_of(program, kNone), 0U);
    for (std::size_t wait = 0; wait < program.waits.size(); ++wait) {
      const bool is_needed = unordered_conflicts(program, wait) > 0;
      ASSERT_EQ(races_of(program, wait) > 0, is_needed) << "without wait " << wait;
      ++(is_needed ? needed : redundant);
    }
  }
  EXPECT_GT(needed, 100U);
  EXPECT_GT(redundant, 100U);
}

}  // namespace
}  // namespace headrace::tiers
