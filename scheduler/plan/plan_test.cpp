// The planner's promises: budgets, and the arithmetic of tables and simulated steps.
#include "scheduler/plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/plan/bound.hpp"
#include "scheduler/plan/search.hpp"
#include "scheduler/plan/summary.hpp"
#include "scheduler/plan/test_model.hpp"

namespace headrace::plan {
namespace {

TEST(Plan, BuffersOfATierDoNotOverlapAndFillTheArena) {
  PlanSettings settings = roomy();
  settings.separate_device = true;
  const auto plan = make_plan(make_model(96, 3, 700, true, 3), settings, {});
  ASSERT_TRUE(plan);
  for (const MemoryTier tier : {MemoryTier::kDevice, MemoryTier::kHost}) {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const Buffer& buffer : plan->buffers) {
      if (buffer.tier == tier) {
        EXPECT_EQ(buffer.offset % 4096, 0U);
        ranges.emplace_back(buffer.offset, buffer.offset + buffer.bytes);
      }
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    }
    EXPECT_LE(ranges.back().second,
              tier == MemoryTier::kDevice ? plan->device_arena_bytes : plan->host_arena_bytes);
  }
}

TEST(Plan, MemoryTableAddsUpToTheArenas) {
  for (const bool separate : {false, true}) {
    PlanSettings settings = roomy();
    settings.separate_device = separate;
    const auto plan = make_plan(make_model(96, 3, 700, true, 3), settings, {});
    ASSERT_TRUE(plan);
    std::uint64_t device = 0, host = 0;
    for (const MemoryRow& row : plan->memory) {
      if (row.purpose != "process") {
        device += row.device_bytes;
        host += row.host_bytes;
      }
    }
    EXPECT_EQ(device, plan->device_arena_bytes);
    EXPECT_EQ(host, plan->host_arena_bytes);
  }
}

TEST(Plan, MemoryTableShowsWhatLiesOutsideTheArenas) {
  PlanSettings settings = roomy();
  settings.process_bytes = 12345;
  settings.reserve_bytes = 67890;
  const auto plan = make_plan(make_model(96, 2, 700, true), settings, {});
  ASSERT_TRUE(plan);
  const auto host_bytes = [&plan](const char* purpose) {
    for (const MemoryRow& row : plan->memory) {
      if (row.purpose == purpose) {
        return row.host_bytes;
      }
    }
    return std::uint64_t{0};
  };
  EXPECT_EQ(host_bytes("process"), 12345U);
  EXPECT_EQ(host_bytes("reserve"), 67890U);
}

TEST(Plan, TheSummaryOfAStepAddsUp) {
  const ModelSpec model = make_model(256, 6, 3000, false, 2);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.steps = 10;
  settings.endurance_bytes = 1e12;
  const auto plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  const Prediction& steady = *find_prediction(*plan, "steady");
  const StepSummary step = summarize(model, *plan);
  EXPECT_EQ(step.seconds, steady.seconds);
  EXPECT_EQ(step.tokens, 2 * 2 * 64);
  EXPECT_DOUBLE_EQ(step.tokens_per_s * step.seconds, 256);
  std::uint64_t moved = 0;
  for (const ResourceUse& use : step.resources) {
    EXPECT_DOUBLE_EQ(use.share * step.seconds, use.busy_seconds);
    for (const auto& [link, bytes] : use.bytes) {
      moved += bytes;
    }
  }
  std::uint64_t of_links = 0;
  for (const auto& [link, bytes] : steady.link_bytes) {
    of_links += bytes;
  }
  EXPECT_EQ(moved, of_links);
  const TokenBudget budget = budget_tokens(*plan, step, 1001);
  EXPECT_EQ(budget.steps, 4) << "the last one is whole";
  EXPECT_DOUBLE_EQ(budget.seconds, 4 * step.seconds);
  EXPECT_DOUBLE_EQ(budget.endurance_share,
                   4 * static_cast<double>(plan->written_bytes_per_step) / 1e12);
}

TEST(Plan, MoreHostMemoryNeverMeansMoreBytesOverNvme) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  std::uint64_t before = ~std::uint64_t{0};
  for (const std::size_t mebibytes : {40U, 60U, 80U, 120U, 200U, 400U}) {
    PlanSettings settings = roomy();
    settings.host_memory_bytes = mebibytes << 20;
    const auto plan = make_plan(model, settings, {});
    if (!plan) {
      continue;
    }
    const Prediction* steady = find_prediction(*plan, "steady");
    ASSERT_NE(steady, nullptr);
    std::uint64_t bytes = 0;
    for (const char* link : {"nvme_read", "nvme_write"}) {
      const auto found = steady->link_bytes.find(link);
      bytes += found == steady->link_bytes.end() ? 0 : found->second;
    }
    EXPECT_LE(bytes, before) << mebibytes << " MiB";
    before = bytes;
  }
  EXPECT_EQ(before, 0U) << "everything fits at last";
}

TEST(Plan, FrozenTensorsHaveNoGradientNoStateAndNoWrites) {
  ModelSpec model = make_model(96, 3, 700, false, 1);
  for (TensorSpec& one : model.units[1].tensors) {
    one.frozen = true;
  }
  lay_out(model.units[1]);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  const auto plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->units[1].gradient, -1);
  EXPECT_EQ(plan->units[1].state, -1);
  for (const Program* program : {&plan->compute_held, &plan->drain}) {
    for (const Instruction& instruction : program->instructions) {
      const bool stores = instruction.kind == InstructionKind::kUpdate ||
                          instruction.kind == InstructionKind::kWriteParam ||
                          instruction.kind == InstructionKind::kWriteState;
      EXPECT_FALSE(stores && instruction.unit == 1);
    }
  }
}

TEST(Plan, HeldUpdatesEachTrainableTileOnceBeforeItsFirstUse) {
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.tile_elements = kBlockElements;
  settings.group_size = kBatchMajor;
  const auto plan = make_plan(make_model(96, 3, 700, true, 3), settings, {});
  ASSERT_TRUE(plan);
  std::map<std::pair<int, int>, int> updates;
  std::map<int, bool> used;
  for (const Instruction& instruction : plan->compute_held.instructions) {
    if (instruction.kind == InstructionKind::kUpdate) {
      EXPECT_FALSE(used[instruction.unit] && instruction.unit != 0)
          << "unit " << instruction.unit << " was used before its update";
      updates[{instruction.unit, instruction.index}]++;
    } else if (instruction.kind == InstructionKind::kForward) {
      used[instruction.unit] = true;
    }
  }
  for (std::size_t u = 0; u < plan->units.size(); ++u) {
    for (std::size_t t = 0; t < plan->units[u].tiles.size(); ++t) {
      EXPECT_EQ((updates[{static_cast<int>(u), static_cast<int>(t)}]), 1);
    }
  }
}

TEST(Simulation, ResourcesAreNeverUsedBeyondTheirTime) {
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.separate_device = true;
  MachineProfile machine;
  machine.nvme_read_bytes_per_s = 2e9;
  machine.nvme_write_bytes_per_s = 1e9;
  machine.gemm_fp32_flops_per_s = 1e11;
  const auto plan = make_plan(make_model(256, 6, 3000, false, 2), settings, machine);
  ASSERT_TRUE(plan);
  for (const Prediction& prediction : plan->predictions) {
    EXPECT_GE(prediction.seconds, prediction.bound_seconds * (1 - 1e-9)) << prediction.variant;
    for (const auto& [resource, seconds] : prediction.busy_seconds) {
      EXPECT_LE(seconds, prediction.seconds * (1 + 1e-9)) << prediction.variant << " " << resource;
    }
  }
}

TEST(Simulation, TheSlowestLinkDecides) {
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e15;
  machine.memory_bytes_per_s = 1e13;
  machine.update_rates["fp32"].update_params_per_s = 1e13;
  machine.nvme_read_bytes_per_s = machine.nvme_write_bytes_per_s = 1e6;
  const auto plan = make_plan(make_model(256, 6, 3000, false, 1), settings, machine);
  ASSERT_TRUE(plan);
  const Prediction* steady = find_prediction(*plan, "steady");
  const double transfer_seconds = static_cast<double>(steady->link_bytes.at("nvme_read") +
                                                      steady->link_bytes.at("nvme_write")) /
                                  1e6;
  EXPECT_NEAR(steady->busy_seconds.at("nvme"), transfer_seconds, 1e-3 * transfer_seconds);
  EXPECT_LE(steady->bound_seconds, transfer_seconds);
  EXPECT_LT(steady->seconds, 1.05 * transfer_seconds);
}

// A model whose state streams, on a drive that takes as long as the cores do: then the order of
// updates counts most.
struct Balanced {
  ModelSpec model = make_model(256, 12, 500, true);
  PlanSettings settings = roomy();
  MachineProfile machine;

  Balanced() {
    settings.place = Home::kNvme;
    settings.update = Update::kHeld;
    settings.host_memory_bytes = smallest(model, settings).host_arena_bytes * 5 / 4;
    machine.gemm_fp32_flops_per_s = 1e12;
    machine.memory_bytes_per_s = 1e11;
    machine.nvme_read_bytes_per_s = machine.nvme_write_bytes_per_s = 1e9;
    machine.nvme_mixed_bytes_per_s = 1e9;
    const auto plan = make_plan(model, settings, machine);
    const ResourceSeconds asked = bound_of(model, settings, machine, *plan).placed.seconds;
    for (double* rate : {&machine.nvme_read_bytes_per_s,
                         &machine.nvme_write_bytes_per_s,
                         &machine.nvme_mixed_bytes_per_s}) {
      *rate *= asked.nvme / asked.cores;
    }
    settings.update.reset();
  }

  [[nodiscard]] Plan plan() const { return *make_plan(model, settings, machine); }
};

double steady_seconds(const Plan& plan) {
  return find_prediction(plan, "steady")->seconds;
}

bool has_note(const Plan& plan, const char* words) {
  return std::any_of(plan.notes.begin(), plan.notes.end(), [words](const std::string& note) {
    return note.find(words) != std::string::npos;
  });
}

TEST(Plan, UpdatesAreSpeculatedWhereThatPaysAndTheDriveHasRoom) {
  Balanced one;
  const Plan open = one.plan();
  EXPECT_EQ(open.update, Update::kSpeculative);
  EXPECT_TRUE(has_note(open, "updates are speculated"));
  one.settings.undo_slot = true;  // of a store that is there
  EXPECT_EQ(one.plan().update, Update::kSpeculative);
  EXPECT_FALSE(has_note(one.plan(), "updates are speculated")) << "it takes nothing";
  one.settings.undo_slot = false;
  EXPECT_EQ(one.plan().update, Update::kHeld);
  one.settings.undo_slot.reset();
  one.settings.nvme_room_bytes = open.nvme_bytes;
  EXPECT_EQ(one.plan().update, Update::kSpeculative);
  --*one.settings.nvme_room_bytes;
  const Plan narrow = one.plan();
  EXPECT_EQ(narrow.update, Update::kHeld);
  EXPECT_TRUE(has_note(narrow, "no room for it"));
  EXPECT_LT(steady_seconds(open), 0.95 * steady_seconds(narrow));
  one.settings.nvme_room_bytes.reset();
  one.settings.commit_interval.steps = 1;
  EXPECT_EQ(one.plan().update, Update::kHeld) << "no step of it would be speculated";
}

TEST(Plan, ItsTextIsAHundredColumnsWide) {
  for (const bool separate : {false, true}) {
    PlanSettings settings = roomy();
    settings.separate_device = separate;
    settings.place = Home::kNvme;
    settings.steps = 100000;
    settings.format = q8_format();
    const ModelSpec model = make_model(256, 6, 3000, false, 2);
    const auto plan = make_plan(model, settings, {});
    ASSERT_TRUE(plan);
    std::istringstream lines(format_plan(*plan, model, settings, 10'000'000'000));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 100U) << line;
    }
  }
}

}  // namespace
}  // namespace headrace::plan
