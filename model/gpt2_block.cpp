// GPT-2's block: x += proj(attention(ln_1(x))); x += proj(gelu(fc(ln_2(x)))).
// Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; weights as Hugging
// Face's Conv1D.
//
// Saved for backward, per row of N: qkv 3C, attention output C, middle of the residual stream C, fc
// F floats, and a log-sum-exp per head. What memory-bound kernels can make again (both norms'
// outputs and statistics, gelu) is made again.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"
#include "model/block_parts.hpp"
#include "model/units.hpp"

namespace headrace::model {

namespace {

struct Shapes {
  std::int64_t rows, hidden, ffn;
  kernels::AttentionShape attention;
  kernels::LinearShape qkv, attention_out, fc, mlp_out;

  [[nodiscard]] std::array<kernels::LinearShape, 4> linears() const {
    return {qkv, attention_out, fc, mlp_out};
  }

  [[nodiscard]] kernels::NormShape norm() const { return {.rows = rows, .columns = hidden}; }

  [[nodiscard]] std::int64_t lse() const {
    return attention.batch * attention.heads * attention.sequence;
  }
};

Shapes shapes_of(const Architecture& a, const BatchShape& batch) {
  const std::int64_t rows = batch.micro_batch * batch.seq_len;
  const auto linear = [&](std::int64_t inputs, std::int64_t outputs) {
    return kernels::LinearShape{.rows = rows,
                                .inputs = inputs,
                                .outputs = outputs,
                                .layout = kernels::WeightLayout::kInOut,
                                .bias = true};
  };
  return {.rows = rows,
          .hidden = a.hidden,
          .ffn = a.ffn,
          .attention = {.batch = batch.micro_batch,
                        .sequence = batch.seq_len,
                        .heads = a.heads,
                        .kv_heads = a.heads,
                        .head_dim = a.head_dim},
          .qkv = linear(a.hidden, 3 * a.hidden),
          .attention_out = linear(a.hidden, a.hidden),
          .fc = linear(a.hidden, a.ffn),
          .mlp_out = linear(a.ffn, a.hidden)};
}

// Byte offsets in `saved` and in the workspace.
struct Places {
  std::size_t qkv, attention, middle, fc, lse, saved_bytes;
  std::size_t forward_wide, forward_mean, forward_rstd, forward_kernels, forward_bytes;
  std::size_t wide, narrow, mean, rstd, kernels, backward_bytes;
};

Places places_of(const Shapes& s, int threads) {
  Places places{};
  PartList saved;
  places.qkv = saved.add_floats(s.rows * 3 * s.hidden);
  places.attention = saved.add_floats(s.rows * s.hidden);
  places.middle = saved.add_floats(s.rows * s.hidden);
  places.fc = saved.add_floats(s.rows * s.ffn);
  places.lse = saved.add_floats(s.lse());
  places.saved_bytes = saved.bytes();

  const auto linears = s.linears();
  const ProjectionWorkspace linear = projection_workspace(linears, threads);
  PartList forward;
  places.forward_wide = forward.add_floats(s.rows * std::max(s.hidden, s.ffn));
  places.forward_mean = forward.add_floats(s.rows);
  places.forward_rstd = forward.add_floats(s.rows);
  places.forward_kernels = forward.add_bytes(
      std::max(linear.forward_bytes, kernels::attention_workspace_bytes(s.attention, threads)));
  places.forward_bytes = forward.bytes();

  PartList backward;
  places.wide = backward.add_floats(s.rows * std::max(3 * s.hidden, s.ffn));
  places.narrow = backward.add_floats(s.rows * s.hidden);
  places.mean = backward.add_floats(s.rows);
  places.rstd = backward.add_floats(s.rows);
  places.kernels = backward.add_bytes(
      std::max({linear.backward_bytes,
                kernels::layer_norm_backward_workspace_bytes(s.norm(), threads),
                kernels::attention_backward_workspace_bytes(s.attention, threads)}));
  places.backward_bytes = backward.bytes();
  return places;
}

struct Norm {
  Slot gain;
  Slot bias;
};

class Gpt2Block final : public exec::Block {
 public:
  Gpt2Block(const Architecture& architecture, const BatchShape& batch, const plan::UnitSpec& unit)
      : shapes_(shapes_of(architecture, batch)),
        threads_(batch.compute_threads),
        places_(places_of(shapes_, threads_)),
        eps_(architecture.norm_eps),
        scale_(1.0 / std::sqrt(static_cast<double>(architecture.head_dim))),
        norm_1_{find_slot(unit, ".ln_1.weight"), find_slot(unit, ".ln_1.bias")},
        norm_2_{find_slot(unit, ".ln_2.weight"), find_slot(unit, ".ln_2.bias")},
        qkv_(projection(unit, shapes_.qkv, ".attn.c_attn")),
        attention_out_(projection(unit, shapes_.attention_out, ".attn.c_proj")),
        fc_(projection(unit, shapes_.fc, ".mlp.c_fc")),
        mlp_out_(projection(unit, shapes_.mlp_out, ".mlp.c_proj")) {}

  void forward(const exec::Call& call,
               const float* weights,
               const float* input,
               float* output,
               std::span<std::byte> saved) override {
    HEADRACE_ASSERT(saved.size() >= places_.saved_bytes, "saved is too small");
    HEADRACE_ASSERT(call.workspace.size() >= places_.forward_bytes, "the workspace is too small");
    const Pass pass{.call = call,
                    .threads = threads_,
                    .kernel_workspace = call.workspace.subspan(places_.forward_kernels),
                    .weights = weights};
    const kernels::Context context = pass.context();
    float* wide = floats_at(call.workspace, places_.forward_wide);
    float* mean = floats_at(call.workspace, places_.forward_mean);
    float* rstd = floats_at(call.workspace, places_.forward_rstd);
    float* qkv = floats_at(saved, places_.qkv);
    float* attention = floats_at(saved, places_.attention);
    float* middle = floats_at(saved, places_.middle);
    float* fc = floats_at(saved, places_.fc);

    normalise(pass, norm_1_, input, wide, mean, rstd);
    project(pass, qkv_, wide, qkv);
    kernels::attention(context,
                       {.shape = shapes_.attention,
                        .scale = scale_,
                        .q = third_of(qkv, 0),
                        .k = third_of(qkv, 1),
                        .v = third_of(qkv, 2),
                        .out = {attention, shapes_.hidden},
                        .lse = floats_at(saved, places_.lse)});
    project(pass, attention_out_, attention, middle);
    add(context, middle, input);
    normalise(pass, norm_2_, middle, wide, mean, rstd);
    project(pass, fc_, wide, fc);
    kernels::gelu(context, {.elements = shapes_.rows * shapes_.ffn, .x = {fc}, .y = {wide}});
    project(pass, mlp_out_, wide, output);
    add(context, output, middle);
  }

  void backward(const exec::Call& call,
                const float* weights,
                const float* input,
                std::span<const std::byte> saved,
                float* gradient,
                float* weight_gradients,
                exec::GradientMode mode) override {
    HEADRACE_ASSERT(saved.size() >= places_.saved_bytes, "saved is too small");
    HEADRACE_ASSERT(call.workspace.size() >= places_.backward_bytes, "the workspace is too small");
    const Pass pass{.call = call,
                    .threads = threads_,
                    .kernel_workspace = call.workspace.subspan(places_.kernels),
                    .weights = weights,
                    .gradients = weight_gradients,
                    .mode = kernel_mode(mode)};
    backward_mlp(pass, saved, gradient);
    backward_attention(pass, input, saved, gradient);
  }

 private:
  static Projection projection(const plan::UnitSpec& unit,
                               const kernels::LinearShape& shape,
                               const std::string& name) {
    return {.shape = shape,
            .weight = find_slot(unit, name + ".weight"),
            .bias = find_slot(unit, name + ".bias")};
  }

  // q, k and v are columns of one packed [N, 3C].
  [[nodiscard]] kernels::ConstRows third_of(const float* packed, std::int64_t index) const {
    return {packed + index * shapes_.hidden, 3 * shapes_.hidden};
  }

  [[nodiscard]] kernels::Rows third_of(float* packed, std::int64_t index) const {
    return {packed + index * shapes_.hidden, 3 * shapes_.hidden};
  }

  void add(const kernels::Context& context, float* y, const float* x) const {
    kernels::add(context,
                 {.elements = shapes_.rows * shapes_.hidden, .a = {y}, .b = {x}, .y = {y}});
  }

  void normalise(const Pass& pass,
                 const Norm& norm,
                 const float* x,
                 float* y,
                 float* mean,
                 float* rstd) const {
    kernels::layer_norm(pass.context(),
                        {.shape = shapes_.norm(),
                         .eps = eps_,
                         .x = {x},
                         .gain = pass.weight(norm.gain),
                         .bias = pass.weight(norm.bias),
                         .y = {y},
                         .mean = mean,
                         .rstd = rstd});
  }

  // gradient += d(x) of y = norm(x), given d(y).
  void backward_norm(
      const Pass& pass, const Norm& norm, const float* x, const float* dy, float* gradient) const {
    kernels::layer_norm_backward(pass.context(),
                                 {.shape = shapes_.norm(),
                                  .dy = {dy},
                                  .x = {x},
                                  .gain = pass.weight(norm.gain),
                                  .mean = floats_at(pass.call.workspace, places_.mean),
                                  .rstd = floats_at(pass.call.workspace, places_.rstd),
                                  .dx = {gradient},
                                  .accumulate = true,
                                  .dgain = pass.gradient(norm.gain),
                                  .dbias = pass.gradient(norm.bias),
                                  .mode = pass.mode});
  }

  // gradient: d(output) -> d(middle)
  void backward_mlp(const Pass& pass, std::span<const std::byte> saved, float* gradient) const {
    const kernels::Context context = pass.context();
    const std::span<std::byte> workspace = pass.call.workspace;
    float* wide = floats_at(workspace, places_.wide);
    float* narrow = floats_at(workspace, places_.narrow);
    const float* fc = floats_at(saved, places_.fc);
    const float* middle = floats_at(saved, places_.middle);
    const std::int64_t elements = shapes_.rows * shapes_.ffn;

    kernels::gelu(context, {.elements = elements, .x = {fc}, .y = {wide}});
    project_backward_weights(pass, mlp_out_, wide, gradient);
    project_backward_input(pass, mlp_out_, gradient, wide);
    kernels::gelu_backward(context, {.elements = elements, .x = {fc}, .dy = {wide}, .dx = {wide}});
    normalise(pass,
              norm_2_,
              middle,
              narrow,
              floats_at(workspace, places_.mean),
              floats_at(workspace, places_.rstd));
    project_backward_weights(pass, fc_, narrow, wide);
    project_backward_input(pass, fc_, wide, narrow);
    backward_norm(pass, norm_2_, middle, narrow, gradient);
  }

  // gradient: d(middle) -> d(input)
  void backward_attention(const Pass& pass,
                          const float* input,
                          std::span<const std::byte> saved,
                          float* gradient) const {
    const std::span<std::byte> workspace = pass.call.workspace;
    float* dqkv = floats_at(workspace, places_.wide);
    float* narrow = floats_at(workspace, places_.narrow);
    const float* qkv = floats_at(saved, places_.qkv);
    const float* attention = floats_at(saved, places_.attention);

    project_backward_weights(pass, attention_out_, attention, gradient);
    project_backward_input(pass, attention_out_, gradient, narrow);
    kernels::attention_backward(pass.context(),
                                {.shape = shapes_.attention,
                                 .scale = scale_,
                                 .q = third_of(qkv, 0),
                                 .k = third_of(qkv, 1),
                                 .v = third_of(qkv, 2),
                                 .out = {attention, shapes_.hidden},
                                 .dout = {narrow, shapes_.hidden},
                                 .lse = floats_at(saved, places_.lse),
                                 .dq = third_of(dqkv, 0),
                                 .dk = third_of(dqkv, 1),
                                 .dv = third_of(dqkv, 2)});
    normalise(pass,
              norm_1_,
              input,
              narrow,
              floats_at(workspace, places_.mean),
              floats_at(workspace, places_.rstd));
    project_backward_weights(pass, qkv_, narrow, dqkv);
    project_backward_input(pass, qkv_, dqkv, narrow);
    backward_norm(pass, norm_1_, input, narrow, gradient);
  }

  Shapes shapes_;
  int threads_;
  Places places_;
  double eps_;
  double scale_;
  Norm norm_1_, norm_2_;
  Projection qkv_, attention_out_, fc_, mlp_out_;
};

plan::TensorSpec tensor(const std::string& name, std::vector<std::int64_t> shape) {
  plan::TensorSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

}  // namespace

std::vector<plan::TensorSpec> gpt2_block_tensors(const Architecture& a, std::int64_t layer) {
  const std::string prefix = "transformer.h." + std::to_string(layer);
  const std::int64_t c = a.hidden;
  return {tensor(prefix + ".ln_1.weight", {c}),
          tensor(prefix + ".ln_1.bias", {c}),
          tensor(prefix + ".attn.c_attn.weight", {c, 3 * c}),
          tensor(prefix + ".attn.c_attn.bias", {3 * c}),
          tensor(prefix + ".attn.c_proj.weight", {c, c}),
          tensor(prefix + ".attn.c_proj.bias", {c}),
          tensor(prefix + ".ln_2.weight", {c}),
          tensor(prefix + ".ln_2.bias", {c}),
          tensor(prefix + ".mlp.c_fc.weight", {c, a.ffn}),
          tensor(prefix + ".mlp.c_fc.bias", {a.ffn}),
          tensor(prefix + ".mlp.c_proj.weight", {a.ffn, c}),
          tensor(prefix + ".mlp.c_proj.bias", {c})};
}

plan::UnitCost gpt2_block_cost(const Architecture& architecture, const BatchShape& batch) {
  const Shapes shapes = shapes_of(architecture, batch);
  const Places places = places_of(shapes, batch.compute_threads);
  const auto narrow = static_cast<double>(shapes.rows * shapes.hidden);
  const auto wide = static_cast<double>(shapes.rows * shapes.ffn);
  plan::UnitCost cost{.forward_workspace_bytes = places.forward_bytes,
                      .backward_workspace_bytes = places.backward_bytes,
                      .saved_bytes = places.saved_bytes};
  add_projections(shapes.linears(), cost);
  add_attention(shapes.attention, cost);
  using Operation = plan::ElementOperation;
  for (int half = 0; half < 2; ++half) {
    cost.forward.add(Operation::kNorm, narrow);
    cost.forward.add(Operation::kAdd, narrow);
    cost.backward.add(Operation::kNorm, narrow);
    cost.backward.add(Operation::kNormBackward, narrow);
  }
  cost.forward.add(Operation::kGelu, wide);
  cost.backward.add(Operation::kGelu, wide);
  cost.backward.add(Operation::kGeluBackward, wide);
  return cost;
}

std::unique_ptr<exec::Block> make_gpt2_block(const Architecture& architecture,
                                             const BatchShape& batch,
                                             const plan::UnitSpec& unit) {
  return std::make_unique<Gpt2Block>(architecture, batch, unit);
}

}  // namespace headrace::model
