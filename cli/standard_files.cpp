// See standard_files.hpp. Called once, before anything else is opened; what it opens stays open
// over an exec(2). Thread: main's.
#include "cli/standard_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace headrace::cli {

bool open_missing_standard_files() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) {
      continue;
    }
    // All below `fd` are open, so that open(2) gives this one.
    const int flags = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", flags) != fd) {  // NOLINT(android-cloexec-open): kept over exec
      return false;
    }
  }
  return true;
}

}  // namespace headrace::cli
