// The folders of a store: where it stays, where one can be made, and what of it is still there.
#include "train/store_folders.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "core/files.hpp"
#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

class StoreFoldersTest : public TestFolder {
 protected:
  [[nodiscard]] RunConfig config_with(const std::vector<std::string>& folders) const {
    RunConfig config;
    config.run.dir = path("run");
    for (const std::string& folder : folders) {
      config.tiers.nvme.emplace_back().path = folder;
    }
    return config;
  }
};

TEST_F(StoreFoldersTest, FoldersAreTheSameInAnyOrderAndByAnyPath) {
  ASSERT_TRUE(make_directory(path("a"), Parents::kMustExist));
  ASSERT_EQ(::symlink(path("a").c_str(), path("link").c_str()), 0);
  EXPECT_TRUE(same_folders({path("a"), path("b")}, {path("b"), path("link")}));
  EXPECT_FALSE(same_folders({path("a")}, {path("a"), path("b")}));
  EXPECT_FALSE(same_folders({path("a")}, {path("b")}));
}

TEST_F(StoreFoldersTest, AStoreStaysWhereItWasMade) {
  RunConfig config = config_with({path("new")});
  ASSERT_TRUE(keep_folders(config, {path("old")}));  // the default gives way
  EXPECT_EQ(paths_of(config.tiers.nvme), std::vector{path("old")});
  config = config_with({path("new")});
  config.where["tiers.nvme"] = "run.toml:7:1";
  const Status refused = keep_folders(config, {path("old")});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  EXPECT_EQ(refused.error().where, "run.toml:7:1");
  EXPECT_NE(refused.error().hint.find(path("old")), std::string::npos);
  EXPECT_TRUE(keep_folders(config, {path("new")}));
}

TEST_F(StoreFoldersTest, WhereAStoreCanBeMade) {
  EXPECT_TRUE(check_can_be_made(config_with({path("new")})));
  EXPECT_TRUE(check_can_be_made(config_with({path("run/deep/store")})));  // made with the run
  EXPECT_FALSE(check_can_be_made(config_with({path("new"), path("no/parent")})));
  write("file", "text");
  EXPECT_EQ(check_can_be_made(config_with({path("file")})).error().code, ExitCode::kUsage);
  EXPECT_FALSE(path_exists(path("new")));  // looking makes nothing
}

TEST_F(StoreFoldersTest, RoomIsWhatTheSettingsAndTheFilesystemsAllow) {
  RunConfig config = config_with({path("a"), path("b")});
  EXPECT_TRUE(check_room(config.tiers.nvme, 1000));
  config.tiers.nvme[0].space_bytes = 400;
  config.tiers.nvme[1].space_bytes = 500;
  EXPECT_TRUE(check_room(config.tiers.nvme, 900));
  EXPECT_EQ(check_room(config.tiers.nvme, 901).error().code, ExitCode::kDoesNotFit);
}

}  // namespace
}  // namespace headrace::train
