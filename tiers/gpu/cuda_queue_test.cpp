// CudaQueue: the conformance suite, and what is its own: plain bodies in stream order, the fault's
// text. Runs on the emulated runtime and, in gpu_test, on a real GPU.
#include "tiers/gpu/cuda_queue.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tiers/gpu/cuda_device.hpp"
#include "tiers/gpu/cuda_error.hpp"
#include "tiers/gpu/test_machine.hpp"
#include "tiers/memory.hpp"
#include "tiers/queue_conformance.hpp"
#include "tiers/test_support.hpp"

namespace headrace::tiers::gpu {
namespace {

constexpr std::size_t kCellBytes = 256;

// Cells 0 and 1, and every odd one, are pinned host memory; the others are device memory, which the
// host cannot look at.
class CudaHarness final : public QueueHarness {
 public:
  CudaHarness(Runtime& runtime, const HarnessOptions& options, std::uint64_t seed) {
    begin_test_machine(seed);
    auto host = Arena::create(Tier::kHost, "cells", options.cells * kCellBytes);
    EXPECT_TRUE(host.has_value());
    host_ = std::move(*host);
    // Its own queues are not used: there are as many here as a test asks for.
    auto device = make_cuda_device(runtime, {.ring_capacity = 1});
    EXPECT_TRUE(device.has_value()) << format_error(device.error(), true);
    device_ = std::move(*device);
    EXPECT_TRUE(device_->pin({host_->data(), host_->bytes()}).has_value());
    auto memory = device_->allocate(options.cells * kCellBytes);
    EXPECT_TRUE(memory.has_value());
    device_memory_ = memory->data();
    PollerOptions poller_options;
    for (std::size_t i = 0; i < options.queues; ++i) {
      poller_options.queues.push_back(
          {.name = "stream." + std::to_string(i), .capacity = options.ring_capacity});
    }
    auto poller = StreamPoller::create(runtime, std::move(poller_options));
    EXPECT_TRUE(poller.has_value());
    poller_ = std::move(*poller);
    freeze_test_machine();
  }

  ~CudaHarness() override {
    thaw_test_machine();
    poller_.reset();
    device_.reset();
    end_test_machine();
  }

  CudaHarness(const CudaHarness&) = delete;
  CudaHarness& operator=(const CudaHarness&) = delete;

  Queue& queue(std::size_t index) override { return poller_->queue(index); }

  [[nodiscard]] std::size_t cell_bytes() const override { return kCellBytes; }

  std::byte* cell_memory(std::size_t cell) override {
    return on_device(cell) ? nullptr : host_->data() + cell * kCellBytes;
  }

  bool can_copy(const CellCopy& copy) override {
    return copy.source != copy.target && (on_device(copy.source) || on_device(copy.target));
  }

  void copy(Queue& queue, const CellCopy& copy) override {
    const std::byte* source = place(copy.source);
    std::byte* target = place(copy.target);
    const MemorySpan read(source, kCellBytes);
    const MemorySpan write(target, kCellBytes);
    dynamic_cast<CudaQueue&>(queue).issue(
        {.name = "copy", .reads = {&read, 1}, .writes = {&write, 1}},
        [source, target](cudaStream_t stream) {
          return check(cudaMemcpyAsync(target, source, kCellBytes, cudaMemcpyDefault, stream),
                       "cudaMemcpyAsync",
                       0);
        });
  }

  void fail(Queue& queue) override {
    dynamic_cast<CudaQueue&>(queue).issue({.name = "fail"}, [](cudaStream_t) -> Status {
      return operating_error("planted failure");
    });
  }

 private:
  static bool on_device(std::size_t cell) { return cell > 1 && cell % 2 == 0; }

  std::byte* place(std::size_t cell) {
    return on_device(cell) ? device_memory_ + cell * kCellBytes : host_->data() + cell * kCellBytes;
  }

  std::unique_ptr<Arena> host_;
  std::unique_ptr<Device> device_;
  std::byte* device_memory_ = nullptr;
  std::unique_ptr<StreamPoller> poller_;
};

// Every harness another machine: the scheduler's moods and orders.
std::unique_ptr<QueueHarness> make_harness(Runtime& runtime, const HarnessOptions& options) {
  static std::uint64_t seed = test_seed();
  return std::make_unique<CudaHarness>(runtime, options, seed++);
}

INSTANTIATE_TEST_SUITE_P(Cuda,
                         QueueConformance,
                         ::testing::Values(HarnessKind{.name = "stream", .make = make_harness}),
                         [](const auto& kind) { return kind.param.name; });

class CudaQueues : public ::testing::Test {
 protected:
  CudaQueues() {
    begin_test_machine(test_seed());
    auto poller = StreamPoller::create(
        runtime_, {.queues = {{.name = "compute", .capacity = 4}, {.name = "h2d", .capacity = 4}}});
    EXPECT_TRUE(poller.has_value());
    poller_ = std::move(*poller);
  }

  ~CudaQueues() override {
    poller_.reset();
    end_test_machine();
  }

  Runtime runtime_;
  std::unique_ptr<StreamPoller> poller_;
};

TEST_F(CudaQueues, APlainBodyRunsOnThePollerOnceWhatCameBeforeIsOver) {
  std::vector<int> order;
  std::thread::id first;
  std::thread::id second;
  poller_->queue(0).submit({.name = "one"}, [&order, &first] {
    first = std::this_thread::get_id();
    order.push_back(1);
  });
  poller_->queue(1).wait(poller_->queue(0).record());
  poller_->queue(1).submit({.name = "two"}, [&order, &second] {
    second = std::this_thread::get_id();
    order.push_back(2);
  });
  ASSERT_TRUE(poller_->queue(1).drain().has_value());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

// All is submitted while the poller is held, so it issues all before it asks what is over.
TEST_F(CudaQueues, ATimestampDoesNotWaitForTheStream) {
  CudaQueue& queue = poller_->queue(1);
  Gate gate;
  std::uint64_t finished = ~std::uint64_t{0};
  std::int64_t time_ns = 0;
  queue.issue({.name = "gate"}, [&gate](cudaStream_t) -> Status {
    gate.pass();
    return {};
  });
  queue.issue({.name = "first"}, [](cudaStream_t) -> Status { return {}; });
  const std::uint64_t first = queue.record().ticket();
  queue.timestamp(&time_ns);
  queue.issue({.name = "second"}, [&queue, &finished](cudaStream_t) -> Status {
    finished = queue.finished_ticket();
    return {};
  });
  gate.open();
  ASSERT_TRUE(queue.drain().has_value());
  EXPECT_LT(finished, first) << "what follows the timestamp was issued once the stream was idle";
  EXPECT_GT(time_ns, 0);
}

TEST_F(CudaQueues, WhatAQueueIsAtIsKnown) {
  EXPECT_FALSE(poller_->queue(1).describe_wait().has_value());
  ThreadQueue host(runtime_, "host", {});
  Gate gate;
  gate.block(host);
  poller_->queue(1).wait(host.record());
  poller_->queue(1).submit({.name = "copy", .id = 7}, [] {});
  const auto wait = poller_->queue(1).describe_wait();
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->what, "h2d: waits for ticket 1 of host; 1 behind it");
  EXPECT_EQ(wait->kind, QueueWait::Kind::kWaits);
  gate.open();
  EXPECT_TRUE(poller_->queue(1).drain().has_value());
}

TEST_F(CudaQueues, AnErrorNamesItsOperation) {
  poller_->queue(1).issue({.name = "copy to device", .id = 12}, [](cudaStream_t) -> Status {
    return check(cudaErrorInvalidValue, "cudaMemcpyAsync", 0);
  });
  const Status status = poller_->queue(1).drain();
  ASSERT_FALSE(status.has_value());
  const std::string text = format_error(status.error(), true);
  EXPECT_NE(text.find("cudaMemcpyAsync"), std::string::npos) << text;
  EXPECT_NE(text.find("'copy to device' (#12 on h2d)"), std::string::npos) << text;
}

}  // namespace
}  // namespace headrace::tiers::gpu
