// The text forms of errors (core/error.hpp).
#include "core/error.hpp"

#include <cerrno>
#include <cstring>

namespace headrace {

namespace {

// strerrorname_np ("ENOSPC") where libc has it, beside the sentence of strerror.
std::string errno_text(int errno_value) {
  std::string text;
  char buffer[256] = {};
  // The GNU variant returns the text, which need not lie in the buffer.
  text = strerror_r(errno_value, buffer, sizeof buffer);
  if (const char* name = strerrorname_np(errno_value); name != nullptr) {
    text += " (";
    text += name;
    text += ')';
  }
  return text;
}

// What to do about the causes that a user can mend wherever they show; "" for others.
const char* errno_hint(int errno_value) {
  switch (errno_value) {
    case ENOSPC:
      return "free space on that filesystem";
    case EDQUOT:
      return "free space, or have the quota raised";
    case EROFS:
      return "it is mounted read-only: mount it for writing, or use another folder";
    default:
      return "";
  }
}

void append_one(std::string& text, const Error& error, bool verbose) {
  text += "error: ";
  text += error.what;
  if (!error.why.empty()) {
    text += "\n  why : ";
    text += error.why;
  }
  if (!error.hint.empty()) {
    text += "\n  hint: ";
    text += error.hint;
  }
  if (!error.where.empty()) {
    text += "  (";
    text += error.where;
    text += ')';
  }
  if (verbose) {
    for (const std::string& line : error.trace) {
      text += "\n  at  : ";
      text += line;
    }
  }
  text += '\n';
}

}  // namespace

Error errno_error(std::string what, int errno_value) {
  return operating_error(std::move(what))
      .with_why(errno_text(errno_value))
      .with_hint(errno_hint(errno_value));
}

std::string format_error(const Error& error, bool verbose) {
  std::string text;
  append_one(text, error, verbose);
  for (const Error& other : error.others) {
    text += format_error(other, verbose);
  }
  return text;
}

}  // namespace headrace
