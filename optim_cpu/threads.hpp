// The optimizer's threads: a oneTBB arena of a fixed number of threads, the caller's included, all
// of which flush subnormals to zero while they work here. Moments that decay become subnormal, and
// arithmetic on subnormals is 20 times slower on common machines.
//
// Invariant: work is split by index, each index is done once, by one thread; so results do not
// depend on the number of threads as long as indices are independent. Threads: one caller at a
// time; the caller works too, its floating-point mode is restored afterwards. Failure: only
// create() can fail.
#pragma once

#include <cstdint>
#include <memory>

#include "core/error.hpp"

namespace headrace::optim {

class Threads {
 public:
  // `count` threads, 1..kCountMax; "auto" is the caller's to decide.
  static constexpr int kCountMax = 1024;
  [[nodiscard]] static Result<std::unique_ptr<Threads>> create(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  [[nodiscard]] int count() const { return count_; }

  // Calls body(index) for every index in [0, count), in any order, on any of the threads; returns
  // when all are done. The body must not throw.
  template <class Body>
  void parallel_for(std::int64_t count, const Body& body) {
    parallel_for_ranges(count, [&body](std::int64_t begin, std::int64_t end) {
      for (std::int64_t index = begin; index < end; ++index) {
        body(index);
      }
    });
  }

  // Calls body(begin, end) for disjoint ranges that cover [0, count). How it is cut varies from
  // call to call: results must not depend on it. For bodies that have something to find or prepare
  // before the first index.
  template <class Body>
  void parallel_for_ranges(std::int64_t count, const Body& body) {
    run(count,
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
  void run(std::int64_t count, RangeBody body);

  int count_ = 1;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::optim
