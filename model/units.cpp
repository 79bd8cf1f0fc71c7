// Assembles a model from its units (units.hpp).
#include "model/units.hpp"

#include "core/assert.hpp"

namespace headrace::model {

Result<exec::Model> make_model(const Architecture& architecture,
                               const plan::ModelSpec& spec,
                               const BatchShape& batch) {
  HEADRACE_ASSERT(spec.micro_batch == batch.micro_batch && spec.seq_len == batch.seq_len,
                  "the spec was made for another batch");
  HEADRACE_ASSERT(static_cast<std::int64_t>(spec.units.size()) == architecture.layers + 2,
                  "the spec was made for another architecture");
  exec::Model model;
  model.embedding = make_embedding(spec, batch);
  const auto tables = architecture.family == Family::kLlama ? make_rope_tables(architecture, batch)
                                                            : std::shared_ptr<const RopeTables>();
  for (const plan::UnitSpec& unit : spec.units) {
    if (unit.kind == plan::UnitKind::kBlock) {
      const auto layer = static_cast<std::int64_t>(model.blocks.size());
      model.blocks.push_back(architecture.family == Family::kGpt2
                                 ? make_gpt2_block(architecture, batch, unit)
                                 : make_llama_block(architecture, batch, unit, layer, tables));
    }
  }
  model.head = make_head(architecture, spec, batch);
  return model;
}

}  // namespace headrace::model
