// What the engine hands to a back end, when, and from which memory: on a simulated disk, driven by
// the test, so that every order is exact.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "core/hash.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/io_test_support.hpp"
#include "tiers/nvme/simulated_disk.hpp"
#include "tiers/nvme/test_support.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::expect_contains;
using testing::fill;
using testing::pages;

constexpr std::uint64_t kTileBytes = 16 * kSumBlockBytes;
constexpr std::size_t kChunkBytes = kSumBlockBytes;
constexpr std::uint32_t kTiles = 6;

// What was handed over, in order; and what was the case when it was.
struct Handed {
  bool write = false;
  std::uint64_t offset = 0;
  std::uint64_t payload_bytes = 0;
  std::vector<iovec> pieces{};
  std::uint64_t bytes_in_flight = 0;  // payload, with this one
};

class RecordingBackend final : public testing::WrappedBackend {
 public:
  RecordingBackend(std::unique_ptr<IoBackend> inner, std::vector<Handed>& handed)
      : WrappedBackend(std::move(inner)), handed_(handed) {}

 protected:
  void on_queue(const IoRequest& request) override {
    Handed entry{.write = request.write, .offset = request.offset};
    for (unsigned i = 0; i < request.piece_count; ++i) {
      entry.pieces.push_back(request.pieces[i]);
    }
    entry.payload_bytes = entry.pieces.back().iov_len;
    in_flight_[&request] = entry.payload_bytes;
    for (const auto& [other, bytes] : in_flight_) {
      entry.bytes_in_flight += bytes;
    }
    handed_.push_back(entry);
  }

  int on_completion(const IoRequest& request, int result) override {
    in_flight_.erase(&request);
    return result;
  }

 private:
  std::vector<Handed>& handed_;
  std::map<const IoRequest*, std::uint64_t> in_flight_;
};

class IoSchedule : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = std::make_shared<SimulatedDisk>(
        "/disk/data", SimulatedDiskOptions{.seed = testing::test_seed()}, power_);
    StoreContents contents;
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      contents.tiles.push_back(
          {.unit = 0, .tile = tile, .param_bytes = kTileBytes, .state_bytes = 0});
    }
    contents.layout_tag = "test";
    contents.tensor_table = "{}";
    std::vector<std::unique_ptr<BlockFile>> files;
    files.push_back(std::make_unique<SimulatedFile>(disk_));
    auto store = Store::format(std::move(files), Id128{1, 2}, contents, {.slots = 1});
    ASSERT_TRUE(store.has_value()) << format_error(store.error(), true);
    store_ = std::move(*store);
    HEADRACE_EXPECT_OK(store_->mark_dirty());
    memory_ = pages(kTiles * kTileBytes);
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      fill(payload(tile), key(tile), 1);
      HEADRACE_EXPECT_OK(store_->write_now(key(tile), payload(tile), 1));
    }
  }

  void TearDown() override {
    engine_.reset();  // before the queues and the memory that it uses
  }

  void make_engine(const EngineOptions& options) { engine_ = new_engine(options); }

  std::unique_ptr<IoEngine> new_engine(EngineOptions options) {
    options.request_bytes_max = kChunkBytes;
    options.driven_by_caller = true;
    options.make_backend = [this](
                               BlockFile& file,
                               const BackendOptions& wanted) -> Result<std::unique_ptr<IoBackend>> {
      HEADRACE_ASSIGN(std::unique_ptr<IoBackend> inner, make_simulated_backend(file, wanted));
      return std::make_unique<RecordingBackend>(std::move(inner), handed_);
    };
    return IoEngine::create(runtime_, *store_, 0, options).value();
  }

  static ExtentKey key(std::uint32_t tile) {
    return {.unit = 0, .tile = tile, .kind = ExtentKind::kParam};
  }

  [[nodiscard]] std::span<std::byte> payload(std::uint32_t tile) const {
    return memory_.bytes().subspan(tile * kTileBytes, kTileBytes);
  }

  void drive() {
    while (engine_->turn()) {
    }
  }

  [[nodiscard]] std::uint32_t tile_of(const Handed& handed) const {
    std::uint32_t tile = 0;
    while (tile + 1 < kTiles && store_->read_place(key(tile + 1)).offset <= handed.offset) {
      ++tile;
    }
    return tile;
  }

  // How many requests of others were handed over from `from` until the tile's last one.
  [[nodiscard]] int others_before_the_last_of(std::uint32_t tile, std::size_t from) const {
    int others = 0;
    int waiting = 0;
    for (std::size_t i = from; i < handed_.size(); ++i) {
      if (tile_of(handed_[i]) == tile) {
        others += std::exchange(waiting, 0);
      } else {
        ++waiting;
      }
    }
    return others;
  }

  // When the tile's last request was handed over.
  [[nodiscard]] std::size_t last_of(std::uint32_t tile) const {
    std::size_t last = 0;
    for (std::size_t i = 0; i < handed_.size(); ++i) {
      last = tile_of(handed_[i]) == tile ? i : last;
    }
    return last;
  }

  PowerSupply power_;
  std::shared_ptr<SimulatedDisk> disk_;
  std::unique_ptr<Store> store_;
  PageBuffer memory_;
  std::vector<Handed> handed_;
  Runtime runtime_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_F(IoSchedule, ExactlyTheCallersMemoryGoesToTheBackEndEachByteOnce) {
  make_engine({.lanes = 3, .io_depth = 4});
  for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
    IoLane& lane = engine_->lane(static_cast<int>(tile % 3));
    tile % 2 == 0 ? lane.write(key(tile), payload(tile), 2, tile)
                  : lane.read(key(tile), payload(tile), tile);
  }
  drive();
  ASSERT_FALSE(runtime_.fault.raised());
  // Of every page of payload: how often it was in a piece. Everything else is headers.
  std::map<const std::byte*, int> count;
  std::uint64_t header_bytes = 0;
  for (const Handed& handed : handed_) {
    for (const iovec& piece : handed.pieces) {
      auto* const begin = static_cast<std::byte*>(piece.iov_base);
      const bool of_caller = begin >= memory_.bytes().data() &&
                             begin < memory_.bytes().data() + memory_.bytes().size();
      for (std::size_t at = 0; of_caller && at < piece.iov_len; at += kPageBytes) {
        ++count[begin + at];
      }
      header_bytes += of_caller ? 0 : piece.iov_len;
    }
  }
  EXPECT_EQ(count.size(), kTiles * kTileBytes / kPageBytes) << "every page was handed over";
  EXPECT_TRUE(
      std::all_of(count.begin(), count.end(), [](const auto& entry) { return entry.second == 1; }));
  EXPECT_EQ(header_bytes, kTiles * store_->read_place(key(0)).header_bytes)
      << "beside headers there is no memory of the engine's own: nothing was copied";
}

TEST_F(IoSchedule, TheProcessorOnlyReadsThePayloadOfAWrite) {
  // Were the source written to, or bounced back, this would be the end of the process.
  make_engine({.lanes = 1});
  ASSERT_EQ(::mprotect(payload(0).data(), kTileBytes, PROT_READ), 0);
  engine_->lane(0).write(key(0), payload(0), 2, 0);
  drive();
  ASSERT_EQ(::mprotect(payload(0).data(), kTileBytes, PROT_READ | PROT_WRITE), 0);
  EXPECT_FALSE(runtime_.fault.raised());
  EXPECT_EQ(store_->step_of(key(0)), 2);
}

TEST_F(IoSchedule, AWritesHeaderGoesLastAndWithTheFirstBytes) {
  make_engine({.lanes = 1, .io_depth = 4});
  engine_->lane(0).write(key(1), payload(1), 2, 0);
  drive();
  ASSERT_EQ(handed_.size(), kTileBytes / kChunkBytes);
  EXPECT_EQ(handed_.back().offset, store_->read_place(key(1)).offset);
  EXPECT_EQ(handed_.back().pieces.size(), 2U);
  EXPECT_EQ(handed_.front().pieces.size(), 1U);
}

TEST_F(IoSchedule, BytesInFlightStayBelowTheirBound) {
  for (const std::size_t bound : {kChunkBytes / 2, kChunkBytes, 3 * kChunkBytes + kPageBytes}) {
    handed_.clear();
    make_engine({.lanes = 3, .io_depth = 8, .bytes_in_flight_max = bound});
    for (std::uint32_t tile = 0; tile < 3; ++tile) {
      engine_->lane(static_cast<int>(tile)).read(key(tile), payload(tile), tile);
    }
    drive();
    ASSERT_EQ(handed_.size(), 3 * kTileBytes / kChunkBytes);
    for (const Handed& handed : handed_) {
      EXPECT_LE(handed.bytes_in_flight, std::max(bound, kChunkBytes)) << "one at least may fly";
    }
    engine_.reset();
  }
}

TEST_F(IoSchedule, TheEarliestDeadlineGoesFirstAndReadsBeforeWrites) {
  make_engine({.lanes = 4, .io_depth = 1});
  engine_->lane(0).write(key(0), payload(0), 2, 0);
  engine_->lane(1).read(key(1), payload(1), 0);
  engine_->lane(2).read(key(2), payload(2), 0, 20);
  engine_->lane(3).read(key(3), payload(3), 0, 10);
  drive();
  // The order in which they came to their ends; on the way each had its small share.
  std::vector<std::uint32_t> order;
  for (auto handed = handed_.rbegin(); handed != handed_.rend(); ++handed) {
    if (std::find(order.begin(), order.end(), tile_of(*handed)) == order.end()) {
      order.push_back(tile_of(*handed));
    }
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST_F(IoSchedule, AmongEqualsTheFirstToBeginComesToItsEndFirst) {
  make_engine({.lanes = 3, .io_depth = 4});
  for (std::uint32_t tile = 0; tile < 3; ++tile) {
    engine_->lane(static_cast<int>(tile)).write(key(2 - tile), payload(2 - tile), 2, tile);
  }
  drive();
  EXPECT_LT(last_of(2), last_of(1));
  EXPECT_LT(last_of(1), last_of(0));
}

TEST_F(IoSchedule, WhatIsWantedNowHasRoomOfItsOwn) {
  constexpr std::uint64_t kDepth = 4;
  make_engine({.lanes = 3, .io_depth = kDepth});
  engine_->lane(0).read(key(0), payload(0), 0);
  engine_->lane(1).write(key(1), payload(1), 2, 0);
  engine_->turn();
  engine_->lane(2).read(key(2), payload(2), 0, kWantedNow);
  drive();
  std::uint64_t most = 0;
  for (const Handed& handed : handed_) {
    const bool wanted_now = tile_of(handed) == 2;
    EXPECT_LE(handed.bytes_in_flight, (wanted_now ? 2 : 1) * kDepth * kChunkBytes);
    most = std::max(most, handed.bytes_in_flight);
  }
  EXPECT_GT(most, kDepth * kChunkBytes);
}

TEST_F(IoSchedule, AReadThatIsWantedNowPassesWhatHasNotBeenHandedOver) {
  make_engine({.lanes = 3, .io_depth = 2});
  engine_->lane(0).write(key(0), payload(0), 2, 0);
  engine_->lane(1).read(key(1), payload(1), 0);
  for (int i = 0; i < 6; ++i) {
    engine_->turn();
  }
  const std::size_t from = handed_.size();
  engine_->lane(2).read(key(2), payload(2), 0, kWantedNow);
  drive();
  EXPECT_LE(others_before_the_last_of(2, from), 2) << "but for the share that nobody may take";
}

TEST_F(IoSchedule, WhatIsQueuedBehindMakesALaneUrgent) {
  make_engine({.lanes = 2, .io_depth = 1});
  engine_->lane(0).read(key(0), payload(0), 0, 50);
  engine_->lane(1).write(key(1), payload(1), 2, 0);
  engine_->lane(1).read(key(2), payload(2), 0, 10);  // behind the write
  drive();
  EXPECT_TRUE(handed_.front().write);
  EXPECT_EQ(tile_of(handed_.back()), 0U);
}

TEST_F(IoSchedule, ALaneInheritsTheUrgencyOfTheLaneThatWaitsForIt) {
  make_engine({.lanes = 3, .io_depth = 1});
  engine_->lane(0).read(key(0), payload(0), 0, 50);
  engine_->lane(1).write(key(1), payload(1), 2, 0);
  engine_->lane(2).wait(engine_->lane(1).record());
  engine_->lane(2).read(key(2), payload(2), 0, 10);
  drive();
  EXPECT_EQ(tile_of(handed_.back()), 0U) << "both the write and the read behind it came before";
}

TEST_F(IoSchedule, ExpeditePutsALaneFirstUntilTheEvent) {
  make_engine({.lanes = 2, .io_depth = 1});
  engine_->lane(0).read(key(0), payload(0), 0, 1);
  engine_->lane(1).write(key(1), payload(1), 2, 0);
  const Event written = engine_->lane(1).record();
  engine_->lane(1).write(key(2), payload(2), 2, 0);
  for (int i = 0; i < 4; ++i) {
    engine_->turn();
  }
  const std::size_t from = handed_.size();
  engine_->lane(1).expedite(written);
  drive();
  EXPECT_LE(others_before_the_last_of(1, from), 2);
  EXPECT_EQ(tile_of(handed_.back()), 2U);
}

// The device waits for an update of the host's, which waits for a read, which waits for a write of
// another engine's: both overtake what their engines are busy with.
TEST_F(IoSchedule, WhatTheDeviceWaitsForOvertakesOnEveryEngineThatItNeeds) {
  for (const bool device_waits : {false, true}) {
    make_engine({.lanes = 2, .io_depth = 1});
    const std::unique_ptr<IoEngine> other = new_engine({.lanes = 2, .io_depth = 1});
    ThreadQueue host(runtime_, "host", {});
    handed_.clear();
    engine_->lane(0).read(key(0), payload(0), 0, 1);  // prefetch
    engine_->lane(0).read(key(1), payload(1), 0, 1);
    other->lane(0).read(key(2), payload(2), 0, 1);
    other->lane(1).write(key(3), payload(3), 2, 0);  // from the memory that is read into
    engine_->lane(1).wait(other->lane(1).record());
    engine_->lane(1).read(key(4), payload(3), 0);
    host.wait(engine_->lane(1).record());
    host.submit({.name = "update"}, [] {});
    if (device_waits) {
      host.record().expedite();
    }
    for (bool progress = true; std::exchange(progress, false);) {
      progress = other->turn();
      progress = engine_->turn() || progress;
    }
    HEADRACE_EXPECT_OK(host.drain());
    EXPECT_EQ(last_of(3) < last_of(2), device_waits) << "the write, and a prefetch";
    EXPECT_EQ(last_of(4) < last_of(1), device_waits) << "the read, and a prefetch";
    engine_.reset();
  }
}

TEST_F(IoSchedule, NoLaneStarvesHoweverUrgentTheOthersAre) {
  make_engine({.lanes = 3, .io_depth = 2});
  engine_->lane(0).write(key(0), payload(0), 2, 0);
  const Event written = engine_->lane(0).record();
  // Two lanes are kept busy with what is wanted now.
  int reads = 0;
  while (!written.done()) {
    for (const int lane : {1, 2}) {
      if (engine_->lane(lane).record().done()) {
        engine_->lane(lane).read(key(static_cast<std::uint32_t>(lane)),
                                 payload(static_cast<std::uint32_t>(lane)),
                                 0,
                                 kWantedNow);
        ++reads;
      }
    }
    ASSERT_LT(reads, 100) << "the write never came to its end";
    engine_->turn();
  }
  EXPECT_GT(reads, 4) << "and the reads had most of the drive";
  drive();
}

TEST_F(IoSchedule, WritesArePacedInVirtualTimeAndReadsAreNot) {
  constexpr double kRate = 20e6;
  make_engine({.lanes = 2, .write_bytes_per_s = kRate});
  const std::int64_t begin_ns = disk_->now_ns();
  engine_->lane(0).write(key(0), payload(0), 2, 0);
  engine_->lane(1).read(key(1), payload(1), 0);
  const Event read = engine_->lane(1).record();
  while (!read.done()) {
    ASSERT_TRUE(engine_->turn());
  }
  const double seconds_of_write = static_cast<double>(kTileBytes) / kRate;
  const auto seconds = [&] { return static_cast<double>(disk_->now_ns() - begin_ns) / 1e9; };
  EXPECT_LT(seconds(), seconds_of_write / 2);
  drive();
  EXPECT_GT(seconds(), seconds_of_write * 0.8);
  EXPECT_LT(seconds(), seconds_of_write * 1.2);
}

TEST_F(IoSchedule, WhatIsUnderWayIsDescribed) {
  make_engine({.lanes = 4, .io_depth = 2});
  EXPECT_TRUE(engine_->describe_waits().empty());
  ThreadQueue holder(runtime_, "holder", {});
  Gate gate;
  gate.block(holder);
  engine_->lane(0).read(key(0), payload(0), 7);
  engine_->lane(0).read(key(1), payload(1), 8);
  engine_->lane(2).wait(holder.record());
  EXPECT_TRUE(engine_->turn());
  EXPECT_TRUE(engine_->turn());
  const std::vector<QueueWait> waits = engine_->describe_waits();
  ASSERT_EQ(waits.size(), 2U);
  expect_contains(waits[0].what, "nvme.0: nvme read (#7) of unit 0, tile 0 (param) at offset");
  expect_contains(waits[0].what, "/disk/data");
  expect_contains(waits[0].what, "requests in flight; 1 behind it");
  expect_contains(waits[1].what, "nvme.2: waits for ticket");
  expect_contains(waits[1].what, "holder");
  EXPECT_GT(waits[0].since_ns, 0);
  gate.open();
  drive();
  while (!engine_->lane(2).record().done()) {  // the holder's thread tells when its wait is over
    engine_->turn();
  }
  EXPECT_TRUE(engine_->describe_waits().empty());
}

TEST_F(IoSchedule, CancellationGivesUpWhatHasNotBegunAndFinishesTickets) {
  make_engine({.lanes = 2, .io_depth = 4});
  engine_->lane(0).write(key(0), payload(0), 2, 0);
  engine_->lane(1).write(key(1), payload(1), 2, 0);
  EXPECT_TRUE(engine_->turn());
  engine_->cancel(operating_error("the run is over"));
  drive();
  EXPECT_TRUE(engine_->lane(0).record().done());
  EXPECT_TRUE(engine_->lane(1).record().done());
  EXPECT_EQ(runtime_.fault.error()->what, "the run is over");
  EXPECT_LE(handed_.size(), 4U);
  EXPECT_EQ(store_->step_of(key(0)), 1) << "an unfinished write is not claimed";
}

// At any instant after the last byte has come, also between two looks of the engine at the fault in
// one turn of its loop: turn() would say that nothing is under way, and an engine's own thread
// would sleep for good.
TEST_F(IoSchedule, AFaultOfAnotherThreadAtAnyInstantLetsTheLaneEnd) {
  constexpr int kRounds = 5000;
  constexpr int kNsOfATurn = 1000;
  std::atomic<Runtime*> moved{nullptr};  // whose read has moved
  std::atomic<bool> ended{false};
  std::thread other([&] {
    for (std::int64_t round = 0; !ended.load(); ++round) {
      Runtime* runtime = nullptr;
      while ((runtime = moved.exchange(nullptr)) == nullptr && !ended.load()) {
      }
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::nanoseconds(round % kNsOfATurn);
      while (std::chrono::steady_clock::now() < until) {
      }
      if (runtime != nullptr) {
        runtime->fault.raise(operating_error("another queue failed"));
      }
    }
  });
  int unfinished = 0;
  for (int round = 0; round < kRounds; ++round) {
    Runtime runtime;
    const BackendFactory backend = testing::with_rule(
        [&](const IoRequest&, int result) {
          moved.store(&runtime);
          return result;
        },
        make_simulated_backend);
    const auto engine =
        IoEngine::create(runtime,
                         *store_,
                         0,
                         {.request_bytes_max = kTileBytes,  // the read is one request
                          .make_backend = backend,
                          .driven_by_caller = true});
    IoLane& lane = engine.value()->lane(0);
    lane.read(key(0), payload(0), 7, 0, ReadCheck::kHeaderOnly);
    while (engine.value()->turn()) {
    }
    unfinished += lane.record().done() ? 0 : 1;
    while (!runtime.fault.raised()) {
    }
  }
  ended.store(true);
  other.join();
  EXPECT_EQ(unfinished, 0);
}

struct Silent {
  const char* name;
  FaultRates rates;
};

class SilentFaults : public IoSchedule, public ::testing::WithParamInterface<Silent> {};

// Each damage that no drive reports is an Error with file, offset and extent; or the bytes are
// right, where it hit bytes that were the same.
TEST_P(SilentFaults, AreFoundBeforeTheBytesAreUsed) {
  int found = 0;
  for (std::uint32_t round = 0; round < 60; ++round) {
    Runtime runtime;
    EngineOptions options{.lanes = 1, .request_bytes_max = kChunkBytes};
    options.driven_by_caller = true;
    options.make_backend = make_simulated_backend;
    const auto engine = IoEngine::create(runtime, *store_, 0, options).value();
    const std::uint32_t tile = round % kTiles;
    const std::size_t before = disk_->faults().size();
    fill(payload(tile), key(tile), 100 + round);
    disk_->set_rates(GetParam().rates);
    engine->lane(0).write(key(tile), payload(tile), 100 + round, 0);
    while (engine->turn()) {
    }
    std::fill(payload(tile).begin(), payload(tile).end(), std::byte{0});
    engine->lane(0).read(key(tile), payload(tile), 5);
    while (engine->turn()) {
    }
    disk_->set_rates({});
    std::vector<std::byte> wanted(kTileBytes);
    fill(wanted, key(tile), 100 + round);
    if (!runtime.fault.raised()) {
      ASSERT_EQ(std::memcmp(payload(tile).data(), wanted.data(), kTileBytes), 0);
    } else {
      ++found;
      ASSERT_GT(disk_->faults().size(), before) << "no fault, no error";
      const Error error = *runtime.fault.error();
      EXPECT_EQ(error.code, ExitCode::kCorrupt);
      const std::string text = format_error(error, true);
      expect_contains(text, "/disk/data");
      expect_contains(text, "offset ");
      expect_contains(text, "unit 0, tile");
    }
    // Whatever a misdirected write has hit is whole again.
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      fill(payload(i), key(i), 1000 + round);
      HEADRACE_EXPECT_OK(store_->write_now(key(i), payload(i), 1000 + round));
    }
  }
  EXPECT_GT(found, 5);
}

INSTANTIATE_TEST_SUITE_P(All,
                         SilentFaults,
                         ::testing::Values(Silent{"torn", {.torn_write = 0.05}},
                                           Silent{"lost", {.lost_write = 0.05}},
                                           Silent{"misdirected", {.misdirected_write = 0.05}},
                                           Silent{"stale", {.stale_read = 0.05}},
                                           Silent{"flipped", {.flipped_bit = 0.05}}),
                         [](const auto& silent) { return silent.param.name; });

}  // namespace
}  // namespace headrace::tiers::nvme
