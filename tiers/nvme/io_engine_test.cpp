// Lanes and the engine against real files: order, depth, faults, ends.
#include "tiers/nvme/io_engine.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <random>

#include "core/trace.hpp"
#include "tiers/nvme/io_test_support.hpp"
#include "tiers/nvme/test_support.hpp"
#include "tiers/race_checker.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::all_extents;
using testing::expect_contains;
using testing::expect_holds;
using testing::fill;
using testing::make_store;
using testing::pages;
using testing::pattern;
using testing::RepeatedMemory;
using testing::TestFolder;
using testing::with_rule;

std::unique_ptr<IoEngine> make_engine(Runtime& runtime,
                                      Store& store,
                                      const EngineOptions& options = {}) {
  Result<std::unique_ptr<IoEngine>> engine = IoEngine::create(runtime, store, 0, options);
  if (!engine) {
    ADD_FAILURE() << format_error(engine.error(), true);
    return nullptr;
  }
  return std::move(*engine);
}

constexpr ExtentKey kLargeState{.unit = 2, .tile = 1, .kind = ExtentKind::kState};
constexpr ExtentKey kSmallParam{.unit = 2, .tile = 0, .kind = ExtentKind::kParam};

class IoEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = make_store(folder_.path());
    ASSERT_NE(store_, nullptr);
    HEADRACE_EXPECT_OK(store_->mark_dirty());
  }

  // Writes the extent through the lane and reads it back into other memory.
  void round_trip(IoLane& lane, const ExtentKey& key, std::int64_t step) {
    const std::size_t bytes = store_->read_place(key).payload_bytes;
    const PageBuffer source = pages(bytes);
    const PageBuffer target = pages(bytes);
    fill(source.bytes(), key, step);
    lane.write(key, source.bytes(), step, 1);
    lane.read(key, target.bytes(), 2);
    HEADRACE_EXPECT_OK(lane.drain());
    EXPECT_EQ(std::memcmp(source.bytes().data(), target.bytes().data(), bytes), 0);
  }

  // The error of reading the extent through a lane of an engine of its own, whichever thread sums.
  Error read_error(const ExtentKey& key) {
    Error error = read_error(key, true);
    const Error without = read_error(key, false);
    EXPECT_EQ(format_error(error, true), format_error(without, true));
    return error;
  }

  Error read_error(const ExtentKey& key, bool sum_thread) {
    Runtime runtime;
    const auto engine = make_engine(runtime, *store_, {.sum_thread = sum_thread});
    const PageBuffer target = pages(store_->read_place(key).payload_bytes);
    engine->lane(0).read(key, target.bytes(), 7);
    const Status status = engine->lane(0).drain();
    EXPECT_FALSE(status.has_value());
    return status ? Error{} : status.error();
  }

  TestFolder folder_;
  std::unique_ptr<Store> store_;
  Runtime runtime_;
};

TEST_F(IoEngineTest, WhatALaneWritesALaneAndASynchronousReadGetBack) {
  const auto engine = make_engine(runtime_, *store_, {.lanes = 2});
  std::uint64_t bytes = 0;
  for (const ExtentKey& key : all_extents(*store_)) {
    round_trip(engine->lane(0), key, 3);
    expect_holds(*store_, key, 3);
    EXPECT_EQ(store_->step_of(key), 3);
    bytes += store_->read_place(key).payload_bytes + store_->read_place(key).header_bytes;
  }
  EXPECT_EQ(engine->totals().write_bytes, bytes);
  EXPECT_EQ(engine->totals().read_bytes, bytes);
  EXPECT_EQ(engine->totals().resubmitted, 0U);
  EXPECT_GT(engine->memory_bytes(), 0U);
}

TEST_F(IoEngineTest, AnyDepthRequestSizeAndRingMakesProgress) {
  for (const int io_depth : {1, 2, 7}) {
    for (const std::size_t request_pages : {1UL, 3UL, 32UL, 4096UL}) {
      for (const std::size_t lane_capacity : {1UL, 3UL}) {
        for (const bool sum_thread : {true, false}) {
          const auto engine = make_engine(runtime_,
                                          *store_,
                                          {.lanes = 3,
                                           .io_depth = io_depth,
                                           .request_bytes_max = request_pages * kPageBytes,
                                           .lane_capacity = lane_capacity,
                                           .sum_thread = sum_thread});
          round_trip(engine->lane(0), kSmallParam, 0);
          round_trip(engine->lane(1), {.unit = 0, .tile = 1, .kind = ExtentKind::kParam}, 1);
          round_trip(engine->lane(2), kLargeState, 2);
        }
      }
    }
  }
}

TEST_F(IoEngineTest, WhereNoThreadForSumsCanBeStartedTheEnginesOwnSums) {
  testing::write_all_extents(*store_, 1);
  const int result = testing::in_a_child([&] {
    // This thread and the engine's: where the user has others, not even that one can be started.
    const rlimit limit{.rlim_cur = 2, .rlim_max = 2};
    if (!testing::become_an_ordinary_user() || ::setrlimit(RLIMIT_NPROC, &limit) != 0) {
      return 77;
    }
    Runtime runtime;
    Result<std::unique_ptr<IoEngine>> engine =
        IoEngine::create(runtime, *store_, 0, {.make_backend = make_uring_backend});
    if (!engine) {
      return 77;
    }
    const PageBuffer target = pages(store_->read_place(kLargeState).payload_bytes);
    (*engine)->lane(0).read(kLargeState, target.bytes(), 1);
    return (*engine)->lane(0).drain() ? 0 : 1;
  });
  if (result == 77) {
    GTEST_SKIP() << "processes cannot be limited to two here, or io_uring cannot be had";
  }
  EXPECT_EQ(result, 0);
}

TEST_F(IoEngineTest, WaitingWithNothingQueuedReturnsAtOnce) {
  const auto engine = make_engine(runtime_, *store_);
  HEADRACE_EXPECT_OK(engine->lane(0).drain());
  EXPECT_TRUE(engine->lane(0).record().done());
}

TEST_F(IoEngineTest, AnEngineThatIsNeverUsedEnds) {
  for (int i = 0; i < 20; ++i) {
    make_engine(runtime_, *store_, {.lanes = 4});
  }
}

TEST_F(IoEngineTest, DescriptorsAreFlatOverEngines) {
  make_engine(runtime_, *store_);
  const int before = testing::open_descriptors();
  for (int i = 0; i < 50; ++i) {
    round_trip(make_engine(runtime_, *store_)->lane(0), kSmallParam, i);
  }
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST_F(IoEngineTest, DestructionFinishesWhatWasSubmitted) {
  const std::vector<ExtentKey> keys = all_extents(*store_);
  std::vector<PageBuffer> sources;
  {
    const auto engine = make_engine(runtime_, *store_, {.lanes = 2, .io_depth = 2});
    for (std::size_t i = 0; i < keys.size(); ++i) {
      sources.push_back(pages(store_->read_place(keys[i]).payload_bytes));
      fill(sources.back().bytes(), keys[i], 8);
      engine->lane(static_cast<int>(i % 2)).write(keys[i], sources.back().bytes(), 8, i);
    }
  }
  for (const ExtentKey& key : keys) {
    expect_holds(*store_, key, 8);
  }
}

struct Planted {
  const char* name;
  int result;  // what a completion says instead; 0: the end of the file
  const char* says;
  ExitCode read_code;
};

class FailedCompletions : public IoEngineTest, public ::testing::WithParamInterface<Planted> {};

// Each request of an operation fails in turn, first to last, reads and writes.
TEST_P(FailedCompletions, EndTheRunWithAnErrorThatNamesThem) {
  constexpr std::size_t kRequestBytes = 64 * testing::kKib;
  const ExtentPlace place = store_->read_place(kLargeState);
  const PageBuffer memory = pages(place.payload_bytes);
  fill(memory.bytes(), kLargeState, 1);
  HEADRACE_EXPECT_OK(store_->write_now(kLargeState, memory.bytes(), 1));
  for (std::uint64_t at = 0; at < place.payload_bytes; at += kRequestBytes) {
    for (const bool write : {false, true}) {
      // The first request carries the header too.
      const std::uint64_t offset = place.offset + (at == 0 ? 0 : place.header_bytes + at);
      std::atomic<int> after{0};
      const BackendFactory faults = with_rule([&](const IoRequest& request, int result) {
        after.fetch_add(after.load() > 0 ? 1 : 0);
        if (request.offset != offset) {
          return result;
        }
        after.store(1);
        return GetParam().result;
      });
      Runtime runtime;
      const auto engine = make_engine(
          runtime,
          *store_,
          {.lanes = 2, .io_depth = 2, .request_bytes_max = kRequestBytes, .make_backend = faults});
      IoLane& lane = engine->lane(0);
      write ? lane.write(kLargeState, memory.bytes(), 2, 5)
            : lane.read(kLargeState, memory.bytes(), 5);
      lane.read(kLargeState, memory.bytes(), 6);
      engine->lane(1).wait(lane.record());
      engine->lane(1).write(kSmallParam, memory.bytes().first(kPageBytes), 9, 7);
      const Status status = engine->lane(1).drain();
      ASSERT_FALSE(status.has_value());
      const Error& error = status.error();
      EXPECT_EQ(error.code, write ? ExitCode::kOperating : GetParam().read_code);
      expect_contains(error.what, store_->data_path());
      expect_contains(error.what, std::to_string(offset));
      expect_contains(format_error(error, true), GetParam().says);
      expect_contains(format_error(error, true), write ? "'nvme write' (#5" : "'nvme read' (#5");
      EXPECT_TRUE(lane.record().done());
      EXPECT_LE(after.load(), 2) << "only what was in flight comes in after a fault";
      EXPECT_EQ(store_->step_of(kLargeState), 1) << "a failed write is not claimed";
      EXPECT_EQ(store_->step_of(kSmallParam), -1) << "later operations do not run";
      if (write) {  // the torn extent is mended for the next round
        HEADRACE_EXPECT_OK(store_->write_now(kLargeState, memory.bytes(), 1));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    FailedCompletions,
    ::testing::Values(Planted{"EIO", -EIO, "dmesg", ExitCode::kOperating},
                      Planted{"ENOSPC", -ENOSPC, "free space", ExitCode::kOperating},
                      Planted{"EINVAL", -EINVAL, "direct I/O", ExitCode::kOperating},
                      Planted{"EROFS", -EROFS, "read-only", ExitCode::kOperating},
                      Planted{"end", 0, "", ExitCode::kCorrupt}),
    [](const auto& planted) { return planted.param.name; });

TEST_F(IoEngineTest, InterruptedAndRefusedRequestsAreTriedAgain) {
  int count = 0;
  const BackendFactory faults = with_rule([&](const IoRequest&, int result) {
    ++count;
    return count % 3 == 0 ? result : count % 3 == 1 ? -EAGAIN : -EINTR;
  });
  const auto engine =
      make_engine(runtime_,
                  *store_,
                  {.io_depth = 3, .request_bytes_max = 8 * kPageBytes, .make_backend = faults});
  for (const ExtentKey& key : all_extents(*store_)) {
    round_trip(engine->lane(0), key, 1);
  }
  EXPECT_GT(engine->totals().resubmitted, 0U);
}

TEST_F(IoEngineTest, ARequestThatIsAlwaysRefusedIsGivenUp) {
  for (const int result : {-EAGAIN, -EINTR, 512}) {
    Runtime runtime;
    const BackendFactory faults = with_rule([&](const IoRequest&, int) { return result; });
    const auto engine = make_engine(runtime, *store_, {.make_backend = faults});
    const PageBuffer memory = pages(kPageBytes);
    engine->lane(0).write(kSmallParam, memory.bytes(), 1, 0);
    EXPECT_FALSE(engine->lane(0).drain().has_value()) << result;
    EXPECT_GT(engine->totals().resubmitted, 0U);
  }
}

TEST_F(IoEngineTest, ShortTransfersGoOnWhereTheyStopped) {
  std::mt19937_64 random(testing::test_seed());
  const BackendFactory faults = with_rule([&](const IoRequest&, int result) {
    // Any number of bytes: whole pages, parts of a page, and often all of it.
    return result <= 1 || random() % 3 == 0
               ? result
               : 1 + static_cast<int>(random() % static_cast<unsigned>(result));
  });
  for (const std::size_t request_pages : {1UL, 5UL, 256UL}) {
    const auto engine = make_engine(runtime_,
                                    *store_,
                                    {.lanes = 2,
                                     .io_depth = 4,
                                     .request_bytes_max = request_pages * kPageBytes,
                                     .make_backend = faults});
    for (std::int64_t step = 0; step < 3; ++step) {
      for (const ExtentKey& key : all_extents(*store_)) {
        round_trip(engine->lane(1), key, step);
      }
    }
    EXPECT_GT(engine->totals().resubmitted, 0U);
  }
}

TEST_F(IoEngineTest, AFlippedBitRaisesTheFaultAsCorruptAndNamesTheExtent) {
  testing::write_all_extents(*store_, 1);
  for (const ExtentKey& key : all_extents(*store_)) {
    const ExtentPlace place = store_->read_place(key);
    for (const std::uint64_t at : {std::uint64_t{0},
                                   std::uint64_t{200},
                                   std::uint64_t{place.header_bytes},
                                   place.header_bytes + place.payload_bytes / 2,
                                   place.header_bytes + place.payload_bytes - 1}) {
      testing::flip_bit(store_->data_path(), place.offset + at);
      const Error error = read_error(key);
      EXPECT_EQ(error.code, ExitCode::kCorrupt);
      expect_contains(error.what, store_->describe(key));
      testing::flip_bit(store_->data_path(), place.offset + at);
    }
  }
}

TEST_F(IoEngineTest, AReadWithoutSumsPassesADamagedPayloadAndNoDamagedHeader) {
  testing::write_all_extents(*store_, 1);
  for (const ExtentKey& key : all_extents(*store_)) {
    const ExtentPlace place = store_->read_place(key);
    const PageBuffer memory = pages(place.payload_bytes);
    std::vector<std::byte> wanted(place.payload_bytes);
    testing::fill(wanted, key, 1);
    const std::uint64_t damaged = place.payload_bytes / 2;
    testing::flip_bit(store_->data_path(), place.offset + place.header_bytes + damaged);
    {
      Runtime runtime;
      const auto engine = make_engine(runtime, *store_);
      engine->lane(0).read(key, memory.bytes(), 0, kWantedNow, ReadCheck::kHeaderOnly);
      HEADRACE_EXPECT_OK(engine->lane(0).drain());
    }
    EXPECT_NE(memory.bytes()[damaged], wanted[damaged]) << "as it lies on the drive";
    wanted[damaged] = memory.bytes()[damaged];
    EXPECT_EQ(std::memcmp(memory.bytes().data(), wanted.data(), wanted.size()), 0);
    EXPECT_EQ(read_error(key).code, ExitCode::kCorrupt) << "a read that checks its sums finds it";
    testing::flip_bit(store_->data_path(), place.offset);
    {
      Runtime runtime;
      const auto engine = make_engine(runtime, *store_);
      engine->lane(0).read(key, memory.bytes(), 0, kWantedNow, ReadCheck::kHeaderOnly);
      const Status status = engine->lane(0).drain();
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ExitCode::kCorrupt);
    }
  }
}

TEST_F(IoEngineTest, AReadOfWhatWasNeverWrittenIsCorrupt) {
  EXPECT_EQ(read_error(kLargeState).code, ExitCode::kCorrupt);
}

TEST_F(IoEngineTest, AFileThatIsTruncatedUnderTheEngineIsFound) {
  testing::write_all_extents(*store_, 1);
  const ExtentPlace place = store_->read_place(kLargeState);
  for (const std::uint64_t keep :
       {place.payload_bytes - 1, place.payload_bytes / 2 + 512, std::uint64_t{0}}) {
    std::filesystem::resize_file(store_->data_path(), place.offset + place.header_bytes + keep);
    const Error error = read_error(kLargeState);
    EXPECT_EQ(error.code, ExitCode::kCorrupt);
    expect_contains(error.why, "truncated");
  }
}

TEST_F(IoEngineTest, ARealWriteErrorRaisesTheFault) {
  // The process may not write beyond this offset, whatever the file has: EFBIG from the kernel.
  const auto engine = make_engine(runtime_, *store_);
  const PageBuffer memory = pages(store_->read_place(kLargeState).payload_bytes);
  const testing::FileSizeLimit limit(store_->read_place(kLargeState).offset);
  engine->lane(0).write(kLargeState, memory.bytes(), 1, 0);
  const Status status = engine->lane(0).drain();
  ASSERT_FALSE(status.has_value());
  expect_contains(status.error().why, "EFBIG");
}

TEST_F(IoEngineTest, AFaultOfAnotherQueueStopsTransfersAndFinishesTickets) {
  testing::write_all_extents(*store_, 1);
  std::atomic<int> completions{0};
  const BackendFactory faults = with_rule([&](const IoRequest&, int result) {
    if (completions.fetch_add(1) == 3) {
      runtime_.fault.raise(operating_error("another queue failed"));
    }
    return result;
  });
  const auto engine = make_engine(
      runtime_,
      *store_,
      {.lanes = 2, .io_depth = 2, .request_bytes_max = 4 * kPageBytes, .make_backend = faults});
  const PageBuffer memory = pages(store_->read_place(kLargeState).payload_bytes);
  engine->lane(0).write(kLargeState, memory.bytes(), 2, 0);
  engine->lane(0).write(kLargeState, memory.bytes(), 3, 1);
  const Status status = engine->lane(0).drain();
  ASSERT_FALSE(status.has_value());
  expect_contains(status.error().what, "another queue failed");
  EXPECT_LE(completions.load(), 6);
  EXPECT_EQ(store_->step_of(kLargeState), 1);
}

TEST_F(IoEngineTest, CapsHoldTransfersBackAndLetThemThrough) {
  const auto engine = make_engine(runtime_,
                                  *store_,
                                  {.lanes = 2,
                                   .request_bytes_max = 16 * kPageBytes,
                                   .read_bytes_per_s = 40e6,
                                   .write_bytes_per_s = 20e6});
  round_trip(engine->lane(0), kLargeState, 1);
  round_trip(engine->lane(1), kLargeState, 2);
}

TEST_F(IoEngineTest, AFaultWhileACapHoldsATransferBackEndsIt) {
  const auto engine =
      make_engine(runtime_, *store_, {.request_bytes_max = kPageBytes, .write_bytes_per_s = 100e3});
  const PageBuffer memory = pages(store_->read_place(kLargeState).payload_bytes);
  engine->lane(0).write(kLargeState, memory.bytes(), 1, 0);
  runtime_.fault.raise(operating_error("another queue failed"));
  EXPECT_FALSE(engine->lane(0).drain().has_value());
}

TEST_F(IoEngineTest, AFailingBodyEndsATransferThatHasNothingInFlight) {
  // At this cap a page takes 40 ms: the first lane waits for its time when the second one fails.
  const auto engine = make_engine(
      runtime_, *store_, {.lanes = 2, .request_bytes_max = kPageBytes, .write_bytes_per_s = 100e3});
  const PageBuffer memory = pages(store_->read_place(kLargeState).payload_bytes);
  engine->lane(0).write(kLargeState, memory.bytes(), 1, 0);
  engine->lane(1).submit({.name = "fail"}, []() -> Status { return operating_error("planted"); });
  EXPECT_FALSE(engine->lane(1).drain().has_value());
  EXPECT_FALSE(engine->lane(0).drain().has_value());
  EXPECT_EQ(store_->step_of(kLargeState), -1);
}

TEST_F(IoEngineTest, AfterAFaultAShortTransferIsNotGoneOnWith) {
  int completions = 0;
  const BackendFactory faults = with_rule([&](const IoRequest&, int) {
    return ++completions == 1 ? -EIO : static_cast<int>(kPageBytes);
  });
  const auto engine =
      make_engine(runtime_,
                  *store_,
                  {.io_depth = 4, .request_bytes_max = 8 * kPageBytes, .make_backend = faults});
  const PageBuffer memory = pages(store_->read_place(kLargeState).payload_bytes);
  engine->lane(0).write(kLargeState, memory.bytes(), 1, 0);
  EXPECT_FALSE(engine->lane(0).drain().has_value());
  EXPECT_LE(completions, 4);
  EXPECT_EQ(engine->totals().resubmitted, 0U);
}

// Lanes write and read extents in an order that events enforce; a model in memory says what each
// read must find. Completions are cut short, refused and delayed at random.
TEST_F(IoEngineTest, RandomInterleavingsEqualAModelInMemory) {
  const std::uint64_t seed = testing::test_seed();
  const std::vector<ExtentKey> keys = all_extents(*store_);
  for (std::uint64_t round = 0; round < 12; ++round) {
    std::mt19937_64 random(seed + round);
    std::mt19937_64 fault_random(seed + round);
    const BackendFactory faults = with_rule([&](const IoRequest&, int result) {
      const std::uint64_t die = fault_random() % 8;
      return result <= 1 || die > 1 ? result
             : die == 0             ? -EAGAIN
                        : 1 + static_cast<int>(fault_random() % static_cast<unsigned>(result));
    });
    const auto lanes = static_cast<int>(1 + random() % 5);
    const auto engine = make_engine(runtime_,
                                    *store_,
                                    {.lanes = lanes,
                                     .io_depth = static_cast<int>(1 + random() % 6),
                                     .request_bytes_max = (1 + random() % 70) * kPageBytes,
                                     .lane_capacity = 1 + random() % 5,
                                     .make_backend = faults});

    struct Read {
      PageBuffer memory;
      ExtentKey key;
      std::int64_t step;
    };

    std::vector<Read> reads;
    std::vector<PageBuffer> sources;
    std::map<std::size_t, Event> last_use;      // of an extent, reads and writes
    std::map<std::size_t, std::int64_t> model;  // the step that an extent holds
    reads.reserve(60);
    sources.reserve(60);
    for (std::int64_t step = 0; step < 60; ++step) {
      const std::size_t index = random() % keys.size();
      const ExtentKey& key = keys[index];
      IoLane& lane = engine->lane(static_cast<int>(random() % static_cast<unsigned>(lanes)));
      const std::size_t bytes = store_->read_place(key).payload_bytes;
      lane.wait(last_use[index]);
      if (model.contains(index) && random() % 2 == 0) {
        reads.push_back({pages(bytes), key, model[index]});
        lane.read(key, reads.back().memory.bytes(), static_cast<std::uint64_t>(step));
      } else {
        sources.push_back(pages(bytes));
        fill(sources.back().bytes(), key, step);
        lane.write(key, sources.back().bytes(), step, static_cast<std::uint64_t>(step));
        model[index] = step;
      }
      last_use[index] = lane.record();
    }
    for (int lane = 0; lane < lanes; ++lane) {
      HEADRACE_EXPECT_OK(engine->lane(lane).drain());
    }
    for (const Read& read : reads) {
      const std::vector<std::byte> wanted = pattern(*store_, read.key, read.step);
      ASSERT_EQ(std::memcmp(read.memory.bytes().data(), wanted.data(), wanted.size()), 0)
          << store_->describe(read.key) << ", step " << read.step;
    }
    for (const auto& [index, step] : model) {
      expect_holds(*store_, keys[index], step);
    }
  }
}

TEST_F(IoEngineTest, OperationsAndWaitsLeaveSpansInTheTrace) {
  TraceRecorder trace(100);
  runtime_.trace = &trace;
  {
    const auto engine = make_engine(runtime_, *store_, {.lanes = 2});
    round_trip(engine->lane(0), kSmallParam, 1);
    EXPECT_EQ(trace.events_recorded(), 2U);
    ThreadQueue holder(runtime_, "holder", {});
    Gate gate;
    gate.block(holder);
    engine->lane(0).wait(holder.record());
    // Two rounds of another lane: in the second one the first lane has come to its wait.
    round_trip(engine->lane(1), kSmallParam, 2);
    round_trip(engine->lane(1), kSmallParam, 3);
    gate.open();
    HEADRACE_EXPECT_OK(engine->lane(0).drain());
    HEADRACE_EXPECT_OK(holder.drain());
  }
  const std::string path = folder_.path() + "/trace.json";
  HEADRACE_EXPECT_OK(trace.write(path));
  const std::string text = read_file(path, 1U << 20U).value();
  expect_contains(text, "nvme.0");
  expect_contains(text, "nvme write");
  expect_contains(text, "nvme read");
  expect_contains(text, "wait for holder");
}

TEST_F(IoEngineTest, ThePlantedMissingWaitBetweenLanesIsFound) {
  RaceChecker races;
  runtime_.races = &races;
  const auto engine = make_engine(runtime_, *store_, {.lanes = 2});
  const PageBuffer source = pages(kPageBytes);
  const PageBuffer target = pages(kPageBytes);
  engine->lane(0).write(kSmallParam, source.bytes(), 1, 0);
  engine->lane(1).wait(engine->lane(0).record());
  engine->lane(1).read(kSmallParam, target.bytes(), 1);
  EXPECT_EQ(races.race_count(), 0U);
  engine->lane(0).write(kSmallParam, source.bytes(), 2, 2);  // while lane 1 may still read
  EXPECT_GT(races.race_count(), 0U);
  [[maybe_unused]] const Status first = engine->lane(0).drain();
  [[maybe_unused]] const Status second = engine->lane(1).drain();
}

TEST_F(IoEngineTest, ThreeMistakesOfTheCallerAreNotLetThrough) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto engine = make_engine(runtime_, *store_);
  const PageBuffer memory = pages(4 * kPageBytes);
  EXPECT_DEATH(engine->lane(0).read(kSmallParam, memory.bytes(), 0), "extent's length");
  EXPECT_DEATH(engine->lane(0).read(kSmallParam, memory.bytes().subspan(512, kPageBytes), 0),
               "page-aligned");
  for (const ExtentKey& key : all_extents(*store_)) {
    HEADRACE_EXPECT_OK(store_->write_now(key, pattern(*store_, key, 1), 1));
  }
  HEADRACE_EXPECT_OK(store_->commit({.step = 1}));
  EXPECT_DEATH(engine->lane(0).write(kSmallParam, memory.bytes().first(kPageBytes), 2, 0),
               "mark_dirty");
}

TEST(IoEngineLarge, AnOperationBeyondTwoGibibytesIsWhole) {
  const TestFolder folder;
  constexpr std::uint64_t kBytes = (2ULL << 30U) + kPageBytes;
  if (filesystem_of(folder.path()).value().free_bytes < 2 * kBytes) {
    GTEST_SKIP() << "needs 4 GiB of free space";
  }
  StoreContents contents;
  contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = kBytes, .state_bytes = 0}};
  const auto store = make_store(folder.path(), contents);
  ASSERT_NE(store, nullptr);
  HEADRACE_EXPECT_OK(store->mark_dirty());
  Runtime runtime;
  const auto engine =
      make_engine(runtime, *store, {.io_depth = 3, .request_bytes_max = std::size_t{1} << 30U});
  const RepeatedMemory memory(kBytes);
  const ExtentKey key{.unit = 0, .tile = 0, .kind = ExtentKind::kParam};
  fill(memory.bytes().first(std::size_t{2} << 20U), key, 1);
  engine->lane(0).write(key, memory.bytes(), 1, 0);
  engine->lane(0).read(key, memory.bytes(), 1);
  HEADRACE_EXPECT_OK(engine->lane(0).drain());
  const std::uint64_t total = kBytes + store->read_place(key).header_bytes;
  EXPECT_EQ(engine->totals().write_bytes, total);
  EXPECT_EQ(engine->totals().read_bytes, total);
}

}  // namespace
}  // namespace headrace::tiers::nvme
