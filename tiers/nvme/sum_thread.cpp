#include "tiers/nvme/sum_thread.hpp"

#include <pthread.h>
#include <time.h>

#include <system_error>
#include <utility>

#include "core/assert.hpp"
#include "tiers/nvme/io_lane.hpp"

namespace headrace::tiers::nvme {

SumThread::SumThread(const Store& store, std::function<void()> wake)
    : store_(store), wake_(std::move(wake)) {}

Result<std::unique_ptr<SumThread>> SumThread::start(const Store& store,
                                                    std::function<void()> wake) {
  std::unique_ptr<SumThread> made(new SumThread(store, std::move(wake)));
  try {
    made->thread_ = std::thread([thread = made.get()] { thread->serve(); });
  } catch (const std::system_error& error) {
    return operating_error("nvme tier: cannot start a thread for sums").with_why(error.what());
  }
  return made;
}

SumThread::~SumThread() {
  HEADRACE_ASSERT(given_ == taken_, "all work was taken back");
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  given_more_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void SumThread::give(const Work& work) {
  HEADRACE_ASSERT(has_room(), "there is room for more work");
  ring_[given_ % kWorkMax].work = work;
  {
    const std::scoped_lock lock(mutex_);
    ++given_;
  }
  given_more_.notify_one();
}

std::optional<SumThread::Done> SumThread::take() {
  if (taken_ == done_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  Done& slot = ring_[taken_++ % kWorkMax];
  return Done{.work = slot.work, .status = std::exchange(slot.status, Status{})};
}

// Sleeps until there is work. Nothing: the engine is closing.
std::optional<SumThread::Work> SumThread::next() {
  const std::uint64_t done = done_.load(std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  given_more_.wait(lock, [&] { return closing_ || given_ > done; });
  return given_ > done ? std::optional(ring_[done % kWorkMax].work) : std::nullopt;
}

void SumThread::serve() {
  pthread_setname_np(pthread_self(), "hr-sums");
  while (const std::optional<Work> work = next()) {
    const std::uint64_t done = done_.load(std::memory_order_relaxed);
    ring_[done % kWorkMax].status = work->lane->transfer.sum(store_, work->blocks);
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    cpu_ns_.store(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec,
                  std::memory_order_relaxed);
    done_.store(done + 1, std::memory_order_release);
    bool idle = false;
    {
      const std::scoped_lock lock(mutex_);
      idle = given_ == done + 1;
    }
    if (work->awaited || idle) {
      wake_();
    }
  }
}

}  // namespace headrace::tiers::nvme
