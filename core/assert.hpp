// Assertions for programmers' errors. HEADRACE_ASSERT is on in every build: it prints the
// expression, a message, file and line, and aborts. HEADRACE_DASSERT is for inner loops: on in
// Debug builds and under sanitizers.
#pragma once

namespace headrace {

[[noreturn]] void assertion_failed(const char* expression,
                                   const char* message,
                                   const char* file,
                                   int line) noexcept;

}  // namespace headrace

#define HEADRACE_ASSERT(condition, message)                                  \
  do {                                                                       \
    if (!(condition)) [[unlikely]] {                                         \
      ::headrace::assertion_failed(#condition, message, __FILE__, __LINE__); \
    }                                                                        \
  } while (false)

#if defined(HEADRACE_DEBUG_CHECKS) || defined(HEADRACE_SANITIZED)
#define HEADRACE_DASSERT(condition, message) HEADRACE_ASSERT(condition, message)
#else
#define HEADRACE_DASSERT(condition, message) \
  do {                                       \
  } while (false && (condition))
#endif
