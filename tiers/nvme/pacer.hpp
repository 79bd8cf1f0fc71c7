// Keeps a stream of transfers below a rate, by telling when the next one may start.
//
// Invariant: over any time t, at most rate * (t + kBurst) bytes and one transfer are let through;
// what a late timer loses is made up within kBurst. Pure arithmetic: the caller gives the time.
// Thread: as a plain value. Failure: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace headrace::tiers::nvme {

class Pacer {
 public:
  static constexpr std::int64_t kBurstNs = 10'000'000;

  // No rate: everything may start at once.
  explicit Pacer(std::optional<double> bytes_per_s = std::nullopt) : bytes_per_s_(bytes_per_s) {}

  // Nanoseconds until the next transfer may start; 0: now.
  [[nodiscard]] std::int64_t delay_ns(std::int64_t now_ns) const {
    return bytes_per_s_ ? std::max<std::int64_t>(0, next_ns_ - now_ns) : 0;
  }

  // A transfer of so many bytes starts now.
  void start(std::int64_t now_ns, std::uint64_t bytes) {
    if (bytes_per_s_) {
      constexpr double kNsPerS = 1e9;
      const double cost_ns = static_cast<double>(bytes) / *bytes_per_s_ * kNsPerS;
      next_ns_ = std::max(next_ns_, now_ns - kBurstNs) + static_cast<std::int64_t>(cost_ns);
    }
  }

 private:
  std::optional<double> bytes_per_s_;
  std::int64_t next_ns_ = 0;
};

}  // namespace headrace::tiers::nvme
