// Errors that a caller must handle, and Result<T>, which must be used.
//
// Three kinds (see core/README.md): a programmer's error aborts through HEADRACE_ASSERT; an
// operating error (EIO, a full disk) and a user's error (an unknown key) travel in Result. An Error
// says what failed, why, and what to do.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace headrace {

// The process exit code that an error leads to. The values are part of the command line's
// interface.
enum class ExitCode : int {
  kOk = 0,
  kOperating = 1,
  kUsage = 2,
  kDoesNotFit = 3,
  kCorrupt = 4,
  kRegression = 5,
  kHardwareAbsent = 77,
  kInterrupted = 130,
};

struct Error {
  ExitCode code = ExitCode::kOperating;
  std::string what;                // "nvme tier: cannot use '/mnt/x': the filesystem is tmpfs"
  std::string why;                 // may be empty
  std::string hint;                // what to do; may be empty
  std::string where;               // a place in the user's file ("run.toml:31:1"); may be empty
  std::vector<std::string> trace;  // innermost first; shown with --verbose
  std::vector<Error> others;       // further errors collected with this one

  Error&& with_why(std::string text) && {
    why = std::move(text);
    return std::move(*this);
  }

  Error&& with_hint(std::string text) && {
    hint = std::move(text);
    return std::move(*this);
  }

  Error&& with_where(std::string text) && {
    where = std::move(text);
    return std::move(*this);
  }
};

[[nodiscard]] inline Error make_error(ExitCode code, std::string what) {
  Error error;
  error.code = code;
  error.what = std::move(what);
  return error;
}

// Shorthands for the common kinds.
[[nodiscard]] inline Error operating_error(std::string what) {
  return make_error(ExitCode::kOperating, std::move(what));
}

[[nodiscard]] inline Error usage_error(std::string what) {
  return make_error(ExitCode::kUsage, std::move(what));
}

[[nodiscard]] inline Error corrupt_error(std::string what) {
  return make_error(ExitCode::kCorrupt, std::move(what));
}

[[nodiscard]] inline Error does_not_fit_error(std::string what) {
  return make_error(ExitCode::kDoesNotFit, std::move(what));
}

// An operating error from errno: why carries strerror and the errno's name.
[[nodiscard]] Error errno_error(std::string what, int errno_value);

// The form in which every error is shown: "error: what", then lines "why :" and "hint:" with the
// place in the user's file at the end, then each further error. Ends with a newline.
[[nodiscard]] std::string format_error(const Error& error, bool verbose);

// tl::expected is not [[nodiscard]]; this is.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using Base = tl::expected<T, Error>;
  using Base::Base;

  // Implicit, so that a function may `return operating_error("...");`.
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions)
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}
};

using Status = Result<void>;

}  // namespace headrace

#define HEADRACE_CONCAT_INNER(a, b) a##b
#define HEADRACE_CONCAT(a, b) HEADRACE_CONCAT_INNER(a, b)

// Returns the error of a Status or Result expression to the caller.
#define HEADRACE_TRY(expression)                                 \
  do {                                                           \
    if (auto headrace_status = (expression); !headrace_status) { \
      return std::move(headrace_status).error();                 \
    }                                                            \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): target may be a declaration.
// HEADRACE_ASSIGN(auto file, open(path)); assigns the value or returns the error.
#define HEADRACE_ASSIGN(target, expression) \
  HEADRACE_ASSIGN_INNER(target, expression, HEADRACE_CONCAT(headrace_result_, __LINE__))
#define HEADRACE_ASSIGN_INNER(target, expression, name) \
  auto name = (expression);                             \
  if (!name) {                                          \
    return std::move(name).error();                     \
  }                                                     \
  target = std::move(*name)
// NOLINTEND(bugprone-macro-parentheses)
