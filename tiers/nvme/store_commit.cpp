// Commits: all or nothing, over all folders (docs/store_format.md, "Commit").
//
// Invariant: the record is durable in every folder before the first superblock that names it is
// written; superblocks go to the older copies, so that those of the last commit stay. Between two
// commits no byte that the last one names is written: extents go to another slot, records to the
// other map extent. After a commit that failed nothing is written at all, since what a failed flush
// has left behind cannot be known. Thread: the caller's, with no transfer under way. Failure:
// Errors that say which commit counts.
#include <fmt/format.h>

#include <utility>

#include "core/assert.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

Error cannot_commit(const StoreState& state, std::string why) {
  return operating_error(fmt::format("nvme tier: cannot commit to '{}'", state.path))
      .with_why(std::move(why));
}

std::string last_commit_text(const StoreState& state) {
  return state.last_commit ? fmt::format("the last commit, of step {},", state.last_commit->step)
                           : std::string("the store as it was made, without a commit,");
}

// Keeps what has happened for every later call, and says how to go on.
Error fail(StoreState& state, std::int64_t step, bool superblocks_begun, Error cause) {
  const std::string intact =
      superblocks_begun
          ? fmt::format("{} or that of step {} is intact and counts", last_commit_text(state), step)
          : last_commit_text(state) + " is intact";
  Error error = std::move(cause);
  error.why += fmt::format(
      "{}so the commit of step {} failed; {}", error.why.empty() ? "" : "; ", step, intact);
  error.hint += fmt::format("{}then run the same command again: it resumes there",
                            error.hint.empty() ? "mend the cause, " : "; ");
  state.failure =
      operating_error(fmt::format("nvme tier: '{}' takes no more writes", state.path))
          .with_why(fmt::format("its commit of step {} failed ({}); {}", step, error.what, intact))
          .with_hint("run the same command again: it resumes there");
  return error;
}

// What the commit says of every tile.
Status fill_entries(StoreState& state) {
  std::vector<format::MapEntry>& entries = state.map.entries;
  entries.clear();
  for (std::size_t i = 0; i < state.tiles.size(); ++i) {
    const format::TileEntry& tile = state.tiles[i];
    const std::int64_t param = state.newest[2 * i].load(std::memory_order_acquire);
    const std::int64_t with_state = state.newest[2 * i + 1].load(std::memory_order_acquire);
    if (param < 0 || (tile.state_bytes > 0 && with_state < 0)) {
      return cannot_commit(
          state, fmt::format("tile {} of unit {} has not been written", tile.tile, tile.unit));
    }
    HEADRACE_ASSERT(with_state < 0 || slot_of_newest(param) == slot_of_newest(with_state),
                    "param and state of a tile are written between the same two commits");
    entries.push_back(format::MapEntry{.slot = slot_of_newest(param),
                                       .reserved = 0,
                                       .param_step = step_of_newest(param),
                                       .state_step = step_of_newest(with_state)});
  }
  return {};
}

// The superblocks that will name the record, once it is in its place in every folder.
Result<std::vector<format::Superblock>> write_record(StoreState& state) {
  const std::uint64_t bytes =
      format::map_bytes(state.map.entries.size(), state.map.run_state.size());
  const std::span<std::byte> pages =
      state.record.bytes().first(format::round_up(bytes, kPageBytes));
  std::fill(pages.end() - kPageBytes, pages.end(), std::byte{0});
  format::encode_map(state.block(), state.map, pages.first(bytes));
  std::vector<format::Superblock> next = state.blocks();
  const std::uint64_t sum = hash_bytes(pages.first(bytes));
  for (std::size_t i = 0; i < next.size(); ++i) {
    format::Superblock& block = next[i];
    // The extent that the last commit does not use, so that it stays whole until this one is.
    const int target = block.map.offset == block.map_extent_offsets[0] ? 1 : 0;
    block.map =
        format::Region{.offset = block.map_extent_offsets[target], .bytes = bytes, .xxh3 = sum};
    block.generation = state.map.generation;
    block.flags &= ~format::kFlagDirty;
    HEADRACE_TRY(state.files[i].file->write(block.map.offset, pages));
  }
  HEADRACE_TRY(state.sync(state.all_folders()));
  return next;
}

void take_commit(StoreState& state) {
  for (std::size_t i = 0; i < state.tiles.size(); ++i) {
    state.committed_slot[i].store(state.map.entries[i].slot, std::memory_order_release);
  }
  state.committed = state.map.entries;
  state.dirty.store(false, std::memory_order_release);
  state.last_commit = CommitRecord{.generation = state.map.generation,
                                   .step = state.map.step,
                                   .update_count = state.map.update_count,
                                   .run_state = std::move(state.map.run_state)};
}

}  // namespace

Status Store::mark_dirty() {
  StoreState& state = *state_;
  HEADRACE_ASSERT(state.access == Access::kWrite, "the store was opened for writing");
  if (state.failure) {
    return *state.failure;
  }
  if (slots() > 1 || dirty()) {
    return {};
  }
  std::vector<format::Superblock> next = state.blocks();
  for (format::Superblock& block : next) {
    block.flags |= format::kFlagDirty;
  }
  HEADRACE_TRY(state.write_superblocks(state.all_folders(), std::move(next)));
  state.dirty.store(true, std::memory_order_release);
  return {};
}

Status Store::commit(CommitRecord record) {
  StoreState& state = *state_;
  HEADRACE_ASSERT(state.access == Access::kWrite, "the store was opened for writing");
  HEADRACE_ASSERT(!state.speculating(), "what was written speculatively is settled");
  if (state.failure) {
    return *state.failure;
  }
  if (record.run_state.size() > format::kRunStateBytesMax) {
    return cannot_commit(state,
                         fmt::format("the run's state has {} bytes, at most {} fit",
                                     record.run_state.size(),
                                     format::kRunStateBytesMax));
  }
  HEADRACE_TRY(fill_entries(state));
  state.map.generation = state.block().generation + 1;
  state.map.step = record.step;
  state.map.update_count = record.update_count;
  state.map.run_state = std::move(record.run_state);
  Result<std::vector<format::Superblock>> next = write_record(state);
  if (!next) {
    return fail(state, record.step, false, std::move(next).error());
  }
  if (Status status = state.write_superblocks(state.all_folders(), *std::move(next)); !status) {
    return fail(state, record.step, true, std::move(status).error());
  }
  take_commit(state);
  return {};
}

}  // namespace headrace::tiers::nvme
