// Stores of format version 1, as the version that wrote it has left one in testdata/: read,
// verified, resumed as what they are, refused where they must be.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tiers/nvme/format.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

namespace fs = std::filesystem;
using testing::all_extents;
using testing::expect_contains;
using testing::open_store;
using testing::TestFolder;
using Access = Store::Access;

constexpr const char* kId = "d0789893937463f1a9f58c311d8abb5d";

// Unpacks the data file; see testdata/README.md.
class FirstVersion : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string text =
        read_file(std::string(HEADRACE_SOURCE_DIR) + "/tiers/nvme/testdata/store_v1.pages",
                  std::uint64_t{1} << 20U)
            .value();
    fs::create_directory(folder_.path() + "/" + kId);
    data_ = folder_.path() + "/" + kId + "/data";
    const auto number = [&](std::size_t at, auto value) {
      std::memcpy(&value, text.data() + at, sizeof(value));
      return value;
    };
    constexpr std::size_t kHeaderBytes = 16;
    constexpr std::size_t kRunBytes = 12;
    ASSERT_EQ(text.substr(0, 8), "HRPAGES1");
    std::ofstream file(data_, std::ios::binary);
    for (std::size_t at = kHeaderBytes; at < text.size();) {
      const auto bytes = number(at + 8, std::uint32_t{});
      file.seekp(static_cast<std::streamoff>(number(at, std::uint64_t{})));
      file.write(text.data() + at + kRunBytes, bytes);
      at += kRunBytes + bytes;
    }
    file.close();
    fs::resize_file(data_, number(8, std::uint64_t{}));
  }

  static std::vector<std::byte> contents(const Store& store, const ExtentKey& key) {
    std::vector<std::byte> bytes(store.read_place(key).payload_bytes);
    for (std::size_t page = 0; page * kPageBytes < bytes.size(); ++page) {
      const std::array<std::uint64_t, 4> words = {key.unit * 1'000'003ULL + key.tile,
                                                  static_cast<std::uint64_t>(key.kind),
                                                  static_cast<std::uint64_t>(store.step_of(key)),
                                                  page * 0x9e3779b97f4a7c15ULL};
      std::memcpy(bytes.data() + page * kPageBytes, words.data(), sizeof(words));
    }
    return bytes;
  }

  static void expect_whole(Store& store) {
    for (const ExtentKey& key : all_extents(store)) {
      EXPECT_EQ(store.step_of(key), key.unit == 2 ? 3 : 7);
      std::vector<std::byte> bytes(store.read_place(key).payload_bytes);
      HEADRACE_EXPECT_OK(store.read_now(key, bytes));
      EXPECT_TRUE(bytes == contents(store, key)) << store.describe(key);
    }
    std::string problems;
    EXPECT_EQ(store.verify([&](const Error& error) { problems += error.why; }).value(), 5U);
    EXPECT_EQ(problems, "");
  }

  TestFolder folder_;
  std::string data_;
};

TEST_F(FirstVersion, IsReadAndVerified) {
  const auto opened = open_store(folder_.path(), kId);
  ASSERT_TRUE(opened.has_value()) << format_error(opened.error(), true);
  Store& store = **opened;
  EXPECT_EQ(store.slots(), 1U);
  EXPECT_EQ(store.folder_count(), 1U);
  EXPECT_FALSE(store.dirty());
  EXPECT_EQ(store.contents().run_dir, "/runs/version-1");
  EXPECT_EQ(store.contents().layout_tag, "fp32/fp32");
  ASSERT_TRUE(store.last_commit().has_value());
  EXPECT_EQ(store.last_commit()->generation, 2U);
  EXPECT_EQ(store.last_commit()->step, 8);
  EXPECT_EQ(store.last_commit()->update_count, 7);
  EXPECT_EQ(store.last_commit()->run_state, R"({"step":8})");
  expect_whole(store);
  const StoreListing listing = list_stores({folder_.path()}).value().at(0);
  EXPECT_EQ(listing.step, 8);
  EXPECT_EQ(listing.problem, "");
}

TEST_F(FirstVersion, IsResumedAndStaysOfItsVersion) {
  {
    const auto opened = open_store(folder_.path(), kId, Access::kWrite);
    ASSERT_TRUE(opened.has_value()) << format_error(opened.error(), true);
    testing::write_all_extents(**opened, 9);
    EXPECT_TRUE((*opened)->dirty());
  }
  EXPECT_TRUE((*open_store(folder_.path(), kId))->dirty()) << "one slot: the commit is gone";
  {
    const auto opened = open_store(folder_.path(), kId, Access::kWrite);
    testing::write_all_extents(**opened, 9);
    HEADRACE_EXPECT_OK((*opened)->commit({.step = 10, .update_count = 9}));
  }
  const auto again = open_store(folder_.path(), kId);
  EXPECT_EQ((*again)->last_commit()->generation, 3U);
  for (const ExtentKey& key : all_extents(**again)) {
    testing::expect_holds(**again, key, 9);
  }
  std::ifstream file(data_, std::ios::binary);
  for (const std::uint64_t offset : format::kSuperblockOffsets) {
    format::Superblock block{};
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(&block), sizeof(block));
    EXPECT_EQ(block.format_version, 1U) << "the version that made it can still read it";
  }
}

TEST_F(FirstVersion, IsRefusedWhereItIsDamaged) {
  const ExtentPlace place = (*open_store(folder_.path(), kId))
                                ->read_place({.unit = 0, .tile = 1, .kind = ExtentKind::kState});
  for (const std::uint64_t offset :
       {place.offset + 104, place.offset + place.header_bytes + 200'000}) {
    testing::flip_bit(data_, offset);
    std::vector<Error> errors;
    const auto opened = open_store(folder_.path(), kId);
    ASSERT_TRUE((*opened)->verify([&](const Error& e) { errors.push_back(e); }).has_value());
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_EQ(errors[0].code, ExitCode::kCorrupt);
    expect_contains(errors[0].what, "unit 0, tile 1 (state)");
    testing::flip_bit(data_, offset);
  }
  fs::resize_file(data_, fs::file_size(data_) - kPageBytes);
  EXPECT_EQ(open_store(folder_.path(), kId).error().code, ExitCode::kCorrupt);
}

// What the first version has no fields for is no store of it.
TEST_F(FirstVersion, WithTwoSlotsOrTwoFoldersIsRefused) {
  const auto change = [&](auto edit) {
    for (const std::uint64_t offset : format::kSuperblockOffsets) {
      std::fstream file(data_, std::ios::in | std::ios::out | std::ios::binary);
      format::Superblock block{};
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(reinterpret_cast<char*>(&block), sizeof(block));
      edit(block);
      std::array<std::byte, kPageBytes> page{};
      format::encode_superblock(block, page);
      file.seekp(static_cast<std::streamoff>(offset));
      file.write(reinterpret_cast<const char*>(page.data()), kPageBytes);
    }
  };
  change([](format::Superblock& block) { block.slots = 2; });
  EXPECT_EQ(open_store(folder_.path(), kId).error().code, ExitCode::kCorrupt);
  change([](format::Superblock& block) {
    block.slots = 1;
    block.folder_count = 2;
  });
  EXPECT_EQ(open_store(folder_.path(), kId).error().code, ExitCode::kCorrupt);
  // Version 2 would have said how large its slots are.
  change([](format::Superblock& block) {
    block.folder_count = 1;
    block.format_version = 2;
  });
  EXPECT_FALSE(open_store(folder_.path(), kId).has_value());
}

}  // namespace
}  // namespace headrace::tiers::nvme
