// See timeline.hpp.
#include "scheduler/exec/timeline.hpp"

#include "core/assert.hpp"

namespace headrace::exec {

void Timeline::mark(tiers::Queue& queue, const char* cause) {
  HEADRACE_ASSERT(used_ < marks_.size(), "the timeline has room for every wait of a program");
  Mark& mark = marks_[used_++];
  mark.cause = cause;
  queue.timestamp(&mark.at_ns);
}

void Timeline::timed_wait(tiers::Queue& queue, const tiers::Event& event, const char* cause) {
  HEADRACE_ASSERT(used_ > 0, "waits are timed from a begin");
  // A wait that is over by the time the queue gets there costs nothing, and is found to.
  queue.wait(event);
  mark(queue, cause);
}

std::map<std::string, double> Timeline::stall_seconds() const {
  constexpr double kSecondsPerNs = 1e-9;
  std::map<std::string, double> seconds;
  for (std::size_t i = 0; i < used_; ++i) {
    if (marks_[i].cause != nullptr) {
      seconds[marks_[i].cause] +=
          static_cast<double>(marks_[i].at_ns - marks_[i - 1].at_ns) * kSecondsPerNs;
    }
  }
  return seconds;
}

}  // namespace headrace::exec
