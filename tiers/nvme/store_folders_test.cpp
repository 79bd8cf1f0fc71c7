// Stores over several folders of a real filesystem, what is found of them, and their copies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>
#include <thread>

#include "core/assert.hpp"
#include "tiers/nvme/assign_folders.hpp"
#include "tiers/nvme/format.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

namespace fs = std::filesystem;
using testing::all_extents;
using testing::expect_contains;
using testing::expect_holds;
using testing::small_contents;
using testing::TestFolder;
using testing::write_all_extents;
using Access = Store::Access;

TEST(AssignFolders, BytesFollowBandwidth) {
  const std::vector<std::uint64_t> tiles(6000, 1000);
  const std::vector<FolderShare> folders = {
      {.name = "a", .weight = 3.0}, {.name = "b", .weight = 1.0}, {.name = "c", .weight = 2.0}};
  const FolderAssignment assigned = assign_folders(tiles, folders).value();
  EXPECT_NEAR(static_cast<double>(assigned.folder_bytes[0]), 3e6, 2000);
  EXPECT_NEAR(static_cast<double>(assigned.folder_bytes[1]), 1e6, 2000);
  EXPECT_NEAR(static_cast<double>(assigned.folder_bytes[2]), 2e6, 2000);
  // Every stretch of tiles keeps all folders busy.
  for (std::size_t begin = 0; begin + 12 <= tiles.size(); begin += 12) {
    for (std::uint32_t folder = 0; folder < 3; ++folder) {
      EXPECT_NE(std::count(assigned.folder_of.begin() + static_cast<std::ptrdiff_t>(begin),
                           assigned.folder_of.begin() + static_cast<std::ptrdiff_t>(begin + 12),
                           folder),
                0);
    }
  }
  EXPECT_EQ(assign_folders(tiles, folders).value().folder_of, assigned.folder_of);
}

TEST(AssignFolders, CapacitiesHoldAndARefusalNamesEveryFolder) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> tiles(1 + random() % 50);
    std::uint64_t total = 0;
    for (std::uint64_t& tile : tiles) {
      tile = random() % 1000;
      total += tile;
    }
    std::vector<FolderShare> folders(1 + random() % 4);
    for (FolderShare& folder : folders) {
      folder = {.name = "disk" + std::to_string(&folder - folders.data()),
                .weight = 1.0 + static_cast<double>(random() % 5),
                .capacity_bytes = random() % (total + 1)};
    }
    const Result<FolderAssignment> assigned = assign_folders(tiles, folders);
    if (!assigned) {
      EXPECT_EQ(assigned.error().code, ExitCode::kDoesNotFit);
      for (const FolderShare& folder : folders) {
        expect_contains(assigned.error().why, folder.name);
        expect_contains(assigned.error().why, std::to_string(folder.capacity_bytes));
      }
      continue;
    }
    std::vector<std::uint64_t> bytes(folders.size());
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      bytes.at(assigned->folder_of.at(i)) += tiles[i];
    }
    EXPECT_EQ(bytes, assigned->folder_bytes);
    for (std::size_t i = 0; i < folders.size(); ++i) {
      EXPECT_LE(bytes[i], folders[i].capacity_bytes);
    }
  }
}

StoreContents many_tiles() {
  StoreContents contents = small_contents();
  contents.tiles.clear();
  for (std::uint32_t tile = 0; tile < 24; ++tile) {
    contents.tiles.push_back({.unit = tile / 8,
                              .tile = tile % 8,
                              .param_bytes = 16 * testing::kKib,
                              .state_bytes = 32 * testing::kKib});
  }
  return contents;
}

// A finished file becomes one whose creation was interrupted: superblock copy B as if never
// written, copy A "creating".
void make_unfinished(const std::string& data) {
  std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
  format::Superblock block{};
  file.read(reinterpret_cast<char*>(&block), sizeof(block));
  block.flags |= format::kFlagCreating;
  std::array<std::byte, kPageBytes> page{};
  format::encode_superblock(block, page);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(page.data()), kPageBytes);
  page = {};
  file.seekp(static_cast<std::streamoff>(format::kSuperblockOffsets[1]));
  file.write(reinterpret_cast<const char*>(page.data()), kPageBytes);
}

// Two folders, a committed store in both.
class TwoFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::unique_ptr<Store> store = create();
    for (std::int64_t step = 1; step <= 2; ++step) {
      write_all_extents(*store, step);
      HEADRACE_EXPECT_OK(store->commit({.step = step, .run_state = "{}"}));
    }
  }

  // Without a commit.
  std::unique_ptr<Store> create() {
    StoreOptions options{.folders = {{.path = one(), .weight = 2.0}, {.path = two()}},
                         .direct_io_required = false};
    Result<std::unique_ptr<Store>> store = Store::create(options, many_tiles());
    HEADRACE_ASSERT(store.has_value(), "a store can be made");
    id_ = (*store)->id();
    return std::move(*store);
  }

  [[nodiscard]] std::string one() const { return base_.path() + "/one"; }

  [[nodiscard]] std::string two() const { return base_.path() + "/two"; }

  [[nodiscard]] Result<std::unique_ptr<Store>> open(Access access = Access::kRead) const {
    return Store::open({one(), two()}, id_, access, false);
  }

  [[nodiscard]] Error open_error() const {
    const auto opened = open(Access::kWrite);
    EXPECT_FALSE(opened.has_value());
    return opened ? Error{} : opened.error();
  }

  TestFolder base_;
  std::string id_;
};

TEST_F(TwoFolders, HoldTilesByTheirWeightAndReadBack) {
  auto opened = open(Access::kWrite);
  ASSERT_TRUE(opened.has_value()) << format_error(opened.error(), true);
  Store& store = **opened;
  EXPECT_EQ(store.folder_count(), 2U);
  EXPECT_EQ(store.path(), one() + "/" + id_);
  int in_first = 0;
  for (const TileBytes& tile : store.contents().tiles) {
    in_first += store.folder_of(tile.unit, tile.tile) == 0 ? 1 : 0;
  }
  EXPECT_EQ(in_first, 16);
  for (const ExtentKey& key : all_extents(store)) {
    EXPECT_EQ(store.read_place(key).folder, store.folder_of(key.unit, key.tile));
    EXPECT_NE(store.read_place(key).slot, store.write_place(key, 9).slot);
    expect_holds(store, key, 2);
  }
  std::uint64_t bytes = 0;
  for (std::uint32_t folder = 0; folder < 2; ++folder) {
    struct stat info {};

    ASSERT_EQ(::stat(store.data_path(folder).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777U, 0600U);
    EXPECT_GE(static_cast<std::uint64_t>(info.st_blocks) * 512,
              static_cast<std::uint64_t>(info.st_size));
    bytes += static_cast<std::uint64_t>(info.st_size);
  }
  EXPECT_EQ(store.bytes(), bytes);
  write_all_extents(store, 3);
  HEADRACE_EXPECT_OK(store.commit({.step = 3}));
  opened->reset();
  expect_holds(**open(), all_extents(**open())[5], 3);
}

TEST_F(TwoFolders, ALostPartIsNamed) {
  fs::rename(two() + "/" + id_, two() + "/elsewhere");
  Error error = open_error();
  EXPECT_EQ(error.code, ExitCode::kUsage);
  expect_contains(error.what, two() + "/" + id_);
  expect_contains(error.why, "folder 2 of the store's 2");
  expect_contains(list_stores({one()}).value().at(0).problem, "1 of its 2 parts");
  fs::rename(two(), two() + ".gone");
  error = open_error();
  EXPECT_EQ(error.code, ExitCode::kUsage);
  expect_contains(error.what, two());
  const auto half = Store::open({one()}, id_, Access::kRead, false);
  ASSERT_FALSE(half.has_value());
  expect_contains(half.error().why, "the store has 2 folders, 1 are given");
}

TEST_F(TwoFolders, SwappedAndDoubledFoldersAreNamed) {
  const auto swapped = Store::open({two(), one()}, id_, Access::kWrite, false);
  ASSERT_FALSE(swapped.has_value());
  EXPECT_EQ(swapped.error().code, ExitCode::kUsage);
  expect_contains(swapped.error().what, two());
  expect_contains(swapped.error().why, "part 2 of the store's 2, not part 1");
  const auto doubled = Store::open({one(), one() + "/."}, id_, Access::kWrite, false);
  ASSERT_FALSE(doubled.has_value());
  expect_contains(doubled.error().why, "named twice");
}

TEST_F(TwoFolders, AStalePartFromABackupIsNamed) {
  const std::string data = two() + "/" + id_ + "/data";
  fs::copy_file(data, base_.path() + "/backup");
  {
    auto store = open(Access::kWrite);
    write_all_extents(**store, 3);
    HEADRACE_EXPECT_OK((*store)->commit({.step = 3}));
  }
  fs::copy_file(base_.path() + "/backup", data, fs::copy_options::overwrite_existing);
  const Error error = open_error();
  EXPECT_EQ(error.code, ExitCode::kCorrupt);
  expect_contains(error.what, data + "' is stale");
}

TEST_F(TwoFolders, DamageIsReportedWithItsFolder) {
  auto store = open();
  for (const ExtentKey& key : {all_extents(**store)[0], all_extents(**store)[10]}) {
    const ExtentPlace place = (*store)->read_place(key);
    const std::string data = (*store)->data_path(place.folder);
    testing::flip_bit(data, place.offset + place.header_bytes);
    std::vector<Error> errors;
    ASSERT_TRUE((*store)->verify([&](const Error& e) { errors.push_back(e); }).has_value());
    ASSERT_EQ(errors.size(), 1U);
    expect_contains(errors[0].what, data);
    testing::flip_bit(data, place.offset + place.header_bytes);
  }
  const std::string second = (*store)->data_path(1);
  store->reset();
  testing::flip_bit(second, format::kMapOffset + 40);  // a commit record: of step 1, or of step 2
  testing::flip_bit(
      second,
      format::kMapOffset + 40 +
          format::round_up(format::map_bytes(24, 1U << 20U), format::kRegionAlignBytes));
  const Error error = open_error();
  EXPECT_EQ(error.code, ExitCode::kCorrupt);
  expect_contains(error.what, second);
  expect_contains(error.why, "commit record");
}

TEST_F(TwoFolders, AreListedAndRemovedTogether) {
  for (const std::vector<std::string>& folders :
       {std::vector<std::string>{one()}, {two()}, {one(), two()}}) {
    const std::vector<StoreListing> listings = list_stores(folders).value();
    ASSERT_EQ(listings.size(), 1U);
    const StoreListing& listing = listings[0];
    EXPECT_EQ(listing.problem, "");
    EXPECT_EQ(listing.folder_count, 2U);
    EXPECT_EQ(listing.slots, 2U);
    EXPECT_EQ(listing.step, 2);
    ASSERT_EQ(listing.parts.size(), 2U);
    EXPECT_EQ(listing.parts[0].path, one() + "/" + id_);
    EXPECT_EQ(listing.parts[1].path, two() + "/" + id_);
    EXPECT_EQ(listing.bytes, listing.parts[0].bytes + listing.parts[1].bytes);
  }
  {
    const auto reader = open();
    EXPECT_FALSE(remove_store({one()}, id_).has_value());
    EXPECT_TRUE(fs::exists(two() + "/" + id_));
  }
  HEADRACE_EXPECT_OK(remove_store({two()}, id_));
  EXPECT_TRUE(fs::is_empty(one()));
  EXPECT_TRUE(fs::is_empty(two()));
}

// How far a creation came in one folder when it was killed.
enum class Came : std::uint8_t { kNothing, kDirectory, kEmptyFile, kBlankFile, kCreating };

void set_back(const std::string& store, Came came) {
  const std::string data = store + "/data";
  switch (came) {
    case Came::kNothing:
      fs::remove_all(store);
      break;
    case Came::kDirectory:
      fs::remove(data);
      break;
    case Came::kEmptyFile:
      fs::resize_file(data, 0);
      break;
    case Came::kBlankFile:
      fs::resize_file(data, 0);
      fs::resize_file(data, kPageBytes);
      break;
    case Came::kCreating:
      make_unfinished(data);
      break;
  }
}

// kill -9 at any point of a creation: what there is in the folders that are named goes, and what
// lies elsewhere too as soon as one part says where.
TEST_F(TwoFolders, WhatAKilledCreationHasLeftIsListedAndRemoved) {
  constexpr Came kAll[] = {
      Came::kNothing, Came::kDirectory, Came::kEmptyFile, Came::kBlankFile, Came::kCreating};
  const std::vector<std::vector<std::string>> named = {{one()}, {two()}, {one(), two()}};
  for (const Came first : kAll) {
    for (const Came second : kAll) {
      for (const std::vector<std::string>& folders : named) {
        const std::string what = std::to_string(static_cast<int>(first)) + " " +
                                 std::to_string(static_cast<int>(second)) + " " + folders.front() +
                                 " of " + std::to_string(folders.size());
        fs::remove_all(one());
        fs::remove_all(two());
        create().reset();
        set_back(one() + "/" + id_, first);
        set_back(two() + "/" + id_, second);
        const bool known = std::any_of(folders.begin(), folders.end(), [&](const auto& folder) {
          return (folder == one() ? first : second) != Came::kNothing;
        });
        const std::vector<StoreListing> listings = list_stores(folders).value();
        ASSERT_EQ(listings.size(), known ? 1U : 0U) << what;
        const Status removed = remove_store(folders, id_);
        if (!known) {
          ASSERT_FALSE(removed.has_value()) << what;
          expect_contains(removed.error().what, "there is no store");
          continue;
        }
        ASSERT_TRUE(removed.has_value()) << what << format_error(removed.error(), true);
        expect_contains(listings[0].problem, "interrupted");
        for (const std::string& folder : folders) {
          EXPECT_TRUE(fs::is_empty(folder)) << what;
        }
        if ((folders.front() == one() ? first : second) == Came::kCreating) {
          EXPECT_TRUE(fs::is_empty(one()) && fs::is_empty(two())) << what;
        }
      }
    }
  }
}

// A removal that was killed has taken the data file of a finished store and left its directory.
TEST_F(TwoFolders, ARemovalThatWasKilledCanBeRepeated) {
  fs::remove(one() + "/" + id_ + "/data");
  const std::vector<StoreListing> listings = list_stores({two()}).value();
  ASSERT_EQ(listings.size(), 1U);
  EXPECT_EQ(listings[0].parts.size(), 2U);
  expect_contains(listings[0].problem, "its removal was interrupted");
  HEADRACE_EXPECT_OK(remove_store({two()}, id_));
  EXPECT_TRUE(fs::is_empty(one()));
  EXPECT_TRUE(fs::is_empty(two()));
}

// A file that says nothing is the rest of a creation only beside a part that was never finished.
TEST_F(TwoFolders, ABlankFileInAFolderThatWasNotNamedStaysBesideAFinishedPart) {
  set_back(two() + "/" + id_, Came::kBlankFile);
  HEADRACE_EXPECT_OK(remove_store({one()}, id_));
  EXPECT_TRUE(fs::is_empty(one()));
  EXPECT_TRUE(fs::exists(two() + "/" + id_ + "/data"));
}

TEST_F(TwoFolders, ADirectoryWithFilesOfSomebodyStays) {
  const std::string store = one() + "/" + id_;
  fs::remove(store + "/data");
  std::ofstream(store + "/notes.txt") << "mine";
  const Status status = remove_store({one()}, id_);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ExitCode::kUsage);
  expect_contains(status.error().why, "it has no data file");
  EXPECT_TRUE(fs::exists(store + "/notes.txt"));
}

TEST_F(TwoFolders, AreLocatedFromEitherPart) {
  for (const std::string& folder : {one(), two()}) {
    const StoreLocation location = locate_store(folder + "/" + id_).value();
    EXPECT_EQ(location.id, id_);
    EXPECT_EQ(location.folders, (std::vector<std::string>{one(), two()}));
  }
  fs::rename(two(), base_.path() + "/moved");
  const StoreLocation location = locate_store(base_.path() + "/moved/" + id_).value();
  EXPECT_EQ(location.folders, (std::vector<std::string>{one(), base_.path() + "/moved"}));
}

TEST_F(TwoFolders, ACopyIsAStoreOfItsOwnThatHoldsTheCommit) {
  const std::string target = base_.path() + "/copies";
  {
    auto store = open(Access::kWrite);  // written since the commit: not what is copied
    write_all_extents(**store, 9);
  }
  const StoreLocation source{.folders = {one(), two()}, .id = id_};
  const Result<std::string> id = copy_store(source, {{.path = target}});
  ASSERT_TRUE(id.has_value()) << format_error(id.error(), true);
  EXPECT_NE(*id, id_);
  auto copied = Store::open({target}, *id, Access::kWrite, false);
  ASSERT_TRUE(copied.has_value()) << format_error(copied.error(), true);
  Store& copy = **copied;
  EXPECT_EQ(copy.slots(), 2U);
  EXPECT_EQ(copy.last_commit()->step, 2);
  EXPECT_EQ(copy.contents().run_dir, "/runs/demo");
  for (const ExtentKey& key : all_extents(copy)) {
    EXPECT_EQ(copy.read_place(key).slot, 0U);
    expect_holds(copy, key, 2);
  }
  write_all_extents(copy, 4);
  HEADRACE_EXPECT_OK(copy.commit({.step = 4}));
  copied->reset();
  EXPECT_TRUE(list_stores({target}).value().at(0).copy);
  EXPECT_TRUE(reclaim_orphans({target}, "/runs/demo", "").value().empty()) << "it is a backup";

  const ExtentPlace place = (*open())->read_place(all_extents(**open())[3]);
  testing::flip_bit((*open())->data_path(place.folder), place.offset + place.header_bytes + 100);
  const Result<std::string> damaged = copy_store(source, {{.path = base_.path() + "/other"}});
  ASSERT_FALSE(damaged.has_value());
  EXPECT_EQ(damaged.error().code, ExitCode::kCorrupt);
  EXPECT_TRUE(fs::is_empty(base_.path() + "/other"));
}

TEST_F(TwoFolders, AreFlushedOneAfterTheOtherWhereNoThreadCanBeStarted) {
  auto opened = open(Access::kWrite);
  ASSERT_TRUE(opened.has_value());
  Store& store = **opened;
  write_all_extents(store, 3);
  const int result = testing::in_a_child([&] {
    if (!testing::may_start_no_threads()) {
      return 77;
    }
    try {
      const std::thread none([] {});
      return 2;
    } catch (const std::system_error&) {
      return store.commit({.step = 3, .run_state = "{}"}) ? 0 : 1;
    }
  });
  if (result == 77) {
    GTEST_SKIP() << "limits of processes cannot be set here";
  }
  ASSERT_EQ(result, 0) << "2: a thread was started in spite of the limit";
  opened->reset();
  const auto again = open();
  ASSERT_TRUE(again.has_value()) << format_error(again.error(), true);
  EXPECT_EQ((*again)->last_commit()->step, 3);
}

TEST(StoreFolders, SpaceLimitsAreKeptAndARefusalNamesTheFolder) {
  const TestFolder base;
  StoreContents contents = many_tiles();
  StoreOptions options{
      .folders = {{.path = base.path() + "/small"}, {.path = base.path() + "/large"}},
      .direct_io_required = false,
      .prewrite = false};
  const std::uint64_t metadata = format::extents_offset(contents, 200);
  const std::uint64_t tile = 2 * format::tile_bytes(16 * testing::kKib, 32 * testing::kKib);
  options.folders[0].space_bytes_max = metadata + 3 * tile + 100;
  {
    const auto store = Store::create(options, contents);
    ASSERT_TRUE(store.has_value()) << format_error(store.error(), true);
    EXPECT_LE((*store)->file(0).bytes().value(), *options.folders[0].space_bytes_max);
    int in_first = 0;
    for (const TileBytes& bytes : contents.tiles) {
      in_first += (*store)->folder_of(bytes.unit, bytes.tile) == 0 ? 1 : 0;
    }
    EXPECT_EQ(in_first, 3);
  }
  options.folders[1].space_bytes_max = metadata + 5 * tile;
  const auto refused = Store::create(options, contents);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ExitCode::kDoesNotFit);
  expect_contains(refused.error().why, base.path() + "/small");
  expect_contains(refused.error().why, base.path() + "/large");
  expect_contains(refused.error().why, std::to_string(16 * tile) + " bytes of tiles");
  options.folders[0].space_bytes_max = metadata / 2;
  options.folders[1].space_bytes_max.reset();
  const auto no_room = Store::create(options, contents);
  ASSERT_FALSE(no_room.has_value());
  expect_contains(no_room.error().what, base.path() + "/small");
}

TEST(StoreFolders, TogetherTheyMayNotTakeMoreThanTheirFilesystemHas) {
  const TestFolder base;
  const std::uint64_t free_bytes = filesystem_of(base.path()).value().free_bytes;
  StoreContents contents;
  const std::uint64_t part = format::round_up(free_bytes / 3, kPageBytes);
  if (part > format::kPayloadBytesMax) {
    GTEST_SKIP() << "the disk is too large for two tiles to fill it";
  }
  for (std::uint32_t tile = 0; tile < 2; ++tile) {
    contents.tiles.push_back({.unit = 0, .tile = tile, .param_bytes = part, .state_bytes = 0});
  }
  const auto store =
      Store::create({.folders = {{.path = base.path() + "/one"}, {.path = base.path() + "/two"}},
                     .direct_io_required = false},
                    contents);
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().code, ExitCode::kDoesNotFit);
  EXPECT_TRUE(base.empty());
}

TEST(StoreFolders, ProgressIsToldAndMayEndTheCreation) {
  const TestFolder base;
  StoreOptions options{.folders = {{.path = base.path() + "/one"}, {.path = base.path() + "/two"}},
                       .direct_io_required = false};
  std::uint64_t last_done = 0;
  std::uint64_t last_total = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) -> Status {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
    return {};
  };
  {
    const auto store = Store::create(options, many_tiles());
    ASSERT_TRUE(store.has_value());
    EXPECT_EQ(last_done, last_total);
    EXPECT_GT(last_total, 0U);
    EXPECT_LE(last_total, (*store)->bytes());
  }
  options.folders = {{.path = base.path() + "/three"}, {.path = base.path() + "/four"}};
  options.progress = [](std::uint64_t, std::uint64_t) -> Status {
    return operating_error("interrupted");
  };
  const auto stopped = Store::create(options, many_tiles());
  ASSERT_FALSE(stopped.has_value());
  expect_contains(stopped.error().what, "interrupted");
  EXPECT_FALSE(fs::exists(base.path() + "/three"));
  EXPECT_FALSE(fs::exists(base.path() + "/four"));
}

std::string make_run_store(const std::string& folder, const std::string& run_dir) {
  StoreContents contents = small_contents();
  contents.run_dir = run_dir;
  return testing::make_store(folder, contents, 2)->id();
}

TEST(Orphans, OnlyThisRunsUnlockedStoresAreReclaimed) {
  const TestFolder folder;
  const std::string orphan = make_run_store(folder.path(), "/runs/a");
  const std::string kept = make_run_store(folder.path(), "/runs/a");
  const std::string other = make_run_store(folder.path(), "/runs/b");
  const std::string nobodys = make_run_store(folder.path(), "");
  const std::string held_id = make_run_store(folder.path(), "/runs/a");
  const auto held = testing::open_store(folder.path(), held_id);
  fs::create_directory(folder.path() + "/" + std::string(32, '1'));
  std::ofstream(folder.path() + "/" + std::string(32, '1') + "/data") << "/runs/a";
  const auto removed =
      reclaim_orphans({folder.path(), folder.path() + "/absent"}, "/runs/a", kept).value();
  EXPECT_EQ(removed, (std::vector<std::string>{folder.path() + "/" + orphan}));
  for (const std::string& id : {kept, other, nobodys, held_id, std::string(32, '1')}) {
    EXPECT_TRUE(fs::exists(folder.path() + "/" + id + "/data")) << id;
  }
  EXPECT_TRUE(reclaim_orphans({folder.path()}, "", "").value().empty());
}

// kill -9 while a store is being made: what is left names its run and is reclaimed by it alone.
TEST(Orphans, TheRestOfAnInterruptedCreationIsReclaimed) {
  const TestFolder folder;
  const std::string id(32, 'e');
  const std::string data = folder.path() + "/" + id + "/data";
  const std::string made = make_run_store(folder.path(), "/runs/a");
  fs::rename(folder.path() + "/" + made, folder.path() + "/" + id);
  make_unfinished(data);
  const StoreListing listing = list_stores({folder.path()}).value().at(0);
  expect_contains(listing.problem, "interrupted");
  EXPECT_EQ(listing.run_dir, "/runs/a");
  EXPECT_TRUE(reclaim_orphans({folder.path()}, "/runs/b", "").value().empty());
  EXPECT_EQ(reclaim_orphans({folder.path()}, "/runs/a", "").value().size(), 1U);
  EXPECT_TRUE(folder.empty());
}

// kill -9 before that: nothing says whose it is but the id, which was noted.
TEST(Orphans, WhatACreationLeavesBeforeItSaysWhoseItIsIsRemovedByItsId) {
  const TestFolder folder;
  const std::string id(32, 'e');
  const std::string store = folder.path() + "/" + id;
  const std::vector<std::string> folders = {folder.path() + "/absent", folder.path()};
  EXPECT_FALSE(remove_unfinished(folders, id).value()) << "killed before anything was made";
  for (const std::size_t bytes : {std::size_t{0}, kPageBytes, std::size_t{1} << 20U}) {
    fs::create_directory(store);
    std::ofstream(store + "/data") << std::string(bytes, '\0');
    EXPECT_TRUE(remove_unfinished(folders, id).value()) << bytes;
    EXPECT_TRUE(folder.empty());
  }
  fs::create_directory(store);
  EXPECT_TRUE(remove_unfinished(folders, id).value()) << "killed before the file was made";
  EXPECT_TRUE(folder.empty());
}

TEST(Orphans, RemovingAnUnfinishedStoreLeavesAllElseAlone) {
  const TestFolder folder;
  const std::string made = make_run_store(folder.path(), "/runs/a");
  EXPECT_FALSE(remove_unfinished({folder.path()}, made).value()) << "it says whose it is";
  EXPECT_TRUE(fs::exists(folder.path() + "/" + made + "/data"));
  const std::string id(32, '1');
  fs::create_directory(folder.path() + "/" + id);
  std::ofstream(folder.path() + "/" + id + "/data") << "somebody's";
  EXPECT_FALSE(remove_unfinished({folder.path()}, id).has_value());
  EXPECT_TRUE(fs::exists(folder.path() + "/" + id + "/data"));
  fs::create_directory(folder.path() + "/inner");
  EXPECT_FALSE(remove_unfinished({folder.path() + "/inner"}, "../inner").value());
  EXPECT_TRUE(fs::exists(folder.path() + "/inner")) << "not an id";
}

TEST(Orphans, AStoreHasTheIdThatWasNoted) {
  const TestFolder folder;
  StoreOptions options = testing::auto_options(folder.path());
  options.id = Id128{.high = 1, .low = 2};
  const auto store = Store::create(options, testing::small_contents());
  ASSERT_TRUE(store) << format_error(store.error(), true);
  EXPECT_EQ((*store)->id(), options.id->hex());
}

}  // namespace
}  // namespace headrace::tiers::nvme
