// The log: lines on stderr, and in a file where one is set. spdlog does the work in log.cpp alone.
//
// Invariant: stdout is never used, since it carries a command's result. Lines are whole: two
// threads do not mix theirs. Thread: any. Failure: logging never fails a caller; set_log_file()
// can. Callers format with fmt in their .cpp: log_info(fmt::format("read {} bytes", n)).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace headrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void log(LogLevel level, std::string_view text) noexcept;

inline void log_debug(std::string_view text) noexcept {
  log(LogLevel::kDebug, text);
}

inline void log_info(std::string_view text) noexcept {
  log(LogLevel::kInfo, text);
}

inline void log_warning(std::string_view text) noexcept {
  log(LogLevel::kWarning, text);
}

inline void log_error(std::string_view text) noexcept {
  log(LogLevel::kError, text);
}

// What stderr shows, from this level up; kInfo at the start. The file takes everything.
void set_log_level(LogLevel level) noexcept;

// Also appends every line, dated, to this file until close_log_file(); replaces an earlier one. The
// first file begins with the lines (kLogLinesKept at the most) that were written before there was
// one.
inline constexpr std::size_t kLogLinesKept = 1000;
[[nodiscard]] Status set_log_file(const std::string& path);
void close_log_file() noexcept;

// For the file alone: what stderr is told in another form.
void log_to_file(LogLevel level, std::string_view text) noexcept;

}  // namespace headrace
