// The emulated machine under the tests of tiers/gpu.
#include "tiers/gpu/test_machine.hpp"

#include <gtest/gtest.h>

#include "tiers/gpu/emulated/runtime.hpp"

namespace headrace::tiers::gpu {

void begin_test_machine(std::uint64_t seed) {
  emulated::start({.seed = seed});
}

void freeze_test_machine() {
  emulated::freeze();
}

void thaw_test_machine() {
  emulated::thaw();
}

void end_test_machine() {
  EXPECT_EQ(emulated::violations(), std::vector<std::string>{});
  EXPECT_EQ(emulated::leaks(), std::vector<std::string>{});
}

}  // namespace headrace::tiers::gpu
