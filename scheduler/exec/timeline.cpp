// See timeline.hpp.
#include "scheduler/exec/timeline.hpp"

#include <chrono>

#include "core/assert.hpp"

namespace headrace::exec {

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Timeline::timed_wait(tiers::Queue& queue, const tiers::Event& event, const char* cause) {
  HEADRACE_ASSERT(used_ < marks_.size(), "the timeline has room for every wait of a program");
  Mark* mark = &marks_[used_++];
  mark->cause = cause;
  // A wait that is over by the time the queue gets there costs nothing, and is found to.
  queue.submit({.name = "mark", .reads = {}, .writes = {}, .id = 0},
               [mark] { mark->begin_ns = monotonic_ns(); });
  queue.wait(event);
  queue.submit({.name = "mark", .reads = {}, .writes = {}, .id = 0},
               [mark] { mark->end_ns = monotonic_ns(); });
}

std::map<std::string, double> Timeline::stall_seconds() const {
  std::map<std::string, double> seconds;
  for (std::size_t i = 0; i < used_; ++i) {
    seconds[marks_[i].cause] += static_cast<double>(marks_[i].end_ns - marks_[i].begin_ns) * 1e-9;
  }
  return seconds;
}

}  // namespace headrace::exec
