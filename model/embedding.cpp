// The embedding: rows of the token table (and GPT-2's position table) summed on the host, storage
// tile by storage tile, and the gradient of the tables from row sums.
//
// Scratch of scatter (8 bytes a row of a micro-batch, 8 a slot) is the object's own, made once:
// host operations get no workspace from the plan. Invariant: every element of x receives one addend
// per table, in the order of the tables, and every row its sums in ascending position, wherever
// tiles are cut (in the middle of a row too). Thread: submits to a host queue; kernels run there
// without OpenMP.
#include <algorithm>
#include <array>

#include "core/assert.hpp"
#include "kernels/kernels.hpp"
#include "model/block_parts.hpp"
#include "model/units.hpp"

namespace headrace::model {

namespace {

constexpr std::size_t kTablesMax = 2;

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] bool empty() const { return begin >= end; }
};

Range intersect(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// A table's place in the unit, and for spread its sums.
struct Table {
  Range elements;  // of the unit
  plan::RowTable::Index index = plan::RowTable::Index::kToken;
};

struct TableSums {
  Range elements;
  const std::int32_t* slot_of = nullptr;  // null: no row of this table has a sum
  const float* sums = nullptr;
};

// What a spread operation needs, as plain values.
struct Spread {
  std::array<TableSums, kTablesMax> tables;
  std::size_t count = 0;
  std::int64_t columns = 0;
  Range range;
  const float* head = nullptr;
  float* gradient = nullptr;
};

// One row's part of the range: from its sum where it has one, plus the head's gradient where there
// is one.
void spread_part(const Spread& spread, const TableSums& table, Range part) {
  const std::int64_t columns = spread.columns;
  const std::int64_t row = (part.begin - table.elements.begin) / columns;
  const std::int64_t column = (part.begin - table.elements.begin) % columns;
  const std::int64_t count = part.end - part.begin;
  const std::int32_t slot = table.slot_of == nullptr ? -1 : table.slot_of[row];
  float* gradient = spread.gradient + (part.begin - spread.range.begin);
  const float* head =
      spread.head == nullptr ? nullptr : spread.head + (part.begin - spread.range.begin);
  const float* sums = slot < 0 ? nullptr : table.sums + slot * columns + column;
  for (std::int64_t i = 0; i < count; ++i) {
    if (sums == nullptr) {
      gradient[i] = head == nullptr ? 0.0F : head[i];
    } else {
      gradient[i] = head == nullptr ? sums[i] : sums[i] + head[i];
    }
  }
}

void run_spread(const Spread& spread) {
  std::int64_t done = spread.range.begin;
  const auto zero_until = [&](std::int64_t end) {  // padding between and after tables
    std::fill(spread.gradient + (done - spread.range.begin),
              spread.gradient + (end - spread.range.begin),
              0.0F);
    done = end;
  };
  for (std::size_t t = 0; t < spread.count; ++t) {
    const TableSums& table = spread.tables[t];
    const Range common = intersect(table.elements, spread.range);
    if (common.empty()) {
      continue;
    }
    zero_until(common.begin);
    while (done < common.end) {
      const std::int64_t in_row = (done - table.elements.begin) % spread.columns;
      const std::int64_t end = std::min(common.end, done - in_row + spread.columns);
      spread_part(spread, table, {done, end});
      done = end;
    }
  }
  zero_until(spread.range.end);
}

struct alignas(kernels::kWorkspaceAlignmentBytes) Line {
  std::array<std::byte, kernels::kWorkspaceAlignmentBytes> bytes;
};

class HostEmbedding final : public exec::Embedding {
 public:
  HostEmbedding(const plan::ModelSpec& spec, const BatchShape& batch)
      : rows_(spec.rows()), columns_(spec.hidden), threads_(batch.compute_threads) {
    std::size_t kernel_bytes = 0;
    for (const plan::RowTable& table : spec.tables) {
      const plan::TensorSpec& tensor =
          spec.units.front().tensors.at(static_cast<std::size_t>(table.tensor));
      tables_.push_back(
          {.elements = {tensor.offset, tensor.offset + tensor.elements}, .index = table.index});
      // A step's slots: at most every row of the table, or every token of the step.
      const kernels::ScatterAddRowsShape shape{
          .rows = rows_,
          .columns = columns_,
          .slots = std::min(table.rows, rows_ * spec.accumulate)};
      kernel_bytes =
          std::max(kernel_bytes, kernels::scatter_add_rows_workspace_bytes(shape, threads_));
    }
    PartList parts;
    parts.add_bytes(static_cast<std::size_t>(rows_) * sizeof(std::int32_t));
    scatter_kernels_ = parts.add_bytes(kernel_bytes);
    scratch_.resize(parts.bytes() / sizeof(Line));
    HEADRACE_ASSERT(tables_.size() <= kTablesMax, "more tables than an embedding has");
    for (std::int64_t n = 0; n < rows_; ++n) {
      positions_.push_back(static_cast<std::int32_t>(n % spec.seq_len));
    }
  }

  void gather(const exec::Call& call,
              const float* tile,
              std::int64_t begin,
              std::int64_t elements,
              const std::int32_t* tokens,
              float* x,
              bool first) override {
    const kernels::Context context = context_of(call);
    if (first) {
      kernels::Context alone = context;
      alone.threads = 1;  // kernels::zero would take an OpenMP team
      kernels::zero(alone, {.elements = rows_ * columns_, .x = {x}});
    }
    for (const Table& table : tables_) {
      const Range common = intersect(table.elements, {begin, begin + elements});
      if (common.empty()) {
        continue;
      }
      kernels::gather_rows(context,
                           {.rows = rows_,
                            .columns = columns_,
                            .table = {.begin = common.begin - table.elements.begin,
                                      .end = common.end - table.elements.begin,
                                      .data = {tile + (common.begin - begin)}},
                            .index = index_of(table, tokens),
                            .x = {x},
                            .accumulate = true});
    }
  }

  void scatter(const exec::Call& call,
               const float* gradient,
               const std::int32_t* tokens,
               const exec::RowSlots& slots,
               float* accumulators,
               bool first) override {
    check(slots);
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      const auto count = static_cast<std::int64_t>(slots.row_of[t].size());
      if (count == 0) {
        continue;
      }
      const std::span<std::byte> scratch = std::as_writable_bytes(std::span(scratch_));
      auto* slot = reinterpret_cast<std::int32_t*>(scratch.data());
      look_up(call, index_of(tables_[t], tokens), slots.slot_of[t], slot);
      kernels::Context context = context_of(call);
      context.workspace = scratch.subspan(scatter_kernels_);
      kernels::scatter_add_rows(
          context,
          {.shape = {.rows = rows_, .columns = columns_, .slots = count},
           .dx = {gradient},
           .slot = slot,
           .accumulators = accumulators + slots.first_slot[t] * columns_,
           .mode = first ? kernels::GradientMode::kStore : kernels::GradientMode::kAdd});
    }
  }

  void spread(const exec::Call& call,
              const float* accumulators,
              const exec::RowSlots& slots,
              std::int64_t begin,
              std::int64_t elements,
              const float* head,
              float* gradient) override {
    check(slots);
    Spread work{.tables = {},
                .count = tables_.size(),
                .columns = columns_,
                .range = {begin, begin + elements},
                .head = head,
                .gradient = gradient};
    std::array<tiers::MemorySpan, 2 * kTablesMax + 1> reads;
    std::size_t used = 0;
    const auto bytes_of = [](std::int64_t floats) {
      return static_cast<std::size_t>(floats) * sizeof(float);
    };
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      work.tables[t].elements = tables_[t].elements;
      const auto count = static_cast<std::int64_t>(slots.row_of[t].size());
      if (count == 0 || intersect(tables_[t].elements, work.range).empty()) {
        continue;
      }
      work.tables[t].slot_of = slots.slot_of[t].data();
      work.tables[t].sums = accumulators + slots.first_slot[t] * columns_;
      reads[used++] = {work.tables[t].sums, bytes_of(count * columns_)};
      reads[used++] = {slots.slot_of[t].data(), slots.slot_of[t].size_bytes()};
    }
    if (head != nullptr) {
      reads[used++] = {head, bytes_of(elements)};
    }
    const tiers::MemorySpan write(gradient, bytes_of(elements));
    call.queue.submit({.name = "embedding spread",
                       .reads = std::span(reads).first(used),
                       .writes = std::span(&write, 1),
                       .id = call.id},
                      [work] { run_spread(work); });
  }

 private:
  [[nodiscard]] kernels::Context context_of(const exec::Call& call) const {
    return {.queue = call.queue, .workspace = {}, .threads = threads_, .id = call.id};
  }

  [[nodiscard]] const std::int32_t* index_of(const Table& table, const std::int32_t* tokens) const {
    return table.index == plan::RowTable::Index::kToken ? tokens : positions_.data();
  }

  void check(const exec::RowSlots& slots) const {
    HEADRACE_ASSERT(slots.slot_of.size() == tables_.size() &&
                        slots.row_of.size() == tables_.size() &&
                        slots.first_slot.size() == tables_.size(),
                    "row slots are for another number of tables");
  }

  // slot[n] = slot_of[index[n]]
  void look_up(const exec::Call& call,
               const std::int32_t* index,
               std::span<const std::int32_t> slot_of,
               std::int32_t* slot) const {
    const auto bytes = static_cast<std::size_t>(rows_) * sizeof(std::int32_t);
    const std::array<tiers::MemorySpan, 2> reads{
        {{index, bytes}, {slot_of.data(), slot_of.size_bytes()}}};
    const tiers::MemorySpan write(slot, bytes);
    call.queue.submit(
        {.name = "embedding slots", .reads = reads, .writes = std::span(&write, 1), .id = call.id},
        [index, slots = slot_of.data(), slot, rows = rows_] {
          for (std::int64_t n = 0; n < rows; ++n) {
            slot[n] = slots[index[n]];
          }
        });
  }

  std::int64_t rows_;
  std::int64_t columns_;
  int threads_;
  std::vector<Table> tables_;
  std::vector<std::int32_t> positions_;  // [rows]: the place of each row in its sequence
  std::vector<Line> scratch_;            // of scatter: slots of the rows, then the kernel's
  std::size_t scatter_kernels_ = 0;      // bytes from the scratch's start
};

}  // namespace

// Host operations: a lookup adds a row for each table to zeros, its gradient sums rows.
plan::UnitCost embedding_cost(const Architecture& a, const BatchShape& batch) {
  const auto elements =
      static_cast<double>(batch.micro_batch * batch.seq_len) * static_cast<double>(a.hidden);
  plan::UnitCost cost;
  for (int table = 0; table < (a.family == Family::kGpt2 ? 2 : 1); ++table) {
    cost.forward.add(plan::ElementOperation::kAdd, elements);
    cost.backward.add(plan::ElementOperation::kAdd, elements);
  }
  cost.forward.add(plan::ElementOperation::kAdd, elements);
  return cost;
}

std::unique_ptr<exec::Embedding> make_embedding(const plan::ModelSpec& spec,
                                                const BatchShape& batch) {
  return std::make_unique<HostEmbedding>(spec, batch);
}

}  // namespace headrace::model
