// Every conflict is ordered, and no wait says what another one says.
#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "scheduler/plan/builder.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/test_model.hpp"
#include "scheduler/plan/test_order.hpp"
#include "scheduler/plan/test_support.hpp"

namespace headrace::plan {
namespace {

Program random_program(std::mt19937_64& random, std::size_t count) {
  Program program;
  for (std::size_t i = 0; i < count; ++i) {
    Instruction instruction;
    instruction.queue = static_cast<QueueKind>(random() % 5);
    instruction.lane = static_cast<int>(random() % 3);
    for (std::size_t a = 0; a < 1 + random() % 3; ++a) {
      instruction.accesses.push_back({.buffer = static_cast<int>(random() % 4),
                                      .offset = random() % 8,
                                      .bytes = 1 + random() % 6,
                                      .mode = static_cast<AccessMode>(random() % 3),
                                      .content = 0});
    }
    program.instructions.push_back(instruction);
  }
  return program;
}

TEST(Waits, OrderEveryConflictAndNoneTwice) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Program program = random_program(random, 40);
    // Disjoint, and of every kind of space.
    const std::vector<Buffer> buffers = {
        {.name = "a", .tier = MemoryTier::kHost, .offset = 0, .bytes = 16},
        {.name = "b", .tier = MemoryTier::kHost, .offset = 16, .bytes = 16},
        {.name = "c", .tier = MemoryTier::kDevice, .offset = 0, .bytes = 16},
        {.name = "d", .tier = MemoryTier::kStore, .offset = 0, .bytes = 16}};
    derive_waits(program, buffers);
    const Graph graph(program);
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (conflict(program.instructions[i], program.instructions[j])) {
          ASSERT_TRUE(graph.reach[i][j]) << "seed " << seed << ": " << j << " before " << i;
        }
      }
      std::vector<int>& waits = program.instructions[i].waits;
      if (!waits.empty()) {
        // The last of the waits is needed: without it, something unordered is left.
        const int removed = waits.back();
        waits.pop_back();
        ASSERT_FALSE(Graph(program).reach[i][static_cast<std::size_t>(removed)]) << "seed " << seed;
        waits.push_back(removed);
      }
    }
  }
}

TEST(Plan, ProgramsOrderEveryConflict) {
  for (const bool separate : {false, true}) {
    for (const bool tied : {false, true}) {
      PlanSettings settings = roomy();
      settings.separate_device = separate;
      settings.place = Home::kNvme;
      settings.tile_elements = kBlockElements;
      const ModelSpec model = make_model(96, 3, 700, tied, 2);
      const auto plan = make_plan(model, settings, {});
      ASSERT_TRUE(plan);
      for (const Program* program : programs_of(*plan)) {
        expect_ordered(*program);
      }
    }
  }
}

}  // namespace
}  // namespace headrace::plan
