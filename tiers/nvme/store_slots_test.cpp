// Two slots a tile: what a resume finds, which slot a write takes, what a commit leaves alone.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::all_extents;
using testing::expect_holds;
using testing::small_contents;
using testing::TestFolder;
using testing::write_all_extents;
using Access = Store::Access;

TEST(TwoSlots, AResumeTakesTheCommitWhateverWasWrittenAfterIt) {
  const TestFolder folder;
  auto store = testing::make_store(folder.path(), small_contents(), 2);
  const std::string id = store->id();
  for (std::int64_t step = 1; step <= 5; ++step) {
    write_all_extents(*store, 10 * step);
    EXPECT_FALSE(store->dirty());
    EXPECT_TRUE(store->ready_for_writes());
    for (const ExtentKey& key : all_extents(*store)) {
      expect_holds(*store, key, 10 * step);
    }
    store.reset();  // no commit
    store = std::move(*testing::open_store(folder.path(), id, Access::kWrite));
    ASSERT_EQ(store->last_commit().has_value(), step > 1);
    for (const ExtentKey& key : all_extents(*store)) {
      if (step > 1) {
        expect_holds(*store, key, step - 1);
      }
    }
    write_all_extents(*store, step);
    HEADRACE_EXPECT_OK(store->commit({.step = step}));
  }
}

TEST(TwoSlots, TheFirstWriteSwitchesLaterOnesStayAndUnwrittenTilesKeepTheirPlace) {
  const TestFolder folder;
  const auto store = testing::make_store(folder.path(), small_contents(), 2);
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  const std::vector<ExtentKey> keys = all_extents(*store);
  const ExtentPlace before = store->read_place(keys[0]);
  EXPECT_EQ(before.slot, 0U);
  for (std::int64_t step = 2; step <= 4; ++step) {
    for (std::size_t i = 0; i < 2; ++i) {  // both extents of the first tile
      HEADRACE_EXPECT_OK(store->write_now(keys[i], testing::pattern(*store, keys[i], step), step));
      EXPECT_EQ(store->read_place(keys[i]).slot, 1U);
      EXPECT_EQ(store->write_place(keys[i], step).slot, 1U);
    }
  }
  HEADRACE_EXPECT_OK(store->commit({.step = 4}));
  EXPECT_EQ(store->read_place(keys[0]).slot, 1U);
  EXPECT_EQ(store->write_place(keys[0], 9).slot, 0U);
  EXPECT_EQ(store->read_place(keys[2]).slot, 0U);
  EXPECT_EQ(store->write_place(keys[2], 9).slot, 1U);
  expect_holds(*store, keys[0], 4);
  expect_holds(*store, keys[2], 1);
}

TEST(TwoSlotsDeathTest, ACommitWithParamAndStateInDifferentSlotsIsAProgrammersError) {
  const TestFolder folder;
  const auto store = testing::make_store(folder.path(), small_contents(), 2);
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  const ExtentKey key = all_extents(*store)[0];
  HEADRACE_EXPECT_OK(store->write_now(key, testing::pattern(*store, key, 2), 2));
  EXPECT_DEATH(static_cast<void>(store->commit({.step = 2})), "between the same two commits");
}

// A commit touches no metadata of the filesystem and opens nothing.
TEST(TwoSlots, DescriptorsAndBlocksAreFlatOverAThousandCommits) {
  const TestFolder folder;
  StoreContents contents = small_contents();
  contents.tiles.resize(1);
  const auto store = testing::make_store(folder.path(), contents, 2);
  const auto blocks = [&] {
    struct stat info {};

    EXPECT_EQ(::stat(store->data_path().c_str(), &info), 0);
    return info.st_blocks;
  };
  const int descriptors = testing::open_descriptors();
  const auto blocks_before = blocks();
  for (std::int64_t step = 1; step <= 1000; ++step) {
    if (step % 100 == 1) {
      write_all_extents(*store, step);
    }
    HEADRACE_EXPECT_OK(store->commit({.step = step}));
  }
  EXPECT_EQ(testing::open_descriptors(), descriptors);
  EXPECT_EQ(blocks(), blocks_before);
}

}  // namespace
}  // namespace headrace::tiers::nvme
