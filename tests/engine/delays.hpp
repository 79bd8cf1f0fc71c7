// Makes parts of a run slow, or fail: transfers of NVMe take 2 to 20 times as long, copies of a
// separate device's links, kernels and host operations wait before they begin, requests of a drive
// are refused. What is slow, and by how much, follows from a seed; when it happens does not matter
// to any promise that is tested with it.
//
// A `Delays` outlives the run. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>

#include "tests/engine/harness.hpp"

namespace headrace::testing {

class Delays {
 public:
  explicit Delays(std::uint64_t seed) : random_(seed) {}

  // Of requests of the drive, one in `one_of` is slow.
  void slow_drive(RunOptions& options, unsigned one_of);
  void slow_links(RunOptions& options, unsigned one_of);  // with a separate device
  void slow_kernels(RunOptions& options, unsigned one_of);
  // Request `number` (from 0, over all folders) and those after it fail with EIO, as those of a
  // drive that has gone.
  void fail_requests_from(RunOptions& options, std::uint64_t number);

  // So far.
  [[nodiscard]] std::uint64_t requests() const { return requests_; }

  [[nodiscard]] std::uint64_t delayed() const { return delayed_; }

  // For what it wraps.
  [[nodiscard]] bool next_request_fails();
  // 0, or from 2 to 20.
  [[nodiscard]] double draw(unsigned one_of);

 private:
  void wrap_drive(RunOptions& options, unsigned one_of);

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::uint64_t failing_from_ = ~std::uint64_t{0};
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> delayed_{0};
};

}  // namespace headrace::testing
