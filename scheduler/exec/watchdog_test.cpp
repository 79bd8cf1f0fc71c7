// What the watchdog says of queues and a simulated drive, at times that the test gives.
#include "scheduler/exec/watchdog.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/simulated_disk.hpp"
#include "tiers/nvme/test_support.hpp"
#include "tiers/test_support.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::exec {
namespace {

namespace nt = tiers::nvme::testing;
using nt::expect_contains;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLimit = 60 * kSecond;
constexpr std::size_t kChunkBytes = tiers::nvme::kSumBlockBytes;
constexpr std::uint64_t kTileBytes = 4 * kChunkBytes;

// A drive that moves when the test turns it, and two queues that wait for it and for one another.
class WatchdogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto disk = std::make_shared<tiers::nvme::SimulatedDisk>(
        "/disk/data", tiers::nvme::SimulatedDiskOptions{.seed = 1}, power_);
    tiers::nvme::StoreContents contents;
    contents.tiles.push_back({.unit = 3, .tile = 0, .param_bytes = kTileBytes, .state_bytes = 0});
    contents.layout_tag = "test";
    contents.tensor_table = "{}";
    std::vector<std::unique_ptr<tiers::nvme::BlockFile>> files;
    files.push_back(std::make_unique<tiers::nvme::SimulatedFile>(disk));
    auto store = tiers::nvme::Store::format(std::move(files), Id128{1, 2}, contents, {});
    ASSERT_TRUE(store.has_value()) << format_error(store.error(), true);
    store_ = std::move(*store);
    memory_ = nt::pages(kTileBytes);
    HEADRACE_EXPECT_OK(store_->mark_dirty());
    HEADRACE_EXPECT_OK(store_->write_now(key(), memory_.bytes(), 1));
    tiers::nvme::EngineOptions options{.lanes = 1, .io_depth = 1};
    options.request_bytes_max = kChunkBytes;
    options.driven_by_caller = true;
    options.make_backend = tiers::nvme::make_simulated_backend;
    engine_ = tiers::nvme::IoEngine::create(runtime_, *store_, 0, options).value();
    host_ = std::make_unique<tiers::ThreadQueue>(runtime_, "host", tiers::ThreadQueueOptions{});
    compute_ =
        std::make_unique<tiers::ThreadQueue>(runtime_, "compute", tiers::ThreadQueueOptions{});
    const std::vector<tiers::Queue*> queues = {compute_.get(), host_.get(), &engine_->lane(0)};
    watchdog_ = std::make_unique<Watchdog>(
        Watchdog::Source{.progress =
                             [this, queues] {
                               std::uint64_t progress = engine_->totals().read_bytes;
                               for (const tiers::Queue* queue : queues) {
                                 progress += queue->finished_ticket();
                               }
                               return progress;
                             },
                         .waits =
                             [queues] {
                               std::vector<tiers::QueueWait> waits;
                               for (const tiers::Queue* queue : queues) {
                                 if (auto wait = queue->describe_wait()) {
                                   waits.push_back(std::move(*wait));
                                 }
                               }
                               return waits;
                             }},
        kLimit);
    start_ns_ = TraceRecorder::now_ns();
  }

  void TearDown() override {
    while (engine_->turn()) {
    }
    HEADRACE_EXPECT_OK(host_->drain());
    HEADRACE_EXPECT_OK(compute_->drain());
  }

  static tiers::nvme::ExtentKey key() {
    return {.unit = 3, .tile = 0, .kind = tiers::nvme::ExtentKind::kParam};
  }

  // An update that needs a read, and a forward that needs the update.
  void submit_step() {
    engine_->lane(0).read(key(), memory_.bytes(), 7);
    host_->wait(engine_->lane(0).record());
    host_->submit({.name = "update", .id = 8}, [] {});
    compute_->wait(host_->record());
    compute_->submit({.name = "forward", .id = 9}, [] {});
  }

  // The drive moves a part of the extent.
  void move_some_bytes() {
    const std::uint64_t before = engine_->totals().read_bytes;
    while (engine_->totals().read_bytes == before) {
      ASSERT_TRUE(engine_->turn());
    }
  }

  // What is said `seconds` after the start; "" for nothing.
  std::string look(std::int64_t seconds) {
    const auto report = watchdog_->look(start_ns_ + seconds * kSecond);
    return report ? (report->stuck ? "stuck: " : "goes on: ") + report->text : "";
  }

  tiers::nvme::PowerSupply power_;
  std::unique_ptr<tiers::nvme::Store> store_;
  tiers::nvme::PageBuffer memory_;
  tiers::Runtime runtime_;
  std::unique_ptr<tiers::nvme::IoEngine> engine_;
  std::unique_ptr<tiers::ThreadQueue> host_, compute_;
  std::unique_ptr<Watchdog> watchdog_;
  std::int64_t start_ns_ = 0;
};

TEST_F(WatchdogTest, AReadThatDoesNotEndIsNamedWithItsPlaceAndWhoWaitsForIt) {
  submit_step();
  move_some_bytes();
  EXPECT_EQ(look(0), "");
  EXPECT_EQ(look(59), "");
  const std::string text = look(61);
  expect_contains(text, "stuck: nothing has been done for 1 min 1 s");
  expect_contains(text, "nvme.0: nvme read (#7) of unit 3, tile 0 (param) at offset");
  expect_contains(text, "'/disk/data'");
  expect_contains(text, "bytes moved");
  expect_contains(text, "and these wait for others:");
  expect_contains(text, "compute: waits for ticket 2 of host; 1 behind it");
  expect_contains(text, "host: waits for ticket 1 of nvme.0; 1 behind it");
  expect_contains(text, "dmesg");
  EXPECT_LT(text.find("nvme read"), text.find("compute: waits")) << "the cause comes first";
}

TEST_F(WatchdogTest, TheWarningComesAgainWhenTheSilenceHasDoubledAndItsEndIsTold) {
  submit_step();
  EXPECT_EQ(look(0), "");
  expect_contains(look(60), "nothing has been done for 1");
  EXPECT_EQ(look(61), "");
  EXPECT_EQ(look(119), "");
  expect_contains(look(120), "stuck: nothing has been done for 2");
  EXPECT_EQ(look(200), "");
  move_some_bytes();
  expect_contains(look(201), "goes on: the run goes on, after");
  EXPECT_EQ(look(202), "");
  EXPECT_EQ(look(260), "") << "the silence is counted anew";
  expect_contains(look(261), "stuck: nothing has been done for 1 min");
}

TEST_F(WatchdogTest, BytesThatMoveAreProgressThoughNoOperationEnds) {
  submit_step();
  EXPECT_EQ(look(0), "");
  for (const std::int64_t seconds : {50, 100, 150}) {
    move_some_bytes();
    EXPECT_EQ(look(seconds), "");
  }
}

TEST_F(WatchdogTest, NothingToDoIsNotStuck) {
  EXPECT_EQ(look(0), "");
  EXPECT_EQ(look(10'000), "");
  submit_step();
  EXPECT_EQ(look(10'001), "");
  EXPECT_EQ(look(10'059), "") << "the time without work does not count";
}

TEST_F(WatchdogTest, AnOperationThatComputesForLongIsNamedAsOne) {
  tiers::Gate gate;
  compute_->submit({.name = "forward", .id = 12}, [&gate] { gate.pass(); });
  EXPECT_EQ(look(0), "");
  const std::string text = look(60);
  expect_contains(text, "compute: runs forward (#12)");
  expect_contains(text, "whether it computes");
  gate.open();
  HEADRACE_EXPECT_OK(compute_->drain());  // before the gate goes
}

TEST_F(WatchdogTest, WhatTheSchedulerDoesItselfCountsToo) {
  {
    Watchdog::Task task(watchdog_.get(), "the store commits step 4: '/disk/data'");
    EXPECT_EQ(look(0), "");
    EXPECT_EQ(look(59), "");
    task.tick();
    EXPECT_EQ(look(100), "");
    EXPECT_EQ(look(101), "");
    expect_contains(look(161), "the store commits step 4: '/disk/data'");
  }
  expect_contains(look(162), "goes on: ");
  EXPECT_EQ(look(1000), "");
  const Watchdog::Task unwatched(nullptr, "nobody looks");
}

}  // namespace
}  // namespace headrace::exec
