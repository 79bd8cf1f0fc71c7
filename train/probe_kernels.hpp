// The kernels' part of the probe: products, attention and operations over elements, as a step runs
// them (one after the other on the compute queue, over memory that is in no cache).
//
// Thread: main's. Failure: no memory, no thread, an error of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/error.hpp"
#include "kernels/kernels.hpp"
#include "scheduler/plan/machine.hpp"
#include "tiers/device.hpp"
#include "train/measure.hpp"

namespace headrace::train {

// Kernels over memory that is the caller's, filled with finite floats, of at least
// kKernelMemoryBytesMin.
class KernelBench {
 public:
  // Operations in a row, and what they do together (flops, elements, or operations).
  struct Round {
    std::function<void()> submit;
    double work = 0;
    int operations = 0;
  };

  [[nodiscard]] static Result<std::unique_ptr<KernelBench>> create(std::span<std::byte> memory,
                                                                   int threads);

  [[nodiscard]] Round product(const plan::Product& product);
  [[nodiscard]] Round attention(std::int64_t sequence, bool backward);
  [[nodiscard]] Round elements(plan::ElementOperation operation);
  // One that has next to nothing to do.
  [[nodiscard]] Round smallest();

  // Submits and waits.
  [[nodiscard]] Status run(const Round& round);
  [[nodiscard]] Load load(Round round);

 private:
  KernelBench(std::span<std::byte> memory, int threads) : memory_(memory), threads_(threads) {}

  // The next floats of the part of the memory that is passed over, around and around.
  [[nodiscard]] float* next(std::int64_t count);
  // `count` floats in a place of their own, not next()'s: what stays in caches in a step as well.
  [[nodiscard]] float* kept(std::int64_t count);
  void attend(std::int64_t sequence, bool backward);
  [[nodiscard]] kernels::Context context() const;
  void pass_elements(plan::ElementOperation operation);
  void normalise(const kernels::Context& context,
                 plan::ElementOperation operation,
                 const float* x,
                 float* y);
  void score(const kernels::Context& context);
  void multiply(const plan::Product& product);

  std::span<std::byte> memory_;
  int threads_;
  std::size_t next_bytes_ = 0;
  std::size_t kept_bytes_ = 0;
  tiers::Runtime runtime_;
  std::unique_ptr<tiers::Device> device_;
};

// What "the GEMM" of a machine is.
inline constexpr plan::Product kLargeProduct = {.rows = 512, .inputs = 1024, .outputs = 1024};

inline constexpr std::size_t kKernelMemoryBytesMin = std::size_t{128} << 20U;

// The kernels' rates of the profile: the better of what it has and of what is measured now. Other
// work on a machine only ever slows one down, for some seconds at a time: two passes with something
// else between them see a quiet moment more often than one that is longer.
[[nodiscard]] Status kernel_rates(KernelBench& bench, plan::MachineProfile& profile);

}  // namespace headrace::train
