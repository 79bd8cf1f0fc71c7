// What a binary with CUDA says of a GPU that it is asked for, on machines that the emulated runtime
// makes up: no driver, no GPU, too few, one that is there, a driver that is out of order.
#include "cli/device.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cli/cuda.hpp"
#include "tiers/gpu/emulated/runtime.hpp"

namespace headrace::cli {
namespace {

namespace emulated = tiers::gpu::emulated;

RunConfig config_for(const std::string& device) {
  RunConfig config;
  config.tiers.device = device;
  config.where["tiers.device"] = "run.toml:3:10";
  return config;
}

class Device : public ::testing::Test {
 protected:
  ~Device() override {
    EXPECT_EQ(emulated::violations(), std::vector<std::string>{});
    EXPECT_EQ(emulated::leaks(), std::vector<std::string>{});
  }
};

TEST_F(Device, TheCpuNeedsNoCallOfCuda) {
  emulated::start({.devices = 2});
  EXPECT_TRUE(check_device(config_for("cpu")));
  EXPECT_TRUE(check_device(RunConfig()));  // auto
  EXPECT_EQ(emulated::call_count(), 0U);
}

TEST_F(Device, WhatIsMissingDecidesTheExitCode) {
  struct Case {
    int devices;  // -1: no driver
    const char* device;
    ExitCode code;
    const char* what;
    const char* why;
  };

  for (const Case& machine : {
           Case{-1, "cuda:0", ExitCode::kHardwareAbsent, "no NVIDIA driver", "libcuda.so.1"},
           Case{0, "cuda:0", ExitCode::kHardwareAbsent, "no GPU", "cudaErrorNoDevice"},
           Case{2, "cuda:2", ExitCode::kHardwareAbsent, "no such GPU", "cuda:1 emulated GPU 1"},
           Case{2, "cuda:1", ExitCode::kUsage, "(emulated GPU 1)", "no CUDA kernels"},
       }) {
    emulated::start({.devices = machine.devices});
    const Status status = check_device(config_for(machine.device));
    ASSERT_FALSE(status);
    const Error& error = status.error();
    EXPECT_EQ(error.code, machine.code) << format_error(error, true);
    EXPECT_NE(error.what.find(machine.what), std::string::npos) << format_error(error, true);
    EXPECT_NE(error.why.find(machine.why), std::string::npos) << format_error(error, true);
    EXPECT_NE(error.hint.find("\"cpu\""), std::string::npos) << format_error(error, true);
    EXPECT_EQ(error.where, "run.toml:3:10");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the runtime's own record is cleared";
  }
}

TEST_F(Device, ADriverThatIsOutOfOrderIsAnOperatingError) {
  for (const char* call :
       {"cudaDriverGetVersion", "cudaGetDeviceCount", "cudaGetDeviceProperties"}) {
    emulated::start({});
    emulated::fail_call_of(call, 0, cudaErrorSystemDriverMismatch);
    const Status status = check_device(config_for("cuda:0"));
    ASSERT_FALSE(status) << call;
    EXPECT_EQ(status.error().code, ExitCode::kOperating) << format_error(status.error(), true);
    EXPECT_NE(status.error().why.find(call), std::string::npos) << status.error().why;
    emulated::start({});
    emulated::fail_call_of(call, 0, cudaErrorSystemDriverMismatch);
    EXPECT_FALSE(cuda_facts().lacks_driver()) << call;
  }
}

TEST_F(Device, FactsAreThoseOfEachGpu) {
  emulated::start({.devices = 2, .device_bytes = std::size_t{1} << 30});
  const CudaFacts facts = cuda_facts();
  EXPECT_TRUE(facts.linked);
  EXPECT_FALSE(facts.problem);
  EXPECT_EQ(facts.runtime, "13.0");
  EXPECT_EQ(facts.driver, "13.0");
  ASSERT_EQ(facts.gpus.size(), 2U);
  EXPECT_EQ(facts.gpus[1].ordinal, 1);
  EXPECT_EQ(facts.gpus[1].name, "emulated GPU 1");
  EXPECT_EQ(facts.gpus[1].memory_bytes, 1U << 30U);
  EXPECT_FALSE(facts.gpus[1].pci_id.empty());
  // Neither a context nor memory: asking is all that happens.
  for (const auto& [function, count] : emulated::calls_by_function()) {
    EXPECT_NE(function, "cudaSetDevice");
    EXPECT_NE(function, "cudaMalloc");
  }
  emulated::start({.devices = -1});
  EXPECT_EQ(cuda_facts().driver, "");
}

}  // namespace
}  // namespace headrace::cli
