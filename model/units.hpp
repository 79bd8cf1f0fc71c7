// The units of a model over kernels: what exec:: asks for, made from a spec.
//
// Invariant: a unit holds shapes, offsets and small tables only; weights, activations and scratch
// are the caller's, of the sizes in plan::UnitCost. A call enqueues kernels and allocates nothing.
// Results depend on the arguments, not on how the caller cut or placed them.
// Thread: calls come from the scheduler thread. Failure: none of its own; a kernel raises the
// queue's fault.
#pragma once

#include <memory>
#include <vector>

#include "core/error.hpp"
#include "model/architecture.hpp"
#include "model/spec.hpp"
#include "scheduler/exec/unit.hpp"
#include "scheduler/plan/model_spec.hpp"

namespace headrace::model {

// The spec is make_model_spec's for the same architecture and batch. The GEMMs of every unit are
// prepared here. Not from oneTBB's threads.
[[nodiscard]] Result<exec::Model> make_model(const Architecture& architecture,
                                             const plan::ModelSpec& spec,
                                             const BatchShape& batch);

// Most positions that one Head::logits call may ask for.
inline constexpr std::int64_t kLogitsPositionsMax = 16;

// ---- the parts, for spec.cpp and tests ---------------------------------------------------------

// Angles of Llama's rotary positions, [seq_len, head_dim / 2] each; shared by the blocks of a
// model.
struct RopeTables {
  std::vector<float> cosine;
  std::vector<float> sine;
};

[[nodiscard]] std::shared_ptr<const RopeTables> make_rope_tables(const Architecture& architecture,
                                                                 const BatchShape& batch);

// The tensors of block `layer`, named and shaped, not laid out.
[[nodiscard]] std::vector<plan::TensorSpec> gpt2_block_tensors(const Architecture& architecture,
                                                               std::int64_t layer);
[[nodiscard]] std::vector<plan::TensorSpec> llama_block_tensors(const Architecture& architecture,
                                                                std::int64_t layer);

[[nodiscard]] plan::UnitCost gpt2_block_cost(const Architecture& architecture,
                                             const BatchShape& batch);
// Layers with the same window_of cost the same.
[[nodiscard]] plan::UnitCost llama_block_cost(const Architecture& architecture,
                                              const BatchShape& batch,
                                              std::int64_t layer);
[[nodiscard]] plan::UnitCost embedding_cost(const Architecture& architecture,
                                            const BatchShape& batch);
// UnitSpec::cost of the head unit, HeadSpec::state_bytes, score and gradient. Needs rows and
// rows_per_chunk of `head`.
void set_head_costs(const Architecture& architecture,
                    const BatchShape& batch,
                    plan::UnitSpec& unit,
                    plan::HeadSpec& head);

[[nodiscard]] std::unique_ptr<exec::Block> make_gpt2_block(const Architecture& architecture,
                                                           const BatchShape& batch,
                                                           const plan::UnitSpec& unit);
[[nodiscard]] std::unique_ptr<exec::Block> make_llama_block(
    const Architecture& architecture,
    const BatchShape& batch,
    const plan::UnitSpec& unit,
    std::int64_t layer,
    std::shared_ptr<const RopeTables> tables);
[[nodiscard]] std::unique_ptr<exec::Embedding> make_embedding(const plan::ModelSpec& spec,
                                                              const BatchShape& batch);
[[nodiscard]] std::unique_ptr<exec::Head> make_head(const Architecture& architecture,
                                                    const plan::ModelSpec& spec,
                                                    const BatchShape& batch);

}  // namespace headrace::model
