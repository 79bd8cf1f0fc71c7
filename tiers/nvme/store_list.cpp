// `store list` and `store remove`: what lies in a folder, and the removal of exactly one store.
//
// Invariant: only `<folder>/<32 hex digits>/data` is read, only a data file that begins as a
// store's is removed, nothing is followed out of the folder. Thread: the caller's. Failure: a store
// that cannot be read is listed with its problem; everything else is an Error.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/files.hpp"
#include "core/log.hpp"
#include "tiers/nvme/store_folder.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
namespace {

// Held by a writer: a shared lock cannot be had. Given back at once.
bool locked_by_writer(const DataFile& file) {
  if (::flock(file.fd(), LOCK_SH | LOCK_NB) == 0) {
    ::flock(file.fd(), LOCK_UN);
    return false;
  }
  return errno == EWOULDBLOCK;
}

// Fills in what the superblock and the commit record say.
Status describe_store(BlockFile& file, StoreListing& listing) {
  HEADRACE_ASSIGN(const FoundSuperblock found, find_superblock(file));
  listing.dirty = (found.block.flags & format::kFlagDirty) != 0;
  HEADRACE_ASSIGN(const std::vector<std::byte> run_dir, read_region(file, found.block.run_dir));
  if (hash_bytes(run_dir) == found.block.run_dir.xxh3) {
    listing.run_dir.assign(reinterpret_cast<const char*>(run_dir.data()), run_dir.size());
  }
  if (found.block.generation > 0) {
    HEADRACE_ASSIGN(const std::vector<std::byte> bytes, read_region(file, found.block.map));
    HEADRACE_ASSIGN(const format::Map map, format::parse_map(found.block, bytes, file.path()));
    listing.step = map.step;
  }
  if (const std::string own = format::store_id_text(found.block.store_id); own != listing.id) {
    return usage_error(cannot_use(listing.path))
        .with_why(fmt::format("its data file belongs to the store {}", own));
  }
  return {};
}

}  // namespace

namespace {

Status list_folder(const std::string& folder, std::vector<StoreListing>& listings) {
  HEADRACE_ASSIGN(const Folder parent, open_folder(folder));
  HEADRACE_ASSIGN(const std::vector<std::string> names, list_directory(parent.path));
  for (const std::string& name : names) {
    if (!Id128::from_hex(name)) {
      continue;
    }
    Result<Folder> directory = enter_store(parent, name);
    if (!directory) {
      continue;  // a file or a link of that name is not a store
    }
    StoreListing listing;
    listing.id = name;
    listing.path = directory->path;
    Result<std::unique_ptr<DataFile>> file = DataFile::open_at(
        directory->fd.get(), kDataName, directory->path + "/" + kDataName, DataFile::Mode::kRead);
    if (!file) {
      listing.problem = file.error().why;
    } else {
      listing.bytes = (*file)->bytes().value_or(0);
      listing.locked = locked_by_writer(**file);
      if (const Status status = describe_store(**file, listing); !status) {
        listing.problem = status.error().why;
      }
    }
    listings.push_back(std::move(listing));
  }
  return {};
}

Status remove_part(const std::string& folder, const std::string& id) {
  HEADRACE_ASSIGN(const Folder parent, open_folder(folder));
  HEADRACE_ASSIGN(const Folder directory, enter_store(parent, id));
  const std::string data_path = directory.path + "/" + kDataName;
  {
    HEADRACE_ASSIGN(
        const std::unique_ptr<DataFile> file,
        DataFile::open_at(directory.fd.get(), kDataName, data_path, DataFile::Mode::kRead));
    HEADRACE_TRY(file->lock(DataFile::Lock::kExclusive));
    if (!looks_like_store(*file)) {
      return usage_error(fmt::format("nvme tier: '{}' is not a headrace store", data_path))
          .with_why("it does not begin as one, so it is left alone")
          .with_hint("remove it by hand if it is not needed");
    }
    if (::unlinkat(directory.fd.get(), kDataName, 0) != 0) {
      return writing_error(data_path, errno);
    }
  }
  if (::unlinkat(parent.fd.get(), id.c_str(), AT_REMOVEDIR) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      return writing_error(directory.path, errno);
    }
    log_warning(fmt::format("nvme tier: '{}' stays: it holds files that are not the store's",
                            directory.path));
  }
  return {};
}

}  // namespace

Result<std::vector<StoreListing>> list_stores(const std::vector<std::string>& folders) {
  std::vector<StoreListing> listings;
  for (const std::string& folder : folders) {
    HEADRACE_TRY(list_folder(folder, listings));
  }
  return listings;
}

Status remove_store(const std::vector<std::string>& folders, const std::string& id) {
  for (const std::string& folder : folders) {
    HEADRACE_TRY(remove_part(folder, id));
  }
  return {};
}

}  // namespace headrace::tiers::nvme
