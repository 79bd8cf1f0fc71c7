// The power is cut after every single operation of a small run with several commits, on one to
// three disks; what is not synced is lost, kept or torn by a seed. Afterwards the last commit that
// was acknowledged, or the one being made, is there, whole; and the run goes on from it.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <tuple>

#include "tiers/nvme/format.hpp"
#include "tiers/nvme/power_cut_medium.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::expect_contains;
using testing::PowerCutMedium;
using Access = Store::Access;

constexpr Id128 kId{.high = 7, .low = 9};
constexpr std::int64_t kCommits = 4;

StoreContents tiny_contents() {
  StoreContents contents;
  contents.tiles = {
      {.unit = 0, .tile = 0, .param_bytes = kPageBytes, .state_bytes = 2 * kPageBytes},
      {.unit = 0, .tile = 1, .param_bytes = 2 * kPageBytes, .state_bytes = kPageBytes},
      {.unit = 1, .tile = 0, .param_bytes = kPageBytes, .state_bytes = 0},
      {.unit = 3, .tile = 2, .param_bytes = kPageBytes, .state_bytes = kPageBytes}};
  contents.tensor_table = "{}";
  contents.layout_tag = "fp32/fp32";
  contents.run_dir = "/runs/crash";
  return contents;
}

// The run: step s writes every tile but the frozen one and tile s % 3, twice (so that the second
// write is in place), then commits. What a tile holds follows from the commit alone.
bool is_written(const TileBytes& tile, std::size_t index, std::int64_t step) {
  return step == 1 || (tile.state_bytes > 0 && index != static_cast<std::size_t>(step % 3));
}

std::int64_t step_of_tile(const TileBytes& tile, std::size_t index, std::int64_t step) {
  while (!is_written(tile, index, step)) {
    --step;
  }
  return step;
}

Status write_tile(Store& store, const TileBytes& tile, std::int64_t step) {
  for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
    const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
    if (kind == ExtentKind::kState && tile.state_bytes == 0) {
      continue;
    }
    std::vector<std::byte> rough(store.read_place(key).payload_bytes, std::byte{0x5a});
    HEADRACE_TRY(store.write_now(key, rough, step));
    HEADRACE_TRY(store.write_now(key, testing::pattern(store, key, step), step));
  }
  return {};
}

// Writes every tile of the step speculatively as one of `speculative`: what is kept is as
// write_tile leaves it.
Status speculate(Store& store, std::int64_t step, std::int64_t speculative, bool keep) {
  store.speculate(speculative);
  const std::vector<TileBytes>& tiles = store.contents().tiles;
  for (const ExtentKey& key : testing::all_extents(store)) {
    const auto tile = std::find_if(tiles.begin(), tiles.end(), [&](const TileBytes& other) {
      return other.unit == key.unit && other.tile == key.tile;
    });
    if (is_written(*tile, static_cast<std::size_t>(tile - tiles.begin()), step)) {
      HEADRACE_TRY(
          store.write_now(key, testing::pattern(store, key, keep ? step : -step), speculative));
    }
  }
  store.settle(keep);
  return {};
}

// With an undo slot some tiles are written as always, all are speculated on, kept once, forgotten
// before and after.
Status run_step(Store& store, std::int64_t step) {
  const std::vector<TileBytes>& tiles = store.contents().tiles;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    if (is_written(tiles[i], i, step) && (!store.undo_slot() || i % 2 == 0)) {
      HEADRACE_TRY(write_tile(store, tiles[i], step));
    }
  }
  if (store.undo_slot()) {
    HEADRACE_TRY(speculate(store, step, 100 + step, false));
    HEADRACE_TRY(speculate(store, step, step, true));
    HEADRACE_TRY(speculate(store, step, 100 + step, false));
  }
  return store.commit(
      {.step = step, .update_count = step, .run_state = "s" + std::to_string(step)});
}

// Runs until the end or the cut; `acknowledged` is the step of the last commit that returned.
void run_on(Store& store, std::int64_t& acknowledged) {
  for (std::int64_t step = acknowledged + 1; step <= kCommits; ++step) {
    if (!run_step(store, step)) {
      return;
    }
    acknowledged = step;
  }
}

// `mended`: a writer has been there. Before, a superblock that the cut has torn is told.
void expect_commit_is_whole(Store& store, const std::string& where, bool mended) {
  const std::int64_t step = store.last_commit()->step;
  EXPECT_EQ(store.last_commit()->run_state, "s" + std::to_string(step)) << where;
  const std::vector<TileBytes>& tiles = store.contents().tiles;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const std::int64_t wanted = step_of_tile(tiles[i], i, step);
    for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
      const ExtentKey key{.unit = tiles[i].unit, .tile = tiles[i].tile, .kind = kind};
      if (kind == ExtentKind::kState && tiles[i].state_bytes == 0) {
        continue;
      }
      ASSERT_EQ(store.step_of(key), wanted) << where;
      std::vector<std::byte> bytes(store.read_place(key).payload_bytes);
      const Status status = store.read_now(key, bytes);
      ASSERT_TRUE(status.has_value()) << where << format_error(status.error(), true);
      ASSERT_TRUE(bytes == testing::pattern(store, key, wanted)) << where << store.describe(key);
    }
  }
  std::string problems;
  const auto note = [&](const Error& error) {
    if (mended || error.why.find("superblock copy") == std::string::npos) {
      problems += error.why;
    }
  };
  ASSERT_TRUE(store.verify(note).has_value());
  EXPECT_EQ(problems, "") << where;
}

struct Scenario {
  std::size_t folders = 1;
  std::uint32_t slots = 2;
  bool undo_slot = false;
  bool cut_within_writes = false;
};

std::unique_ptr<Store> formatted(PowerCutMedium& medium, const Scenario& scenario) {
  Result<std::unique_ptr<Store>> store =
      Store::format(medium.files(),
                    kId,
                    tiny_contents(),
                    {.slots = scenario.slots, .undo_slot = scenario.undo_slot});
  EXPECT_TRUE(store.has_value() || medium.dead());
  return store ? std::move(*store) : nullptr;
}

std::uint64_t operations_of(const Scenario& scenario) {
  PowerCutMedium medium(scenario.folders, 1);
  medium.cut_within_writes = scenario.cut_within_writes;
  const auto store = formatted(medium, scenario);
  const std::uint64_t before = medium.operations();
  std::int64_t acknowledged = 0;
  run_on(*store, acknowledged);
  EXPECT_EQ(acknowledged, kCommits);
  return medium.operations() - before;
}

// Runs, is cut, and is looked at by a reader and then by a writer, whose power is cut once more
// while it begins.
void cut_and_check(const Scenario& scenario, std::uint64_t cut, std::uint64_t seed) {
  const std::string where = std::to_string(scenario.folders) + " folders" +
                            (scenario.undo_slot ? " with an undo slot" : "") + ", cut after " +
                            std::to_string(cut) + ", seed " + std::to_string(seed) + ": ";
  PowerCutMedium medium(scenario.folders, seed);
  medium.cut_within_writes = scenario.cut_within_writes;
  std::int64_t acknowledged = 0;
  {
    const auto store = formatted(medium, scenario);
    medium.cut_after(cut);
    run_on(*store, acknowledged);
  }
  // Was it the power, or the process alone? Then the disks go on with what they have not flushed.
  const bool killed = seed % 2 == 0;
  if (killed) {
    medium.cut_after(std::nullopt);
  } else {
    medium.restart();
  }
  const auto check = [&](Access access) -> std::unique_ptr<Store> {
    Result<std::unique_ptr<Store>> store = Store::load(medium.files(), access);
    if (!store) {
      EXPECT_TRUE(medium.dead()) << where << format_error(store.error(), true);
      return nullptr;
    }
    const std::int64_t found = (*store)->last_commit() ? (*store)->last_commit()->step : 0;
    EXPECT_TRUE(found == acknowledged || found == acknowledged + 1) << where << found;
    if (access == Access::kWrite) {
      acknowledged = found;  // whoever comes next finds this one
    }
    if (found > 0) {
      expect_commit_is_whole(**store, where, access == Access::kWrite);
    }
    return std::move(*store);
  };
  check(Access::kRead);
  medium.cut_after(seed % 30);  // within what a writer mends first, or later
  if (auto store = check(Access::kWrite)) {
    run_on(*store, acknowledged);
  }
  medium.restart();
  auto store = check(Access::kWrite);
  ASSERT_NE(store, nullptr);
  run_on(*store, acknowledged);
  EXPECT_EQ(acknowledged, kCommits) << where;
  store.reset();
  check(Access::kRead);
}

// Folders, and whether there is an undo slot.
class StoreCrash : public ::testing::TestWithParam<std::tuple<std::size_t, bool>> {
 protected:
  [[nodiscard]] static Scenario scenario() {
    const auto [folders, undo_slot] = GetParam();
    return {.folders = folders, .undo_slot = undo_slot};
  }
};

TEST_P(StoreCrash, ACutAfterAnyOperationLosesNothingThatWasCommitted) {
  const Scenario scenario = StoreCrash::scenario();
  const std::uint64_t seed = testing::test_seed();
  const std::uint64_t operations = operations_of(scenario);
  for (std::uint64_t cut = 0; cut <= operations; ++cut) {
    for (std::uint64_t variant = 0; variant < 8; ++variant) {
      ASSERT_NO_FATAL_FAILURE(cut_and_check(scenario, cut, seed + variant));
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST_P(StoreCrash, ACutWithinAWriteLosesNothingEither) {
  Scenario scenario = StoreCrash::scenario();
  scenario.cut_within_writes = true;
  const std::uint64_t seed = testing::test_seed();
  const std::uint64_t operations = operations_of(scenario);
  for (std::uint64_t cut = 0; cut <= operations; cut += 1 + seed % 7) {
    ASSERT_NO_FATAL_FAILURE(cut_and_check(scenario, cut, seed + cut));
    if (HasFailure()) {
      return;
    }
  }
}

// With one slot a store that was written since its commit is lost, and says so; never a wrong byte.
TEST_P(StoreCrash, WithOneSlotACutLeavesACommitOrADirtyStore) {
  Scenario scenario = StoreCrash::scenario();
  scenario.slots = 1;
  const std::uint64_t seed = testing::test_seed();
  const std::uint64_t operations = operations_of(scenario);
  int clean = 0;
  for (std::uint64_t cut = 0; cut <= operations; ++cut) {
    PowerCutMedium medium(scenario.folders, seed + cut);
    std::int64_t acknowledged = 0;
    {
      const auto store = formatted(medium, scenario);
      medium.cut_after(cut);
      run_on(*store, acknowledged);
    }
    medium.restart();
    for (const Access access : {Access::kRead, Access::kWrite, Access::kRead}) {
      const auto store = Store::load(medium.files(), access);
      ASSERT_TRUE(store.has_value()) << cut << format_error(store.error(), true);
      if ((*store)->dirty() || !(*store)->last_commit()) {
        continue;
      }
      ++clean;
      const std::int64_t found = (*store)->last_commit()->step;
      EXPECT_TRUE(found == acknowledged || found == acknowledged + 1) << cut;
      expect_commit_is_whole(**store, "cut after " + std::to_string(cut) + ": ", false);
    }
  }
  EXPECT_GT(clean, 0);
}

TEST_P(StoreCrash, ACutWhileTheStoreIsMadeLeavesAStoreOrTheRestOfOne) {
  const Scenario scenario = StoreCrash::scenario();
  const std::uint64_t seed = testing::test_seed();
  PowerCutMedium whole(scenario.folders, seed);
  formatted(whole, scenario);
  int stores = 0;
  for (std::uint64_t cut = 0; cut <= whole.operations(); ++cut) {
    PowerCutMedium medium(scenario.folders, seed + cut);
    medium.cut_after(cut);
    formatted(medium, scenario);
    medium.restart();
    const auto store = Store::load(medium.files(), Access::kRead);
    if (store) {
      ++stores;
      EXPECT_FALSE((*store)->last_commit().has_value());
      EXPECT_EQ((*store)->contents().run_dir, "/runs/crash");
    } else {
      EXPECT_EQ(store.error().code, ExitCode::kUsage) << cut << format_error(store.error(), true);
    }
  }
  EXPECT_GT(stores, 0);
}

INSTANTIATE_TEST_SUITE_P(Folders,
                         StoreCrash,
                         ::testing::Combine(::testing::Values(1U, 2U, 3U), ::testing::Bool()));

TEST(StoreFailStop, AfterACommitThatFailedNothingIsWritten) {
  const Scenario scenario{.folders = 2};
  PowerCutMedium medium(scenario.folders, 3);
  const auto store = formatted(medium, scenario);
  HEADRACE_EXPECT_OK(run_step(*store, 1));
  for (const TileBytes& tile : store->contents().tiles) {
    HEADRACE_EXPECT_OK(write_tile(*store, tile, 2));
  }
  medium.cut_after(1);
  const Status failed = store->commit({.step = 2});
  ASSERT_FALSE(failed.has_value());
  expect_contains(failed.error().why, "commit of step 2 failed");
  expect_contains(failed.error().why, "the last commit, of step 1, is intact");
  expect_contains(failed.error().hint, "run the same command again");
  medium.cut_after(std::nullopt);  // the fault is over, but what it left behind cannot be known
  EXPECT_FALSE(store->ready_for_writes());
  const std::uint64_t before = medium.operations();
  for (const Status& status : {write_tile(*store, store->contents().tiles[0], 3),
                               store->mark_dirty(),
                               store->commit({.step = 3})}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ExitCode::kOperating);
    expect_contains(status.error().what, "takes no more writes");
    expect_contains(status.error().why, "step 1, is intact");
  }
  EXPECT_EQ(medium.operations(), before);
}

// A disk that comes back from a backup.
TEST(StoreFolders, AStalePartIsFoundAndNamed) {
  for (const std::int64_t age : {1, 2}) {
    for (const std::size_t stale : {std::size_t{0}, std::size_t{1}}) {
      const Scenario scenario{.folders = 2};
      PowerCutMedium medium(scenario.folders, 5);
      const auto store = formatted(medium, scenario);
      std::vector<PowerCutMedium::Content> backups;
      for (std::int64_t step = 1; step <= 3; ++step) {
        HEADRACE_EXPECT_OK(run_step(*store, step));
        backups.push_back(medium.content(stale));
      }
      medium.content(stale) = backups[static_cast<std::size_t>(2 - age)];
      for (const Access access : {Access::kRead, Access::kWrite}) {
        const auto opened = Store::load(medium.files(), access);
        ASSERT_FALSE(opened.has_value()) << age << " " << stale;
        EXPECT_EQ(opened.error().code, ExitCode::kCorrupt);
        expect_contains(opened.error().what, "'disk" + std::to_string(stale) + "' is stale");
        expect_contains(opened.error().why, "generation " + std::to_string(3 - age));
      }
    }
  }
}

TEST(StoreFolders, SwappedForeignAndMissingPartsAreNamed) {
  PowerCutMedium medium(3, 5);
  formatted(medium, {.folders = 3});
  auto files = medium.files();
  std::swap(files[1], files[2]);
  const auto swapped = Store::load(std::move(files), Access::kWrite);
  ASSERT_FALSE(swapped.has_value());
  EXPECT_EQ(swapped.error().code, ExitCode::kUsage);
  expect_contains(swapped.error().what, "disk2");
  expect_contains(swapped.error().why, "part 3 of the store's 3, not part 2");

  files = medium.files();
  files.pop_back();
  const auto missing = Store::load(std::move(files), Access::kWrite);
  ASSERT_FALSE(missing.has_value());
  expect_contains(missing.error().why, "the store has 3 folders, 2 are given");

  PowerCutMedium other(3, 6);
  EXPECT_TRUE(Store::format(other.files(), {.high = 1, .low = 1}, tiny_contents(), {}).has_value());
  medium.content(1) = other.content(1);
  const auto foreign = Store::load(medium.files(), Access::kWrite);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_EQ(foreign.error().code, ExitCode::kUsage);
  expect_contains(foreign.error().what, "disk1");
  expect_contains(foreign.error().why, "belongs to the store");
}

// The bookkeeping of a very large model: no step of it may be quadratic.
TEST(StoreFolders, AMillionTilesAreMadeCommittedAndFoundAgain) {
  constexpr std::uint32_t kTilesOfAUnit = 1000;
  StoreContents contents;
  for (std::uint32_t tile = 0; tile < 1'000'000; ++tile) {
    contents.tiles.push_back({.unit = tile / kTilesOfAUnit,
                              .tile = tile % kTilesOfAUnit,
                              .param_bytes = kPageBytes,
                              .state_bytes = 0});
  }
  PowerCutMedium medium(2, 1);
  const auto store = Store::format(medium.files(), kId, contents, {});
  ASSERT_TRUE(store.has_value());
  for (std::int64_t step = 1; step <= 2; ++step) {
    for (const TileBytes& tile : contents.tiles) {
      const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = ExtentKind::kParam};
      (*store)->wrote(key, (*store)->write_place(key, step), step);
    }
    HEADRACE_EXPECT_OK((*store)->commit({.step = step}));
  }
  medium.restart();
  const auto again = Store::load(medium.files(), Access::kWrite);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ((*again)->last_commit()->step, 2);
  const ExtentKey last{.unit = 999, .tile = 999, .kind = ExtentKind::kParam};
  EXPECT_EQ((*again)->step_of(last), 2);
  EXPECT_EQ((*again)->read_place(last).slot, 1U);
}

}  // namespace
}  // namespace headrace::tiers::nvme
