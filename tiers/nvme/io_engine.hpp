// The NVMe link: one io_uring and one thread per store, many lanes. A lane is an in-order Queue
// whose operations read or write extents; lanes are concurrent with one another, so the number of
// lanes bounds the transfers in flight, and io_depth the requests. A read is done when its payload
// is in the target and its header and sums have been checked; a write when every byte has been
// accepted (durable at Store::commit).
//
// Every completion's result is looked at: short I/O is resubmitted, EINTR/EAGAIN retried, an error
// raises the runtime's fault with the operation, path, offset and what to do. Direct I/O: target
// and source memory must be page-aligned and stay valid until the event. Headers live in memory of
// the engine's own, one per lane. Sums are made (write) and checked (read) on the engine's thread.
//
// Threads: read, write and Queue's submitting calls by one scheduler thread; create and the
// destructor, which finishes what was submitted, likewise. Bodies given to Queue::submit run on the
// engine's thread, between its transfers: they are for short notes, not for work.
// After a fault no request is submitted; those in flight are awaited; tickets still finish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/error.hpp"
#include "tiers/nvme/io_backend.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/queue.hpp"

namespace headrace::tiers::nvme {

// Tests only: may replace what a completion says before the engine looks at it, so that every
// path after a fault of the system runs against real files. Called on the engine's thread.
class IoFaults {
 public:
  virtual ~IoFaults() = default;
  // `result` as the kernel gave it: bytes, or a negated errno. Returns what the engine shall see.
  virtual int on_completion(const IoRequest& request, int result) = 0;
};

struct EngineOptions {
  int lanes = 1;
  int io_depth = 8;                                       // requests in flight
  std::size_t request_bytes_max = std::size_t{1} << 20U;  // a multiple of kPageBytes, at most 1 GiB
  std::size_t lane_capacity = 16;  // operations and waits in a lane's ring, the running one too
  std::optional<double> read_bytes_per_s{};  // caps, to rehearse another drive
  std::optional<double> write_bytes_per_s{};
  IoFaults* faults = nullptr;  // tests only
};

class IoLane : public Queue {
 public:
  using Queue::Queue;
  // Payload sizes must equal the extent's. `id` is the caller's number of the operation.
  virtual void read(const ExtentKey& key, std::span<std::byte> target, std::uint64_t id) = 0;
  // The store must be dirty already (Store::mark_dirty): that is a write of its own, made before.
  virtual void write(const ExtentKey& key,
                     std::span<const std::byte> source,
                     std::int64_t step,
                     std::uint64_t id) = 0;
};

struct IoTotals {
  std::uint64_t read_bytes = 0, write_bytes = 0;  // payload and headers, as moved by the device
  std::uint64_t resubmitted = 0;                  // requests that were cut short or refused once
};

class IoEngine {
 public:
  // `store` and `runtime` outlive the engine. Errors: io_uring is forbidden or missing (what to
  // do), no memory.
  [[nodiscard]] static Result<std::unique_ptr<IoEngine>> create(Runtime& runtime,
                                                                Store& store,
                                                                const EngineOptions& options);
  virtual ~IoEngine() = default;
  [[nodiscard]] virtual IoLane& lane(int index) = 0;
  [[nodiscard]] virtual IoTotals totals() const = 0;
  // Header pages, requests and rings, for the plan's process line.
  [[nodiscard]] virtual std::size_t memory_bytes() const = 0;
};

}  // namespace headrace::tiers::nvme
