// The log goes to stderr and its file, never to stdout.
#include "core/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/files.hpp"
#include "core/test_folder.hpp"

namespace headrace {
namespace {

TEST(Log, StdoutStaysCleanAndLevelsFilterStderr) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  log_info("shown");
  log_debug("hidden");
  set_log_level(LogLevel::kError);
  log_warning("quiet");
  log_error("loud {} %s");
  set_log_level(LogLevel::kInfo);
  const std::string standard_output = ::testing::internal::GetCapturedStdout();
  const std::string standard_error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(standard_output, "");
  EXPECT_NE(standard_error.find("shown"), std::string::npos);
  EXPECT_EQ(standard_error.find("hidden"), std::string::npos);
  EXPECT_EQ(standard_error.find("quiet"), std::string::npos);
  EXPECT_NE(standard_error.find("loud {} %s"), std::string::npos);
}

// Comes first of those with a file: only the first file is given what was said before.
TEST(Log, TheFileBeginsWithWhatWasSaidBefore) {
  const TestFolder folder;
  set_log_level(LogLevel::kOff);
  log_info("said before");
  log_to_file(LogLevel::kError, "and this for the file");
  ASSERT_TRUE(set_log_file(folder.path("first.log")));
  log_info("said after");
  close_log_file();
  log_info("said between");
  ASSERT_TRUE(set_log_file(folder.path("second.log")));
  close_log_file();
  set_log_level(LogLevel::kInfo);
  const std::string first = read_file(folder.path("first.log"), 1U << 20U).value();
  const std::size_t before = first.find("info said before\n");
  const std::size_t only = first.find("error and this for the file\n");
  const std::size_t after = first.find("info said after\n");
  EXPECT_LT(before, only);
  EXPECT_LT(only, after);
  EXPECT_NE(after, std::string::npos) << first;
  EXPECT_EQ(read_file(folder.path("second.log"), 1U << 20U).value(), "");
}

TEST(Log, TheFileTakesEveryLevelAndWholeLinesFromManyThreads) {
  close_log_file();  // what other tests said is not for this file
  const TestFolder folder;
  set_log_level(LogLevel::kOff);
  ASSERT_TRUE(set_log_file(folder.path("run.log")));
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) {
        log_debug("a line of text that must stay whole");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  close_log_file();
  log_debug("after closing");
  set_log_level(LogLevel::kInfo);
  const std::string text = read_file(folder.path("run.log"), 1U << 20U).value();
  std::size_t lines = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    EXPECT_TRUE(text.substr(at, end - at).ends_with("debug a line of text that must stay whole"));
    at = end + 1;
    ++lines;
  }
  EXPECT_EQ(lines, 800U);
}

TEST(Log, AFileThatCannotBeOpenedIsAnError) {
  const TestFolder folder;
  ASSERT_TRUE(write_file_atomically(folder.path("file"), ""));
  EXPECT_FALSE(set_log_file(folder.path("file/run.log")));
}

}  // namespace
}  // namespace headrace
