// Queues over CUDA streams, and the one thread that serves those of a device.
//
// The scheduler puts operations and waits in a queue's ring; it never calls CUDA. The poller takes
// them off in order: it issues an operation to the stream, with an event behind it, and finishes
// the ticket when that event is done. A wait for a queue of the same poller becomes a wait of the
// stream; a wait for any other queue (a thread, an NVMe lane) holds back what follows until that
// work is done, so nothing on the GPU ever waits for the host.
//
// A timestamp is an event with timing on the stream; the poller turns it into the host's time
// (stream_clock.hpp) when it finishes the ticket. The stream goes on meanwhile.
//
// Invariant: tickets finish in order, each after its event, also after a fault; no ticket of a
// stream that still runs something finishes. Memory: rings and events are made with the poller.
// Threads: submit, issue and wait by the scheduler's; bodies and every CUDA call by the poller's.
// Failure: create() returns it; later the runtime's fault, with the operation in its trace.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/trace.hpp"
#include "core/unique.hpp"
#include "tiers/gpu/stream_clock.hpp"
#include "tiers/queue.hpp"

// The toolkit's opaque handles: cudaStream_t and cudaEvent_t are pointers to them.
struct CUstream_st;
struct CUevent_st;

namespace headrace::tiers::gpu {

struct StreamTraits {
  using Handle = CUstream_st*;
  static constexpr std::nullptr_t kEmpty = nullptr;
  static void close(Handle handle) noexcept;
};

struct CudaEventTraits {
  using Handle = CUevent_st*;
  static constexpr std::nullptr_t kEmpty = nullptr;
  static void close(Handle handle) noexcept;
};

using UniqueStream = Unique<StreamTraits>;
using UniqueCudaEvent = Unique<CudaEventTraits>;

// Puts a plain body on a stream as an operation of its own; returns a cudaError_t.
using BodyLauncher = int (*)(CUstream_st* stream, const Body& body);

// What the poller and those who wake it share.
struct PollerSignals {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t news = 0;  // changes with every submission, and when a wait is over
  bool closing = false;

  void tell();
};

class CudaQueue final : public Queue {
 public:
  struct Setup {
    std::string name;
    std::size_t capacity = 256;  // operations and waits in the ring, those on the stream too
    int device = 0;
    BodyLauncher launch_body = nullptr;
    bool expedites = false;  // what it waits for, once its stream has nothing else to do
  };

  // Errors: no stream or event could be made.
  [[nodiscard]] static Result<std::unique_ptr<CudaQueue>> create(Runtime& runtime,
                                                                 const Setup& setup,
                                                                 PollerSignals& signals);
  ~CudaQueue() override;

  // An operation that is CUDA calls: the poller runs `body(stream)`, which puts work on the stream
  // and returns. (submit() takes a body that is the work itself: it runs on the poller's thread
  // once everything before it is over, or where a launcher was given, on the stream.)
  template <class F>
  void issue(const Operation& operation, F body) {
    declare(operation);
    put_operation(Kind::kIssue, operation, Body([body, stream = stream_.get()]() mutable {
                    return body(stream);
                  }));
  }

  [[nodiscard]] CUstream_st* stream() const { return stream_.get(); }

  [[nodiscard]] std::optional<QueueWait> describe_wait() const override;

 protected:
  void push(const Operation& operation, Body body) override;
  void push_wait(const Event& event) override;
  void push_timestamp(std::int64_t* target_ns) override;
  [[nodiscard]] std::optional<PendingWait> next_wait(std::uint64_t after,
                                                     std::uint64_t last) override;

 private:
  friend class StreamPoller;

  enum class Kind : std::uint8_t { kWait, kBody, kIssue, kTimestamp };

  struct Slot {
    Kind kind = Kind::kWait;
    std::uint64_t ticket = 0;
    const char* name = "";
    std::uint64_t id = 0;
    Event event;                        // of a wait
    std::int64_t* target_ns = nullptr;  // of a timestamp
    Body body;
    UniqueCudaEvent done;    // recorded behind what the slot put on the stream
    UniqueCudaEvent timing;  // a timestamp's in its place
    bool has_event = false;  // false: what the stream has left must be over
    bool has_run = false;
    std::int64_t issued_ns = 0;

    [[nodiscard]] CUevent_st* recorded() const {
      return kind == Kind::kTimestamp ? timing.get() : done.get();
    }
  };

  struct WaitCompletion : Completion {
    CudaQueue* queue = nullptr;
  };

  CudaQueue(Runtime& runtime, const Setup& setup, PollerSignals& signals);
  Slot& claim();
  void publish();
  void put_operation(Kind kind, const Operation& operation, const Body& body);

  // Poller's thread from here on.
  // Issues and finishes what can be; true: something changed.
  [[nodiscard]] bool advance();

  [[nodiscard]] bool has_unfinished() const { return finished_slots_ < issued_; }

  [[nodiscard]] bool issue_next(Slot& slot);
  [[nodiscard]] bool wait_is_over(Slot& slot);
  [[nodiscard]] bool foreign_is_done(const Event& event);
  [[nodiscard]] Status run_body(Slot& slot);
  void record_behind(Slot& slot);
  [[nodiscard]] bool front_is_over(Slot& slot);
  void finish_front(Slot& slot);
  void take_time(Slot& slot, std::int64_t seen_ns);
  void fail(const Slot& slot, Error error);
  // Whether the ticket's slot has its event on the stream.
  [[nodiscard]] CUevent_st* issued_event(std::uint64_t ticket) const;

  int device_;
  BodyLauncher launch_body_;
  bool expedites_;
  PollerSignals& signals_;
  UniqueStream stream_;
  std::vector<Slot> ring_;
  std::condition_variable not_full_;
  std::uint64_t head_ = 0;           // slots given back; under signals_.mutex
  std::uint64_t tail_ = 0;           // slots put; under signals_.mutex
  std::int64_t front_since_ns_ = 0;  // slot head_ is the oldest since; under signals_.mutex
  WaitCompletion completion_;
  bool wait_registered_ = false;
  bool wait_over_ = false;  // under signals_.mutex
  // Poller's thread only.
  std::uint64_t seen_tail_ = 0;
  std::uint64_t issued_ = 0;
  std::uint64_t finished_slots_ = 0;
  std::int64_t last_finish_ns_ = 0;
  StreamClock clock_;
  UniqueCudaEvent last_timing_;  // of the timestamp before, once the clock has begun
  int failed_queries_ = 0;       // of the stream
  TraceTrack track_;
};

struct PollerOptions {
  int device = 0;  // its ordinal
  std::vector<CudaQueue::Setup> queues;
  std::function<void()> on_thread_start = {};
};

class StreamPoller {
 public:
  // Makes the queues, then the thread ("gpu"). Errors: CUDA's, no thread.
  [[nodiscard]] static Result<std::unique_ptr<StreamPoller>> create(Runtime& runtime,
                                                                    PollerOptions options);
  // Drains the queues first. Nobody else may wait for them any more.
  ~StreamPoller();
  StreamPoller(const StreamPoller&) = delete;
  StreamPoller& operator=(const StreamPoller&) = delete;

  [[nodiscard]] CudaQueue& queue(std::size_t index) { return *queues_.at(index); }

 private:
  StreamPoller() = default;
  void serve(int device, const std::function<void()>& on_thread_start);
  [[nodiscard]] bool sleep(std::uint64_t& seen, int& idle_rounds);

  PollerSignals signals_;
  std::vector<std::unique_ptr<CudaQueue>> queues_;
  std::thread thread_;
};

}  // namespace headrace::tiers::gpu
