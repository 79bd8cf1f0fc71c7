// Finds two conflicting operations that nothing orders, without luck: vector clocks over queues,
// events and the host, compared at submission.
//
// Every queue and the host has a clock. submit and wait tick the queue's clock (after merging the
// host's); record captures it; wait merges what was captured; a host wait merges it into the
// host's. Two operations whose spans overlap, one of them writing, must be ordered by these clocks,
// or a Race is recorded. What happened to run first does not matter: an event that was polled as
// done orders nothing until the host or a queue waits for it.
//
// Cost: for tests and `HEADRACE_RACE_CHECK=1` (a few microseconds a submission and a few hundred
// bytes an event, until the host has waited for it). Threads: submitting thread(s), internally
// locked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tiers/queue.hpp"

namespace headrace::tiers {

struct Race {
  // "'forward' (#12 on compute) reads memory [0x1000, +4096) that 'read tile' (#9 on nvme.3)
  // writes; no wait orders them"
  std::string text;
};

// A wait that orders nothing which was not ordered before.
struct ImpliedWait {
  std::uint64_t number = 0;
  std::string text;  // "compute for ticket 12 of h2d"
};

class RaceChecker {
 public:
  RaceChecker();
  ~RaceChecker();
  RaceChecker(const RaceChecker&) = delete;
  RaceChecker& operator=(const RaceChecker&) = delete;

  void on_submit(const Queue& queue, const Operation& operation);
  void on_record(const Queue& queue, std::uint64_t ticket);
  // False: a test wants this wait left out; the queue does not wait.
  [[nodiscard]] bool on_wait(const Queue& queue, const Event& event);
  void on_host_wait(const Event& event);
  // The host itself touches memory (outside any queue): reads of results, writes of inputs.
  void on_host_access(const Operation& operation);

  // The first kRacesMax races in the order of submission; race_count() counts all.
  static constexpr std::size_t kRacesMax = 1000;
  [[nodiscard]] std::vector<Race> races() const;
  [[nodiscard]] std::uint64_t race_count() const;
  [[nodiscard]] std::uint64_t operations_checked() const;

  // Waits of queues for events of others, and those of them that changed no clock: an earlier wait
  // (or the host) had ordered the queue after the event already.
  [[nodiscard]] std::uint64_t waits_checked() const;
  [[nodiscard]] std::uint64_t implied_waits() const;
  // The implied ones, the first kRacesMax of them; likewise those of the host.
  [[nodiscard]] std::vector<ImpliedWait> implied_queue_waits() const;
  [[nodiscard]] std::vector<ImpliedWait> implied_host_waits() const;
  [[nodiscard]] std::uint64_t host_waits_checked() const;

  // How tests show a wait to be needed: the one of this number, counted from 0 as waits_checked()
  // counts, is left out. A wait of the host is made all the same, since what follows may free
  // memory, but it orders nothing.
  void leave_out_wait(std::uint64_t number);
  void leave_out_host_wait(std::uint64_t number);
  // "compute for ticket 12 of h2d"; empty where it has not come to that wait.
  [[nodiscard]] std::string left_out() const;
  // A wait of the host was left out, and the host was ordered after the event all the same by the
  // time it did something: by a wait beside it, for a queue that had waited itself.
  [[nodiscard]] bool left_out_was_implied() const;

  // What is kept of events that the host has not waited for; flat over steps that end in host
  // waits.
  [[nodiscard]] std::size_t event_clocks_held() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::tiers
