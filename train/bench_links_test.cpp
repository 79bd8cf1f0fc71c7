// The benchmark's list of parts, its verdict, and what a profile takes from it.
#include "train/bench_links.hpp"

#include <gtest/gtest.h>

namespace headrace::train {
namespace {

TEST(BenchParts, AListNamesThem) {
  const auto parts = parse_parts("nvme,gemm");
  ASSERT_TRUE(parts);
  EXPECT_EQ(*parts, (std::vector<std::string>{"nvme", "gemm"}));
}

TEST(BenchParts, AnUnknownNameIsAUsageErrorThatNamesTheKnown) {
  for (const char* list : {"nvme,disk", "gemm,,nvme", ",", ""}) {
    const auto parts = parse_parts(list);
    ASSERT_FALSE(parts) << list;
    EXPECT_EQ(parts.error().code, ExitCode::kUsage) << list;
  }
  EXPECT_NE(parse_parts("disk").error().hint.find("host-copy"), std::string::npos);
}

plan::MachineProfile measured() {
  plan::MachineProfile machine;
  machine.nvme_mixed_bytes_per_s = 3e9;
  machine.gemm_fp32_flops_per_s = 6e11;
  machine.update_rates["fp32"].update_params_per_s = 2e9;
  return machine;
}

TEST(BenchVerdict, TheSlowestOfAStepIsNamed) {
  const BenchVerdict verdict = judge(measured());
  EXPECT_DOUBLE_EQ(verdict.seconds_per_billion.at("nvme"), 8);
  EXPECT_DOUBLE_EQ(verdict.seconds_per_billion.at("optimizer"), 0.5);
  EXPECT_DOUBLE_EQ(verdict.seconds_per_billion.at("compute"), 5.12);
  EXPECT_EQ(verdict.slowest, "nvme");
  EXPECT_DOUBLE_EQ(verdict.tokens_to_hide_nvme, 800);
}

TEST(BenchVerdict, NothingIsSaidOfWhatWasNotMeasured) {
  plan::MachineProfile machine = measured();
  machine.nvme_mixed_bytes_per_s = 0;
  const BenchVerdict verdict = judge(machine);
  EXPECT_EQ(verdict.slowest, "");
  EXPECT_EQ(verdict.seconds_per_billion.count("nvme"), 0U);
}

TEST(BenchProfile, TakesWhatWasMeasuredAndKeepsTheRest) {
  BenchReport report;
  report.machine = measured();
  plan::MachineProfile profile;
  profile.gemm_fp32_flops_per_s = 1;
  profile.memory_bytes_per_s = 5e9;
  profile.update_rates["bf16"].update_params_per_s = 7;
  take_rates(report, profile);
  EXPECT_EQ(profile.gemm_fp32_flops_per_s, 6e11);
  EXPECT_EQ(profile.memory_bytes_per_s, 5e9);
  EXPECT_EQ(profile.nvme_mixed_bytes_per_s, 3e9);
  EXPECT_EQ(profile.update_rates.at("fp32").update_params_per_s, 2e9);
  EXPECT_EQ(profile.update_rates.at("bf16").update_params_per_s, 7);
}

}  // namespace
}  // namespace headrace::train
