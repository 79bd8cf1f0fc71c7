// A queue's ring, and what the poller does with its slots. See cuda_queue.hpp; the thread is in
// stream_poller.cpp.
//
// Slots [head_, tail_) hold something; of them, up to issued_ have been put on the stream. head_
// and tail_ change under the signals' mutex; everything else belongs to the poller.
#include "tiers/gpu/cuda_queue.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/assert.hpp"
#include "tiers/gpu/cuda_error.hpp"

namespace headrace::tiers::gpu {

namespace {

constexpr int kFailedQueriesMax = 100;

Result<UniqueCudaEvent> make_event(unsigned flags, int device) {
  cudaEvent_t event = nullptr;
  HEADRACE_TRY(check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags", device));
  return UniqueCudaEvent(event);
}

}  // namespace

// Closing cannot report; what a failure here would mean was seen by the calls before it.
void StreamTraits::close(Handle handle) noexcept {
  [[maybe_unused]] const cudaError_t error = cudaStreamDestroy(handle);
}

void CudaEventTraits::close(Handle handle) noexcept {
  [[maybe_unused]] const cudaError_t error = cudaEventDestroy(handle);
}

void PollerSignals::tell() {
  {
    const std::scoped_lock lock(mutex);
    ++news;
  }
  changed.notify_one();
}

CudaQueue::CudaQueue(Runtime& runtime, const Setup& setup, PollerSignals& signals)
    : Queue(runtime, setup.name),
      device_(setup.device),
      launch_body_(setup.launch_body),
      expedites_(setup.expedites),
      signals_(signals),
      ring_(setup.capacity) {
  HEADRACE_ASSERT(setup.capacity > 0, "a queue's ring holds at least one operation");
  completion_.queue = this;
  completion_.call = [](Completion* completion) {
    CudaQueue& queue = *static_cast<WaitCompletion*>(completion)->queue;
    const std::scoped_lock lock(queue.signals_.mutex);
    queue.wait_over_ = true;
    ++queue.signals_.news;
    // With the mutex held: the poller, and with it the signals, cannot be gone before.
    queue.signals_.changed.notify_one();
  };
}

CudaQueue::~CudaQueue() = default;

Result<std::unique_ptr<CudaQueue>> CudaQueue::create(Runtime& runtime,
                                                     const Setup& setup,
                                                     PollerSignals& signals) {
  std::unique_ptr<CudaQueue> queue(new CudaQueue(runtime, setup, signals));
  cudaStream_t stream = nullptr;
  HEADRACE_TRY(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags",
                     setup.device));
  queue->stream_.reset(stream);
  for (Slot& slot : queue->ring_) {
    HEADRACE_ASSIGN(slot.done, make_event(cudaEventDisableTiming, setup.device));
    HEADRACE_ASSIGN(slot.timing, make_event(cudaEventDefault, setup.device));
  }
  HEADRACE_ASSIGN(queue->last_timing_, make_event(cudaEventDefault, setup.device));
  if (runtime.trace != nullptr) {
    queue->track_ = runtime.trace->add_track(queue->name());
  }
  return queue;
}

// ---- the scheduler's side ----

CudaQueue::Slot& CudaQueue::claim() {
  std::unique_lock lock(signals_.mutex);
  not_full_.wait(lock, [this] { return tail_ - head_ < ring_.size(); });
  return ring_[tail_ % ring_.size()];
}

void CudaQueue::publish() {
  {
    const std::scoped_lock lock(signals_.mutex);
    if (head_ == tail_) {
      front_since_ns_ = TraceRecorder::now_ns();
    }
    ++tail_;
    ++signals_.news;
  }
  signals_.changed.notify_one();
}

void CudaQueue::put_operation(Kind kind, const Operation& operation, const Body& body) {
  Slot& slot = claim();
  slot.kind = kind;
  slot.ticket = next_ticket();
  slot.name = operation.name;
  slot.id = operation.id;
  slot.body = body;
  publish();
}

void CudaQueue::push(const Operation& operation, Body body) {
  put_operation(Kind::kBody, operation, body);
}

void CudaQueue::push_wait(const Event& event) {
  Slot& slot = claim();
  slot.kind = Kind::kWait;
  slot.ticket = next_ticket();
  slot.name = "wait";
  slot.id = 0;
  slot.event = event;
  publish();
}

void CudaQueue::push_timestamp(std::int64_t* target_ns) {
  Slot& slot = claim();
  slot.kind = Kind::kTimestamp;
  slot.ticket = next_ticket();
  slot.name = "timestamp";
  slot.id = 0;
  slot.target_ns = target_ns;
  publish();
}

std::optional<Queue::PendingWait> CudaQueue::next_wait(std::uint64_t after, std::uint64_t last) {
  const std::scoped_lock lock(signals_.mutex);
  for (std::uint64_t i = head_; i < tail_; ++i) {
    const Slot& slot = ring_[i % ring_.size()];
    if (slot.kind == Kind::kWait && slot.ticket > after && slot.ticket <= last) {
      return PendingWait{.ticket = slot.ticket, .event = slot.event};
    }
  }
  return std::nullopt;
}

std::optional<QueueWait> CudaQueue::describe_wait() const {
  const std::scoped_lock lock(signals_.mutex);
  if (head_ == tail_) {
    return std::nullopt;
  }
  const Slot& slot = ring_[head_ % ring_.size()];
  QueueWait wait;
  wait.since_ns = front_since_ns_;
  if (slot.kind == Kind::kWait) {
    wait.kind = QueueWait::Kind::kWaits;
    wait.what = fmt::format(
        "{}: waits for ticket {} of {}", name(), slot.event.ticket(), slot.event.queue()->name());
  } else {
    wait.what = fmt::format("{}: runs {} (#{})", name(), slot.name, slot.id);
  }
  if (tail_ - head_ > 1) {
    wait.what += fmt::format("; {} behind it", tail_ - head_ - 1);
  }
  return wait;
}

// ---- the poller's side ----

bool CudaQueue::advance() {
  {
    const std::scoped_lock lock(signals_.mutex);
    seen_tail_ = tail_;
  }
  bool changed = false;
  while (issued_ < seen_tail_ && issue_next(ring_[issued_ % ring_.size()])) {
    ++issued_;
    changed = true;
  }
  while (has_unfinished()) {
    Slot& slot = ring_[finished_slots_ % ring_.size()];
    // Whoever sees this ticket finished sees that of what it waited for finished too.
    const bool in_order = slot.kind != Kind::kWait || slot.event.done();
    if (!in_order || !front_is_over(slot)) {
      break;
    }
    finish_front(slot);
    changed = true;
  }
  return changed;
}

// False: the slot must wait, and nothing has been done.
bool CudaQueue::issue_next(Slot& slot) {
  slot.has_event = false;
  slot.has_run = false;
  if (slot.kind == Kind::kWait) {
    if (!wait_is_over(slot)) {
      return false;
    }
  } else if (!runtime_.fault.raised()) {
    const bool on_host = slot.kind == Kind::kBody && launch_body_ == nullptr;
    if (on_host && has_unfinished()) {
      return false;
    }
    slot.issued_ns = TraceRecorder::now_ns();
    slot.has_run = slot.kind != Kind::kTimestamp;
    if (Status status = slot.has_run ? run_body(slot) : Status(); !status) {
      fail(slot, std::move(status).error());
    }
  }
  record_behind(slot);
  return true;
}

// True: the event is done, or the stream has been told to wait for it.
bool CudaQueue::wait_is_over(Slot& slot) {
  auto* other = dynamic_cast<CudaQueue*>(slot.event.queue());
  if (other == nullptr || &other->signals_ != &signals_) {
    return foreign_is_done(slot.event);
  }
  if (slot.event.done()) {
    return true;
  }
  cudaEvent_t event = other->issued_event(slot.event.ticket());
  if (event == nullptr || runtime_.fault.raised()) {
    return false;  // not issued yet; or, after a fault, the ticket itself is waited for
  }
  if (Status status =
          check(cudaStreamWaitEvent(stream_.get(), event, 0), "cudaStreamWaitEvent", device_);
      !status) {
    fail(slot, std::move(status).error());
    return false;
  }
  return true;
}

// A fault does not end such a wait: the other queue may still be running the body that it had
// begun, and it finishes its tickets in any case.
bool CudaQueue::foreign_is_done(const Event& event) {
  if (!wait_registered_) {
    if (event.done()) {
      return true;
    }
    wait_registered_ = true;
    event.queue()->notify(event.ticket(), &completion_);
  }
  {
    const std::scoped_lock lock(signals_.mutex);
    if (wait_over_) {
      wait_registered_ = false;
      wait_over_ = false;
      return true;
    }
  }
  // The GPU stands still. Once it is passed on, repeating it costs a comparison.
  if (expedites_ && !has_unfinished()) {
    event.expedite();
  }
  return false;
}

Status CudaQueue::run_body(Slot& slot) {
  try {
    if (slot.kind == Kind::kBody && launch_body_ != nullptr) {
      return check(launch_body_(stream_.get(), slot.body), "cudaLaunchKernelExC", device_);
    }
    return slot.body();
  } catch (const std::bad_alloc&) {
    return operating_error(std::string(slot.name) + ": out of memory");
  } catch (const std::exception& exception) {
    return operating_error(std::string(slot.name) + ": failed").with_why(exception.what());
  } catch (...) {
    return operating_error(std::string(slot.name) + ": failed with an unknown exception");
  }
}

void CudaQueue::record_behind(Slot& slot) {
  if (runtime_.fault.raised()) {
    return;
  }
  if (Status status =
          check(cudaEventRecord(slot.recorded(), stream_.get()), "cudaEventRecord", device_);
      !status) {
    fail(slot, std::move(status).error());
    return;
  }
  slot.has_event = true;
}

// The oldest slot on the stream. An error of the query is the first sign of an operation that went
// wrong while it ran.
bool CudaQueue::front_is_over(Slot& slot) {
  if (slot.has_event) {
    const cudaError_t error = cudaEventQuery(slot.recorded());
    if (error == cudaErrorNotReady || error == cudaSuccess) {
      return error == cudaSuccess;
    }
    fail(slot, check(error, "cudaEventQuery", device_).error());
    slot.has_event = false;
  }
  const cudaError_t error = cudaStreamQuery(stream_.get());
  if (error == cudaErrorNotReady || error == cudaSuccess) {
    return error == cudaSuccess;
  }
  fail(slot, check(error, "cudaStreamQuery", device_).error());
  // On a lost device nothing runs. One that merely failed to say is asked again.
  return loses_device(error) || ++failed_queries_ >= kFailedQueriesMax;
}

void CudaQueue::finish_front(Slot& slot) {
  const std::int64_t now = TraceRecorder::now_ns();
  if (runtime_.trace != nullptr && slot.has_run) {
    runtime_.trace->record({.name = slot.name,
                            .track = track_,
                            .begin_ns = std::max(slot.issued_ns, last_finish_ns_),
                            .end_ns = now,
                            .id = static_cast<std::int64_t>(slot.id)});
  }
  last_finish_ns_ = now;
  if (slot.kind == Kind::kTimestamp && slot.has_event && !runtime_.fault.raised()) {
    take_time(slot, now);
  }
  finish(slot.ticket);
  ++finished_slots_;
  {
    const std::scoped_lock lock(signals_.mutex);
    ++head_;
    front_since_ns_ = now;
  }
  not_full_.notify_one();
}

// The event stays as what the next timestamp is measured from; the slot gets the one before.
void CudaQueue::take_time(Slot& slot, std::int64_t seen_ns) {
  const StreamClock::Bounds bounds{.issued_ns = slot.issued_ns, .seen_ns = seen_ns};
  if (clock_.has_begun()) {
    float elapsed_ms = 0;
    if (Status status =
            check(cudaEventElapsedTime(&elapsed_ms, last_timing_.get(), slot.timing.get()),
                  "cudaEventElapsedTime",
                  device_);
        !status) {
      fail(slot, std::move(status).error());
      return;
    }
    *slot.target_ns = clock_.next(static_cast<double>(elapsed_ms), bounds);
  } else {
    *slot.target_ns = clock_.begin(bounds);
  }
  std::swap(last_timing_, slot.timing);
}

void CudaQueue::fail(const Slot& slot, Error error) {
  error.trace.push_back("'" + std::string(slot.name) + "' (#" + std::to_string(slot.id) + " on " +
                        name() + ")");
  runtime_.fault.raise(std::move(error));
}

CUevent_st* CudaQueue::issued_event(std::uint64_t ticket) const {
  for (std::uint64_t i = finished_slots_; i < issued_; ++i) {
    const Slot& slot = ring_[i % ring_.size()];
    if (slot.ticket == ticket) {
      return slot.has_event ? slot.recorded() : nullptr;
    }
  }
  return nullptr;
}

}  // namespace headrace::tiers::gpu
