// oneTBB, as Threads needs it: an arena of a fixed number of threads that flush subnormals, and a
// loop over ranges in it. Internal to this folder.
//
// Threads: one caller at a time. Failure: the constructor throws what oneTBB throws; for_ranges
// does not throw if the callee does not.
#pragma once

#include <cstdint>
#include <memory>

namespace headrace::optim {

class Arena {
 public:
  explicit Arena(int threads);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Calls call(context, begin, end) for ranges that cover [0, count), each once, and returns when
  // all have returned.
  using RangeCall = void (*)(void* context, std::int64_t begin, std::int64_t end);
  void for_ranges(std::int64_t count, RangeCall call, void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::optim
