// The optimizer's threads: a oneTBB arena of a fixed number of threads, the caller's included, all
// of which flush subnormals to zero while they work here. Moments that decay become subnormal, and
// arithmetic on subnormals is 20 times slower on common machines. Over several NUMA nodes each
// thread is bound to one of them and works on that node's part of a range first.
//
// Invariant: work is split by index, each index is done once, by one thread; so results do not
// depend on the number of threads or nodes as long as indices are independent. Threads: one caller
// at a time; the caller works too, its floating-point mode and its cores are restored afterwards.
// Failure: only create() can fail; a system that does not let threads be bound is a warning.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/error.hpp"
#include "optim_cpu/nodes.hpp"

namespace headrace::optim {

class Threads {
 public:
  // `count` threads, 1..kCountMax; "auto" is the caller's to decide.
  static constexpr int kCountMax = 1024;
  // `nodes`: the cores of each NUMA node that the process may use; with fewer than two nobody is
  // bound.
  [[nodiscard]] static Result<std::unique_ptr<Threads>> create(
      int count, std::span<const NodeCores> nodes = {});
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  [[nodiscard]] int count() const { return count_; }

  // How they are shared out; empty: they are bound to no node, and ranges have no parts.
  [[nodiscard]] std::span<const NodeThreads> nodes() const;

  // Where a range lies in something longer that is laid over the nodes as one, as a tensor in a
  // tile: it is indices [begin, begin + count) of `total`. A total of 0: it is all.
  struct Within {
    std::int64_t begin = 0;
    std::int64_t total = 0;
  };

  // Calls body(index) for every index in [0, count), in any order, on any of the threads; returns
  // when all are done. The body must not throw.
  template <class Body>
  void parallel_for(std::int64_t count, const Body& body, Within within = {0, 0}) {
    parallel_for_ranges(
        count,
        [&body](std::int64_t begin, std::int64_t end) {
          for (std::int64_t index = begin; index < end; ++index) {
            body(index);
          }
        },
        within);
  }

  // Calls body(begin, end) for disjoint ranges that cover [0, count). How it is cut varies from
  // call to call: results must not depend on it. For bodies that have something to find or prepare
  // before the first index.
  template <class Body>
  void parallel_for_ranges(std::int64_t count, const Body& body, Within within = {0, 0}) {
    run(count,
        within,
        {.call = [](const void* context,
                    std::int64_t begin,
                    std::int64_t end) { (*static_cast<const Body*>(context))(begin, end); },
         .context = &body});
  }

 private:
  struct Impl;

  struct RangeBody {
    void (*call)(const void* context, std::int64_t begin, std::int64_t end) = nullptr;
    const void* context = nullptr;
  };

  Threads(int count, std::unique_ptr<Impl> impl);
  void run(std::int64_t count, Within within, RangeBody body);

  int count_ = 1;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::optim
