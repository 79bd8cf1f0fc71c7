// Making a store in empty files: blocks for every byte, tables, superblocks.
//
// Invariant: the first things in a file are the names of its run and folders, the next a superblock
// that says "creating"; that goes last, so what an interrupted creation leaves behind can be told
// from a store, by its run. Thread: the caller's, and one beside it for each file while it is
// written for the first time. Failure: see Store::create; the caller removes the files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <utility>

#include "core/assert.hpp"
#include "core/hash.hpp"
#include "tiers/nvme/assign_folders.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::uint64_t kPrewriteBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kProgressBytes = std::uint64_t{64} << 20U;

format::Region region(std::uint64_t offset, std::span<const std::byte> bytes) {
  return format::Region{.offset = offset, .bytes = bytes.size(), .xxh3 = hash_bytes(bytes)};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::uint64_t seconds_since_1970() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

// Of folder 0; the others differ in their index and sizes.
format::Superblock first_superblock(const Id128& id,
                                    const StoreContents& contents,
                                    const format::LayoutOptions& options,
                                    const format::Layout& layout) {
  format::Superblock block{};
  block.magic = format::kSuperblockMagic;
  block.format_version = format::kVersion;
  block.page_bytes = kPageBytes;
  block.features_incompatible = options.undo_slot ? format::kFeatureUndoSlot : 0;
  block.store_id = format::store_id_bytes(id);
  block.flags = format::kFlagCreating;
  block.slots = options.slots;
  block.world = 1;
  block.folder_count = options.folder_count;
  block.sum_block_bytes = kSumBlockBytes;
  block.extents_offset = layout.extents_offset;
  block.tile_count = layout.tiles.size();
  block.map_extent_bytes = layout.map_extent_bytes;
  block.map_extent_offsets[0] = format::kMapOffset;
  block.map_extent_offsets[1] = format::kMapOffset + layout.map_extent_bytes;
  block.created_unix_s = seconds_since_1970();
  block.layout_tag = format::layout_tag_bytes(contents.layout_tag);
  block.tile_table = region(layout.tile_table_offset, format::encode_tile_table(layout.tiles));
  block.tensor_table = region(layout.tensor_table_offset, bytes_of(contents.tensor_table));
  block.run_dir = region(layout.run_dir_offset, bytes_of(contents.run_dir));
  block.folder_paths = region(layout.folder_paths_offset, bytes_of(options.folder_paths));
  return block;
}

// Writes zeros once to everything that commits and tiles will be written to.
class Prewriter {
 public:
  Prewriter(const StoreProgress& progress, const std::vector<StoreFile>& files)
      : progress_(progress) {
    for (const StoreFile& part : files) {
      total_bytes_ += bytes_of_part(part.block);
    }
  }

  [[nodiscard]] Status write(BlockFile& file, const format::Superblock& block) {
    HEADRACE_ASSIGN(const PageBuffer zeros, PageBuffer::create(kPrewriteBytes));
    HEADRACE_TRY(write_range(
        file, zeros, format::kMapOffset, format::kMapOffset + 2 * block.map_extent_bytes));
    return write_range(file, zeros, block.extents_offset, block.file_bytes);
  }

 private:
  static std::uint64_t bytes_of_part(const format::Superblock& block) {
    return 2 * block.map_extent_bytes + block.file_bytes - block.extents_offset;
  }

  Status write_range(BlockFile& file,
                     const PageBuffer& zeros,
                     std::uint64_t begin,
                     std::uint64_t end) {
    while (begin < end) {
      const std::uint64_t bytes = std::min(kPrewriteBytes, end - begin);
      HEADRACE_TRY(file.write(begin, zeros.bytes().first(bytes)));
      begin += bytes;
      HEADRACE_TRY(report(bytes));
    }
    return {};
  }

  Status report(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    done_bytes_ += bytes;
    if (!progress_ ||
        (done_bytes_ < reported_bytes_ + kProgressBytes && done_bytes_ < total_bytes_)) {
      return {};
    }
    reported_bytes_ = done_bytes_;
    return progress_(done_bytes_, total_bytes_);
  }

  const StoreProgress& progress_;
  std::uint64_t total_bytes_ = 0;
  std::mutex mutex_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t reported_bytes_ = 0;
};

Status begin_files(StoreState& state, const StoreContents& contents) {
  for (const StoreFile& part : state.files) {
    HEADRACE_TRY(write_region(*part.file, part.block.run_dir.offset, bytes_of(contents.run_dir)));
    HEADRACE_TRY(write_region(*part.file,
                              part.block.folder_paths.offset,
                              bytes_of(format::join_paths(state.folder_paths))));
    std::array<std::byte, kPageBytes> page{};
    format::encode_superblock(part.block, page);
    HEADRACE_TRY(part.file->write(format::kSuperblockOffsets[0], page));
  }
  return state.sync(state.all_folders());
}

Status reserve_files(StoreState& state, const StoreLayoutOptions& options) {
  std::vector<BlockFile*> files;
  for (const StoreFile& part : state.files) {
    HEADRACE_TRY(part.file->allocate(part.block.file_bytes));
    files.push_back(part.file.get());
  }
  if (!options.prewrite) {
    return {};
  }
  Prewriter prewriter(options.progress, state.files);
  return for_each_file(files, [&](BlockFile& file) {
    const auto part = std::find_if(state.files.begin(), state.files.end(), [&](const StoreFile& p) {
      return p.file.get() == &file;
    });
    return prewriter.write(file, part->block);
  });
}

Status finish_files(StoreState& state, const StoreContents& contents) {
  for (const StoreFile& part : state.files) {
    BlockFile& file = *part.file;
    const format::Superblock& block = part.block;
    HEADRACE_TRY(
        write_region(file, block.tile_table.offset, format::encode_tile_table(state.tiles)));
    HEADRACE_TRY(write_region(file, block.tensor_table.offset, bytes_of(contents.tensor_table)));
  }
  HEADRACE_TRY(state.sync(state.all_folders()));
  std::vector<format::Superblock> ready = state.blocks();
  for (format::Superblock& block : ready) {
    block.flags &= ~format::kFlagCreating;
  }
  HEADRACE_TRY(state.write_superblocks(state.all_folders(), ready));  // copies B
  return state.write_superblocks(state.all_folders(), ready);  // copies A, no longer "creating"
}

struct PlannedLayout {
  format::LayoutOptions options;
  format::Layout layout;
};

Result<PlannedLayout> plan_layout(const StoreContents& contents,
                                  const StoreLayoutOptions& options,
                                  std::span<const std::string> paths) {
  const std::string text = format::join_paths(paths);
  const std::uint64_t before_extents = format::extents_offset(contents, text.size());
  std::vector<FolderShare> shares;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    FolderShare share{.name = paths[i]};
    if (!options.folders.empty()) {
      share.weight = options.folders[i].weight;
      // With one folder there is no choice; whether it fits is the caller's question.
      if (const auto& space = options.folders[i].space_bytes_max; space && paths.size() > 1) {
        share.capacity_bytes = *space - std::min(*space, before_extents);
      }
    }
    shares.push_back(std::move(share));
  }
  HEADRACE_TRY(format::check_contents(contents));
  HEADRACE_ASSIGN(
      FolderAssignment assigned,
      assign_folders(format::stored_bytes(contents.tiles,
                                          format::physical_slots(options.slots, options.undo_slot)),
                     shares));
  PlannedLayout planned;
  planned.options = format::LayoutOptions{.slots = options.slots,
                                          .undo_slot = options.undo_slot,
                                          .folder_of = std::move(assigned.folder_of),
                                          .folder_count = static_cast<std::uint32_t>(paths.size()),
                                          .folder_paths = text};
  HEADRACE_ASSIGN(planned.layout, format::make_layout(contents, planned.options));
  return planned;
}

std::vector<std::string> paths_of(const std::vector<StoreFolder>& folders) {
  std::vector<std::string> paths;
  paths.reserve(folders.size());
  for (const StoreFolder& folder : folders) {
    paths.push_back(folder.path);
  }
  return paths;
}

}  // namespace

Result<std::vector<format::FolderLayout>> folder_layouts(const StoreContents& contents,
                                                         const StoreLayoutOptions& options) {
  HEADRACE_ASSIGN(PlannedLayout planned, plan_layout(contents, options, paths_of(options.folders)));
  return std::move(planned.layout.folders);
}

Result<std::unique_ptr<Store>> Store::format(std::vector<std::unique_ptr<BlockFile>> files,
                                             const Id128& id,
                                             const StoreContents& contents,
                                             const StoreLayoutOptions& options) {
  HEADRACE_ASSERT(!files.empty(), "a store has a folder");
  HEADRACE_ASSERT(options.folders.empty() || options.folders.size() == files.size(),
                  "every folder has a file");
  auto state = std::make_unique<StoreState>();
  state->folder_paths = paths_of(options.folders);
  for (std::size_t i = state->folder_paths.size(); i < files.size(); ++i) {
    state->folder_paths.push_back(files[i]->path());
  }
  HEADRACE_ASSIGN(PlannedLayout planned, plan_layout(contents, options, state->folder_paths));
  format::Layout& layout = planned.layout;
  state->id = id.hex();
  state->path = files.front()->path();
  state->access = Access::kWrite;
  format::Superblock block = first_superblock(id, contents, planned.options, layout);
  block.flags |= options.copy ? format::kFlagCopy : 0U;
  for (std::size_t i = 0; i < files.size(); ++i) {
    block.folder_index = static_cast<std::uint32_t>(i);
    block.slot_bytes = layout.folders[i].slot_bytes;
    block.file_bytes = layout.folders[i].file_bytes;
    state->files.push_back(StoreFile{.file = std::move(files[i]), .block = block, .copy = 0});
  }
  HEADRACE_TRY(begin_files(*state, contents));
  HEADRACE_TRY(reserve_files(*state, options));
  HEADRACE_TRY(state->take_tiles(std::move(layout.tiles)));
  HEADRACE_TRY(finish_files(*state, contents));
  state->contents.tensor_table = contents.tensor_table;
  state->contents.layout_tag = contents.layout_tag;
  state->contents.run_dir = contents.run_dir;
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

}  // namespace headrace::tiers::nvme
