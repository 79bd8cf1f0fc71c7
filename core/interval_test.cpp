// Intervals as a user writes them: what is read, what is refused, and that text is read back.
#include "core/interval.hpp"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Interval, IsWrittenInStepsOrTimeOrNone) {
  EXPECT_EQ(parse_interval("none").value(), Interval{});
  EXPECT_EQ(parse_interval("every-step").value(), (Interval{.steps = 1, .seconds = 0}));
  EXPECT_EQ(parse_interval("1 step").value(), (Interval{.steps = 1, .seconds = 0}));
  EXPECT_EQ(parse_interval(" 100 steps ").value(), (Interval{.steps = 100, .seconds = 0}));
  EXPECT_EQ(parse_interval("7steps").value(), (Interval{.steps = 7, .seconds = 0}));
  EXPECT_EQ(parse_interval("10min").value(), (Interval{.steps = 0, .seconds = 600}));
  EXPECT_EQ(parse_interval("1.5h").value(), (Interval{.steps = 0, .seconds = 5400}));
  EXPECT_EQ(parse_interval("250ms").value(), (Interval{.steps = 0, .seconds = 0.25}));
}

TEST(Interval, OtherTextIsRefusedWithTheWaysToWriteOne) {
  for (const char* text : {"",
                           "10",
                           "steps",
                           "0 steps",
                           "-3 steps",
                           "1.5 steps",
                           "99999999999999999999 steps",
                           "0s",
                           "-1min",
                           "10 minutes ago",
                           "always"}) {
    const Result<Interval> interval = parse_interval(text);
    ASSERT_FALSE(interval) << text;
    EXPECT_EQ(interval.error().code, ExitCode::kUsage) << text;
    EXPECT_NE(interval.error().hint.find("every-step"), std::string::npos) << text;
  }
}

TEST(Interval, ItsTextIsReadBack) {
  for (const Interval& interval : {Interval{},
                                   Interval{.steps = 1, .seconds = 0},
                                   Interval{.steps = 123456, .seconds = 0},
                                   Interval{.steps = 0, .seconds = 600},
                                   Interval{.steps = 0, .seconds = 61.25},
                                   Interval{.steps = 0, .seconds = 0.004}}) {
    EXPECT_EQ(parse_interval(interval_text(interval)).value(), interval) << interval_text(interval);
  }
}

}  // namespace
}  // namespace headrace
