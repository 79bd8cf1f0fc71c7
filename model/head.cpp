// The head: final norm, then the vocabulary matrix in pieces of rows, twice: log-sum-exp and loss,
// then dlogits with d(hidden) and d(weights).
//
// state: the normed input [N, C], the score's running values [3, N], the norm's mean and rstd [N].
// Invariant: rows_per_chunk is a constant of the run, so the pieces do not show in the numbers.
#include <algorithm>
#include <array>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"
#include "model/block_parts.hpp"
#include "model/units.hpp"

namespace headrace::model {

namespace {

kernels::HeadShape head_shape(const Architecture& a, const BatchShape& batch, std::int64_t chunk) {
  return {.rows = batch.micro_batch * batch.seq_len,
          .columns = a.hidden,
          .vocab = a.vocab,
          .rows_per_chunk = chunk};
}

kernels::NormShape norm_shape(const kernels::HeadShape& shape) {
  return {.rows = shape.rows, .columns = shape.columns};
}

// Byte offsets.
struct Places {
  std::size_t normed, score, mean, rstd, state_bytes;
  std::size_t selected, logits_kernels;  // in the workspace of logits
  std::size_t score_bytes, gradient_bytes, norm_backward_bytes;
};

Places places_of(const kernels::HeadShape& shape, Family family, int threads) {
  Places places{};
  PartList state;
  places.normed = state.add_floats(shape.rows * shape.columns);
  places.score = state.add_bytes(kernels::head_state_bytes(shape.rows));
  places.mean = state.add_floats(shape.rows);
  places.rstd = state.add_floats(shape.rows);
  places.state_bytes = state.bytes();

  const std::int64_t positions = std::min(shape.rows, kLogitsPositionsMax);
  PartList logits;
  places.selected = logits.add_bytes(static_cast<std::size_t>(positions) * sizeof(std::int32_t));
  places.logits_kernels =
      logits.add_bytes(std::max(kernels::head_logits_workspace_bytes(shape, positions, threads),
                                kernels::head_logits_workspace_bytes(shape, 1, threads)));
  places.score_bytes =
      std::max(kernels::head_score_workspace_bytes(shape, threads), logits.bytes());
  places.gradient_bytes = kernels::head_gradient_workspace_bytes(shape, threads);
  places.norm_backward_bytes =
      family == Family::kGpt2
          ? kernels::layer_norm_backward_workspace_bytes(norm_shape(shape), threads)
          : kernels::rms_norm_backward_workspace_bytes(norm_shape(shape), threads);
  return places;
}

class TiledHead final : public exec::Head {
 public:
  TiledHead(const Architecture& architecture, const plan::ModelSpec& spec, const BatchShape& batch)
      : family_(architecture.family),
        shape_(head_shape(architecture, batch, spec.head.rows_per_chunk)),
        threads_(batch.compute_threads),
        places_(places_of(shape_, family_, threads_)),
        eps_(architecture.norm_eps) {
    const plan::UnitSpec& unit = spec.units.back();
    const bool gpt2 = family_ == Family::kGpt2;
    gain_ = find_slot(unit, gpt2 ? ".ln_f.weight" : ".norm.weight");
    bias_ = find_slot(unit, ".ln_f.bias", !gpt2);
  }

  void begin(const exec::Call& call,
             const float* norm_weights,
             const float* input,
             std::span<std::byte> state) override {
    check(state);
    const Pass pass = pass_of(call, norm_weights);
    float* normed = floats_at(state, places_.normed);
    if (family_ == Family::kGpt2) {
      kernels::layer_norm(pass.context(),
                          {.shape = norm_shape(shape_),
                           .eps = eps_,
                           .x = {input},
                           .gain = pass.weight(gain_),
                           .bias = pass.weight(bias_),
                           .y = {normed},
                           .mean = floats_at(state, places_.mean),
                           .rstd = floats_at(state, places_.rstd)});
    } else {
      kernels::rms_norm(pass.context(),
                        {.shape = norm_shape(shape_),
                         .eps = eps_,
                         .x = {input},
                         .gain = pass.weight(gain_),
                         .y = {normed},
                         .rstd = floats_at(state, places_.rstd)});
    }
  }

  void score(const exec::Call& call,
             const Rows& rows,
             const std::int32_t* targets,
             std::span<std::byte> state) override {
    check(state);
    kernels::head_score(context_of(call),
                        {.shape = shape_,
                         .piece = piece_of(rows),
                         .h = {floats_at(state, places_.normed)},
                         .targets = targets,
                         .state = floats_at(state, places_.score)});
  }

  void loss(const exec::Call& call,
            const std::int32_t* targets,
            std::span<std::byte> state,
            double* loss_sum) override {
    check(state);
    kernels::head_loss(context_of(call),
                       {.rows = shape_.rows,
                        .targets = targets,
                        .state = floats_at(state, places_.score),
                        .token_loss = nullptr,
                        .loss_sum = loss_sum});
  }

  void gradient(const exec::Call& call,
                const Rows& rows,
                const std::int32_t* targets,
                float scale,
                std::span<std::byte> state,
                bool first_piece,
                float* gradient,
                float* weight_gradients,
                exec::GradientMode mode) override {
    check(state);
    HEADRACE_ASSERT(first_piece == (rows.first_row == 0), "pieces are walked in ascending order");
    kernels::head_gradient(context_of(call),
                           {.shape = shape_,
                            .piece = piece_of(rows),
                            .h = {floats_at(state, places_.normed)},
                            .targets = targets,
                            .state = floats_at(state, places_.score),
                            .scale = scale,
                            .dh = {gradient},
                            .dweight = weight_gradients,
                            .mode = kernel_mode(mode)});
  }

  void end(const exec::Call& call,
           const float* norm_weights,
           const float* input,
           std::span<std::byte> state,
           float* gradient,
           float* norm_gradients,
           exec::GradientMode mode) override {
    check(state);
    Pass pass = pass_of(call, norm_weights);
    pass.gradients = norm_gradients;
    pass.mode = kernel_mode(mode);
    if (family_ == Family::kGpt2) {
      kernels::layer_norm_backward(pass.context(),
                                   {.shape = norm_shape(shape_),
                                    .dy = {gradient},
                                    .x = {input},
                                    .gain = pass.weight(gain_),
                                    .mean = floats_at(state, places_.mean),
                                    .rstd = floats_at(state, places_.rstd),
                                    .dx = {gradient},
                                    .dgain = pass.gradient(gain_),
                                    .dbias = pass.gradient(bias_),
                                    .mode = pass.mode});
    } else {
      kernels::rms_norm_backward(pass.context(),
                                 {.shape = norm_shape(shape_),
                                  .dy = {gradient},
                                  .x = {input},
                                  .gain = pass.weight(gain_),
                                  .rstd = floats_at(state, places_.rstd),
                                  .dx = {gradient},
                                  .dgain = pass.gradient(gain_),
                                  .mode = pass.mode});
    }
  }

  void logits(const exec::Call& call,
              const Rows& rows,
              std::span<const std::int64_t> positions,
              std::span<const std::byte> state,
              float* logits) override {
    check(state);
    const auto count = static_cast<std::int64_t>(positions.size());
    HEADRACE_ASSERT(count <= kLogitsPositionsMax, "too many positions for one call");
    HEADRACE_ASSERT(call.workspace.size() >= places_.score_bytes, "the workspace is too small");
    auto* selected = reinterpret_cast<std::int32_t*>(call.workspace.data() + places_.selected);
    select(call, positions, selected);
    kernels::Context context = context_of(call);
    context.workspace = call.workspace.subspan(places_.logits_kernels);
    kernels::head_logits(context,
                         {.shape = shape_,
                          .piece = piece_of(rows),
                          .h = {floats_at(state, places_.normed)},
                          .selected_count = count,
                          .selected = selected,
                          .logits = logits});
  }

 private:
  void check(std::span<const std::byte> state) const {
    HEADRACE_ASSERT(state.size() >= places_.state_bytes, "the head's state is too small");
  }

  [[nodiscard]] kernels::Context context_of(const exec::Call& call) const {
    return {.queue = call.queue, .workspace = call.workspace, .threads = threads_, .id = call.id};
  }

  [[nodiscard]] Pass pass_of(const exec::Call& call, const float* weights) const {
    return {
        .call = call, .threads = threads_, .kernel_workspace = call.workspace, .weights = weights};
  }

  [[nodiscard]] static kernels::HeadPiece piece_of(const Rows& rows) {
    return {.first_row = rows.first_row, .row_count = rows.rows, .weight = {rows.weights}};
  }

  // The kernels' index type.
  static void select(const exec::Call& call,
                     std::span<const std::int64_t> positions,
                     std::int32_t* selected) {
    const tiers::MemorySpan read(positions.data(), positions.size_bytes());
    const tiers::MemorySpan write(selected, positions.size() * sizeof(std::int32_t));
    call.queue.submit({.name = "logits positions",
                       .reads = std::span(&read, 1),
                       .writes = std::span(&write, 1),
                       .id = call.id},
                      [source = positions.data(), count = positions.size(), selected] {
                        std::transform(source, source + count, selected, [](std::int64_t position) {
                          return static_cast<std::int32_t>(position);
                        });
                      });
  }

  Family family_;
  kernels::HeadShape shape_;
  int threads_;
  Places places_;
  double eps_;
  Slot gain_, bias_;
};

}  // namespace

void set_head_costs(const Architecture& architecture,
                    const BatchShape& batch,
                    plan::UnitSpec& unit,
                    plan::HeadSpec& head) {
  const kernels::HeadShape shape = head_shape(architecture, batch, head.rows_per_chunk);
  const Places places = places_of(shape, architecture.family, batch.compute_threads);
  const std::int64_t piece_rows = head.rows.front().rows;
  const auto activation = static_cast<double>(shape.rows * shape.columns);
  const auto logits = static_cast<double>(shape.rows * piece_rows);
  head.state_bytes = places.state_bytes;
  unit.cost = {.backward_workspace_bytes = places.norm_backward_bytes};
  unit.cost.forward.add(plan::ElementOperation::kNorm, activation);
  unit.cost.backward.add(plan::ElementOperation::kNormBackward, activation);

  plan::Product product{.pass = plan::ProductPass::kForward,
                        .layout = plan::WeightLayout::kOutIn,
                        .rows = shape.rows,
                        .inputs = shape.columns,
                        .outputs = piece_rows};
  head.score = {.forward_workspace_bytes = places.score_bytes};
  head.score.forward.add(product);
  head.score.forward.add(plan::ElementOperation::kSoftmax, logits);
  // Logits again, then d(hidden) and d(weights).
  head.gradient = {.backward_workspace_bytes = places.gradient_bytes};
  head.gradient.backward.add(product);
  head.gradient.backward.add(plan::ElementOperation::kSoftmax, logits);
  product.pass = plan::ProductPass::kInput;
  head.gradient.backward.add(product);
  product.pass = plan::ProductPass::kWeight;
  head.gradient.backward.add(product);
}

std::unique_ptr<exec::Head> make_head(const Architecture& architecture,
                                      const plan::ModelSpec& spec,
                                      const BatchShape& batch) {
  return std::make_unique<TiledHead>(architecture, spec, batch);
}

}  // namespace headrace::model
