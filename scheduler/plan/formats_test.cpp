// What a state format means for bytes, memory and times of a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/test_model.hpp"
#include "scheduler/plan/test_order.hpp"

namespace headrace::plan {
namespace {

std::uint64_t bytes_over(const Plan& plan, const char* variant, const char* link) {
  const Prediction* prediction = find_prediction(plan, variant);
  const auto found = prediction->link_bytes.find(link);
  return found == prediction->link_bytes.end() ? 0 : found->second;
}

// On the drive an update reads and writes both extents of every tile once; the table and a commit
// of what is in memory say the same bytes.
TEST(Formats, BytesOnTheDriveAndOfACommitAreThoseOfTheExtents) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    std::int64_t elements = 0;
    PlanSettings settings = roomy();
    settings.format = format;
    settings.place = Home::kNvme;
    settings.update = Update::kAfterBackward;
    const auto streamed = make_plan(model, settings, {});
    ASSERT_TRUE(streamed);
    std::uint64_t extents = 0;
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      elements += model.units[u].elements;
      for (const TileSpec& tile : streamed->units[u].tiles) {
        extents += format.param_extent_bytes(tile) + format.state_extent_bytes(tile);
        EXPECT_EQ(format.state_extent_bytes(tile) % 4096, 0U);
      }
    }
    EXPECT_EQ(streamed->nvme_bytes, extents) << format.name;
    EXPECT_EQ(bytes_over(*streamed, "steady", "nvme_write"), extents) << format.name;
    const double expected = format.bytes_per_parameter() * static_cast<double>(elements);
    EXPECT_NEAR(static_cast<double>(extents), expected, 0.01 * expected) << format.name;
    EXPECT_EQ(streamed->written_bytes_per_step, extents) << format.name;

    settings.place = Home::kHost;
    const auto held = make_plan(model, settings, {});
    ASSERT_TRUE(held);
    EXPECT_EQ(bytes_over(*held, "steady", "nvme_write"), 0U);
    EXPECT_EQ(bytes_over(*held, "commit", "commit"), extents) << format.name;
  }
}

// The work of optimizer instructions of a program, and what the plan says that it takes.
struct OptimizerWork {
  double updated = 0, updated_decoded = 0, decoded = 0;  // elements
  double update_seconds = 0, decode_seconds = 0;
};

OptimizerWork optimizer_work(const Program& program) {
  OptimizerWork work;
  for (const Instruction& instruction : program.instructions) {
    const auto elements = static_cast<double>(instruction.elements);
    if (instruction.kind == InstructionKind::kUpdate) {
      const bool decodes = instruction.accesses[3].buffer >= 0;
      (decodes ? work.updated_decoded : work.updated) += elements;
      work.update_seconds += instruction.seconds;
    } else if (instruction.kind == InstructionKind::kDecode) {
      work.decoded += elements;
      work.decode_seconds += instruction.seconds;
    }
  }
  return work;
}

MachineProfile machine_of_rates() {
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e12;
  for (auto& of_pass : machine.gemm) {
    of_pass.fill({.sizes = {64}, .rates = {1e12}});
  }
  machine.memory_bytes_per_s = 20e9;
  machine.update_rates["fp32"] = {.update_params_per_s = 1e6};
  machine.update_rates["bf16"] = {.update_params_per_s = 2e6};
  machine.update_rates["q8"] = {.update_params_per_s = 0.5e6,
                                .update_decoded_params_per_s = 0.25e6,
                                .decode_params_per_s = 4e6};
  return machine;
}

// Slow updates, so that they decide the step: the simulated time follows the format's own rate.
TEST(Prices, UpdatesTakeTheTimeOfTheRunsFormat) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  const MachineProfile machine = machine_of_rates();
  PlanSettings settings = roomy();
  settings.place = Home::kHost;
  settings.update = Update::kAfterBackward;
  std::map<std::string, double> steady;
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    settings.format = format;
    const auto plan = make_plan(model, settings, machine);
    ASSERT_TRUE(plan);
    const OptimizerWork work = optimizer_work(plan->drain);
    const double elements = work.updated + work.updated_decoded;
    EXPECT_GE(elements, static_cast<double>(model.trainable_parameters())) << format.name;
    const UpdateRates& rates = machine.update_rates.at(format.name);
    double expected = work.updated / rates.update_params_per_s;
    if (format.decoded) {
      expected += work.updated_decoded / rates.update_decoded_params_per_s;
    }
    EXPECT_NEAR(work.update_seconds, expected, 1e-9 * expected) << format.name;
    const Prediction* prediction = find_prediction(*plan, "steady");
    EXPECT_GE(prediction->busy_seconds.at("cores"), expected) << format.name;
    steady[format.name] = prediction->seconds;
    EXPECT_TRUE(plan->notes.empty()) << plan->notes.front();
  }
  EXPECT_NEAR(steady["fp32"] / steady["bf16"], 2, 0.1);
  EXPECT_GT(steady["q8"], 1.9 * steady["fp32"]);
}

// With held updates weights are wanted as floats at once: the update's rate is another one. What
// is used without being updated is decoded, at its own.
TEST(Prices, DecodingTakesItsOwnTime) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  const MachineProfile machine = machine_of_rates();
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.update = Update::kHeld;
  settings.format = q8_format();
  const auto plan = make_plan(model, settings, machine);
  ASSERT_TRUE(plan);
  const OptimizerWork held = optimizer_work(plan->compute_held);
  EXPECT_GT(held.updated_decoded, 0);
  const double expected = held.updated / 0.5e6 + held.updated_decoded / 0.25e6;
  EXPECT_NEAR(held.update_seconds, expected, 1e-9 * expected);
  const OptimizerWork evaluation = optimizer_work(plan->evaluation);
  EXPECT_GT(evaluation.decoded, 0);
  EXPECT_NEAR(evaluation.decode_seconds, evaluation.decoded / 4e6, 1e-9);
  const OptimizerWork drain = optimizer_work(plan->drain);
  EXPECT_EQ(drain.updated_decoded, 0) << "nothing reads what the drain updates";
}

// An older profile: all goes at the rate of "fp32", plus what memory takes for floats; it is said.
TEST(Prices, RatesThatWereNotMeasuredAreStoodInForAndNamed) {
  MachineProfile machine = machine_of_rates();
  machine.update_rates.erase("bf16");
  machine.update_rates.erase("q8");
  const UpdateRates bf16 = update_rates(machine, bf16_format());
  EXPECT_EQ(bf16.update_params_per_s, 1e6);
  const UpdateRates q8 = update_rates(machine, q8_format());
  EXPECT_EQ(q8.update_params_per_s, 1e6);
  EXPECT_DOUBLE_EQ(1 / q8.update_decoded_params_per_s, 1 / 1e6 + 4 / 20e9);
  EXPECT_EQ(q8.decode_params_per_s, 1e6);
  EXPECT_TRUE(missing_update_rates(machine, StateFormat{}).empty());
  EXPECT_EQ(missing_update_rates(machine, bf16_format()).size(), 1U);
  EXPECT_EQ(missing_update_rates(machine, q8_format()).size(), 2U);
  PlanSettings settings = roomy();
  settings.format = q8_format();
  const ModelSpec model = make_model(256, 2, 3000, false, 1);
  const auto plan = make_plan(model, settings, machine);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->notes.size(), 2U);
  EXPECT_NE(plan->notes.front().find("as in \"fp32\""), std::string::npos);
  const std::string table = format_plan(*plan, model, settings);
  EXPECT_NE(table.find("state \"q8\": 1.0 M parameters/s; "), std::string::npos) << table;
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    const UpdateRates guessed = update_rates({}, format);
    EXPECT_GT(guessed.update_params_per_s, 0);
    EXPECT_GT(guessed.update_decoded_params_per_s, 0);
    EXPECT_GT(guessed.decode_params_per_s, 0);
  }
}

// Weights that are decoded cross the link to the device as floats, and are read from both extents.
TEST(Formats, DecodedWeightsAreReadFromBothExtents) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.separate_device = true;
  settings.place = Home::kNvme;
  const auto fp32 = make_plan(model, settings, {});
  settings.format = q8_format();
  const auto q8 = make_plan(model, settings, {});
  ASSERT_TRUE(fp32 && q8);
  EXPECT_EQ(bytes_over(*q8, "steady", "h2d"), bytes_over(*fp32, "steady", "h2d"));
  const auto extents = static_cast<double>(q8->nvme_bytes);
  EXPECT_GE(static_cast<double>(bytes_over(*q8, "evaluation", "nvme_read")), 0.1 * extents);
  for (const Program* program : {&q8->compute, &q8->compute_held, &q8->drain, &q8->evaluation}) {
    expect_ordered(*program);
  }
}

// With all state in host memory, the arena that one format needs is more than the next one can do
// with: floats are kept beside what they are decoded from only where there is room.
TEST(Formats, FewerBytesNeedLessMemory) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.place = Home::kHost;
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    settings.format = format;
    const auto plan = make_plan(model, settings, {});
    ASSERT_TRUE(plan) << format.name;
    settings.host_memory_bytes = plan->host_arena_bytes - (std::size_t{1} << 20);
    if (format.decoded) {
      EXPECT_TRUE(std::any_of(plan->units.begin(), plan->units.end(), [](const UnitPlan& unit) {
        return !unit.pinned;
      }));
    }
  }
}

TEST(Formats, FrozenTilesAreFloatsWithoutState) {
  const TileSpec frozen{.begin = 0, .elements = 4 * kPageElements, .frozen = true};
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    EXPECT_EQ(format.param_extent_bytes(frozen), 16U * kPageElements);
    EXPECT_EQ(format.state_extent_bytes(frozen), 0U);
    EXPECT_FALSE(format.decodes(frozen));
  }
}

}  // namespace
}  // namespace headrace::plan
