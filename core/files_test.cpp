// Facts about files and globs that configs, stores and exports depend on.
#include "core/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/test_folder.hpp"

namespace headrace {
namespace {

TEST(Files, AtomicWriteReplacesTheWholeFileAndLeavesNothingBeside) {
  const TestFolder folder;
  const std::string path = folder.path("table.json");
  ASSERT_TRUE(write_file_atomically(path, "a longer first text"));
  ASSERT_TRUE(write_file_atomically(path, "second"));
  EXPECT_EQ(read_file(path, 100).value(), "second");
  EXPECT_EQ(list_directory(folder.path("")).value(), std::vector<std::string>{"table.json"});
}

TEST(Files, AtomicWriteIntoAMissingFolderFailsAndNamesTheFile) {
  const TestFolder folder;
  const Status status = write_file_atomically(folder.path("none/x"), "text");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("none/x"), std::string::npos);
  EXPECT_NE(status.error().why.find("ENOENT"), std::string::npos);
}

TEST(Files, AFullDeviceIsAnError) {
  const auto fd = open_file("/dev/full", O_WRONLY);
  ASSERT_TRUE(fd);
  const Status status = write_all(fd->get(), "text");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().why.find("ENOSPC"), std::string::npos);
}

TEST(Files, ReadingHonoursItsLimitAndRefusesFolders) {
  const TestFolder folder;
  const std::string path = folder.path("f");
  ASSERT_TRUE(write_file_atomically(path, "12345"));
  EXPECT_EQ(read_file(path, 5).value(), "12345");
  EXPECT_FALSE(read_file(path, 4));
  EXPECT_FALSE(read_file(folder.path(""), 100));
  EXPECT_FALSE(read_file(folder.path("missing"), 100));
  EXPECT_TRUE(read_file("/proc/self/status", 1U << 20U));  // a file that claims a size of zero
}

TEST(Files, ReadExactlyTellsAnEarlyEndFromAReadError) {
  const TestFolder folder;
  const std::string path = folder.path("f");
  ASSERT_TRUE(write_file_atomically(path, "0123456789"));
  const auto fd = open_file(path, O_RDONLY);
  ASSERT_TRUE(fd);
  std::vector<std::byte> bytes(4);
  ASSERT_TRUE(read_exactly(fd->get(), bytes, 6));
  EXPECT_EQ(bytes[3], std::byte{'9'});
  EXPECT_EQ(read_exactly(fd->get(), bytes, 7).error().code, ExitCode::kCorrupt);
  EXPECT_EQ(read_exactly(-1, bytes, 0).error().code, ExitCode::kOperating);
}

TEST(Files, MakeDirectoryMakesParentsOnlyWhenAsked) {
  const TestFolder folder;
  EXPECT_FALSE(make_directory(folder.path("a/b"), Parents::kMustExist));
  EXPECT_TRUE(make_directory(folder.path("a/b"), Parents::kMake));
  EXPECT_TRUE(make_directory(folder.path("a/b"), Parents::kMustExist));
  ASSERT_TRUE(write_file_atomically(folder.path("a/file"), ""));
  EXPECT_FALSE(make_directory(folder.path("a/file"), Parents::kMustExist));
  EXPECT_FALSE(make_directory(folder.path("a/file/c"), Parents::kMake));
}

TEST(Files, MappedFileShowsTheBytesAndAnEmptyFileIsEmpty) {
  const TestFolder folder;
  ASSERT_TRUE(write_file_atomically(folder.path("f"), "abc"));
  ASSERT_TRUE(write_file_atomically(folder.path("empty"), ""));
  const auto mapped = MappedFile::open(folder.path("f"));
  ASSERT_TRUE(mapped);
  ASSERT_EQ(mapped->bytes().size(), 3U);
  EXPECT_EQ(mapped->bytes()[2], std::byte{'c'});
  EXPECT_TRUE(MappedFile::open(folder.path("empty")).value().bytes().empty());
  EXPECT_FALSE(MappedFile::open(folder.path("missing")));
  EXPECT_FALSE(MappedFile::open(folder.path("")));
}

TEST(Files, WhatIsNoRegularFileIsNotReadNorWaitedFor) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder.path("pipe"), std::string("/dev/zero"), folder.path("")}) {
    const auto text = read_file(path, 100);
    ASSERT_FALSE(text) << path;
    EXPECT_NE(text.error().why.find("not a regular file"), std::string::npos) << text.error().why;
    EXPECT_FALSE(MappedFile::open(path)) << path;
    EXPECT_FALSE(expand_glob(path)) << path;
  }
}

TEST(Files, RealPathsFollowLinksAsFarAsThePathExists) {
  const TestFolder folder;
  ASSERT_TRUE(make_directory(folder.path("a"), Parents::kMustExist));
  ASSERT_EQ(::symlink(folder.path("a").c_str(), folder.path("link").c_str()), 0);
  EXPECT_EQ(real_path(folder.path("link/new/part/")), real_path(folder.path("a")) + "/new/part");
}

TEST(Files, PathsAreJoinedAndNormalised) {
  EXPECT_EQ(absolute_path("/a/b", "c"), "/a/b/c");
  EXPECT_EQ(absolute_path("/a/b", "../c/./d/"), "/a/c/d");
  EXPECT_EQ(absolute_path("/a/b", "/c"), "/c");
  EXPECT_EQ(absolute_path("/a", "."), "/a");
  EXPECT_EQ(absolute_path("/a", ".."), "/");
  EXPECT_EQ(absolute_path("/a", "*/**/x?.txt"), "/a/*/**/x?.txt");
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("b"), ".");
}

TEST(Files, FilesystemsAreNamedWithTheirFreeSpace) {
  const auto shared_memory = filesystem_of("/dev/shm");
  if (shared_memory) {
    EXPECT_EQ(shared_memory->kind, FilesystemKind::kTmpfs);
  }
  const TestFolder folder;
  const auto own = filesystem_of(folder.path(""));
  ASSERT_TRUE(own);
  EXPECT_FALSE(own->name.empty());
  EXPECT_GT(own->total_bytes, own->free_bytes / 2);
  EXPECT_FALSE(filesystem_of(folder.path("missing")));
}

class GlobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* directory : {"src/deep/er", "src/.hidden", "other"}) {
      ASSERT_TRUE(make_directory(folder_.path(directory), Parents::kMake));
    }
    for (const char* file : {"a.txt",
                             "b.txt",
                             ".dot.txt",
                             "c.md",
                             "src/d.txt",
                             "src/deep/e.txt",
                             "src/deep/er/f.txt",
                             "src/.hidden/g.txt",
                             "other/h[1].txt"}) {
      ASSERT_TRUE(write_file_atomically(folder_.path(file), "x"));
    }
    ASSERT_EQ(::symlink(folder_.path("src").c_str(), folder_.path("src/deep/loop").c_str()), 0);
  }

  // Matches relative to the folder.
  std::vector<std::string> matches(const std::string& pattern) {
    std::vector<std::string> found = expand_glob(folder_.path(pattern)).value();
    for (std::string& path : found) {
      path = path.substr(folder_.path("").size());
    }
    return found;
  }

  TestFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(GlobTest, StarsAndQuestionMarksStayWithinAPart) {
  EXPECT_EQ(matches("*.txt"), (Names{"a.txt", "b.txt"}));
  EXPECT_EQ(matches("?.md"), Names{"c.md"});
  EXPECT_EQ(matches("[bc].*"), (Names{"b.txt", "c.md"}));
  EXPECT_EQ(matches(".*.txt"), Names{".dot.txt"});
  EXPECT_EQ(matches("*/d.txt"), Names{"src/d.txt"});
}

TEST_F(GlobTest, DoubleStarCrossesFoldersButNeitherHiddenOnesNorLoops) {
  EXPECT_EQ(
      matches("**/*.txt"),
      (Names{
          "a.txt", "b.txt", "other/h[1].txt", "src/d.txt", "src/deep/e.txt", "src/deep/er/f.txt"}));
  EXPECT_EQ(matches("src/**"), (Names{"src/d.txt", "src/deep/e.txt", "src/deep/er/f.txt"}));
  EXPECT_EQ(matches("src/**/f.txt"), Names{"src/deep/er/f.txt"});
}

TEST_F(GlobTest, MatchingNothingIsAnErrorThatNamesThePattern) {
  for (const char* pattern : {"*.none", "none/*.txt", "none.txt", "src", "src/**/none"}) {
    const auto result = expand_glob(folder_.path(pattern));
    ASSERT_FALSE(result) << pattern;
    EXPECT_NE(result.error().what.find(pattern), std::string::npos);
  }
}

TEST_F(GlobTest, ANameWithoutWildcardsStandsForItself) {
  EXPECT_EQ(matches("a.txt"), Names{"a.txt"});
}

TEST(Unique, ClosesOnceAndMovesOwnership) {
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  static_assert(sizeof(UniqueFd) == sizeof(int));
  const UniqueFd read_end(ends[0]);
  {
    UniqueFd first(ends[1]);
    UniqueFd second = std::move(first);
    EXPECT_TRUE(second.has_value());
    UniqueFd third;
    third = std::move(second);
    EXPECT_EQ(third.get(), ends[1]);
    EXPECT_EQ(::fcntl(ends[1], F_GETFD), 0);
  }
  EXPECT_EQ(::fcntl(ends[1], F_GETFD), -1);
}

}  // namespace
}  // namespace headrace
