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
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstddef>
#include <optional>
#include <utility>

#include "core/assert.hpp"
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

// Where the calling thread ran before an arena bound it; nothing: it is not bound. A worker that is
// still inside when its arena ends is not told that it leaves: it goes free at the next arena.
thread_local std::optional<CoreMask> own_cores;

void set_free() {
  if (own_cores) {
    [[maybe_unused]] const bool is_free = own_cores->bind_this_thread();
    own_cores.reset();
  }
}

// The part of a range that a node has still to do.
struct alignas(64) Part {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
};

// The seats of an arena, by node, and the parts of the range that is being worked on.
class Seats {
 public:
  explicit Seats(std::vector<NodeThreads> nodes)
      : nodes_(std::move(nodes)), parts_(std::make_unique<Part[]>(nodes_.size())) {
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      masks_.push_back(CoreMask::of(nodes_[node].cores));
      node_of_seat_.insert(
          node_of_seat_.end(), static_cast<std::size_t>(nodes_[node].threads), node);
    }
  }

  [[nodiscard]] const std::vector<NodeThreads>& nodes() const { return nodes_; }

  // The calling thread's, in the arena.
  [[nodiscard]] std::size_t node_here() const {
    const int seat = tbb::this_task_arena::current_thread_index();
    HEADRACE_ASSERT(seat >= 0 && static_cast<std::size_t>(seat) < node_of_seat_.size(),
                    "whoever works in an arena has a seat there");
    return node_of_seat_[static_cast<std::size_t>(seat)];
  }

  void bind_here() const {
    if (!own_cores) {
      own_cores = CoreMask::of_this_thread();
    }
    // Threads has tried it out; cores that were taken away since are no reason to stop.
    [[maybe_unused]] const bool is_bound = masks_[node_here()].bind_this_thread();
  }

  // Cuts the range into parts; the number of chunks to take.
  std::int64_t cut(const Arena::Range& range) {
    constexpr std::int64_t kChunksPerThread = 16;
    const auto threads = static_cast<std::int64_t>(node_of_seat_.size());
    chunk_ = std::max<std::int64_t>(1, range.count / (kChunksPerThread * threads));
    std::int64_t chunks = 0, begin = 0;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      const std::int64_t end =
          node + 1 == nodes_.size()
              ? range.count
              : std::clamp(
                    part_begin(nodes_, node + 1, range.total) - range.begin, begin, range.count);
      parts_[node].next.store(begin, std::memory_order_relaxed);
      parts_[node].end = end;
      chunks += (end - begin + chunk_ - 1) / chunk_;
      begin = end;
    }
    return chunks;
  }

  // A chunk of this node, or of the next that has one. Called as often as there are chunks, so
  // there is one.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> take() {
    const std::size_t first = node_here();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Part& part = parts_[(first + i) % nodes_.size()];
      if (part.next.load(std::memory_order_relaxed) >= part.end) {
        continue;
      }
      const std::int64_t begin = part.next.fetch_add(chunk_, std::memory_order_relaxed);
      if (begin < part.end) {
        return {begin, std::min(begin + chunk_, part.end)};
      }
    }
    HEADRACE_ASSERT(false, "as many chunks as are taken");
    return {};
  }

 private:
  std::vector<NodeThreads> nodes_;
  std::vector<CoreMask> masks_;
  std::vector<std::size_t> node_of_seat_;
  std::unique_ptr<Part[]> parts_;
  std::int64_t chunk_ = 1;
};

// Names the workers, for debuggers and top, and binds whoever comes to work.
class SeatObserver : public tbb::task_scheduler_observer {
 public:
  SeatObserver(tbb::task_arena& arena, const Seats& seats)
      : tbb::task_scheduler_observer(arena), seats_(seats) {
    observe(true);
  }

  ~SeatObserver() override { observe(false); }

  SeatObserver(const SeatObserver&) = delete;
  SeatObserver& operator=(const SeatObserver&) = delete;

  void on_scheduler_entry(bool is_worker) override {
    if (is_worker) {
      pthread_setname_np(pthread_self(), "hr-optim");
    }
    if (seats_.nodes().empty()) {
      set_free();
    } else {
      seats_.bind_here();
    }
  }

  void on_scheduler_exit(bool /*is_worker*/) override { set_free(); }

 private:
  const Seats& seats_;
};

}  // namespace

struct Arena::Impl {
  // oneTBB makes no more workers than the machine has processors unless told so.
  std::optional<tbb::global_control> more_workers;
  Seats seats;
  tbb::task_arena arena;
  std::optional<SeatObserver> observer;

  Impl(int threads, std::vector<NodeThreads> nodes) : seats(std::move(nodes)), arena(threads, 1) {
    if (threads > tbb::info::default_concurrency()) {
      more_workers.emplace(tbb::global_control::max_allowed_parallelism,
                           static_cast<std::size_t>(threads));
    }
    const FlushToZeroScope captured_by_the_arena;
    std::fesetround(FE_TONEAREST);
    arena.initialize();
    observer.emplace(arena, seats);
  }
};

Arena::Arena(int threads, std::vector<NodeThreads> nodes)
    : impl_(std::make_unique<Impl>(threads, std::move(nodes))) {}

Arena::~Arena() = default;

const std::vector<NodeThreads>& Arena::nodes() const {
  return impl_->seats.nodes();
}

void Arena::for_ranges(const Range& range, RangeCall call, void* context) {
  if (impl_->seats.nodes().empty()) {
    impl_->arena.execute([&] {
      tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, range.count),
                        [call, context](const tbb::blocked_range<std::int64_t>& part) {
                          call(context, part.begin(), part.end());
                        });
    });
    return;
  }
  Seats& seats = impl_->seats;
  const std::int64_t chunks = seats.cut(range);
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, chunks),
        [call, context, &seats](const tbb::blocked_range<std::int64_t>& turns) {
          for (std::int64_t turn = turns.begin(); turn < turns.end(); ++turn) {
            const auto [begin, end] = seats.take();
            call(context, begin, end);
          }
        },
        tbb::simple_partitioner());
  });
}

}  // namespace headrace::optim
