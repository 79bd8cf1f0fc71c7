// The facts that every kind of queue must satisfy, as one suite: threads, NVMe lanes, streams.
//
// A kind joins by a QueueHarness and INSTANTIATE_TEST_SUITE_P(Kind, QueueConformance, ...) with a
// HarnessKind; include this header in one .cpp of a test binary. The harness's operation is a copy
// between cells of memory (or of storage): it is what links do, and a value that arrives proves
// order. Beside the queues under test runs a "host" ThreadQueue that mixes cells, so that waits
// across kinds are exercised. No test depends on timing: what has not happened yet is held by a
// gate.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/trace.hpp"
#include "tiers/queue.hpp"
#include "tiers/race_checker.hpp"
#include "tiers/test_support.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers {

struct CellCopy {
  std::size_t source = 0;
  std::size_t target = 0;
};

// Cells are numbered from 0; cells 0 and 1 are memory.
class QueueHarness {
 public:
  virtual ~QueueHarness() = default;
  [[nodiscard]] virtual Queue& queue(std::size_t index) = 0;
  [[nodiscard]] virtual std::size_t cell_bytes() const = 0;  // a multiple of 8
  // Null where the cell lies in storage.
  [[nodiscard]] virtual std::byte* cell_memory(std::size_t cell) = 0;
  [[nodiscard]] virtual bool can_copy(const CellCopy& copy) = 0;
  // One operation of `queue`, with its spans declared.
  virtual void copy(Queue& queue, const CellCopy& copy) = 0;
  // One operation that fails; the error's text contains "planted".
  virtual void fail(Queue& queue) = 0;
};

struct HarnessOptions {
  std::size_t queues = 1;
  std::size_t ring_capacity = 4;
  std::size_t cells = 4;
};

struct HarnessKind {
  std::string name;
  std::function<std::unique_ptr<QueueHarness>(Runtime&, const HarnessOptions&)> make;
  int random_programs = 200;  // fewer where making a harness is slow
};

inline std::ostream& operator<<(std::ostream& out, const HarnessKind& kind) {
  return out << kind.name;
}

// Writes `value` into every word of a cell; what the host and the "host" queue do.
inline void fill_cell(std::byte* memory, std::size_t bytes, std::uint64_t value) {
  for (std::size_t at = 0; at < bytes; at += sizeof value) {
    std::memcpy(memory + at, &value, sizeof value);
  }
}

// The cell's value; a torn cell (words that differ) has none that any test writes.
inline std::uint64_t read_cell(const std::byte* memory, std::size_t bytes) {
  std::uint64_t first = 0;
  std::memcpy(&first, memory, sizeof first);
  for (std::size_t at = 0; at < bytes; at += sizeof first) {
    std::uint64_t value = 0;
    std::memcpy(&value, memory + at, sizeof value);
    if (value != first) {
      return ~std::uint64_t{0};
    }
  }
  return first;
}

inline std::uint64_t mix(std::uint64_t target, std::uint64_t source) {
  return (target * 6364136223846793005U + source * 1442695040888963407U + 1) >> 1U;
}

class QueueConformance : public ::testing::TestWithParam<HarnessKind> {
 protected:
  ~QueueConformance() override {
    if (harness_ != nullptr) {
      drain_all();
    }
  }

  // A fresh runtime, harness and "host" queue; cell c holds 1000 + c where it is memory, and what
  // cell 0 holds where it is storage.
  void make(const HarnessOptions& options, RaceChecker* races = nullptr) {
    if (harness_ != nullptr) {
      drain_all();
    }
    host_.reset();
    harness_.reset();
    runtime_ = std::make_unique<Runtime>();
    runtime_->races = races;
    options_ = options;
    harness_ = GetParam().make(*runtime_, options);
    host_ = std::make_unique<ThreadQueue>(
        *runtime_, "host", ThreadQueueOptions{.capacity = options.ring_capacity});
    for (std::size_t cell = 0; cell < options.cells; ++cell) {
      if (std::byte* memory = harness_->cell_memory(cell); memory != nullptr) {
        fill_cell(memory, harness_->cell_bytes(), 1000 + cell);
      }
    }
    for (std::size_t cell = 0; cell < options.cells; ++cell) {
      if (harness_->cell_memory(cell) == nullptr) {
        harness_->copy(queue(0), {.source = 0, .target = cell});
      }
    }
    EXPECT_TRUE(queue(0).drain().has_value());
  }

  void drain_all() {
    for (std::size_t index = 0; index < options_.queues; ++index) {
      [[maybe_unused]] const Status status = queue(index).drain();
    }
    [[maybe_unused]] const Status status = host_->drain();
  }

  Queue& queue(std::size_t index) { return harness_->queue(index); }

  // A cell that cell 0 can be copied to, other than cells 0 and 1 where there is one.
  std::size_t reachable_cell() {
    for (std::size_t cell = options_.cells; cell-- > 1;) {
      if (harness_->can_copy({.source = 0, .target = cell})) {
        return cell;
      }
    }
    ADD_FAILURE() << "a harness copies cell 0 somewhere";
    return 1;
  }

  // The value of a cell, fetched into memory (cell 1) where it is storage. Nothing may be in
  // flight.
  std::uint64_t value(std::size_t cell) {
    if (harness_->cell_memory(cell) == nullptr) {
      harness_->copy(queue(0), {.source = cell, .target = 1});
      EXPECT_TRUE(queue(0).drain().has_value());
      cell = 1;
    }
    return read_cell(harness_->cell_memory(cell), harness_->cell_bytes());
  }

  // cell[target] = mix(cell[target], cell[source]) on the "host" queue; both are memory.
  void mix_on_host(const CellCopy& cells) {
    const std::size_t bytes = harness_->cell_bytes();
    std::byte* target = harness_->cell_memory(cells.target);
    const std::byte* source = harness_->cell_memory(cells.source);
    const std::array<MemorySpan, 2> reads = {MemorySpan(source, bytes), MemorySpan(target, bytes)};
    const MemorySpan write(target, bytes);
    host_->submit({.name = "mix", .reads = reads, .writes = {&write, 1}}, [target, source, bytes] {
      fill_cell(target, bytes, mix(read_cell(target, bytes), read_cell(source, bytes)));
    });
  }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<QueueHarness> harness_;
  std::unique_ptr<ThreadQueue> host_;
  HarnessOptions options_;
};

TEST_P(QueueConformance, AQueueWithNothingSubmittedIsDone) {
  make({});
  Queue& fresh = *host_;
  EXPECT_TRUE(fresh.record().done());
  EXPECT_TRUE(fresh.drain().has_value());
  EXPECT_TRUE(queue(0).drain().has_value());
  EXPECT_TRUE(queue(0).drain().has_value());
  EXPECT_TRUE(Event().done());
  EXPECT_TRUE(Event().wait_host().has_value());
}

TEST_P(QueueConformance, WaitingForADoneEventOrOnesOwnTakesNoTicket) {
  make({.queues = 2});
  harness_->copy(queue(1), {.source = 0, .target = reachable_cell()});
  ASSERT_TRUE(queue(1).drain().has_value());
  const Event before = queue(0).record();
  queue(0).wait(queue(1).record());
  queue(0).wait(queue(0).record());
  queue(0).wait(Event());
  EXPECT_EQ(queue(0).record().ticket(), before.ticket());
}

TEST_P(QueueConformance, OperationsOfOneQueueRunInOrder) {
  make({.ring_capacity = 3, .cells = 6});
  const std::size_t target = reachable_cell();
  for (std::uint64_t round = 0; round < 20; ++round) {
    // The last of several copies to one cell stays, and a copy reads what an earlier one wrote.
    fill_cell(harness_->cell_memory(0), harness_->cell_bytes(), round);
    harness_->copy(queue(0), {.source = 1, .target = target});
    harness_->copy(queue(0), {.source = 0, .target = target});
    if (harness_->can_copy({.source = target, .target = 1})) {
      harness_->copy(queue(0), {.source = target, .target = 1});
    }
    ASSERT_TRUE(queue(0).drain().has_value());
    ASSERT_EQ(value(target), round);
  }
}

TEST_P(QueueConformance, TimestampsLieBetweenWhatCameBeforeAndWhatComesAfter) {
  make({.ring_capacity = 3});
  const std::size_t target = reachable_cell();

  struct Times {
    std::int64_t submitted = 0, body_before = 0, after_body = 0, after_copy = 0, body_after = 0;
  };

  std::int64_t last_ns = 0;
  // More timestamps than the ring has slots; a stream's are made of events that are used again.
  for (int round = 0; round < 30; ++round) {
    Times times;
    times.submitted = TraceRecorder::now_ns();
    queue(0).submit({.name = "before"}, [&times] { times.body_before = TraceRecorder::now_ns(); });
    queue(0).timestamp(&times.after_body);
    harness_->copy(queue(0), {.source = 0, .target = target});
    queue(0).timestamp(&times.after_copy);
    queue(0).submit({.name = "after"}, [&times] { times.body_after = TraceRecorder::now_ns(); });
    ASSERT_TRUE(queue(0).drain().has_value());
    EXPECT_LE(last_ns, times.submitted);
    EXPECT_LE(times.submitted, times.body_before);
    EXPECT_LE(times.body_before, times.after_body);
    EXPECT_LE(times.after_body, times.after_copy);
    EXPECT_LE(times.after_copy, times.body_after);
    last_ns = times.body_after;
  }
}

TEST_P(QueueConformance, TimestampsAroundAWaitCoverItsLateness) {
  make({.ring_capacity = 4});
  for (int round = 0; round < 5; ++round) {
    std::int64_t begin_ns = 0, late_ns = 0, end_ns = 0;
    Gate gate;
    gate.block(*host_);
    host_->submit({.name = "late"}, [&late_ns] { late_ns = TraceRecorder::now_ns(); });
    queue(0).timestamp(&begin_ns);
    const Event begun = queue(0).record();
    queue(0).wait(host_->record());
    queue(0).timestamp(&end_ns);
    poll(begun);  // a wait behind it holds no timestamp up
    const std::int64_t seen_ns = TraceRecorder::now_ns();
    gate.open();
    ASSERT_TRUE(queue(0).drain().has_value());
    EXPECT_LE(begin_ns, seen_ns);
    EXPECT_LE(seen_ns, late_ns);
    EXPECT_LE(late_ns, end_ns);
    EXPECT_LE(end_ns, TraceRecorder::now_ns());
  }
}

TEST_P(QueueConformance, TimestampsOfAQueueAscendAcrossWaitsForItsKind) {
  make({.queues = 2, .ring_capacity = 2});
  const std::size_t target = reachable_cell();
  constexpr std::size_t kWaits = 100;
  std::vector<std::int64_t> times(2 * kWaits);
  for (std::size_t i = 0; i < kWaits; ++i) {
    harness_->copy(queue(1), {.source = 0, .target = target});
    queue(0).timestamp(&times[2 * i]);
    queue(0).wait(queue(1).record());
    queue(0).timestamp(&times[2 * i + 1]);
  }
  ASSERT_TRUE(queue(0).drain().has_value());
  EXPECT_GT(times.front(), 0);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_LE(times.back(), TraceRecorder::now_ns());
}

TEST_P(QueueConformance, ATimestampAfterAFaultFinishesAndWritesNothing) {
  make({.ring_capacity = 8});
  std::int64_t before_ns = -1, after_ns = -1;
  queue(0).timestamp(&before_ns);
  harness_->fail(queue(0));
  queue(0).timestamp(&after_ns);
  host_->submit({.name = "after"}, [] {});
  queue(0).wait(host_->record());
  queue(0).timestamp(&after_ns);
  const Event event = queue(0).record();
  EXPECT_FALSE(event.wait_host().has_value());
  EXPECT_TRUE(event.done());
  EXPECT_EQ(after_ns, -1);
}

TEST_P(QueueConformance, ATimestampTouchesNothing) {
  RaceChecker races;
  make({.queues = 2, .cells = 6}, &races);
  const std::uint64_t checked = races.operations_checked();
  std::int64_t time_ns = 0;
  queue(0).timestamp(&time_ns);
  ASSERT_TRUE(queue(0).drain().has_value());
  queue(1).timestamp(&time_ns);
  ASSERT_TRUE(queue(1).drain().has_value());
  EXPECT_EQ(races.operations_checked(), checked);
  EXPECT_EQ(races.race_count(), 0U);
  drain_all();
  runtime_->races = nullptr;
}

TEST_P(QueueConformance, AWaitHoldsBackWhatComesAfterIt) {
  make({.queues = 2});
  const std::size_t target = reachable_cell();
  Gate gate;
  gate.block(*host_);
  mix_on_host({.source = 1, .target = 0});
  queue(0).wait(host_->record());
  harness_->copy(queue(0), {.source = 0, .target = target});
  const Event copied = queue(0).record();
  queue(1).wait(copied);
  const Event chained = queue(1).record();
  EXPECT_FALSE(copied.done());
  EXPECT_FALSE(chained.done()) << "an event recorded after a wait includes it";
  gate.open();
  ASSERT_TRUE(chained.wait_host().has_value());
  EXPECT_TRUE(copied.done());
  EXPECT_EQ(value(target), mix(1000, 1001));
}

TEST_P(QueueConformance, ThreadsWaitForEventsOfEveryKind) {
  make({});
  const std::size_t target = reachable_cell();
  Gate gate;
  gate.block(*host_);
  queue(0).wait(host_->record());
  harness_->copy(queue(0), {.source = 0, .target = target});
  host_->wait(queue(0).record());  // after the gate, in order
  const Event all = host_->record();
  EXPECT_FALSE(all.done());
  gate.open();
  ASSERT_TRUE(all.wait_host().has_value());
  EXPECT_EQ(value(target), 1000U);
}

TEST_P(QueueConformance, UrgencyReachesAllThatAnEventNeedsAndNothingBehindIt) {
  make({.queues = 2, .ring_capacity = 8, .cells = 4});
  HeldQueue held(*runtime_, "held");
  const Event first = held.hold();
  const Event second = held.hold();
  const Event third = held.hold();
  // By way of the host queue and of another queue of this kind.
  queue(0).wait(first);
  host_->wait(queue(0).record());
  host_->wait(second);
  queue(1).wait(host_->record());
  harness_->copy(queue(1), {.source = 0, .target = reachable_cell()});
  const Event wanted = queue(1).record();
  queue(1).wait(third);
  wanted.expedite();
  EXPECT_TRUE(held.expedited(first));
  EXPECT_TRUE(held.expedited(second)) << "a wait that the host queue has not come to yet";
  EXPECT_FALSE(held.expedited(third));
  queue(1).record().expedite();
  EXPECT_TRUE(held.expedited(third));
  held.finish_all();
  drain_all();
}

TEST_P(QueueConformance, SubmittingBlocksWhileTheRingIsFull) {
  for (std::size_t capacity = 1; capacity <= 4; ++capacity) {
    make({.ring_capacity = capacity});
    const std::size_t target = reachable_cell();
    constexpr std::size_t kCopies = 12;
    Gate gate;
    gate.block(*host_);
    const Event blocked = host_->record();
    std::atomic<std::size_t> submitted{0};
    std::thread scheduler([&] {
      queue(0).wait(blocked);  // takes one place of the ring
      for (std::size_t i = 0; i < kCopies; ++i) {
        harness_->copy(queue(0), {.source = i % 2, .target = target});
        submitted.fetch_add(1);
      }
    });
    while (submitted.load() + 1 < capacity) {
      std::this_thread::yield();
    }
    EXPECT_LE(submitted.load() + 1, capacity);
    gate.open();
    scheduler.join();
    ASSERT_TRUE(queue(0).drain().has_value());
    EXPECT_EQ(value(target), 1001U);
  }
}

// A completion that counts its calls and remembers their order and thread.
struct CountingCompletion : Completion {
  CountingCompletion() {
    call = [](Completion* completion) {
      auto* self = static_cast<CountingCompletion*>(completion);
      self->thread = std::this_thread::get_id();
      self->place = self->order == nullptr ? 0 : self->order->fetch_add(1);
      self->calls.fetch_add(1);
    };
  }

  std::atomic<int>* order = nullptr;
  int place = -1;
  std::thread::id thread;
  std::atomic<int> calls{0};
};

TEST_P(QueueConformance, ACompletionIsCalledOnceWhetherItCameBeforeOrAfter) {
  make({.ring_capacity = 16});
  const std::size_t target = reachable_cell();
  Gate gate;
  gate.block(*host_);
  queue(0).wait(host_->record());
  std::array<CountingCompletion, 6> early;
  std::atomic<int> order{0};
  for (CountingCompletion& completion : early) {
    completion.order = &order;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    harness_->copy(queue(0), {.source = 0, .target = target});
    const Event event = queue(0).record();
    queue(0).notify(event.ticket(), &early[2 * i]);  // two for one ticket
    queue(0).notify(event.ticket(), &early[2 * i + 1]);
  }
  for (const CountingCompletion& completion : early) {
    EXPECT_EQ(completion.calls.load(), 0);
  }
  gate.open();
  const Event last = queue(0).record();
  for (const CountingCompletion& completion : early) {
    while (completion.calls.load() == 0) {
      std::this_thread::yield();
    }
  }
  ASSERT_TRUE(last.wait_host().has_value());
  for (std::size_t i = 0; i < early.size(); ++i) {
    EXPECT_EQ(early[i].calls.load(), 1);
    EXPECT_EQ(early[i].place, static_cast<int>(i)) << "completions come in the order of tickets";
  }
  CountingCompletion late;
  queue(0).notify(last.ticket(), &late);
  EXPECT_EQ(late.calls.load(), 1);
  EXPECT_EQ(late.thread, std::this_thread::get_id());
}

TEST_P(QueueConformance, NoWakeUpIsLostBetweenFinishingAndWaiting) {
  make({.queues = 2, .ring_capacity = 4});
  const std::size_t target = reachable_cell();
  constexpr std::uint64_t kCopies = 200;
  constexpr std::size_t kThreads = 3;
  const std::uint64_t first = queue(0).record().ticket();
  std::vector<CountingCompletion> completions(kThreads * kCopies);
  std::vector<std::thread> waiters;
  for (std::size_t t = 0; t < kThreads; ++t) {
    waiters.emplace_back([this, t, first, &completions] {
      for (std::uint64_t i = 0; i < kCopies; ++i) {
        const std::uint64_t ticket = first + 1 + i;
        queue(0).notify(ticket, &completions[t * kCopies + i]);
        if (i % (t + 1) == 0) {
          EXPECT_TRUE(queue(0).wait_host(ticket).has_value());
        }
      }
    });
  }
  for (std::uint64_t i = 0; i < kCopies; ++i) {
    harness_->copy(queue(0), {.source = 0, .target = target});
  }
  for (std::thread& waiter : waiters) {
    waiter.join();
  }
  ASSERT_TRUE(queue(0).drain().has_value());
  for (const CountingCompletion& completion : completions) {
    // The host wait may return just before the last completions are called.
    while (completion.calls.load() == 0) {
      std::this_thread::yield();
    }
    EXPECT_EQ(completion.calls.load(), 1);
  }
}

TEST_P(QueueConformance, AFailureSkipsWhatComesLaterOnEveryQueueAndReachesTheHost) {
  make({.queues = 2, .ring_capacity = 8});
  const std::size_t target = reachable_cell();
  const std::uint64_t before = value(target);
  fill_cell(harness_->cell_memory(0), harness_->cell_bytes(), 77);
  harness_->fail(queue(0));
  const Event failed = queue(0).record();
  harness_->copy(queue(0), {.source = 0, .target = target});
  queue(1).wait(failed);
  harness_->copy(queue(1), {.source = 0, .target = target});
  host_->wait(failed);
  mix_on_host({.source = 1, .target = 0});
  for (Queue* each : {&queue(0), &queue(1), static_cast<Queue*>(host_.get())}) {
    const Event event = each->record();
    const Status status = event.wait_host();
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(format_error(status.error(), true).find("planted"), std::string::npos)
        << format_error(status.error(), true);
    EXPECT_TRUE(event.done()) << "tickets finish after a fault";
  }
  EXPECT_EQ(read_cell(harness_->cell_memory(0), harness_->cell_bytes()), 77U);
  if (const std::byte* memory = harness_->cell_memory(target); memory != nullptr) {
    EXPECT_EQ(read_cell(memory, harness_->cell_bytes()), before);
  }
}

TEST_P(QueueConformance, AFaultElsewhereSkipsItsOperations) {
  make({.ring_capacity = 8, .cells = 6});
  Gate gate;
  gate.block(*host_);
  queue(0).wait(host_->record());
  // A copy into memory, so that the host can see that it did not happen.
  for (std::size_t source = 0; source < options_.cells; ++source) {
    if (source != 1 && harness_->can_copy({.source = source, .target = 1})) {
      harness_->copy(queue(0), {.source = source, .target = 1});
      break;
    }
  }
  const Event event = queue(0).record();
  runtime_->fault.raise(operating_error("another queue failed"));
  gate.open();
  EXPECT_FALSE(event.wait_host().has_value());
  EXPECT_EQ(read_cell(harness_->cell_memory(1), harness_->cell_bytes()), 1001U);
}

// A random program over the queues under test and the "host" queue, each operation with exactly the
// waits that its data needs, beside a sequential reference.
class RandomProgram {
 public:
  struct Step {
    std::size_t queue = 0;  // the last is the "host" queue
    CellCopy cells;
    std::vector<std::size_t> waits;  // earlier steps, each on another queue
    bool is_mix = false;
  };

  RandomProgram(std::uint64_t seed, const HarnessOptions& options)
      : random_(seed), last_(options.cells) {
    host_index_ = options.queues;
  }

  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

  // The step's waits: for the last writer of what it reads, and for the last writer and the readers
  // since of what it writes.
  Step add(std::size_t queue, const CellCopy& cells, bool is_mix) {
    Step step{.queue = queue, .cells = cells, .waits = {}, .is_mix = is_mix};
    const std::size_t index = queues_.size();
    need(step, last_[cells.source].writer);
    need(step, last_[cells.target].writer);
    for (const std::size_t reader : last_[cells.target].readers) {
      need(step, reader);
    }
    queues_.push_back(queue);
    last_[cells.source].readers.push_back(index);
    last_[cells.target] = {.writer = index, .readers = {}};
    return step;
  }

  [[nodiscard]] std::size_t host_index() const { return host_index_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  struct LastUse {
    std::size_t writer = kNone;
    std::vector<std::size_t> readers = {};
  };

  void need(Step& step, std::size_t earlier) const {
    if (earlier != kNone && queues_[earlier] != step.queue) {
      step.waits.push_back(earlier);
    }
  }

  std::mt19937_64 random_;
  std::size_t host_index_ = 0;
  std::vector<LastUse> last_;
  std::vector<std::size_t> queues_;  // of each step
};

TEST_P(QueueConformance, RandomProgramsWithTheirWaitsEqualTheSequentialReference) {
  const std::uint64_t base_seed = test_seed();
  constexpr std::size_t kSteps = 60;
  for (int run = 0; run < GetParam().random_programs; ++run) {
    const std::uint64_t seed = base_seed + static_cast<std::uint64_t>(run);
    SCOPED_TRACE("HEADRACE_SEED=" + std::to_string(seed));
    std::mt19937_64 shape(seed);
    const HarnessOptions options = {
        .queues = 1 + shape() % 4, .ring_capacity = 1 + shape() % 4, .cells = 4 + shape() % 6};
    RaceChecker races;
    make(options, run % 2 == 0 ? &races : nullptr);
    std::vector<std::uint64_t> reference(options.cells);
    for (std::size_t cell = 0; cell < options.cells; ++cell) {
      reference[cell] = harness_->cell_memory(cell) != nullptr ? 1000 + cell : 1000;
    }
    RandomProgram program(seed, options);
    std::vector<Event> events;
    while (events.size() < kSteps) {
      const std::size_t index = program.below(options.queues + 1);
      const bool is_mix = index == program.host_index();
      const CellCopy cells = {.source = program.below(options.cells),
                              .target = program.below(options.cells)};
      const bool possible = is_mix ? harness_->cell_memory(cells.source) != nullptr &&
                                         harness_->cell_memory(cells.target) != nullptr
                                   : harness_->can_copy(cells);
      if (cells.source == cells.target || !possible) {
        continue;
      }
      const RandomProgram::Step step = program.add(index, cells, is_mix);
      Queue& target = is_mix ? static_cast<Queue&>(*host_) : queue(index);
      for (const std::size_t wait : step.waits) {
        target.wait(events[wait]);
      }
      if (is_mix) {
        mix_on_host(cells);
        reference[cells.target] = mix(reference[cells.target], reference[cells.source]);
      } else {
        harness_->copy(target, cells);
        reference[cells.target] = reference[cells.source];
      }
      events.push_back(target.record());
    }
    drain_all();
    ASSERT_EQ(races.race_count(), 0U) << races.races().front().text;
    runtime_->races = nullptr;  // value() borrows cell 1
    // Memory first: fetching a storage cell overwrites cell 1.
    for (std::size_t cell = 0; cell < options.cells; ++cell) {
      if (harness_->cell_memory(cell) != nullptr) {
        ASSERT_EQ(value(cell), reference[cell]) << "cell " << cell;
      }
    }
    for (std::size_t cell = 0; cell < options.cells; ++cell) {
      ASSERT_EQ(harness_->cell_memory(cell) != nullptr || value(cell) == reference[cell], true)
          << "cell " << cell;
    }
  }
}

TEST_P(QueueConformance, CopiesDeclareWhatTheyTouch) {
  // Read after write, write after read and write after write, from this kind to the host's and
  // back, each without its wait and with it.
  for (const bool with_wait : {false, true}) {
    for (const bool copy_first : {true, false}) {
      for (const std::size_t touched : {std::size_t{0}, std::size_t{1}}) {
        RaceChecker races;
        make({.cells = 6}, &races);
        // A copy that reads cell 0, or one that writes cell 1.
        CellCopy copy = {.source = 0, .target = reachable_cell()};
        if (touched == 1) {
          for (std::size_t source = options_.cells; source-- > 0;) {
            if (source != 1 && harness_->can_copy({.source = source, .target = 1})) {
              copy = {.source = source, .target = 1};
              break;
            }
          }
        }
        const CellCopy mixed = {.source = 1 - touched, .target = touched};
        if (copy_first) {
          harness_->copy(queue(0), copy);
          const Event copied = queue(0).record();
          poll(copied);
          if (with_wait) {
            host_->wait(copied);
          }
          mix_on_host(mixed);
        } else {
          mix_on_host(mixed);
          const Event written = host_->record();
          poll(written);
          if (with_wait) {
            queue(0).wait(written);
          }
          harness_->copy(queue(0), copy);
        }
        EXPECT_EQ(races.race_count() > 0, !with_wait)
            << "copy first: " << copy_first << ", cell " << touched;
        drain_all();
        runtime_->races = nullptr;
      }
    }
  }
}

}  // namespace headrace::tiers
