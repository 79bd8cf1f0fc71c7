// Parts of blocks (block_parts.hpp).
#include "model/block_parts.hpp"

#include <algorithm>

#include "core/assert.hpp"

namespace headrace::model {

std::size_t PartList::add_bytes(std::size_t bytes) {
  constexpr std::size_t kAlignment = kernels::kWorkspaceAlignmentBytes;
  const std::size_t offset = bytes_;
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

Slot find_slot(const plan::UnitSpec& unit, std::string_view name_end, bool optional) {
  Slot slot;
  for (const plan::TensorSpec& tensor : unit.tensors) {
    if (std::string_view(tensor.name).ends_with(name_end)) {
      HEADRACE_ASSERT(!slot.present, "two tensors of a unit end in the same name");
      slot = {.offset = tensor.offset, .present = true, .frozen = tensor.frozen};
    }
  }
  HEADRACE_ASSERT(slot.present || optional, "a unit lacks a tensor");
  return slot;
}

void project(const Pass& pass, const Projection& projection, const float* x, float* y) {
  kernels::linear(pass.context(),
                  {.shape = projection.shape,
                   .x = {x},
                   .weight = pass.weight(projection.weight),
                   .bias = pass.weight(projection.bias),
                   .y = {y}});
}

void project_backward_weights(const Pass& pass,
                              const Projection& projection,
                              const float* x,
                              const float* dy) {
  if (float* dweight = pass.gradient(projection.weight); dweight != nullptr) {
    kernels::linear_backward_weight(
        pass.context(),
        {.shape = projection.shape, .x = {x}, .dy = {dy}, .dweight = dweight, .mode = pass.mode});
  }
  if (float* dbias = pass.gradient(projection.bias); dbias != nullptr) {
    kernels::linear_backward_bias(pass.context(),
                                  {.rows = projection.shape.rows,
                                   .outputs = projection.shape.outputs,
                                   .dy = {dy},
                                   .dbias = dbias,
                                   .mode = pass.mode});
  }
}

void project_backward_input(
    const Pass& pass, const Projection& projection, const float* dy, float* dx, bool accumulate) {
  kernels::linear_backward_input(pass.context(),
                                 {.shape = projection.shape,
                                  .dy = {dy},
                                  .weight = pass.weight(projection.weight),
                                  .dx = {dx},
                                  .accumulate = accumulate});
}

ProjectionWorkspace projection_workspace(std::span<const kernels::LinearShape> shapes,
                                         int threads) {
  ProjectionWorkspace result;
  for (const kernels::LinearShape& shape : shapes) {
    result.forward_bytes =
        std::max(result.forward_bytes, kernels::linear_workspace_bytes(shape, threads));
    result.backward_bytes =
        std::max({result.backward_bytes,
                  kernels::linear_backward_input_workspace_bytes(shape, threads),
                  kernels::linear_backward_weight_workspace_bytes(shape, threads)});
  }
  return result;
}

void add_projections(std::span<const kernels::LinearShape> shapes, plan::UnitCost& cost) {
  for (const kernels::LinearShape& shape : shapes) {
    plan::Product product{.pass = plan::ProductPass::kForward,
                          .layout = shape.layout == kernels::WeightLayout::kOutIn
                                        ? plan::WeightLayout::kOutIn
                                        : plan::WeightLayout::kInOut,
                          .rows = shape.rows,
                          .inputs = shape.inputs,
                          .outputs = shape.outputs};
    cost.forward.add(product);
    product.pass = plan::ProductPass::kInput;
    cost.backward.add(product);
    product.pass = plan::ProductPass::kWeight;
    cost.backward.add(product);
    if (shape.bias) {
      cost.backward.add(plan::ElementOperation::kColumnSum,
                        static_cast<double>(shape.rows * shape.outputs));
    }
  }
}

// Causal: half of the T x T scores; with a window W, W T less half of W x W. Forward multiplies
// twice with them, backward five times. Tiles waste as much at the edges of a window as those of a
// whole sequence of twice its length do.
void add_attention(const kernels::AttentionShape& shape, plan::UnitCost& cost) {
  const bool whole = shape.window == 0 || shape.window >= shape.sequence;
  const auto sequence = static_cast<double>(shape.sequence);
  const double window = whole ? sequence : static_cast<double>(shape.window);
  const double product = static_cast<double>(shape.batch) * window * (2.0 * sequence - window) *
                         static_cast<double>(shape.heads * shape.head_dim);
  cost.forward.sequence = cost.backward.sequence =
      whole ? shape.sequence : std::min(shape.sequence, 2 * shape.window);
  cost.forward.attention_forward_flops += 2 * product;
  cost.backward.attention_backward_flops += 5 * product;
  ++cost.forward.operations;
  ++cost.backward.operations;
}

}  // namespace headrace::model
