// What every kind of queue shares: tickets, events, host waits, completions and the fault.
//
// Invariant: finished_ changes under waiters_mutex_, so a waiter that saw an unfinished ticket
// under that mutex is on the list, or asleep, before the ticket can finish: no wake-up is lost.
// Completions run outside the mutex, on the thread that finishes the ticket.
#include "tiers/queue.hpp"

#include "core/trace.hpp"
#include "tiers/race_checker.hpp"

namespace headrace::tiers {

namespace {

int next_queue_index() {
  static std::atomic<int> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

bool Event::done() const {
  return queue_ == nullptr || queue_->done(ticket_);
}

Status Event::wait_host() const {
  if (queue_ == nullptr) {
    return {};
  }
  Status status = queue_->wait_host(ticket_);
  if (RaceChecker* races = queue_->runtime().races; races != nullptr) {
    races->on_host_wait(*this);
  }
  return status;
}

void Event::expedite() const {
  if (!done()) {
    queue_->expedite(*this);
  }
}

void Fault::raise(Error error) {
  const std::scoped_lock lock(mutex_);
  if (!error_.has_value()) {
    error_ = std::move(error);
    raised_.store(true, std::memory_order_release);
  }
}

std::optional<Error> Fault::error() const {
  const std::scoped_lock lock(mutex_);
  return error_;
}

Queue::Queue(Runtime& runtime, std::string name)
    : runtime_(runtime), name_(std::move(name)), index_(next_queue_index()) {}

Queue::~Queue() {
  HEADRACE_ASSERT(waiters_ == nullptr, "a queue was destroyed with completions still registered");
}

void Queue::timestamp(std::int64_t* target_ns) {
  HEADRACE_ASSERT(target_ns != nullptr, "a timestamp is put somewhere");
  push_timestamp(target_ns);
}

void Queue::push_timestamp(std::int64_t* target_ns) {
  push({.name = "timestamp", .reads = {}, .writes = {}, .id = 0},
       Body([target_ns] { *target_ns = TraceRecorder::now_ns(); }));
}

Event Queue::record() {
  if (runtime_.races != nullptr) {
    runtime_.races->on_record(*this, submitted_);
  }
  return {this, submitted_};
}

void Queue::wait(const Event& event) {
  if (event.queue() == nullptr) {
    return;
  }
  HEADRACE_ASSERT(&event.queue()->runtime_ == &runtime_, "an event of another runtime's queue");
  if (runtime_.races != nullptr && !runtime_.races->on_wait(*this, event)) {
    return;
  }
  if (event.queue() == this || (runtime_.races == nullptr && event.done())) {
    return;
  }
  push_wait(event);
}

Status Queue::wait_host(std::uint64_t ticket) {
  if (!done(ticket)) {
    std::unique_lock lock(waiters_mutex_);
    finished_changed_.wait(lock, [this, ticket] { return done(ticket); });
  }
  if (runtime_.fault.raised()) {
    return *runtime_.fault.error();
  }
  return {};
}

void Queue::notify(std::uint64_t ticket, Completion* completion) {
  HEADRACE_ASSERT(completion != nullptr && completion->call != nullptr,
                  "a completion without call");
  {
    const std::scoped_lock lock(waiters_mutex_);
    if (!done(ticket)) {
      completion->ticket = ticket;
      completion->next = nullptr;
      Completion** end = &waiters_;
      while (*end != nullptr) {
        end = &(*end)->next;
      }
      *end = completion;
      return;
    }
  }
  completion->call(completion);
}

// Each ticket is passed on once: what an earlier call has reached is not visited again, so the cost
// is bounded by what is in the rings, and the calls nest no deeper than there are queues.
void Queue::expedite(const Event& event) {
  HEADRACE_ASSERT(event.queue() == this, "a queue expedites what it has itself");
  const std::uint64_t last = event.ticket();
  std::uint64_t after = wanted_.load(std::memory_order_relaxed);
  do {
    if (after >= last) {
      return;
    }
  } while (!wanted_.compare_exchange_weak(after, last, std::memory_order_relaxed));
  on_expedited();
  while (const std::optional<PendingWait> wait = next_wait(after, last)) {
    after = wait->ticket;
    wait->event.expedite();
  }
}

std::optional<Queue::PendingWait> Queue::next_wait(std::uint64_t /*after*/,
                                                   std::uint64_t /*last*/) {
  return std::nullopt;
}

void Queue::declare(const Operation& operation) {
  if (runtime_.races != nullptr) {
    runtime_.races->on_submit(*this, operation);
  }
}

void Queue::finish(std::uint64_t ticket) {
  Completion* due = nullptr;
  {
    const std::scoped_lock lock(waiters_mutex_);
    HEADRACE_ASSERT(ticket > finished_.load(std::memory_order_relaxed),
                    "tickets finish once, in ascending order");
    finished_.store(ticket, std::memory_order_release);
    Completion** due_end = &due;
    Completion** link = &waiters_;
    while (*link != nullptr) {
      Completion* completion = *link;
      if (completion->ticket <= ticket) {
        *link = completion->next;
        completion->next = nullptr;
        *due_end = completion;
        due_end = &completion->next;
      } else {
        link = &completion->next;
      }
    }
    finished_changed_.notify_all();
  }
  while (due != nullptr) {
    Completion* completion = due;
    due = completion->next;  // the call may reuse the completion at once
    completion->next = nullptr;
    completion->call(completion);
  }
}

}  // namespace headrace::tiers
