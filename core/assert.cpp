// What a failed HEADRACE_ASSERT does: writes to file descriptor 2 without allocating, then aborts.
// Thread: any. A second failing thread may interleave its lines; the first abort ends the process.
#include "core/assert.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace headrace {

void assertion_failed(const char* expression,
                      const char* message,
                      const char* file,
                      int line) noexcept {
  // A fixed buffer and write(2): the heap may be what is broken.
  char text[1024] = {};
  const int length = std::snprintf(text,
                                   sizeof text,
                                   "headrace: assertion failed: %s\n  %s\n  at %s:%d\n",
                                   expression,
                                   message,
                                   file,
                                   line);
  if (length > 0) {
    const auto bytes = static_cast<std::size_t>(length);
    const std::size_t shown = bytes < sizeof text ? bytes : sizeof text - 1;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, shown);
  }
  constexpr int kFramesMax = 48;
  void* frames[kFramesMax] = {};
  const int frame_count = ::backtrace(frames, kFramesMax);
  ::backtrace_symbols_fd(frames, frame_count, STDERR_FILENO);
  std::abort();
}

}  // namespace headrace
