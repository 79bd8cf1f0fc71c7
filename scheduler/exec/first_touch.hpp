// The host arena's first touch over several NUMA nodes: a page that the optimizer updates is made
// by a thread of the node whose part of the tile it is in, so that it lies there.
//
// Invariant: which node that is follows from the plan and the nodes alone, by the cut that
// optim::Threads makes of every tile (optim::part_begin). Threads: the scheduler's, which starts
// its own and waits for them. Failure: none; what nobody touched, the arena brings in itself, and
// what lies elsewhere costs time only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "optim_cpu/nodes.hpp"
#include "optim_cpu/optimizers.hpp"
#include "scheduler/plan/plan.hpp"

namespace headrace::exec {

// The unit that memory comes in: a huge page where an arena may have one.
[[nodiscard]] std::size_t touched_page_bytes(std::size_t arena_bytes);

// The node of each page of the host arena, or kNobodysPage: no update reads its middle.
inline constexpr int kNobodysPage = -1;
[[nodiscard]] std::vector<int> page_nodes(const plan::Plan& plan,
                                          const optim::Optimizer& optimizer,
                                          std::span<const optim::NodeThreads> nodes,
                                          std::size_t page_bytes);

// Brings in the pages that are somebody's.
void touch_pages(std::span<std::byte> arena,
                 std::size_t page_bytes,
                 std::span<const int> page_nodes,
                 std::span<const optim::NodeThreads> nodes);

}  // namespace headrace::exec
