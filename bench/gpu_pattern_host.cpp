// The pattern on the device, by the host: pieces are copied there, or back and compared. For
// builds without nvcc, and for the emulated runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "bench/gpu_owners.hpp"
#include "bench/gpu_pattern.hpp"

namespace headrace::bench {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;

class HostPattern final : public DevicePattern {
 public:
  HostPattern(Lane lane, PinnedMemory piece) : piece_(std::move(piece)), lane_(std::move(lane)) {}

  Status fill(std::byte* target, std::size_t bytes, std::uint64_t seed) override {
    for (std::size_t done = 0; done < bytes; done += kPieceBytes) {
      const std::span<std::byte> piece = piece_of(bytes - done);
      fill_on_host(piece, seed, done / kPatternWordBytes);
      HEADRACE_TRY(lane_.copy(target + done, piece.data(), piece.size(), cudaMemcpyHostToDevice));
      HEADRACE_TRY(lane_.record());
      HEADRACE_TRY(lane_.wait());
    }
    return {};
  }

  Result<std::uint64_t> count_wrong(const std::byte* source,
                                    std::size_t bytes,
                                    std::uint64_t seed) override {
    std::uint64_t wrong = 0;
    for (std::size_t done = 0; done < bytes; done += kPieceBytes) {
      const std::span<std::byte> piece = piece_of(bytes - done);
      HEADRACE_TRY(lane_.copy(piece.data(), source + done, piece.size(), cudaMemcpyDeviceToHost));
      HEADRACE_TRY(lane_.record());
      HEADRACE_TRY(lane_.wait());
      wrong += count_wrong_on_host(piece, seed, done / kPatternWordBytes);
    }
    return wrong;
  }

  [[nodiscard]] const char* how() const override { return "by the host"; }

 private:
  [[nodiscard]] std::span<std::byte> piece_of(std::size_t bytes) const {
    return {static_cast<std::byte*>(piece_.get()), std::min(bytes, kPieceBytes)};
  }

  PinnedMemory piece_;
  Lane lane_;  // last, so destroyed first: its copies use the memory
};

}  // namespace

Result<std::unique_ptr<DevicePattern>> DevicePattern::create(int device) {
  HEADRACE_ASSIGN(Lane lane, Lane::create(device));
  HEADRACE_ASSIGN(PinnedMemory piece, take_pinned_memory(device, kPieceBytes));
  return std::unique_ptr<DevicePattern>(
      std::make_unique<HostPattern>(std::move(lane), std::move(piece)));
}

}  // namespace headrace::bench
