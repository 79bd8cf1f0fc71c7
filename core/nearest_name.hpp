// What a user may have meant by a name that does not exist.
//
// Pure. Thread: any. Failure: none.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// The name that is least slips away; "": none is near. A slip is one letter in three, and at least
// two: more is another word.
[[nodiscard]] std::string nearest_name(std::string_view text, std::span<const std::string> names);

}  // namespace headrace
