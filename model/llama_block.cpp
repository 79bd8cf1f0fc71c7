// Llama's block: x += o(attention(rope(q), rope(k), v)) of norm(x); x += down(silu(gate) * up) of
// norm(x). Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models";
// grouped-query attention as in Ainslie et al. 2023. With qk_norm (Qwen3) each head of q and k is
// normalised before it is rotated.
//
// Saved for backward, per row of N: q and k (rotated; with qk_norm as projected), v, attention
// output, middle of the residual stream C, gate and up 2F floats, and a log-sum-exp per head.
// Norms, what they make of q and k, and SwiGLU's product are made again.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"
#include "model/block_parts.hpp"
#include "model/units.hpp"

namespace headrace::model {

namespace {

struct Shapes {
  std::int64_t rows, hidden, ffn, q_width, kv_width;
  bool qk_norm;
  kernels::AttentionShape attention;
  kernels::LinearShape q, kv, o, up, down;

  [[nodiscard]] std::array<kernels::LinearShape, 5> distinct_linears() const {
    return {q, kv, o, up, down};
  }

  [[nodiscard]] std::array<kernels::LinearShape, 7> linears() const {
    return {q, kv, kv, o, up, up, down};
  }

  [[nodiscard]] kernels::NormShape norm() const { return {.rows = rows, .columns = hidden}; }

  // Of the heads of q or of k, one after the other.
  [[nodiscard]] kernels::NormShape head_norm(std::int64_t heads) const {
    return {.rows = rows * heads, .columns = attention.head_dim};
  }

  // q and k beside each other, as attention takes them, where they are not what is saved.
  [[nodiscard]] std::int64_t remade_width() const { return qk_norm ? q_width + kv_width : 0; }

  [[nodiscard]] std::int64_t lse() const {
    return attention.batch * attention.heads * attention.sequence;
  }
};

Shapes shapes_of(const Architecture& a, const BatchShape& batch, std::int64_t layer) {
  Shapes s{};
  s.rows = batch.micro_batch * batch.seq_len;
  s.hidden = a.hidden;
  s.ffn = a.ffn;
  s.q_width = a.heads * a.head_dim;
  s.kv_width = a.kv_heads * a.head_dim;
  s.qk_norm = a.qk_norm;
  s.attention = {.batch = batch.micro_batch,
                 .sequence = batch.seq_len,
                 .heads = a.heads,
                 .kv_heads = a.kv_heads,
                 .head_dim = a.head_dim,
                 .window = window_of(a, layer)};
  const auto linear = [&](std::int64_t inputs, std::int64_t outputs, bool bias) {
    return kernels::LinearShape{.rows = s.rows,
                                .inputs = inputs,
                                .outputs = outputs,
                                .layout = kernels::WeightLayout::kOutIn,
                                .bias = bias};
  };
  s.q = linear(a.hidden, s.q_width, a.qkv_bias);
  s.kv = linear(a.hidden, s.kv_width, a.qkv_bias);
  s.o = linear(s.q_width, a.hidden, a.output_bias);
  s.up = linear(a.hidden, a.ffn, a.mlp_bias);
  s.down = linear(a.ffn, a.hidden, a.mlp_bias);
  return s;
}

// Byte offsets in `saved` and in the workspace.
struct Places {
  std::size_t q, k, v, attention, middle, gate, up, lse, saved_bytes;
  std::size_t forward_wide, forward_rstd, forward_kernels, forward_bytes;
  std::size_t wide, narrow, rstd, remade, heads_rstd, kernels, backward_bytes;
};

Places places_of(const Shapes& s, int threads) {
  Places places{};
  PartList saved;
  places.q = saved.add_floats(s.rows * s.q_width);
  places.k = saved.add_floats(s.rows * s.kv_width);
  places.v = saved.add_floats(s.rows * s.kv_width);
  places.attention = saved.add_floats(s.rows * s.q_width);
  places.middle = saved.add_floats(s.rows * s.hidden);
  places.gate = saved.add_floats(s.rows * s.ffn);
  places.up = saved.add_floats(s.rows * s.ffn);
  places.lse = saved.add_floats(s.lse());
  places.saved_bytes = saved.bytes();

  const auto linears = s.distinct_linears();
  const ProjectionWorkspace linear = projection_workspace(linears, threads);
  PartList forward;
  places.forward_wide = forward.add_floats(s.rows * std::max({s.hidden, s.ffn, s.remade_width()}));
  places.forward_rstd = forward.add_floats(s.rows * (s.qk_norm ? s.attention.heads : 1));
  places.forward_kernels = forward.add_bytes(
      std::max(linear.forward_bytes, kernels::attention_workspace_bytes(s.attention, threads)));
  places.forward_bytes = forward.bytes();

  PartList backward;
  // First d(gate), d(up), later d(q), d(k), d(v).
  places.wide = backward.add_floats(s.rows * std::max(2 * s.ffn, s.q_width + 2 * s.kv_width));
  places.narrow = backward.add_floats(s.rows * std::max(s.hidden, s.q_width));
  places.rstd = backward.add_floats(s.rows);
  places.remade = backward.add_floats(s.rows * s.remade_width());
  places.heads_rstd =
      backward.add_floats(s.qk_norm ? s.rows * (s.attention.heads + s.attention.kv_heads) : 0);
  const kernels::NormShape of_heads = s.head_norm(s.qk_norm ? s.attention.heads : 0);
  places.kernels = backward.add_bytes(
      std::max({linear.backward_bytes,
                kernels::rms_norm_backward_workspace_bytes(s.norm(), threads),
                kernels::rms_norm_backward_workspace_bytes(of_heads, threads),
                kernels::attention_backward_workspace_bytes(s.attention, threads)}));
  places.backward_bytes = backward.bytes();
  return places;
}

class LlamaBlock final : public exec::Block {
 public:
  LlamaBlock(const Architecture& architecture,
             const BatchShape& batch,
             const plan::UnitSpec& unit,
             std::int64_t layer,
             std::shared_ptr<const RopeTables> tables)
      : shapes_(shapes_of(architecture, batch, layer)),
        threads_(batch.compute_threads),
        places_(places_of(shapes_, threads_)),
        eps_(architecture.norm_eps),
        scale_(1.0 / std::sqrt(static_cast<double>(architecture.head_dim))),
        tables_(std::move(tables)),
        norm_1_(find_slot(unit, ".input_layernorm.weight")),
        norm_2_(find_slot(unit, ".post_attention_layernorm.weight")),
        norm_q_(find_slot(unit, ".self_attn.q_norm.weight", true)),
        norm_k_(find_slot(unit, ".self_attn.k_norm.weight", true)),
        q_(projection(unit, shapes_.q, ".self_attn.q_proj")),
        k_(projection(unit, shapes_.kv, ".self_attn.k_proj")),
        v_(projection(unit, shapes_.kv, ".self_attn.v_proj")),
        o_(projection(unit, shapes_.o, ".self_attn.o_proj")),
        gate_(projection(unit, shapes_.up, ".mlp.gate_proj")),
        up_(projection(unit, shapes_.up, ".mlp.up_proj")),
        down_(projection(unit, shapes_.down, ".mlp.down_proj")) {}

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
    float* rstd = floats_at(call.workspace, places_.forward_rstd);
    float* middle = floats_at(saved, places_.middle);
    float* gate = floats_at(saved, places_.gate);
    float* up = floats_at(saved, places_.up);

    normalise(pass, norm_1_, input, wide, rstd);
    forward_attention(pass, wide, saved);
    project(pass, o_, floats_at(saved, places_.attention), middle);
    add(context, middle, input);
    normalise(pass, norm_2_, middle, wide, rstd);
    project(pass, gate_, wide, gate);
    project(pass, up_, wide, up);
    kernels::swiglu(
        context, {.elements = shapes_.rows * shapes_.ffn, .gate = {gate}, .up = {up}, .y = {wide}});
    project(pass, down_, wide, output);
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
            .bias = find_slot(unit, name + ".bias", true)};
  }

  void add(const kernels::Context& context, float* y, const float* x) const {
    kernels::add(context,
                 {.elements = shapes_.rows * shapes_.hidden, .a = {y}, .b = {x}, .y = {y}});
  }

  void normalise(const Pass& pass, const Slot& gain, const float* x, float* y, float* rstd) const {
    normalise(pass, shapes_.norm(), gain, x, y, rstd);
  }

  void normalise(const Pass& pass,
                 const kernels::NormShape& shape,
                 const Slot& gain,
                 const float* x,
                 float* y,
                 float* rstd) const {
    kernels::rms_norm(
        pass.context(),
        {.shape = shape, .eps = eps_, .x = {x}, .gain = pass.weight(gain), .y = {y}, .rstd = rstd});
  }

  // gradient += d(x) of y = norm(x), given d(y).
  void backward_norm(
      const Pass& pass, const Slot& gain, const float* x, const float* dy, float* gradient) const {
    kernels::rms_norm_backward(pass.context(),
                               {.shape = shapes_.norm(),
                                .dy = {dy},
                                .x = {x},
                                .gain = pass.weight(gain),
                                .rstd = floats_at(pass.call.workspace, places_.rstd),
                                .dx = {gradient},
                                .accumulate = true,
                                .dgain = pass.gradient(gain),
                                .mode = pass.mode});
  }

  void rotate(const Pass& pass, float* x, std::int64_t heads, bool inverse) const {
    const std::int64_t head_dim = shapes_.attention.head_dim;
    kernels::rope(pass.context(),
                  {.batch = shapes_.attention.batch,
                   .sequence = shapes_.attention.sequence,
                   .heads = heads,
                   .head_dim = head_dim,
                   .x = {x, heads * head_dim},
                   .cosine = tables_->cosine.data(),
                   .sine = tables_->sine.data(),
                   .inverse = inverse});
  }

  struct Heads {
    float* q;
    float* k;
  };

  struct ConstHeads {
    const float* q;
    const float* k;
  };

  [[nodiscard]] float* wide_of_forward(const Pass& pass) const {
    return floats_at(pass.call.workspace, places_.forward_wide);
  }

  void rotate_heads(const Pass& pass, const Heads& x, bool inverse) const {
    rotate(pass, x.q, shapes_.attention.heads, inverse);
    rotate(pass, x.k, shapes_.attention.kv_heads, inverse);
  }

  void normalise_heads(const Pass& pass,
                       const ConstHeads& x,
                       const Heads& y,
                       const Heads& rstd) const {
    const kernels::AttentionShape& shape = shapes_.attention;
    normalise(pass, shapes_.head_norm(shape.heads), norm_q_, x.q, y.q, rstd.q);
    normalise(pass, shapes_.head_norm(shape.kv_heads), norm_k_, x.k, y.k, rstd.k);
  }

  // What attention took: saved, or with qk_norm made again.
  [[nodiscard]] ConstHeads remake_heads(const Pass& pass, std::span<const std::byte> saved) const {
    const ConstHeads kept = {.q = floats_at(saved, places_.q), .k = floats_at(saved, places_.k)};
    if (!shapes_.qk_norm) {
      return kept;
    }
    float* q = floats_at(pass.call.workspace, places_.remade);
    const Heads remade = {.q = q, .k = q + shapes_.rows * shapes_.q_width};
    normalise_heads(pass, kept, remade, heads_rstd(pass));
    rotate_heads(pass, remade, false);
    return {.q = remade.q, .k = remade.k};
  }

  [[nodiscard]] Heads heads_rstd(const Pass& pass) const {
    float* rstd = floats_at(pass.call.workspace, places_.heads_rstd);
    return {.q = rstd, .k = rstd + shapes_.rows * shapes_.attention.heads};
  }

  // gradient, of what was rotated, -> of what was projected.
  void backward_heads(const Pass& pass,
                      std::span<const std::byte> saved,
                      const Heads& gradient) const {
    rotate_heads(pass, gradient, true);
    if (!shapes_.qk_norm) {
      return;
    }
    const auto norm =
        [&](const Slot& gain, std::int64_t heads, std::size_t x, const float* rstd, float* dx) {
          kernels::rms_norm_backward(pass.context(),
                                     {.shape = shapes_.head_norm(heads),
                                      .dy = {dx},
                                      .x = {floats_at(saved, x)},
                                      .gain = pass.weight(gain),
                                      .rstd = rstd,
                                      .dx = {dx},
                                      .dgain = pass.gradient(gain),
                                      .mode = pass.mode});
        };
    const Heads rstd = heads_rstd(pass);
    norm(norm_q_, shapes_.attention.heads, places_.q, rstd.q, gradient.q);
    norm(norm_k_, shapes_.attention.kv_heads, places_.k, rstd.k, gradient.k);
  }

  void forward_attention(const Pass& pass, const float* normed, std::span<std::byte> saved) const {
    float* q = floats_at(saved, places_.q);
    float* k = floats_at(saved, places_.k);
    float* v = floats_at(saved, places_.v);
    project(pass, q_, normed, q);
    project(pass, k_, normed, k);
    project(pass, v_, normed, v);
    // With qk_norm what was projected is kept, and `normed` is of no more use.
    const Heads heads = {
        .q = shapes_.qk_norm ? wide_of_forward(pass) : q,
        .k = shapes_.qk_norm ? wide_of_forward(pass) + shapes_.rows * shapes_.q_width : k};
    if (shapes_.qk_norm) {
      float* rstd = floats_at(pass.call.workspace, places_.forward_rstd);
      normalise_heads(pass, {.q = q, .k = k}, heads, {.q = rstd, .k = rstd});
    }
    rotate_heads(pass, heads, false);
    kernels::attention(pass.context(),
                       {.shape = shapes_.attention,
                        .scale = scale_,
                        .q = {heads.q, shapes_.q_width},
                        .k = {heads.k, shapes_.kv_width},
                        .v = {v, shapes_.kv_width},
                        .out = {floats_at(saved, places_.attention), shapes_.q_width},
                        .lse = floats_at(saved, places_.lse)});
  }

  // gradient: d(output) -> d(middle)
  void backward_mlp(const Pass& pass, std::span<const std::byte> saved, float* gradient) const {
    const kernels::Context context = pass.context();
    const std::span<std::byte> workspace = pass.call.workspace;
    const std::int64_t elements = shapes_.rows * shapes_.ffn;
    float* dgate = floats_at(workspace, places_.wide);
    float* dup = dgate + elements;
    float* narrow = floats_at(workspace, places_.narrow);
    const float* gate = floats_at(saved, places_.gate);
    const float* up = floats_at(saved, places_.up);
    const float* middle = floats_at(saved, places_.middle);

    kernels::swiglu(context, {.elements = elements, .gate = {gate}, .up = {up}, .y = {dgate}});
    project_backward_weights(pass, down_, dgate, gradient);
    project_backward_input(pass, down_, gradient, dgate);
    kernels::swiglu_backward(context,
                             {.elements = elements,
                              .gate = {gate},
                              .up = {up},
                              .dy = {dgate},
                              .dgate = {dgate},
                              .dup = {dup}});
    normalise(pass, norm_2_, middle, narrow, floats_at(workspace, places_.rstd));
    project_backward_weights(pass, gate_, narrow, dgate);
    project_backward_weights(pass, up_, narrow, dup);
    project_backward_input(pass, gate_, dgate, narrow);
    project_backward_input(pass, up_, dup, narrow, true);
    backward_norm(pass, norm_2_, middle, narrow, gradient);
  }

  // gradient: d(middle) -> d(input)
  void backward_attention(const Pass& pass,
                          const float* input,
                          std::span<const std::byte> saved,
                          float* gradient) const {
    const std::span<std::byte> workspace = pass.call.workspace;
    float* narrow = floats_at(workspace, places_.narrow);
    float* dq = floats_at(workspace, places_.wide);
    float* dk = dq + shapes_.rows * shapes_.q_width;
    float* dv = dk + shapes_.rows * shapes_.kv_width;
    const float* attention = floats_at(saved, places_.attention);

    project_backward_weights(pass, o_, attention, gradient);
    project_backward_input(pass, o_, gradient, narrow);
    const ConstHeads heads = remake_heads(pass, saved);
    kernels::attention_backward(pass.context(),
                                {.shape = shapes_.attention,
                                 .scale = scale_,
                                 .q = {heads.q, shapes_.q_width},
                                 .k = {heads.k, shapes_.kv_width},
                                 .v = {floats_at(saved, places_.v), shapes_.kv_width},
                                 .out = {attention, shapes_.q_width},
                                 .dout = {narrow, shapes_.q_width},
                                 .lse = floats_at(saved, places_.lse),
                                 .dq = {dq, shapes_.q_width},
                                 .dk = {dk, shapes_.kv_width},
                                 .dv = {dv, shapes_.kv_width}});
    backward_heads(pass, saved, {.q = dq, .k = dk});
    normalise(pass, norm_1_, input, narrow, floats_at(workspace, places_.rstd));
    project_backward_weights(pass, q_, narrow, dq);
    project_backward_weights(pass, k_, narrow, dk);
    project_backward_weights(pass, v_, narrow, dv);
    project_backward_input(pass, q_, dq, narrow);
    project_backward_input(pass, k_, dk, narrow, true);
    project_backward_input(pass, v_, dv, narrow, true);
    backward_norm(pass, norm_1_, input, narrow, gradient);
  }

  Shapes shapes_;
  int threads_;
  Places places_;
  double eps_;
  double scale_;
  std::shared_ptr<const RopeTables> tables_;
  Slot norm_1_, norm_2_, norm_q_, norm_k_;
  Projection q_, k_, v_, o_, gate_, up_, down_;
};

plan::TensorSpec tensor(const std::string& name, std::vector<std::int64_t> shape) {
  plan::TensorSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

}  // namespace

std::shared_ptr<const RopeTables> make_rope_tables(const Architecture& architecture,
                                                   const BatchShape& batch) {
  auto tables = std::make_shared<RopeTables>();
  const auto size = static_cast<std::size_t>(batch.seq_len * (architecture.head_dim / 2));
  tables->cosine.resize(size);
  tables->sine.resize(size);
  const RopeFrequencies frequencies =
      rope_frequencies(rope_shape(architecture), architecture.rope_scaling, batch.seq_len);
  kernels::rope_table({.positions = batch.seq_len,
                       .radians = frequencies.radians,
                       .amplitude = frequencies.amplitude},
                      tables->cosine,
                      tables->sine);
  return tables;
}

std::vector<plan::TensorSpec> llama_block_tensors(const Architecture& a, std::int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer);
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t kv = a.kv_heads * a.head_dim;
  std::vector<plan::TensorSpec> tensors;
  const auto add = [&](const char* name, std::int64_t outputs, std::int64_t inputs, bool bias) {
    tensors.push_back(tensor(prefix + name + ".weight", {outputs, inputs}));
    if (bias) {
      tensors.push_back(tensor(prefix + name + ".bias", {outputs}));
    }
  };
  tensors.push_back(tensor(prefix + ".input_layernorm.weight", {a.hidden}));
  add(".self_attn.q_proj", q, a.hidden, a.qkv_bias);
  add(".self_attn.k_proj", kv, a.hidden, a.qkv_bias);
  add(".self_attn.v_proj", kv, a.hidden, a.qkv_bias);
  add(".self_attn.o_proj", a.hidden, q, a.output_bias);
  if (a.qk_norm) {
    tensors.push_back(tensor(prefix + ".self_attn.q_norm.weight", {a.head_dim}));
    tensors.push_back(tensor(prefix + ".self_attn.k_norm.weight", {a.head_dim}));
  }
  tensors.push_back(tensor(prefix + ".post_attention_layernorm.weight", {a.hidden}));
  add(".mlp.gate_proj", a.ffn, a.hidden, a.mlp_bias);
  add(".mlp.up_proj", a.ffn, a.hidden, a.mlp_bias);
  add(".mlp.down_proj", a.hidden, a.ffn, a.mlp_bias);
  return tensors;
}

plan::UnitCost llama_block_cost(const Architecture& architecture,
                                const BatchShape& batch,
                                std::int64_t layer) {
  const Shapes shapes = shapes_of(architecture, batch, layer);
  const Places places = places_of(shapes, batch.compute_threads);
  const auto elements = [&](std::int64_t columns) {
    return static_cast<double>(shapes.rows * columns);
  };
  plan::UnitCost cost{.forward_workspace_bytes = places.forward_bytes,
                      .backward_workspace_bytes = places.backward_bytes,
                      .saved_bytes = places.saved_bytes};
  add_projections(shapes.linears(), cost);
  add_attention(shapes.attention, cost);
  using Operation = plan::ElementOperation;
  for (plan::Work* work : {&cost.forward, &cost.backward}) {
    work->add(Operation::kRotate, elements(shapes.q_width));
    work->add(Operation::kRotate, elements(shapes.kv_width));
    work->add(Operation::kSwiglu, elements(shapes.ffn));
  }
  if (shapes.qk_norm) {
    for (const std::int64_t width : {shapes.q_width, shapes.kv_width}) {
      cost.forward.add(Operation::kNorm, elements(width));
      cost.backward.add(Operation::kNorm, elements(width));
      cost.backward.add(Operation::kRotate, elements(width));
      cost.backward.add(Operation::kNormBackward, elements(width));
    }
  }
  cost.backward.add(Operation::kSwigluBackward, elements(shapes.ffn));
  for (int half = 0; half < 2; ++half) {
    cost.forward.add(Operation::kNorm, elements(shapes.hidden));
    cost.forward.add(Operation::kAdd, elements(shapes.hidden));
    cost.backward.add(Operation::kNorm, elements(shapes.hidden));
    cost.backward.add(Operation::kNormBackward, elements(shapes.hidden));
  }
  return cost;
}

std::unique_ptr<exec::Block> make_llama_block(const Architecture& architecture,
                                              const BatchShape& batch,
                                              const plan::UnitSpec& unit,
                                              std::int64_t layer,
                                              std::shared_ptr<const RopeTables> tables) {
  return std::make_unique<LlamaBlock>(architecture, batch, unit, layer, std::move(tables));
}

}  // namespace headrace::model
