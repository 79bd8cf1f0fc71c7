// The functions of the CUDA runtime that tiers/gpu uses, on the emulated device. Each takes the one
// lock, counts, and may fail as a test asked; then the engine does it.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/assert.hpp"
#include "core/error.hpp"
#include "tiers/gpu/emulated/engine.hpp"

namespace headrace::tiers::gpu::emulated {

namespace {

constexpr int kRuntimeVersion = 13000;

std::mutex& lock_of_all() {
  static std::mutex mutex;
  return mutex;
}

// Whether a call that is made to fail does its work nevertheless.
enum class OnFailure : std::uint8_t { kNothing, kReleases };

template <class F>
cudaError_t with_call(const char* function,
                      const F& body,
                      OnFailure on_failure = OnFailure::kNothing) {
  const std::scoped_lock lock(lock_of_all());
  Engine& engine = engine_locked();
  cudaError_t error = engine.begin_call(function);
  if (error == cudaSuccess) {
    error = body(engine);
  } else if (on_failure == OnFailure::kReleases) {
    [[maybe_unused]] const cudaError_t hidden = body(engine);
  }
  if (error != cudaSuccess && error != cudaErrorNotReady) {
    engine.last_error = error;
  }
  return error;
}

// The argument of launch_body's kernel.
void run_body(void** arguments) {
  Body& body = *static_cast<Body*>(arguments[0]);
  Engine& engine = engine_locked();  // of the call that made this kernel run
  Status status;
  try {
    const std::unique_lock<Cores> held =
        engine.cores != nullptr ? engine.cores->hold() : std::unique_lock<Cores>();
    status = body();
  } catch (const std::exception& exception) {
    status = operating_error(exception.what());
  }
  if (!status) {
    engine.violate("a kernel failed: " + format_error(status.error(), true));
    engine.lose_device(cudaErrorLaunchFailure);
  }
}

}  // namespace

Engine& engine_locked() {
  static Engine engine;
  return engine;
}

void start(const Options& options) {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().start(options);
}

void freeze() {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().frozen = true;
}

void thaw() {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().frozen = false;
}

void fail_call(std::uint64_t calls, int error) {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().fail_function.clear();
  engine_locked().fail_at_call = engine_locked().calls + calls;
  engine_locked().fail_call_error = static_cast<cudaError_t>(error);
}

void fail_call_of(const std::string& function, std::uint64_t calls, int error) {
  const std::scoped_lock lock(lock_of_all());
  Engine& engine = engine_locked();
  engine.fail_function = function;
  engine.fail_at_call = engine.calls_of[function] + calls;
  engine.fail_call_error = static_cast<cudaError_t>(error);
}

void fail_operation(std::uint64_t operations, int error) {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().fail_at_operation = engine_locked().operations_run + operations;
  engine_locked().fail_operation_error = static_cast<cudaError_t>(error);
}

std::uint64_t call_count() {
  const std::scoped_lock lock(lock_of_all());
  return engine_locked().calls;
}

std::map<std::string, std::uint64_t> calls_by_function() {
  const std::scoped_lock lock(lock_of_all());
  return engine_locked().calls_of;
}

std::uint64_t operation_count() {
  const std::scoped_lock lock(lock_of_all());
  return engine_locked().operations_run;
}

std::string failed_call() {
  const std::scoped_lock lock(lock_of_all());
  return engine_locked().failed_call;
}

std::vector<std::string> violations() {
  const std::scoped_lock lock(lock_of_all());
  return engine_locked().violations;
}

std::vector<std::string> leaks() {
  const std::scoped_lock lock(lock_of_all());
  return engine_locked().leaks();
}

void register_kernel(Kernel kernel, std::vector<std::size_t> argument_bytes) {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().kernels[kernel] = std::move(argument_bytes);
}

void use_cores(Cores& cores) {
  const std::scoped_lock lock(lock_of_all());
  engine_locked().cores = &cores;
}

int launch_body(CUstream_st* stream, const Body& body) {
  static const bool is_registered = [] {
    register_kernel(run_body, {sizeof(Body)});
    return true;
  }();
  HEADRACE_ASSERT(is_registered, "a kernel is known before it is launched");
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = {1, 1, 1};
  config.stream = stream;
  Body copy = body;
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(run_body), arguments);
}

}  // namespace headrace::tiers::gpu::emulated

// ---- what the toolkit's header declares ----

using headrace::tiers::gpu::emulated::Engine;
using headrace::tiers::gpu::emulated::engine_locked;
using headrace::tiers::gpu::emulated::Kernel;
using headrace::tiers::gpu::emulated::kRuntimeVersion;
using headrace::tiers::gpu::emulated::OnFailure;
using headrace::tiers::gpu::emulated::with_call;

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}

// 0 where there is no driver, as the real one says it.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  const cudaError_t error = with_call("cudaDriverGetVersion", [version](Engine&) {
    *version = kRuntimeVersion;
    return cudaSuccess;
  });
  return error == cudaErrorInsufficientDriver ? cudaSuccess : error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return with_call("cudaGetDeviceCount", [count](Engine& engine) {
    *count = engine.options.devices;
    return engine.options.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return with_call("cudaSetDevice", [device](Engine& engine) {
    return device >= 0 && device < engine.options.devices ? cudaSuccess : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return with_call("cudaGetDeviceProperties", [properties, device](Engine& engine) {
    *properties = {};
    (void)std::snprintf(properties->name, sizeof properties->name, "emulated GPU %d", device);
    properties->totalGlobalMem = engine.options.device_bytes;
    properties->major = 9;
    properties->asyncEngineCount = 2;
    properties->unifiedAddressing = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return with_call("cudaDeviceGetPCIBusId", [text, bytes, device](Engine& /*engine*/) {
    (void)std::snprintf(text, static_cast<std::size_t>(bytes), "FFFF:%02X:00.0", device);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return with_call("cudaMemGetInfo", [free_bytes, total_bytes](Engine& engine) {
    *free_bytes = engine.free_bytes();
    *total_bytes = engine.options.device_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return with_call("cudaMalloc",
                   [data, bytes](Engine& engine) { return engine.allocate(data, bytes); });
}

cudaError_t cudaFree(void* data) {
  return with_call(
      "cudaFree", [data](Engine& engine) { return engine.release(data); }, OnFailure::kReleases);
}

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned int /*flags*/) {
  return with_call("cudaHostRegister",
                   [data, bytes](Engine& engine) { return engine.register_host(data, bytes); });
}

cudaError_t cudaHostUnregister(void* data) {
  return with_call(
      "cudaHostUnregister",
      [data](Engine& engine) { return engine.unregister_host(data); },
      OnFailure::kReleases);
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned int /*flags*/) {
  return with_call("cudaHostAlloc",
                   [data, bytes](Engine& engine) { return engine.allocate_host(data, bytes); });
}

cudaError_t cudaFreeHost(void* data) {
  return with_call(
      "cudaFreeHost",
      [data](Engine& engine) { return engine.release_host(data); },
      OnFailure::kReleases);
}

cudaError_t cudaDeviceSynchronize() {
  return with_call("cudaDeviceSynchronize",
                   [](Engine& engine) { return engine.synchronize("cudaDeviceSynchronize"); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  return with_call("cudaStreamCreateWithFlags",
                   [stream](Engine& engine) { return engine.create_stream(stream); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return with_call(
      "cudaStreamDestroy",
      [stream](Engine& engine) { return engine.destroy_stream(stream); },
      OnFailure::kReleases);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return with_call("cudaStreamQuery",
                   [stream](Engine& engine) { return engine.query_stream(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return with_call("cudaStreamSynchronize",
                   [](Engine& engine) { return engine.synchronize("cudaStreamSynchronize"); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  return with_call("cudaStreamWaitEvent",
                   [stream, event](Engine& engine) { return engine.wait(stream, event); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return with_call("cudaEventCreateWithFlags",
                   [event, flags](Engine& engine) { return engine.create_event(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return with_call(
      "cudaEventDestroy",
      [event](Engine& engine) { return engine.destroy_event(event); },
      OnFailure::kReleases);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return with_call("cudaEventRecord",
                   [event, stream](Engine& engine) { return engine.record(event, stream); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return with_call("cudaEventQuery", [event](Engine& engine) { return engine.query_event(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return with_call("cudaEventElapsedTime", [milliseconds, begin, end](Engine& engine) {
    return engine.elapsed(milliseconds, begin, end);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  return with_call("cudaEventSynchronize",
                   [](Engine& engine) { return engine.synchronize("cudaEventSynchronize"); });
}

cudaError_t cudaMemcpyAsync(
    void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return with_call("cudaMemcpyAsync", [=](Engine& engine) {
    return engine.copy(target, source, bytes, kind, stream);
  });
}

cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream) {
  return with_call("cudaMemsetAsync",
                   [=](Engine& engine) { return engine.fill(target, value, bytes, stream); });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* function,
                                void** arguments) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): CUDA's signature for a function
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(function));
  return with_call("cudaLaunchKernelExC", [=](Engine& engine) {
    return engine.launch(kernel, arguments, config->stream);
  });
}

cudaError_t cudaGetLastError() {
  const std::scoped_lock lock(headrace::tiers::gpu::emulated::lock_of_all());
  return std::exchange(engine_locked().last_error, engine_locked().device_error);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "an emulated error";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

}  // extern "C"
