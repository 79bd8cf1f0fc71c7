// The embedding's lookup and gradient: host operations, whatever the device.
//
// Invariant: an element of the gradient sums its tokens in ascending order; who sums which slots
// does not show. Threads: oneTBB inside when Context::threads > 1, never OpenMP.

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>

#include <cstring>

#include "kernels/cpu/common.hpp"

namespace headrace::kernels {

namespace {

// Calls body(begin, end) over [0, count) in at most `threads` parts of near equal length.
template <class F>
void host_parallel_for(int threads, std::int64_t count, const F& body) {
  if (threads == 1 || count < 2) {
    body(std::int64_t{0}, count);
    return;
  }
  const std::int64_t parts = std::min<std::int64_t>(threads, count);
  tbb::parallel_for(
      tbb::blocked_range<std::int64_t>(0, parts, 1),
      [&](const tbb::blocked_range<std::int64_t>& range) {
        for (std::int64_t part = range.begin(); part < range.end(); ++part) {
          body(count * part / parts, count * (part + 1) / parts);
        }
      },
      tbb::simple_partitioner());
}

struct Gather {
  std::int64_t columns;
  std::int64_t table_begin;
  std::int64_t table_end;
  const float* table;
  const std::int32_t* index;
  float* x;
  bool accumulate;
};

void gather_row(const Gather& run, std::int64_t row) {
  HEADRACE_ASSERT(run.index[row] >= 0, "an index is negative");
  const std::int64_t first = run.index[row] * run.columns;
  const std::int64_t begin = std::max(first, run.table_begin);
  const std::int64_t end = std::min(first + run.columns, run.table_end);
  if (begin >= end) {
    return;
  }
  const float* source = run.table + (begin - run.table_begin);
  float* target = run.x + row * run.columns + (begin - first);
  if (!run.accumulate) {
    std::memcpy(target, source, static_cast<std::size_t>(end - begin) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < end - begin; ++i) {
    target[i] += source[i];
  }
}

struct Scatter {
  ScatterAddRowsShape shape;
  const float* dx;
  const std::int32_t* slot;
  float* accumulators;
  GradientMode mode;
  std::int64_t* first;  // [slots + 1]: where a slot's tokens begin in `order`
  std::int32_t* order;  // tokens by slot, ascending within one
};

// Counting sort of the tokens by slot; stable, so a slot's tokens stay ascending.
void sort_tokens(const Scatter& run) {
  const std::int64_t slots = run.shape.slots;
  std::fill_n(run.first, slots + 1, std::int64_t{0});
  for (std::int64_t row = 0; row < run.shape.rows; ++row) {
    const std::int64_t slot = run.slot[row];
    HEADRACE_ASSERT(slot >= -1 && slot < slots, "a slot does not exist");
    if (slot >= 0) {
      ++run.first[slot];
    }
  }
  std::int64_t total = 0;
  for (std::int64_t slot = 0; slot <= slots; ++slot) {
    const std::int64_t count = slot < slots ? run.first[slot] : 0;
    run.first[slot] = total;
    total += count;
  }
  // Filling moves each slot's begin to its end, which is the next one's begin: shift back after.
  for (std::int64_t row = 0; row < run.shape.rows; ++row) {
    const std::int64_t slot = run.slot[row];
    if (slot >= 0) {
      run.order[run.first[slot]++] = static_cast<std::int32_t>(row);
    }
  }
  for (std::int64_t slot = slots; slot > 0; --slot) {
    run.first[slot] = run.first[slot - 1];
  }
  run.first[0] = 0;
}

// One slot: sums its tokens in blocks of columns that stay in L1, then stores or adds.
void sum_slot(const Scatter& run, std::int64_t slot) {
  constexpr std::int64_t kBlockColumns = 512;
  const std::int64_t begin = run.first[slot];
  const std::int64_t end = run.first[slot + 1];
  if (begin == end && run.mode == GradientMode::kAdd) {
    return;
  }
  for (std::int64_t column = 0; column < run.shape.columns; column += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, run.shape.columns - column);
    float sum[kBlockColumns] = {};
    for (std::int64_t i = begin; i < end; ++i) {
      const float* dx = run.dx + run.order[i] * run.shape.columns + column;
      for (std::int64_t c = 0; c < columns; ++c) {
        sum[c] += dx[c];
      }
    }
    cpu::put_gradient(run.mode, sum, run.accumulators + slot * run.shape.columns + column, columns);
  }
}

}  // namespace

void gather_rows(const Context& context, const GatherRowsArgs& args) {
  HEADRACE_ASSERT(args.table.begin >= 0 && args.table.begin <= args.table.end,
                  "a table range is reversed");
  const Gather run = {.columns = args.columns,
                      .table_begin = args.table.begin,
                      .table_end = args.table.end,
                      .table = cpu::elements_of(args.table.data),
                      .index = args.index,
                      .x = cpu::elements_of(args.x),
                      .accumulate = args.accumulate};
  cpu::Spans reads;
  reads.add(run.table, run.table_end - run.table_begin).add(run.index, args.rows);
  cpu::Spans writes;
  writes.add(run.x, args.rows * args.columns);
  cpu::submit(
      context, "gather_rows", reads, writes, [run, rows = args.rows, threads = context.threads] {
        host_parallel_for(threads, rows, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            gather_row(run, row);
          }
        });
      });
}

void scatter_add_rows(const Context& context, const ScatterAddRowsArgs& args) {
  const ScatterAddRowsShape& shape = args.shape;
  const std::size_t bytes = scatter_add_rows_workspace_bytes(shape, context.threads);
  std::byte* workspace = cpu::workspace_of(context, bytes);
  cpu::Carver carver(workspace);
  auto* first = carver.take<std::int64_t>(shape.slots + 1);
  auto* order = carver.take<std::int32_t>(shape.rows);
  const Scatter run = {.shape = shape,
                       .dx = cpu::elements_of(args.dx),
                       .slot = args.slot,
                       .accumulators = args.accumulators,
                       .mode = args.mode,
                       .first = first,
                       .order = order};
  cpu::Spans reads;
  reads.add(run.dx, shape.rows * shape.columns).add(run.slot, shape.rows);
  cpu::Spans writes;
  writes.add(run.accumulators, shape.slots * shape.columns);
  writes.add(workspace, static_cast<std::int64_t>(bytes));
  cpu::submit(context, "scatter_add_rows", reads, writes, [run, threads = context.threads] {
    sort_tokens(run);
    host_parallel_for(threads, run.shape.slots, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        sum_slot(run, slot);
      }
    });
  });
}

std::size_t scatter_add_rows_workspace_bytes(const ScatterAddRowsShape& shape, int /*threads*/) {
  return cpu::part_bytes<std::int64_t>(shape.slots + 1) + cpu::part_bytes<std::int32_t>(shape.rows);
}

}  // namespace headrace::kernels
