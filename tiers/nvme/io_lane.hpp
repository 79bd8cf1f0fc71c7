// A lane's ring and its state in the engine. Internal to tiers/nvme.
//
// Invariant: the ring and the signals between threads (Signals) change under the engine's one
// mutex; `transfer` and everything else of a lane's progress belong to the engine's thread. A lane
// runs one operation at a time, in the order of submission. Threads: see io_engine.hpp.
// Failure: none of its own; the engine raises the fault.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/trace.hpp"
#include "core/unique.hpp"
#include "tiers/nvme/io_engine.hpp"

namespace headrace::tiers::nvme {

// What other threads tell the engine's thread: that there is work, or that a wait is over.
struct Signals {
  std::mutex mutex;
  bool wake_written = false;  // the eventfd holds a wake that the engine has not taken yet
  bool closing = false;
  UniqueFd wake;  // eventfd, polled through the ring

  // With the mutex held: so that the engine cannot be gone before the write is over.
  void wake_engine();
};

struct LaneEntry {
  enum class Kind : std::uint8_t { kWait, kBody, kRead, kWrite };
  Kind kind = Kind::kWait;
  const char* name = "";
  std::uint64_t id = 0;
  std::uint64_t ticket = 0;
  Event event;    // kWait
  Body body;      // kBody
  ExtentKey key;  // kRead, kWrite
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::int64_t step = 0;  // kWrite
};

// The operation that a lane runs. Header and payload are one range of the file,
// [place.offset, place.offset + total); positions count from its beginning.
struct Transfer {
  ExtentPlace place;
  std::uint64_t total = 0;
  std::uint64_t issued = 0;    // given to the kernel, or about to be
  std::uint64_t finished = 0;  // moved
  int in_flight = 0;           // requests
  std::int64_t begin_ns = 0;
};

class Lane final : public IoLane {
 public:
  enum class Phase : std::uint8_t { kIdle, kWaiting, kTransferring };

  struct Setup {
    Store& store;
    Signals& signals;
    std::size_t capacity;
    std::span<std::byte> header;  // for the largest extent
  };

  Lane(Runtime& runtime, std::string name, const Setup& setup);

  void read(const ExtentKey& key, std::span<std::byte> target, std::uint64_t id) override;
  void write(const ExtentKey& key,
             std::span<const std::byte> source,
             std::int64_t step,
             std::uint64_t id) override;

  // Engine's thread from here on.
  // Makes the oldest entry `current`, if there is one. It keeps its place until finish_current().
  [[nodiscard]] bool take();
  [[nodiscard]] bool empty();
  // True: the event is done. False: the engine will be woken, and wait_over() then says so.
  [[nodiscard]] bool begin_wait(const Event& event);
  [[nodiscard]] bool wait_over();

  // The current entry is over: its ticket is finished, its place in the ring is free.
  void finish_current();

  Phase phase = Phase::kIdle;
  LaneEntry current;
  Transfer transfer;
  std::int64_t wait_begin_ns = 0;
  TraceTrack track;

  [[nodiscard]] std::span<std::byte> header() const {
    return header_.first(transfer.place.header_bytes);
  }

  [[nodiscard]] std::span<std::byte> payload() const { return {current.memory, current.bytes}; }

 protected:
  void push(const Operation& operation, Body body) override;
  void push_wait(const Event& event) override;

 private:
  struct WaitCompletion : Completion {
    Lane* lane = nullptr;
  };

  // Fills the next entry in place; blocks while the ring is full.
  template <class Fill>
  void put(Fill fill);
  void check_memory(const ExtentKey& key, const void* memory, std::size_t bytes) const;

  Store& store_;
  Signals& signals_;
  std::span<std::byte> header_;
  std::vector<LaneEntry> ring_;
  std::condition_variable not_full_;
  std::uint64_t head_ = 0;  // entries finished; under signals_.mutex, as are the next two
  std::uint64_t tail_ = 0;  // entries put
  bool wait_over_ = false;
  WaitCompletion completion_;
};

}  // namespace headrace::tiers::nvme
