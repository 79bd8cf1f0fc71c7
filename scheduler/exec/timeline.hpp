// Measured waits of the device: marks on the compute queue before and after every wait that an
// instruction has. Preallocated; the marks are tiny operations of the queue itself, so they see
// what the device sees.
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
  // Room for `marks` waits of one program.
  explicit Timeline(std::size_t marks) { marks_.resize(marks); }

  void reset() { used_ = 0; }

  // Waits for `event` on `queue`; the time that this takes is counted under `cause` (a string
  // literal).
  void timed_wait(tiers::Queue& queue, const tiers::Event& event, const char* cause);

  // After the queue has been drained.
  [[nodiscard]] std::map<std::string, double> stall_seconds() const;

 private:
  struct Mark {
    const char* cause = "";
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  std::vector<Mark> marks_;
  std::size_t used_ = 0;
};

[[nodiscard]] std::int64_t monotonic_ns();

}  // namespace headrace::exec
