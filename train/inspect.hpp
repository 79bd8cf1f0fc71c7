// What is in a run's folder or a store, and whether all of it can be read.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "core/json.hpp"

namespace headrace::train {

// `path`: a run's directory, or `<folder>/<id>` of a store. Reads tables only; a store that is
// being trained is locked. The text is made from the JSON.
[[nodiscard]] Result<Json> inspect_path(const std::string& path);
[[nodiscard]] std::string format_inspection(const Json& inspection);

struct Verified {
  std::string store;  // its path
  std::int64_t step = 0;
  std::uint64_t extents = 0;
  std::uint64_t bytes = 0;
};

// Reads and checks every extent of the commit, its record and tensor table, and (of a run) that the
// metrics reach the commit. Errors: every problem, the first with the rest in `others`.
[[nodiscard]] Result<Verified> verify_path(const std::string& path);

}  // namespace headrace::train
