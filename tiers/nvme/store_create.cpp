// Making a store: its folder, its data file with blocks for every byte, its tables, its
// superblocks.
//
// Invariant: until the last step the first superblock says "creating", so that what an interrupted
// creation leaves behind can be told from a store and removed; a creation that fails removes what
// it made itself. Thread: the caller's. Failure: see Store::create.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/assert.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "tiers/nvme/store_folder.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

// Removes what create() has made, unless keep() is called.
class Undo {
 public:
  explicit Undo(Folder folder) : folder_(std::move(folder)) {}

  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  ~Undo() {
    if (kept_) {
      return;
    }
    if (data_made_) {
      warn_if_failed(::unlinkat(store_.fd.get(), kDataName, 0));
    }
    if (!id_.empty()) {
      warn_if_failed(::unlinkat(folder_.fd.get(), id_.c_str(), AT_REMOVEDIR));
    }
    if (folder_.made) {
      warn_if_failed(::rmdir(folder_.path.c_str()));
    }
  }

  [[nodiscard]] const Folder& folder() const { return folder_; }

  [[nodiscard]] const Folder& store() const { return store_; }

  // Makes and enters `<folder>/<id>`.
  [[nodiscard]] Status make_store(const std::string& id) {
    if (::mkdirat(folder_.fd.get(), id.c_str(), S_IRWXU) != 0) {
      return writing_error(folder_.path, errno);
    }
    id_ = id;
    HEADRACE_ASSIGN(store_, enter_store(folder_, id));
    return {};
  }

  [[nodiscard]] Result<std::unique_ptr<DataFile>> make_data() {
    data_made_ = true;  // or perhaps not: what is not there need not be removed
    return DataFile::open_at(
        store_.fd.get(), kDataName, store_.path + "/" + kDataName, DataFile::Mode::kCreate);
  }

  void keep() { kept_ = true; }

 private:
  void warn_if_failed(int result) const {
    if (result != 0 && errno != ENOENT) {
      log_warning(
          fmt::format("nvme tier: something of an unfinished store stays in '{}' (errno {})",
                      folder_.path,
                      errno));
    }
  }

  Folder folder_;
  Folder store_;
  std::string id_;
  bool data_made_ = false;
  bool kept_ = false;
};

format::Superblock first_superblock(const Id128& id,
                                    const StoreContents& contents,
                                    const format::Layout& layout) {
  format::Superblock block{};
  block.magic = format::kSuperblockMagic;
  block.format_version = format::kVersion;
  block.page_bytes = kPageBytes;
  block.store_id = format::store_id_bytes(id);
  block.flags = format::kFlagCreating;
  block.slots = 1;
  block.world = 1;
  block.folder_count = 1;
  block.sum_block_bytes = kSumBlockBytes;
  block.file_bytes = layout.file_bytes;
  block.extents_offset = layout.extents_offset;
  block.tile_count = layout.tiles.size();
  block.map_extent_bytes = layout.map_extent_bytes;
  block.map_extent_offsets[0] = format::kMapOffset;
  block.map_extent_offsets[1] = format::kMapOffset + layout.map_extent_bytes;
  block.created_unix_s =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count());
  block.layout_tag = format::layout_tag_bytes(contents.layout_tag);
  const auto region = [](std::uint64_t offset, std::span<const std::byte> bytes) {
    return format::Region{.offset = offset, .bytes = bytes.size(), .xxh3 = hash_bytes(bytes)};
  };
  block.tile_table = region(layout.tile_table_offset, format::encode_tile_table(layout.tiles));
  block.tensor_table =
      region(layout.tensor_table_offset, std::as_bytes(std::span(contents.tensor_table)));
  block.run_dir = region(layout.run_dir_offset, std::as_bytes(std::span(contents.run_dir)));
  return block;
}

Status sync_directory(const Folder& folder) {
  if (::fsync(folder.fd.get()) != 0) {
    return errno_error(fmt::format("nvme tier: cannot make '{}' durable", folder.path), errno);
  }
  return {};
}

// Everything of the file, from its first page to its two superblocks.
Status fill_file(StoreState& state, const StoreContents& contents) {
  BlockFile& file = *state.files.front().file;
  const format::Superblock& block = state.block();
  std::array<std::byte, kPageBytes> page{};
  format::encode_superblock(block, page);
  HEADRACE_TRY(file.write(format::kSuperblockOffsets[0], page));
  HEADRACE_TRY(file.allocate(block.file_bytes));
  HEADRACE_TRY(write_region(file, block.tile_table.offset, format::encode_tile_table(state.tiles)));
  HEADRACE_TRY(write_region(
      file, block.tensor_table.offset, std::as_bytes(std::span(contents.tensor_table))));
  HEADRACE_TRY(
      write_region(file, block.run_dir.offset, std::as_bytes(std::span(contents.run_dir))));
  // Until copy A is written too, the store counts as unfinished: one flush for all of the above.
  format::Superblock ready = block;
  ready.flags = 0;
  HEADRACE_TRY(state.write_superblock(0, ready));  // copy B
  return state.write_superblock(0, ready);         // copy A, no longer "creating"
}

}  // namespace

Result<std::unique_ptr<Store>> Store::format(std::vector<std::unique_ptr<BlockFile>> files,
                                             const Id128& id,
                                             const StoreContents& contents,
                                             const StoreLayoutOptions& options) {
  HEADRACE_ASSERT(!files.empty(), "a store has a folder");
  HEADRACE_ASSERT(options.slots == 1 || options.slots == 2, "a tile has one or two slots");
  HEADRACE_ASSIGN(format::Layout layout, format::make_layout(contents));
  auto state = std::make_unique<StoreState>();
  state->id = id.hex();
  state->path = files.front()->path();
  state->access = Access::kWrite;
  state->files.push_back(StoreFile{.file = std::move(files.front()),
                                   .block = first_superblock(id, contents, layout),
                                   .copy = 0});
  HEADRACE_TRY(state->take_tiles(std::move(layout.tiles)));
  HEADRACE_TRY(fill_file(*state, contents));
  state->contents.tensor_table = contents.tensor_table;
  state->contents.layout_tag = contents.layout_tag;
  state->contents.run_dir = contents.run_dir;
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

Result<std::unique_ptr<Store>> Store::create(const StoreOptions& options,
                                             const StoreContents& contents) {
  if (options.folders.size() != 1) {
    return usage_error("nvme tier: a store has one folder")
        .with_why(fmt::format("{} are given", options.folders.size()));
  }
  const StoreFolder& target = options.folders.front();
  HEADRACE_ASSIGN(const format::Layout layout, format::make_layout(contents));
  HEADRACE_ASSIGN(Folder folder, make_folder(target.path));
  Undo undo(std::move(folder));
  HEADRACE_TRY(check_space(undo.folder().path, layout.file_bytes, target.space_bytes_max));
  HEADRACE_ASSIGN(const Id128 id, random_id());
  HEADRACE_TRY(undo.make_store(id.hex()));
  HEADRACE_ASSIGN(std::unique_ptr<DataFile> file, undo.make_data());
  HEADRACE_TRY(file->lock(DataFile::Lock::kExclusive));
  // Direct I/O can be tried once there is a page.
  HEADRACE_TRY(file->write(0, std::array<std::byte, kPageBytes>{}));
  HEADRACE_TRY(file->enable_direct_io(options.direct_io_required));
  std::vector<std::unique_ptr<BlockFile>> files;
  files.push_back(std::move(file));
  Result<std::unique_ptr<Store>> store = format(std::move(files),
                                                id,
                                                contents,
                                                {.slots = options.slots,
                                                 .prewrite = options.prewrite,
                                                 .progress = options.progress,
                                                 .folders = options.folders});
  if (!store) {
    // More may be missing than check_space foresaw: another writer, a quota, the filesystem's own
    // needs.
    HEADRACE_TRY(check_space(undo.folder().path, layout.file_bytes, std::nullopt));
    return store;
  }
  (*store)->state_->path = undo.store().path;
  HEADRACE_TRY(sync_directory(undo.store()));
  HEADRACE_TRY(sync_directory(undo.folder()));
  undo.keep();
  return store;
}

}  // namespace headrace::tiers::nvme
