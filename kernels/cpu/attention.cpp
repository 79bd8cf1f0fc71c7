// Attention: cuts the batch into tasks of one head (forward: a tile of its queries) and gives each
// thread its own scratch.
//
// The backward pass has batch * kv_heads tasks: with fewer than there are threads, some idle.

#include "kernels/cpu/simd.hpp"

namespace headrace::kernels {

namespace {

void check(const AttentionShape& shape) {
  HEADRACE_ASSERT(shape.head_dim >= 1 && shape.head_dim <= kAttentionHeadDimMax,
                  "head_dim is out of range");
  HEADRACE_ASSERT(shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0,
                  "kv_heads must divide heads");
  HEADRACE_ASSERT(shape.window >= 0, "a window is a count of keys");
}

// Whole sequences are windows too.
std::int64_t window_of(const AttentionShape& shape) {
  return shape.window == 0 ? shape.sequence : std::min(shape.window, shape.sequence);
}

// A view moved to the first row of batch entry `batch` and to the elements of `head`.
template <class View>
View at(const View& view, const AttentionShape& shape, std::int64_t batch, std::int64_t head) {
  return {view.data + batch * shape.sequence * view.stride + head * shape.head_dim, view.stride};
}

struct ForwardRun {
  AttentionShape shape;
  float scale;
  cpu::ConstRowsView q;
  cpu::ConstRowsView k;
  cpu::ConstRowsView v;
  cpu::RowsView out;
  float* lse;
  std::byte* workspace;
  int threads;
};

void run_forward(const ForwardRun& run) {
  const AttentionShape& shape = run.shape;
  const std::int64_t tiles = cpu::ceil_div(shape.sequence, cpu::kQueryTile);
  const std::size_t scratch_bytes = cpu::attention_task_bytes(shape.head_dim);
  const std::int64_t parts = shape.batch * shape.heads * tiles;
  cpu::parallel_for_dynamic(run.threads, parts, [&](std::int64_t part, int thread) {
    // The last tiles cost most: they come first.
    const std::int64_t tile = tiles - 1 - part / (shape.batch * shape.heads);
    const std::int64_t batch = part % (shape.batch * shape.heads) / shape.heads;
    const std::int64_t head = part % shape.heads;
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const cpu::AttentionTask task = {
        .sequence = shape.sequence,
        .window = window_of(shape),
        .head_dim = shape.head_dim,
        .scale = run.scale,
        .q = at(run.q, shape, batch, head),
        .k = at(run.k, shape, batch, kv_head),
        .v = at(run.v, shape, batch, kv_head),
        .out = at(run.out, shape, batch, head),
        .lse = run.lse + (batch * shape.heads + head) * shape.sequence,
        .workspace = run.workspace + static_cast<std::size_t>(thread) * scratch_bytes};
    cpu::attention_forward_tile(task, tile * cpu::kQueryTile);
  });
}

struct BackwardRun {
  AttentionShape shape;
  float scale;
  cpu::ConstRowsView q;
  cpu::ConstRowsView k;
  cpu::ConstRowsView v;
  cpu::ConstRowsView out;
  cpu::ConstRowsView dout;
  const float* lse;
  cpu::RowsView dq;
  cpu::RowsView dk;
  cpu::RowsView dv;
  std::byte* workspace;
  int threads;
};

void run_backward(const BackwardRun& run) {
  const AttentionShape& shape = run.shape;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::size_t scratch_bytes = cpu::attention_backward_task_bytes(shape.head_dim);
  const std::int64_t parts = shape.batch * shape.kv_heads;
  cpu::parallel_for_dynamic(run.threads, parts, [&](std::int64_t part, int thread) {
    const std::int64_t batch = part / shape.kv_heads;
    const std::int64_t kv_head = part % shape.kv_heads;
    const std::int64_t head = kv_head * group;
    cpu::attention_backward_group(
        {.sequence = shape.sequence,
         .window = window_of(shape),
         .head_dim = shape.head_dim,
         .group = group,
         .scale = run.scale,
         .q = at(run.q, shape, batch, head),
         .k = at(run.k, shape, batch, kv_head),
         .v = at(run.v, shape, batch, kv_head),
         .out = at(run.out, shape, batch, head),
         .dout = at(run.dout, shape, batch, head),
         .lse = run.lse + (batch * shape.heads + head) * shape.sequence,
         .dq = at(run.dq, shape, batch, head),
         .dk = at(run.dk, shape, batch, kv_head),
         .dv = at(run.dv, shape, batch, kv_head),
         .workspace = run.workspace + static_cast<std::size_t>(thread) * scratch_bytes});
  });
}

}  // namespace

void attention(const Context& context, const AttentionArgs& args) {
  const AttentionShape& shape = args.shape;
  check(shape);
  const std::size_t bytes = attention_workspace_bytes(shape, context.threads);
  const ForwardRun run = {.shape = shape,
                          .scale = static_cast<float>(args.scale),
                          .q = cpu::view_of(args.q),
                          .k = cpu::view_of(args.k),
                          .v = cpu::view_of(args.v),
                          .out = cpu::view_of(args.out),
                          .lse = args.lse,
                          .workspace = cpu::workspace_of(context, bytes),
                          .threads = context.threads};
  const std::int64_t rows = shape.batch * shape.sequence;
  const std::int64_t width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  cpu::Spans reads;
  reads.add_rows(run.q, rows, width).add_rows(run.k, rows, kv_width);
  reads.add_rows(run.v, rows, kv_width);
  cpu::Spans writes;
  writes.add_rows(run.out, rows, width).add(run.lse, rows * shape.heads);
  writes.add(run.workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "attention", reads, writes, [run] { run_forward(run); });
}

void attention_backward(const Context& context, const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  check(shape);
  const std::size_t bytes = attention_backward_workspace_bytes(shape, context.threads);
  const BackwardRun run = {.shape = shape,
                           .scale = static_cast<float>(args.scale),
                           .q = cpu::view_of(args.q),
                           .k = cpu::view_of(args.k),
                           .v = cpu::view_of(args.v),
                           .out = cpu::view_of(args.out),
                           .dout = cpu::view_of(args.dout),
                           .lse = args.lse,
                           .dq = cpu::view_of(args.dq),
                           .dk = cpu::view_of(args.dk),
                           .dv = cpu::view_of(args.dv),
                           .workspace = cpu::workspace_of(context, bytes),
                           .threads = context.threads};
  const std::int64_t rows = shape.batch * shape.sequence;
  const std::int64_t width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  cpu::Spans reads;
  reads.add_rows(run.q, rows, width).add_rows(run.k, rows, kv_width);
  reads.add_rows(run.v, rows, kv_width).add_rows(run.out, rows, width);
  reads.add_rows(run.dout, rows, width).add(run.lse, rows * shape.heads);
  cpu::Spans writes;
  writes.add_rows(run.dq, rows, width).add_rows(run.dk, rows, kv_width);
  writes.add_rows(run.dv, rows, kv_width);
  writes.add(run.workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "attention_backward", reads, writes, [run] { run_backward(run); });
}

std::size_t attention_workspace_bytes(const AttentionShape& shape, int threads) {
  return static_cast<std::size_t>(threads) * cpu::attention_task_bytes(shape.head_dim);
}

std::size_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads) {
  return static_cast<std::size_t>(threads) * cpu::attention_backward_task_bytes(shape.head_dim);
}

}  // namespace headrace::kernels
