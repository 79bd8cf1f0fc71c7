// How a start meets what a run's folder holds.
#include "train/run_dir.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::Store;

class RunDirTest : public TestFolder {
 protected:
  void SetUp() override {
    TestFolder::SetUp();
    paths_.dir = path("run");
    std::filesystem::create_directories(paths_.dir);
  }

  // A store of one frozen tile; committed where asked.
  std::string make_store(const std::string& run_dir, const std::string& folder, bool committed) {
    tiers::nvme::StoreContents contents;
    contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = 4096, .state_bytes = 0}};
    contents.tensor_table = "{}";
    contents.layout_tag = "fp32/fp32";
    contents.run_dir = run_dir;
    auto store = Store::create(
        {.folders = {{.path = folder}}, .direct_io_required = false, .slots = 1}, contents);
    EXPECT_TRUE(store) << format_error(store.error(), false);
    EXPECT_TRUE((*store)->mark_dirty());
    const std::vector<std::byte> payload(4096);
    EXPECT_TRUE((*store)->write_now({}, payload, 0));
    if (committed) {
      EXPECT_TRUE((*store)->commit({.step = 3, .update_count = 3, .run_state = "{}"}));
    }
    return (*store)->id();
  }

  void refer_to(const std::string& folder, const std::string& id) const {
    EXPECT_TRUE(write_store_reference(paths_, {.folders = {folder}, .id = id}));
  }

  [[nodiscard]] Result<Beginning> begin(ResumeMode resume, bool overwrite = false) const {
    return begin_run(paths_,
                     {.resume = resume, .overwrite = overwrite, .direct_io_required = false});
  }

  RunPaths paths_;
};

TEST_F(RunDirTest, AnEmptyFolderBeginsFresh) {
  for (const ResumeMode mode : {ResumeMode::kAuto, ResumeMode::kNever}) {
    const Result<Beginning> beginning = begin(mode);
    ASSERT_TRUE(beginning);
    EXPECT_EQ(beginning->resumed, nullptr);
    EXPECT_FALSE(beginning->replaced);
  }
  EXPECT_EQ(begin(ResumeMode::kRequired).error().code, ExitCode::kUsage);
}

TEST_F(RunDirTest, ACommitIsResumedUnlessAskedOtherwise) {
  const std::string folder = paths_.dir + "/store";
  const std::string id = make_store(paths_.dir, folder, true);
  refer_to(folder, id);
  for (const ResumeMode mode : {ResumeMode::kAuto, ResumeMode::kRequired}) {
    const Result<Beginning> beginning = begin(mode);
    ASSERT_TRUE(beginning);
    ASSERT_NE(beginning->resumed, nullptr);
    EXPECT_EQ(beginning->resumed->last_commit()->step, 3);
  }
  EXPECT_EQ(begin(ResumeMode::kNever).error().code, ExitCode::kUsage);
  const Result<Beginning> beginning = begin(ResumeMode::kNever, true);
  ASSERT_TRUE(beginning);
  EXPECT_EQ(beginning->resumed, nullptr);
  EXPECT_EQ(beginning->replaced->id, id);
}

TEST_F(RunDirTest, AStoreThatWasNeverCommittedIsReplaced) {
  const std::string folder = paths_.dir + "/store";
  refer_to(folder, make_store(paths_.dir, folder, false));
  const Result<Beginning> beginning = begin(ResumeMode::kAuto);
  ASSERT_TRUE(beginning);
  EXPECT_TRUE(beginning->replaced);
  EXPECT_EQ(begin(ResumeMode::kRequired).error().code, ExitCode::kUsage);
}

TEST_F(RunDirTest, AStoreThatLostItsCommitIsNotReplaced) {
  const std::string folder = paths_.dir + "/store";
  const std::string id = make_store(paths_.dir, folder, false);
  EXPECT_TRUE(write_store_reference(paths_, {.folders = {folder}, .id = id, .committed_step = 3}));
  EXPECT_EQ(begin(ResumeMode::kAuto).error().code, ExitCode::kCorrupt);
  EXPECT_TRUE(begin(ResumeMode::kAuto, true));
}

TEST_F(RunDirTest, AStoreWrittenAfterItsCommitIsNotResumed) {
  const std::string folder = paths_.dir + "/store";
  const std::string id = make_store(paths_.dir, folder, true);
  refer_to(folder, id);
  {
    auto store = Store::open({folder}, id, Store::Access::kWrite, false);
    ASSERT_TRUE(store);
    ASSERT_TRUE((*store)->mark_dirty());
  }
  EXPECT_EQ(begin(ResumeMode::kAuto).error().code, ExitCode::kOperating);
  EXPECT_TRUE(begin(ResumeMode::kAuto, true));
  EXPECT_FALSE(open_committed_store(paths_));
}

TEST_F(RunDirTest, AStoreOfAnotherRunIsNeverTaken) {
  const std::string folder = path("elsewhere");
  const std::string id = make_store(path("another"), folder, true);
  refer_to(folder, id);
  EXPECT_EQ(begin(ResumeMode::kAuto).error().code, ExitCode::kUsage);
  EXPECT_EQ(begin(ResumeMode::kNever, true).error().code, ExitCode::kUsage);
}

TEST_F(RunDirTest, AMovedRunTakesItsStoreAlong) {
  const std::string folder = paths_.dir + "/store";
  refer_to(folder, make_store(paths_.dir, folder, true));
  std::filesystem::rename(paths_.dir, path("moved"));
  const Result<Beginning> beginning = begin_run(
      {.dir = path("moved")}, {.resume = ResumeMode::kRequired, .direct_io_required = false});
  ASSERT_TRUE(beginning) << format_error(beginning.error(), false);
  EXPECT_NE(beginning->resumed, nullptr);
}

TEST_F(RunDirTest, AMissingStoreAndADamagedReferenceAreErrors) {
  refer_to(paths_.dir + "/store", std::string(32, 'a'));
  // It never had a commit: nothing is lost.
  const Result<Beginning> again = begin(ResumeMode::kAuto);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->resumed, nullptr);
  EXPECT_FALSE(again->replaced);
  EXPECT_EQ(begin(ResumeMode::kRequired).error().code, ExitCode::kOperating);
  for (const char* rest : {", \"committed_step\": 4", ""}) {
    write("run/store.json",
          "{\"folders\": [\"store\"], \"id\": \"" + std::string(32, 'a') + "\"" + rest + "}");
    EXPECT_EQ(begin(ResumeMode::kAuto).error().code, ExitCode::kOperating);
    EXPECT_TRUE(begin(ResumeMode::kAuto, true));
  }
  write("run/store.json", "{\"folder\": 3}");
  EXPECT_EQ(begin(ResumeMode::kAuto).error().code, ExitCode::kCorrupt);
}

TEST_F(RunDirTest, FoldersOfAStartThatFailedGoAway) {
  {
    Result<MadeFolders> made = MadeFolders::make(path("new/inner/folder"));
    ASSERT_TRUE(made);
    EXPECT_TRUE(is_directory(path("new/inner/folder")));
  }
  EXPECT_FALSE(path_exists(path("new")));
  {
    Result<MadeFolders> made = MadeFolders::make(path("new/inner"));
    ASSERT_TRUE(made);
    write("new/file", "text");
  }
  EXPECT_TRUE(path_exists(path("new/file")));
  EXPECT_FALSE(path_exists(path("new/inner")));
  {
    Result<MadeFolders> made = MadeFolders::make(path("kept"));
    ASSERT_TRUE(made);
    made->keep();
  }
  EXPECT_TRUE(is_directory(path("kept")));
}

TEST_F(RunDirTest, OneTrainerAtATime) {
  const Result<RunLock> lock = RunLock::take(paths_.dir);
  ASSERT_TRUE(lock);
  EXPECT_EQ(RunLock::take(paths_.dir).error().code, ExitCode::kOperating);
  EXPECT_FALSE(RunLock::take(path("absent")));
  EXPECT_TRUE(RunLock::is_held(paths_.dir).value());
  EXPECT_FALSE(RunLock::is_held(path("absent")));
}

TEST_F(RunDirTest, AskingWhetherARunIsInUseStopsNoStart) {
  std::atomic<bool> over = false;
  std::thread asking([&] {
    while (!over) {
      EXPECT_TRUE(RunLock::is_held(paths_.dir));
    }
  });
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(RunLock::take(paths_.dir));
  }
  over = true;
  asking.join();
  EXPECT_FALSE(RunLock::is_held(paths_.dir).value());
}

TEST_F(RunDirTest, ANoteOfWhatIsStillThereIsNotForgotten) {
  const StoreReference left{
      .folders = {path("nvme")}, .id = std::string(32, 'a'), .committed_step = {}};
  Result<CreationNote> first = CreationNote::write(paths_, left);
  ASSERT_TRUE(first);
  first->keep();
  const Result<CreationNote> second = CreationNote::write(paths_, left);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ExitCode::kOperating);
  EXPECT_EQ(CreationNote::read(paths_).value()->id, left.id);
}

}  // namespace
}  // namespace headrace::train
