#include "core/interval.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "core/quantity.hpp"

namespace headrace {
namespace {

constexpr std::int64_t kStepsMax = 1'000'000'000'000;
constexpr std::string_view kHint = "write \"every-step\", \"100 steps\", \"10min\" or \"none\"";

Error interval_error(std::string_view text, std::string why) {
  return usage_error(fmt::format("\"{}\" says no interval", text))
      .with_why(std::move(why))
      .with_hint(std::string(kHint));
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  return text;
}

Result<Interval> parse_steps(std::string_view text, std::string_view number) {
  std::int64_t steps = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), steps);
  if (error != std::errc() || end != number.data() + number.size()) {
    return interval_error(text, "steps are counted in whole numbers");
  }
  if (steps < 1 || steps > kStepsMax) {
    return interval_error(text, fmt::format("steps lie between 1 and {}", kStepsMax));
  }
  return Interval{.steps = steps, .seconds = 0};
}

}  // namespace

Result<Interval> parse_interval(std::string_view text) {
  const std::string_view given = trimmed(text);
  if (given == "none") {
    return Interval{};
  }
  if (given == "every-step") {
    return Interval{.steps = 1, .seconds = 0};
  }
  for (const std::string_view unit : {"steps", "step"}) {
    if (given.ends_with(unit)) {
      return parse_steps(text, trimmed(given.substr(0, given.size() - unit.size())));
    }
  }
  const Result<double> seconds = parse_duration(given);
  if (!seconds) {
    return interval_error(text, "it is neither a number of steps nor a duration");
  }
  if (*seconds <= 0) {
    return interval_error(text, "no time would pass");
  }
  return Interval{.steps = 0, .seconds = *seconds};
}

Result<Interval> parse_time_interval(std::string_view text) {
  HEADRACE_ASSIGN(const Interval interval, parse_interval(text));
  if (interval.steps > 0) {
    return usage_error(fmt::format("\"{}\" says no time", text))
        .with_why("it counts steps")
        .with_hint("write \"1min\" or \"none\"");
  }
  return interval;
}

std::string interval_text(const Interval& interval) {
  if (interval.never()) {
    return "none";
  }
  if (interval.steps > 0) {
    return interval.steps == 1 ? "every-step" : fmt::format("{} steps", interval.steps);
  }
  constexpr double kMinute = 60;
  const double minutes = interval.seconds / kMinute;
  return minutes >= 1 && minutes == std::trunc(minutes) ? fmt::format("{}min", minutes)
                                                        : fmt::format("{}s", interval.seconds);
}

}  // namespace headrace
