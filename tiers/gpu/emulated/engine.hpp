// The emulated device: its memory, its streams and the scheduler that runs them. Internal to
// tiers/gpu/emulated; cudart.cpp turns CUDA's functions into its methods.
//
// Invariant: an operation runs after all before it in its stream, and a wait after the record that
// its event stood for when the wait was put there. Device memory can be touched only while an
// operation runs. Threads: every method with the lock of with_call() held. Failure: CUDA's errors.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tiers/gpu/emulated/runtime.hpp"

namespace headrace::tiers::gpu::emulated {

// Of the device's clock: "a resolution of around 0.5 microseconds".
inline constexpr std::int64_t kNsPerTick = 500;

struct EmulatedEvent {
  std::uint64_t number = 0;
  std::uint64_t recorded = 0;  // version of the last record that was put on a stream
  std::uint64_t done = 0;      // version of the last record that has run
  int not_ready_answers = 0;   // that queries of `recorded` still get before it is made to run
  std::uint64_t stream = 0;    // of the last record, by number
  bool has_timing = false;
  std::int64_t done_tick = 0;  // of the device's clock, when `done` ran
};

struct StreamOperation {
  enum class Kind : std::uint8_t { kKernel, kCopy, kFill, kRecord, kWait };
  Kind kind = Kind::kKernel;
  std::uint64_t number = 0;
  // kCopy, kFill
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::size_t bytes = 0;
  bool reads_host = false, writes_host = false;
  std::uint64_t source_hash = 0;
  bool poisoned = false;
  int value = 0;
  // kRecord, kWait
  EmulatedEvent* event = nullptr;
  std::uint64_t version = 0;
  // kKernel
  Kernel kernel = nullptr;
  std::vector<std::byte> arguments = {};
  std::vector<std::size_t> offsets = {};
};

struct EmulatedStream {
  std::uint64_t number = 0;
  std::deque<StreamOperation> operations = {};
};

class Engine {
 public:
  void start(const Options& fresh);

  // Memory.
  [[nodiscard]] cudaError_t allocate(void** data, std::size_t bytes);
  [[nodiscard]] cudaError_t release(void* data);
  [[nodiscard]] cudaError_t register_host(void* data, std::size_t bytes);
  [[nodiscard]] cudaError_t unregister_host(void* data);
  // Host memory of the driver's own, registered by its nature.
  [[nodiscard]] cudaError_t allocate_host(void** data, std::size_t bytes);
  [[nodiscard]] cudaError_t release_host(void* data);

  [[nodiscard]] std::size_t free_bytes() const { return options.device_bytes - allocated_bytes_; }

  // Streams and events. Handles are pointers to ours.
  [[nodiscard]] cudaError_t create_stream(cudaStream_t* stream);
  [[nodiscard]] cudaError_t destroy_stream(cudaStream_t stream);
  [[nodiscard]] cudaError_t query_stream(cudaStream_t stream);
  [[nodiscard]] cudaError_t create_event(cudaEvent_t* event, unsigned flags);
  [[nodiscard]] cudaError_t destroy_event(cudaEvent_t event);
  [[nodiscard]] cudaError_t query_event(cudaEvent_t event);
  [[nodiscard]] cudaError_t record(cudaEvent_t event, cudaStream_t stream);
  [[nodiscard]] cudaError_t elapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
  [[nodiscard]] cudaError_t wait(cudaStream_t stream, cudaEvent_t event);
  // Runs everything: a violation once frozen.
  [[nodiscard]] cudaError_t synchronize(const char* function);

  // Operations.
  [[nodiscard]] cudaError_t copy(void* target,
                                 const void* source,
                                 std::size_t bytes,
                                 cudaMemcpyKind kind,
                                 cudaStream_t stream);
  [[nodiscard]] cudaError_t fill(void* target, int value, std::size_t bytes, cudaStream_t stream);
  [[nodiscard]] cudaError_t launch(Kernel kernel, void** arguments, cudaStream_t stream);

  // What with_call() needs.
  [[nodiscard]] cudaError_t begin_call(const char* function);
  void violate(std::string text);
  void lose_device(cudaError_t error);
  [[nodiscard]] std::vector<std::string> leaks() const;

  // For cudart.cpp, and set by tests.
  Options options;
  bool frozen = false;
  std::uint64_t calls = 0;
  std::map<std::string, std::uint64_t> calls_of;
  std::string fail_function;  // whose calls fail_at_call counts; "": all
  std::uint64_t fail_at_call = ~std::uint64_t{0};
  cudaError_t fail_call_error = cudaSuccess;
  std::string failed_call;
  std::uint64_t operations_run = 0;
  std::uint64_t fail_at_operation = ~std::uint64_t{0};
  cudaError_t fail_operation_error = cudaSuccess;
  cudaError_t device_error = cudaSuccess;  // sticky: the device is lost
  cudaError_t last_error = cudaSuccess;
  std::vector<std::string> violations;
  std::map<Kernel, std::vector<std::size_t>> kernels;
  Cores* cores = nullptr;

 private:
  struct Allocation {
    std::byte* data = nullptr;
    std::size_t bytes = 0;  // usable, to the byte
    void* mapping = nullptr;
    std::size_t mapping_bytes = 0;
    std::size_t open_bytes = 0;  // pages between the guards
  };

  struct Place {
    bool on_device = false;
    bool registered = false;
  };

  [[nodiscard]] bool may_change(const char* function);
  [[nodiscard]] EmulatedStream* stream_of(cudaStream_t stream, const char* function);
  [[nodiscard]] EmulatedEvent* event_of(cudaEvent_t event, const char* function);
  [[nodiscard]] Place place_of(const void* data, std::size_t bytes) const;
  void submit(EmulatedStream& stream, StreamOperation operation);
  void run_all(EmulatedStream& stream);

  // Running.
  [[nodiscard]] std::uint64_t below(std::uint64_t limit);
  [[nodiscard]] bool can_run(const EmulatedStream& stream) const;
  void run_some();  // whatever the seed's mood says, at any call
  // Whatever must have run for the event's record of this version to have run, and no more.
  void run_until(const EmulatedEvent& event, std::uint64_t version);
  void need(std::uint64_t stream, std::size_t count, std::map<std::uint64_t, std::size_t>& needed);
  [[nodiscard]] std::size_t place_of_record(const EmulatedEvent& event,
                                            std::uint64_t version) const;
  void run_front(EmulatedStream& stream);
  void execute(StreamOperation& operation);
  void execute_copy(StreamOperation& operation);
  void open_device(bool open);
  [[nodiscard]] std::int64_t device_tick() const;

  // Host memory that copies will read or write.
  void poison_targets();
  void rehash_sources(const StreamOperation& landed);
  [[nodiscard]] std::byte poison() const;

  std::mt19937_64 random_;
  std::uint64_t next_number_ = 1;
  std::size_t allocated_bytes_ = 0;
  std::uint64_t favourite_ = 0;  // a stream's number, of one mood of the scheduler
  std::map<void*, Allocation> allocations_;
  std::map<std::uintptr_t, std::size_t> registrations_;
  std::map<std::uintptr_t, std::size_t> host_allocations_;  // that are registrations too
  std::map<std::uint64_t, std::unique_ptr<EmulatedStream>> streams_;
  std::map<std::uint64_t, std::unique_ptr<EmulatedEvent>> events_;
  std::map<std::uint64_t, StreamOperation*> host_copies_;  // pending, by number
};

// The one engine, to be used by whoever holds its lock.
[[nodiscard]] Engine& engine_locked();

}  // namespace headrace::tiers::gpu::emulated
