// What the tests of this folder share: seeds, and gates that hold a queue's worker until the test
// opens them, so that "not yet" is a fact rather than a matter of timing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "tiers/queue.hpp"

namespace headrace::tiers {

// Its operations are over when the test says so; it knows when one is expedited.
class HeldQueue final : public Queue {
 public:
  using Queue::Queue;

  // Something that others can wait for.
  Event hold() {
    submit({.name = "held"}, [] {});
    return record();
  }

  void finish_all() {
    if (!done(last_)) {
      finish(last_);
    }
  }

  [[nodiscard]] bool expedited(const Event& event) const {
    return event.ticket() <= wanted_ticket();
  }

  void wait_until_expedited(const Event& event) {
    std::unique_lock lock(mutex_);
    expedited_.wait(lock, [&] { return expedited(event); });
  }

 protected:
  void push(const Operation& /*operation*/, Body /*body*/) override { last_ = next_ticket(); }

  void push_wait(const Event& /*event*/) override { last_ = next_ticket(); }

  void on_expedited() override {
    const std::scoped_lock lock(mutex_);
    expedited_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable expedited_;
  std::uint64_t last_ = 0;
};

// Of a random test: HEADRACE_SEED, or fresh; printed.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("HEADRACE_SEED");  // NOLINT(concurrency-mt-unsafe)
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "HEADRACE_SEED=" << seed << "\n";
  return seed;
}

// Makes what comes after happen after `event` in fact, without telling the race checker: a missing
// wait is planted without a real race.
inline void poll(const Event& event) {
  while (!event.done()) {
    std::this_thread::yield();
  }
}

class Gate {
 public:
  void open() {
    {
      const std::scoped_lock lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }

  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

  // Holds `queue` at this point until open().
  void block(Queue& queue) {
    queue.submit({.name = "gate"}, [this] { pass(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

}  // namespace headrace::tiers
