// What damages a store or keeps one from being made, done for real: each is found, named, has its
// exit code, and leaves nothing broken behind.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tiers/nvme/format.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

namespace fs = std::filesystem;
using testing::all_extents;
using testing::auto_options;
using testing::expect_contains;
using testing::expect_holds;
using testing::FileSizeLimit;
using testing::flip_bit;
using testing::make_store;
using testing::open_store;
using testing::pattern;
using testing::small_contents;
using testing::TestFolder;
using testing::write_all_extents;
using Access = Store::Access;

Error create_error(const StoreOptions& options, const StoreContents& contents = small_contents()) {
  const Result<std::unique_ptr<Store>> store = Store::create(options, contents);
  EXPECT_FALSE(store.has_value());
  return store ? Error{} : store.error();
}

// A committed store, closed, whose file the test then damages.
class DamagedStore : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override {
    auto store = make_store(folder_.path(), small_contents(), GetParam());
    ASSERT_NE(store, nullptr);
    write_all_extents(*store, 1);
    HEADRACE_EXPECT_OK(store->commit({.step = 1, .run_state = "{}"}));
    write_all_extents(*store, 2);
    HEADRACE_EXPECT_OK(store->commit({.step = 2, .run_state = "{}"}));
    id_ = store->id();
    data_ = store->data_path();
    bytes_ = store->bytes();
  }

  Error open_error() {
    const auto opened = open_store(folder_.path(), id_);
    EXPECT_FALSE(opened.has_value());
    return opened ? Error{} : opened.error();
  }

  std::vector<Error> verify_errors() {
    std::vector<Error> errors;
    const auto opened = open_store(folder_.path(), id_);
    EXPECT_TRUE(opened.has_value()) << format_error(opened.error(), true);
    EXPECT_EQ((*opened)->verify([&](const Error& error) { errors.push_back(error); }).value(), 7U);
    return errors;
  }

  // Both superblock copies, changed and sealed again.
  template <class Change>
  void change_superblocks(Change change) {
    for (const std::uint64_t offset : format::kSuperblockOffsets) {
      std::fstream file(data_, std::ios::in | std::ios::out | std::ios::binary);
      format::Superblock block{};
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(reinterpret_cast<char*>(&block), sizeof(block));
      change(block);
      std::array<std::byte, kPageBytes> page{};
      format::encode_superblock(block, page);
      file.seekp(static_cast<std::streamoff>(offset));
      file.write(reinterpret_cast<const char*>(page.data()), kPageBytes);
    }
  }

  format::Superblock superblock(int copy) {
    std::ifstream file(data_, std::ios::binary);
    format::Superblock block{};
    file.seekg(static_cast<std::streamoff>(format::kSuperblockOffsets[copy]));
    file.read(reinterpret_cast<char*>(&block), sizeof(block));
    return block;
  }

  int newest_copy_index() { return superblock(1).sequence > superblock(0).sequence ? 1 : 0; }

  format::Superblock newest() { return superblock(newest_copy_index()); }

  TestFolder folder_;
  std::string id_;
  std::string data_;
  std::uint64_t bytes_ = 0;
};

TEST_P(DamagedStore, AFlippedBitOfAPayloadOrAHeaderIsFoundAndNamed) {
  const std::vector<ExtentKey> keys = all_extents(**open_store(folder_.path(), id_));
  for (const ExtentKey& key : keys) {
    const ExtentPlace place = (*open_store(folder_.path(), id_))->read_place(key);
    const std::string name = (*open_store(folder_.path(), id_))->describe(key);
    for (const std::uint64_t at : {place.offset,
                                   place.offset + 120,
                                   place.offset + place.header_bytes - 1,
                                   place.offset + place.header_bytes,
                                   place.offset + place.header_bytes + place.payload_bytes - 1}) {
      flip_bit(data_, at);
      {
        const auto store = open_store(folder_.path(), id_);
        std::vector<std::byte> memory(place.payload_bytes);
        const Status status = (*store)->read_now(key, memory);
        ASSERT_FALSE(status.has_value()) << name << " byte " << at;
        EXPECT_EQ(status.error().code, ExitCode::kCorrupt);
        expect_contains(status.error().what, name);
      }
      const std::vector<Error> errors = verify_errors();
      ASSERT_EQ(errors.size(), 1U);
      EXPECT_EQ(errors[0].code, ExitCode::kCorrupt);
      expect_contains(errors[0].what, name);
      flip_bit(data_, at);
    }
  }
  EXPECT_TRUE(verify_errors().empty());
}

TEST_P(DamagedStore, VerifyNamesEveryDamagedExtent) {
  const std::vector<ExtentKey> keys = all_extents(**open_store(folder_.path(), id_));
  for (const ExtentKey& key : keys) {
    const ExtentPlace place = (*open_store(folder_.path(), id_))->read_place(key);
    flip_bit(data_, place.offset + place.header_bytes + place.payload_bytes / 2);
  }
  EXPECT_EQ(verify_errors().size(), keys.size());
}

TEST_P(DamagedStore, AnOlderWriteInItsPlaceIsFound) {
  // What a lost write leaves: the whole extent, with good sums, of another step.
  auto store = std::move(*open_store(folder_.path(), id_, Access::kWrite));
  const ExtentKey key = all_extents(*store)[2];
  HEADRACE_EXPECT_OK(store->write_now(key, pattern(*store, key, 1), 1));
  store->wrote(key, store->read_place(key), 2);
  std::vector<std::byte> memory(store->read_place(key).payload_bytes);
  const Status status = store->read_now(key, memory);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ExitCode::kCorrupt);
  expect_contains(status.error().why, "step 1, expected 2");
}

TEST_P(DamagedStore, AMisdirectedWriteIsFound) {
  // Another extent of the same length, whole, in the wrong place.
  StoreContents contents;
  for (std::uint32_t tile = 0; tile < 2; ++tile) {
    contents.tiles.push_back(
        {.unit = 0, .tile = tile, .param_bytes = 64 * testing::kKib, .state_bytes = 0});
  }
  const auto store = make_store(folder_.path(), contents);
  write_all_extents(*store, 1);
  const ExtentKey first{.unit = 0, .tile = 0, .kind = ExtentKind::kParam};
  const ExtentKey second{.unit = 0, .tile = 1, .kind = ExtentKind::kParam};
  const ExtentPlace from = store->read_place(first);
  std::vector<char> bytes(from.header_bytes + from.payload_bytes);
  std::fstream file(store->data_path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(from.offset));
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.seekp(static_cast<std::streamoff>(store->read_place(second).offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::vector<std::byte> memory(from.payload_bytes);
  const Status status = store->read_now(second, memory);
  ASSERT_FALSE(status.has_value());
  expect_contains(status.error().why, "tile 0, expected 1");
}

TEST_P(DamagedStore, OneSuperblockMayBeLostButNotBoth) {
  // With one slot the older copy is the dirty mark that came before the commit of step 2, with two
  // it is the commit of step 1, whose tiles nobody has overwritten yet.
  const int newest_copy = newest_copy_index();
  for (const int copy : {newest_copy, 1 - newest_copy}) {
    flip_bit(data_, format::kSuperblockOffsets[copy] + 100);
    {
      const auto store = open_store(folder_.path(), id_);
      ASSERT_TRUE(store.has_value()) << format_error(store.error(), true);
      EXPECT_EQ((*store)->dirty(), GetParam() == 1 && copy == newest_copy);
      EXPECT_EQ((*store)->last_commit()->step, copy == newest_copy ? 1 : 2);
    }
    expect_contains(verify_errors().at(0).why, "superblock copy " + std::to_string(copy));
    flip_bit(data_, format::kSuperblockOffsets[copy] + 100);
  }
  flip_bit(data_, format::kSuperblockOffsets[0] + 100);
  flip_bit(data_, format::kSuperblockOffsets[1] + 100);
  const Error error = open_error();
  EXPECT_EQ(error.code, ExitCode::kCorrupt);
  expect_contains(error.why, "checksum is wrong");
  expect_contains(list_stores({folder_.path()}).value().at(0).problem, "checksum is wrong");
}

TEST_P(DamagedStore, AFlippedBitOfTheCommitRecordOrATableIsFound) {
  const format::Superblock block = newest();
  for (const format::Region& region :
       {block.map, block.tile_table, block.tensor_table, block.run_dir, block.folder_paths}) {
    flip_bit(data_, region.offset + region.bytes / 2);
    const Error error = open_error();
    EXPECT_EQ(error.code, ExitCode::kCorrupt);
    expect_contains(error.why, "at offset " + std::to_string(region.offset));
    flip_bit(data_, region.offset + region.bytes / 2);
  }
  EXPECT_TRUE(open_store(folder_.path(), id_).has_value());
}

TEST_P(DamagedStore, EveryTruncationIsFound) {
  const std::string backup = folder_.path() + "/backup";
  fs::copy_file(data_, backup);
  for (const std::uint64_t length : {std::uint64_t{1},
                                     std::uint64_t{4095},
                                     std::uint64_t{4096},
                                     format::kSuperblockOffsets[1],
                                     format::kMapOffset,
                                     bytes_ / 2,
                                     bytes_ - kPageBytes,
                                     bytes_ - 1}) {
    fs::copy_file(backup, data_, fs::copy_options::overwrite_existing);
    fs::resize_file(data_, length);
    const Error error = open_error();
    EXPECT_TRUE(error.code == ExitCode::kCorrupt ||
                (length < kPageBytes && error.code == ExitCode::kUsage))
        << length << ": " << format_error(error, true);
  }
  fs::copy_file(backup, data_, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(verify_errors().empty());
}

TEST_P(DamagedStore, TruncationUnderAnOpenStoreIsFound) {
  const auto store = open_store(folder_.path(), id_);
  const ExtentKey last = all_extents(**store).back();
  fs::resize_file(data_, bytes_ - 3 * kPageBytes);
  std::vector<std::byte> memory((*store)->read_place(last).payload_bytes);
  const Status status = (*store)->read_now(last, memory);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ExitCode::kCorrupt);
  expect_contains(status.error().why, "truncated");
}

TEST_P(DamagedStore, ForeignFilesAreRefusedAsUsage) {
  std::ofstream(data_, std::ios::trunc | std::ios::binary) << std::string(bytes_, 'x');
  EXPECT_EQ(open_error().code, ExitCode::kUsage);
  expect_contains(open_error().what, "is not a headrace store");
}

TEST_P(DamagedStore, ANewerFormatIsRefusedAsUsage) {
  change_superblocks(
      [](format::Superblock& block) { block.format_version = format::kVersion + 1; });
  EXPECT_EQ(open_error().code, ExitCode::kUsage);
  expect_contains(open_error().why, "version " + std::to_string(format::kVersion + 1));
}

TEST_P(DamagedStore, UnknownFeaturesAreRefusedAsUsage) {
  change_superblocks([](format::Superblock& block) { block.features_incompatible = 2; });
  EXPECT_EQ(open_error().code, ExitCode::kUsage);
}

TEST_P(DamagedStore, AStoreUnderAnotherIdIsRefused) {
  const std::string other(32, '0');
  fs::rename(folder_.path() + "/" + id_, folder_.path() + "/" + other);
  const auto opened = open_store(folder_.path(), other);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ExitCode::kUsage);
  expect_contains(opened.error().why, id_);
}

INSTANTIATE_TEST_SUITE_P(Slots, DamagedStore, ::testing::Values(1U, 2U));

TEST(StoreFaults, AFolderInMemoryIsRefused) {
  const std::string memory = "/dev/shm";
  if (!is_directory(memory) || filesystem_of(memory).value().kind != FilesystemKind::kTmpfs) {
    GTEST_SKIP() << memory << " is no tmpfs";
  }
  const std::string path = memory + "/headrace_nvme_test." + std::to_string(::getpid());
  const Error error = create_error(auto_options(path));
  EXPECT_EQ(format_error(error, false),
            "error: nvme tier: cannot use '" + path +
                "': the filesystem is tmpfs\n"
                "  why : what is written there stays in memory\n"
                "  hint: use a folder on ext4 or xfs\n");
  EXPECT_EQ(error.code, ExitCode::kUsage);
  EXPECT_FALSE(fs::exists(path));
}

TEST(StoreFaults, AFolderWithoutParentAndAFileInItsPlaceAreRefused) {
  const TestFolder folder;
  const Error orphan = create_error(auto_options(folder.path() + "/a/b"));
  EXPECT_EQ(orphan.code, ExitCode::kUsage);
  expect_contains(orphan.hint, "mkdir -p");
  EXPECT_FALSE(fs::exists(folder.path() + "/a"));
  std::ofstream(folder.path() + "/file") << "x";
  for (const char* name : {"/file", "/file/below"}) {
    const Error error = create_error(auto_options(folder.path() + name));
    EXPECT_EQ(error.code, ExitCode::kUsage);
    expect_contains(error.why, "not a folder");
  }
  EXPECT_EQ(create_error(auto_options("")).code, ExitCode::kUsage);
}

TEST(StoreFaults, WhatDoesNotFitIsRefusedBeforeAnythingIsMade) {
  const TestFolder folder;
  StoreOptions options = auto_options(folder.path() + "/made");
  options.folders[0].space_bytes_max = 100'000;
  Error error = create_error(options);
  EXPECT_EQ(error.code, ExitCode::kDoesNotFit);
  expect_contains(error.why, "the folder may hold 100000");
  options.folders[0].space_bytes_max.reset();
  StoreContents contents;
  contents.tiles = {
      {.unit = 0, .tile = 0, .param_bytes = std::uint64_t{1} << 40U, .state_bytes = 0}};
  if (filesystem_of(folder.path()).value().free_bytes < contents.tiles[0].param_bytes) {
    error = create_error(options, contents);
    EXPECT_EQ(error.code, ExitCode::kDoesNotFit);
    expect_contains(error.why, "are free");
  }
  EXPECT_TRUE(folder.empty());
}

TEST(StoreFaults, AnAllocationThatFailsLeavesNothingBehind) {
  const TestFolder folder;
  const FileSizeLimit limit(1024 * testing::kKib);
  const Error error = create_error(auto_options(folder.path() + "/made"));
  EXPECT_EQ(error.code, ExitCode::kOperating);
  expect_contains(error.what, "made/");
  expect_contains(error.why, "EFBIG");
  EXPECT_TRUE(folder.empty());
}

TEST(StoreFaults, AWriteThatFailsLeavesTheStoreUsable) {
  const TestFolder folder;
  const auto store = make_store(folder.path());
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  HEADRACE_EXPECT_OK(store->mark_dirty());
  const ExtentKey last = all_extents(*store).back();
  {
    const FileSizeLimit limit(store->read_place(last).offset + 5 * kPageBytes);
    const Status status = store->write_now(last, pattern(*store, last, 2), 2);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ExitCode::kOperating);
    expect_contains(status.error().what, store->data_path());
    EXPECT_EQ(store->step_of(last), 1) << "what was not written is not claimed";
  }
  std::vector<std::byte> memory(store->read_place(last).payload_bytes);
  EXPECT_FALSE(store->read_now(last, memory).has_value()) << "half a write is found";
  HEADRACE_EXPECT_OK(store->write_now(last, pattern(*store, last, 2), 2));
  expect_holds(*store, last, 2);
  HEADRACE_EXPECT_OK(store->commit({.step = 2}));
}

// Administration of the system, which only root may do and only some systems have.
bool run(const std::string& command) {
  const std::string line = "PATH=$PATH:/usr/sbin:/sbin; " + command + " >/dev/null 2>&1";
  if (::geteuid() != 0) {
    return false;
  }
  // NOLINTNEXTLINE(cert-env33-c)
  return std::system(line.c_str()) == 0;  // tidy_test: mount and chattr have no other way in
}

// lower + upper -> merged, below a folder.
class MountedOverlay {
 public:
  explicit MountedOverlay(const std::string& base) : mount_point_(base + "/merged") {
    mounted_ = run("mount -t overlay overlay -o 'lowerdir=" + base + "/lower,upperdir=" + base +
                   "/upper,workdir=" + base + "/work' '" + mount_point_ + "'");
  }

  MountedOverlay(const MountedOverlay&) = delete;
  MountedOverlay& operator=(const MountedOverlay&) = delete;

  ~MountedOverlay() {
    if (mounted_) {
      EXPECT_TRUE(run("umount -l '" + mount_point_ + "'"));
    }
  }

  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  std::string mount_point_;
  bool mounted_ = false;
};

// A small ext4 of its own, mounted on a folder; needs root and loop devices.
class LoopFilesystem {
 public:
  explicit LoopFilesystem(const std::string& folder, int mebibytes, const char* options = "loop")
      : mount_point_(folder + "/mount") {
    const std::string image = folder + "/image";
    fs::create_directory(mount_point_);
    std::ofstream(image, std::ios::binary) << "";
    fs::resize_file(image, static_cast<std::uintmax_t>(mebibytes) << 20U);
    mounted_ = run("mkfs.ext4 -q -m 0 '" + image + "'") &&
               run("mount -o " + std::string(options) + " '" + image + "' '" + mount_point_ + "'");
  }

  LoopFilesystem(const LoopFilesystem&) = delete;
  LoopFilesystem& operator=(const LoopFilesystem&) = delete;

  ~LoopFilesystem() {
    if (mounted_) {
      EXPECT_TRUE(run("umount '" + mount_point_ + "'"));
    }
  }

  [[nodiscard]] bool mounted() const { return mounted_; }

  [[nodiscard]] const std::string& path() const { return mount_point_; }

  [[nodiscard]] bool remount(const std::string& mode) const {
    return run("mount -o remount," + mode + " '" + mount_point_ + "'");
  }

 private:
  std::string mount_point_;
  bool mounted_ = false;
};

TEST(StoreFaults, ADiskThatIsFullIsFoundAtCreateAndNotAtWrites) {
  const TestFolder folder;
  const LoopFilesystem disk(folder.path(), 24);
  if (!disk.mounted()) {
    GTEST_SKIP() << "needs root and loop devices";
  }
  StoreContents large;
  large.tiles = {{.unit = 0, .tile = 0, .param_bytes = 64U << 20U, .state_bytes = 0}};
  const Error error = create_error(auto_options(disk.path() + "/s"), large);
  EXPECT_EQ(error.code, ExitCode::kDoesNotFit);
  EXPECT_FALSE(fs::exists(disk.path() + "/s"));

  const auto store = make_store(disk.path() + "/s");
  ASSERT_NE(store, nullptr);
  const UniqueFd filler = open_file(disk.path() + "/filler", O_WRONLY | O_CREAT).value();
  off_t filled = 0;
  for (off_t part = off_t{1} << 20U; part >= off_t{kPageBytes}; part /= 2) {
    while (::fallocate(filler.get(), 0, filled, part) == 0) {
      filled += part;
    }
  }
  EXPECT_EQ(create_error(auto_options(disk.path() + "/t")).code, ExitCode::kDoesNotFit);
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  for (const ExtentKey& key : all_extents(*store)) {
    expect_holds(*store, key, 1);
  }
}

TEST(StoreFaults, AReadOnlyFilesystemIsSaidToBeOne) {
  const TestFolder folder;
  const LoopFilesystem disk(folder.path(), 24);
  if (!disk.mounted()) {
    GTEST_SKIP() << "needs root and loop devices";
  }
  auto store = make_store(disk.path() + "/s");
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  const std::string id = store->id();
  store.reset();
  ASSERT_TRUE(disk.remount("ro"));
  for (const char* name : {"/s", "/new"}) {
    const Error error = create_error(auto_options(disk.path() + name));
    EXPECT_EQ(error.code, ExitCode::kOperating);
    expect_contains(error.why, "read-only");
  }
  const auto writer = open_store(disk.path() + "/s", id, Access::kWrite);
  ASSERT_FALSE(writer.has_value());
  expect_contains(format_error(writer.error(), false), "Read-only");
  EXPECT_FALSE(remove_store({disk.path() + "/s"}, id).has_value());
  {
    const auto reader = open_store(disk.path() + "/s", id);
    ASSERT_TRUE(reader.has_value()) << format_error(reader.error(), true);
    expect_holds(**reader, all_extents(**reader)[1], 1);
  }
  ASSERT_TRUE(disk.remount("rw"));
}

TEST(StoreFaults, WithoutDirectIoAStoreIsRefusedOrBufferedAsAsked) {
  const TestFolder folder;
  // ext4 has no direct I/O where it journals data.
  const LoopFilesystem disk(folder.path(), 24, "loop,data=journal");
  if (!disk.mounted()) {
    GTEST_SKIP() << "needs root, loop devices and ext4";
  }
  StoreOptions options = auto_options(disk.path() + "/s");
  options.direct_io_required = true;
  const Result<std::unique_ptr<Store>> direct = Store::create(options, small_contents());
  if (direct) {
    GTEST_SKIP() << "this kernel has direct I/O here";
  }
  EXPECT_EQ(direct.error().code, ExitCode::kOperating);
  expect_contains(direct.error().what, "direct I/O");
  expect_contains(direct.error().hint, "tiers.direct_io = \"auto\"");
  EXPECT_FALSE(fs::exists(disk.path() + "/s"));

  auto store = make_store(disk.path() + "/s");
  ASSERT_NE(store, nullptr);
  EXPECT_FALSE(store->direct_io());
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  HEADRACE_EXPECT_OK(store->mark_dirty());
  {
    Runtime runtime;
    const auto engine = IoEngine::create(runtime, *store, 0, {.lanes = 2}).value();
    const ExtentKey key = all_extents(*store).back();
    const PageBuffer memory = testing::pages(store->read_place(key).payload_bytes);
    testing::fill(memory.bytes(), key, 2);
    engine->lane(0).write(key, memory.bytes(), 2, 0);
    engine->lane(0).read(key, memory.bytes(), 1);
    HEADRACE_EXPECT_OK(engine->lane(0).drain());
    expect_holds(*store, key, 2);
  }
  const std::string id = store->id();
  store.reset();
  EXPECT_FALSE(Store::open({disk.path() + "/s"}, id, Access::kRead, true).has_value());
  EXPECT_TRUE(open_store(disk.path() + "/s", id).has_value());
}

TEST(StoreFaults, AnOverlayIsUsedWithAWarning) {
  const TestFolder folder;
  for (const char* name : {"lower", "upper", "work", "merged"}) {
    fs::create_directory(folder.path() + "/" + name);
  }
  const std::string& base = folder.path();
  const MountedOverlay overlay(base);
  if (!overlay.mounted()) {
    GTEST_SKIP() << "needs root and overlayfs";
  }
  ASSERT_EQ(filesystem_of(base + "/merged").value().kind, FilesystemKind::kOverlay);
  ::testing::internal::CaptureStderr();
  const auto store = make_store(base + "/merged/s");
  expect_contains(::testing::internal::GetCapturedStderr(), "is on an overlay");
  ASSERT_NE(store, nullptr);
  write_all_extents(*store, 1);
  HEADRACE_EXPECT_OK(store->commit({.step = 1}));
  for (const ExtentKey& key : all_extents(*store)) {
    expect_holds(*store, key, 1);
  }
  const auto second = open_store(base + "/merged/s", store->id());
  ASSERT_FALSE(second.has_value());
  expect_contains(second.error().why, "process");
}

TEST(StoreFaults, AFolderWithoutWritePermissionIsRefused) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may write anywhere";
  }
  const TestFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  const Error error = create_error(auto_options(folder.path()));
  EXPECT_EQ(error.code, ExitCode::kOperating);
  expect_contains(error.hint, "right to write");
  fs::permissions(folder.path(), fs::perms::owner_all);
}

}  // namespace
}  // namespace headrace::tiers::nvme
