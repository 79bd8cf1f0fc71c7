// How fast the kernels are, by themselves: GFLOP/s of products and attention, GB/s of the rest.
//
// Shapes are those of GPT-2 124M at 4 x 256. The best of several runs is printed, since other work
// on the machine only ever slows one down. Threads: the main one submits, the compute queue's runs.
//
//   kernels_bench [threads] [sequence]

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <new>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernels.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::kernels {

namespace {

struct Settings {
  int threads = 2;
  std::int64_t sequence = 256;
};

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kHidden = 768;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kVocabChunk = 8192;
constexpr double kSecondsPerKernel = 0.5;

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings), queue_(runtime_, "compute", {}), workspace_(std::size_t{256} << 20) {}

  // Normally distributed floats that stay alive.
  float* floats(std::int64_t count) {
    std::normal_distribution<float> distribution;
    std::vector<float>& values = arrays_.emplace_back(static_cast<std::size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return distribution(random_); });
    return values.data();
  }

  [[nodiscard]] Context context() {
    void* begin = workspace_.data();
    std::size_t space = workspace_.size();
    std::align(kWorkspaceAlignmentBytes, space - kWorkspaceAlignmentBytes, begin, space);
    return {.queue = queue_,
            .workspace = {static_cast<std::byte*>(begin), space},
            .threads = settings_.threads};
  }

  // Prints the best rate of `kernel`, which does `work` units (1e9 of them a second is 1).
  void measure(std::string_view name,
               std::string_view unit,
               double work,
               const std::function<void(const Context&)>& kernel) {
    using Clock = std::chrono::steady_clock;
    double best_s = HUGE_VAL;
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(kSecondsPerKernel));
    while (Clock::now() < end) {
      const Clock::time_point begin = Clock::now();
      kernel(context());
      if (Status status = queue_.record().wait_host(); !status) {
        fmt::print(stderr, "{}\n", format_error(status.error(), true));
        return;
      }
      best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    fmt::print("{:<28} {:>9.3f} ms {:>8.1f} {}\n", name, best_s * 1e3, work / best_s * 1e-9, unit);
  }

 private:
  Settings settings_;
  tiers::Runtime runtime_;
  tiers::ThreadQueue queue_;
  std::vector<std::byte> workspace_;
  std::vector<std::vector<float>> arrays_;
  std::mt19937_64 random_{1};
};

void bench_linear(Bench& bench, std::int64_t rows) {
  for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    const LinearShape shape = {
        .rows = rows, .inputs = kHidden, .outputs = 4 * kHidden, .layout = layout, .bias = true};
    float* x = bench.floats(rows * shape.inputs);
    float* y = bench.floats(rows * shape.outputs);
    float* weight = bench.floats(shape.inputs * shape.outputs);
    float* bias = bench.floats(shape.outputs);
    const double flops = 2.0 * static_cast<double>(rows * shape.inputs * shape.outputs);
    const bool out_in = layout == WeightLayout::kOutIn;
    bench.measure(
        out_in ? "linear [out, in]" : "linear [in, out]", "GFLOP/s", flops, [=](const Context& c) {
          linear(c, {.shape = shape, .x = {x}, .weight = {weight}, .bias = {bias}, .y = {y}});
        });
    bench.measure("  dx", "GFLOP/s", flops, [=](const Context& c) {
      linear_backward_input(c, {.shape = shape, .dy = {y}, .weight = {weight}, .dx = {x}});
    });
    for (const GradientMode mode : {GradientMode::kStore, GradientMode::kAdd}) {
      bench.measure(mode == GradientMode::kStore ? "  dW store" : "  dW add",
                    "GFLOP/s",
                    flops,
                    [=](const Context& c) {
                      linear_backward_weight(
                          c,
                          {.shape = shape, .x = {x}, .dy = {y}, .dweight = weight, .mode = mode});
                    });
    }
    bench.measure(
        "  dbias", "GB/s", 4.0 * static_cast<double>(rows * shape.outputs), [=](const Context& c) {
          linear_backward_bias(c,
                               {.rows = rows, .outputs = shape.outputs, .dy = {y}, .dbias = bias});
        });
  }
}

void bench_attention(Bench& bench, std::int64_t sequence) {
  const AttentionShape shape = {.batch = kBatch,
                                .sequence = sequence,
                                .heads = kHeads,
                                .kv_heads = kHeads,
                                .head_dim = kHidden / kHeads};
  const std::int64_t rows = kBatch * sequence;
  float* qkv = bench.floats(rows * 3 * kHidden);
  float* dqkv = bench.floats(rows * 3 * kHidden);
  float* out = bench.floats(rows * kHidden);
  float* dout = bench.floats(rows * kHidden);
  float* lse = bench.floats(rows * kHeads);
  const auto part = [](float* data, std::int64_t index) {
    return Rows{data + index * kHidden, 3 * kHidden};
  };
  // Half of the square is masked: 2 products forward, 5 backward, 2 flops an element.
  const double pairs = 0.5 * static_cast<double>(rows * sequence * kHidden);
  bench.measure("attention", "GFLOP/s", 4.0 * pairs, [=](const Context& c) {
    attention(c,
              {.shape = shape,
               .scale = 0.125,
               .q = part(qkv, 0),
               .k = part(qkv, 1),
               .v = part(qkv, 2),
               .out = {out, kHidden},
               .lse = lse});
  });
  bench.measure("attention_backward", "GFLOP/s", 10.0 * pairs, [=](const Context& c) {
    attention_backward(c,
                       {.shape = shape,
                        .scale = 0.125,
                        .q = part(qkv, 0),
                        .k = part(qkv, 1),
                        .v = part(qkv, 2),
                        .out = {out, kHidden},
                        .dout = {dout, kHidden},
                        .lse = lse,
                        .dq = part(dqkv, 0),
                        .dk = part(dqkv, 1),
                        .dv = part(dqkv, 2)});
  });
}

void bench_norms(Bench& bench, std::int64_t rows) {
  const NormShape shape = {.rows = rows, .columns = kHidden};
  const double bytes = 4.0 * static_cast<double>(rows * kHidden);
  float* x = bench.floats(rows * kHidden);
  float* y = bench.floats(rows * kHidden);
  float* dx = bench.floats(rows * kHidden);
  float* gain = bench.floats(kHidden);
  float* bias = bench.floats(kHidden);
  float* mean = bench.floats(rows);
  float* rstd = bench.floats(rows);
  bench.measure("layer_norm", "GB/s", 2.0 * bytes, [=](const Context& c) {
    layer_norm(c,
               {.shape = shape,
                .x = {x},
                .gain = {gain},
                .bias = {bias},
                .y = {y},
                .mean = mean,
                .rstd = rstd});
  });
  bench.measure("layer_norm_backward", "GB/s", 3.0 * bytes, [=](const Context& c) {
    layer_norm_backward(c,
                        {.shape = shape,
                         .dy = {y},
                         .x = {x},
                         .gain = {gain},
                         .mean = mean,
                         .rstd = rstd,
                         .dx = {dx},
                         .dgain = gain,
                         .dbias = bias});
  });
}

void bench_elementwise(Bench& bench, std::int64_t rows) {
  const std::int64_t elements = rows * 4 * kHidden;
  const double bytes = 4.0 * static_cast<double>(elements);
  float* a = bench.floats(elements);
  float* b = bench.floats(elements);
  float* y = bench.floats(elements);
  bench.measure("add", "GB/s", 3.0 * bytes, [=](const Context& c) {
    add(c, {.elements = elements, .a = {a}, .b = {b}, .y = {y}});
  });
  bench.measure("gelu", "GB/s", 2.0 * bytes, [=](const Context& c) {
    gelu(c, {.elements = elements, .x = {a}, .y = {y}});
  });
  bench.measure("gelu_backward", "GB/s", 3.0 * bytes, [=](const Context& c) {
    gelu_backward(c, {.elements = elements, .x = {a}, .dy = {b}, .dx = {y}});
  });
  bench.measure("swiglu", "GB/s", 3.0 * bytes, [=](const Context& c) {
    swiglu(c, {.elements = elements, .gate = {a}, .up = {b}, .y = {y}});
  });
}

void bench_head(Bench& bench, std::int64_t rows) {
  const HeadShape shape = {
      .rows = rows, .columns = kHidden, .vocab = kVocabChunk, .rows_per_chunk = kVocabChunk};
  float* h = bench.floats(rows * kHidden);
  float* weight = bench.floats(kVocabChunk * kHidden);
  float* dweight = bench.floats(kVocabChunk * kHidden);
  float* dh = bench.floats(rows * kHidden);
  float* state = bench.floats(3 * rows);
  static std::vector<std::int32_t> targets;
  targets.assign(static_cast<std::size_t>(rows), 17);
  const double flops = 2.0 * static_cast<double>(rows * kHidden * kVocabChunk);
  const HeadPiece piece = {.first_row = 0, .row_count = kVocabChunk, .weight = {weight}};
  const std::int32_t* target = targets.data();
  bench.measure("head_score", "GFLOP/s", flops, [=](const Context& c) {
    head_score(c, {.shape = shape, .piece = piece, .h = {h}, .targets = target, .state = state});
  });
  bench.measure("head_gradient", "GFLOP/s", 3.0 * flops, [=](const Context& c) {
    head_gradient(c,
                  {.shape = shape,
                   .piece = piece,
                   .h = {h},
                   .targets = target,
                   .state = state,
                   .dh = {dh},
                   .dweight = dweight});
  });
}

void run(const Settings& settings) {
  const std::int64_t rows = kBatch * settings.sequence;
  fmt::print("{} threads, {} x {} tokens, hidden {}\n",
             settings.threads,
             kBatch,
             settings.sequence,
             kHidden);
  Bench bench(settings);
  bench_linear(bench, rows);
  bench_attention(bench, settings.sequence);
  bench_norms(bench, rows);
  bench_elementwise(bench, rows);
  bench_head(bench, rows);
}

}  // namespace

}  // namespace headrace::kernels

int main(int argc, char** argv) {
  headrace::kernels::Settings settings;
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  const auto number = [&](std::size_t index, auto& value) {
    if (index < arguments.size()) {
      const std::string_view text = arguments[index];
      std::from_chars(text.data(), text.data() + text.size(), value);
    }
  };
  number(1, settings.threads);
  number(2, settings.sequence);
  headrace::kernels::run(settings);
  return 0;
}
