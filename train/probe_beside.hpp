// What one thing loses while another runs beside it, as in a step: computing, updates, copies and
// the drive.
//
// Thread: main's, and one more while two run together. Failure: that of either, and no thread.
#pragma once

#include <chrono>
#include <memory>
#include <span>

#include "core/error.hpp"
#include "tiers/device.hpp"
#include "tiers/memory.hpp"
#include "train/measure.hpp"

namespace headrace::train {

struct Together {
  double first = 0, second = 0;  // work per second of each, at the same time
};

[[nodiscard]] Result<Together> run_together(std::chrono::milliseconds time,
                                            const Load& first,
                                            const Load& second);

// Work per second of a load by itself.
[[nodiscard]] Result<double> run_alone(std::chrono::milliseconds time, const Load& load);

// `together` as a share of `alone`, at most 1; 0 where that is not known.
[[nodiscard]] double share_of(double together, double alone);

enum class CopyWay : std::uint8_t { kToDevice, kToHost, kBoth };

// The CPU's separate arena and its links.
class CopyBench {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CopyBench>> create();

  // Work in bytes, of both directions together.
  [[nodiscard]] Load load(CopyWay way);

 private:
  CopyBench() = default;

  std::unique_ptr<tiers::Arena> host_;
  tiers::Runtime runtime_;
  std::unique_ptr<tiers::Device> device_;
  std::span<std::byte> arena_;
};

}  // namespace headrace::train
