// Tests of this folder on a real GPU. Exit code 77 where there is none, with one line that says
// why.
#include <gtest/gtest.h>

#include <iostream>

#include "tiers/gpu/cuda_device.hpp"
#include "tiers/gpu/test_machine.hpp"

namespace headrace::tiers::gpu {

void begin_test_machine(std::uint64_t /*seed*/) {}

void freeze_test_machine() {}

void thaw_test_machine() {}

void end_test_machine() {}

}  // namespace headrace::tiers::gpu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto devices = headrace::tiers::gpu::list_cuda_devices();
  if (!devices && !GTEST_FLAG_GET(list_tests)) {
    std::cout << headrace::tiers::gpu::describe_cuda() << "\n";
    return static_cast<int>(headrace::ExitCode::kHardwareAbsent);
  }
  return RUN_ALL_TESTS();
}
