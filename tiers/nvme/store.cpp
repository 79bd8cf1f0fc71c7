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

Result<std::string> read_text(BlockFile& file, const format::Region& region, const char* what) {
  HEADRACE_ASSIGN(const std::vector<std::byte> bytes, read_region(file, region));
  if (hash_bytes(bytes) != region.xxh3) {
    return corrupt_error(fmt::format("nvme tier: the store '{}' is damaged", file.path()))
        .with_why(fmt::format("the checksum of its {} at offset {} is wrong", what, region.offset))
        .with_hint("restore it from a copy, or remove it: headrace store remove");
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Status read_tables(StoreState& state) {
  BlockFile& file = *state.files.front().file;
  const format::Superblock& block = state.block();
  HEADRACE_ASSIGN(const std::vector<std::byte> table, read_region(file, block.tile_table));
  HEADRACE_ASSIGN(std::vector<format::TileEntry> tiles,
                  format::parse_tile_table(block, table, file.path()));
  HEADRACE_TRY(state.take_tiles(std::move(tiles)));
  HEADRACE_ASSIGN(state.contents.tensor_table, read_text(file, block.tensor_table, "tensor table"));
  HEADRACE_ASSIGN(state.contents.run_dir, read_text(file, block.run_dir, "run folder"));
  state.contents.layout_tag = format::layout_tag_text(block.layout_tag);
  return {};
}

Status read_commit(StoreState& state) {
  const format::Superblock& block = state.block();
  if (block.generation == 0) {
    return {};
  }
  BlockFile& file = *state.files.front().file;
  HEADRACE_ASSIGN(const std::vector<std::byte> bytes, read_region(file, block.map));
  HEADRACE_ASSIGN(format::Map map, format::parse_map(block, bytes, file.path()));
  for (std::size_t i = 0; i < map.entries.size(); ++i) {
    const format::MapEntry& entry = map.entries[i];
    const auto newest = [&](std::int64_t step) { return step < 0 ? step : 2 * step + entry.slot; };
    state.newest[2 * i].store(newest(entry.param_step), std::memory_order_relaxed);
    state.newest[2 * i + 1].store(newest(entry.state_step), std::memory_order_relaxed);
    state.committed_slot[i].store(entry.slot, std::memory_order_relaxed);
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

Result<std::unique_ptr<Store>> Store::load(std::vector<std::unique_ptr<BlockFile>> files,
                                           Access access) {
  HEADRACE_ASSERT(!files.empty(), "a store has a folder");
  auto state = std::make_unique<StoreState>();
  state->path = files.front()->path();
  state->access = access;
  HEADRACE_ASSIGN(FoundSuperblock found, find_superblock(*files.front()));
  if (found.damaged_copy) {
    log_warning(found.damaged_copy->what + ": " + found.damaged_copy->why +
                "; the other copy is used");
  }
  state->id = format::store_id_text(found.block.store_id);
  state->files.push_back(
      StoreFile{.file = std::move(files.front()), .block = found.block, .copy = found.copy});
  state->dirty.store((found.block.flags & format::kFlagDirty) != 0, std::memory_order_relaxed);
  HEADRACE_TRY(read_tables(*state));
  HEADRACE_TRY(read_commit(*state));
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

Result<std::unique_ptr<Store>> Store::open(const std::vector<std::string>& folders,
                                           const std::string& id,
                                           Access access,
                                           bool direct_io_required) {
  if (folders.size() != 1) {
    return usage_error("nvme tier: a store has one folder")
        .with_why(fmt::format("{} are given", folders.size()));
  }
  HEADRACE_ASSIGN(const Folder parent, open_folder(folders.front()));
  HEADRACE_ASSIGN(const Folder directory, enter_store(parent, id));
  const bool writes = access == Access::kWrite;
  HEADRACE_ASSIGN(std::unique_ptr<DataFile> file,
                  DataFile::open_at(directory.fd.get(),
                                    kDataName,
                                    directory.path + "/" + kDataName,
                                    writes ? DataFile::Mode::kWrite : DataFile::Mode::kRead));
  HEADRACE_TRY(file->lock(writes ? DataFile::Lock::kExclusive : DataFile::Lock::kShared));
  HEADRACE_TRY(file->enable_direct_io(direct_io_required));
  std::vector<std::unique_ptr<BlockFile>> files;
  files.push_back(std::move(file));
  HEADRACE_ASSIGN(std::unique_ptr<Store> store, load(std::move(files), access));
  if (store->id() != id) {
    return usage_error(cannot_use(directory.path))
        .with_why(fmt::format("its data file belongs to the store {}", store->id()))
        .with_hint("a store's folder keeps its name; name it back, or use the right one");
  }
  store->state_->path = directory.path;
  return store;
}

const std::string& Store::id() const {
  return state_->id;
}

const std::string& Store::path() const {
  return state_->path;
}

const std::string& Store::data_path(std::uint32_t folder) const {
  return file(folder).path();
}

std::uint64_t Store::bytes() const {
  std::uint64_t bytes = 0;
  for (const StoreFile& file : state_->files) {
    bytes += file.block.file_bytes;
  }
  return bytes;
}

const StoreContents& Store::contents() const {
  return state_->contents;
}

const std::optional<CommitRecord>& Store::last_commit() const {
  return state_->last_commit;
}

std::uint32_t Store::slots() const {
  return state_->block().slots;
}

bool Store::dirty() const {
  return state_->dirty.load(std::memory_order_acquire);
}

std::uint32_t Store::folder_count() const {
  return static_cast<std::uint32_t>(state_->files.size());
}

std::uint32_t Store::folder_of(std::uint32_t unit, std::uint32_t tile) const {
  return state_->tiles[state_->tile_index(unit, tile)].folder_index;
}

BlockFile& Store::file(std::uint32_t folder) const {
  HEADRACE_ASSERT(folder < state_->files.size(), "the store has the folder");
  return *state_->files[folder].file;
}

bool Store::direct_io() const {
  return std::all_of(state_->files.begin(), state_->files.end(), [](const StoreFile& file) {
    return file.file->direct_io();
  });
}

bool Store::ready_for_writes() const {
  return state_->access == Access::kWrite && !state_->failure && (slots() > 1 || dirty());
}

ExtentPlace Store::read_place(const ExtentKey& key) const {
  return state_->read_place(key);
}

ExtentPlace Store::write_place(const ExtentKey& key) const {
  return state_->write_place(key);
}

ExtentPlace Store::home_place(const ExtentKey& key) const {
  return state_->place(key, 0);
}

std::int64_t Store::step_of(const ExtentKey& key) const {
  return state_->step(key);
}

void Store::wrote(const ExtentKey& key, const ExtentPlace& place, std::int64_t step) {
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  state_->newest[state_->extent_index(key)].store(2 * step + place.slot, std::memory_order_release);
}

std::string Store::describe(const ExtentKey& key) const {
  return state_->describe(key, state_->read_place(key));
}

std::string Store::describe(const ExtentKey& key, const ExtentPlace& place) const {
  return state_->describe(key, place);
}

void Store::make_header(const ExtentKey& key,
                        const ExtentPlace& place,
                        std::span<const std::byte> payload,
                        std::int64_t step,
                        std::span<std::byte> header) const {
  format::encode_extent_header(state_->identity(key, place), step, payload, header);
}

void Store::begin_header(const ExtentKey& key,
                         const ExtentPlace& place,
                         std::int64_t step,
                         std::span<std::byte> header) const {
  format::begin_extent_header(state_->identity(key, place), step, header);
}

void Store::set_sum(std::span<std::byte> header,
                    std::uint64_t sub_block,
                    std::span<const std::byte> bytes) {
  format::set_extent_sum(header, sub_block, hash_bytes(bytes));
}

void Store::finish_header(std::span<std::byte> header) {
  format::seal_extent_header(header);
}

Status Store::check_header(const ExtentKey& key,
                           const ExtentPlace& place,
                           std::span<const std::byte> header) const {
  if (auto problem =
          format::extent_header_problem(state_->identity(key, place), step_of(key), header)) {
    return state_->corrupt(key, place, std::move(*problem));
  }
  return {};
}

Status Store::check_sum(const ExtentKey& key,
                        const ExtentPlace& place,
                        std::span<const std::byte> header,
                        std::uint64_t sub_block,
                        std::span<const std::byte> bytes) const {
  if (hash_bytes(bytes) != format::extent_sum(header, sub_block)) {
    return state_->corrupt(key, place, sub_block_problem(place, sub_block));
  }
  return {};
}

Status Store::check(const ExtentKey& key,
                    const ExtentPlace& place,
                    std::span<const std::byte> header,
                    std::span<const std::byte> payload) const {
  HEADRACE_ASSERT(payload.size() == place.payload_bytes, "the payload has the extent's length");
  HEADRACE_TRY(check_header(key, place, header));
  for (std::uint64_t i = 0; i < format::sum_count(payload.size()); ++i) {
    const std::uint64_t begin = i * kSumBlockBytes;
    const auto bytes = std::min<std::uint64_t>(kSumBlockBytes, payload.size() - begin);
    HEADRACE_TRY(check_sum(key, place, header, i, payload.subspan(begin, bytes)));
  }
  return {};
}

Status Store::read_now(const ExtentKey& key, std::span<std::byte> payload) {
  const ExtentPlace at = read_place(key);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  const std::span<std::byte> header = state_->header.bytes().first(at.header_bytes);
  HEADRACE_TRY(file(at.folder).read(at.offset, header));
  HEADRACE_TRY(file(at.folder).read(at.offset + at.header_bytes, payload));
  return check(key, at, header, payload);
}

Status Store::write_now(const ExtentKey& key,
                        std::span<const std::byte> payload,
                        std::int64_t step) {
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  const ExtentPlace at = write_place(key);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  HEADRACE_TRY(mark_dirty());
  const std::span<std::byte> header = state_->header.bytes().first(at.header_bytes);
  make_header(key, at, payload, step, header);
  HEADRACE_TRY(file(at.folder).write(at.offset, header));
  HEADRACE_TRY(file(at.folder).write(at.offset + at.header_bytes, payload));
  wrote(key, at, step);
  return {};
}

Status Store::mark_dirty() {
  HEADRACE_ASSERT(state_->access == Access::kWrite, "the store was opened for writing");
  if (slots() > 1 || dirty()) {
    return {};
  }
  format::Superblock next = state_->block();
  next.flags |= format::kFlagDirty;
  HEADRACE_TRY(state_->write_superblock(0, next));
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
  format::Map map{.generation = state_->block().generation + 1,
                  .step = record.step,
                  .update_count = record.update_count,
                  .entries = {},
                  .run_state = std::move(record.run_state)};
  map.entries.reserve(state_->tiles.size());
  for (std::size_t i = 0; i < state_->tiles.size(); ++i) {
    const format::TileEntry& tile = state_->tiles[i];
    const std::int64_t param = state_->newest[2 * i].load();
    const std::int64_t state = state_->newest[2 * i + 1].load();
    if (param < 0 || (tile.state_bytes > 0 && state < 0)) {
      return refuse(fmt::format("tile {} of unit {} has not been written", tile.tile, tile.unit));
    }
    map.entries.push_back(format::MapEntry{.slot = 0,
                                           .reserved = 0,
                                           .param_step = param / 2,
                                           .state_step = state < 0 ? kNeverWritten : state / 2});
  }
  const std::vector<std::byte> bytes = format::encode_map(state_->block().store_id, map);
  format::Superblock next = state_->block();
  // The extent that the last commit does not use, so that it stays whole until this one is.
  const int target = next.map.offset == next.map_extent_offsets[0] ? 1 : 0;
  next.map = format::Region{
      .offset = next.map_extent_offsets[target], .bytes = bytes.size(), .xxh3 = hash_bytes(bytes)};
  HEADRACE_TRY(write_region(file(0), next.map.offset, bytes));
  HEADRACE_TRY(file(0).sync());
  next.generation = map.generation;
  next.flags &= ~format::kFlagDirty;
  HEADRACE_TRY(state_->write_superblock(0, next));
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
  Result<FoundSuperblock> found = find_superblock(file(0));
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
