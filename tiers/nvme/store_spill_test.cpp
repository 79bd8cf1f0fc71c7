// Spill extents: like all others to write and to read, and gone with the store that has them open.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tiers/nvme/format.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::expect_contains;
using testing::expect_holds;
using testing::open_store;
using testing::pattern;
using testing::small_contents;
using testing::TestFolder;
using testing::write_all_extents;

constexpr ExtentKey kFirst{.unit = 1, .tile = 0, .kind = ExtentKind::kSpill};
constexpr ExtentKey kSecond{.unit = 1, .tile = 1, .kind = ExtentKind::kSpill};
constexpr ExtentKey kLarge{.unit = 2, .tile = 0, .kind = ExtentKind::kSpill};

std::vector<SpillBytes> three_extents() {
  return {{.unit = 2, .index = 0, .bytes = 3 * kSumBlockBytes + kPageBytes},
          {.unit = 1, .index = 0, .bytes = kPageBytes},
          {.unit = 1, .index = 1, .bytes = 2 * kSumBlockBytes}};
}

std::uint64_t size_of(const Store& store, std::uint32_t folder = 0) {
  return std::filesystem::file_size(store.data_path(folder));
}

TEST(StoreSpill, IsWrittenAndReadManyTimesInOneSlot) {
  const TestFolder folder;
  const auto store = testing::make_store(folder.path());
  HEADRACE_EXPECT_OK(store->reserve_spill(three_extents()));
  for (std::int64_t step = 0; step < 5; ++step) {
    for (const ExtentKey& key : {kFirst, kSecond, kLarge}) {
      EXPECT_EQ(store->write_place(key, step).offset, store->read_place(key).offset);
      HEADRACE_EXPECT_OK(store->write_now(key, pattern(*store, key, step), step));
      EXPECT_EQ(store->step_of(key), step);
      expect_holds(*store, key, step);
    }
  }
}

TEST(StoreSpill, LiesPastTheTilesAndIsNoPartOfCommits) {
  const TestFolder folder;
  auto store = testing::make_store(folder.path(), small_contents(), 2);
  const std::uint64_t bytes = store->bytes();
  HEADRACE_EXPECT_OK(store->reserve_spill(three_extents()));
  EXPECT_EQ(store->bytes(), bytes) << "of the store that stays";
  std::uint64_t spilled = 0;
  for (const ExtentKey& key : {kFirst, kSecond, kLarge}) {
    const ExtentPlace place = store->read_place(key);
    EXPECT_GE(place.offset, bytes);
    spilled += place.header_bytes + place.payload_bytes;
    HEADRACE_EXPECT_OK(store->write_now(key, pattern(*store, key, 1), 1));
  }
  EXPECT_EQ(size_of(*store), bytes + spilled);
  write_all_extents(*store, 7);
  HEADRACE_EXPECT_OK(store->commit({.step = 7, .update_count = 7}));
  expect_holds(*store, kLarge, 1);
  std::vector<std::string> problems;
  const std::string id = store->id(), path = store->data_path();
  store.reset();
  std::filesystem::resize_file(path, bytes + spilled);  // as a process leaves it that is killed
  const auto reader = open_store(folder.path(), id);
  ASSERT_TRUE(reader.has_value()) << format_error(reader.error(), true);
  const auto checked =
      (*reader)->verify([&](const Error& error) { problems.push_back(format_error(error, true)); });
  EXPECT_TRUE(checked.has_value());
  EXPECT_TRUE(problems.empty()) << problems.front();
}

TEST(StoreSpill, GoesWithTheStoreAndWithTheNextReservation) {
  const TestFolder folder;
  auto store = testing::make_store(folder.path());
  const std::uint64_t bytes = store->bytes();
  const std::string id = store->id(), path = store->data_path();
  HEADRACE_EXPECT_OK(store->reserve_spill(three_extents()));
  EXPECT_GT(size_of(*store), bytes);
  store.reset();
  EXPECT_EQ(std::filesystem::file_size(path), bytes);
  // As a process leaves it that is killed.
  std::filesystem::resize_file(path, bytes + 40 * kPageBytes);
  auto again = open_store(folder.path(), id, Store::Access::kWrite);
  ASSERT_TRUE(again.has_value()) << format_error(again.error(), true);
  HEADRACE_EXPECT_OK((*again)->reserve_spill({{.unit = 1, .index = 0, .bytes = kPageBytes}}));
  EXPECT_LT(size_of(**again), bytes + 40 * kPageBytes);
  HEADRACE_EXPECT_OK((*again)->reserve_spill({}));
  EXPECT_EQ(size_of(**again), bytes);
}

TEST(StoreSpill, WhatWasNeverWrittenOrIsDamagedOrOldIsNotRead) {
  const TestFolder folder;
  const auto store = testing::make_store(folder.path());
  HEADRACE_EXPECT_OK(store->reserve_spill(three_extents()));
  std::vector<std::byte> bytes(store->read_place(kLarge).payload_bytes);
  EXPECT_FALSE(store->read_now(kLarge, bytes));
  HEADRACE_EXPECT_OK(store->write_now(kLarge, pattern(*store, kLarge, 1), 1));
  const ExtentPlace place = store->read_place(kLarge);
  std::vector<std::byte> old(place.header_bytes + place.payload_bytes);
  HEADRACE_EXPECT_OK(store->file(0).read(place.offset, old));
  HEADRACE_EXPECT_OK(store->write_now(kLarge, pattern(*store, kLarge, 2), 2));
  testing::flip_bit(store->data_path(), place.offset + place.header_bytes + kSumBlockBytes + 5);
  Status read = store->read_now(kLarge, bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ExitCode::kCorrupt);
  expect_contains(format_error(read.error(), true), "spilled activations");
  expect_contains(format_error(read.error(), true), "nothing that is committed is touched");
  HEADRACE_EXPECT_OK(store->file(0).write(place.offset, old));  // a write that was lost
  EXPECT_FALSE(store->read_now(kLarge, bytes));
}

TEST(StoreSpill, IsSpreadOverFoldersAndKeepsWithinTheirSpace) {
  const TestFolder first, second;
  StoreOptions options = testing::auto_options(first.path());
  options.folders.push_back({.path = second.path()});
  auto store = Store::create(options, small_contents());
  ASSERT_TRUE(store.has_value()) << format_error(store.error(), true);
  std::vector<SpillBytes> extents;
  for (std::uint32_t i = 0; i < 16; ++i) {
    extents.push_back({.unit = 1, .index = i, .bytes = 4 * kPageBytes});
  }
  HEADRACE_EXPECT_OK((*store)->reserve_spill(extents));
  std::set<std::uint32_t> folders;
  std::set<std::pair<std::uint32_t, std::uint64_t>> places;
  for (std::uint32_t i = 0; i < 16; ++i) {
    const ExtentKey key{.unit = 1, .tile = i, .kind = ExtentKind::kSpill};
    const ExtentPlace place = (*store)->read_place(key);
    EXPECT_EQ(place.folder, (*store)->folder_of(key));
    folders.insert(place.folder);
    EXPECT_TRUE(places.emplace(place.folder, place.offset).second);
    HEADRACE_EXPECT_OK((*store)->write_now(key, pattern(**store, key, i), i));
  }
  for (std::uint32_t i = 0; i < 16; ++i) {
    expect_holds(**store, {.unit = 1, .tile = i, .kind = ExtentKind::kSpill}, i);
  }
  EXPECT_EQ(folders.size(), 2U);
  const std::vector<std::optional<std::uint64_t>> space = {size_of(**store, 0) - 4 * kPageBytes,
                                                           size_of(**store, 1)};
  const Status refused = (*store)->reserve_spill(extents, space);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kDoesNotFit);
}

TEST(StoreSpill, AFullDiskIsFoundBeforeTheFirstStep) {
  const TestFolder folder;
  const auto store = testing::make_store(folder.path());
  const testing::FileSizeLimit limit(store->bytes() + 16 * kPageBytes);
  const Status refused = store->reserve_spill(three_extents());
  ASSERT_FALSE(refused);
  expect_contains(refused.error().what, "cannot reserve");
}

TEST(StoreSpill, GoesThroughAnEngineBesideTiles) {
  const TestFolder folder;
  const auto store = testing::make_store(folder.path(), small_contents(), 2);
  HEADRACE_EXPECT_OK(store->reserve_spill(three_extents()));
  Runtime runtime;
  EngineOptions options;
  options.lanes = 3;
  auto engine = IoEngine::create(runtime, *store, 0, options);
  ASSERT_TRUE(engine.has_value()) << format_error(engine.error(), true);
  const std::vector<ExtentKey> keys = {
      kFirst, {.unit = 2, .tile = 1, .kind = ExtentKind::kState}, kLarge, kSecond};
  std::vector<PageBuffer> buffers;
  std::vector<std::vector<std::byte>> patterns;
  for (std::int64_t step = 0; step < 3; ++step) {
    buffers.clear();
    patterns.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      patterns.push_back(pattern(*store, keys[i], step));
      buffers.push_back(testing::pages(patterns[i].size()));
      std::copy(patterns[i].begin(), patterns[i].end(), buffers[i].bytes().begin());
      IoLane& lane = (*engine)->lane(static_cast<int>(i % 3));
      lane.write(keys[i], buffers[i].bytes(), step, i);
    }
    for (int lane = 0; lane < 3; ++lane) {
      HEADRACE_EXPECT_OK((*engine)->lane(lane).record().wait_host());
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::fill(buffers[i].bytes().begin(), buffers[i].bytes().end(), std::byte{0});
      (*engine)->lane(static_cast<int>(i % 3)).read(keys[i], buffers[i].bytes(), i);
    }
    for (int lane = 0; lane < 3; ++lane) {
      HEADRACE_EXPECT_OK((*engine)->lane(lane).record().wait_host());
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_TRUE(std::equal(patterns[i].begin(), patterns[i].end(), buffers[i].bytes().begin()))
          << store->describe(keys[i]);
    }
  }
}

}  // namespace
}  // namespace headrace::tiers::nvme
