// From an architecture to what the planner knows: units, tensors, groups, pieces, costs.
//
// Units: [0] the embedding (token table; GPT-2's position table), one per block, last the head
// (final norm; the vocabulary matrix unless tied). Tensor names and shapes are Hugging Face's, so a
// model file's bytes are a unit's bytes; GPT-2's Conv1D weights stay [inputs, outputs].
// Invariant: what decides numbers (chunks of the vocabulary, GEMM shapes) depends on the
// architecture and the batch only, never on memory. Thread: not oneTBB's (kernels prepare GEMMs).
// Failure: a usage error with every problem.
#pragma once

#include <cstdint>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "model/architecture.hpp"
#include "scheduler/plan/model_spec.hpp"

namespace headrace::model {

struct BatchShape {
  std::int64_t micro_batch = 0;  // sequences
  std::int64_t seq_len = 0;
  std::int64_t accumulate = 1;
  int compute_threads = 1;  // the team of the compute queue: workspaces and GEMM code depend on it
};

// The head's chunk of logits, [rows of a micro-batch, rows_per_chunk] fp32, is at most this.
inline constexpr std::int64_t kChunkBytesMax = std::int64_t{32} << 20;
// About what a row piece of the vocabulary matrix weighs.
inline constexpr std::int64_t kRowPieceBytes = std::int64_t{16} << 20;

// The units and costs of `architecture` for a batch. Parameter groups of `optim` are matched by
// glob against tensor names, the first that matches wins; a group that matches nothing is an error.
// Weight decay is the group's, else optim's on tensors of two or more dimensions and 0 on others.
[[nodiscard]] Result<plan::ModelSpec> make_model_spec(const Architecture& architecture,
                                                      const BatchShape& batch,
                                                      const OptimSection& optim);

// The units with their tensors' names and shapes in the model's order, not laid out: what a model
// file must hold.
[[nodiscard]] std::vector<plan::UnitSpec> name_units(const Architecture& architecture);

// Rows of the vocabulary matrix whose logits exist at a time: a constant of the run.
[[nodiscard]] std::int64_t rows_per_chunk(const Architecture& architecture,
                                          const BatchShape& batch);

}  // namespace headrace::model
