// NUMA nodes as the optimizer sees them: lists of cores. How its threads are shared out over them,
// which part of a range each works on, and binding a thread to cores.
//
// Invariant: shares and parts are pure functions of their arguments, so what a node touched first
// stays its own. Threads: any. Failure: a binding that the system refuses is false, and errno.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace headrace::optim {

// Cores by the system's numbers; of a node, only those that the process may use.
using NodeCores = std::vector<unsigned>;

struct NodeThreads {
  NodeCores cores;
  int threads = 0;
};

// `count` threads over nodes, in proportion to their cores, in the order given. Nodes that get none
// are left out; nothing where fewer than two get any, since then there is nothing to share.
[[nodiscard]] std::vector<NodeThreads> share_threads(int count, std::span<const NodeCores> nodes);

// Where the part of `node` begins in [0, total), cut in proportion to threads; `node` may be
// nodes.size(): total.
[[nodiscard]] std::int64_t part_begin(std::span<const NodeThreads> nodes,
                                      std::size_t node,
                                      std::int64_t total);
// The node whose part holds `index`.
[[nodiscard]] std::size_t node_of(std::span<const NodeThreads> nodes,
                                  std::int64_t index,
                                  std::int64_t total);

// Cores that a thread may run on.
class CoreMask {
 public:
  static constexpr std::size_t kCoresMax = 8192;  // Linux's

  [[nodiscard]] static CoreMask of(std::span<const unsigned> cores);
  // Nothing: the system does not say.
  [[nodiscard]] static std::optional<CoreMask> of_this_thread();
  // Whether the thread is bound now. The system leaves out cores that the process may not use, and
  // refuses where none is left.
  [[nodiscard]] bool bind_this_thread() const;
  [[nodiscard]] std::vector<unsigned> cores() const;

  friend bool operator==(const CoreMask&, const CoreMask&) = default;

 private:
  using Word = unsigned long;  // the kernel's
  static constexpr std::size_t kWordBits = sizeof(Word) * CHAR_BIT;

  std::array<Word, kCoresMax / kWordBits> words_ = {};
};

}  // namespace headrace::optim
