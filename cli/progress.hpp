// One line of progress on a terminal, redrawn; nothing where standard error is not one.
//
// Invariant: the line is gone before anything else is written, so it never mixes with step lines or
// the log. Thread: main's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace headrace::cli {

class Progress {
 public:
  Progress();

  ~Progress() { clear(); }

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // "step 13/200, 6 %, about 3 min left"
  void show(std::int64_t done, std::int64_t total, double seconds_each);
  void clear();

 private:
  bool terminal_ = false;
  bool shown_ = false;
};

}  // namespace headrace::cli
