// Memory, streams and events of the emulated device; scheduler.cpp runs them. See engine.hpp.
#include "tiers/gpu/emulated/engine.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/assert.hpp"
#include "core/hash.hpp"

namespace headrace::tiers::gpu::emulated {

namespace {

constexpr int kNotReadyAnswersMax = 3;
// What nobody has written: float32 and bf16 read it as NaN.
constexpr int kUnwritten = 0xFF;

}  // namespace

void Engine::start(const Options& fresh) {
  HEADRACE_ASSERT(leaks().empty(), "an emulation starts once all of the one before is destroyed");
  std::map<Kernel, std::vector<std::size_t>> known = std::move(kernels);
  *this = Engine();
  kernels = std::move(known);
  options = fresh;
  random_.seed(options.seed);
}

cudaError_t Engine::begin_call(const char* function) {
  const std::uint64_t of_all = calls++;
  const std::uint64_t of_function = calls_of[function]++;
  const std::uint64_t call = fail_function.empty()       ? of_all
                             : fail_function == function ? of_function
                                                         : ~std::uint64_t{0};
  if (options.devices < 0) {
    return cudaErrorInsufficientDriver;
  }
  if (call == fail_at_call) {
    failed_call = function;
    switch (fail_call_error) {
      case cudaErrorIllegalAddress:
      case cudaErrorLaunchFailure:
      case cudaErrorECCUncorrectable:
        lose_device(fail_call_error);
        break;
      default:
        return fail_call_error;
    }
  }
  return device_error;
}

void Engine::violate(std::string text) {
  violations.push_back(std::move(text));
}

// Nothing that was put on a stream runs any more.
void Engine::lose_device(cudaError_t error) {
  device_error = error;
  host_copies_.clear();
  for (auto& [number, stream] : streams_) {
    stream->operations.clear();
  }
}

std::vector<std::string> Engine::leaks() const {
  std::vector<std::string> alive;
  alive.reserve(streams_.size() + events_.size() + allocations_.size() + registrations_.size());
  for (const auto& [number, stream] : streams_) {
    alive.push_back("stream " + std::to_string(number));
  }
  for (const auto& [number, event] : events_) {
    alive.push_back("event " + std::to_string(number));
  }
  for (const auto& [data, allocation] : allocations_) {
    alive.push_back("allocation of " + std::to_string(allocation.bytes) + " bytes");
  }
  for (const auto& [begin, bytes] : registrations_) {
    const bool is_owned = host_allocations_.contains(begin);
    alive.push_back((is_owned ? "host allocation of " : "registration of ") +
                    std::to_string(bytes) + " bytes");
  }
  return alive;
}

bool Engine::may_change(const char* function) {
  if (frozen) {
    violate(std::string(function) + " after the plan was frozen");
  }
  return !frozen;
}

// ---- memory ----

cudaError_t Engine::allocate(void** data, std::size_t bytes) {
  if (!may_change("cudaMalloc")) {
    return cudaErrorNotPermitted;
  }
  if (bytes > free_bytes()) {
    return cudaErrorMemoryAllocation;
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Allocation made{.bytes = bytes};
  made.open_bytes = (bytes + page - 1) / page * page;
  made.mapping_bytes = made.open_bytes + 2 * page;
  made.mapping = ::mmap(nullptr,
                        made.mapping_bytes,
                        PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1,
                        0);
  if (made.mapping == MAP_FAILED) {
    return cudaErrorMemoryAllocation;
  }
  made.data = static_cast<std::byte*>(made.mapping) + page;
  std::memset(made.data, kUnwritten, made.open_bytes);
  const int result = ::mprotect(made.mapping, made.mapping_bytes, PROT_NONE);
  HEADRACE_ASSERT(result == 0, "a mapping's access can be taken away");
  allocated_bytes_ += bytes;
  *data = made.data;
  allocations_.emplace(made.data, made);
  return cudaSuccess;
}

cudaError_t Engine::release(void* data) {
  if (data == nullptr) {
    return cudaSuccess;
  }
  const bool allowed = may_change("cudaFree");
  const auto found = allocations_.find(data);
  if (found == allocations_.end()) {
    violate("cudaFree of what was not allocated");
    return cudaErrorInvalidValue;
  }
  allocated_bytes_ -= found->second.bytes;
  ::munmap(found->second.mapping, found->second.mapping_bytes);
  allocations_.erase(found);
  return allowed ? cudaSuccess : cudaErrorNotPermitted;
}

cudaError_t Engine::register_host(void* data, std::size_t bytes) {
  if (!may_change("cudaHostRegister")) {
    return cudaErrorNotPermitted;
  }
  if (data == nullptr || bytes == 0) {
    return cudaErrorInvalidValue;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (const auto& [other, other_bytes] : registrations_) {
    if (begin < other + other_bytes && other < begin + bytes) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
  }
  registrations_.emplace(begin, bytes);
  return cudaSuccess;
}

cudaError_t Engine::unregister_host(void* data) {
  const bool allowed = may_change("cudaHostUnregister");
  if (host_allocations_.contains(reinterpret_cast<std::uintptr_t>(data)) ||
      registrations_.erase(reinterpret_cast<std::uintptr_t>(data)) == 0) {
    violate("cudaHostUnregister of what was not registered");
    return cudaErrorHostMemoryNotRegistered;
  }
  return allowed ? cudaSuccess : cudaErrorNotPermitted;
}

cudaError_t Engine::allocate_host(void** data, std::size_t bytes) {
  if (!may_change("cudaHostAlloc")) {
    return cudaErrorNotPermitted;
  }
  if (bytes == 0) {
    return cudaErrorInvalidValue;
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return cudaErrorMemoryAllocation;
  }
  registrations_.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes);
  host_allocations_.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes);
  *data = memory;
  return cudaSuccess;
}

cudaError_t Engine::release_host(void* data) {
  if (data == nullptr) {
    return cudaSuccess;
  }
  const bool allowed = may_change("cudaFreeHost");
  const auto found = host_allocations_.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == host_allocations_.end()) {
    violate("cudaFreeHost of what cudaHostAlloc did not give");
    return cudaErrorInvalidValue;
  }
  const auto* begin = static_cast<const std::byte*>(data);
  for (const auto& [number, copy] : host_copies_) {
    const std::byte* host = copy->writes_host ? copy->target : copy->source;
    if (host >= begin && host < begin + found->second) {
      violate("cudaFreeHost of memory that a pending copy uses");
      lose_device(cudaErrorInvalidValue);
      break;
    }
  }
  registrations_.erase(reinterpret_cast<std::uintptr_t>(data));
  ::munmap(data, found->second);
  host_allocations_.erase(found);
  return allowed ? cudaSuccess : cudaErrorNotPermitted;
}

// A range belongs to one allocation, or to one registration, or to neither.
Engine::Place Engine::place_of(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (const auto& [key, allocation] : allocations_) {
    const auto from = reinterpret_cast<std::uintptr_t>(allocation.data);
    if (begin >= from && begin + bytes <= from + allocation.bytes) {
      return {.on_device = true};
    }
  }
  const auto after = registrations_.upper_bound(begin);
  if (after != registrations_.begin()) {
    const auto& [from, length] = *std::prev(after);
    return {.registered = begin + bytes <= from + length};
  }
  return {};
}

// ---- streams and events ----

EmulatedStream* Engine::stream_of(cudaStream_t stream, const char* function) {
  // The three handles of default streams: legacy, also as null, and per thread.
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    violate(std::string(function) + " on the default stream");
    return nullptr;
  }
  for (const auto& [number, alive] : streams_) {
    if (static_cast<void*>(alive.get()) == static_cast<void*>(stream)) {
      return alive.get();
    }
  }
  violate(std::string(function) + " on a stream that does not exist");
  return nullptr;
}

EmulatedEvent* Engine::event_of(cudaEvent_t event, const char* function) {
  for (const auto& [number, alive] : events_) {
    if (static_cast<void*>(alive.get()) == static_cast<void*>(event)) {
      return alive.get();
    }
  }
  violate(std::string(function) + " of an event that does not exist");
  return nullptr;
}

cudaError_t Engine::create_stream(cudaStream_t* stream) {
  if (!may_change("cudaStreamCreate")) {
    return cudaErrorNotPermitted;
  }
  auto made = std::make_unique<EmulatedStream>(EmulatedStream{.number = next_number_++});
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  favourite_ = below(2) == 0 ? made->number : favourite_;
  streams_.emplace(made->number, std::move(made));
  return cudaSuccess;
}

cudaError_t Engine::destroy_stream(cudaStream_t stream) {
  const bool allowed = may_change("cudaStreamDestroy");
  EmulatedStream* found = stream_of(stream, "cudaStreamDestroy");
  if (found == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!found->operations.empty()) {
    violate("a stream was destroyed while operations of it were pending");
    lose_device(cudaErrorInvalidResourceHandle);
  }
  streams_.erase(found->number);
  return allowed ? cudaSuccess : cudaErrorNotPermitted;
}

cudaError_t Engine::create_event(cudaEvent_t* event, unsigned flags) {
  if (!may_change("cudaEventCreate")) {
    return cudaErrorNotPermitted;
  }
  auto made = std::make_unique<EmulatedEvent>(
      EmulatedEvent{.number = next_number_++, .has_timing = (flags & cudaEventDisableTiming) == 0});
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  events_.emplace(made->number, std::move(made));
  return cudaSuccess;
}

cudaError_t Engine::destroy_event(cudaEvent_t event) {
  const bool allowed = may_change("cudaEventDestroy");
  EmulatedEvent* found = event_of(event, "cudaEventDestroy");
  if (found == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (found->done < found->recorded && device_error == cudaSuccess) {
    violate("an event was destroyed before what it was recorded after had run");
    lose_device(cudaErrorInvalidResourceHandle);
  }
  events_.erase(found->number);
  return allowed ? cudaSuccess : cudaErrorNotPermitted;
}

cudaError_t Engine::query_event(cudaEvent_t event) {
  EmulatedEvent* found = event_of(event, "cudaEventQuery");
  if (found == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (found->done < found->recorded) {
    if (found->not_ready_answers > 0) {
      --found->not_ready_answers;
      run_some();
    } else {
      run_until(*found, found->recorded);
    }
  }
  if (device_error != cudaSuccess) {
    return device_error;
  }
  return found->done < found->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t Engine::query_stream(cudaStream_t stream) {
  EmulatedStream* found = stream_of(stream, "cudaStreamQuery");
  if (found == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!found->operations.empty() && can_run(*found)) {
    run_front(*found);
  } else if (!found->operations.empty()) {
    const StreamOperation& first = found->operations.front();
    run_until(*first.event, first.version);
  }
  if (device_error != cudaSuccess) {
    return device_error;
  }
  return found->operations.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t Engine::record(cudaEvent_t event, cudaStream_t stream) {
  EmulatedStream* on = stream_of(stream, "cudaEventRecord");
  EmulatedEvent* found = event_of(event, "cudaEventRecord");
  if (on == nullptr || found == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (found->done < found->recorded) {
    violate("an event was recorded again before what it had been recorded after had run");
  }
  found->stream = on->number;
  found->not_ready_answers = static_cast<int>(below(kNotReadyAnswersMax + 1));
  submit(*on,
         {.kind = StreamOperation::Kind::kRecord, .event = found, .version = ++found->recorded});
  return cudaSuccess;
}

// Of the last record of each; it does not make anything run.
cudaError_t Engine::elapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const EmulatedEvent* first = event_of(begin, "cudaEventElapsedTime");
  const EmulatedEvent* second = event_of(end, "cudaEventElapsedTime");
  if (first == nullptr || second == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  for (const EmulatedEvent* event : {first, second}) {
    if (!event->has_timing || event->recorded == 0) {
      violate("cudaEventElapsedTime of an event " +
              std::string(event->has_timing ? "that was never recorded" : "without timing"));
      return cudaErrorInvalidResourceHandle;
    }
  }
  if (milliseconds == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (first->done < first->recorded || second->done < second->recorded) {
    violate("cudaEventElapsedTime of a record that has not run");
    return cudaErrorNotReady;
  }
  constexpr double kNsPerMillisecond = 1e6;
  const std::int64_t ns = (second->done_tick - first->done_tick) * kNsPerTick;
  *milliseconds = static_cast<float>(static_cast<double>(ns) / kNsPerMillisecond);
  return cudaSuccess;
}

cudaError_t Engine::wait(cudaStream_t stream, cudaEvent_t event) {
  EmulatedStream* on = stream_of(stream, "cudaStreamWaitEvent");
  EmulatedEvent* found = event_of(event, "cudaStreamWaitEvent");
  if (on == nullptr || found == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  submit(*on, {.kind = StreamOperation::Kind::kWait, .event = found, .version = found->recorded});
  return cudaSuccess;
}

cudaError_t Engine::synchronize(const char* function) {
  if (!may_change(function)) {
    return cudaErrorNotPermitted;
  }
  for (auto& [number, event] : events_) {
    run_until(*event, event->recorded);
  }
  for (auto& [number, stream] : streams_) {
    while (!stream->operations.empty()) {
      run_front(*stream);
    }
  }
  return device_error;
}

// ---- operations ----

cudaError_t Engine::copy(
    void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  EmulatedStream* on = stream_of(stream, "cudaMemcpyAsync");
  if (on == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (bytes == 0) {
    return cudaSuccess;
  }
  const Place from = place_of(source, bytes);
  const Place to = place_of(target, bytes);
  const bool pageable = options.pageable_copies && !frozen && from.on_device != to.on_device &&
                        !from.registered && !to.registered;
  for (const Place& place : {from, to}) {
    if (!place.on_device && !place.registered && !pageable) {
      violate("cudaMemcpyAsync of memory that no single allocation or registration holds");
      return cudaErrorInvalidValue;
    }
  }
  const bool right = kind == cudaMemcpyHostToDevice     ? !from.on_device && to.on_device
                     : kind == cudaMemcpyDeviceToHost   ? from.on_device && !to.on_device
                     : kind == cudaMemcpyDeviceToDevice ? from.on_device && to.on_device
                                                        : kind == cudaMemcpyDefault;
  if (!right) {
    violate("cudaMemcpyAsync in another direction than it says");
    return cudaErrorInvalidMemcpyDirection;
  }
  StreamOperation operation{.kind = StreamOperation::Kind::kCopy};
  operation.target = static_cast<std::byte*>(target);
  operation.source = static_cast<const std::byte*>(source);
  operation.bytes = bytes;
  operation.reads_host = !from.on_device;
  operation.writes_host = !to.on_device;
  if (operation.reads_host) {
    operation.source_hash = hash_bytes({operation.source, bytes});
  }
  submit(*on, std::move(operation));
  if (pageable) {
    run_all(*on);
    return device_error;
  }
  return cudaSuccess;
}

cudaError_t Engine::fill(void* target, int value, std::size_t bytes, cudaStream_t stream) {
  EmulatedStream* on = stream_of(stream, "cudaMemsetAsync");
  if (on == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!place_of(target, bytes).on_device) {
    violate("cudaMemsetAsync of memory that no single allocation holds");
    return cudaErrorInvalidValue;
  }
  StreamOperation operation{.kind = StreamOperation::Kind::kFill};
  operation.target = static_cast<std::byte*>(target);
  operation.bytes = bytes;
  operation.value = value;
  submit(*on, std::move(operation));
  return cudaSuccess;
}

cudaError_t Engine::launch(Kernel kernel, void** arguments, cudaStream_t stream) {
  EmulatedStream* on = stream_of(stream, "cudaLaunchKernelExC");
  const auto found = kernels.find(kernel);
  if (on == nullptr || found == kernels.end()) {
    return on == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction;
  }
  StreamOperation operation{.kind = StreamOperation::Kind::kKernel};
  operation.kernel = kernel;
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    const std::size_t offset = operation.arguments.size();
    const std::size_t bytes = found->second[i];
    operation.offsets.push_back(offset);
    // Each argument as aligned as anything may want it.
    operation.arguments.resize(offset + (bytes + alignof(std::max_align_t) - 1) /
                                            alignof(std::max_align_t) * alignof(std::max_align_t));
    std::memcpy(operation.arguments.data() + offset, arguments[i], bytes);
  }
  submit(*on, std::move(operation));
  return cudaSuccess;
}

}  // namespace headrace::tiers::gpu::emulated
