#include "tiers/gpu/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/unique.hpp"
#include "tiers/gpu/cuda_error.hpp"

namespace headrace::tiers::gpu {

namespace {

struct DeviceMemoryTraits {
  using Handle = void*;
  static constexpr std::nullptr_t kEmpty = nullptr;

  static void close(Handle handle) noexcept {
    [[maybe_unused]] const cudaError_t error = cudaFree(handle);
  }
};

struct RegistrationTraits {
  using Handle = void*;
  static constexpr std::nullptr_t kEmpty = nullptr;

  static void close(Handle handle) noexcept {
    [[maybe_unused]] const cudaError_t error = cudaHostUnregister(handle);
  }
};

// A piece of a host arena that the driver knows.
struct Slab {
  Unique<RegistrationTraits> registration;
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

std::string version_text(int version) {
  constexpr int kMajor = 1000;
  constexpr int kMinor = 10;
  return std::to_string(version / kMajor) + "." + std::to_string(version % kMajor / kMinor);
}

Result<CudaDeviceFacts> facts_of(int ordinal) {
  cudaDeviceProp properties = {};
  HEADRACE_TRY(
      check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", ordinal));
  std::array<char, 32> pci = {};
  HEADRACE_TRY(check(cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), ordinal),
                     "cudaDeviceGetPCIBusId",
                     ordinal));
  CudaDeviceFacts facts;
  facts.ordinal = ordinal;
  facts.name = properties.name;
  facts.pci_id = pci.data();
  facts.compute_major = properties.major;
  facts.compute_minor = properties.minor;
  facts.memory_bytes = properties.totalGlobalMem;
  return facts;
}

class CudaDevice final : public Device {
 public:
  enum Link : std::size_t { kCompute, kH2d, kD2h };

  CudaDevice(CudaDeviceFacts facts, std::size_t slab_bytes, std::unique_ptr<StreamPoller> poller)
      : facts_(std::move(facts)), slab_bytes_(slab_bytes), poller_(std::move(poller)) {}

  [[nodiscard]] std::string name() const override {
    return "cuda:" + std::to_string(facts_.ordinal);
  }

  [[nodiscard]] std::string pci_id() const override { return facts_.pci_id; }

  [[nodiscard]] bool aliases_host() const override { return false; }

  [[nodiscard]] Queue& compute() override { return poller_->queue(kCompute); }

  [[nodiscard]] Queue& h2d() override { return poller_->queue(kH2d); }

  [[nodiscard]] Queue& d2h() override { return poller_->queue(kD2h); }

  [[nodiscard]] Result<std::span<std::byte>> allocate(std::size_t bytes) override {
    HEADRACE_ASSERT(!memory_.has_value(), "a device's memory is allocated once");
    if (bytes == 0) {
      return std::span<std::byte>();
    }
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      [[maybe_unused]] const cudaError_t cleared = cudaGetLastError();
      return no_memory(bytes);
    }
    HEADRACE_TRY(check(error, "cudaMalloc", facts_.ordinal));
    memory_.reset(data);
    return std::span<std::byte>(static_cast<std::byte*>(data), bytes);
  }

  [[nodiscard]] Status pin(std::span<std::byte> host) override {
    for (std::size_t offset = 0; offset < host.size(); offset += slab_bytes_) {
      const std::span<std::byte> slab =
          host.subspan(offset, std::min(slab_bytes_, host.size() - offset));
      if (Status status =
              check(cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterPortable),
                    "cudaHostRegister",
                    facts_.ordinal);
          !status) {
        Error error = std::move(status).error();
        error.trace.push_back("registering " + format_bytes(slab.size()) + " of host memory, " +
                              format_bytes(pinned_bytes_) + " are");
        return error;
      }
      slabs_.push_back({.registration = Unique<RegistrationTraits>(slab.data()),
                        .begin = slab.data(),
                        .bytes = slab.size()});
      pinned_bytes_ += slab.size();
    }
    std::sort(slabs_.begin(), slabs_.end(), [](const Slab& one, const Slab& other) {
      return one.begin < other.begin;
    });
    return {};
  }

  [[nodiscard]] std::size_t pinned_bytes() const override { return pinned_bytes_; }

  void copy(Queue& link,
            const char* name,
            std::uint64_t id,
            void* target,
            const void* source,
            std::size_t bytes) override {
    HEADRACE_ASSERT(&link == &h2d() || &link == &d2h(), "copies go through a link of this device");
    const bool to_device = &link == &h2d();
    const MemorySpan read(source, bytes);
    const MemorySpan write(target, bytes);
    const Operation operation{.name = name, .reads = {&read, 1}, .writes = {&write, 1}, .id = id};
    poller_->queue(to_device ? kH2d : kD2h)
        .issue(operation, [this, target, source, bytes, to_device](cudaStream_t stream) {
          return put_copy(stream, {target, source, bytes, to_device});
        });
  }

 private:
  struct Copy {
    void* target;
    const void* source;
    std::size_t bytes;
    bool to_device;
  };

  // Poller's thread. In pieces that each lie in one slab: the driver takes no copy across two
  // registrations.
  [[nodiscard]] Status put_copy(cudaStream_t stream, const Copy& copy) const {
    auto* target = static_cast<std::byte*>(copy.target);
    const auto* source = static_cast<const std::byte*>(copy.source);
    const std::byte* host = copy.to_device ? source : target;
    std::size_t done = 0;
    while (done < copy.bytes) {
      const std::size_t bytes = std::min(copy.bytes - done, bytes_to_slab_end(host + done));
      HEADRACE_TRY(
          check(cudaMemcpyAsync(target + done,
                                source + done,
                                bytes,
                                copy.to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                stream),
                "cudaMemcpyAsync",
                facts_.ordinal));
      done += bytes;
    }
    return {};
  }

  [[nodiscard]] std::size_t bytes_to_slab_end(const std::byte* host) const {
    const auto after = std::upper_bound(
        slabs_.begin(), slabs_.end(), host, [](const std::byte* place, const Slab& slab) {
          return place < slab.begin;
        });
    HEADRACE_ASSERT(after != slabs_.begin(), "copies use host memory that was pinned");
    const Slab& slab = *std::prev(after);
    HEADRACE_ASSERT(host < slab.begin + slab.bytes, "copies use host memory that was pinned");
    return static_cast<std::size_t>(slab.begin + slab.bytes - host);
  }

  [[nodiscard]] Error no_memory(std::size_t bytes) const {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    std::string why;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
      why = "of " + facts_.name + "'s " + format_bytes(total_bytes) + ", " +
            format_bytes(free_bytes) + " are free";
    }
    return does_not_fit_error("device memory: cannot take " + format_bytes(bytes) + " of " + name())
        .with_why(std::move(why))
        .with_hint("lower tiers.device_memory, or end other programs that use the GPU");
  }

  CudaDeviceFacts facts_;
  std::size_t slab_bytes_;
  std::size_t pinned_bytes_ = 0;
  Unique<DeviceMemoryTraits> memory_;
  std::vector<Slab> slabs_;  // by address
  // Last, so destroyed first: it drains its queues.
  std::unique_ptr<StreamPoller> poller_;
};

}  // namespace

Result<std::vector<CudaDeviceFacts>> list_cuda_devices() {
  int count = 0;
  HEADRACE_TRY(check(cudaGetDeviceCount(&count), "cudaGetDeviceCount", 0));
  std::vector<CudaDeviceFacts> devices;
  devices.reserve(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    HEADRACE_ASSIGN(CudaDeviceFacts facts, facts_of(ordinal));
    devices.push_back(std::move(facts));
  }
  return devices;
}

std::string describe_cuda() {
  int runtime = 0;
  int driver = 0;
  [[maybe_unused]] const cudaError_t error = cudaRuntimeGetVersion(&runtime);
  std::string text = "CUDA " + version_text(runtime);
  if (const Status asked = check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion", 0);
      !asked) {
    return text + ": the NVIDIA driver does not answer (" + asked.error().why + ")";
  }
  if (driver == 0) {
    return text + ": no NVIDIA driver on this machine";
  }
  text += ", driver for " + version_text(driver) + ":";
  const Result<std::vector<CudaDeviceFacts>> devices = list_cuda_devices();
  if (!devices) {
    return text + " no GPU (" + devices.error().why + ")";
  }
  for (const CudaDeviceFacts& facts : *devices) {
    text += " cuda:" + std::to_string(facts.ordinal) + " " + facts.name + " (" +
            format_bytes(facts.memory_bytes) + ")";
  }
  return text;
}

Result<std::size_t> available_device_bytes(int ordinal) {
  HEADRACE_TRY(check(cudaSetDevice(ordinal), "cudaSetDevice", ordinal));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  HEADRACE_TRY(check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo", ordinal));
  return free_bytes - std::min(free_bytes, kDriverReserveBytes);
}

Result<std::unique_ptr<Device>> make_cuda_device(Runtime& runtime,
                                                 const CudaDeviceOptions& options) {
  HEADRACE_ASSERT(options.slab_bytes > 0, "slabs hold something");
  HEADRACE_TRY(check(cudaSetDevice(options.ordinal), "cudaSetDevice", options.ordinal));
  HEADRACE_ASSIGN(CudaDeviceFacts facts, facts_of(options.ordinal));
  PollerOptions poller_options;
  poller_options.queues.reserve(3);
  poller_options.device = options.ordinal;
  poller_options.on_thread_start = options.on_thread_start;
  for (const char* name : {"compute", "h2d", "d2h"}) {
    poller_options.queues.push_back({.name = name,
                                     .capacity = options.ring_capacity,
                                     .device = options.ordinal,
                                     .launch_body = options.launch_body,
                                     .expedites = poller_options.queues.empty()});
  }
  HEADRACE_ASSIGN(std::unique_ptr<StreamPoller> poller,
                  StreamPoller::create(runtime, std::move(poller_options)));
  log_debug("cuda:" + std::to_string(facts.ordinal) + ": " + facts.name + " at " + facts.pci_id +
            ", " + format_bytes(facts.memory_bytes));
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(std::move(facts), options.slab_bytes, std::move(poller)));
}

}  // namespace headrace::tiers::gpu
