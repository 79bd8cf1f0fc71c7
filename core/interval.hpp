// How often something is done during a run: every so many steps, once so much time has passed, or
// never.
//
// Invariant: at most one of steps and seconds is set; what interval_text() writes,
// parse_interval() reads back to the same value. Thread: any. Failure: a usage error that names the
// text, with a hint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace headrace {

struct Interval {
  std::int64_t steps = 0;
  double seconds = 0;

  [[nodiscard]] bool never() const { return steps == 0 && seconds == 0; }

  friend bool operator==(const Interval&, const Interval&) = default;
};

// "every-step", "100 steps", "10min" (see parse_duration), "none".
[[nodiscard]] Result<Interval> parse_interval(std::string_view text);
// "90s", "10min", "none": no steps.
[[nodiscard]] Result<Interval> parse_time_interval(std::string_view text);
[[nodiscard]] std::string interval_text(const Interval& interval);

}  // namespace headrace
