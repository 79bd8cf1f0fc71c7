// Finding the last commit in a store's files, and opening a store's folders.
//
// Invariant: the commit is the highest generation of which every folder has a valid superblock and
// the same commit record. A newer superblock of some folders is the rest of a commit that was cut
// short, if the record that it names lies in all folders (records are flushed before superblocks
// are written), else a folder is stale. A writer makes what it has found durable and overwrites
// such rests before anything else. Thread: the caller's. Failure: Errors that name the folder's
// file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "tiers/nvme/data_file.hpp"
#include "tiers/nvme/store_folder.hpp"
#include "tiers/nvme/store_state.hpp"
#include "tiers/nvme/store_superblocks.hpp"

namespace headrace::tiers::nvme {
namespace {

// A file and its superblocks, before the commit is chosen.
struct Candidate {
  BlockFile* file = nullptr;
  SuperblockCopies copies;
};

Error wrong_folder(const BlockFile& file, std::string why) {
  return usage_error(cannot_use(file.path()))
      .with_why(std::move(why))
      .with_hint("name the store's folders in the order in which it was made");
}

Error stale_folder(const BlockFile& file, std::uint64_t has, std::uint64_t others) {
  return corrupt_error(fmt::format("nvme tier: '{}' is stale", file.path()))
      .with_why(
          fmt::format("its newest commit is of generation {}, another folder of the store has "
                      "one of generation {} that this folder has not been part of",
                      has,
                      others))
      .with_hint(
          "parts of one store belong together: restore all folders from one backup, or put the "
          "right folder in its place");
}

// That the files are the parts of one store, each in its place.
Status check_parts(const std::vector<Candidate>& parts) {
  const format::Superblock& first = parts.front().copies.newest_block();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const BlockFile& file = *parts[i].file;
    const format::Superblock& block = parts[i].copies.newest_block();
    if (block.store_id != first.store_id) {
      return wrong_folder(
          file,
          fmt::format("its data file belongs to the store {}, the first folder's to "
                      "the store {}",
                      format::store_id_text(block.store_id),
                      format::store_id_text(first.store_id)));
    }
    if (block.folder_count != parts.size()) {
      return wrong_folder(
          file,
          fmt::format("the store has {} folders, {} are given", block.folder_count, parts.size()));
    }
    if (block.folder_index != i) {
      return wrong_folder(
          file,
          fmt::format("it holds part {} of the store's {}, not part {}: folders were "
                      "swapped",
                      block.folder_index + 1,
                      block.folder_count,
                      i + 1));
    }
    if (block.tile_table.xxh3 != first.tile_table.xxh3 || block.slots != first.slots ||
        block.format_version != first.format_version ||
        block.features_incompatible != first.features_incompatible) {
      return wrong_folder(file, "its tile table is not that of the first folder");
    }
  }
  return {};
}

std::uint64_t newest_generation(const SuperblockCopies& copies) {
  std::uint64_t newest = 0;
  for (const auto& block : copies.blocks) {
    newest = block ? std::max(newest, block->generation) : newest;
  }
  return newest;
}

bool has_record(BlockFile& file, const format::Region& record) {
  const Result<std::vector<std::byte>> bytes = read_region(file, record);
  return bytes && hash_bytes(*bytes) == record.xxh3;
}

// The commit that all parts have; see the head of this file.
Result<std::uint64_t> choose_generation(const std::vector<Candidate>& parts) {
  std::uint64_t newest = 0;
  format::Region newest_record{};
  for (const Candidate& part : parts) {
    const std::uint64_t generation = newest_generation(part.copies);
    if (generation > newest) {
      newest = generation;
      newest_record =
          part.copies.blocks[static_cast<std::size_t>(part.copies.of_generation(generation))]->map;
    }
  }
  const auto all_have = [&](std::uint64_t generation) {
    return std::all_of(parts.begin(), parts.end(), [&](const Candidate& part) {
      return part.copies.of_generation(generation) >= 0;
    });
  };
  if (all_have(newest)) {
    return newest;
  }
  for (const Candidate& part : parts) {
    if (part.copies.of_generation(newest) < 0 && !has_record(*part.file, newest_record)) {
      return stale_folder(*part.file, newest_generation(part.copies), newest);
    }
  }
  if (newest > 0 && all_have(newest - 1)) {
    return newest - 1;
  }
  for (const Candidate& part : parts) {
    if (part.copies.of_generation(newest) < 0) {
      return stale_folder(*part.file, newest_generation(part.copies), newest);
    }
  }
  return newest;  // not reached: some part lacks it
}

Result<std::string> read_text(BlockFile& file, const format::Region& region, const char* what) {
  HEADRACE_ASSIGN(const std::vector<std::byte> bytes, read_region(file, region));
  if (hash_bytes(bytes) != region.xxh3) {
    return corrupt_error(fmt::format("nvme tier: the store '{}' is damaged", file.path()))
        .with_why(fmt::format("the checksum of its {} at offset {} is wrong", what, region.offset))
        .with_hint("restore it from a copy, or remove it: headrace store remove");
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The tables of every folder are read: each is one that a resume may need.
Status read_tables(StoreState& state) {
  std::vector<format::TileEntry> tiles;
  for (const StoreFile& part : state.files) {
    const std::string& name = part.file->path();
    HEADRACE_ASSIGN(const std::vector<std::byte> table,
                    read_region(*part.file, part.block.tile_table));
    HEADRACE_ASSIGN(tiles, format::parse_tile_table(part.block, table, name));
    HEADRACE_ASSIGN(state.contents.tensor_table,
                    read_text(*part.file, part.block.tensor_table, "tensor table"));
    HEADRACE_ASSIGN(state.contents.run_dir,
                    read_text(*part.file, part.block.run_dir, "run folder"));
    if (part.block.format_version > 1) {
      HEADRACE_ASSIGN(const std::string paths,
                      read_text(*part.file, part.block.folder_paths, "list of folders"));
      state.folder_paths = format::split_paths(paths);
    }
  }
  state.contents.layout_tag = format::layout_tag_text(state.block().layout_tag);
  return state.take_tiles(std::move(tiles));
}

// The record of the commit: whole in every folder, and the same in all.
Status read_commit(StoreState& state) {
  if (state.block().generation == 0) {
    return {};
  }
  format::Map map;
  for (const StoreFile& part : state.files) {
    if (part.block.map.xxh3 != state.block().map.xxh3) {
      return stale_folder(*part.file, part.block.generation, state.block().generation);
    }
    HEADRACE_ASSIGN(const std::vector<std::byte> bytes, read_region(*part.file, part.block.map));
    HEADRACE_ASSIGN(map, format::parse_map(part.block, bytes, part.file->path()));
  }
  for (std::size_t i = 0; i < map.entries.size(); ++i) {
    const format::MapEntry& entry = map.entries[i];
    state.newest[2 * i].store(newest_of(entry.param_step, entry.slot));
    state.newest[2 * i + 1].store(newest_of(entry.state_step, entry.slot));
    state.committed_slot[i].store(entry.slot);
  }
  state.committed = std::move(map.entries);
  state.last_commit = CommitRecord{.generation = map.generation,
                                   .step = map.step,
                                   .update_count = map.update_count,
                                   .run_state = std::move(map.run_state)};
  return {};
}

// Takes the copies of the chosen generation; with one slot it also tells whether the store is
// dirty. Returns the folders that have a newer superblock or one that cannot be read.
std::vector<std::uint32_t> take_copies(StoreState& state,
                                       const std::vector<Candidate>& parts,
                                       std::uint64_t generation) {
  std::vector<std::uint32_t> torn;
  bool dirty = false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SuperblockCopies& copies = parts[i].copies;
    StoreFile& file = state.files[i];
    file.copy = copies.of_generation(generation);
    file.block = *copies.blocks[static_cast<std::size_t>(file.copy)];
    const bool other = newest_generation(copies) != generation;
    // With one slot a copy that cannot be read may have been a dirty mark: it keeps being told.
    if (other || (copies.damaged && file.block.slots > 1)) {
      torn.push_back(static_cast<std::uint32_t>(i));
    }
    dirty = dirty || (file.block.flags & format::kFlagDirty) != 0 || other;
  }
  state.dirty.store(state.block().slots == 1 && dirty);
  return torn;
}

// Makes the commit durable before anything is built on it. It may have been read from a cache: its
// process was killed, or its last flush failed, before it was on the disk, and a page that a failed
// flush has dropped is not written by the next one. So the same bytes go to the same places again.
Status settle(StoreState& state) {
  for (const StoreFile& part : state.files) {
    std::array<std::byte, kPageBytes> page{};
    format::encode_superblock(part.block, page);
    HEADRACE_TRY(part.file->write(format::kSuperblockOffsets[part.copy], page));
  }
  return state.sync(state.all_folders());
}

// Overwrites superblocks of a commit that was cut short, so that they never meet a later commit of
// the same generation, and those that were torn.
Status heal(StoreState& state, const std::vector<std::uint32_t>& folders) {
  if (folders.empty()) {
    return {};
  }
  log_info(
      fmt::format("nvme tier: the store '{}' was interrupted in a commit; going on from "
                  "generation {}",
                  state.path,
                  state.block().generation));
  std::vector<format::Superblock> next;
  for (const std::uint32_t folder : folders) {
    next.push_back(state.files[folder].block);
    if (state.dirty.load()) {
      next.back().flags |= format::kFlagDirty;
    }
  }
  return state.write_superblocks(folders, std::move(next));
}

// `id`: what the store must be, if it matters. Nothing is written to any other.
Result<std::unique_ptr<StoreState>> load_state(std::vector<std::unique_ptr<BlockFile>> files,
                                               Store::Access access,
                                               std::optional<std::string> id) {
  HEADRACE_ASSERT(!files.empty(), "a store has a folder");
  std::vector<Candidate> parts;
  for (const std::unique_ptr<BlockFile>& file : files) {
    HEADRACE_ASSIGN(SuperblockCopies copies, read_superblocks(*file));
    if (copies.damaged) {
      log_warning(copies.damaged->what + ": " + copies.damaged->why + "; the other copy is used");
    }
    parts.push_back(Candidate{.file = file.get(), .copies = std::move(copies)});
  }
  HEADRACE_TRY(check_parts(parts));
  HEADRACE_ASSIGN(const std::uint64_t generation, choose_generation(parts));
  auto state = std::make_unique<StoreState>();
  state->path = files.front()->path();
  state->access = access;
  for (std::unique_ptr<BlockFile>& file : files) {
    state->files.push_back(StoreFile{.file = std::move(file)});
  }
  const std::vector<std::uint32_t> torn = take_copies(*state, parts, generation);
  state->id = format::store_id_text(state->block().store_id);
  if (id && state->id != *id) {
    return usage_error(cannot_use(parent_path(state->path)))
        .with_why(fmt::format("its data file belongs to the store {}", state->id))
        .with_hint("a store's folder keeps its name; name it back, or use the right one");
  }
  HEADRACE_TRY(read_tables(*state));
  HEADRACE_TRY(read_commit(*state));
  if (access == Store::Access::kWrite) {
    HEADRACE_TRY(settle(*state));
    HEADRACE_TRY(heal(*state, torn));
  }
  return state;
}

// One folder's data file, locked.
Result<std::unique_ptr<DataFile>> open_part(const std::string& folder,
                                            const std::string& id,
                                            bool writes,
                                            bool direct_io_required) {
  HEADRACE_ASSIGN(const Folder parent, open_folder(folder));
  HEADRACE_ASSIGN(const Folder directory, enter_store(parent, id));
  HEADRACE_ASSIGN(std::unique_ptr<DataFile> file,
                  DataFile::open_at(directory.fd.get(),
                                    kDataName,
                                    directory.path + "/" + kDataName,
                                    writes ? DataFile::Mode::kWrite : DataFile::Mode::kRead));
  HEADRACE_TRY(file->lock(writes ? DataFile::Lock::kExclusive : DataFile::Lock::kShared));
  HEADRACE_TRY(file->enable_direct_io(direct_io_required));
  return file;
}

}  // namespace

Result<std::unique_ptr<Store>> Store::load(std::vector<std::unique_ptr<BlockFile>> files,
                                           Access access) {
  HEADRACE_ASSIGN(std::unique_ptr<StoreState> state,
                  load_state(std::move(files), access, std::nullopt));
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

Result<std::unique_ptr<Store>> Store::open(const std::vector<std::string>& folders,
                                           const std::string& id,
                                           Access access,
                                           bool direct_io_required) {
  if (folders.empty()) {
    return usage_error(fmt::format("nvme tier: cannot open the store {}", id))
        .with_why("no folder is named")
        .with_hint("name the folders that hold it");
  }
  HEADRACE_TRY(check_distinct(folders));
  std::vector<std::unique_ptr<BlockFile>> files;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    Result<std::unique_ptr<DataFile>> file =
        open_part(folders[i], id, access == Access::kWrite, direct_io_required);
    if (!file) {
      Error error = std::move(file).error();
      if (folders.size() > 1) {
        error.why += fmt::format("{}it is folder {} of the store's {}",
                                 error.why.empty() ? "" : "; ",
                                 i + 1,
                                 folders.size());
      }
      return error;
    }
    files.push_back(*std::move(file));
  }
  HEADRACE_ASSIGN(std::unique_ptr<StoreState> state, load_state(std::move(files), access, id));
  state->path = parent_path(state->path);
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

}  // namespace headrace::tiers::nvme
