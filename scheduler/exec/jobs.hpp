// What the executor prepares once, so that a step allocates nothing: per tile the segments of its
// tensors, blocks and where their sums go; per step the row slots of the embedding. Scheduler
// thread prepares; one host operation at a time uses a job; sums are read after the queues have
// been drained.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optim_cpu/gradient.hpp"
#include "optim_cpu/optimizers.hpp"
#include "scheduler/exec/executor.hpp"
#include "scheduler/exec/unit.hpp"
#include "scheduler/plan/plan.hpp"
#include "tiers/queue.hpp"

namespace headrace::exec {

// One tensor's part of a tile.
struct Segment {
  int tensor = 0;                 // in the unit
  std::int64_t tensor_begin = 0;  // element of the tensor
  std::int64_t tile_offset = 0;   // elements from the tile's begin
  std::int64_t elements = 0;
  std::size_t first_block = 0;  // in StepSums::block_sums
  optim::GradientCheck check;   // of the last collect
};

struct UpdateJob {
  std::vector<optim::TileSegment> segments;  // as TileJob's
  std::vector<optim::UpdateStats> stats;     // per block
  optim::TileUpdate target;
};

struct TileJob {
  plan::TileSpec tile;
  std::vector<Segment> segments;  // trainable only
  UpdateJob update;               // of what is final
  UpdateJob speculation;          // the same program may make it, too; of speculated units
};

// What the host sets before an update and the update reads.
[[nodiscard]] inline tiers::MemorySpan update_span(const UpdateJob& job) {
  return {job.segments.data(), job.segments.size() * sizeof(optim::TileSegment)};
}

// Jobs of every trainable tile, and the sums of a step in the order that the norm adds them: units,
// tensors, blocks.
class Jobs {
 public:
  Jobs(const plan::ModelSpec& spec, const plan::Plan& plan);

  [[nodiscard]] TileJob& at(int unit, int tile) {
    return jobs_[static_cast<std::size_t>(unit)][static_cast<std::size_t>(tile)];
  }

  [[nodiscard]] std::span<double> block_sums() { return block_sums_; }

  // Those of a tile: its segments' lie next to each other.
  [[nodiscard]] std::span<double> block_sums_of(const TileJob& job);

  // The first non-finite gradient element in model order, if there is any.
  [[nodiscard]] std::optional<NonFinite> non_finite(const plan::ModelSpec& spec) const;
  // The same of the weights that the last updates made.
  [[nodiscard]] std::optional<NonFinite> non_finite_weights(const plan::ModelSpec& spec) const;

 private:
  template <class CheckOf>
  [[nodiscard]] std::optional<NonFinite> first_of(const plan::ModelSpec& spec,
                                                  const CheckOf& check_of) const;

  std::vector<std::vector<TileJob>> jobs_;
  std::vector<double> block_sums_;
};

// Which rows of the embedding's tables a step touches. Memory is taken at construction for the
// largest step.
class RowIndex {
 public:
  explicit RowIndex(const plan::ModelSpec& spec);
  void build(std::span<const std::int32_t> tokens);

  [[nodiscard]] const RowSlots& slots() const { return slots_; }

  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  struct Table {
    plan::RowTable::Index index = plan::RowTable::Index::kToken;
    std::vector<std::int32_t> slot_of, row_of;
  };

  std::int64_t seq_len_;
  std::vector<Table> tables_;
  RowSlots slots_;
};

}  // namespace headrace::exec
