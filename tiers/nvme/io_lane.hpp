// A lane's ring and its state in the engine. Internal to tiers/nvme.
//
// Invariant: the ring and the signals between threads (Signals) change under the engine's one
// mutex; `phase`, `current` and `transfer` belong to the engine's thread. A lane runs one operation
// at a time, in the order of submission. Threads: see io_engine.hpp.
// Failure: none of its own; the engine raises the fault.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/trace.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/io_transfer.hpp"

namespace headrace::tiers::nvme {

// What other threads tell the engine's thread: that there is work, or that a wait is over.
struct Signals {
  std::mutex mutex;
  bool awake = false;  // the engine was woken and has not looked yet
  bool closing = false;
  IoBackend* backend = nullptr;

  // With the mutex held: so that the back end cannot be gone before it is woken.
  void wake_engine();
};

struct LaneEntry {
  enum class Kind : std::uint8_t { kWait, kBody, kRead, kWrite };
  Kind kind = Kind::kWait;
  const char* name = "";
  std::uint64_t id = 0;
  std::uint64_t ticket = 0;
  IoDeadline deadline = ~IoDeadline{0};  // waits and bodies are in no hurry of their own
  Event event;                           // kWait
  Body body;                             // kBody
  ExtentKey key;                         // kRead, kWrite
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::int64_t step = 0;                        // kWrite
  ReadCheck check = ReadCheck::kHeaderAndSums;  // kRead
};

class Lane final : public IoLane {
 public:
  enum class Phase : std::uint8_t { kIdle, kWaiting, kTransferring };

  struct Setup {
    Store& store;
    std::uint32_t folder;
    Signals& signals;
    std::size_t capacity;
    std::span<std::byte> header;  // for the largest extent
    std::uint64_t sub_blocks_max;
  };

  Lane(Runtime& runtime, std::string name, const Setup& setup);

  using IoLane::read;
  using IoLane::write;
  void read(const ExtentKey& key,
            std::span<std::byte> target,
            std::uint64_t id,
            IoDeadline deadline,
            ReadCheck check) override;
  void write(const ExtentKey& key,
             std::span<const std::byte> source,
             std::int64_t step,
             std::uint64_t id,
             IoDeadline deadline) override;

  // "nvme.0: nvme read (#7) of unit 3, tile 0 (param) at offset ... of '...': 3 of 8 bytes moved".
  [[nodiscard]] std::optional<QueueWait> describe_wait() const override;

  // Engine's thread from here on.
  // Makes the oldest entry `current`, if there is one. It keeps its place until finish_current().
  [[nodiscard]] bool take();
  [[nodiscard]] bool empty();
  // True: the event is done. False: the engine will be woken, and wait_over() then says so.
  [[nodiscard]] bool begin_wait(const Event& event);
  [[nodiscard]] bool wait_over();
  // When the soonest wanted of the lane's operations is wanted. With the signals' mutex held.
  [[nodiscard]] IoDeadline deadline_locked() const;

  // The current entry is over: its ticket is finished, its place in the ring is free.
  void finish_current();

  Phase phase = Phase::kIdle;
  LaneEntry current;
  Transfer transfer;
  IoDeadline urgency = 0;  // the deadline, or that of a lane that waits for this one
  std::int64_t wait_begin_ns = 0;
  TraceTrack track;

  // For describe_wait(): what `transfer` says, set by the engine's thread.
  struct Progress {
    std::atomic<std::uint64_t> offset{0};
    std::atomic<std::uint64_t> moved_bytes{0};
    std::atomic<std::uint64_t> total_bytes{0};
    std::atomic<int> in_flight{0};
  };

  Progress progress;

 protected:
  void push(const Operation& operation, Body body) override;
  void push_wait(const Event& event) override;
  [[nodiscard]] std::optional<PendingWait> next_wait(std::uint64_t after,
                                                     std::uint64_t last) override;
  void on_expedited() override;

 private:
  struct WaitCompletion : Completion {
    Lane* lane = nullptr;
  };

  // Fills the next entry in place; blocks while the ring is full.
  template <class Fill>
  void put(Fill fill);
  void check_memory(const ExtentKey& key, const void* memory, std::size_t bytes) const;
  [[nodiscard]] MemorySpan storage(const ExtentKey& key) const;

  Store& store_;
  std::uint32_t folder_;
  Signals& signals_;
  std::vector<LaneEntry> ring_;
  std::condition_variable not_full_;
  // Under signals_.mutex from here on.
  std::uint64_t head_ = 0;                     // entries finished
  std::uint64_t tail_ = 0;                     // entries put
  mutable std::optional<IoDeadline> soonest_;  // of the entries; nothing: to be found again
  std::int64_t current_begin_ns_ = 0;
  bool taken_ = false;  // the oldest entry is the current one
  bool wait_over_ = false;
  WaitCompletion completion_;
};

}  // namespace headrace::tiers::nvme
