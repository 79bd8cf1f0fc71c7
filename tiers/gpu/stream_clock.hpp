// The times of a stream on the host's clock, out of the times that passed between its events.
//
// Invariant: what comes out ascends, and never lies outside of what the host saw. CUDA gives
// elapsed times as float milliseconds, so each is measured from the event before: from one of an
// hour ago they would come in steps of a quarter of a millisecond. The host's bounds take out the
// drift of the device's clock, and what the first time was too late. Pure arithmetic. Thread: one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace headrace::tiers::gpu {

class StreamClock {
 public:
  // What the host knows of a time of the stream.
  struct Bounds {
    std::int64_t issued_ns = 0;  // it had not been asked for before
    std::int64_t seen_ns = 0;    // it was over by then; ascends from one time to the next
  };

  // Whether there is a time to measure the next one from.
  [[nodiscard]] bool has_begun() const { return has_begun_; }

  // The first time: when the host saw it.
  std::int64_t begin(const Bounds& bounds) {
    has_begun_ = true;
    last_ns_ = bounds.seen_ns;
    return last_ns_;
  }

  // A time `elapsed_ms` after the one before.
  std::int64_t next(double elapsed_ms, const Bounds& bounds) {
    constexpr double kNsPerMs = 1e6;
    const auto elapsed_ns = static_cast<std::int64_t>(std::llround(elapsed_ms * kNsPerMs));
    const std::int64_t not_early = std::max(last_ns_ + elapsed_ns, bounds.issued_ns);
    last_ns_ = std::min(not_early, bounds.seen_ns);
    return last_ns_;
  }

 private:
  bool has_begun_ = false;
  std::int64_t last_ns_ = 0;
};

}  // namespace headrace::tiers::gpu
