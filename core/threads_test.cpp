// Threads that cannot start are an Error.
#include "core/threads.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace headrace {
namespace {

TEST(Threads, AFewCanStart) {
  EXPECT_TRUE(check_threads(0));
  EXPECT_TRUE(check_threads(5));
}

// In a process of its own, whose limit stays with it. Address space is what stacks are made of.
TEST(Threads, TooManyAreAnErrorThatNamesTheLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space of their own";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr rlim_t kAddressSpaceBytes = rlim_t{1} << 30U;
    const rlimit limit = {.rlim_cur = kAddressSpaceBytes, .rlim_max = kAddressSpaceBytes};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) {
      ::_exit(2);
    }
    const Status status = check_threads(1000);
    const bool good = !status && status.error().code == ExitCode::kOperating &&
                      status.error().hint.find("ulimit -u") != std::string::npos;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace headrace
