// Speculative writes beside what counts: kept, forgotten, and never a byte of the last commit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tiers/nvme/format.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/power_cut_medium.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::all_extents;
using testing::expect_holds;
using testing::PowerCutMedium;
using testing::small_contents;
using testing::TestFolder;
using testing::write_all_extents;
using Access = Store::Access;

std::unique_ptr<Store> make_undo_store(const std::string& folder, std::uint32_t slots) {
  StoreOptions options = testing::auto_options(folder, slots);
  options.undo_slot = true;
  Result<std::unique_ptr<Store>> store = Store::create(options, small_contents());
  EXPECT_TRUE(store.has_value()) << format_error(store.error(), true);
  return std::move(*store);
}

void write(Store& store, const ExtentKey& key, std::int64_t step) {
  HEADRACE_EXPECT_OK(store.write_now(key, testing::pattern(store, key, step), step));
}

void expect_all_hold(Store& store, std::int64_t step) {
  for (const ExtentKey& key : all_extents(store)) {
    EXPECT_EQ(store.step_of(key), step);
    expect_holds(store, key, step);
  }
}

void expect_all_in(const Store& store, std::uint32_t slot) {
  for (const ExtentKey& key : all_extents(store)) {
    EXPECT_EQ(store.read_place(key).slot, slot) << store.describe(key);
  }
}

// With two slots in one of commits and an undo slot, or one and an undo slot.
class UndoSlot : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(UndoSlot, IsOneMoreInTheFileAndNoneOfCommits) {
  const TestFolder folder;
  const auto plain = testing::make_store(folder.path(), small_contents(), GetParam());
  auto store = make_undo_store(folder.path(), GetParam());
  EXPECT_FALSE(plain->undo_slot());
  std::uint64_t slot_bytes = 0;
  for (const TileBytes& tile : small_contents().tiles) {
    for (const std::uint64_t bytes : {tile.param_bytes, tile.state_bytes}) {
      slot_bytes += bytes > 0 ? bytes + kPageBytes : 0;
    }
  }
  EXPECT_EQ(store->bytes(), plain->bytes() + slot_bytes);
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  const std::string id = store->id();
  store.reset();
  EXPECT_EQ(list_stores({folder.path()}).value().at(0).slots, GetParam());
  store = std::move(*testing::open_store(folder.path(), id, Access::kWrite));
  EXPECT_EQ(store->slots(), GetParam());
  EXPECT_TRUE(store->undo_slot());
  EXPECT_FALSE(store->dirty());
  EXPECT_EQ(store->ready_for_writes(), GetParam() == 2);
}

TEST_P(UndoSlot, WhatIsForgottenNeverWasAndWhatIsKeptIsFound) {
  const TestFolder folder;
  auto store = make_undo_store(folder.path(), GetParam());
  const std::string id = store->id();
  // Nothing was there before.
  store->speculate(5);
  write_all_extents(*store, 5);
  expect_all_hold(*store, 5);
  store->settle(false);
  for (const ExtentKey& key : all_extents(*store)) {
    EXPECT_EQ(store->step_of(key), -1);
  }
  for (std::int64_t step = 10; step < 60; step += 10) {
    write_all_extents(*store, step);
    for (const bool keep : {false, true, false}) {
      const std::int64_t counts = store->step_of(all_extents(*store)[0]);
      store->speculate(counts + 1);
      expect_all_hold(*store, counts);
      write_all_extents(*store, counts + 1);
      expect_all_hold(*store, counts + 1);
      store->settle(keep);
      expect_all_hold(*store, keep ? counts + 1 : counts);
      store->settle(!keep);  // there is nothing to settle
      expect_all_hold(*store, keep ? counts + 1 : counts);
    }
    HEADRACE_EXPECT_OK(store->commit({.step = step}));
    EXPECT_FALSE(store->dirty());
    if (GetParam() == 2) {
      store->speculate(step + 5);
      write_all_extents(*store, step + 5);
    }
    store.reset();  // what was not settled, and not committed, is forgotten
    store = std::move(*testing::open_store(folder.path(), id, Access::kWrite));
    expect_all_hold(*store, step + 1);
  }
}

TEST_P(UndoSlot, OnlyWritesOfTheSpeculativeStepAreSpeculative) {
  const TestFolder folder;
  const auto store = make_undo_store(folder.path(), GetParam());
  const std::vector<ExtentKey> keys = all_extents(*store);
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  store->speculate(3);
  for (const std::size_t late : {0U, 1U}) {  // an update of the step before, and then this step's
    write(*store, keys[late], 2);
    write(*store, keys[late], 3);
  }
  for (const std::size_t late : {2U, 3U}) {
    write(*store, keys[late], 2);
  }
  store->settle(false);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(store->step_of(keys[i]), i < 4 ? 2 : 1);
    expect_holds(*store, keys[i], i < 4 ? 2 : 1);
  }
  HEADRACE_EXPECT_OK(store->commit({.step = 2}));
}

TEST_P(UndoSlot, AnEmptySpeculationChangesNothing) {
  const TestFolder folder;
  const auto store = make_undo_store(folder.path(), GetParam());
  write_all_extents(*store, 1);
  for (const bool keep : {false, true}) {
    store->settle(keep);
    store->speculate(2);
    store->settle(keep);
    expect_all_hold(*store, 1);
  }
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
}

INSTANTIATE_TEST_SUITE_P(Slots, UndoSlot, ::testing::Values(1U, 2U));

TEST(UndoSlotPlaces, AreTheSmallestThatNeitherTheCommitNorTheNewestWriteHas) {
  const TestFolder folder;
  const auto store = make_undo_store(folder.path(), 2);
  write_all_extents(*store, 1);
  write_all_extents(*store, 2);
  expect_all_in(*store, 0);
  HEADRACE_EXPECT_OK(store->commit({.step = 2}));
  const auto speculate = [&](std::int64_t step, std::uint32_t slot, bool keep) {
    store->speculate(step);
    write_all_extents(*store, step);
    expect_all_in(*store, slot);
    store->settle(keep);
  };
  speculate(3, 1, false);
  expect_all_in(*store, 0);
  speculate(4, 1, true);
  speculate(5, 2, true);
  speculate(6, 1, false);
  expect_all_in(*store, 2);
  write_all_extents(*store, 7);  // in place
  expect_all_in(*store, 2);
  HEADRACE_EXPECT_OK(store->commit({.step = 7}));
  write_all_extents(*store, 8);
  expect_all_in(*store, 0);
  speculate(9, 1, false);
  expect_all_in(*store, 0);
}

TEST(UndoSlotPlaces, OfOneSlotOfCommitsAreThisOneAndTheOther) {
  const TestFolder folder;
  const auto store = make_undo_store(folder.path(), 1);
  write_all_extents(*store, 1);
  for (std::int64_t step = 2; step < 10; step += 2) {
    const std::uint32_t slot = step / 2 % 2 == 1 ? 1 : 0;
    store->speculate(step);
    write_all_extents(*store, step);
    expect_all_in(*store, slot);
    store->settle(true);
    EXPECT_TRUE(store->dirty());
    HEADRACE_EXPECT_OK(store->commit({.step = step}));
    write_all_extents(*store, step + 1);
    expect_all_in(*store, slot);
  }
}

TEST(UndoSlotPlaces, ACopyKeepsTheUndoSlot) {
  const TestFolder folder;
  const TestFolder target;
  auto store = make_undo_store(folder.path(), 2);
  const std::string id = store->id();
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  store->speculate(2);
  write_all_extents(*store, 2);
  store->settle(true);
  HEADRACE_EXPECT_OK(store->commit({.step = 2}));
  expect_all_in(*store, 1);
  store.reset();
  const auto copied = copy_store({.folders = {folder.path()}, .id = id}, {{.path = target.path()}});
  ASSERT_TRUE(copied.has_value()) << format_error(copied.error(), true);
  const auto copy = std::move(*testing::open_store(target.path(), *copied, Access::kWrite));
  EXPECT_TRUE(copy->undo_slot());
  EXPECT_EQ(copy->slots(), 2U);
  expect_all_hold(*copy, 2);
  expect_all_in(*copy, 0);
}

TEST(UndoSlotPlaces, ThePartsOfAStoreHaveOneOrNone) {
  PowerCutMedium medium(2, 1);
  ASSERT_TRUE(Store::format(medium.files(), Id128{1, 2}, small_contents(), {.undo_slot = true}));
  for (const std::uint64_t offset : format::kSuperblockOffsets) {
    PowerCutMedium::Page& page = medium.content(1).durable.at(offset / kPageBytes);
    format::Superblock block{};
    std::memcpy(&block, page.data(), sizeof(block));
    block.features_incompatible = 0;
    format::encode_superblock(block, page);
  }
  const auto store = Store::load(medium.files(), Access::kRead);
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().code, ExitCode::kUsage);
  testing::expect_contains(store.error().what, "disk1");
}

class UndoSlotDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = make_undo_store(folder_.path(), 2);
    keys_ = all_extents(*store_);
    write_all_extents(*store_, 1);
  }

  TestFolder folder_;
  std::unique_ptr<Store> store_;
  std::vector<ExtentKey> keys_;
};

TEST_F(UndoSlotDeathTest, ASecondWriteWouldOverwriteWhatCountedBefore) {
  store_->speculate(2);
  write(*store_, keys_[0], 2);
  const std::vector<std::byte> bytes = testing::pattern(*store_, keys_[0], 2);
  EXPECT_DEATH(static_cast<void>(store_->write_now(keys_[0], bytes, 2)), "written once at most");
  EXPECT_DEATH(static_cast<void>(store_->write_now(keys_[0], bytes, 1)), "written once at most");
  EXPECT_DEATH(store_->wrote(keys_[1], store_->read_place(keys_[1]), 2), "what was there before");
}

TEST_F(UndoSlotDeathTest, WhatIsNotSettledIsNotCommittedNorSpeculatedOn) {
  store_->speculate(2);
  EXPECT_DEATH(static_cast<void>(store_->commit({.step = 1})), "is settled");
  EXPECT_DEATH(store_->speculate(3), "is settled");
  store_->settle(false);
  HEADRACE_EXPECT_OK(store_->commit({.step = 1}));
}

TEST_F(UndoSlotDeathTest, SpeculationNeedsAnUndoSlot) {
  const auto plain = testing::make_store(folder_.path(), small_contents(), 2);
  EXPECT_DEATH(plain->speculate(1), "without an undo slot");
}

// A life of a store on disks in memory, and what it must say at any moment.
class Life {
 public:
  Life(std::uint64_t seed, std::uint32_t slots)
      : random_(seed), medium_(1 + seed % 2, seed), slots_(slots) {
    StoreContents contents;
    contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = 4096, .state_bytes = 8192},
                      {.unit = 0, .tile = 1, .param_bytes = 8192, .state_bytes = 4096},
                      {.unit = 1, .tile = 0, .param_bytes = 4096, .state_bytes = 0},
                      {.unit = 1, .tile = 1, .param_bytes = 4096, .state_bytes = 4096}};
    contents.tensor_table = "{}";
    contents.layout_tag = "fp32/fp32";
    store_ = std::move(*Store::format(
        medium_.files(), Id128{1, seed}, contents, {.slots = slots, .undo_slot = true}));
    for (const TileBytes& tile : contents.tiles) {
      steps_[{tile.unit, tile.tile}] = -1;
    }
  }

  void act() {
    switch (random_() % 10) {
      case 0:
        return commit();
      case 1:
        return reopen();
      case 2:
      case 3:
        return speculating() ? settle() : speculate();
      default:
        return write_some_tile();
    }
  }

  void check() {
    for (const ExtentKey& key : all_extents(*store_)) {
      const std::int64_t step = steps_.at({key.unit, key.tile});
      ASSERT_EQ(store_->step_of(key), step) << store_->describe(key);
      if (step >= 0) {
        expect_holds(*store_, key, step);
      }
      const ExtentKey param{.unit = key.unit, .tile = key.tile, .kind = ExtentKind::kParam};
      ASSERT_EQ(store_->read_place(key).slot, store_->read_place(param).slot);
    }
    for (const Committed& committed : committed_) {
      ASSERT_TRUE(bytes_of(committed.place) == committed.bytes)
          << "bytes of the last commit at offset " << committed.place.offset;
    }
  }

  [[nodiscard]] int commits() const { return commits_; }

 private:
  using Tile = std::pair<std::uint32_t, std::uint32_t>;

  struct Committed {
    ExtentPlace place;
    std::vector<std::byte> bytes;
  };

  [[nodiscard]] bool speculating() const { return speculative_ >= 0; }

  std::vector<std::byte> bytes_of(const ExtentPlace& place) {
    std::vector<std::byte> bytes(place.header_bytes + place.payload_bytes);
    HEADRACE_EXPECT_OK(store_->file(place.folder).read(place.offset, bytes));
    return bytes;
  }

  void speculate() {
    speculative_ = ++clock_;
    store_->speculate(speculative_);
  }

  void settle() {
    const bool keep = random_() % 2 == 0;
    store_->settle(keep);
    for (const auto& [tile, step] : before_) {
      steps_[tile] = keep ? steps_[tile] : step;
    }
    before_.clear();
    speculative_ = -1;
  }

  void write_some_tile() {
    const auto& tiles = store_->contents().tiles;
    const TileBytes& chosen = tiles[random_() % tiles.size()];
    const Tile tile(chosen.unit, chosen.tile);
    if (before_.contains(tile)) {
      return;
    }
    std::int64_t step = ++clock_;
    if (speculating() && random_() % 3 != 0) {
      step = speculative_;
      before_[tile] = steps_[tile];
    }
    steps_[tile] = step;
    write(*store_, {.unit = tile.first, .tile = tile.second, .kind = ExtentKind::kParam}, step);
    if (chosen.state_bytes > 0) {
      write(*store_, {.unit = tile.first, .tile = tile.second, .kind = ExtentKind::kState}, step);
    }
  }

  void commit() {
    const bool whole = std::none_of(
        steps_.begin(), steps_.end(), [](const auto& entry) { return entry.second < 0; });
    if (speculating() || !whole) {
      return;
    }
    HEADRACE_EXPECT_OK(store_->commit({.step = ++clock_}));
    ++commits_;
    committed_steps_ = steps_;
    committed_.clear();
    for (const ExtentKey& key : all_extents(*store_)) {
      if (slots_ == 2) {
        const ExtentPlace place = store_->read_place(key);
        committed_.push_back({.place = place, .bytes = bytes_of(place)});
      }
    }
  }

  void reopen() {
    if (committed_steps_.empty() || store_->dirty()) {
      return;
    }
    store_.reset();
    if (random_() % 2 == 0) {
      medium_.restart();
    }
    store_ = std::move(*Store::load(medium_.files(), Access::kWrite));
    steps_ = committed_steps_;
    before_.clear();
    speculative_ = -1;
  }

  std::mt19937_64 random_;
  PowerCutMedium medium_;
  std::uint32_t slots_;
  std::unique_ptr<Store> store_;
  std::int64_t clock_ = 0;
  std::int64_t speculative_ = -1;
  std::map<Tile, std::int64_t> steps_, before_, committed_steps_;
  std::vector<Committed> committed_;
  int commits_ = 0;
};

TEST_P(UndoSlot, RandomLivesSayWhatCountsAndLeaveTheLastCommitAlone) {
  const std::uint64_t seed = testing::test_seed();
  int commits = 0;
  for (std::uint64_t life = 0; life < 40; ++life) {
    Life store(seed + life, GetParam());
    for (int action = 0; action < 150; ++action) {
      store.act();
      ASSERT_NO_FATAL_FAILURE(store.check()) << "life " << life << ", action " << action;
      ASSERT_FALSE(HasFailure()) << "life " << life << ", action " << action;
    }
    commits += store.commits();
  }
  EXPECT_GT(commits, 0);
}

// Every folder's lanes, while each writes its own extents, and reads what it has written.
TEST(UndoSlotEngines, OfTwoFoldersWriteSpeculativelySideBySide) {
  const TestFolder one;
  const TestFolder two;
  StoreOptions options{.folders = {{.path = one.path()}, {.path = two.path()}},
                       .direct_io_required = false,
                       .undo_slot = true,
                       .prewrite = false};
  StoreContents contents = small_contents();
  contents.tiles.clear();
  for (std::uint32_t tile = 0; tile < 16; ++tile) {
    contents.tiles.push_back(
        {.unit = 0, .tile = tile, .param_bytes = 4 * kPageBytes, .state_bytes = 8 * kPageBytes});
  }
  const auto store = std::move(*Store::create(options, contents));
  Runtime runtime;
  std::vector<std::unique_ptr<IoEngine>> engines;
  for (std::uint32_t folder = 0; folder < 2; ++folder) {
    engines.push_back(std::move(*IoEngine::create(runtime, *store, folder, {.lanes = 2})));
  }
  const std::vector<ExtentKey> keys = all_extents(*store);
  std::vector<PageBuffer> sources;
  std::vector<PageBuffer> targets;
  for (const ExtentKey& key : keys) {
    sources.push_back(testing::pages(store->read_place(key).payload_bytes));
    targets.push_back(testing::pages(store->read_place(key).payload_bytes));
  }
  std::int64_t counts = 1;
  write_all_extents(*store, counts);
  for (std::int64_t step = 2; step < 14; ++step) {
    store->speculate(step);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      testing::fill(sources[i].bytes(), keys[i], step);
      IoLane& lane =
          engines[store->folder_of(keys[i].unit, keys[i].tile)]->lane(static_cast<int>(i % 2));
      lane.write(keys[i], sources[i].bytes(), step, i);
      lane.read(keys[i], targets[i].bytes(), i);
    }
    for (const auto& engine : engines) {
      HEADRACE_EXPECT_OK(engine->lane(0).drain());
      HEADRACE_EXPECT_OK(engine->lane(1).drain());
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(
              sources[i].bytes().data(), targets[i].bytes().data(), sources[i].bytes().size()),
          0);
    }
    const bool keep = step % 3 != 0;
    store->settle(keep);
    counts = keep ? step : counts;
    expect_all_hold(*store, counts);
    if (step % 4 == 0) {
      HEADRACE_EXPECT_OK(store->commit({.step = step}));
    }
  }
}

}  // namespace
}  // namespace headrace::tiers::nvme
