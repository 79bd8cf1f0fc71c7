// A second thread of an engine, which makes and checks sums while the first one answers the drive.
// Internal to tiers/nvme.
//
// Why: one thread sums at some 20 GB/s from DRAM, so beside a drive of 5 GB/s it would be away from
// its completions for a quarter of the time.
// Invariant: work is done in the order in which it was given; a transfer that was given is not
// touched by the engine but for Transfer's calls that say so, until take() has returned it.
// Threads: the engine's, but for cpu_ns(), which is any's. Nothing is allocated after start(),
// unless a sum is wrong. Failure: start() says that no thread could be had; an engine then sums by
// itself.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "tiers/nvme/io_transfer.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {

class Lane;

class SumThread {
 public:
  struct Work {
    Lane* lane = nullptr;
    Transfer::Blocks blocks;
    bool awaited = false;  // the transfer goes on as soon as this is done
  };

  struct Done {
    Work work;
    Status status;
  };

  // `store` outlives the thread. `wake` is called on the thread when something awaited is done, and
  // when nothing is left to do; it must make the engine call take().
  [[nodiscard]] static Result<std::unique_ptr<SumThread>> start(const Store& store,
                                                                std::function<void()> wake);
  // All that was given has been taken back.
  ~SumThread();
  SumThread(const SumThread&) = delete;
  SumThread& operator=(const SumThread&) = delete;

  [[nodiscard]] bool has_room() const { return given_ - taken_ < kWorkMax; }

  void give(const Work& work);
  // What was done, oldest first.
  [[nodiscard]] std::optional<Done> take();

  // A processor's time that the sums have taken.
  [[nodiscard]] std::int64_t cpu_ns() const { return cpu_ns_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kWorkMax = 4;

  SumThread(const Store& store, std::function<void()> wake);
  void serve();
  [[nodiscard]] std::optional<Work> next();

  const Store& store_;
  std::function<void()> wake_;
  std::array<Done, kWorkMax> ring_;
  std::uint64_t given_ = 0;  // changes under the mutex, by the engine
  std::uint64_t taken_ = 0;  // the engine's
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::int64_t> cpu_ns_{0};
  std::mutex mutex_;
  std::condition_variable given_more_;
  bool closing_ = false;  // under the mutex
  std::thread thread_;
};

}  // namespace headrace::tiers::nvme
