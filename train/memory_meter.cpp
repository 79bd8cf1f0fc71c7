#include "train/memory_meter.hpp"

#include <pthread.h>

#include <exception>

#include "core/system.hpp"

namespace headrace::train {

Result<std::unique_ptr<MemoryMeter>> MemoryMeter::start() {
  std::unique_ptr<MemoryMeter> meter(new MemoryMeter);
  try {
    meter->thread_ = std::thread([owned = meter.get()] { owned->run(); });
  } catch (const std::exception& error) {
    return operating_error("memory meter: cannot start its thread")
        .with_why(error.what())
        .with_hint(
            "raise the limit of processes (`ulimit -u`, or pids.max of the cgroup) or of memory "
            "(`ulimit -v`, `ulimit -d`)");
  }
  ::pthread_setname_np(meter->thread_.native_handle(), "memory meter");
  return meter;
}

MemoryMeter::~MemoryMeter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
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
