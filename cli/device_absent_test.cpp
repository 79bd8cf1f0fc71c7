// What a binary without CUDA says of a GPU that it is asked for.
#include <gtest/gtest.h>

#include "cli/cuda.hpp"
#include "cli/device.hpp"

namespace headrace::cli {
namespace {

TEST(DeviceAbsent, AGpuIsRefusedAsSomethingThatTheBinaryLacks) {
  EXPECT_FALSE(cuda_facts().linked);
  RunConfig config;
  EXPECT_TRUE(check_device(config));
  config.tiers.device = "cpu";
  EXPECT_TRUE(check_device(config));
  config.tiers.device = "cuda:0";
  const Status status = check_device(config);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ExitCode::kUsage);
  EXPECT_NE(status.error().what.find("built without CUDA"), std::string::npos);
  EXPECT_FALSE(status.error().why.empty());
  EXPECT_NE(status.error().hint.find("\"cpu\""), std::string::npos);
}

}  // namespace
}  // namespace headrace::cli
