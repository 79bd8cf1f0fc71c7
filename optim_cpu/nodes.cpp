// See nodes.hpp.
#include "optim_cpu/nodes.hpp"

#include <sched.h>

#include <algorithm>

#include "core/assert.hpp"

namespace headrace::optim {

std::vector<NodeThreads> share_threads(int count, std::span<const NodeCores> nodes) {
  HEADRACE_ASSERT(count > 0, "a number of threads");
  std::int64_t cores = 0;
  for (const NodeCores& node : nodes) {
    cores += static_cast<std::int64_t>(node.size());
  }
  std::vector<NodeThreads> shares;
  std::int64_t cores_before = 0, threads_before = 0;
  for (const NodeCores& node : nodes) {
    cores_before += static_cast<std::int64_t>(node.size());
    // Rounded down over all nodes up to this one, so that the sum is right.
    const std::int64_t threads_until = cores == 0 ? 0 : count * cores_before / cores;
    if (threads_until > threads_before) {
      shares.push_back(
          {.cores = node, .threads = static_cast<int>(threads_until - threads_before)});
    }
    threads_before = threads_until;
  }
  if (shares.size() < 2) {
    shares.clear();
  }
  return shares;
}

std::int64_t part_begin(std::span<const NodeThreads> nodes, std::size_t node, std::int64_t total) {
  HEADRACE_ASSERT(node <= nodes.size(), "a node, or the end");
  std::int64_t threads = 0, before = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    threads += nodes[i].threads;
    before += i < node ? nodes[i].threads : 0;
  }
  HEADRACE_ASSERT(threads > 0, "nodes that have threads");
  // total * before / threads, of totals whose product has no place in 64 bits too.
  return total / threads * before + total % threads * before / threads;
}

std::size_t node_of(std::span<const NodeThreads> nodes, std::int64_t index, std::int64_t total) {
  HEADRACE_ASSERT(index >= 0 && index < total, "an index of the range");
  std::size_t node = 0;
  while (part_begin(nodes, node + 1, total) <= index) {
    ++node;
  }
  return node;
}

CoreMask CoreMask::of(std::span<const unsigned> cores) {
  CoreMask mask;
  for (const unsigned core : cores) {
    HEADRACE_ASSERT(core < kCoresMax, "a core of this system");
    mask.words_[core / kWordBits] |= Word{1} << (core % kWordBits);
  }
  return mask;
}

std::optional<CoreMask> CoreMask::of_this_thread() {
  CoreMask mask;
  const int result =
      ::sched_getaffinity(0, sizeof(mask.words_), reinterpret_cast<cpu_set_t*>(mask.words_.data()));
  return result == 0 ? std::optional(mask) : std::nullopt;
}

bool CoreMask::bind_this_thread() const {
  return ::sched_setaffinity(
             0, sizeof(words_), reinterpret_cast<const cpu_set_t*>(words_.data())) == 0;
}

std::vector<unsigned> CoreMask::cores() const {
  std::vector<unsigned> cores;
  for (unsigned core = 0; core < kCoresMax; ++core) {
    if ((words_[core / kWordBits] >> (core % kWordBits) & 1U) != 0) {
      cores.push_back(core);
    }
  }
  return cores;
}

}  // namespace headrace::optim
