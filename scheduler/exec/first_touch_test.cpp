// Which node brings in which page of the host arena, and that the rest of the arena is none's.
#include "scheduler/exec/first_touch.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tiers/memory.hpp"

namespace headrace::exec {
namespace {

using optim::NodeThreads;

constexpr std::size_t kPage = 4096;
constexpr std::int64_t kTile = 4096;  // elements: four pages a plane of floats

plan::Access access(int buffer, std::size_t offset, std::size_t pages) {
  return {.buffer = buffer, .offset = offset * kPage, .bytes = pages * kPage};
}

plan::Instruction update(std::int64_t elements, std::vector<plan::Access> accesses) {
  plan::Instruction instruction;
  instruction.kind = plan::InstructionKind::kUpdate;
  instruction.elements = elements;
  instruction.accesses = std::move(accesses);
  return instruction;
}

// 3 pages of something else; parameters, state (m, v) and gradient of two tiles; memory of a
// device.
plan::Plan small_plan() {
  plan::Plan plan;
  plan.host_arena_bytes = 35 * kPage;
  const auto add = [&](plan::MemoryTier tier, std::size_t page, std::size_t pages) {
    plan.buffers.push_back(
        {.name = "buffer", .tier = tier, .offset = page * kPage, .bytes = pages * kPage});
  };
  add(plan::MemoryTier::kHost, 0, 3);
  add(plan::MemoryTier::kHost, 3, 8);
  add(plan::MemoryTier::kHost, 11, 16);
  add(plan::MemoryTier::kHost, 27, 8);
  add(plan::MemoryTier::kDevice, 0, 3);
  for (const std::size_t tile : {0U, 1U}) {
    plan.drain.instructions.push_back(update(
        kTile, {access(1, 4 * tile, 4), access(2, 8 * tile, 8), access(3, 4 * tile, 4), {}}));
  }
  plan.drain.instructions.push_back(update(kTile, {access(4, 0, 3), {}, {}, {}}));
  return plan;
}

const optim::Optimizer& fp32() {
  return *optim::find_optimizer("adamw", "fp32");
}

std::vector<NodeThreads> nodes_of(const std::vector<int>& threads) {
  const auto own = optim::CoreMask::of_this_thread();
  std::vector<NodeThreads> nodes;
  nodes.reserve(threads.size());
  for (const int count : threads) {
    nodes.push_back({.cores = own->cores(), .threads = count});
  }
  return nodes;
}

TEST(FirstTouch, EveryPlaneOfATileIsCutAsItsWorkIs) {
  const plan::Plan plan = small_plan();
  std::vector<int> expected(3, kNobodysPage);
  for (int plane = 0; plane < 8; ++plane) {
    expected.insert(expected.end(), {0, 0, 1, 1});
  }
  EXPECT_EQ(page_nodes(plan, fp32(), nodes_of({2, 2}), kPage), expected);
  expected.resize(3);
  for (int plane = 0; plane < 8; ++plane) {
    expected.insert(expected.end(), {0, 1, 2, 3});
  }
  EXPECT_EQ(page_nodes(plan, fp32(), nodes_of({1, 1, 1, 1}), kPage), expected);
  expected.resize(3);
  for (int plane = 0; plane < 8; ++plane) {
    expected.insert(expected.end(), {0, 1, 1, 1});
  }
  EXPECT_EQ(page_nodes(plan, fp32(), nodes_of({1, 3}), kPage), expected);
}

// 32 pages of tiles behind 3 of something else: large pages hold ends of several planes.
TEST(FirstTouch, APageLargerThanAPlaneHasOneNode) {
  const plan::Plan plan = small_plan();
  const std::vector<int> nodes = page_nodes(plan, fp32(), nodes_of({1, 1}), 8 * kPage);
  // Their middles are pages 4, 12, 20, 28: the second pages of planes.
  EXPECT_EQ(nodes, (std::vector<int>{0, 0, 0, 0, kNobodysPage}));
  EXPECT_EQ(touched_page_bytes(kPage), kPage);
  EXPECT_EQ(touched_page_bytes(std::size_t{64} << 20U), std::size_t{2} << 20U);
}

TEST(FirstTouch, APlanWithoutUpdatesHasNobodysPages) {
  plan::Plan plan = small_plan();
  plan.drain.instructions.clear();
  EXPECT_EQ(page_nodes(plan, fp32(), nodes_of({1, 1}), kPage), std::vector<int>(35, kNobodysPage));
}

TEST(FirstTouch, AnArenaIsWholeWhoeverTouchedIt) {
  const plan::Plan plan = small_plan();
  const std::vector<NodeThreads> nodes = nodes_of({2, 3});
  const std::vector<int> owners = page_nodes(plan, fp32(), nodes, kPage);
  int calls = 0;
  const auto arena = tiers::Arena::create(
      tiers::Tier::kHost, "touched", plan.host_arena_bytes, {}, [&](std::span<std::byte> memory) {
        ++calls;
        EXPECT_EQ(memory.size(), plan.host_arena_bytes);
        touch_pages(memory, kPage, owners, nodes);
      });
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ(calls, 1);
  for (std::size_t i = 0; i < plan.host_arena_bytes; ++i) {
    ASSERT_EQ((*arena)->data()[i], std::byte{0});
  }
}

}  // namespace
}  // namespace headrace::exec
