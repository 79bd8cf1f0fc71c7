// machine.toml: reads back what was written, refuses what is not a profile.
#include "train/machine_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

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
  for (auto& of_pass : machine.profile.gemm) {
    for (plan::SizedRates& rates : of_pass) {
      rates = {.sizes = {16, 256}, .rates = {1.0 / 3 * 1e11, 2.0 / 3 * 1e11}};
    }
  }
  machine.profile.gemm[2][1].rates = {1.0 / 7 * 1e11, 0};
  machine.profile.attention_forward = {.sizes = {64}, .rates = {1.0 / 9 * 1e11}};
  machine.profile.attention_backward = {.sizes = {64}, .rates = {1.0 / 11 * 1e11}};
  machine.profile.elements_per_s.fill(1.0 / 3 * 1e9);
  machine.profile.operation_s = 1.0 / 3 * 1e-4;
  machine.profile.nvme_beside_update = 1.0 / 3;
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
  EXPECT_EQ(after->profile.gemm[2][1].sizes, before.profile.gemm[2][1].sizes);
  EXPECT_EQ(after->profile.gemm[2][1].rates, before.profile.gemm[2][1].rates);
  EXPECT_EQ(after->profile.attention_backward.sizes, before.profile.attention_backward.sizes);
  EXPECT_EQ(after->profile.attention_backward.rates, before.profile.attention_backward.rates);
  EXPECT_EQ(after->profile.elements_per_s, before.profile.elements_per_s);
  EXPECT_EQ(after->profile.operation_s, before.profile.operation_s);
  EXPECT_EQ(after->profile.nvme_beside_update, before.profile.nvme_beside_update);
  for (const auto& [state, rates] : before.profile.update_rates) {
    const plan::UpdateRates& read = after->profile.update_rates.at(state);
    EXPECT_EQ(read.update_params_per_s, rates.update_params_per_s) << state;
    EXPECT_EQ(read.update_decoded_params_per_s, rates.update_decoded_params_per_s) << state;
    EXPECT_EQ(read.decode_params_per_s, rates.decode_params_per_s) << state;
  }
}

// `text` without the lines of keys that begin so.
std::string without(const std::string& text, const std::vector<std::string>& beginnings) {
  std::istringstream lines(text);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const bool drop = std::any_of(beginnings.begin(), beginnings.end(), [&](const auto& beginning) {
      return line.rfind(beginning, 0) == 0;
    });
    kept += drop ? "" : line + "\n";
  }
  return kept;
}

// What schemas 4 and 5 brought.
std::string as_schema_4(const std::string& text) {
  std::vector<std::string> keys = {
      "gemm_rows",         "gemm_forward",   "gemm_input",    "gemm_weight",
      "attention",         "operation_s",    "collect",       "nvme_mixed_reads",
      "nvme_mixed_writes", "compute_beside", "update_beside", "nvme_beside",
      "copy_beside",       "add_",           "norm_",         "gelu_",
      "swiglu_",           "rotate_",        "column_sum_",   "softmax_"};
  std::string older = without(text, keys);
  return older.replace(older.find("schema = 5"), 10, "schema = 4");
}

std::string as_schema_3(const std::string& text) {
  std::string older = without(as_schema_4(text), {"adamw_bf16", "adamw_q8", "decode_q8"});
  return older.replace(older.find("schema = 4"), 10, "schema = 3");
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

TEST(MachineFile, ASchemaWithoutRatesOfWorkIsReadAndLacksThem) {
  const Result<MachineFile> machine =
      machine_from_toml(as_schema_4(machine_to_toml(example())), "machine.toml");
  ASSERT_TRUE(machine) << format_error(machine.error(), false);
  EXPECT_TRUE(lacks_rates(*machine));
  EXPECT_TRUE(machine->profile.gemm[0][0].rates.empty());
  EXPECT_EQ(machine->profile.operation_s, 0);
  EXPECT_EQ(machine->profile.gemm_fp32_flops_per_s, 1.0 / 3 * 1e12);
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
      replaced("schema = 5", "schema = 2"),
      replaced("schema = 5", "schema = 6"),
      replaced("gemm_rows = [16.0, 256.0]", "gemm_rows = [16.0]"),
      replaced("gemm_rows = [16.0, 256.0]", "gemm_rows = [256.0, 16.0]"),
      replaced("gemm_weight_in_out_flops_per_s = [", "gemm_weight_in_out_flops_per_s = [-"),
      replaced("gemm_input_in_out_flops_per_s = [", "gemm_input_in_out_flops_per_s = [0.5, "),
      replaced("attention_tokens = [64.0]", "attention_tokens = 64.0"),
      replaced("operation_s = ", "operation_s = 2.0 # "),
      replaced("nvme_beside_update = ", "nvme_beside_update = 1.5 # "),
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
  for (const auto& of_pass : machine->profile.gemm) {
    for (const plan::SizedRates& rates : of_pass) {
      EXPECT_GT(*std::min_element(rates.rates.begin(), rates.rates.end()), 0);
    }
  }
  EXPECT_GT(machine->profile.attention_forward.rates.back(), 0);
  EXPECT_GT(machine->profile.attention_backward.rates.back(), 0);
  const auto& elements = machine->profile.elements_per_s;
  EXPECT_GT(*std::min_element(elements.begin(), elements.end()), 0);
  EXPECT_GT(machine->profile.operation_s, 0);
  EXPECT_GT(machine->profile.collect_params_per_s, 0);
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
