// oneTBB behind Threads.
//
// An arena keeps the floating-point settings of the thread that initialised it and gives them to
// everyone who works in it, the caller of execute() included, undoing what a thread set for itself.
// So flush-to-zero is set while the arena is initialised, and nowhere else.

#include "optim_cpu/threads.hpp"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#include <pthread.h>

#include <atomic>
#include <cfenv>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "core/assert.hpp"
#include "core/float_environment.hpp"

namespace headrace::optim {

namespace {

class ScopedFlushToZero {
 public:
  ScopedFlushToZero() {
    std::fegetenv(&saved_);
    set_flush_to_zero();
  }

  ~ScopedFlushToZero() { std::fesetenv(&saved_); }

  ScopedFlushToZero(const ScopedFlushToZero&) = delete;
  ScopedFlushToZero& operator=(const ScopedFlushToZero&) = delete;

 private:
  std::fenv_t saved_{};
};

// Names the workers, for debuggers and top.
class NamingObserver : public tbb::task_scheduler_observer {
 public:
  explicit NamingObserver(tbb::task_arena& arena) : tbb::task_scheduler_observer(arena) {
    observe(true);
  }

  ~NamingObserver() override { observe(false); }

  NamingObserver(const NamingObserver&) = delete;
  NamingObserver& operator=(const NamingObserver&) = delete;

  void on_scheduler_entry(bool is_worker) override {
    if (is_worker) {
      pthread_setname_np(pthread_self(), "hr-optim");
    }
  }
};

}  // namespace

struct Threads::Impl {
  // oneTBB makes no more workers than the machine has processors unless told so.
  std::optional<tbb::global_control> more_workers;
  tbb::task_arena arena;
  std::optional<NamingObserver> observer;
  std::atomic<bool> in_use{false};

  explicit Impl(int count) : arena(count, 1) {
    if (count > tbb::info::default_concurrency()) {
      more_workers.emplace(tbb::global_control::max_allowed_parallelism,
                           static_cast<std::size_t>(count));
    }
    const ScopedFlushToZero captured_by_the_arena;
    arena.initialize();
    observer.emplace(arena);
  }
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
  std::atomic<std::int64_t> done{0};
  impl_->arena.execute([&] {
    tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, count),
                      [&done, body](const tbb::blocked_range<std::int64_t>& range) {
                        HEADRACE_DASSERT(flush_to_zero_is_set(), "the arena flushes subnormals");
                        body.call(body.context, range.begin(), range.end());
                        done.fetch_add(range.end() - range.begin(), std::memory_order_release);
                      });
  });
  HEADRACE_ASSERT(done.load(std::memory_order_acquire) == count, "every index was done once");
  impl_->in_use.store(false);
}

}  // namespace headrace::optim
