// What the executor asks of a model: the interface that model/ implements with kernels.
//
// Every call enqueues operations on `queue` and returns; nothing has run yet. All memory is given
// by the caller (from the plan), pointers stay valid until the operations have finished. Shapes: N
// = micro_batch * seq_len rows, C = hidden; activations are [N, C] fp32, row-major. Calls come from
// the scheduler thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "tiers/queue.hpp"

namespace headrace::exec {

struct Call {
  tiers::Queue& queue;
  std::span<std::byte> workspace;  // at least the bytes of the UnitCost
  std::uint64_t id = 0;            // the instruction's number, for traces and messages
};

// Gradient accumulators: a unit's flat layout from the piece's begin. kStore for a step's first
// micro-batch, kAdd after it (see kernels.hpp).
enum class GradientMode : std::uint8_t { kStore, kAdd };

// One transformer block.
class Block {
 public:
  virtual ~Block() = default;
  // output = block(input). `saved` (UnitCost::saved_bytes) receives what backward needs.
  virtual void forward(const Call& call,
                       const float* weights,
                       const float* input,
                       float* output,
                       std::span<std::byte> saved) = 0;
  // In place: `gradient` holds d(output) and then d(input). `saved` as forward left it for the same
  // weights and input. Frozen tensors' gradients are not written; `weight_gradients` is null when
  // all are frozen.
  virtual void backward(const Call& call,
                        const float* weights,
                        const float* input,
                        std::span<const std::byte> saved,
                        float* gradient,
                        float* weight_gradients,
                        GradientMode mode) = 0;
};

// Token and position tables, on the host, tile by tile. Runs on a host queue: no OpenMP.
class Embedding {
 public:
  virtual ~Embedding() = default;
  // Adds to x [N, C] what the unit's elements [begin, begin + elements) (at `tile`) contribute to
  // it; `first` true: x is zeroed first. `tokens` [N].
  virtual void gather(const Call& call,
                      const float* tile,
                      std::int64_t begin,
                      std::int64_t elements,
                      const std::int32_t* tokens,
                      float* x,
                      bool first) = 0;
  // Row sums of a micro-batch, in ascending position order, added to compact accumulators. See
  // RowSlots.
  virtual void scatter(const Call& call,
                       const float* gradient,
                       const std::int32_t* tokens,
                       const struct RowSlots& slots,
                       float* accumulators,
                       bool first) = 0;
  // gradient[0..elements) of the unit's range [begin, …) = accumulators' rows where touched (+
  // `head` where not null, added once), else head or zero.
  virtual void spread(const Call& call,
                      const float* accumulators,
                      const struct RowSlots& slots,
                      std::int64_t begin,
                      std::int64_t elements,
                      const float* head,
                      float* gradient) = 0;
};

// Which accumulator row a table's row has in this step: slot_of[table][row], -1 if untouched. Made
// by the loader's thread before the step from its tokens.
struct RowSlots {
  std::vector<std::span<const std::int32_t>> slot_of;  // per table
  std::vector<std::span<const std::int32_t>> row_of;   // per table: slot -> row, ascending
  std::vector<std::int64_t> first_slot;  // per table: its first row in `accumulators` [slots, C]
};

// Final norm, vocabulary matrix and loss.
class Head {
 public:
  struct Rows {            // of one row piece
    const float* weights;  // [rows, C]: first_row of the vocabulary
    std::int64_t first_row;
    std::int64_t rows;
  };

  virtual ~Head() = default;
  // state (HeadSpec::state_bytes) = norm(input), statistics, and an empty log-sum-exp.
  virtual void begin(const Call& call,
                     const float* norm_weights,
                     const float* input,
                     std::span<std::byte> state) = 0;
  // Pass 1 over ascending row pieces.
  virtual void score(const Call& call,
                     const Rows& rows,
                     const std::int32_t* targets,
                     std::span<std::byte> state) = 0;
  // *loss_sum = sum over unmasked targets of the micro-batch, in double, in a fixed order. After
  // every piece was scored.
  virtual void loss(const Call& call,
                    const std::int32_t* targets,
                    std::span<std::byte> state,
                    double* loss_sum) = 0;
  // Pass 2 over ascending row pieces: gradient [N, C] (+)= dlogits * weights (`first_piece`:
  // stored), weight_gradients [rows, C] by mode (null: frozen).
  virtual void gradient(const Call& call,
                        const Rows& rows,
                        const std::int32_t* targets,
                        float scale,
                        std::span<std::byte> state,
                        bool first_piece,
                        float* gradient,
                        float* weight_gradients,
                        GradientMode mode) = 0;
  // In place: `gradient` holds d(normed) and then d(input); norm gradients by mode (null: frozen).
  virtual void end(const Call& call,
                   const float* norm_weights,
                   const float* input,
                   std::span<std::byte> state,
                   float* gradient,
                   float* norm_gradients,
                   GradientMode mode) = 0;
  // For generation: logits [positions, rows of the piece] written at logits[p * vocab + first_row
  // ...] for the given rows of the normed input.
  virtual void logits(const Call& call,
                      const Rows& rows,
                      std::span<const std::int64_t> positions,
                      std::span<const std::byte> state,
                      float* logits) = 0;
};

struct Model {
  std::unique_ptr<Embedding> embedding;
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<Head> head;
};

}  // namespace headrace::exec
