// Says when a run stands still, and for what: nobody waits in silence for a drive that does not
// answer.
//
// Every so often it looks at a number that grows with whatever gets done. If that has not changed
// for `limit_ns` while something is under way, one warning names what is stuck: the operations that
// queues run or transfer (for a transfer with file, offset and extent), then the queues that wait
// for them. It warns again each time that the silence has doubled, and says when things go on. It
// ends nothing: a drive may answer after all, and whether to give up is the user's to decide.
//
// Threads: its own ("hr-watchdog") looks; begin and tick are the scheduler's. A look takes no lock
// for longer than a line of text. Failure: create() where no thread can be had.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "tiers/queue.hpp"

namespace headrace::exec {

class Watchdog {
 public:
  // What is looked at; for any thread.
  struct Source {
    std::function<std::uint64_t()> progress;
    std::function<std::vector<tiers::QueueWait>()> waits;  // empty: nothing is under way
  };

  // No thread: the caller looks. `limit_ns` is above 0.
  Watchdog(Source source, std::int64_t limit_ns)
      : source_(std::move(source)), limit_ns_(limit_ns) {}

  // Looks by itself, several times within the limit, and logs what it sees.
  [[nodiscard]] static Result<std::unique_ptr<Watchdog>> create(Source source,
                                                                std::int64_t limit_ns);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // What there is to say at this time (of TraceRecorder::now_ns), mostly nothing. One thread.
  struct Report {
    bool stuck = false;  // else: it goes on
    std::string text;
  };

  [[nodiscard]] std::optional<Report> look(std::int64_t now_ns);

  // The scheduler's thread does something long itself, on no queue; until the task ends.
  class Task {
   public:
    // `watchdog` may be null.
    Task(Watchdog* watchdog, std::string what);
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    // A part of it is done.
    void tick();

   private:
    Watchdog* watchdog_;
  };

 private:
  void serve();
  [[nodiscard]] std::string describe(const std::vector<tiers::QueueWait>& waits,
                                     std::int64_t now_ns) const;

  Source source_;
  std::int64_t limit_ns_;
  std::atomic<std::uint64_t> ticks_{0};
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  std::optional<tiers::QueueWait> task_;  // under mutex_, as `ended_`
  bool ended_ = false;
  // Of the looks.
  std::uint64_t progress_ = 0;
  std::optional<std::int64_t> done_ns_;  // when a look last saw that something had been done
  std::int64_t next_warning_ns_ = 0;     // of silence
  std::thread thread_;
};

}  // namespace headrace::exec
