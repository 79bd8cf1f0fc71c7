// machine.toml: reads back what was written, refuses what is not a profile.
#include "train/machine_file.hpp"

#include <gtest/gtest.h>

#include "scheduler/exec/state_format.hpp"
#include "train/probe.hpp"
#include "train/probe_nvme.hpp"
#include "train/test_folder.hpp"

namespace headrace::train {
namespace {

MachineFile example() {
  MachineFile machine;
  machine.profile.cpu = "A \"quoted\" CPU \\ 3000";
  machine.profile.cores = 16;
  machine.profile.memory_bytes = 67'430'000'000;
  machine.profile.kernel = "6.1.0-18-amd64";
  machine.profile.gemm_fp32_flops_per_s = 1.0 / 3 * 1e12;
  machine.profile.memory_bytes_per_s = 4e10;
  machine.profile.update_rates["fp32"] = {.update_params_per_s = 1.0 / 3 * 1e10};
  machine.profile.update_rates["bf16"] = {.update_params_per_s = 2.0 / 3 * 1e10};
  machine.profile.update_rates["q8"] = {.update_params_per_s = 1.0 / 7 * 1e10,
                                        .update_decoded_params_per_s = 1.0 / 9 * 1e10,
                                        .decode_params_per_s = 1.0 / 11 * 1e10};
  machine.profile.nvme_read_bytes_per_s = 6.9e9;
  machine.profile.nvme_io_depth = 4;
  machine.profile.nvme_request_bytes = std::uint64_t{1} << 20U;
  machine.profile.nvme_capacity_bytes = 2'000'000'000'000;
  machine.nvme_device = "259:1";
  return machine;
}

TEST(MachineFile, ReadsBackBitForBit) {
  const MachineFile before = example();
  const Result<MachineFile> after = machine_from_toml(machine_to_toml(before), "machine.toml");
  ASSERT_TRUE(after) << format_error(after.error(), false);
  EXPECT_EQ(machine_to_toml(*after), machine_to_toml(before));
  EXPECT_EQ(after->profile.cpu, before.profile.cpu);
  EXPECT_EQ(after->profile.gemm_fp32_flops_per_s, before.profile.gemm_fp32_flops_per_s);
  EXPECT_EQ(after->profile.nvme_capacity_bytes, before.profile.nvme_capacity_bytes);
  EXPECT_EQ(after->nvme_device, before.nvme_device);
  for (const auto& [state, rates] : before.profile.update_rates) {
    const plan::UpdateRates& read = after->profile.update_rates.at(state);
    EXPECT_EQ(read.update_params_per_s, rates.update_params_per_s) << state;
    EXPECT_EQ(read.update_decoded_params_per_s, rates.update_decoded_params_per_s) << state;
    EXPECT_EQ(read.decode_params_per_s, rates.decode_params_per_s) << state;
  }
}

// `text` without the keys that schema 4 brought.
std::string as_schema_3(std::string text) {
  for (const char* key : {"adamw_bf16_params_per_s",
                          "adamw_q8_params_per_s",
                          "adamw_q8_decoded_params_per_s",
                          "decode_q8_params_per_s"}) {
    const std::size_t at = text.find(key);
    text.erase(at, text.find('\n', at) + 1 - at);
  }
  return text.replace(text.find("schema = 4"), 10, "schema = 3");
}

TEST(MachineFile, AnOlderSchemaIsReadWithoutTheRatesThatCameLater) {
  const std::string text = as_schema_3(machine_to_toml(example()));
  const Result<MachineFile> machine = machine_from_toml(text, "machine.toml");
  ASSERT_TRUE(machine) << format_error(machine.error(), false);
  EXPECT_EQ(machine->profile.schema, 3);
  EXPECT_EQ(machine->profile.memory_bytes_per_s, 4e10);
  const auto& rates = machine->profile.update_rates;
  EXPECT_EQ(rates.at("fp32").update_params_per_s, 1.0 / 3 * 1e10);
  EXPECT_EQ(rates.count("bf16") + rates.count("q8"), 0U);
}

TEST(MachineFile, TheRatesOfEveryFormatAreNeededInThePresentSchema) {
  std::string text = as_schema_3(machine_to_toml(example()));
  text.replace(text.find("schema = 3"), 10, "schema = 4");
  const Result<MachineFile> machine = machine_from_toml(text, "machine.toml");
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().others.size(), 3U);
}

TEST(MachineFile, RefusesWhatIsNotAProfile) {
  const std::string good = machine_to_toml(example());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::string> bad = {
      "",
      good + "gemm = 1\n",
      replaced("cores = 16", "cores = \"16\""),
      replaced("cores = 16", "cores = -1"),
      replaced("schema = 4", "schema = 2"),
      replaced("schema = 4", "schema = 5"),
      replaced("adamw_bf16_params_per_s = ", "adamw_bf16_params_per_s = -"),
      replaced("adamw_q8_params_per_s = ", "adamw_q8_params_per_s = 0.5 #"),
      replaced("adamw_q8_decoded_params_per_s = ", "adamw_q8_decoded_params_per_s = inf #"),
      replaced("decode_q8_params_per_s = ", "decode_q8_params_per_s = 1e30 #"),
      replaced("nvme_request_bytes = 1048576", "nvme_request_bytes = 1000"),
      replaced("nvme_io_depth = 4", "nvme_io_depth = 4097"),
      replaced("memory_bytes_per_s = ", "memory_bytes_per_s = -"),
      replaced("memory_bytes_per_s = 4", "memory_bytes_per_s = nan #"),
      "schema = \n",
  };
  for (const std::string& text : bad) {
    const Result<MachineFile> machine = machine_from_toml(text, "machine.toml");
    ASSERT_FALSE(machine) << text;
    EXPECT_EQ(machine.error().code, ExitCode::kUsage) << text;
    EXPECT_NE(machine.error().where.find("machine.toml"), std::string::npos) << text;
  }
}

TEST(MachineFile, AllProblemsAreReportedAtOnce) {
  const Result<MachineFile> machine = machine_from_toml("schema = 1\nfoo = 1\nbar = 2\n", "m");
  ASSERT_FALSE(machine);
  EXPECT_GE(machine.error().others.size(), 2U);
}

TEST(MachineFile, TheFingerprintIsComparedWithThisMachine) {
  const Result<plan::MachineProfile> here = this_machine();
  ASSERT_TRUE(here);
  EXPECT_TRUE(fingerprint_differences(*here, *here).empty());
  plan::MachineProfile other = *here;
  other.memory_bytes = here->memory_bytes + here->memory_bytes / 100;
  EXPECT_TRUE(fingerprint_differences(other, *here).empty());
  other.memory_bytes = 2 * here->memory_bytes;
  other.cpu = "another";
  other.cores = here->cores + 1;
  other.kernel = "0";
  EXPECT_EQ(fingerprint_differences(other, *here).size(), 4U);
}

TEST(Probe, EveryRateOfTheMachineIsMeasured) {
  const Result<MachineFile> machine = probe_machine(".");
  ASSERT_TRUE(machine) << format_error(machine.error(), false);
  EXPECT_GT(machine->profile.gemm_fp32_flops_per_s, 0);
  EXPECT_GT(machine->profile.memory_bytes_per_s, 0);
  EXPECT_GT(machine->profile.host_copy_bytes_per_s, 0);
  for (const plan::StateFormat& format : exec::state_formats()) {
    const plan::UpdateRates& rates = machine->profile.update_rates.at(format.name);
    EXPECT_GT(rates.update_params_per_s, 0) << format.name;
    EXPECT_EQ(rates.update_decoded_params_per_s > 0, format.decoded) << format.name;
    EXPECT_EQ(rates.decode_params_per_s > 0, format.decoded) << format.name;
  }
  EXPECT_GT(machine->profile.checksum_bytes_per_s, 0);
}

class ProbeDriveTest : public TestFolder {};

TEST_F(ProbeDriveTest, MeasuresOrSaysWhyNotAndLeavesNothing) {
  const Result<DriveRates> rates = probe_drive(folder_);
  ASSERT_TRUE(rates) << format_error(rates.error(), false);
  EXPECT_GT(rates->capacity_bytes, 0U);
  EXPECT_EQ(rates->read_bytes_per_s > 0, rates->write_bytes_per_s > 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_EQ(existing_parent(path("a/b/c")), folder_);
}

}  // namespace
}  // namespace headrace::train
