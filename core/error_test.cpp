// The form of an error, and how Result hands one on.
#include "core/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "core/assert.hpp"

namespace headrace {
namespace {

TEST(Error, ShowsWhatWhyHintAndPlace) {
  const Error error = usage_error("nvme tier: cannot use 'x': the filesystem is tmpfs")
                          .with_why("what is written there stays in memory")
                          .with_hint("use a folder on ext4 or xfs")
                          .with_where("run.toml:31:1");
  EXPECT_EQ(format_error(error, false),
            "error: nvme tier: cannot use 'x': the filesystem is tmpfs\n"
            "  why : what is written there stays in memory\n"
            "  hint: use a folder on ext4 or xfs  (run.toml:31:1)\n");
}

TEST(Error, ShowsTheTraceOnlyWhenVerboseAndAllOthers) {
  Error error = operating_error("first");
  error.trace = {"a.cpp:1"};
  error.others = {usage_error("second").with_where("run.toml:2:3")};
  EXPECT_EQ(format_error(error, false), "error: first\nerror: second  (run.toml:2:3)\n");
  EXPECT_EQ(format_error(error, true),
            "error: first\n  at  : a.cpp:1\nerror: second  (run.toml:2:3)\n");
}

TEST(Error, ErrnoIsNamedAndExplained) {
  const Error error = errno_error("cannot write 'f'", ENOSPC);
  EXPECT_EQ(error.code, ExitCode::kOperating);
  EXPECT_EQ(error.why, "No space left on device (ENOSPC)");
  EXPECT_EQ(error.hint, "free space on that filesystem");
  EXPECT_EQ(errno_error("cannot read 'f'", EIO).hint, "");
}

Result<int> half(int value) {
  if (value % 2 != 0) {
    return usage_error("odd");
  }
  return value / 2;
}

Result<int> quarter(int value) {
  HEADRACE_ASSIGN(const int once, half(value));
  HEADRACE_ASSIGN(const int twice, half(once));
  return twice;
}

Status check(int value) {
  HEADRACE_TRY(half(value));
  return {};
}

TEST(Result, HandsErrorsOnAndValuesThrough) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().what, "odd");
  EXPECT_TRUE(check(2));
  EXPECT_FALSE(check(3));
}

TEST(AssertDeathTest, SaysExpressionMessageAndPlaceAndAborts) {
  EXPECT_DEATH(HEADRACE_ASSERT(1 + 1 == 3, "slot freed twice"),
               "assertion failed: 1 \\+ 1 == 3.*\n.*slot freed twice.*\n.*error_test.cpp");
}

}  // namespace
}  // namespace headrace
