// What GPT-2's and Llama's blocks share: tensors of a unit by name, projections, the cutting of
// buffers into parts. Internal to model/.
//
// Invariant: sizes given to the planner and pointers used later come from the same PartList, so
// they cannot disagree. Thread: the scheduler thread. Failure: asserts (a tensor that is not
// there).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.hpp"
#include "model/spec.hpp"
#include "scheduler/exec/unit.hpp"
#include "scheduler/plan/model_spec.hpp"

namespace headrace::model {

// Lays parts out one after the other, each aligned as kernels want their workspace.
class PartList {
 public:
  // Returns the part's offset in bytes.
  std::size_t add_bytes(std::size_t bytes);

  std::size_t add_floats(std::int64_t count) {
    return add_bytes(static_cast<std::size_t>(count) * sizeof(float));
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

[[nodiscard]] inline float* floats_at(std::span<std::byte> memory, std::size_t offset_bytes) {
  return reinterpret_cast<float*>(memory.data() + offset_bytes);
}

[[nodiscard]] inline const float* floats_at(std::span<const std::byte> memory,
                                            std::size_t offset_bytes) {
  return reinterpret_cast<const float*>(memory.data() + offset_bytes);
}

// Where a tensor lies in its unit. `present` false: an optional bias that the model lacks.
struct Slot {
  std::int64_t offset = 0;
  bool present = false;
  bool frozen = false;
};

// By the end of its name ("ln_1.weight"); exactly one tensor must match, or none if `optional`.
[[nodiscard]] Slot find_slot(const plan::UnitSpec& unit,
                             std::string_view name_end,
                             bool optional = false);

[[nodiscard]] inline kernels::GradientMode kernel_mode(exec::GradientMode mode) {
  return mode == exec::GradientMode::kStore ? kernels::GradientMode::kStore
                                            : kernels::GradientMode::kAdd;
}

// One call of a unit: its weights and, in backward, its gradients.
struct Pass {
  const exec::Call& call;
  int threads = 1;
  std::span<std::byte> kernel_workspace;  // the part of call.workspace that kernels share
  const float* weights = nullptr;
  float* gradients = nullptr;  // null in forward, and when all is frozen
  kernels::GradientMode mode = kernels::GradientMode::kStore;

  [[nodiscard]] kernels::Context context() const {
    return {.queue = call.queue, .workspace = kernel_workspace, .threads = threads, .id = call.id};
  }

  [[nodiscard]] kernels::ConstTensor weight(const Slot& slot) const {
    return {slot.present ? weights + slot.offset : nullptr};
  }

  // Null where no gradient is wanted.
  [[nodiscard]] float* gradient(const Slot& slot) const {
    const bool wanted = gradients != nullptr && slot.present && !slot.frozen;
    return wanted ? gradients + slot.offset : nullptr;
  }
};

// y = x W (+ b), with the places of W and b.
struct Projection {
  kernels::LinearShape shape;
  Slot weight;
  Slot bias;
};

void project(const Pass& pass, const Projection& projection, const float* x, float* y);
// dW and db, where wanted.
void project_backward_weights(const Pass& pass,
                              const Projection& projection,
                              const float* x,
                              const float* dy);
// dx = dy W^T, or +=.
void project_backward_input(const Pass& pass,
                            const Projection& projection,
                            const float* dy,
                            float* dx,
                            bool accumulate = false);

// Workspace for every projection of a list, forward and backward. Prepares their GEMMs.
struct ProjectionWorkspace {
  std::size_t forward_bytes = 0;
  std::size_t backward_bytes = 0;
};

[[nodiscard]] ProjectionWorkspace projection_workspace(std::span<const kernels::LinearShape> shapes,
                                                       int threads);

// What projections, and attention, add to a unit's passes. Biases' gradients are sums of columns.
void add_projections(std::span<const kernels::LinearShape> shapes, plan::UnitCost& cost);
void add_attention(const kernels::AttentionShape& shape, plan::UnitCost& cost);

}  // namespace headrace::model
