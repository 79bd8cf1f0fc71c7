// oneTBB behind Arena.
//
// An arena keeps the floating-point settings of the thread that initialised it and gives them to
// everyone who works in it, the caller of execute() included, undoing what a thread set for itself.
// So flush-to-zero is set while the arena is initialised, and nowhere else.
//
// This file is compiled without ThreadSanitizer: the distribution's oneTBB is not instrumented, so
// its own synchronisation would be reported as missing. Threads orders what the callee sees.

#include "optim_cpu/arena.hpp"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#include <pthread.h>

#include <cfenv>
#include <cstddef>
#include <optional>

#include "core/float_environment.hpp"

#if defined(HEADRACE_SANITIZED_THREAD)
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the sanitizer's name
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libtbb.so\n";
}
#endif

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

struct Arena::Impl {
  // oneTBB makes no more workers than the machine has processors unless told so.
  std::optional<tbb::global_control> more_workers;
  tbb::task_arena arena;
  std::optional<NamingObserver> observer;

  explicit Impl(int threads) : arena(threads, 1) {
    if (threads > tbb::info::default_concurrency()) {
      more_workers.emplace(tbb::global_control::max_allowed_parallelism,
                           static_cast<std::size_t>(threads));
    }
    const ScopedFlushToZero captured_by_the_arena;
    arena.initialize();
    observer.emplace(arena);
  }
};

Arena::Arena(int threads) : impl_(std::make_unique<Impl>(threads)) {}

Arena::~Arena() = default;

void Arena::for_ranges(std::int64_t count, RangeCall call, void* context) {
  impl_->arena.execute([&] {
    tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, count),
                      [call, context](const tbb::blocked_range<std::int64_t>& range) {
                        call(context, range.begin(), range.end());
                      });
  });
}

}  // namespace headrace::optim
