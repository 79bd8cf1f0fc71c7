// Internal to what reports plans: how its text is laid out.
//
// Invariant: lines are 100 columns wide at most, unless a word is longer. Threads: any. Failure:
// none.
#pragma once

#include <string>

namespace headrace::plan {

inline constexpr int kLabelColumns = 13;

// A label and words, which go on below themselves where they are too long for a line.
void add_line(std::string& text, const std::string& label, const std::string& words);

// "92 %", "3.4 %".
[[nodiscard]] std::string format_percent(double share);

}  // namespace headrace::plan
