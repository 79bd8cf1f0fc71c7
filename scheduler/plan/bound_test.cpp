// The bounds in cases small enough to know them: what must cross each link, what a drive can do
// with reads and writes together, and that the order of updates shows where it must.
#include "scheduler/plan/bound.hpp"

#include <gtest/gtest.h>

#include <random>

#include "scheduler/plan/random_case.hpp"
#include "scheduler/plan/search.hpp"
#include "scheduler/plan/test_support.hpp"

namespace headrace::plan {
namespace {

// Reads at 3, writes at 1, half of each together at 2: one byte of each takes one second.
MachineProfile drive() {
  MachineProfile machine;
  machine.nvme_read_bytes_per_s = 3;
  machine.nvme_write_bytes_per_s = 1;
  machine.nvme_mixed_bytes_per_s = 2;
  return machine;
}

TEST(Bounds, ADriveIsNoFasterThanTheMixturesThatWereMeasured) {
  const MachineProfile machine = drive();
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(machine, 3, 0), 1);
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(machine, 0, 1), 1);
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(machine, 1, 1), 1);
  // Half of each for as long as there are writes, then reads alone.
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(machine, 4, 1), 2);
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(machine, 0, 0), 0);
  MachineProfile better = machine;
  better.nvme_mixed_reads_bytes_per_s = 4;  // three read and one written
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(better, 3, 1), 1);
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(better, 1, 1), 1);
  MachineProfile worse = machine;
  worse.nvme_mixed_reads_bytes_per_s = 0.1;  // then it is not used
  EXPECT_DOUBLE_EQ(mixed_nvme_seconds(worse, 4, 1), 2);
  EXPECT_EQ(mixed_nvme_seconds({}, 5, 5), 0);
}

// Plans over random cases that stream all of their state, nothing frozen.
std::optional<Plan> streamed(RandomCase& one, Update update) {
  for (UnitSpec& unit : one.model.units) {
    for (TensorSpec& tensor : unit.tensors) {
      tensor.frozen = false;
    }
  }
  one.settings = ample(one.settings);
  one.settings.place = Home::kNvme;
  one.settings.update = update;
  auto plan = make_plan(one.model, one.settings, one.machine);
  return plan ? std::optional(std::move(*plan)) : std::nullopt;
}

// Bytes of all extents, or of those that are not in memory.
double extents_of(const Plan& plan, bool all) {
  double bytes = 0;
  for (const UnitPlan& unit : plan.units) {
    for (std::size_t t = 0; t < unit.tiles.size(); ++t) {
      for (const TilePlace& extent : {unit.param[t], unit.state_of[t]}) {
        bytes += all || extent.buffer < 0 ? static_cast<double>(extent.bytes) : 0.0;
      }
    }
  }
  return bytes;
}

TEST(Bounds, StateThatIsNotInMemoryIsReadAndWrittenOnceAStep) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 20; ++i) {
    RandomCase one = random_case(random);
    const auto plan = streamed(one, Update::kHeld);
    ASSERT_TRUE(plan) << describe(one);
    const Bound bound = bound_of(one.model, one.settings, one.machine, *plan);
    const double streams = extents_of(*plan, false);
    EXPECT_EQ(bound.state_bytes, extents_of(*plan, true)) << describe(one);
    EXPECT_EQ(bound.resident_bytes, bound.state_bytes - streams) << describe(one);
    EXPECT_EQ(bound.placed.bytes.nvme_write, streams) << describe(one);
    EXPECT_GE(bound.placed.bytes.nvme_read, streams) << describe(one);
    EXPECT_EQ(bound.budget.bytes.nvme_write, 0) << "the budgets would hold it all";
    const Bound commit = bound_of(one.model, one.settings, one.machine, *plan, "commit");
    EXPECT_EQ(commit.placed.bytes.nvme_write, streams + bound.state_bytes) << describe(one);
    const Bound skipped = bound_of(one.model, one.settings, one.machine, *plan, "skipped");
    EXPECT_EQ(skipped.placed.bytes.nvme_write, 0) << describe(one);
  }
}

TEST(Bounds, AnOrderOfUpdatesIsBoundByNoLessThanAnyAndByTwoPhasesAtMost) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 20; ++i) {
    RandomCase one = random_case(random, 4);
    one.machine = {};
    one.settings.separate_device = false;
    one.settings.nvme_read_cap.reset();
    one.settings.nvme_write_cap.reset();
    one.machine.gemm_fp32_flops_per_s = 1e9;
    for (const Update update : {Update::kHeld, Update::kAfterBackward}) {
      const auto plan = streamed(one, update);
      ASSERT_TRUE(plan) << describe(one);
      const Bound bound = bound_of(one.model, one.settings, one.machine, *plan);
      const double largest = bound.placed.seconds.largest();
      EXPECT_GE(bound.held_seconds, largest) << describe(one);
      EXPECT_GE(bound.after_backward_seconds, largest) << describe(one);
      EXPECT_EQ(bound.order_seconds,
                update == Update::kHeld ? bound.held_seconds : bound.after_backward_seconds);
      if (update == Update::kHeld) {  // two phases, each no longer than all of it
        EXPECT_LE(bound.order_seconds, 2 * largest * (1 + 1e-9)) << describe(one);
      }
    }
  }
}

// A drive that needs for its bytes just what the cores need for their work: without an order both
// could be busy all the time. With one, the drive has little to do while backward passes.
TEST(Bounds, AnOrderLeavesSomethingOnTheTableWhereTheDriveIsAsSlowAsTheCores) {
  std::mt19937_64 random(test_seed());
  int dearer = 0;
  for (int i = 0; i < 20; ++i) {
    RandomCase one = random_case(random, 24);
    one.machine = {};
    one.settings.separate_device = false;
    one.settings.nvme_read_cap.reset();
    one.settings.nvme_write_cap.reset();
    one.machine.gemm_fp32_flops_per_s = 2e9;  // kernels take longer than updates
    // Little memory that could hold state for later.
    one.model.micro_batch = one.model.accumulate = 1;
    one.model.seq_len = 4;
    for (UnitSpec& unit : one.model.units) {
      unit.cost.forward_workspace_bytes = unit.cost.backward_workspace_bytes = 4096;
      unit.cost.saved_bytes = 4096;
    }
    one.settings.grad = Dtype::kBf16;
    one.settings.format = {};
    one.settings.place = Home::kNvme;
    one.settings.lookahead = 1;
    one.settings.tile_elements = kBlockElements;
    one.settings.update = Update::kHeld;
    one.settings.host_memory_bytes = smallest(one.model, one.settings).host_arena_bytes;
    const auto plan = make_plan(one.model, one.settings, one.machine);
    ASSERT_TRUE(plan) << describe(one);
    const Bound any = bound_of(one.model, one.settings, one.machine, *plan);
    one.machine.nvme_read_bytes_per_s = any.placed.bytes.nvme_read / any.placed.seconds.cores;
    one.machine.nvme_write_bytes_per_s = any.placed.bytes.nvme_write / any.placed.seconds.cores;
    const Bound bound = bound_of(one.model, one.settings, one.machine, *plan);
    EXPECT_NEAR(bound.placed.seconds.nvme, bound.placed.seconds.cores, 1e-6) << describe(one);
    dearer += bound.held_seconds > 1.05 * bound.placed.seconds.largest() ? 1 : 0;
  }
  EXPECT_GT(dearer, 0);
}

}  // namespace
}  // namespace headrace::plan
