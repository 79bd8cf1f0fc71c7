#include "train/probe_kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"

namespace headrace::train {
namespace {

using plan::ElementOperation;
using plan::Product;
using plan::ProductPass;
using plan::WeightLayout;

constexpr std::size_t kWorkspaceBytes = std::size_t{24} << 20U;
constexpr std::size_t kKeptBytes = std::size_t{24} << 20U;  // beside the workspace
constexpr std::int64_t kAlignBytes = 4096;
// Shapes: large enough that only the number of rows, or the sequence, shows in the rate.
constexpr std::int64_t kProductWidth = 1024;
constexpr std::array<std::int64_t, 4> kProductRows = {16, 64, 256, 1024};
constexpr std::array<std::int64_t, 3> kSequences = {64, 256, 1024};
constexpr std::int64_t kAttentionRows = 1024;
constexpr std::int64_t kAttentionHeads = 8;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kElementRows = 512;
constexpr std::int64_t kElementColumns = 1024;
constexpr std::int64_t kRotateHeads = kElementColumns / kHeadDim;
// Of each rate, in each of two passes. Operations of a round: so many flops at least, and so many
// operations at most.
constexpr double kRoundFlops = 0.4e9;
constexpr int kRoundOperations = 16;
constexpr Effort kEffort{.time = std::chrono::milliseconds(10), .rounds_min = 2};

}  // namespace

Result<std::unique_ptr<KernelBench>> KernelBench::create(std::span<std::byte> memory, int threads) {
  HEADRACE_ASSERT(memory.size() >= kKernelMemoryBytesMin, "too little memory to pass over");
  std::unique_ptr<KernelBench> bench(new KernelBench(memory, threads));
  HEADRACE_ASSIGN(bench->device_,
                  tiers::make_cpu_device(bench->runtime_, {.compute_threads = threads}));
  return bench;
}

kernels::Context KernelBench::context() const {
  return {.queue = device_->compute(),
          .workspace = memory_.first(kWorkspaceBytes),
          .threads = threads_};
}

float* KernelBench::next(std::int64_t count) {
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(float) + kAlignBytes - 1) /
                            kAlignBytes * kAlignBytes;
  const std::span<std::byte> passed = memory_.subspan(kWorkspaceBytes + kKeptBytes);
  HEADRACE_ASSERT(bytes <= passed.size(), "an operand is larger than the memory");
  if (next_bytes_ + bytes > passed.size()) {
    next_bytes_ = 0;
  }
  std::byte* place = passed.data() + next_bytes_;
  next_bytes_ += bytes;
  return reinterpret_cast<float*>(place);
}

float* KernelBench::kept(std::int64_t count) {
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(float) + kAlignBytes - 1) /
                            kAlignBytes * kAlignBytes;
  HEADRACE_ASSERT(bytes <= kKeptBytes, "an operand is larger than its place");
  if (kept_bytes_ + bytes > kKeptBytes) {
    kept_bytes_ = 0;
  }
  std::byte* place = memory_.data() + kWorkspaceBytes + kept_bytes_;
  kept_bytes_ += bytes;
  return reinterpret_cast<float*>(place);
}

void KernelBench::multiply(const Product& product) {
  const kernels::Context context = this->context();
  const kernels::LinearShape shape = {.rows = product.rows,
                                      .inputs = product.inputs,
                                      .outputs = product.outputs,
                                      .layout = product.layout == WeightLayout::kOutIn
                                                    ? kernels::WeightLayout::kOutIn
                                                    : kernels::WeightLayout::kInOut};
  float* x = kept(product.rows * product.inputs);
  float* y = kept(product.rows * product.outputs);
  float* weight = next(product.inputs * product.outputs);
  switch (product.pass) {
    case ProductPass::kForward:
      kernels::linear(context, {.shape = shape, .x = {x}, .weight = {weight}, .y = {y}});
      break;
    case ProductPass::kInput:
      kernels::linear_backward_input(context,
                                     {.shape = shape, .dy = {y}, .weight = {weight}, .dx = {x}});
      break;
    case ProductPass::kWeight:
      kernels::linear_backward_weight(context,
                                      {.shape = shape, .x = {x}, .dy = {y}, .dweight = weight});
      break;
  }
}

KernelBench::Round KernelBench::product(const Product& product) {
  const int operations =
      std::clamp(static_cast<int>(std::ceil(kRoundFlops / product.flops())), 1, kRoundOperations);
  return {.submit =
              [this, product, operations] {
                for (int i = 0; i < operations; ++i) {
                  multiply(product);
                }
              },
          .work = operations * product.flops(),
          .operations = operations};
}

void KernelBench::attend(std::int64_t sequence, bool backward) {
  const kernels::Context context = this->context();
  constexpr std::int64_t kWidth = kAttentionHeads * kHeadDim;
  const kernels::AttentionShape shape = {.batch = kAttentionRows / sequence,
                                         .sequence = sequence,
                                         .heads = kAttentionHeads,
                                         .kv_heads = kAttentionHeads,
                                         .head_dim = kHeadDim};
  float* qkv = next(3 * kAttentionRows * kWidth);
  float* out = next(kAttentionRows * kWidth);
  float* lse = kept(kAttentionRows * kAttentionHeads);
  const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  const auto third = [](float* packed, std::int64_t index) {
    return kernels::Rows{packed + index * kWidth, 3 * kWidth};
  };
  if (!backward) {
    kernels::attention(context,
                       {.shape = shape,
                        .scale = scale,
                        .q = third(qkv, 0),
                        .k = third(qkv, 1),
                        .v = third(qkv, 2),
                        .out = {out, kWidth},
                        .lse = lse});
    return;
  }
  float* dout = kept(kAttentionRows * kWidth);
  float* dqkv = kept(3 * kAttentionRows * kWidth);
  kernels::attention_backward(context,
                              {.shape = shape,
                               .scale = scale,
                               .q = third(qkv, 0),
                               .k = third(qkv, 1),
                               .v = third(qkv, 2),
                               .out = {out, kWidth},
                               .dout = {dout, kWidth},
                               .lse = lse,
                               .dq = third(dqkv, 0),
                               .dk = third(dqkv, 1),
                               .dv = third(dqkv, 2)});
}

KernelBench::Round KernelBench::attention(std::int64_t sequence, bool backward) {
  const double product = static_cast<double>(kAttentionRows) * static_cast<double>(sequence) *
                         static_cast<double>(kAttentionHeads * kHeadDim);
  return {.submit = [this, sequence, backward] { attend(sequence, backward); },
          .work = (backward ? 5 : 2) * product,
          .operations = 1};
}

void KernelBench::normalise(const kernels::Context& context,
                            ElementOperation operation,
                            const float* x,
                            float* y) {
  constexpr kernels::NormShape kShape = {.rows = kElementRows, .columns = kElementColumns};
  float* parameters = kept(4 * kElementColumns);
  float* mean = kept(kElementRows);
  float* rstd = kept(kElementRows);
  if (operation == ElementOperation::kNorm) {
    kernels::layer_norm(context,
                        {.shape = kShape,
                         .x = {x},
                         .gain = {parameters},
                         .bias = {parameters + kElementColumns},
                         .y = {y},
                         .mean = mean,
                         .rstd = rstd});
    return;
  }
  kernels::layer_norm_backward(context,
                               {.shape = kShape,
                                .dy = {kept(kElementRows * kElementColumns)},
                                .x = {x},
                                .gain = {parameters},
                                .mean = mean,
                                .rstd = rstd,
                                .dx = {y},
                                .accumulate = true,
                                .dgain = parameters + 2 * kElementColumns,
                                .dbias = parameters + 3 * kElementColumns});
}

// With one column there is little of the product.
void KernelBench::score(const kernels::Context& context) {
  static constexpr std::array<std::int32_t, kElementRows> kTargets = {};
  constexpr auto kStateFloats =
      static_cast<std::int64_t>(kernels::head_state_bytes(kElementRows) / sizeof(float));
  kernels::head_score(
      context,
      {.shape = {.rows = kElementRows,
                 .columns = 1,
                 .vocab = kElementColumns,
                 .rows_per_chunk = kElementColumns},
       .piece = {.first_row = 0, .row_count = kElementColumns, .weight = {kept(kElementColumns)}},
       .h = {kept(kElementRows)},
       .targets = kTargets.data(),
       .state = kept(kStateFloats)});
}

void KernelBench::pass_elements(ElementOperation operation) {
  const kernels::Context context = this->context();
  constexpr std::int64_t kElements = kElementRows * kElementColumns;
  float* x = next(kElements);
  float* y = next(kElements);
  switch (operation) {
    case ElementOperation::kAdd:
      kernels::add(context, {.elements = kElements, .a = {y}, .b = {x}, .y = {y}});
      break;
    case ElementOperation::kGelu:
      kernels::gelu(context, {.elements = kElements, .x = {x}, .y = {y}});
      break;
    case ElementOperation::kGeluBackward:
      kernels::gelu_backward(context, {.elements = kElements, .x = {x}, .dy = {y}, .dx = {y}});
      break;
    case ElementOperation::kSwiglu:
      kernels::swiglu(context,
                      {.elements = kElements, .gate = {x}, .up = {y}, .y = {kept(kElements)}});
      break;
    case ElementOperation::kSwigluBackward: {
      float* dy = kept(kElements);
      kernels::swiglu_backward(context,
                               {.elements = kElements,
                                .gate = {x},
                                .up = {y},
                                .dy = {dy},
                                .dgate = {dy},
                                .dup = {kept(kElements)}});
      break;
    }
    case ElementOperation::kRotate: {
      float* angles = kept(kElementRows * kHeadDim);
      kernels::rope(context,
                    {.batch = 1,
                     .sequence = kElementRows,
                     .heads = kRotateHeads,
                     .head_dim = kHeadDim,
                     .x = {x, kElementColumns},
                     .cosine = angles,
                     .sine = angles + kElementRows * kHeadDim / 2});
      break;
    }
    case ElementOperation::kColumnSum:
      kernels::linear_backward_bias(context,
                                    {.rows = kElementRows,
                                     .outputs = kElementColumns,
                                     .dy = {x},
                                     .dbias = kept(kElementColumns)});
      break;
    case ElementOperation::kSoftmax:
      score(context);
      break;
    case ElementOperation::kNorm:
    case ElementOperation::kNormBackward:
      normalise(context, operation, x, y);
      break;
  }
}

KernelBench::Round KernelBench::elements(ElementOperation operation) {
  constexpr int kOperations = 4;
  return {.submit =
              [this, operation] {
                for (int i = 0; i < kOperations; ++i) {
                  pass_elements(operation);
                }
              },
          .work = static_cast<double>(kOperations * kElementRows * kElementColumns),
          .operations = kOperations};
}

KernelBench::Round KernelBench::smallest() {
  constexpr std::int64_t kElements = 32768;  // two blocks: there is something for a team
  return {.submit =
              [this] {
                for (int i = 0; i < kRoundOperations; ++i) {
                  float* x = kept(kElements);
                  kernels::add(context(), {.elements = kElements, .a = {x}, .b = {x}, .y = {x}});
                }
              },
          .work = kRoundOperations,
          .operations = kRoundOperations};
}

Status KernelBench::run(const Round& round) {
  round.submit();
  return device_->compute().record().wait_host();
}

Load KernelBench::load(Round round) {
  return [this, round = std::move(round)]() -> Result<double> {
    HEADRACE_TRY(run(round));
    return round.work;
  };
}

namespace {

// The better of what was measured before and now, at one more size or at one known.
void keep_better(plan::SizedRates& rates, std::size_t index, double size, double rate) {
  if (index == rates.sizes.size()) {
    rates.sizes.push_back(size);
    rates.rates.push_back(rate);
  }
  rates.rates[index] = std::max(rates.rates[index], rate);
}

// Rates without what an operation costs however little it does, which is priced apart.
class Rates {
 public:
  Rates(KernelBench& bench, plan::MachineProfile& profile) : bench_(bench), profile_(profile) {}

  Status operation() {
    const KernelBench::Round round = bench_.smallest();
    HEADRACE_ASSIGN(const Sample sample, measure_rate(kEffort, bench_.load(round)));
    const double seconds = 1 / sample.median;
    profile_.operation_s =
        profile_.operation_s > 0 ? std::min(profile_.operation_s, seconds) : seconds;
    return {};
  }

  Status products(ProductPass pass, WeightLayout layout) {
    for (std::size_t i = 0; i < kProductRows.size(); ++i) {
      HEADRACE_ASSIGN(const double flops,
                      rate(bench_.product({.pass = pass,
                                           .layout = layout,
                                           .rows = kProductRows[i],
                                           .inputs = kProductWidth,
                                           .outputs = kProductWidth})));
      keep_better(profile_.gemm[static_cast<std::size_t>(pass)][static_cast<std::size_t>(layout)],
                  i,
                  static_cast<double>(kProductRows[i]),
                  flops);
    }
    return {};
  }

  Status attention(bool backward) {
    for (std::size_t i = 0; i < kSequences.size(); ++i) {
      HEADRACE_ASSIGN(const double flops, rate(bench_.attention(kSequences[i], backward)));
      keep_better(backward ? profile_.attention_backward : profile_.attention_forward,
                  i,
                  static_cast<double>(kSequences[i]),
                  flops);
    }
    return {};
  }

  Status elements(std::size_t operation) {
    HEADRACE_ASSIGN(const double elements,
                    rate(bench_.elements(static_cast<ElementOperation>(operation))));
    profile_.elements_per_s[operation] = std::max(profile_.elements_per_s[operation], elements);
    return {};
  }

 private:
  Result<double> rate(const KernelBench::Round& round) {
    HEADRACE_ASSIGN(const Sample sample, measure_rate(kEffort, bench_.load(round)));
    const double seconds = round.work / sample.median;
    const double cost = std::min(round.operations * profile_.operation_s, seconds / 2);
    return round.work / (seconds - cost);
  }

  KernelBench& bench_;
  plan::MachineProfile& profile_;
};

}  // namespace

Status kernel_rates(KernelBench& bench, plan::MachineProfile& profile) {
  Rates rates(bench, profile);
  HEADRACE_TRY(rates.operation());
  for (const ProductPass pass :
       {ProductPass::kForward, ProductPass::kInput, ProductPass::kWeight}) {
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      HEADRACE_TRY(rates.products(pass, layout));
    }
  }
  for (const bool backward : {false, true}) {
    HEADRACE_TRY(rates.attention(backward));
  }
  for (std::size_t i = 0; i < plan::kElementOperations; ++i) {
    HEADRACE_TRY(rates.elements(i));
  }
  return {};
}

}  // namespace headrace::train
