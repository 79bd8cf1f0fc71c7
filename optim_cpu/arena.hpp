// oneTBB, as Threads needs it: an arena of a fixed number of threads that flush subnormals, and a
// loop over ranges in it. Over several NUMA nodes its seats belong to nodes: who takes one is bound
// to the node's cores, and works on the node's part of a range first. Internal to this folder.
//
// Threads: one caller at a time. Failure: the constructor throws what oneTBB throws; for_ranges
// does not throw if the callee does not. A binding that fails costs speed only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optim_cpu/nodes.hpp"

namespace headrace::optim {

class Arena {
 public:
  // `nodes`: none, or two and more whose threads add up to `threads`.
  explicit Arena(int threads, std::vector<NodeThreads> nodes = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] const std::vector<NodeThreads>& nodes() const;

  struct Range {
    std::int64_t count = 0;
    // It is indices [begin, begin + count) of `total`, which lies over the nodes as one.
    std::int64_t begin = 0;
    std::int64_t total = 0;
  };

  // Calls call(context, begin, end) for ranges that cover [0, count), each once, and returns when
  // all have returned.
  using RangeCall = void (*)(void* context, std::int64_t begin, std::int64_t end);
  void for_ranges(const Range& range, RangeCall call, void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::optim
