// Opening a store, its extents and commits (store.hpp). Creating is in store_create.cpp.
#include "tiers/nvme/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "tiers/nvme/store_folder.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

Result<std::string> read_text(const StoreState& state,
                              const format::Region& region,
                              const char* what) {
  HEADRACE_ASSIGN(const std::vector<std::byte> bytes, state.read_region(region));
  if (hash_bytes(bytes) != region.xxh3) {
    return corrupt_error(fmt::format("nvme tier: the store '{}' is damaged", state.file.path()))
        .with_why(fmt::format("the checksum of its {} at offset {} is wrong", what, region.offset))
        .with_hint("restore it from a copy, or remove it: headrace store remove");
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Status read_tables(StoreState& state) {
  HEADRACE_ASSIGN(const std::vector<std::byte> table, state.read_region(state.block.tile_table));
  HEADRACE_ASSIGN(std::vector<format::TileEntry> tiles,
                  format::parse_tile_table(state.block, table, state.file.path()));
  HEADRACE_TRY(state.take_tiles(std::move(tiles)));
  HEADRACE_ASSIGN(state.contents.tensor_table,
                  read_text(state, state.block.tensor_table, "tensor table"));
  HEADRACE_ASSIGN(state.contents.run_dir, read_text(state, state.block.run_dir, "run folder"));
  state.contents.layout_tag = format::layout_tag_text(state.block.layout_tag);
  return {};
}

Status read_commit(StoreState& state) {
  if (state.block.generation == 0) {
    return {};
  }
  HEADRACE_ASSIGN(const std::vector<std::byte> bytes, state.read_region(state.block.map));
  HEADRACE_ASSIGN(format::Map map, format::parse_map(state.block, bytes, state.file.path()));
  for (std::size_t i = 0; i < map.entries.size(); ++i) {
    state.steps[2 * i].store(map.entries[i].param_step, std::memory_order_relaxed);
    state.steps[2 * i + 1].store(map.entries[i].state_step, std::memory_order_relaxed);
  }
  state.last_commit = CommitRecord{.generation = map.generation,
                                   .step = map.step,
                                   .update_count = map.update_count,
                                   .run_state = std::move(map.run_state)};
  return {};
}

}  // namespace

Store::Store(std::unique_ptr<StoreState> state) : state_(std::move(state)) {}

Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::open(const std::string& folder,
                                           const std::string& id,
                                           Access access,
                                           bool direct_io_required) {
  HEADRACE_ASSIGN(const Folder parent, open_folder(folder));
  HEADRACE_ASSIGN(const Folder directory, enter_store(parent, id));
  auto state = std::make_unique<StoreState>();
  state->id = id;
  state->path = directory.path;
  state->access = access;
  const bool writes = access == Access::kWrite;
  HEADRACE_ASSIGN(state->file,
                  DataFile::open_at(directory.fd.get(),
                                    kDataName,
                                    directory.path + "/" + kDataName,
                                    writes ? DataFile::Mode::kWrite : DataFile::Mode::kRead));
  HEADRACE_TRY(state->file.lock(writes ? DataFile::Lock::kExclusive : DataFile::Lock::kShared));
  HEADRACE_ASSIGN(FoundSuperblock found, find_superblock(state->file));
  if (found.damaged_copy) {
    log_warning(found.damaged_copy->what + ": " + found.damaged_copy->why +
                "; the other copy is used");
  }
  state->block = found.block;
  state->copy = found.copy;
  if (const std::string own = format::store_id_text(found.block.store_id); own != id) {
    return usage_error(cannot_use(directory.path))
        .with_why(fmt::format("its data file belongs to the store {}", own))
        .with_hint("a store's folder keeps its name; name it back, or use the right one");
  }
  state->dirty.store((found.block.flags & format::kFlagDirty) != 0, std::memory_order_relaxed);
  HEADRACE_TRY(state->file.enable_direct_io(direct_io_required));
  HEADRACE_TRY(read_tables(*state));
  HEADRACE_TRY(read_commit(*state));
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

const std::string& Store::id() const {
  return state_->id;
}

const std::string& Store::path() const {
  return state_->path;
}

const std::string& Store::data_path() const {
  return state_->file.path();
}

std::uint64_t Store::bytes() const {
  return state_->block.file_bytes;
}

const StoreContents& Store::contents() const {
  return state_->contents;
}

const std::optional<CommitRecord>& Store::last_commit() const {
  return state_->last_commit;
}

bool Store::dirty() const {
  return state_->dirty.load(std::memory_order_acquire);
}

int Store::fd() const {
  return state_->file.fd();
}

bool Store::direct_io() const {
  return state_->file.direct_io();
}

ExtentPlace Store::place(const ExtentKey& key) const {
  return format::extent_place(state_->tiles[state_->tile_index(key)], key.kind);
}

std::int64_t Store::step_of(const ExtentKey& key) const {
  return state_->step(key).load(std::memory_order_acquire);
}

void Store::set_step_of(const ExtentKey& key, std::int64_t step) {
  state_->step(key).store(step, std::memory_order_release);
}

std::string Store::describe(const ExtentKey& key) const {
  return state_->describe(key);
}

void Store::make_header(const ExtentKey& key,
                        std::span<const std::byte> payload,
                        std::int64_t step,
                        std::span<std::byte> header) const {
  format::encode_extent_header(state_->identity(key), step, payload, header);
}

Status Store::check(const ExtentKey& key,
                    std::span<const std::byte> header,
                    std::span<const std::byte> payload) const {
  const format::ExtentIdentity want = state_->identity(key);
  HEADRACE_ASSERT(payload.size() == want.payload_bytes, "the payload has the extent's length");
  if (auto problem = format::extent_header_problem(want, step_of(key), header)) {
    return state_->corrupt(key, std::move(*problem));
  }
  for (std::uint64_t i = 0; i < format::sum_count(payload.size()); ++i) {
    if (format::sub_block_sum(payload, i) != format::extent_sum(header, i)) {
      return state_->corrupt(key, sub_block_problem(want, i));
    }
  }
  return {};
}

Status Store::read_now(const ExtentKey& key, std::span<std::byte> payload) {
  const ExtentPlace at = place(key);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  const std::span<std::byte> header = state_->header.bytes().first(at.header_bytes);
  HEADRACE_TRY(state_->file.read(at.offset, header));
  HEADRACE_TRY(state_->file.read(at.offset + at.header_bytes, payload));
  return check(key, header, payload);
}

Status Store::write_now(const ExtentKey& key,
                        std::span<const std::byte> payload,
                        std::int64_t step) {
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  const ExtentPlace at = place(key);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  HEADRACE_TRY(mark_dirty());
  const std::span<std::byte> header = state_->header.bytes().first(at.header_bytes);
  make_header(key, payload, step, header);
  HEADRACE_TRY(state_->file.write(at.offset, header));
  HEADRACE_TRY(state_->file.write(at.offset + at.header_bytes, payload));
  set_step_of(key, step);
  return {};
}

Status Store::mark_dirty() {
  HEADRACE_ASSERT(state_->access == Access::kWrite, "the store was opened for writing");
  if (dirty()) {
    return {};
  }
  format::Superblock next = state_->block;
  next.flags |= format::kFlagDirty;
  HEADRACE_TRY(state_->write_superblock(next));
  state_->dirty.store(true, std::memory_order_release);
  return {};
}

Status Store::commit(CommitRecord record) {
  HEADRACE_ASSERT(state_->access == Access::kWrite, "the store was opened for writing");
  const auto refuse = [&](std::string why) {
    return operating_error(fmt::format("nvme tier: cannot commit to '{}'", path()))
        .with_why(std::move(why));
  };
  if (record.run_state.size() > format::kRunStateBytesMax) {
    return refuse(fmt::format("the run's state has {} bytes, at most {} fit",
                              record.run_state.size(),
                              format::kRunStateBytesMax));
  }
  format::Map map{.generation = state_->block.generation + 1,
                  .step = record.step,
                  .update_count = record.update_count,
                  .entries = {},
                  .run_state = std::move(record.run_state)};
  map.entries.reserve(state_->tiles.size());
  for (std::size_t i = 0; i < state_->tiles.size(); ++i) {
    const format::TileEntry& tile = state_->tiles[i];
    const format::MapEntry entry{.slot = 0,
                                 .reserved = 0,
                                 .param_step = state_->steps[2 * i].load(),
                                 .state_step = state_->steps[2 * i + 1].load()};
    if (entry.param_step < 0 || (tile.state_bytes > 0 && entry.state_step < 0)) {
      return refuse(fmt::format("tile {} of unit {} has not been written", tile.tile, tile.unit));
    }
    map.entries.push_back(entry);
  }
  const std::vector<std::byte> bytes = format::encode_map(state_->block.store_id, map);
  format::Superblock next = state_->block;
  // The extent that the last commit does not use, so that it stays whole until this one is.
  const int target = state_->block.map.offset == next.map_extent_offsets[0] ? 1 : 0;
  next.map = format::Region{
      .offset = next.map_extent_offsets[target], .bytes = bytes.size(), .xxh3 = hash_bytes(bytes)};
  HEADRACE_TRY(state_->write_region(next.map.offset, bytes));
  HEADRACE_TRY(state_->file.sync());
  next.generation = map.generation;
  next.flags &= ~format::kFlagDirty;
  HEADRACE_TRY(state_->write_superblock(next));
  state_->dirty.store(false, std::memory_order_release);
  state_->last_commit = CommitRecord{.generation = map.generation,
                                     .step = map.step,
                                     .update_count = map.update_count,
                                     .run_state = std::move(map.run_state)};
  return {};
}

Result<std::uint64_t> Store::verify(const std::function<void(const Error&)>& on_problem) {
  // What open() found may have been damaged since, and the copy that it did not use is looked at
  // here only.
  Result<FoundSuperblock> found = find_superblock(state_->file);
  if (!found) {
    on_problem(found.error());
  } else if (found->damaged_copy) {
    on_problem(*found->damaged_copy);
  }
  if (dirty()) {
    on_problem(operating_error(fmt::format("nvme tier: the store '{}' is dirty", path()))
                   .with_why("it was written since its last commit, so its tiles may be of "
                             "different steps"));
  }
  const bool any_step = dirty();
  std::uint64_t checked = 0;
  for (const format::TileEntry& tile : state_->tiles) {
    for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
      const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
      if (kind == ExtentKind::kState && tile.state_bytes == 0) {
        continue;
      }
      if (!last_commit() && step_of(key) == kNeverWritten) {
        continue;
      }
      if (Status status = state_->verify_extent(key, any_step); !status) {
        if (status.error().code != ExitCode::kCorrupt &&
            status.error().code != ExitCode::kOperating) {
          return std::move(status).error();
        }
        on_problem(status.error());
      }
      ++checked;
    }
  }
  return checked;
}

}  // namespace headrace::tiers::nvme
