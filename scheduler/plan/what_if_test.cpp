// What-if: names, units, factors; what a changed rate does to a plan.
#include "scheduler/plan/what_if.hpp"

#include <gtest/gtest.h>

#include <string>

namespace headrace::plan {
namespace {

WhatIf today() {
  WhatIf what_if;
  MachineProfile& machine = what_if.machine;
  machine.gemm_fp32_flops_per_s = 300e9;
  machine.memory_bytes_per_s = 20e9;
  machine.host_copy_bytes_per_s = 10e9;
  machine.nvme_read_bytes_per_s = 3e9;
  machine.nvme_write_bytes_per_s = 2e9;
  machine.nvme_mixed_bytes_per_s = 2.2e9;
  machine.nvme_mixed_reads_bytes_per_s = 2.5e9;
  machine.nvme_mixed_writes_bytes_per_s = 1.9e9;
  machine.update_rates["fp32"].update_params_per_s = 1e9;
  what_if.settings.host_memory_bytes = std::size_t{4} << 30;
  what_if.settings.separate_device = true;
  what_if.settings.device_memory_bytes = std::size_t{1} << 30;
  return what_if;
}

WhatIf changed(const std::string& text) {
  WhatIf what_if = today();
  const Status status = apply_what_if(text, what_if);
  EXPECT_TRUE(status) << text << ": " << (status ? "" : status.error().what);
  return what_if;
}

TEST(WhatIf, EveryNameTakesItsUnitsAndAFactor) {
  EXPECT_EQ(changed("nvme.read=12GB/s").machine.nvme_read_bytes_per_s, 12e9);
  EXPECT_EQ(changed("nvme.write=0.5x").machine.nvme_write_bytes_per_s, 1e9);
  EXPECT_EQ(changed("memory=2x").machine.memory_bytes_per_s, 40e9);
  EXPECT_DOUBLE_EQ(changed("gemm=2TFLOPS").machine.gemm_fp32_flops_per_s, 2e12);
  EXPECT_DOUBLE_EQ(changed("update=500M/s").machine.update_rates["fp32"].update_params_per_s, 5e8);
  EXPECT_EQ(changed("host_memory=8GiB").settings.host_memory_bytes, std::size_t{8} << 30);
  EXPECT_EQ(changed("device_memory=2x").settings.device_memory_bytes, std::size_t{2} << 30);
  const WhatIf what_if = changed("nvme.read=2x");
  ASSERT_EQ(what_if.changes.size(), 1U);
  EXPECT_EQ(what_if.changes[0].before, 3e9);
  EXPECT_EQ(what_if.changes[0].after, 6e9);
}

TEST(WhatIf, AllRatesOfAKindAreScaledAlike) {
  WhatIf what_if = today();
  MachineProfile& machine = what_if.machine;
  for (auto& by_layout : machine.gemm) {
    for (SizedRates& rates : by_layout) {
      rates = {.sizes = {1, 64, 4096}, .rates = {10e9, 100e9, 300e9}};
    }
  }
  machine.attention_forward = {.sizes = {128}, .rates = {50e9}};
  machine.elements_per_s.fill(1e9);
  machine.collect_params_per_s = 2e9;
  const MachineProfile before = machine;
  ASSERT_TRUE(apply_what_if("gemm=3x", what_if));
  ASSERT_TRUE(apply_what_if("memory=2x", what_if));
  for (std::size_t pass = 0; pass < machine.gemm.size(); ++pass) {
    for (std::size_t layout = 0; layout < machine.gemm[pass].size(); ++layout) {
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_DOUBLE_EQ(machine.gemm[pass][layout].rates[i],
                         3 * before.gemm[pass][layout].rates[i]);
      }
    }
  }
  EXPECT_DOUBLE_EQ(machine.attention_forward.rates[0], 150e9);
  EXPECT_EQ(machine.attention_forward.sizes[0], 128);
  EXPECT_DOUBLE_EQ(machine.elements_per_s[0], 2e9);
  EXPECT_DOUBLE_EQ(machine.collect_params_per_s, 4e9);
  EXPECT_EQ(machine.update_rates["fp32"].update_params_per_s, 1e9);
}

// What two rates at once cost beside what they would by turns is a property of the drive.
TEST(WhatIf, ADrivesMixedRatesKeepTheirShare) {
  const MachineProfile before = today().machine;
  const MachineProfile twice = [] {
    WhatIf what_if = changed("nvme.read=2x");
    EXPECT_TRUE(apply_what_if("nvme.write=2x", what_if));
    return what_if.machine;
  }();
  EXPECT_DOUBLE_EQ(twice.nvme_mixed_bytes_per_s, 2 * before.nvme_mixed_bytes_per_s);
  EXPECT_DOUBLE_EQ(twice.nvme_mixed_reads_bytes_per_s, 2 * before.nvme_mixed_reads_bytes_per_s);
  const MachineProfile reads = changed("nvme.read=2x").machine;
  EXPECT_NEAR(reads.nvme_mixed_bytes_per_s, 2.2e9 * (1 / 3e9 + 1 / 2e9) / (1 / 6e9 + 1 / 2e9), 1);
  EXPECT_GT(reads.nvme_mixed_reads_bytes_per_s / before.nvme_mixed_reads_bytes_per_s,
            reads.nvme_mixed_writes_bytes_per_s / before.nvme_mixed_writes_bytes_per_s);
}

TEST(WhatIf, ALinkIsChangedOneWayAndWithItsCap) {
  const WhatIf what_if = changed("h2d=25GB/s");
  EXPECT_EQ(what_if.machine.host_copy_bytes_per_s, 25e9);
  EXPECT_EQ(what_if.settings.h2d_cap, 25e9);
  EXPECT_EQ(what_if.settings.d2h_cap, 10e9);
  WhatIf with_cap = today();
  with_cap.settings.nvme_read_cap = 1e9;
  ASSERT_TRUE(apply_what_if("nvme.read=2x", with_cap));
  EXPECT_EQ(with_cap.settings.nvme_read_cap, 2e9);
  EXPECT_EQ(with_cap.changes[0].before, 1e9);
}

TEST(WhatIf, WhatIsWrongIsNamed) {
  const auto fails = [](const std::string& text) {
    WhatIf what_if = today();
    const Status status = apply_what_if(text, what_if);
    EXPECT_FALSE(status) << text;
    EXPECT_TRUE(what_if.changes.empty());
    return status ? Error() : status.error();
  };
  const Error unknown = fails("nvme.raed=12GB/s");
  EXPECT_EQ(unknown.code, ExitCode::kUsage);
  EXPECT_NE(unknown.hint.find("the nearest is nvme.read;"), std::string::npos) << unknown.hint;
  EXPECT_NE(unknown.hint.find("device_memory"), std::string::npos) << unknown.hint;
  for (const char* text : {"nvme.read",
                           "nvme.read=",
                           "nvme.read=12",
                           "nvme.read=12GB",
                           "nvme.read=0x",
                           "nvme.read=-2x",
                           "nvme.read=infx",
                           "gemm=2GB/s",
                           "host_memory=2GB/s",
                           "update=3"}) {
    EXPECT_EQ(fails(text).code, ExitCode::kUsage) << text;
  }
  WhatIf shared = today();
  shared.settings.separate_device = false;
  const Status status = apply_what_if("h2d=2x", shared);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().why.find("shares"), std::string::npos);
}

}  // namespace
}  // namespace headrace::plan
