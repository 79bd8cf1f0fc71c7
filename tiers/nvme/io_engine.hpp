// The NVMe link: one io_uring and one thread per store, many lanes. A lane is an in-order Queue whose operations read or write extents; lanes are
// concurrent with one another, so the number of lanes bounds the transfers in flight, and io_depth the requests. A read is done when its payload is
// in the target and its header and sums have been checked; a write when every byte has been accepted (durable at Store::commit).
//
// Every completion's result is looked at: short I/O is resubmitted, EINTR/EAGAIN retried, an error raises the runtime's fault with the operation, path,
// offset and what to do. Direct I/O: target and source memory must be page-aligned and stay valid until the event. Headers live in memory of the
// engine's own, one per lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/error.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/queue.hpp"

namespace headrace::tiers::nvme {

struct EngineOptions {
  int lanes = 1;
  int io_depth = 8;                                 // requests in flight
  std::size_t request_bytes_max = 1024 * 1024;
  std::size_t lane_capacity = 16;                   // operations and waits in a lane's ring
  std::optional<double> read_bytes_per_s;           // caps, to rehearse another drive
  std::optional<double> write_bytes_per_s;
};

class IoLane : public Queue {
 public:
  using Queue::Queue;
  // Payload sizes must equal the extent's. `id` is the caller's number of the operation.
  virtual void read(const ExtentKey& key, std::span<std::byte> target, std::uint64_t id) = 0;
  virtual void write(const ExtentKey& key, std::span<const std::byte> source, std::int64_t step, std::uint64_t id) = 0;
};

struct IoTotals {
  std::uint64_t read_bytes = 0, write_bytes = 0;    // payload and headers, as asked of the device
  std::uint64_t resubmitted = 0;
};

class IoEngine {
 public:
  // `store` outlives the engine. Errors: io_uring is forbidden or missing (what to do), locked memory.
  [[nodiscard]] static Result<std::unique_ptr<IoEngine>> create(Runtime& runtime, Store& store, const EngineOptions& options);
  virtual ~IoEngine() = default;
  [[nodiscard]] virtual IoLane& lane(int index) = 0;
  [[nodiscard]] virtual IoTotals totals() const = 0;
  [[nodiscard]] virtual std::size_t memory_bytes() const = 0;  // header pages and rings, for the plan's process line
};

}  // namespace headrace::tiers::nvme
