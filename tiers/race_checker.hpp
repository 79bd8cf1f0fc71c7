// Finds two conflicting operations that nothing orders, without luck: vector clocks over queues, events and the host, compared at submission.
//
// Every queue and the host has a clock. submit ticks the queue's clock (after merging the host's); record captures it; wait merges it; a host
// wait merges it into the host's. Two operations whose spans overlap, one of them writing, must be ordered by these clocks, or a Race is
// recorded. Cost: for tests and `HEADRACE_RACE_CHECK=1`. Threads: submitting thread(s), internally locked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tiers/queue.hpp"

namespace headrace::tiers {

struct Race {
  std::string text;  // "'forward' (#12 on compute) reads [0x.., +4096) that 'read tile' (#9 on nvme.3) writes; no wait orders them"
};

class RaceChecker {
 public:
  RaceChecker();
  ~RaceChecker();
  void on_submit(const Queue& queue, const Operation& operation);
  void on_record(const Queue& queue, std::uint64_t ticket);
  void on_wait(const Queue& queue, const Event& event);
  void on_host_wait(const Event& event);
  // The host itself touches memory (outside any queue): reads of results, writes of inputs.
  void on_host_access(const Operation& operation);
  [[nodiscard]] std::vector<Race> races() const;
  [[nodiscard]] std::uint64_t operations_checked() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::tiers
