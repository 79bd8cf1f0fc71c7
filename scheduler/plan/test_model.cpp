#include "scheduler/plan/test_model.hpp"

#include <cstddef>
#include <utility>

namespace headrace::plan {

TensorSpec tensor(std::string name, std::vector<std::int64_t> shape, bool frozen) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.frozen = frozen;
  return spec;
}

ModelSpec make_model(
    std::int64_t hidden, int blocks, std::int64_t vocab, bool tied, std::int64_t accumulate) {
  ModelSpec model;
  model.hidden = hidden;
  model.vocab = vocab;
  model.tied = tied;
  model.micro_batch = 2;
  model.seq_len = 64;
  model.accumulate = accumulate;
  model.groups.resize(1);
  UnitSpec embedding;
  embedding.name = "embedding";
  embedding.kind = UnitKind::kEmbedding;
  embedding.tensors = {tensor("wte", {vocab, hidden})};
  embedding.tensors[0].own_pages = tied;
  lay_out(embedding);
  model.tables = {{.tensor = 0, .rows = vocab, .index = RowTable::Index::kToken}};
  UnitSpec head;
  head.name = "head";
  head.kind = UnitKind::kHead;
  head.tensors = {tensor("norm", {hidden})};
  if (!tied) {
    head.tensors.push_back(tensor("lm_head", {vocab, hidden}));
    head.tensors[1].own_pages = true;
  }
  lay_out(head);
  head.pieces = {{.begin = 0, .elements = tied ? head.elements : head.tensors[1].offset}};
  model.units.push_back(embedding);
  for (int b = 0; b < blocks; ++b) {
    UnitSpec block;
    block.name = "block." + std::to_string(b);
    block.tensors = {tensor("gain", {hidden}),
                     tensor("up", {4 * hidden, hidden}),
                     tensor("down", {hidden, 4 * hidden})};
    lay_out(block);
    block.pieces = {{.begin = 0, .elements = block.elements}};
    block.cost = {.forward = {.attention_forward_flops = 1e9},
                  .backward = {.attention_backward_flops = 2e9},
                  .forward_workspace_bytes = 1 << 16,
                  .backward_workspace_bytes = 1 << 17,
                  .saved_bytes = 1 << 18};
    model.units.push_back(block);
  }
  model.units.push_back(head);
  const int rows_unit = tied ? 0 : static_cast<int>(model.units.size()) - 1;
  model.head.rows =
      cut_rows(model.units[static_cast<std::size_t>(rows_unit)], rows_unit, tied ? 0 : 1, 64);
  model.head.rows_per_chunk = 64;
  model.head.state_bytes = 4096;
  model.head.score.forward_workspace_bytes = 1 << 16;
  model.head.gradient.backward_workspace_bytes = 1 << 16;
  return model;
}

PlanSettings roomy() {
  PlanSettings settings;
  settings.host_memory_bytes = std::size_t{8} << 30;
  settings.host_available_bytes = std::size_t{16} << 30;
  settings.device_available_bytes = std::size_t{8} << 30;
  return settings;
}

StateFormat bf16_format() {
  return {
      .name = "bf16", .param_bytes = 4, .group_bytes = 4, .group_elements = 1, .decoded = false};
}

StateFormat q8_format() {
  return {
      .name = "q8", .param_bytes = 2, .group_bytes = 208, .group_elements = 64, .decoded = true};
}

}  // namespace headrace::plan
