// A device: a compute queue, the two links between its memory and the host's as queues, and its
// memory. The CPU implements it both ways (tiers/cpu), a CUDA GPU as well (tiers/gpu).
//
// Threads: the scheduler's. Failure: a factory's Result; afterwards the runtime's fault.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/error.hpp"
#include "tiers/queue.hpp"

namespace headrace::tiers {

// The cores of the machine as one resource. On the CPU device the compute queue's OpenMP team and
// the optimizer's TBB arena both want every core; each operation holds this while it runs, so that
// two thread pools never fight.
//
// Fair: served in the order of asking, so that a compute queue with hundreds of short operations
// does not keep the optimizer, and with it the drive, waiting for a pause. Nor one pause for each
// update: a queue may keep them while it has something ready (ThreadQueueOptions::keeps_cores).
class Cores {
 public:
  [[nodiscard]] std::unique_lock<Cores> hold() { return std::unique_lock(*this); }

  void lock() {
    std::unique_lock guard(mutex_);
    const std::uint64_t ticket = asked_++;
    served_changed_.wait(guard, [&] { return served_ == ticket; });
  }

  void unlock() {
    {
      const std::lock_guard guard(mutex_);
      ++served_;
    }
    served_changed_.notify_all();
  }

  // Whether nobody holds them at this moment; for tests and messages. Not by a thread that does.
  [[nodiscard]] bool is_free() {
    const std::lock_guard guard(mutex_);
    return served_ == asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable served_changed_;
  std::uint64_t asked_ = 0;
  std::uint64_t served_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;

  // Where it is on the machine's buses ("0000:3B:00.0"), so that host memory can lie near it (an
  // argument of Arena::create); empty: nowhere in particular.
  [[nodiscard]] virtual std::string pci_id() const { return {}; }

  // True: device memory is host memory, and nothing is copied (h2d and d2h are never used).
  [[nodiscard]] virtual bool aliases_host() const = 0;
  [[nodiscard]] virtual Queue& compute() = 0;
  [[nodiscard]] virtual Queue& h2d() = 0;
  [[nodiscard]] virtual Queue& d2h() = 0;

  // The memory of a device that does not alias the host: one allocation of `bytes` (0 is legal),
  // made once, before the first step; it lives as long as the device. Its contents are worthless,
  // its addresses are for operations only. Errors: there is not as much.
  [[nodiscard]] virtual Result<std::span<std::byte>> allocate(std::size_t bytes) = 0;
  // Makes host memory known to the device: copies take it only so. Before the first step, once for
  // each range; the memory outlives the device. Errors: the driver's.
  [[nodiscard]] virtual Status pin(std::span<std::byte> host) = 0;
  // What pin() has taken out of the system's hands.
  [[nodiscard]] virtual std::size_t pinned_bytes() const = 0;

  // A copy of `bytes` between allocate()'s and pin()'s memory as an operation of `link` (h2d() or
  // d2h()); it takes at least bytes / cap where a cap is set, and copies in a row keep to the cap
  // together. Not on a device that aliases the host: a programmer's error.
  virtual void copy(Queue& link,
                    const char* name,
                    std::uint64_t id,
                    void* target,
                    const void* source,
                    std::size_t bytes) = 0;
};

struct CpuDeviceOptions {
  bool aliases_host = true;
  int compute_threads = 1;                     // OpenMP team of the compute queue
  std::optional<double> h2d_bytes_per_s = {};  // caps of the links
  std::optional<double> d2h_bytes_per_s = {};
  Cores* cores = nullptr;               // held by compute operations while they run; may be null
  WaitObserver on_compute_waited = {};  // what the compute queue waited for; may be empty
};

// Errors: no compute thread, a cap that is not above zero, caps on a device that has no links.
[[nodiscard]] Result<std::unique_ptr<Device>> make_cpu_device(Runtime& runtime,
                                                              const CpuDeviceOptions& options);

}  // namespace headrace::tiers
