// Measured waits of the device: the compute queue's own times before and after the waits that an
// instruction has, so they say what the device saw.
//
// Preallocated. Thread: the scheduler's; stall_seconds() once the queue has been drained. Failure:
// none (after a fault of the runtime the times are worthless).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tiers/queue.hpp"

namespace headrace::exec {

class Timeline {
 public:
  // Room for the begins and waits of one program.
  explicit Timeline(std::size_t marks) { marks_.resize(marks); }

  void reset() { used_ = 0; }

  // Waits follow on `queue`: a time before the first of them.
  void begin(tiers::Queue& queue) { mark(queue, nullptr); }

  // Waits for `event` on `queue`; the time that this takes, since begin() or the wait before, is
  // counted under `cause` (a string literal).
  void timed_wait(tiers::Queue& queue, const tiers::Event& event, const char* cause);

  [[nodiscard]] std::map<std::string, double> stall_seconds() const;

 private:
  struct Mark {
    const char* cause = nullptr;  // of the wait that it ends; null: it begins
    std::int64_t at_ns = 0;
  };

  void mark(tiers::Queue& queue, const char* cause);

  std::vector<Mark> marks_;
  std::size_t used_ = 0;
};

}  // namespace headrace::exec
