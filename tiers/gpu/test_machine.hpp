// The machine under the tests of this folder: the emulated one, or a real GPU.
//
// A fresh one each time; when it ends, nothing may be left alive or have been violated (the
// emulated one knows; of a real one nothing can be said). Threads: the test's.
#pragma once

#include <cstdint>

#include "tiers/gpu/cuda_queue.hpp"

namespace headrace::tiers::gpu {

void begin_test_machine(std::uint64_t seed);
// Steps begin: from here on nothing may be made or destroyed, until thaw.
void freeze_test_machine();
void thaw_test_machine();
void end_test_machine();

}  // namespace headrace::tiers::gpu
