// ThreadQueue: the conformance suite, and what is its own: names, flush-to-zero, the fault's text,
// exceptions, the cores' lock, observers, traces, destruction.
#include "tiers/thread_queue.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/float_environment.hpp"
#include "core/trace.hpp"
#include "tiers/queue_conformance.hpp"
#include "tiers/test_support.hpp"

namespace headrace::tiers {
namespace {

class ThreadHarness final : public QueueHarness {
 public:
  ThreadHarness(Runtime& runtime, const HarnessOptions& options)
      : memory_(options.cells * kCellBytes) {
    for (std::size_t i = 0; i < options.queues; ++i) {
      queues_.push_back(
          std::make_unique<ThreadQueue>(runtime,
                                        "copy." + std::to_string(i),
                                        ThreadQueueOptions{.capacity = options.ring_capacity}));
    }
  }

  Queue& queue(std::size_t index) override { return *queues_.at(index); }

  [[nodiscard]] std::size_t cell_bytes() const override { return kCellBytes; }

  std::byte* cell_memory(std::size_t cell) override { return &memory_.at(cell * kCellBytes); }

  bool can_copy(const CellCopy& copy) override { return copy.source != copy.target; }

  void copy(Queue& queue, const CellCopy& copy) override {
    const std::byte* source = cell_memory(copy.source);
    std::byte* target = cell_memory(copy.target);
    const MemorySpan read(source, kCellBytes);
    const MemorySpan write(target, kCellBytes);
    queue.submit({.name = "copy", .reads = {&read, 1}, .writes = {&write, 1}},
                 [source, target] { std::memcpy(target, source, kCellBytes); });
  }

  void fail(Queue& queue) override {
    queue.submit({.name = "fail"}, []() -> Status { return operating_error("planted failure"); });
  }

 private:
  static constexpr std::size_t kCellBytes = 256;
  std::vector<std::byte> memory_;
  std::vector<std::unique_ptr<ThreadQueue>> queues_;
};

INSTANTIATE_TEST_SUITE_P(Threads,
                         QueueConformance,
                         ::testing::Values(HarnessKind{
                             .name = "thread",
                             .make = [](Runtime& runtime, const HarnessOptions& options)
                                 -> std::unique_ptr<QueueHarness> {
                               return std::make_unique<ThreadHarness>(runtime, options);
                             }}),
                         [](const auto& kind) { return kind.param.name; });

TEST(ThreadQueue, ItsThreadIsNamedAfterItAndFlushesSubnormals) {
  Runtime runtime;
  ThreadQueue queue(runtime, "a-rather-long-queue-name", {});
  std::array<char, 16> name = {};
  bool flushes = false;
  queue.submit({.name = "look"}, [&name, &flushes] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    flushes = flush_to_zero_is_set();
  });
  ASSERT_TRUE(queue.drain().has_value());
  EXPECT_STREQ(name.data(), "a-rather-long-q");
  EXPECT_TRUE(flushes);
}

TEST(ThreadQueue, AnErrorNamesItsOperationAndOnlyTheFirstIsKept) {
  Runtime runtime;
  ThreadQueue queue(runtime, "compute", {});
  queue.submit({.name = "forward", .id = 12}, []() -> Status { return operating_error("first"); });
  queue.submit({.name = "backward", .id = 13},
               []() -> Status { return operating_error("second"); });
  const Status status = queue.drain();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().what, "first");
  ASSERT_EQ(status.error().trace.size(), 1U);
  EXPECT_EQ(status.error().trace.front(), "'forward' (#12 on compute)");
  EXPECT_TRUE(runtime.fault.raised());
}

TEST(ThreadQueue, AnExceptionOfABodyIsTheFault) {
  struct Case {
    void (*body)();
    const char* text;
  };

  for (const Case& thrown :
       {Case{[] { throw std::bad_alloc(); }, "out of memory"},
        Case{[] { throw std::runtime_error("a library's words"); }, "a library's words"},
        Case{[] { throw 7; }, "unknown exception"}}) {
    Runtime runtime;
    ThreadQueue queue(runtime, "compute", {});
    queue.submit({.name = "gemm", .id = 3}, [body = thrown.body] { body(); });
    const Status status = queue.drain();
    ASSERT_FALSE(status.has_value());
    const std::string text = format_error(status.error(), true);
    EXPECT_NE(text.find(thrown.text), std::string::npos) << text;
    EXPECT_NE(text.find("'gemm' (#3 on compute)"), std::string::npos) << text;
  }
}

TEST(ThreadQueue, OperationsThatShareTheCoresNeverRunTogether) {
  Runtime runtime;
  Cores cores;
  ThreadQueue compute(runtime, "compute", {.cores = &cores});
  ThreadQueue update(runtime, "update", {.cores = &cores});
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  for (int i = 0; i < 200; ++i) {
    for (ThreadQueue* queue : {&compute, &update}) {
      queue->submit({.name = "work"}, [&inside, &most] {
        const int now = inside.fetch_add(1) + 1;
        most.store(std::max(most.load(), now));
        inside.fetch_sub(1);
      });
    }
  }
  ASSERT_TRUE(compute.drain().has_value());
  ASSERT_TRUE(update.drain().has_value());
  EXPECT_EQ(most.load(), 1);
}

// Whoever comes first: between what was ready when the cores were given there is nothing else.
TEST(ThreadQueue, WhatIsReadyOfAQueueThatKeepsTheCoresGoesTogether) {
  for (int round = 0; round < 50; ++round) {
    Runtime runtime;
    Cores cores;
    ThreadQueue compute(runtime, "compute", {.cores = &cores});
    ThreadQueue update(runtime, "update", {.cores = &cores, .keeps_cores = true});
    const Event done = update.record();
    std::string order;  // only who has the cores writes
    const auto work = [&order](char name) { return [&order, name] { order += name; }; };
    {
      const std::unique_lock<Cores> held = cores.hold();
      compute.submit({.name = "kernel"}, work('k'));
      update.submit({.name = "update"}, work('u'));
      update.wait(done);  // over: no reason to let go
      update.submit({.name = "update"}, work('u'));
      compute.submit({.name = "kernel"}, work('k'));
    }
    ASSERT_TRUE(compute.drain().has_value());
    ASSERT_TRUE(update.drain().has_value());
    EXPECT_NE(order.find("uu"), std::string::npos) << order;
    const std::unique_lock<Cores> held = cores.hold();  // for ever, if it kept them for nothing
  }
}

TEST(ThreadQueue, AQueueThatKeepsTheCoresLetsGoWhileItWaits) {
  Runtime runtime;
  Cores cores;
  ThreadQueue compute(runtime, "compute", {.cores = &cores});
  ThreadQueue update(runtime, "update", {.cores = &cores, .keeps_cores = true});
  update.submit({.name = "update"}, [] {});
  Gate gate;
  gate.block(compute);  // holds the cores once it runs
  const Event kernel = compute.record();
  update.wait(kernel);
  update.submit({.name = "update"}, [] {});
  gate.open();
  ASSERT_TRUE(update.drain().has_value());  // for ever, if it kept them
}

TEST(ThreadQueue, AWaitThatBlockedIsObservedAndADoneOneIsNot) {
  Runtime runtime;
  ThreadQueue link(runtime, "h2d", {});
  std::vector<int> waited_for;
  ThreadQueue compute(runtime,
                      "compute",
                      {.on_waited = [&waited_for](const Event& event, std::chrono::nanoseconds) {
                        waited_for.push_back(event.queue()->index());
                      }});
  compute.wait(link.record());
  ASSERT_TRUE(compute.drain().has_value());
  EXPECT_TRUE(waited_for.empty());
  // Whether the worker comes to a wait before its gate opens is luck, so try until it does.
  while (waited_for.empty()) {
    Gate gate;
    gate.block(link);
    compute.wait(link.record());
    for (int i = 0; i < 100; ++i) {
      std::this_thread::yield();
    }
    gate.open();
    ASSERT_TRUE(compute.drain().has_value());
  }
  EXPECT_EQ(waited_for, std::vector<int>{link.index()});
}

TEST(ThreadQueue, WhatAQueueThatExpeditesComesToWaitForIsWantedNow) {
  Runtime runtime;
  HeldQueue drive(runtime, "drive");
  ThreadQueue link(runtime, "h2d", {});
  ThreadQueue compute(runtime, "compute", {.expedites = true});
  const Event read = drive.hold();
  const Event prefetch = drive.hold();
  link.wait(read);
  compute.wait(link.record());
  link.wait(prefetch);
  drive.wait_until_expedited(read);  // for ever, if the worker does not pass it on
  EXPECT_FALSE(drive.expedited(prefetch)) << "nobody but the link waits for it";
  drive.finish_all();
  ASSERT_TRUE(compute.drain().has_value());
  ASSERT_TRUE(link.drain().has_value());
}

TEST(ThreadQueue, OperationsAreSpansOfTheTraceAndDroppedOnesAreNot) {
  TraceRecorder trace(64);
  Runtime runtime;
  runtime.trace = &trace;
  ThreadQueue queue(runtime, "compute", {});
  queue.submit({.name = "forward"}, [] {});
  queue.submit({.name = "fail"}, []() -> Status { return operating_error("planted"); });
  queue.submit({.name = "skipped"}, [] {});
  ASSERT_FALSE(queue.drain().has_value());
  EXPECT_EQ(trace.events_recorded(), 2U);
}

TEST(ThreadQueue, DestructionFinishesWhatWasSubmitted) {
  int done = 0;
  {
    Runtime runtime;
    ThreadQueue queue(runtime, "compute", {.capacity = 4});
    for (int i = 0; i < 100; ++i) {
      queue.submit({.name = "count"}, [&done] { ++done; });
    }
  }
  EXPECT_EQ(done, 100);
}

TEST(ThreadQueue, TheStartOfItsThreadComesBeforeItsOperations) {
  Runtime runtime;
  int started = 0;
  ThreadQueue queue(runtime, "compute", {.on_thread_start = [&started] { started = 1; }});
  int seen = 0;
  queue.submit({.name = "look"}, [&started, &seen] { seen = started; });
  ASSERT_TRUE(queue.drain().has_value());
  EXPECT_EQ(seen, 1);
}

TEST(ThreadQueueDeathTest, AnEventOfAnotherRuntimeIsAProgrammersError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Runtime one;
  Runtime two;
  ThreadQueue first(one, "first", {});
  ThreadQueue second(two, "second", {});
  EXPECT_DEATH(first.wait(second.record()), "another runtime");
}

}  // namespace
}  // namespace headrace::tiers
