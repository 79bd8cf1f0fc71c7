// A queue whose operations run on a thread of its own, in order.
//
// Threads: one worker per queue, named after it, with flush-to-zero set when it starts
// (core/float_environment.hpp). The ring is bounded: submit and wait block while it is full. The
// worker sleeps on what it waits for. A body's error, and any exception of it, raises the fault.
// Timestamps do not ask for the cores. Destruction finishes what was submitted, then joins.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tiers/device.hpp"
#include "tiers/queue.hpp"

namespace headrace::tiers {

struct ThreadQueueOptions {
  std::size_t capacity = 256;  // operations and waits in the ring, the running one too
  Cores* cores = nullptr;      // held while a body runs; may be null
  // Holds the cores from one operation to the next while there is one that can run: what is ready
  // then passes between two operations of another queue, not one for each of those.
  bool keeps_cores = false;
  // What its worker has to wait for is wanted now (Event::expedite): for queues whose standing
  // still costs the run time. The others pass on what they are told.
  bool expedites = false;
  std::function<void()> on_thread_start = {};  // e.g. sets the OpenMP team's size; may be empty
  WaitObserver on_waited = {};                 // may be empty
};

class ThreadQueue final : public Queue {
 public:
  ThreadQueue(Runtime& runtime, std::string name, ThreadQueueOptions options);
  ~ThreadQueue() override;

  [[nodiscard]] std::optional<QueueWait> describe_wait() const override;

 protected:
  void push(const Operation& operation, Body body) override;
  void push_wait(const Event& event) override;
  void push_timestamp(std::int64_t* target_ns) override;
  [[nodiscard]] std::optional<PendingWait> next_wait(std::uint64_t after,
                                                     std::uint64_t last) override;

 private:
  struct State;
  void serve();  // the worker's loop
  std::unique_ptr<State> state_;
};

}  // namespace headrace::tiers
