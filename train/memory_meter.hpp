// The process's peak memory: anonymous and explicit huge-page memory, sampled by a thread.
//
// The kernel's own high-water mark counts mapped files too, which are not the engine's, so this is
// a sample every kSamplePeriod: arenas are faulted in when they are made, hence little moves
// between samples. Thread: start and stop from one thread, peak_bytes() from any. Failure: a thread
// that cannot start is an Error; a sample that cannot be read is left out.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "core/error.hpp"

namespace headrace::train {

class MemoryMeter {
 public:
  static constexpr std::chrono::milliseconds kSamplePeriod{50};

  [[nodiscard]] static Result<std::unique_ptr<MemoryMeter>> start();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  // Takes a sample now, too.
  [[nodiscard]] std::uint64_t peak_bytes();

 private:
  MemoryMeter() = default;
  void sample();
  void run();

  std::atomic<std::uint64_t> peak_bytes_{0};
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace headrace::train
