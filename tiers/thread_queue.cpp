// The ring of a ThreadQueue and the thread that serves it.
//
// Invariant: slots [head, tail) are the worker's, the others the scheduler's; head and tail change
// under one mutex. A slot is free again only when its ticket is finished, so `capacity` bounds what
// is queued and running together. The worker owns every wait: it sleeps on the other queue's
// counter, which always advances, also after a fault.
#include "tiers/thread_queue.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <string_view>
#include <thread>
#include <vector>

#include "core/float_environment.hpp"
#include "core/trace.hpp"

namespace headrace::tiers {

namespace {

constexpr std::size_t kThreadNameBytesMax = 15;  // of pthread_setname_np, without the terminator

struct Slot {
  enum class Kind : std::uint8_t { kBody, kWait, kTimestamp };
  Kind kind = Kind::kBody;
  std::uint64_t ticket = 0;
  const char* name = "";
  std::uint64_t id = 0;
  Event event;                        // of a wait
  std::int64_t* target_ns = nullptr;  // of a timestamp
  Body body;                          // of an operation
};

std::string describe(const Slot& slot, const std::string& queue_name) {
  return "'" + std::string(slot.name) + "' (#" + std::to_string(slot.id) + " on " + queue_name +
         ")";
}

// Runs the body; whatever it throws becomes an error.
Status run_body(Slot& slot) {
  try {
    return slot.body();
  } catch (const std::bad_alloc&) {
    return operating_error(std::string(slot.name) + ": out of memory");
  } catch (const std::exception& exception) {
    return operating_error(std::string(slot.name) + ": failed").with_why(exception.what());
  } catch (...) {
    return operating_error(std::string(slot.name) + ": failed with an unknown exception");
  }
}

}  // namespace

struct ThreadQueue::State {
  State(ThreadQueueOptions queue_options, TraceRecorder* trace_recorder)
      : options(std::move(queue_options)), trace(trace_recorder), ring(options.capacity) {}

  ThreadQueueOptions options;
  TraceRecorder* trace;
  TraceTrack track;
  std::vector<Slot> ring;
  mutable std::mutex mutex;
  std::condition_variable not_full;
  std::condition_variable not_empty;
  std::uint64_t head = 0;     // slots taken off; head % capacity is the oldest
  std::uint64_t tail = 0;     // slots put on
  std::int64_t begin_ns = 0;  // of the slot that is off next; 0: the worker has not come to it
  bool closing = false;
  std::unique_lock<Cores> cores;  // the worker's
  std::thread thread;

  // The scheduler's next free slot; blocks while there is none.
  Slot& claim() {
    std::unique_lock lock(mutex);
    not_full.wait(lock, [this] { return tail - head < ring.size(); });
    return ring[tail % ring.size()];
  }

  void publish() {
    {
      const std::scoped_lock lock(mutex);
      ++tail;
    }
    not_empty.notify_one();
  }

  // The worker's oldest slot, or null when the queue is closing and empty.
  Slot* front() {
    std::unique_lock lock(mutex);
    if (head == tail) {
      let_go();
    }
    not_empty.wait(lock, [this] { return head != tail || closing; });
    begin_ns = TraceRecorder::now_ns();
    return head == tail ? nullptr : &ring[head % ring.size()];
  }

  void pop() {
    {
      const std::scoped_lock lock(mutex);
      ++head;
      begin_ns = 0;
    }
    not_full.notify_one();
  }

  void close() {
    {
      const std::scoped_lock lock(mutex);
      closing = true;
    }
    not_empty.notify_one();
  }

  [[nodiscard]] Status run(Slot& slot) {
    if (slot.kind == Slot::Kind::kTimestamp) {
      *slot.target_ns = TraceRecorder::now_ns();
      return {};
    }
    if (options.cores != nullptr && !cores) {
      cores = options.cores->hold();
    }
    const TraceScope span(trace, track, slot.name, static_cast<std::int64_t>(slot.id));
    Status status = run_body(slot);
    if (!options.keeps_cores) {
      let_go();
    }
    return status;
  }

  void let_go() {
    if (cores) {
      cores.unlock();
    }
  }

  void wait_for(const Event& event) {
    if (event.done()) {
      return;
    }
    let_go();
    // Composed without allocating; what a trace keeps of a name is not longer.
    std::array<char, 32> label = {};
    constexpr std::string_view kPrefix = "wait for ";
    const std::string_view other = event.queue()->name();
    const std::size_t kept = std::min(other.size(), label.size() - kPrefix.size());
    std::copy_n(other.data(), kept, std::copy(kPrefix.begin(), kPrefix.end(), label.data()));
    const TraceScope span(trace, track, {label.data(), kPrefix.size() + kept});
    const auto begin = std::chrono::steady_clock::now();
    if (options.expedites) {
      event.expedite();
    }
    // A fault does not end the wait: the other queue may still be running the body that it had
    // begun, and it finishes its tickets in any case. The fault is looked at before each body.
    [[maybe_unused]] const Status status = event.queue()->wait_host(event.ticket());
    if (options.on_waited) {
      options.on_waited(event, std::chrono::steady_clock::now() - begin);
    }
  }
};

ThreadQueue::ThreadQueue(Runtime& runtime, std::string name, ThreadQueueOptions options)
    : Queue(runtime, std::move(name)) {
  HEADRACE_ASSERT(options.capacity > 0, "a queue's ring holds at least one operation");
  state_ = std::make_unique<State>(std::move(options), runtime.trace);
  if (runtime.trace != nullptr) {
    state_->track = runtime.trace->add_track(this->name());
  }
  state_->thread = std::thread([this] { serve(); });
}

ThreadQueue::~ThreadQueue() {
  state_->close();
  state_->thread.join();
}

void ThreadQueue::push(const Operation& operation, Body body) {
  Slot& slot = state_->claim();
  slot.ticket = next_ticket();
  slot.name = operation.name;
  slot.id = operation.id;
  slot.kind = Slot::Kind::kBody;
  slot.body = body;
  state_->publish();
}

void ThreadQueue::push_wait(const Event& event) {
  Slot& slot = state_->claim();
  slot.ticket = next_ticket();
  slot.name = "wait";
  slot.id = 0;
  slot.kind = Slot::Kind::kWait;
  slot.event = event;
  state_->publish();
}

void ThreadQueue::push_timestamp(std::int64_t* target_ns) {
  Slot& slot = state_->claim();
  slot.ticket = next_ticket();
  slot.name = "timestamp";
  slot.id = 0;
  slot.kind = Slot::Kind::kTimestamp;
  slot.target_ns = target_ns;
  state_->publish();
}

std::optional<Queue::PendingWait> ThreadQueue::next_wait(std::uint64_t after, std::uint64_t last) {
  const std::scoped_lock lock(state_->mutex);
  for (std::uint64_t i = state_->head; i < state_->tail; ++i) {
    const Slot& slot = state_->ring[i % state_->ring.size()];
    if (slot.kind == Slot::Kind::kWait && slot.ticket > after && slot.ticket <= last) {
      return PendingWait{.ticket = slot.ticket, .event = slot.event};
    }
  }
  return std::nullopt;
}

std::optional<QueueWait> ThreadQueue::describe_wait() const {
  const std::scoped_lock lock(state_->mutex);
  if (state_->head == state_->tail) {
    return std::nullopt;
  }
  const Slot& slot = state_->ring[state_->head % state_->ring.size()];
  QueueWait wait;
  wait.since_ns = state_->begin_ns > 0 ? state_->begin_ns : TraceRecorder::now_ns();
  wait.what = name();
  if (slot.kind == Slot::Kind::kWait) {
    wait.kind = QueueWait::Kind::kWaits;
    wait.what += ": waits for ticket " + std::to_string(slot.event.ticket()) + " of " +
                 slot.event.queue()->name();
  } else {
    wait.what += ": runs " + std::string(slot.name) + " (#" + std::to_string(slot.id) + ")";
  }
  if (const std::uint64_t behind = state_->tail - state_->head - 1; behind > 0) {
    wait.what += "; " + std::to_string(behind) + " behind it";
  }
  return wait;
}

void ThreadQueue::serve() {
  pthread_setname_np(pthread_self(), name().substr(0, kThreadNameBytesMax).c_str());
  set_flush_to_zero();
  if (state_->options.on_thread_start) {
    state_->options.on_thread_start();
  }
  while (Slot* slot = state_->front()) {
    if (slot->kind == Slot::Kind::kWait) {
      state_->wait_for(slot->event);
    } else if (!runtime_.fault.raised()) {
      if (Status status = state_->run(*slot); !status) {
        Error error = std::move(status).error();
        error.trace.push_back(describe(*slot, name()));
        runtime_.fault.raise(std::move(error));
      }
    }
    finish(slot->ticket);
    state_->pop();
  }
}

}  // namespace headrace::tiers
