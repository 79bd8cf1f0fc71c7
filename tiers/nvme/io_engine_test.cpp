// Lanes and the engine against real files: order, depth, faults, ends.
#include "tiers/nvme/io_engine.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "core/trace.hpp"
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
using testing::TestFolder;

std::unique_ptr<IoEngine> make_engine(Runtime& runtime,
                                      Store& store,
                                      const EngineOptions& options = {}) {
  Result<std::unique_ptr<IoEngine>> engine = IoEngine::create(runtime, store, options);
  if (!engine) {
    ADD_FAILURE() << format_error(engine.error(), true);
    return nullptr;
  }
  return std::move(*engine);
}

// A lambda as IoFaults.
class Faults final : public IoFaults {
 public:
  explicit Faults(std::function<int(const IoRequest&, int)> rule) : rule_(std::move(rule)) {}

  int on_completion(const IoRequest& request, int result) override {
    return rule_(request, result);
  }

 private:
  std::function<int(const IoRequest&, int)> rule_;
};

constexpr ExtentKey kLargeState{.unit = 2, .tile = 1, .kind = ExtentKind::kState};

class IoEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = make_store(folder_.path());
    ASSERT_NE(store_, nullptr);
    HEADRACE_EXPECT_OK(store_->mark_dirty());
  }

  // Writes the extent through the lane and reads it back into other memory.
  void round_trip(IoLane& lane, const ExtentKey& key, std::int64_t step) {
    const std::size_t bytes = store_->place(key).payload_bytes;
    const PageBuffer source = pages(bytes);
    const PageBuffer target = pages(bytes);
    fill(source.bytes(), key, step);
    lane.write(key, source.bytes(), step, 1);
    lane.read(key, target.bytes(), 2);
    HEADRACE_EXPECT_OK(lane.record().wait_host());
    EXPECT_EQ(std::memcmp(source.bytes().data(), target.bytes().data(), bytes), 0);
  }

  TestFolder folder_;
  std::unique_ptr<Store> store_;
  Runtime runtime_;
};

TEST_F(IoEngineTest, WhatALaneWritesALaneAndASynchronousReadGetBack) {
  const auto engine = make_engine(runtime_, *store_, {.lanes = 2});
  for (const ExtentKey& key : all_extents(*store_)) {
    round_trip(engine->lane(0), key, 3);
    expect_holds(*store_, key, 3);
    EXPECT_EQ(store_->step_of(key), 3);
  }
  std::uint64_t bytes = 0;
  for (const ExtentKey& key : all_extents(*store_)) {
    bytes += store_->place(key).payload_bytes + store_->place(key).header_bytes;
  }
  EXPECT_EQ(engine->totals().write_bytes, bytes);
  EXPECT_EQ(engine->totals().read_bytes, bytes);
  EXPECT_GT(engine->memory_bytes(), 0U);
}

}  // namespace
}  // namespace headrace::tiers::nvme
