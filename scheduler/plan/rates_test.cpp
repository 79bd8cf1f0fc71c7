// Rates between those measured, and what work takes.
#include "scheduler/plan/rates.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace headrace::plan {
namespace {

TEST(RateAt, IsTheMeasuredOneThereAndLogarithmicInBetween) {
  const SizedRates rates{.sizes = {16, 64, 1024}, .rates = {1e9, 4e9, 8e9}};
  EXPECT_DOUBLE_EQ(rate_at(rates, 16), 1e9);
  EXPECT_DOUBLE_EQ(rate_at(rates, 64), 4e9);
  EXPECT_NEAR(rate_at(rates, 32), 2e9, 1);
  EXPECT_NEAR(rate_at(rates, 256), 4e9 * std::sqrt(2.0), 1);
}

TEST(RateAt, IsThatOfTheNearestBeyondTheEnds) {
  const SizedRates rates{.sizes = {16, 64}, .rates = {1e9, 4e9}};
  EXPECT_EQ(rate_at(rates, 1), 1e9);
  EXPECT_EQ(rate_at(rates, 1e6), 4e9);
  EXPECT_EQ(rate_at({}, 64), 0);
}

TEST(RateAt, AGapTakesTheNeighboursRate) {
  const SizedRates rates{.sizes = {16, 64}, .rates = {0, 4e9}};
  EXPECT_EQ(rate_at(rates, 32), 4e9);
}

MachineProfile machine_of_rates() {
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e12;
  machine.gemm[static_cast<std::size_t>(ProductPass::kInput)]
              [static_cast<std::size_t>(WeightLayout::kInOut)] = {.sizes = {64}, .rates = {1e9}};
  machine.attention_forward = {.sizes = {64}, .rates = {1e8}};
  machine.elements_per_s[static_cast<std::size_t>(ElementOperation::kGelu)] = 1e6;
  machine.operation_s = 1e-3;
  return machine;
}

TEST(WorkSeconds, EveryKindGoesAtItsOwnRate) {
  Work work;
  work.add(Product{.pass = ProductPass::kInput,
                   .layout = WeightLayout::kInOut,
                   .rows = 10,
                   .inputs = 100,
                   .outputs = 1000});
  EXPECT_NEAR(seconds_of(work, machine_of_rates()), 2e6 / 1e9 + 1e-3, 1e-12);
  work.sequence = 64;
  work.attention_forward_flops = 1e6;
  work.add(ElementOperation::kGelu, 500);
  EXPECT_NEAR(seconds_of(work, machine_of_rates()), 2e-3 + 1e-2 + 5e-4 + 2e-3, 1e-12);
}

TEST(WorkSeconds, WhatWasNotMeasuredGoesAtTheRateOfTheOneGemmOrOfMemory) {
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e12;
  machine.memory_bytes_per_s = 1e10;
  Work work;
  work.add(Product{.rows = 1000, .inputs = 1000, .outputs = 500});
  EXPECT_NEAR(seconds_of(work, machine), 1e-3, 1e-12);
  work.attention_backward_flops = 1e9;
  EXPECT_NEAR(seconds_of(work, machine), 2e-3, 1e-12);
  work.add(ElementOperation::kColumnSum, 1e6);  // reads 4 bytes of each
  EXPECT_NEAR(seconds_of(work, machine), 2e-3 + 4e6 / 1e10, 1e-12);
  EXPECT_NE(missing_compute_rates(machine), "");
}

}  // namespace
}  // namespace headrace::plan
