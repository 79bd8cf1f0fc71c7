#include "tiers/nvme/store_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/files.hpp"
#include "core/log.hpp"

namespace headrace::tiers::nvme {
namespace {

Status refuse_memory(const std::string& shown_path, const std::string& existing_path) {
  HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(existing_path));
  if (filesystem.kind == FilesystemKind::kTmpfs) {
    return usage_error(cannot_use(shown_path) + ": the filesystem is " + filesystem.name)
        .with_why("what is written there stays in memory")
        .with_hint("use a folder on ext4 or xfs");
  }
  if (filesystem.kind == FilesystemKind::kOverlay) {
    log_warning(fmt::format(
        "nvme tier: '{}' is on an overlay (a container's own layer): slower than the disk "
        "below it, and gone with the container; a mounted volume is better",
        shown_path));
  }
  return {};
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

}  // namespace

std::string cannot_use(const std::string& path) {
  return fmt::format("nvme tier: cannot use '{}'", path);
}

Error writing_error(const std::string& path, int errno_value) {
  switch (errno_value) {
    case ENOENT:
      return usage_error(cannot_use(path))
          .with_why("the folder that should hold it does not exist")
          .with_hint(fmt::format("make it first: mkdir -p '{}'", parent_path(path)));
    case ENOTDIR:
      return usage_error(cannot_use(path))
          .with_why("it is not a folder, or a part of its path is not")
          .with_hint("name a folder in tiers.nvme");
    case EROFS:
      return operating_error(cannot_use(path))
          .with_why("the filesystem is read-only")
          .with_hint("use a folder on a filesystem that can be written");
    case EACCES:
    case EPERM:
      return errno_error(cannot_use(path), errno_value)
          .with_hint(
              "give the user who runs headrace the right to write there, or use another "
              "folder");
    case ENOSPC:
    case EDQUOT: {
      Error error = errno_error(cannot_use(path), errno_value);
      error.code = ExitCode::kDoesNotFit;
      error.hint = "free space there, or use another folder";
      return error;
    }
    default:
      return errno_error(cannot_use(path), errno_value);
  }
}

Result<Folder> open_folder(const std::string& path) {
  Folder folder;
  folder.path = without_trailing_slashes(path);
  folder.fd.reset(::open(folder.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.fd) {
    if (errno == ENOENT) {
      return usage_error(cannot_use(folder.path)).with_why("there is no such folder");
    }
    return writing_error(folder.path, errno);
  }
  return folder;
}

Result<Folder> make_folder(const std::string& path) {
  const std::string name = without_trailing_slashes(path);
  if (name.empty()) {
    return usage_error("nvme tier: the store's folder has no name");
  }
  if (path_exists(name)) {
    HEADRACE_ASSIGN(Folder folder, open_folder(name));
    HEADRACE_TRY(refuse_memory(name, name));
    return folder;
  }
  const std::string parent = parent_path(name);
  if (!path_exists(parent)) {
    return writing_error(name, ENOENT);
  }
  HEADRACE_TRY(refuse_memory(name, parent));
  const bool made = ::mkdir(name.c_str(), S_IRWXU) == 0;
  if (!made && errno != EEXIST) {
    return writing_error(name, errno);
  }
  HEADRACE_ASSIGN(Folder folder, open_folder(name));
  folder.made = made;
  return folder;
}

Status check_space(const std::string& folder,
                   std::uint64_t bytes,
                   std::optional<std::uint64_t> space_bytes_max) {
  if (space_bytes_max && bytes > *space_bytes_max) {
    return does_not_fit_error(fmt::format("nvme tier: no space in '{}'", folder))
        .with_why(fmt::format("the store needs {} bytes, the folder may hold {}: {} are missing",
                              bytes,
                              *space_bytes_max,
                              bytes - *space_bytes_max))
        .with_hint("raise the folder's `space`, or keep less on NVMe");
  }
  HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(folder));
  if (bytes > filesystem.free_bytes) {
    return does_not_fit_error(fmt::format("nvme tier: no space in '{}'", folder))
        .with_why(fmt::format("the store needs {} bytes, {} of {} are free: {} are missing",
                              bytes,
                              filesystem.free_bytes,
                              filesystem.total_bytes,
                              bytes - filesystem.free_bytes))
        .with_hint(
            "free space there (`headrace store list` shows other stores), or use another "
            "folder");
  }
  return {};
}

Status check_distinct(const std::vector<std::string>& folders) {
  std::vector<std::pair<dev_t, ino_t>> seen;
  for (const std::string& path : folders) {
    struct stat info {};

    if (::stat(path.c_str(), &info) != 0) {
      continue;  // what is not there is found when it is opened
    }
    const std::pair node(info.st_dev, info.st_ino);
    if (std::find(seen.begin(), seen.end(), node) != seen.end()) {
      return usage_error(cannot_use(path)).with_why("the folder is named twice");
    }
    seen.push_back(node);
  }
  return {};
}

Result<std::uint64_t> device_of(const Folder& folder) {
  struct stat info {};

  if (::fstat(folder.fd.get(), &info) != 0) {
    return errno_error(cannot_use(folder.path), errno);
  }
  return static_cast<std::uint64_t>(info.st_dev);
}

Result<Folder> enter_store(const Folder& folder, const std::string& id) {
  Folder store;
  store.path = folder.path + "/" + id;
  if (!Id128::from_hex(id)) {
    return usage_error(fmt::format("nvme tier: '{}' is not the id of a store", id))
        .with_why("an id is 32 hexadecimal digits, in lower case");
  }
  store.fd.reset(
      ::openat(folder.fd.get(), id.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (store.fd) {
    return store;
  }
  const int reason = errno;
  if (reason == ENOENT) {
    return usage_error(fmt::format("nvme tier: there is no store '{}'", store.path))
        .with_hint("`headrace store list` shows those that there are");
  }

  struct stat info {};

  if (::fstatat(folder.fd.get(), id.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISLNK(info.st_mode)) {
    return usage_error(cannot_use(store.path))
        .with_why("it is a symbolic link, and links are not followed out of the folder");
  }
  return writing_error(store.path, reason);
}

Status sync_directory(const Folder& folder) {
  if (::fsync(folder.fd.get()) != 0) {
    return errno_error(fmt::format("nvme tier: cannot make '{}' durable", folder.path), errno);
  }
  return {};
}

}  // namespace headrace::tiers::nvme
