// The NVMe link: for each folder of a store one engine, which is a thread over a back end, with
// many lanes. A lane is an in-order Queue whose operations read or write extents; lanes are
// concurrent with one another. A read is done when its payload is in the target and its header and
// sums have been checked; a write when every byte has been accepted (durable at Store::commit).
//
// Requests go out earliest deadline first, over all lanes; requests and bytes in flight are both
// bounded, so that a read that is wanted now waits for no more than those bytes. No lane that has
// work starves. Every completion's result is looked at: short I/O goes on, EINTR/EAGAIN is retried,
// an error raises the runtime's fault with the operation, path, offset and what to do. Sums are
// made and checked on the engine's thread while other bytes are in flight. Nothing is copied: the
// back end gets the caller's memory, which must be page-aligned and stay valid until the event.
//
// Threads: read, write and Queue's submitting calls by one scheduler thread; create and the
// destructor, which finishes what was submitted, likewise; expedite, cancel, describe_waits and
// totals by any. Bodies given to Queue::submit run on the engine's thread, between its transfers:
// they are for short notes, not for work. Nothing is allocated between create and a fault.
// After a fault no request is submitted; those in flight are awaited; tickets still finish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/io_backend.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/queue.hpp"

namespace headrace::tiers::nvme {

// When an operation is wanted, as a number that is only compared: smaller is sooner. A plan's is
// the place of the consumer in the run. An operation that others of its lane wait behind is wanted
// when the soonest of them is, and so is one that another lane waits for.
using IoDeadline = std::uint64_t;
inline constexpr IoDeadline kWantedNow = 0;
inline constexpr IoDeadline kDeadlineOfReads = IoDeadline{1} << 62U;   // where none is given
inline constexpr IoDeadline kDeadlineOfWrites = IoDeadline{1} << 63U;  // where none is given

// What a read checks before it is done. Without the sums a payload that was damaged is not noticed;
// the header, which says what the extent is, is checked in any case.
enum class ReadCheck : std::uint8_t { kHeaderAndSums, kHeaderOnly };

struct EngineOptions {
  int lanes = 1;
  int io_depth = 8;  // requests in flight; as many again of what is wanted now
  std::size_t request_bytes_max = std::size_t{1} << 20U;  // of payload: whole pages, at most 1 GiB
  // In flight; a request that is larger goes alone. Nothing: io_depth requests' worth.
  std::optional<std::size_t> bytes_in_flight_max{};
  std::size_t lane_capacity = 16;  // operations and waits in a lane's ring, the running one too
  std::optional<double> read_bytes_per_s{};   // a cap, to rehearse another drive
  std::optional<double> write_bytes_per_s{};  // the same, and a folder's write_limit
  // Memory that operations mostly use (arenas), to be registered with the kernel. Outlives the
  // engine.
  std::vector<std::span<std::byte>> buffers{};
  BackendFactory make_backend = make_system_backend;
  // No thread: nothing happens but in turn(). For simulations that a seed decides.
  bool driven_by_caller = false;
};

class IoLane : public Queue {
 public:
  using Queue::Queue;
  // Payload sizes must equal the extent's. `id` is the caller's number of the operation.
  virtual void read(const ExtentKey& key,
                    std::span<std::byte> target,
                    std::uint64_t id,
                    IoDeadline deadline,
                    ReadCheck check) = 0;
  // The store must be ready for writes (with one slot a tile: Store::mark_dirty comes before), but
  // for spill extents.
  virtual void write(const ExtentKey& key,
                     std::span<const std::byte> source,
                     std::int64_t step,
                     std::uint64_t id,
                     IoDeadline deadline) = 0;

  void read(const ExtentKey& key,
            std::span<std::byte> target,
            std::uint64_t id,
            IoDeadline deadline = kDeadlineOfReads) {
    read(key, target, id, deadline, ReadCheck::kHeaderAndSums);
  }

  void write(const ExtentKey& key,
             std::span<const std::byte> source,
             std::int64_t step,
             std::uint64_t id) {
    write(key, source, step, id, kDeadlineOfWrites);
  }
};

struct IoTotals {
  std::uint64_t read_bytes = 0, write_bytes = 0;  // payload and headers, as moved by the device
  std::uint64_t resubmitted = 0;                  // requests that were cut short or refused once
  std::int64_t sum_ns = 0;                        // of a processor, spent on sums
};

class IoEngine {
 public:
  // `store`, `runtime` and the buffers outlive the engine. Errors: no back end can be had (what to
  // do), no memory, no thread.
  [[nodiscard]] static Result<std::unique_ptr<IoEngine>> create(Runtime& runtime,
                                                                Store& store,
                                                                std::uint32_t folder,
                                                                const EngineOptions& options);

  virtual ~IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  [[nodiscard]] virtual IoLane& lane(int index) = 0;
  [[nodiscard]] virtual IoTotals totals() const = 0;
  // What the back end obtained.
  [[nodiscard]] virtual const BackendFacts& facts() const = 0;
  // Header pages, requests, rings and the back end, for the plan's process line.
  [[nodiscard]] virtual std::size_t memory_bytes() const = 0;

  // Raises the runtime's fault, unless there is one: nothing new is submitted, what the back end
  // has not begun with is given up, tickets finish.
  virtual void cancel(Error reason) = 0;
  // One entry for each lane that is not idle.
  [[nodiscard]] virtual std::vector<QueueWait> describe_waits() const = 0;
  // driven_by_caller: does what can be done, and waits for one completion if requests are in
  // flight. False: there was nothing to do.
  virtual bool turn() = 0;

 protected:
  IoEngine() = default;
};

}  // namespace headrace::tiers::nvme
