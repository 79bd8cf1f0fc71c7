// Threads over an Arena: arguments, errors, and the order between the caller and its workers.

#include "optim_cpu/threads.hpp"

#include <atomic>
#include <exception>
#include <string>
#include <utility>

#include "core/assert.hpp"
#include "core/float_environment.hpp"
#include "optim_cpu/arena.hpp"

namespace headrace::optim {

struct Threads::Impl {
  explicit Impl(int count) : arena(count) {}

  Arena arena;
  std::atomic<bool> in_use{false};
};

Result<std::unique_ptr<Threads>> Threads::create(int count) {
  if (count < 1 || count > kCountMax) {
    return usage_error("optimizer threads: " + std::to_string(count) +
                       " is not a number of threads")
        .with_hint("set optim.threads to 1.." + std::to_string(kCountMax) + ", or \"auto\"");
  }
  try {
    return std::unique_ptr<Threads>(new Threads(count, std::make_unique<Impl>(count)));
  } catch (const std::exception& error) {
    return operating_error("optimizer threads: cannot start " + std::to_string(count))
        .with_why(error.what())
        .with_hint("set optim.threads lower");
  }
}

Threads::Threads(int count, std::unique_ptr<Impl> impl) : count_(count), impl_(std::move(impl)) {}

Threads::~Threads() = default;

void Threads::run(std::int64_t count, RangeBody body) {
  HEADRACE_ASSERT(!impl_->in_use.exchange(true), "one caller at a time");

  // What the caller wrote before `begun` is seen by the workers, what they wrote before `done` by
  // the caller: stated here, not left to the library.
  struct Work {
    std::atomic<bool> begun{false};
    std::atomic<std::int64_t> done{0};
    RangeBody body;
  } work;

  work.body = body;
  work.begun.store(true, std::memory_order_release);
  impl_->arena.for_ranges(
      count,
      [](void* context, std::int64_t begin, std::int64_t end) {
        auto& shared = *static_cast<Work*>(context);
        HEADRACE_ASSERT(shared.begun.load(std::memory_order_acquire),
                        "work begins before it is done");
        HEADRACE_DASSERT(flush_to_zero_is_set(), "the arena flushes subnormals");
        shared.body.call(shared.body.context, begin, end);
        shared.done.fetch_add(end - begin, std::memory_order_release);
      },
      &work);
  HEADRACE_ASSERT(work.done.load(std::memory_order_acquire) == count, "every index was done once");
  impl_->in_use.store(false);
}

}  // namespace headrace::optim
