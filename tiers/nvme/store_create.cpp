// Making a store's folders and files; store_format.cpp fills them.
//
// Invariant: what does not fit is refused before anything is made; a creation that fails removes
// what it made itself. Thread: the caller's. Failure: see Store::create.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <utility>

#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "tiers/nvme/assign_folders.hpp"
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

// The options' folders with what they may hold: their limit, or what is free where that is less.
Result<std::vector<StoreFolder>> with_limits(const std::vector<StoreFolder>& asked,
                                             const std::list<Undo>& made) {
  std::vector<StoreFolder> folders = asked;
  auto undo = made.begin();
  for (StoreFolder& folder : folders) {
    folder.path = absolute_path(working_directory(), (undo++)->folder().path);
    HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(folder.path));
    folder.space_bytes_max =
        std::min(folder.space_bytes_max.value_or(filesystem.free_bytes), filesystem.free_bytes);
  }
  return folders;
}

// The bytes that each folder will take. Refuses what cannot fit.
Result<std::vector<std::uint64_t>> check_sizes(const StoreOptions& options,
                                               const StoreContents& contents,
                                               const StoreLayoutOptions& layout_options) {
  HEADRACE_ASSIGN(const std::vector<format::FolderLayout> layouts,
                  folder_layouts(contents, layout_options));
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    bytes.push_back(layouts[i].file_bytes);
    HEADRACE_TRY(check_space(
        layout_options.folders[i].path, layouts[i].file_bytes, options.folders[i].space_bytes_max));
  }
  return bytes;
}

// Folders of one filesystem share what is free there.
Status check_shared_space(std::span<const std::uint64_t> bytes, const std::list<Undo>& made) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> needed;  // device, bytes
  auto undo = made.begin();
  for (const std::uint64_t part : bytes) {
    const Folder& folder = (undo++)->folder();
    HEADRACE_ASSIGN(const std::uint64_t device, device_of(folder));
    auto place = std::find_if(
        needed.begin(), needed.end(), [&](const auto& entry) { return entry.first == device; });
    if (place == needed.end()) {
      place = needed.insert(needed.end(), {device, 0});
    }
    place->second += part;
    HEADRACE_TRY(check_space(folder.path, place->second, std::nullopt));
  }
  return {};
}

Result<std::unique_ptr<BlockFile>> make_file(Undo& undo,
                                             const std::string& id,
                                             bool direct_io_required) {
  HEADRACE_TRY(undo.make_store(id));
  HEADRACE_ASSIGN(std::unique_ptr<DataFile> file, undo.make_data());
  HEADRACE_TRY(file->lock(DataFile::Lock::kExclusive));
  // Direct I/O can be tried once there is a page.
  HEADRACE_TRY(file->write(0, std::array<std::byte, kPageBytes>{}));
  HEADRACE_TRY(file->enable_direct_io(direct_io_required));
  return std::unique_ptr<BlockFile>(std::move(file));
}

}  // namespace

Result<std::unique_ptr<Store>> Store::create(const StoreOptions& options,
                                             const StoreContents& contents) {
  if (options.folders.empty()) {
    return usage_error("nvme tier: a store needs a folder").with_hint("name one in tiers.nvme");
  }
  HEADRACE_TRY(format::check_contents(contents));
  std::list<Undo> undos;
  std::vector<std::string> paths;
  for (const StoreFolder& target : options.folders) {
    HEADRACE_ASSIGN(Folder folder, make_folder(target.path));
    paths.push_back(folder.path);
    undos.emplace_back(std::move(folder));
  }
  HEADRACE_TRY(check_distinct(paths));
  StoreLayoutOptions layout{.slots = options.slots,
                            .undo_slot = options.undo_slot,
                            .prewrite = options.prewrite,
                            .copy = options.copy,
                            .progress = options.progress,
                            .folders = {}};
  HEADRACE_ASSIGN(layout.folders, with_limits(options.folders, undos));
  HEADRACE_ASSIGN(const std::vector<std::uint64_t> bytes, check_sizes(options, contents, layout));
  HEADRACE_TRY(check_shared_space(bytes, undos));
  Id128 id;
  if (options.id) {
    id = *options.id;
  } else {
    HEADRACE_ASSIGN(id, random_id());
  }
  std::vector<std::unique_ptr<BlockFile>> files;
  for (Undo& undo : undos) {
    HEADRACE_ASSIGN(std::unique_ptr<BlockFile> file,
                    make_file(undo, id.hex(), options.direct_io_required));
    files.push_back(std::move(file));
  }
  HEADRACE_ASSIGN(std::unique_ptr<Store> store, format(std::move(files), id, contents, layout));
  store->state_->path = undos.front().store().path;
  for (const Undo& undo : undos) {
    HEADRACE_TRY(sync_directory(undo.store()));
    HEADRACE_TRY(sync_directory(undo.folder()));
  }
  std::for_each(undos.begin(), undos.end(), [](Undo& undo) { undo.keep(); });
  return store;
}

}  // namespace headrace::tiers::nvme
