// The pattern on the device, by kernels: nothing is read back but a count.
#include <cuda_runtime_api.h>

#include <utility>

#include "bench/gpu_owners.hpp"
#include "bench/gpu_pattern.hpp"
#include "bench/gpu_pattern_kernels.hpp"

namespace headrace::bench {
namespace {

using tiers::gpu::check;

class KernelPattern final : public DevicePattern {
 public:
  KernelPattern(int device, Lane lane, DeviceMemory counter, PinnedMemory result)
      : device_(device),
        counter_(std::move(counter)),
        result_(std::move(result)),
        lane_(std::move(lane)) {}

  Status fill(std::byte* target, std::size_t bytes, std::uint64_t seed) override {
    auto* words = reinterpret_cast<std::uint64_t*>(target);
    HEADRACE_TRY(check(launch_fill(lane_.stream(), words, bytes / kPatternWordBytes, seed),
                       "fill_kernel",
                       device_));
    HEADRACE_TRY(lane_.record());
    return lane_.wait();
  }

  Result<std::uint64_t> count_wrong(const std::byte* source,
                                    std::size_t bytes,
                                    std::uint64_t seed) override {
    auto* counter = static_cast<unsigned long long*>(counter_.get());
    const auto* words = reinterpret_cast<const std::uint64_t*>(source);
    HEADRACE_TRY(check(
        cudaMemsetAsync(counter, 0, sizeof(*counter), lane_.stream()), "cudaMemsetAsync", device_));
    HEADRACE_TRY(
        check(launch_count_wrong(lane_.stream(), words, bytes / kPatternWordBytes, seed, counter),
              "count_wrong_kernel",
              device_));
    HEADRACE_TRY(lane_.copy(result_.get(), counter, sizeof(*counter), cudaMemcpyDeviceToHost));
    HEADRACE_TRY(lane_.record());
    HEADRACE_TRY(lane_.wait());
    return std::uint64_t{*static_cast<const unsigned long long*>(result_.get())};
  }

  [[nodiscard]] const char* how() const override { return "by kernels"; }

 private:
  int device_;
  DeviceMemory counter_;
  PinnedMemory result_;
  Lane lane_;  // last, so destroyed first: its copies use the memory
};

}  // namespace

Result<std::unique_ptr<DevicePattern>> DevicePattern::create(int device) {
  HEADRACE_ASSIGN(Lane lane, Lane::create(device));
  HEADRACE_ASSIGN(DeviceMemory counter, take_device_memory(device, sizeof(unsigned long long)));
  HEADRACE_ASSIGN(PinnedMemory result, take_pinned_memory(device, sizeof(unsigned long long)));
  return std::unique_ptr<DevicePattern>(std::make_unique<KernelPattern>(
      device, std::move(lane), std::move(counter), std::move(result)));
}

}  // namespace headrace::bench
