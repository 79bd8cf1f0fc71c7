// Queues and events: the only way that anything asynchronous happens.
//
// A Queue is in order: an operation begins after everything submitted to the same queue before it
// has finished, and after every event that the queue was told to wait for before it. Operations
// and waits take tickets, numbered from 1. An Event is a value (queue, ticket): it is done when the
// queue has finished that ticket. Nothing is allocated by submit, record or wait. Kinds:
// ThreadQueue (tiers/thread_queue.hpp), the NVMe lanes (tiers/nvme/io_engine.hpp), CUDA streams
// (tiers/gpu/cuda_queue.hpp).
//
// Faults: all queues of a Runtime share one fault. The first operation that fails raises it; from
// then on queues finish their tickets without running bodies, so that nothing derived from a
// failure is computed or written. Host waits return the fault.
//
// Urgency: whoever stands still until an event says so (expedite), and all that the event needs, on
// whatever queues, is then wanted now. Queues that can choose (NVMe lanes) act on it, all pass it
// on.
//
// Threads: submit, record and wait are called by one scheduler thread per queue; done, wait_host,
// notify and expedite by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "core/assert.hpp"
#include "core/error.hpp"

namespace headrace {
class TraceRecorder;  // core/trace.hpp
}

namespace headrace::tiers {

class Queue;
class RaceChecker;

// A range of memory or of a store file that an operation reads or writes; what the race checker
// compares.
struct MemorySpan {
  enum class Space : std::uint8_t { kMemory, kStorage };
  std::uint64_t begin = 0;  // an address, or an offset in the store
  std::uint64_t bytes = 0;
  Space space = Space::kMemory;

  MemorySpan() = default;

  MemorySpan(const void* data, std::size_t size_bytes)
      : begin(reinterpret_cast<std::uintptr_t>(data)), bytes(size_bytes) {}

  static MemorySpan storage(std::uint64_t offset, std::uint64_t size_bytes) {
    MemorySpan span;
    span.begin = offset;
    span.bytes = size_bytes;
    span.space = Space::kStorage;
    return span;
  }
};

// What an operation is called in traces and race reports, and what it touches. `name` must outlive
// the operation (string literals).
struct Operation {
  const char* name = "";
  std::span<const MemorySpan> reads = {};
  std::span<const MemorySpan> writes = {};
  std::uint64_t id = 0;  // the caller's number for it (an index in the plan), for messages
};

// Preallocated, intrusive: called once when a ticket is finished, on the thread that finished it
// (must be short and must not block).
struct Completion {
  void (*call)(Completion*) = nullptr;
  std::uint64_t ticket = 0;
  Completion* next = nullptr;
};

// What a queue is at, for a watchdog.
struct QueueWait {
  enum class Kind : std::uint8_t { kRuns, kTransfers, kWaits };  // kWaits: for another queue
  Kind kind = Kind::kRuns;
  std::string what;           // "compute: runs forward (#33); 4 behind it"
  std::int64_t since_ns = 0;  // of TraceRecorder::now_ns
};

class Event {
 public:
  Event() = default;  // an event that is always done

  Event(Queue* queue, std::uint64_t ticket) : queue_(queue), ticket_(ticket) {}

  [[nodiscard]] bool done() const;
  // Blocks the host until done; returns the runtime's fault if one was raised. Scheduler thread:
  // with a race checker it orders what the host does next after the event (done() does not).
  [[nodiscard]] Status wait_host() const;
  // Queue::expedite of its queue, if it is not done.
  void expedite() const;

  [[nodiscard]] Queue* queue() const { return queue_; }

  [[nodiscard]] std::uint64_t ticket() const { return ticket_; }

 private:
  Queue* queue_ = nullptr;
  std::uint64_t ticket_ = 0;
};

// The first error of any queue of a runtime. Sticky.
class Fault {
 public:
  [[nodiscard]] bool raised() const { return raised_.load(std::memory_order_acquire); }

  void raise(Error error);  // only the first is kept
  [[nodiscard]] std::optional<Error> error() const;

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  std::optional<Error> error_;
};

// What the queues of one engine share. Outlives them. `races` and `trace` may be null; they are set
// before the first queue is made and stay.
struct Runtime {
  Fault fault;
  RaceChecker* races = nullptr;
  TraceRecorder* trace = nullptr;
};

// A callable of bounded size stored in a queue's ring: no allocation. Returns Status or void.
class Body {
 public:
  static constexpr std::size_t kBytesMax = 512;
  static constexpr std::size_t kAlignment = alignof(std::max_align_t);
  Body() = default;

  template <class F>
  explicit Body(F function) {
    static_assert(sizeof(F) <= kBytesMax,
                  "an operation's captured state must fit in the queue's ring");
    static_assert(std::is_trivially_copyable_v<F>,
                  "an operation captures plain values and pointers only");
    static_assert(alignof(F) <= kAlignment, "an operation captures nothing over-aligned");
    new (storage_) F(function);
    call_ = [](void* storage) -> Status {
      if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
        (*static_cast<F*>(storage))();
        return {};
      } else {
        return (*static_cast<F*>(storage))();
      }
    };
  }

  Status operator()() { return call_(storage_); }

 private:
  alignas(kAlignment) std::byte storage_[kBytesMax] = {};
  Status (*call_)(void*) = nullptr;
};

// What a queue's worker waited for, and for how long: how stalls get their causes. Called on the
// worker after a wait for an event that was not done when the worker came to it.
using WaitObserver = std::function<void(const Event& event, std::chrono::nanoseconds waited)>;

class Queue {
 public:
  explicit Queue(Runtime& runtime, std::string name);
  virtual ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] int index() const {
    return index_;
  }  // unique within the process; the race checker's clock

  [[nodiscard]] Runtime& runtime() { return runtime_; }

  // Puts an operation on the queue. Blocks while the queue's ring is full (back-pressure). The body
  // must not wait for another queue.
  template <class F>
  void submit(const Operation& operation, F body) {
    declare(operation);
    push(operation, Body(std::move(body)));
  }

  // Puts the time at which the queue gets there (TraceRecorder::now_ns) into *target_ns: not before
  // all that was submitted earlier is over, nor after what is submitted later has begun. It holds
  // nothing up; to the race checker it touches nothing. For the host to read once its ticket is
  // done. After a fault the target may be left as it was.
  void timestamp(std::int64_t* target_ns);

  // An event that is done when everything submitted so far has finished.
  [[nodiscard]] Event record();

  // Operations submitted later begin after `event`. Waiting for a done event, or for one of this
  // queue, costs nothing. (With a race checker, a done event is put in the ring nevertheless:
  // tickets then do not depend on timing, and neither do the checker's findings.)
  void wait(const Event& event);

  // Blocks the scheduler thread until everything submitted so far has finished; returns the fault
  // if one was raised. Every queue is drained before any queue of a runtime is destroyed: others
  // may still wait for its events.
  [[nodiscard]] Status drain() { return record().wait_host(); }

  [[nodiscard]] bool done(std::uint64_t ticket) const {
    return finished_.load(std::memory_order_acquire) >= ticket;
  }

  // How far the queue has come.
  [[nodiscard]] std::uint64_t finished_ticket() const {
    return finished_.load(std::memory_order_acquire);
  }

  // What the oldest unfinished ticket is at; nothing where there is none, or where the queue cannot
  // tell. Any thread.
  [[nodiscard]] virtual std::optional<QueueWait> describe_wait() const { return std::nullopt; }

  // Blocks the calling thread until `ticket` is finished; returns the runtime's fault if one was
  // raised. Tells the race checker nothing: queues' own threads use it.
  [[nodiscard]] Status wait_host(std::uint64_t ticket);
  // Calls completion->call when `ticket` is finished; at once, on the caller's thread, if it
  // already is. `completion` stays the caller's.
  void notify(std::uint64_t ticket, Completion* completion);

  // Somebody stands still until `event` of this queue: it is wanted now, and so is all that the
  // queue has to do before it, and every event that the queue waits for on the way, on queues of
  // every kind. All of it was submitted before the event was recorded, so one call reaches it all.
  // Must not be called with a lock held that a queue may take.
  void expedite(const Event& event);

 protected:
  // A wait that is in the ring.
  struct PendingWait {
    std::uint64_t ticket = 0;
    Event event;
  };

  // Implementations: take next_ticket(), put the operation (or the wait) in the ring, in order, and
  // call finish(ticket) when it is over: for a wait, when its event is done. So an event recorded
  // after a wait includes it.
  virtual void push(const Operation& operation, Body body) = 0;
  virtual void push_wait(const Event& event) = 0;
  // Without an implementation: a body that reads the clock.
  virtual void push_timestamp(std::int64_t* target_ns);
  // The oldest wait of the ring, the running one too, with a ticket above `after` and at most
  // `last`. A queue that cannot tell passes no urgency on.
  [[nodiscard]] virtual std::optional<PendingWait> next_wait(std::uint64_t after,
                                                             std::uint64_t last);

  // wanted_ticket() has grown. Any thread.
  virtual void on_expedited() {}

  // This ticket and those before it are wanted now.
  [[nodiscard]] std::uint64_t wanted_ticket() const {
    return wanted_.load(std::memory_order_relaxed);
  }

  // Tells the race checker, if there is one. To be called on the submitting thread by every way of
  // submitting.
  void declare(const Operation& operation);

  [[nodiscard]] std::uint64_t next_ticket() { return ++submitted_; }

  // Tickets finish in ascending order: `ticket` and all before it are finished. One thread at a
  // time.
  void finish(std::uint64_t ticket);

  Runtime& runtime_;

 private:
  std::string name_;
  int index_ = 0;
  std::uint64_t submitted_ = 0;  // scheduler thread only
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint64_t> wanted_{0};  // expedited
  std::mutex waiters_mutex_;
  std::condition_variable finished_changed_;
  Completion* waiters_ = nullptr;  // in the order of their registration
};

}  // namespace headrace::tiers
