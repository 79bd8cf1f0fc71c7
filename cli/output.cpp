#include "cli/output.hpp"

#include <cerrno>

namespace headrace::cli {

void Output::fail(int errno_value) {
  closed_ = true;
  if (errno_value != EPIPE && !error_) {
    error_ = errno_error(
        path_.empty() ? "cannot write to standard output" : "cannot write '" + path_ + "'",
        errno_value);
  }
}

std::FILE* Output::target() {
  if (path_.empty()) {
    return stdout;
  }
  if (file_ == nullptr && !closed_) {
    file_.reset(std::fopen(path_.c_str(), "we"));
    if (file_ == nullptr) {
      fail(errno);
    }
  }
  return file_.get();
}

void Output::write(std::string_view text) {
  std::FILE* file = closed_ ? nullptr : target();
  if (file == nullptr) {
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fflush(file) != 0) {
    fail(errno);
  }
}

void Output::result(const Json& document, bool json, std::string_view text) {
  if (json) {
    write(document.dump(1) + "\n");
  } else {
    write(text);
  }
}

Status Output::finish() {
  if (file_ != nullptr && !closed_ && std::fclose(file_.release()) != 0) {
    fail(errno);
  }
  if (error_) {
    return *error_;
  }
  return {};
}

void write_error_text(std::string_view text) {
  // There is nobody to tell when standard error is gone.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

}  // namespace headrace::cli
