#include "train/memory_meter.hpp"

#include <pthread.h>

#include "core/system.hpp"

namespace headrace::train {

MemoryMeter::MemoryMeter() : thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "memory meter");
}

MemoryMeter::~MemoryMeter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_one();
  thread_.join();
}

std::uint64_t MemoryMeter::peak_bytes() {
  sample();
  return peak_bytes_.load(std::memory_order_relaxed);
}

void MemoryMeter::sample() {
  const auto memory = process_memory();
  if (!memory) {
    return;
  }
  const std::uint64_t now = memory->used_bytes();
  std::uint64_t seen = peak_bytes_.load(std::memory_order_relaxed);
  while (now > seen && !peak_bytes_.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void MemoryMeter::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kSamplePeriod, [this] { return stop_; })) {
    sample();
  }
}

}  // namespace headrace::train
