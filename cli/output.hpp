// Where a command's result goes: standard output, or the file of --output.
//
// Invariant: with --json exactly one JSON document is written, and nothing else; stdout carries
// nothing but the result. A reader that goes away (EPIPE) closes the output quietly: what is
// written later is dropped, and the command decides whether to go on. Thread: main's. Failure:
// other errors of writing are kept and returned by finish().
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/json.hpp"

namespace headrace::cli {

class Output {
 public:
  // `path` "": standard output. A file is made with the first write.
  explicit Output(std::string path) : path_(std::move(path)) {}

  // Text at once, for lines of a run and generated text.
  void write(std::string_view text);
  // The document of --json, or the result's text: `text` is used without --json.
  void result(const Json& document, bool json, std::string_view text);

  [[nodiscard]] bool closed() const { return closed_; }

  // The first error of writing, if any.
  [[nodiscard]] Status finish();

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const noexcept {
      // finish() is where its result is looked at.
      static_cast<void>(std::fclose(file));
    }
  };

  [[nodiscard]] std::FILE* target();
  void fail(int errno_value);

  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  bool closed_ = false;
  std::optional<Error> error_;
};

// To standard error, as it is: tables at the start of a run, and errors.
void write_error_text(std::string_view text);

}  // namespace headrace::cli
