// See jobs.hpp.
#include "scheduler/exec/jobs.hpp"

#include <algorithm>

#include "core/assert.hpp"

namespace headrace::exec {

static_assert(plan::kBlockElements == optim::kBlockElements, "one block for tiles and for norms");

namespace {

std::vector<Segment> segments_of(const plan::UnitSpec& unit,
                                 const plan::TileSpec& tile,
                                 const std::vector<std::size_t>& first_block_of_tensor) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const plan::TensorSpec& tensor = unit.tensors[i];
    const std::int64_t begin = std::max(tensor.offset, tile.begin);
    const std::int64_t end = std::min(tensor.offset + tensor.elements, tile.begin + tile.elements);
    if (begin >= end || tensor.frozen) {
      continue;
    }
    const std::int64_t tensor_begin = begin - tensor.offset;
    HEADRACE_ASSERT(tensor_begin % plan::kBlockElements == 0, "tiles cut tensors at blocks");
    segments.push_back(
        {.tensor = static_cast<int>(i),
         .tensor_begin = tensor_begin,
         .tile_offset = begin - tile.begin,
         .elements = end - begin,
         .first_block = first_block_of_tensor[i] +
                        static_cast<std::size_t>(tensor_begin / plan::kBlockElements),
         .check = {}});
  }
  return segments;
}

}  // namespace

Jobs::Jobs(const plan::ModelSpec& spec, const plan::Plan& plan) {
  std::size_t blocks = 0;
  std::uint32_t first_tensor = 0;  // of the unit, in the model's order
  for (std::size_t u = 0; u < spec.units.size(); ++u) {
    std::vector<std::size_t> first_block;
    for (const plan::TensorSpec& tensor : spec.units[u].tensors) {
      first_block.push_back(blocks);
      blocks += tensor.frozen ? 0 : static_cast<std::size_t>(optim::count_blocks(tensor.elements));
    }
    std::vector<TileJob> of_unit;
    for (const plan::TileSpec& tile : plan.units[u].tiles) {
      TileJob job;
      job.tile = tile;
      if (!tile.frozen) {
        job.segments = segments_of(spec.units[u], tile, first_block);
      }
      for (const Segment& segment : job.segments) {
        job.update.segments.push_back(
            {.offset_elements = segment.tile_offset,
             .elements = segment.elements,
             .gradient = nullptr,
             .gradient_dtype = Dtype::kF32,
             .scalars = {},
             .tensor = first_tensor + static_cast<std::uint32_t>(segment.tensor),
             .tensor_begin = segment.tensor_begin});
      }
      job.update.stats.resize(static_cast<std::size_t>(optim::count_blocks(job.update.segments)));
      if (plan.units[u].speculated) {
        job.speculation = job.update;
      }
      of_unit.push_back(std::move(job));
    }
    jobs_.push_back(std::move(of_unit));
    first_tensor += static_cast<std::uint32_t>(spec.units[u].tensors.size());
  }
  block_sums_.resize(blocks);
}

std::span<double> Jobs::block_sums_of(const TileJob& job) {
  if (job.segments.empty()) {
    return {};
  }
  const Segment& last = job.segments.back();
  const std::size_t first = job.segments.front().first_block;
  return block_sums().subspan(
      first,
      last.first_block + static_cast<std::size_t>(optim::count_blocks(last.elements)) - first);
}

// check_of(job, number of its segment): what was found there.
template <class CheckOf>
std::optional<NonFinite> Jobs::first_of(const plan::ModelSpec& spec,
                                        const CheckOf& check_of) const {
  std::optional<NonFinite> found;
  for (std::size_t u = 0; u < jobs_.size(); ++u) {
    for (const TileJob& job : jobs_[u]) {
      for (std::size_t s = 0; s < job.segments.size(); ++s) {
        const Segment& segment = job.segments[s];
        const optim::GradientCheck check = check_of(job, s);
        if (check.non_finite_count == 0) {
          continue;
        }
        if (!found) {
          found = NonFinite{
              .tensor = spec.units[u].tensors[static_cast<std::size_t>(segment.tensor)].name,
              .element = segment.tensor_begin + check.first_non_finite,
              .count = 0};
        }
        found->count += check.non_finite_count;
      }
    }
  }
  return found;
}

std::optional<NonFinite> Jobs::non_finite(const plan::ModelSpec& spec) const {
  return first_of(
      spec, [](const TileJob& job, std::size_t segment) { return job.segments[segment].check; });
}

std::optional<NonFinite> Jobs::non_finite_weights(const plan::ModelSpec& spec) const {
  return first_of(spec, [](const TileJob& job, std::size_t segment) {
    std::size_t begin = 0;
    for (std::size_t before = 0; before < segment; ++before) {
      begin += static_cast<std::size_t>(optim::count_blocks(job.segments[before].elements));
    }
    const auto blocks =
        static_cast<std::size_t>(optim::count_blocks(job.segments[segment].elements));
    const optim::UpdateStats stats =
        optim::sum_stats(std::span(job.update.stats).subspan(begin, blocks));
    return optim::GradientCheck{.non_finite_count = stats.non_finite_count,
                                .first_non_finite = stats.first_non_finite};
  });
}

RowIndex::RowIndex(const plan::ModelSpec& spec) : seq_len_(spec.seq_len) {
  for (const plan::RowTable& row_table : spec.tables) {
    Table table;
    table.index = row_table.index;
    table.slot_of.assign(static_cast<std::size_t>(row_table.rows), -1);
    const std::int64_t touched = row_table.index == plan::RowTable::Index::kToken
                                     ? spec.rows() * spec.accumulate
                                     : spec.seq_len;
    table.row_of.reserve(static_cast<std::size_t>(std::min(row_table.rows, touched)));
    tables_.push_back(std::move(table));
  }
  slots_.slot_of.resize(tables_.size());
  slots_.row_of.resize(tables_.size());
  slots_.first_slot.resize(tables_.size());
}

std::size_t RowIndex::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Table& table : tables_) {
    bytes += (table.slot_of.size() + table.row_of.capacity()) * sizeof(std::int32_t);
  }
  return bytes;
}

void RowIndex::build(std::span<const std::int32_t> tokens) {
  std::int64_t first_slot = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Table& table = tables_[i];
    for (const std::int32_t row : table.row_of) {
      table.slot_of[static_cast<std::size_t>(row)] = -1;
    }
    table.row_of.clear();
    const auto touch = [&table](std::int32_t row) {
      if (table.slot_of[static_cast<std::size_t>(row)] < 0) {
        table.slot_of[static_cast<std::size_t>(row)] = 0;
        table.row_of.push_back(row);
      }
    };
    if (table.index == plan::RowTable::Index::kToken) {
      std::for_each(tokens.begin(), tokens.end(), touch);
    } else {
      for (std::int64_t position = 0; position < seq_len_; ++position) {
        touch(static_cast<std::int32_t>(position));
      }
    }
    std::sort(table.row_of.begin(), table.row_of.end());
    for (std::size_t slot = 0; slot < table.row_of.size(); ++slot) {
      table.slot_of[static_cast<std::size_t>(table.row_of[slot])] = static_cast<std::int32_t>(slot);
    }
    slots_.slot_of[i] = table.slot_of;
    slots_.row_of[i] = table.row_of;
    slots_.first_slot[i] = first_slot;
    first_slot += static_cast<std::int64_t>(table.row_of.size());
  }
}

}  // namespace headrace::exec
