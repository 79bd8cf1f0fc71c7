// Whether the system lets the process start the threads that it will need.
//
// OpenMP and oneTBB end the process when a thread of theirs cannot start. So whoever is about to
// need threads asks here first, and has an Error instead. What another process takes in between is
// not seen. Thread: any. Failure: Status.
#pragma once

#include "core/error.hpp"

namespace headrace {

// Starts `count` threads that are alive together, and ends them.
[[nodiscard]] Status check_threads(int count);

}  // namespace headrace
