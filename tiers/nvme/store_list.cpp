// `store list`, `store remove`, orphans: what lies in folders, and the removal of exactly one
// store.
//
// Invariant: only `<folder>/<32 hex digits>/data` is read, only a data file that begins as a
// store's is removed, nothing is followed out of the folder; a part in a folder that was not named
// is touched only if its superblock has the store's id, or if it is a rest without one of what was
// being made or removed there. Thread: the caller's. Failure: a store that cannot be read is listed
// with its problem; everything else is an Error.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/files.hpp"
#include "core/log.hpp"
#include "tiers/nvme/store_folder.hpp"
#include "tiers/nvme/store_state.hpp"
#include "tiers/nvme/store_superblocks.hpp"

namespace headrace::tiers::nvme {
namespace {

// How far a part's creation came, or its removal.
enum class Stage : std::uint8_t {
  kNoFile,    // a directory of that name, empty as far as a store is concerned
  kBlank,     // a data file that does not say yet whose it is
  kCreating,  // it does, and holds nothing
  kMade,
  kUnreadable,
};

// One folder's part of a store, as far as it could be read.
struct Part {
  StorePart shown;
  Stage stage = Stage::kUnreadable;
  std::pair<dev_t, ino_t> node;  // of its directory
  std::string id;
  std::string run_dir;
  std::vector<std::string> folder_paths;
  std::uint32_t folder_count = 1;
  std::uint32_t slots = 0;
  std::uint64_t generation = 0;
  std::int64_t step = -1;
  bool dirty = false;
  bool locked = false;
  bool copy = false;
};

// Held by a writer: a shared lock cannot be had. Given back at once.
bool locked_by_writer(const DataFile& file) {
  if (::flock(file.lock_fd(), LOCK_SH | LOCK_NB) == 0) {
    ::flock(file.lock_fd(), LOCK_UN);
    return false;
  }
  return errno == EWOULDBLOCK;
}

// Empty where it cannot be read: only tells whose something is.
std::string text_of(BlockFile& file, const format::Region& region) {
  const Result<std::vector<std::byte>> bytes = read_region(file, region);
  if (!bytes || hash_bytes(*bytes) != region.xxh3) {
    return {};
  }
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

// What a superblock says that was written before the store was finished. The rest is not there.
void describe_creation(BlockFile& file, Part& part) {
  if (const auto creating = read_creating_superblock(file)) {
    part.run_dir = text_of(file, creating->run_dir);
    if (format::store_id_text(creating->store_id) == part.id) {
      part.stage = Stage::kCreating;
      part.folder_count = creating->folder_count;
      part.shown.folder_index = creating->folder_index;
      part.folder_paths = format::split_paths(text_of(file, creating->folder_paths));
    }
  } else if (beginning_of(file) == FileBeginning::kBlank) {
    part.stage = Stage::kBlank;
  }
}

// Fills in what the superblock and the commit record say.
Status describe(BlockFile& file, Part& part) {
  describe_creation(file, part);
  HEADRACE_ASSIGN(const SuperblockCopies copies, read_superblocks(file));
  const format::Superblock& block = copies.newest_block();
  part.dirty = (block.flags & format::kFlagDirty) != 0;
  part.copy = (block.flags & format::kFlagCopy) != 0;
  part.slots = block.slots;
  part.generation = block.generation;
  part.folder_count = block.folder_count;
  part.shown.folder_index = block.folder_index;
  part.run_dir = text_of(file, block.run_dir);
  part.folder_paths = format::split_paths(text_of(file, block.folder_paths));
  if (const std::string own = format::store_id_text(block.store_id); own != part.id) {
    return usage_error(cannot_use(part.shown.path))
        .with_why(fmt::format("its data file belongs to the store {}", own));
  }
  if (block.generation > 0) {
    HEADRACE_ASSIGN(const std::vector<std::byte> bytes, read_region(file, block.map));
    HEADRACE_ASSIGN(const format::Map map, format::parse_map(block, bytes, file.path()));
    part.step = map.step;
  }
  part.stage = Stage::kMade;
  return {};
}

// A creation makes a store's directory before its data file, a removal takes the file away first.
bool has_data(const Folder& directory) {
  struct stat info {};

  return ::fstatat(directory.fd.get(), kDataName, &info, AT_SYMLINK_NOFOLLOW) == 0 ||
         errno != ENOENT;
}

Result<std::unique_ptr<DataFile>> open_data(const Folder& directory) {
  return DataFile::open_at(
      directory.fd.get(), kDataName, directory.path + "/" + kDataName, DataFile::Mode::kRead);
}

std::pair<dev_t, ino_t> node_of(const Folder& directory) {
  struct stat info {};

  return ::fstat(directory.fd.get(), &info) == 0 ? std::pair(info.st_dev, info.st_ino)
                                                 : std::pair(dev_t{0}, ino_t{0});
}

// Nothing: there is no directory of that name.
std::optional<Part> look_at(const Folder& folder, const std::string& id) {
  const Result<Folder> directory = enter_store(folder, id);
  if (!directory) {
    return std::nullopt;  // a file or a link of that name is not a store
  }
  Part part;
  part.id = id;
  part.shown.path = directory->path;
  part.node = node_of(*directory);
  if (!has_data(*directory)) {
    part.stage = Stage::kNoFile;
    part.shown.problem = "it has no data file: its creation or its removal was interrupted";
    return part;
  }
  const Result<std::unique_ptr<DataFile>> file = open_data(*directory);
  if (!file) {
    part.shown.problem = file.error().why;
    return part;
  }
  part.shown.bytes = (*file)->bytes().value_or(0);
  part.locked = locked_by_writer(**file);
  if (const Status status = describe(**file, part); !status) {
    part.shown.problem = status.error().why;
  }
  return part;
}

Result<std::vector<Part>> parts_in(const std::string& folder) {
  HEADRACE_ASSIGN(const Folder parent, open_folder(folder));
  HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(parent.path));
  std::vector<Part> parts;
  for (const std::string& name : names) {
    if (!Id128::from_hex(name)) {
      continue;
    }
    if (std::optional<Part> part = look_at(parent, name)) {
      parts.push_back(*std::move(part));
    }
  }
  return parts;
}

bool says_its_index(const Part& part) {
  return part.stage == Stage::kMade || part.stage == Stage::kCreating;
}

bool same_part(const Part& one, const Part& other) {
  return one.id == other.id &&
         (one.node == other.node || (says_its_index(one) && says_its_index(other) &&
                                     one.shown.folder_index == other.shown.folder_index));
}

// Whether what lies where `known` says that its part `index` was made is that part, or the rest of
// it. Only a directory is removed of one without a file, so that its name is enough; a file without
// a name is nobody else's while the store was being made.
bool is_part_of(const Part& known, const Part& part, std::size_t index) {
  switch (part.stage) {
    case Stage::kNoFile:
      return true;
    case Stage::kBlank:
      return known.stage == Stage::kCreating;
    case Stage::kCreating:
      return part.shown.folder_index == index;
    case Stage::kMade:
      return part.shown.problem.empty() && part.shown.folder_index == index;
    case Stage::kUnreadable:
      return false;
  }
  return false;
}

// The parts that lie where the store says they were made, beside those that were found.
void add_recorded_parts(std::vector<Part>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part known = parts[i];
    for (std::size_t index = 0; index < known.folder_paths.size(); ++index) {
      const Result<Folder> folder = open_folder(known.folder_paths[index]);
      std::optional<Part> part = folder ? look_at(*folder, known.id) : std::nullopt;
      if (!part || !is_part_of(known, *part, index)) {
        continue;
      }
      part->shown.folder_index = static_cast<std::uint32_t>(index);
      const auto found = std::find_if(
          parts.begin(), parts.end(), [&](const Part& other) { return same_part(other, *part); });
      if (found == parts.end()) {
        parts.push_back(*std::move(part));
      } else if (!says_its_index(*found)) {
        found->shown.folder_index = part->shown.folder_index;
      }
    }
  }
}

StoreListing listing_of(std::vector<Part> parts) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.shown.folder_index < b.shown.folder_index;
  });
  StoreListing listing;
  const Part& first = parts.front();
  listing.id = first.id;
  listing.path = first.shown.path;
  listing.folder_count = first.folder_count;
  std::uint64_t generation = first.generation;
  for (Part& part : parts) {
    listing.bytes += part.shown.bytes;
    listing.dirty = listing.dirty || part.dirty;
    listing.locked = listing.locked || part.locked;
    listing.copy = listing.copy || part.copy;
    listing.slots = std::max(listing.slots, part.slots);
    listing.run_dir = listing.run_dir.empty() ? part.run_dir : listing.run_dir;
    // The commit is what all parts have.
    if (&part == &parts.front() || part.generation < generation) {
      generation = part.generation;
      listing.step = part.step;
    }
    if (listing.problem.empty() && !part.shown.problem.empty()) {
      listing.problem = part.shown.problem;
      listing.step = -1;
    }
    listing.parts.push_back(std::move(part.shown));
  }
  if (listing.problem.empty() && listing.parts.size() < listing.folder_count) {
    listing.problem = fmt::format(
        "{} of its {} parts are in these folders", listing.parts.size(), listing.folder_count);
  }
  return listing;
}

Result<std::vector<Part>> all_parts(const std::vector<std::string>& folders) {
  HEADRACE_TRY(check_distinct(folders));
  std::vector<Part> parts;
  for (const std::string& folder : folders) {
    HEADRACE_ASSIGN(std::vector<Part> found, parts_in(folder));
    std::move(found.begin(), found.end(), std::back_inserter(parts));
  }
  add_recorded_parts(parts);
  return parts;
}

}  // namespace

Result<std::vector<StoreListing>> list_stores(const std::vector<std::string>& folders) {
  HEADRACE_ASSIGN(std::vector<Part> parts, all_parts(folders));
  std::vector<StoreListing> listings;
  while (!parts.empty()) {
    const std::string id = parts.front().id;
    const auto rest = std::stable_partition(
        parts.begin(), parts.end(), [&](const Part& part) { return part.id == id; });
    listings.push_back(listing_of({parts.begin(), rest}));
    parts.erase(parts.begin(), rest);
  }
  return listings;
}

namespace {

// A part that is about to be removed: found, locked, and known for a store's.
struct Doomed {
  Folder folder;
  Folder directory;
  std::unique_ptr<DataFile> file;  // null: it has none
};

// Without a data file, what else lies there is somebody's.
Status check_empty(const Folder& directory) {
  HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(directory.path));
  if (!names.empty()) {
    return usage_error(fmt::format("nvme tier: '{}' is not a headrace store", directory.path))
        .with_why("it has no data file, and holds others, so it is left alone")
        .with_hint("remove it by hand if it is not needed");
  }
  return {};
}

Result<Doomed> take_part(const std::string& folder, const std::string& id) {
  Doomed doomed;
  HEADRACE_ASSIGN(doomed.folder, open_folder(folder));
  HEADRACE_ASSIGN(doomed.directory, enter_store(doomed.folder, id));
  if (!has_data(doomed.directory)) {
    HEADRACE_TRY(check_empty(doomed.directory));
    return doomed;
  }
  HEADRACE_ASSIGN(doomed.file, open_data(doomed.directory));
  HEADRACE_TRY(doomed.file->lock(DataFile::Lock::kExclusive));
  if (beginning_of(*doomed.file) == FileBeginning::kOther) {
    return usage_error(fmt::format("nvme tier: '{}' is not a headrace store", doomed.file->path()))
        .with_why("it does not begin as one, so it is left alone")
        .with_hint("remove it by hand if it is not needed");
  }
  return doomed;
}

Status remove_part(const Doomed& doomed, const std::string& id) {
  if (doomed.file && ::unlinkat(doomed.directory.fd.get(), kDataName, 0) != 0) {
    return writing_error(doomed.file->path(), errno);
  }
  if (::unlinkat(doomed.folder.fd.get(), id.c_str(), AT_REMOVEDIR) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      return writing_error(doomed.directory.path, errno);
    }
    log_warning(fmt::format("nvme tier: '{}' stays: it holds files that are not the store's",
                            doomed.directory.path));
  }
  // Whoever noted that it is to go may forget it now.
  return sync_directory(doomed.folder);
}

// The named folders that hold a part, and those that the parts name.
std::vector<std::string> folders_of_store(const std::vector<std::string>& folders,
                                          const std::string& id) {
  std::vector<Part> parts;
  for (const std::string& name : folders) {
    const Result<Folder> folder = open_folder(name);
    std::optional<Part> part = folder ? look_at(*folder, id) : std::nullopt;
    if (part) {
      parts.push_back(*std::move(part));
    }
  }
  add_recorded_parts(parts);
  std::vector<std::string> found;
  found.reserve(parts.size());
  for (const Part& part : parts) {
    found.push_back(parent_path(part.shown.path));
  }
  return found;
}

}  // namespace

Status remove_store(const std::vector<std::string>& folders, const std::string& id) {
  HEADRACE_TRY(check_distinct(folders));
  std::vector<std::string> found = folders_of_store(folders, id);
  if (found.empty()) {
    found = folders;  // to say what is wrong
  }
  // All are taken before the first is removed: a store in use stays whole.
  std::vector<Doomed> parts;
  for (const std::string& folder : found) {
    HEADRACE_ASSIGN(Doomed part, take_part(folder, id));
    parts.push_back(std::move(part));
  }
  for (const Doomed& part : parts) {
    HEADRACE_TRY(remove_part(part, id));
  }
  return {};
}

Result<std::vector<std::string>> reclaim_orphans(const std::vector<std::string>& folders,
                                                 const std::string& run_dir,
                                                 const std::string& keep_id) {
  std::vector<std::string> removed;
  if (run_dir.empty()) {
    return removed;
  }
  for (const std::string& folder : folders) {
    if (!is_directory(folder)) {
      continue;
    }
    HEADRACE_ASSIGN(const std::vector<Part> parts, parts_in(folder));
    for (const Part& part : parts) {
      if (part.run_dir != run_dir || part.id == keep_id || part.copy || part.locked) {
        continue;
      }
      Result<Doomed> doomed = take_part(folder, part.id);
      if (!doomed) {
        log_info(fmt::format("nvme tier: '{}' stays: {}", part.shown.path, doomed.error().why));
        continue;
      }
      HEADRACE_TRY(remove_part(*doomed, part.id));
      log_info(fmt::format("nvme tier: removed '{}', the rest of an earlier start of this run",
                           part.shown.path));
      removed.push_back(part.shown.path);
    }
  }
  return removed;
}

Result<bool> remove_unfinished(const std::vector<std::string>& folders, const std::string& id) {
  bool removed = false;
  for (const std::string& name : folders) {
    const Result<Folder> folder = open_folder(name);
    if (!folder || !enter_store(*folder, id)) {
      continue;  // the creation did not come to it, or that is no store's name
    }
    HEADRACE_ASSIGN(const Doomed part, take_part(name, id));
    if (part.file && beginning_of(*part.file) != FileBeginning::kBlank) {
      continue;  // it says itself whose it is
    }
    HEADRACE_TRY(remove_part(part, id));
    removed = true;
  }
  return removed;
}

Result<StoreLocation> locate_store(const std::string& path) {
  StoreLocation location;
  const std::string folder = parent_path(path);
  location.id = path.substr(path.rfind('/') + 1);
  HEADRACE_ASSIGN(const Folder parent, open_folder(folder));
  HEADRACE_ASSIGN(const Folder directory, enter_store(parent, location.id));
  HEADRACE_ASSIGN(const std::unique_ptr<DataFile> file, open_data(directory));
  HEADRACE_ASSIGN(const SuperblockCopies copies, read_superblocks(*file));
  const format::Superblock& block = copies.newest_block();
  location.folders = format::split_paths(text_of(*file, block.folder_paths));
  location.folders.resize(block.folder_count);
  location.folders[block.folder_index] = parent.path;  // wherever it was when it was made
  return location;
}

}  // namespace headrace::tiers::nvme
