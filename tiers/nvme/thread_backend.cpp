// The back end over a pool of threads with preadv and pwritev: for systems that forbid io_uring.
//
// Invariant: a request is in exactly one place: queued by the owner, waiting, at a thread, or done.
// All memory is taken at creation. Thread: the owner's calls by one thread, wake() by any; the pool
// touches only what mutex_ guards and the request it works on. Failure: io_backend.hpp; a pool that
// cannot be started is an Error, with no thread left.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/assert.hpp"
#include "core/trace.hpp"
#include "tiers/nvme/io_backend.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr unsigned kThreadsMax = 64;

// First in, first out, of a fixed capacity.
template <class T>
class BoundedFifo {
 public:
  explicit BoundedFifo(std::size_t capacity) : items_(capacity) {}

  [[nodiscard]] bool empty() const { return count_ == 0; }

  void push(T item) {
    HEADRACE_ASSERT(count_ < items_.size(), "at most `depth` requests are under way");
    items_[(first_ + count_++) % items_.size()] = item;
  }

  [[nodiscard]] T pop() {
    T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

class ThreadBackend final : public IoBackend {
 public:
  ThreadBackend(BlockFile& file, unsigned depth)
      : fd_(file.fd()), depth_(depth), queued_(depth), waiting_(depth), done_(depth) {}

  ~ThreadBackend() override;
  [[nodiscard]] Status start();

  void queue(IoRequest& request) override;
  [[nodiscard]] std::size_t wait(std::span<IoCompletion> completions,
                                 std::optional<std::int64_t> timeout_ns) override;
  void wake() override;
  void cancel() override;

  [[nodiscard]] std::int64_t now_ns() const override { return TraceRecorder::now_ns(); }

  [[nodiscard]] BackendFacts facts() const override {
    return {.name = "threads",
            .memory_bytes = depth_ * (2 * sizeof(IoRequest*) + sizeof(IoCompletion))};
  }

 private:
  void serve();
  [[nodiscard]] int transfer(const IoRequest& request) const;

  int fd_;
  unsigned depth_;
  unsigned under_way_ = 0;           // owner's thread
  BoundedFifo<IoRequest*> queued_;   // owner's thread
  std::mutex mutex_;                 // guards all that follows
  BoundedFifo<IoRequest*> waiting_;  // for a thread
  BoundedFifo<IoCompletion> done_;   // for the owner
  bool woken_ = false;
  bool closing_ = false;
  std::condition_variable work_;  // waiting_ or closing_ has changed
  std::condition_variable news_;  // done_ or woken_ has changed
  std::vector<std::thread> threads_;
};

Status ThreadBackend::start() {
  const unsigned count = std::min(depth_, kThreadsMax);
  threads_.reserve(count);
  try {
    for (unsigned i = 0; i < count; ++i) {
      threads_.emplace_back([this] { serve(); });
    }
  } catch (const std::system_error& error) {
    return operating_error(fmt::format("nvme tier: cannot start {} threads for I/O", count))
        .with_why(error.what())
        .with_hint("raise the limit of processes: `ulimit -u`, or the container's pids limit");
  }
  return {};
}

ThreadBackend::~ThreadBackend() {
  std::array<IoCompletion, 64> completions{};
  while (under_way_ > 0) {
    [[maybe_unused]] const std::size_t count = wait(completions, std::nullopt);
  }
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadBackend::serve() {
  pthread_setname_np(pthread_self(), "hr-nvme-io");
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return;
    }
    IoRequest* const request = waiting_.pop();
    lock.unlock();
    const int result = transfer(*request);
    lock.lock();
    done_.push({.request = request, .result = result});
    news_.notify_one();
  }
}

// The system cuts what is larger than it moves at once (2 GiB less a page).
int ThreadBackend::transfer(const IoRequest& request) const {
  const auto count = static_cast<int>(request.piece_count);
  const auto offset = static_cast<off_t>(request.offset);
  const ssize_t moved = request.write ? ::pwritev(fd_, request.pieces.data(), count, offset)
                                      : ::preadv(fd_, request.pieces.data(), count, offset);
  return moved < 0 ? -errno : static_cast<int>(moved);
}

void ThreadBackend::queue(IoRequest& request) {
  HEADRACE_ASSERT(under_way_ < depth_, "at most `depth` requests are under way");
  ++under_way_;
  queued_.push(&request);
}

std::size_t ThreadBackend::wait(std::span<IoCompletion> completions,
                                std::optional<std::int64_t> timeout_ns) {
  std::unique_lock lock(mutex_);
  while (!queued_.empty()) {
    waiting_.push(queued_.pop());
    work_.notify_one();
  }
  const auto news = [this] { return woken_ || !done_.empty(); };
  if (!timeout_ns) {
    news_.wait(lock, news);
  } else if (*timeout_ns > 0) {
    news_.wait_for(lock, std::chrono::nanoseconds(*timeout_ns), news);
  }
  woken_ = false;
  std::size_t count = 0;
  while (count < completions.size() && !done_.empty()) {
    completions[count++] = done_.pop();
  }
  under_way_ -= static_cast<unsigned>(count);
  return count;
}

void ThreadBackend::wake() {
  const std::scoped_lock lock(mutex_);
  woken_ = true;
  news_.notify_one();
}

void ThreadBackend::cancel() {
  const std::scoped_lock lock(mutex_);
  for (BoundedFifo<IoRequest*>* fifo : {&waiting_, &queued_}) {
    while (!fifo->empty()) {
      done_.push({.request = fifo->pop(), .result = -ECANCELED});
    }
  }
}

}  // namespace

Result<std::unique_ptr<IoBackend>> make_thread_backend(BlockFile& file,
                                                       const BackendOptions& options) {
  HEADRACE_ASSERT(options.depth > 0, "a back end has requests");
  HEADRACE_ASSERT(file.fd() >= 0, "threads read files of the system");
  auto backend = std::make_unique<ThreadBackend>(file, options.depth);
  HEADRACE_TRY(backend->start());
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace headrace::tiers::nvme
