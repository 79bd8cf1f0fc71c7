// Stores on a real filesystem: what create, open, commit, list and remove promise.
#include "tiers/nvme/store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tiers/nvme/format.hpp"
#include "tiers/nvme/page_buffer.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

namespace fs = std::filesystem;
using testing::all_extents;
using testing::auto_options;
using testing::expect_contains;
using testing::expect_holds;
using testing::make_store;
using testing::open_store;
using testing::pattern;
using testing::small_contents;
using testing::TestFolder;
using testing::write_all_extents;
using Access = Store::Access;

TEST(Store, CreateMakesAPrivatePreallocatedFile) {
  const TestFolder folder;
  const std::string inner = folder.path() + "/made";
  const auto store = make_store(inner);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->id().size(), 32U);
  EXPECT_EQ(store->path(), inner + "/" + store->id());
  EXPECT_EQ(store->data_path(), store->path() + "/data");

  struct stat info {};

  ASSERT_EQ(::stat(store->data_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0600U);
  EXPECT_EQ(static_cast<std::uint64_t>(info.st_size), store->bytes());
  EXPECT_GE(static_cast<std::uint64_t>(info.st_blocks) * 512, store->bytes());
  for (const std::string& made : {inner, store->path()}) {
    ASSERT_EQ(::stat(made.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777U, 0700U) << made;
  }
  EXPECT_FALSE(store->dirty());
  EXPECT_FALSE(store->last_commit().has_value());
  EXPECT_EQ(store->contents().tiles.size(), 4U);
}

TEST(Store, EveryExtentSurvivesCommitAndReopening) {
  const TestFolder folder;
  auto store = make_store(folder.path());
  write_all_extents(*store, 4);
  EXPECT_TRUE(store->dirty());
  HEADRACE_EXPECT_OK(store->commit({.step = 4, .update_count = 3, .run_state = "{\"a\":1}"}));
  EXPECT_FALSE(store->dirty());
  const std::string id = store->id();
  store.reset();

  const auto again = open_store(folder.path(), id);
  ASSERT_TRUE(again.has_value()) << format_error(again.error(), true);
  Store& opened = **again;
  ASSERT_TRUE(opened.last_commit().has_value());
  EXPECT_EQ(opened.last_commit()->generation, 1U);
  EXPECT_EQ(opened.last_commit()->step, 4);
  EXPECT_EQ(opened.last_commit()->update_count, 3);
  EXPECT_EQ(opened.last_commit()->run_state, "{\"a\":1}");
  const StoreContents wanted = small_contents();
  EXPECT_EQ(opened.contents().tensor_table, wanted.tensor_table);
  EXPECT_EQ(opened.contents().layout_tag, wanted.layout_tag);
  EXPECT_EQ(opened.contents().run_dir, wanted.run_dir);
  ASSERT_EQ(opened.contents().tiles.size(), wanted.tiles.size());
  for (std::size_t i = 0; i < wanted.tiles.size(); ++i) {
    EXPECT_EQ(opened.contents().tiles[i].unit, wanted.tiles[i].unit);
    EXPECT_EQ(opened.contents().tiles[i].tile, wanted.tiles[i].tile);
    EXPECT_EQ(opened.contents().tiles[i].param_bytes, wanted.tiles[i].param_bytes);
    EXPECT_EQ(opened.contents().tiles[i].state_bytes, wanted.tiles[i].state_bytes);
  }
  for (const ExtentKey& key : all_extents(opened)) {
    EXPECT_EQ(opened.step_of(key), 4);
    expect_holds(opened, key, 4);
  }
  int problems = 0;
  const Result<std::uint64_t> checked = opened.verify([&](const Error&) { ++problems; });
  ASSERT_TRUE(checked.has_value());
  EXPECT_EQ(*checked, 7U);
  EXPECT_EQ(problems, 0);
}

TEST(Store, EverySizeAroundSubBlocksSurvivesFromAnyAlignment) {
  const TestFolder folder;
  StoreContents contents;
  constexpr std::uint64_t kBlockPages = kSumBlockBytes / kPageBytes;
  std::uint32_t tile = 0;
  for (const std::uint64_t count : {1UL,
                                    2UL,
                                    3UL,
                                    kBlockPages - 1,
                                    kBlockPages,
                                    kBlockPages + 1,
                                    2 * kBlockPages - 1,
                                    2 * kBlockPages,
                                    2 * kBlockPages + 1,
                                    8 * kBlockPages,
                                    8 * kBlockPages + 1}) {
    contents.tiles.push_back({.unit = 0,
                              .tile = tile++,
                              .param_bytes = count * kPageBytes,
                              .state_bytes = (count + 1) * kPageBytes});
  }
  const auto store = make_store(folder.path(), contents);
  for (const ExtentKey& key : all_extents(*store)) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}, std::size_t{512}}) {
      const std::size_t bytes = store->read_place(key).payload_bytes;
      std::vector<std::byte> source(bytes + shift);
      const auto step = static_cast<std::int64_t>(shift);
      testing::fill(std::span(source).subspan(shift), key, step);
      HEADRACE_EXPECT_OK(store->write_now(key, std::span(source).subspan(shift), step));
      std::vector<std::byte> target(bytes + shift);
      HEADRACE_EXPECT_OK(store->read_now(key, std::span(target).subspan(shift)));
      EXPECT_TRUE(source == target) << bytes << " bytes from " << shift;
    }
  }
  // Neighbours are left alone.
  for (const ExtentKey& key : all_extents(*store)) {
    expect_holds(*store, key, 512);
  }
}

TEST(Store, DirectIoIsUsedWhereTheFilesystemHasIt) {
  const TestFolder folder;
  StoreOptions options = auto_options(folder.path());
  options.direct_io_required = true;
  const Result<std::unique_ptr<Store>> store = Store::create(options, small_contents());
  if (!store) {
    expect_contains(store.error().hint, "tiers.direct_io = \"auto\"");
    EXPECT_TRUE(folder.empty());
    GTEST_SKIP() << "no direct I/O here: " << store.error().why;
  }
  EXPECT_TRUE((*store)->direct_io());
  EXPECT_NE(::fcntl((*store)->file(0).fd(), F_GETFL) & O_DIRECT, 0);
}

TEST(Store, DirtyIsDurableAndACommitClearsIt) {
  const TestFolder folder;
  auto store = make_store(folder.path());
  const std::string id = store->id();
  for (std::int64_t step = 1; step <= 3; ++step) {
    write_all_extents(*store, step);
    store.reset();
    {
      const auto dirty = open_store(folder.path(), id);
      ASSERT_TRUE(dirty.has_value()) << format_error(dirty.error(), true);
      EXPECT_TRUE((*dirty)->dirty());
      EXPECT_EQ((*dirty)->last_commit().has_value(), step > 1);
      std::string text;
      ASSERT_TRUE((*dirty)->verify([&](const Error& e) { text += e.what; }).has_value());
      expect_contains(text, "is dirty");
    }
    store = std::move(*open_store(folder.path(), id, Access::kWrite));
    write_all_extents(*store, step);
    HEADRACE_EXPECT_OK(store->commit({.step = step}));
    EXPECT_EQ(store->last_commit()->generation, static_cast<std::uint64_t>(step));
    store.reset();
    store = std::move(*open_store(folder.path(), id, Access::kWrite));
    EXPECT_FALSE(store->dirty());
    EXPECT_EQ(store->last_commit()->step, step);
  }
}

// What [export] reads while the run goes on.
TEST(Store, TheLastCommitIsReadWhateverHasBeenWrittenSince) {
  const TestFolder folder;
  const std::unique_ptr<Store> store = make_store(folder.path(), small_contents(), 2);
  ASSERT_NE(store, nullptr);
  for (std::int64_t step = 1; step <= 6; ++step) {
    write_all_extents(*store, step);
    HEADRACE_EXPECT_OK(store->commit({.step = step}));
    write_all_extents(*store, step + 100);
    const std::size_t header_bytes = store->header_bytes_max();
    for (const ExtentKey& key : all_extents(*store)) {
      const std::size_t bytes = store->read_place(key).payload_bytes;
      PageBuffer memory = PageBuffer::create(header_bytes + bytes).value();
      const std::span<std::byte> payload = memory.bytes().subspan(header_bytes, bytes);
      HEADRACE_EXPECT_OK(store->read_committed(key, payload, memory.bytes().first(header_bytes)));
      const std::vector<std::byte> wanted = pattern(*store, key, step);
      EXPECT_TRUE(std::equal(payload.begin(), payload.end(), wanted.begin(), wanted.end()))
          << store->describe(key);
    }
  }
}

TEST(Store, MarkingDirtyTwiceWritesOnce) {
  const TestFolder folder;
  const auto store = make_store(folder.path());
  HEADRACE_EXPECT_OK(store->mark_dirty());
  const auto changed = fs::last_write_time(store->data_path());
  HEADRACE_EXPECT_OK(store->mark_dirty());
  EXPECT_EQ(fs::last_write_time(store->data_path()), changed);
}

TEST(Store, ACommitWithoutAllTilesIsRefused) {
  const TestFolder folder;
  const auto store = make_store(folder.path());
  const std::vector<ExtentKey> keys = all_extents(*store);
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    HEADRACE_EXPECT_OK(store->write_now(keys[i], pattern(*store, keys[i], 1), 1));
  }
  const Status status = store->commit({.step = 1});
  ASSERT_FALSE(status.has_value());
  expect_contains(status.error().why, "tile 1 of unit 2 has not been written");
  EXPECT_TRUE(store->dirty());
}

TEST(Store, ARunStateUpToItsLimitIsKeptAndALargerOneRefused) {
  const TestFolder folder;
  auto store = make_store(folder.path());
  write_all_extents(*store, 1);
  std::string run_state(format::kRunStateBytesMax + 1, 'x');
  const Status status = store->commit({.step = 1, .run_state = run_state});
  ASSERT_FALSE(status.has_value());
  expect_contains(status.error().why, std::to_string(format::kRunStateBytesMax));
  run_state.pop_back();
  HEADRACE_EXPECT_OK(store->commit({.step = 1, .run_state = run_state}));
  const std::string id = store->id();
  store.reset();
  EXPECT_EQ((*open_store(folder.path(), id))->last_commit()->run_state, run_state);
}

TEST(Store, ASecondWriterIsRefusedAndTheFirstIsNamed) {
  const TestFolder folder;
  auto writer = make_store(folder.path());
  write_all_extents(*writer, 1);
  HEADRACE_EXPECT_OK(writer->commit({.step = 1}));
  for (const Access access : {Access::kWrite, Access::kRead}) {
    const auto second = open_store(folder.path(), writer->id(), access);
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ExitCode::kOperating);
    expect_contains(second.error().what, "is in use");
    expect_contains(second.error().why, "process " + std::to_string(::getpid()));
  }
  EXPECT_TRUE(list_stores({folder.path()}).value().at(0).locked);
  const std::string id = writer->id();
  writer.reset();

  const auto reader = open_store(folder.path(), id);
  const auto other_reader = open_store(folder.path(), id);
  EXPECT_TRUE(reader.has_value());
  EXPECT_TRUE(other_reader.has_value());
  EXPECT_FALSE(open_store(folder.path(), id, Access::kWrite).has_value());
  EXPECT_FALSE(remove_store({folder.path()}, id).has_value());
  EXPECT_FALSE(list_stores({folder.path()}).value().at(0).locked)
      << "readers do not lock others out";
}

TEST(Store, ALockEndsWithItsProcess) {
  const TestFolder folder;
  auto store = make_store(folder.path());
  const std::string id = store->id();
  store.reset();
  int ready[2] = {};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = open_store(folder.path(), id, Access::kWrite);
    const char byte = held.has_value() ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) == 1) {
      ::pause();
    }
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  const auto refused = open_store(folder.path(), id, Access::kWrite);
  ASSERT_FALSE(refused.has_value());
  expect_contains(refused.error().why, "process " + std::to_string(child));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(open_store(folder.path(), id, Access::kWrite).has_value());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Store, TwoStoresInOneFolderDoNotTouchEachOther) {
  const TestFolder folder;
  const auto one = make_store(folder.path());
  const auto two = make_store(folder.path());
  EXPECT_NE(one->id(), two->id());
  write_all_extents(*one, 1);
  write_all_extents(*two, 2);
  for (const ExtentKey& key : all_extents(*one)) {
    expect_holds(*one, key, 1);
    expect_holds(*two, key, 2);
  }
}

TEST(Store, DescriptorsAreFlatOverManyStores) {
  const TestFolder folder;
  const auto round = [&] {
    auto store = make_store(folder.path());
    const std::string id = store->id();
    store.reset();
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(open_store(folder.path(), id, Access::kWrite).has_value());
      EXPECT_TRUE(open_store(folder.path(), id, Access::kRead).has_value());
      EXPECT_TRUE(list_stores({folder.path()}).has_value());
    }
    HEADRACE_EXPECT_OK(remove_store({folder.path()}, id));
  };
  round();
  const int before = testing::open_descriptors();
  for (int i = 0; i < 40; ++i) {
    round();
  }
  EXPECT_EQ(testing::open_descriptors(), before);
  EXPECT_TRUE(folder.empty());
}

TEST(Store, ListingTellsWhatIsThereAndSkipsWhatIsNoStore) {
  const TestFolder folder;
  auto committed = make_store(folder.path());
  write_all_extents(*committed, 5);
  HEADRACE_EXPECT_OK(committed->commit({.step = 5}));
  auto dirty = make_store(folder.path());
  HEADRACE_EXPECT_OK(dirty->mark_dirty());
  const std::string committed_id = committed->id();
  const std::uint64_t bytes = committed->bytes();
  committed.reset();
  fs::create_directory(folder.path() + "/notes");
  std::ofstream(folder.path() + "/" + std::string(32, 'a')) << "a file, not a store";
  fs::create_directory_symlink(folder.path() + "/" + committed_id,
                               folder.path() + "/" + std::string(32, 'b'));
  const std::vector<StoreListing> listings = list_stores({folder.path()}).value();
  ASSERT_EQ(listings.size(), 2U);
  for (const StoreListing& listing : listings) {
    const bool is_committed = listing.id == committed_id;
    EXPECT_EQ(listing.step, is_committed ? 5 : -1);
    EXPECT_EQ(listing.dirty, !is_committed);
    EXPECT_EQ(listing.locked, !is_committed);
    EXPECT_EQ(listing.run_dir, "/runs/demo");
    EXPECT_EQ(listing.bytes, bytes);
    EXPECT_EQ(listing.path, folder.path() + "/" + listing.id);
    EXPECT_EQ(listing.problem, "");
  }
  const auto missing = list_stores({folder.path() + "/absent"});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ExitCode::kUsage);
}

TEST(Store, RemovalTakesOneStoreAndLeavesTheRest) {
  const TestFolder folder;
  auto one = make_store(folder.path());
  auto two = make_store(folder.path());
  const std::string foreign = folder.path() + "/notes.txt";
  std::ofstream(foreign) << "mine";
  const std::string removed = one->id();
  ASSERT_FALSE(remove_store({folder.path()}, removed).has_value()) << "held by a writer";
  one.reset();
  HEADRACE_EXPECT_OK(remove_store({folder.path()}, removed));
  EXPECT_FALSE(fs::exists(folder.path() + "/" + removed));
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_TRUE(fs::exists(two->data_path()));
  const Status again = remove_store({folder.path()}, removed);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ExitCode::kUsage);
}

TEST(Store, RemovalLeavesForeignFilesOfTheStoresOwnFolder) {
  const TestFolder folder;
  auto store = make_store(folder.path());
  const std::string path = store->path();
  const std::string id = store->id();
  store.reset();
  std::ofstream(path + "/notes.txt") << "mine";
  HEADRACE_EXPECT_OK(remove_store({folder.path()}, id));
  EXPECT_TRUE(fs::exists(path + "/notes.txt"));
  EXPECT_FALSE(fs::exists(path + "/data"));
}

TEST(Store, RemovalRefusesWhatIsNotAStore) {
  const TestFolder folder;
  const std::string id(32, 'c');
  fs::create_directory(folder.path() + "/" + id);
  const std::string data = folder.path() + "/" + id + "/data";
  std::ofstream(data) << std::string(200'000, 'x');
  const Status status = remove_store({folder.path()}, id);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ExitCode::kUsage);
  EXPECT_TRUE(fs::exists(data));
  for (const std::string& name : {std::string("../" + id),
                                  std::string("."),
                                  std::string(""),
                                  std::string(31, 'c'),
                                  std::string(32, 'C'),
                                  id + "/"}) {
    const Status refused = remove_store({folder.path()}, name);
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  }
}

TEST(Store, LinksAreNotFollowedOutOfAFolder) {
  const TestFolder folder;
  const TestFolder elsewhere;
  auto store = make_store(elsewhere.path());
  const std::string id = store->id();
  const std::string target = store->path();
  store.reset();
  fs::create_directory_symlink(target, folder.path() + "/" + id);
  for (const Access access : {Access::kRead, Access::kWrite}) {
    const auto opened = open_store(folder.path(), id, access);
    ASSERT_FALSE(opened.has_value());
    expect_contains(opened.error().why, "symbolic link");
  }
  EXPECT_FALSE(remove_store({folder.path()}, id).has_value());
  fs::remove(folder.path() + "/" + id);
  fs::create_directory(folder.path() + "/" + id);
  fs::create_symlink(target + "/data", folder.path() + "/" + id + "/data");
  for (const Access access : {Access::kRead, Access::kWrite}) {
    const auto opened = open_store(folder.path(), id, access);
    ASSERT_FALSE(opened.has_value());
    expect_contains(opened.error().why, "symbolic link");
  }
  EXPECT_FALSE(remove_store({folder.path()}, id).has_value());
  EXPECT_TRUE(fs::exists(target + "/data"));
}

TEST(Store, APipeInItsPlaceIsRefusedAndDoesNotHang) {
  const TestFolder folder;
  const std::string id(32, 'd');
  fs::create_directory(folder.path() + "/" + id);
  ASSERT_EQ(::mkfifo((folder.path() + "/" + id + "/data").c_str(), 0600), 0);
  EXPECT_FALSE(open_store(folder.path(), id).has_value());
  EXPECT_FALSE(remove_store({folder.path()}, id).has_value());
  EXPECT_EQ(list_stores({folder.path()}).value().size(), 1U);
}

TEST(Store, AnInterruptedCreationIsToldAndCanBeRemoved) {
  const TestFolder folder;
  for (const int stage : {0, 1, 2}) {
    auto store = make_store(folder.path());
    const std::string id = store->id();
    const std::string data = store->data_path();
    store.reset();
    if (stage < 2) {  // a new file, or one of zeros
      const std::uintmax_t bytes = fs::file_size(data);
      fs::resize_file(data, 0);
      fs::resize_file(data, stage == 0 ? 0 : bytes);
    } else {  // as create() leaves it before its tables are written
      format::Superblock block{};
      std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
      file.read(reinterpret_cast<char*>(&block), sizeof(block));
      block.flags = format::kFlagCreating;
      std::array<std::byte, kPageBytes> page{};
      format::encode_superblock(block, page);
      file.seekp(0);
      file.write(reinterpret_cast<const char*>(page.data()), kPageBytes);
      page.fill(std::byte{0});
      file.seekp(format::kSuperblockOffsets[1]);
      file.write(reinterpret_cast<const char*>(page.data()), kPageBytes);
    }
    const auto opened = open_store(folder.path(), id);
    ASSERT_FALSE(opened.has_value());
    expect_contains(opened.error().why, "interrupted");
    expect_contains(list_stores({folder.path()}).value().at(0).problem, "interrupted");
    HEADRACE_EXPECT_OK(remove_store({folder.path()}, id));
    EXPECT_TRUE(folder.empty());
  }
}

TEST(Store, OpeningWhatIsNotThereSaysSo) {
  const TestFolder folder;
  const auto no_store = open_store(folder.path(), std::string(32, 'e'));
  ASSERT_FALSE(no_store.has_value());
  EXPECT_EQ(no_store.error().code, ExitCode::kUsage);
  expect_contains(no_store.error().what, "there is no store");
  const auto no_folder = open_store(folder.path() + "/absent", std::string(32, 'e'));
  ASSERT_FALSE(no_folder.has_value());
  EXPECT_EQ(no_folder.error().code, ExitCode::kUsage);
}

TEST(Store, OffsetsBeyondFourGibibytesAreKept) {
  const TestFolder folder;
  constexpr std::uint64_t kHuge = 5ULL << 30U;
  if (filesystem_of(folder.path()).value().free_bytes < 2 * kHuge) {
    GTEST_SKIP() << "needs 10 GiB of free space";
  }
  StoreContents contents;
  contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = kHuge, .state_bytes = 0},
                    {.unit = 0,
                     .tile = 1,
                     .param_bytes = 256 * testing::kKib,
                     .state_bytes = 512 * testing::kKib}};
  const auto store = make_store(folder.path(), contents);
  ASSERT_NE(store, nullptr);
  const ExtentKey last{.unit = 0, .tile = 1, .kind = ExtentKind::kState};
  EXPECT_GT(store->read_place(last).offset, std::uint64_t{1} << 32U);
  HEADRACE_EXPECT_OK(store->write_now(last, pattern(*store, last, 1), 1));
  expect_holds(*store, last, 1);
}

}  // namespace
}  // namespace headrace::tiers::nvme
