// Gradient collection: what happens to a gradient between the backward pass and the update, in one
// pass over it: add the earlier micro-batches, round to bf16 if the run keeps bf16 gradients, sum
// of squares of the result, NaN and Inf.
//
// A block's sum of squares has one order, whatever the instruction set and the number of threads:
// 16 double accumulators; accumulator j adds the squares (exact in double) of elements j, j + 16, j
// + 32, ... of the block, ascending; then accumulator j += accumulator j + 8 (j < 8), += j + 4 (j <
// 4), += j + 2 (j < 2), += j + 1. The global norm is the square root of all blocks' sums, added in
// order. A square of a float cannot overflow a double and neither can a block's sum, so a sum is
// finite exactly when all elements are: the check for NaN and Inf costs nothing until it finds one.
//
// Threads: collect_block and add_micro_batch without threads run on the caller's thread; the others
// on `threads`. Failure: none; non-finite values are reported.
#pragma once

#include <cstdint>
#include <span>

#include "optim_cpu/threads.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

// Where the collected gradient goes.
enum class GradientTarget : std::uint8_t {
  kNone,       // nowhere: only its sum and checks are wanted
  kF32,        // float
  kBf16InF32,  // float storage, values rounded to bf16
  kBf16,       // bf16 storage (16 bits each)
};

// value = accumulated ? *accumulated + incoming : incoming; rounded as `kind` says (to nearest,
// ties to even, as bf16_from_float); stored. `target` may be the same buffer as `incoming` or
// `accumulated` when it is float storage; otherwise buffers do not overlap. Pointers are aligned to
// their element, no more.
struct GradientSpan {
  const float* incoming = nullptr;     // of the newest micro-batch
  const float* accumulated = nullptr;  // the sum of the earlier ones, or null
  void* target = nullptr;              // null if kind is kNone
  GradientTarget kind = GradientTarget::kF32;
  std::int64_t elements = 0;  // >= 0
};

// Of the collected values, after rounding.
struct BlockSum {
  double sum_squares = 0.0;  // a NaN if any value is, else infinity if any is
  std::int64_t non_finite_count = 0;
  std::int64_t first_non_finite = -1;  // index from the start of the span; -1 if none
};

struct GradientCheck {
  std::int64_t non_finite_count = 0;
  std::int64_t first_non_finite = -1;
};

// One block: span.elements <= kBlockElements.
[[nodiscard]] BlockSum collect_block(const GradientSpan& span);

// A tensor's gradient, or a part of it that starts at a multiple of kBlockElements from the
// tensor's start. block_sums has count_blocks(span.elements) entries; entry b receives the sum of
// squares of elements [b * kBlockElements, ...).
[[nodiscard]] GradientCheck collect_blocks(const GradientSpan& span,
                                           std::span<double> block_sums,
                                           Threads& threads,
                                           Threads::Within within = {});

// accumulated[i] += incoming[i]: a micro-batch that is neither the first nor the last.
void add_micro_batch(std::span<float> accumulated, std::span<const float> incoming);
void add_micro_batch(std::span<float> accumulated,
                     std::span<const float> incoming,
                     Threads& threads);

// Square root of the sum of all block sums, added in order: tensors in model order, blocks
// ascending.
[[nodiscard]] double total_norm(std::span<const double> block_sums);

// The factor for every gradient element: norm > clip ? clip / (norm + 1e-6) : 1. clip = 0 turns it
// off.
[[nodiscard]] double clip_scale(double norm, double clip);

}  // namespace headrace::optim
