// The thread that serves the queues of a device. See cuda_queue.hpp.
//
// While something is on a stream it asks the oldest event of each queue: at once, then with pauses
// of kPause, which a submission or the end of a wait cuts short. With nothing on any stream it
// sleeps until there is news.
#include <cuda_runtime_api.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "core/float_environment.hpp"
#include "tiers/gpu/cuda_error.hpp"
#include "tiers/gpu/cuda_queue.hpp"

namespace headrace::tiers::gpu {

namespace {

constexpr int kRoundsWithoutPause = 64;
constexpr std::chrono::microseconds kPause(20);

}  // namespace

Result<std::unique_ptr<StreamPoller>> StreamPoller::create(Runtime& runtime,
                                                           PollerOptions options) {
  std::unique_ptr<StreamPoller> poller(new StreamPoller());
  HEADRACE_TRY(check(cudaSetDevice(options.device), "cudaSetDevice", options.device));
  poller->queues_.reserve(options.queues.size());
  for (CudaQueue::Setup& setup : options.queues) {
    setup.device = options.device;
    HEADRACE_ASSIGN(std::unique_ptr<CudaQueue> queue,
                    CudaQueue::create(runtime, setup, poller->signals_));
    poller->queues_.push_back(std::move(queue));
  }
  try {
    poller->thread_ = std::thread(
        [self = poller.get(),
         device = options.device,
         on_start = std::move(options.on_thread_start)] { self->serve(device, on_start); });
  } catch (const std::exception& exception) {
    return operating_error("cuda:" + std::to_string(options.device) + ": cannot start its thread")
        .with_why(exception.what());
  }
  return poller;
}

StreamPoller::~StreamPoller() {
  if (!thread_.joinable()) {
    return;
  }
  // All before any: they may wait for one another. A fault is the host's to have looked at.
  for (const auto& queue : queues_) {
    [[maybe_unused]] const Status status = queue->drain();
  }
  {
    const std::scoped_lock lock(signals_.mutex);
    signals_.closing = true;
  }
  signals_.changed.notify_one();
  thread_.join();
}

void StreamPoller::serve(int device, const std::function<void()>& on_thread_start) {
  pthread_setname_np(pthread_self(), "gpu");
  set_flush_to_zero();
  if (Status status = check(cudaSetDevice(device), "cudaSetDevice", device); !status) {
    queues_.front()->runtime().fault.raise(std::move(status).error());
  }
  if (on_thread_start) {
    on_thread_start();
  }
  std::uint64_t seen = 0;
  int idle_rounds = 0;
  do {
    bool changed = false;
    for (const auto& queue : queues_) {
      changed = queue->advance() || changed;
    }
    idle_rounds = changed ? 0 : idle_rounds + 1;
  } while (idle_rounds == 0 || sleep(seen, idle_rounds));
}

// Until there may be something to do; false: the end.
bool StreamPoller::sleep(std::uint64_t& seen, int& idle_rounds) {
  const bool on_stream = std::any_of(
      queues_.begin(), queues_.end(), [](const auto& queue) { return queue->has_unfinished(); });
  std::unique_lock lock(signals_.mutex);
  if (signals_.news != seen) {
    seen = signals_.news;
    idle_rounds = 0;
    return true;
  }
  if (on_stream && idle_rounds < kRoundsWithoutPause) {
    lock.unlock();
    std::this_thread::yield();
    return true;
  }
  const auto has_news = [this, seen] { return signals_.news != seen || signals_.closing; };
  if (on_stream) {
    signals_.changed.wait_for(lock, kPause, has_news);
    return true;
  }
  signals_.changed.wait(lock, has_news);
  return !signals_.closing || signals_.news != seen;
}

}  // namespace headrace::tiers::gpu
