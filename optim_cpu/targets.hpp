// Which instruction set the optimizer's kernels run with. Chosen at run time, the best that the
// processor has; the choice never changes bits.
//
// Names: "scalar", "sse4", "avx2", "avx512", "neon". Threads: forcing is for tests, while no kernel
// runs. Failure: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace::optim {

// The one that runs now, for the start-up table.
[[nodiscard]] std::string active_target();

// Those that this build has and this processor can run, best first; "scalar" is last.
[[nodiscard]] std::vector<std::string> available_targets();

// While it lives, kernels run with the named instruction set. Aborts if the name is not one of
// available_targets(). Affects every Highway kernel of the process.
class ForcedTarget {
 public:
  explicit ForcedTarget(std::string_view name);
  ~ForcedTarget();
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace headrace::optim
