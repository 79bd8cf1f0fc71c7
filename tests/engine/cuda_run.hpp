// Runs of the engine on an emulated GPU (tiers/gpu/emulated), for the tests of this folder: a small
// model, the CPU's kernels as operations of the compute stream, a machine that is fresh each time.
// Threads: the test's.
#pragma once

#include <cstdint>
#include <string>

#include "tests/engine/harness.hpp"

namespace headrace::testing {

inline constexpr int kStepsOnCuda = 2;

// Two blocks, and tables of two tiles.
[[nodiscard]] RunOptions tiny_run(const model::Architecture& architecture);
// Everything streams, on one placement with all queues in use.
[[nodiscard]] RunOptions streaming_run();
// The same run with its device on a machine that starts with this call: make it, then run it.
[[nodiscard]] RunOptions on_cuda(RunOptions options,
                                 std::uint64_t seed,
                                 std::size_t ring_capacity = 256);
// Fails unless the machine saw no rule broken and everything destroyed.
void expect_clean_machine(const std::string& what);

}  // namespace headrace::testing
