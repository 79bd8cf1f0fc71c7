// POSIX files (core/files.hpp): opening, reading, writing, directories, mapping, filesystems.
#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/hash.hpp"

namespace headrace {

namespace {

// Calls until it is not interrupted by a signal.
template <class Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

std::string_view kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a named pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "something else";
  }
}

Result<struct stat> stat_of(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return errno_error(fmt::format("cannot look at '{}'", path), errno);
  }
  return info;
}

Status sync_directory(const std::string& path) {
  HEADRACE_ASSIGN(const UniqueFd fd, open_file(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) {
    return errno_error(fmt::format("cannot sync the folder '{}'", path), errno);
  }
  return {};
}

Status write_and_sync(const std::string& path, std::string_view text) {
  HEADRACE_ASSIGN(const UniqueFd fd, open_file(path, O_WRONLY | O_CREAT | O_EXCL));
  HEADRACE_TRY(write_all(fd.get(), text));
  if (::fsync(fd.get()) != 0) {
    return errno_error(fmt::format("cannot sync '{}'", path), errno);
  }
  return {};
}

struct KnownFilesystem {
  std::uint64_t magic;
  FilesystemKind kind;
  std::string_view name;
};

constexpr std::uint64_t kXfsMagic = 0x58465342;
constexpr std::uint64_t kZfsMagic = 0x2FC12FC1;
constexpr std::uint64_t kCifsMagic = 0xFF534D42;
constexpr std::uint64_t kFuseMagic = 0x65735546;

constexpr KnownFilesystem kKnownFilesystems[] = {
    {EXT4_SUPER_MAGIC, FilesystemKind::kExt, "ext4"},
    {kXfsMagic, FilesystemKind::kXfs, "xfs"},
    {BTRFS_SUPER_MAGIC, FilesystemKind::kBtrfs, "btrfs"},
    {kZfsMagic, FilesystemKind::kZfs, "zfs"},
    {TMPFS_MAGIC, FilesystemKind::kTmpfs, "tmpfs"},
    {RAMFS_MAGIC, FilesystemKind::kTmpfs, "ramfs"},
    {OVERLAYFS_SUPER_MAGIC, FilesystemKind::kOverlay, "overlay"},
    {NFS_SUPER_MAGIC, FilesystemKind::kNetwork, "nfs"},
    {SMB_SUPER_MAGIC, FilesystemKind::kNetwork, "smb"},
    {SMB2_SUPER_MAGIC, FilesystemKind::kNetwork, "smb2"},
    {kCifsMagic, FilesystemKind::kNetwork, "cifs"},
    {kFuseMagic, FilesystemKind::kOther, "fuse"},
};

}  // namespace

Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode) {
  UniqueFd fd(retry_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); }));
  if (!fd) {
    return errno_error(fmt::format("cannot open '{}'", path), errno);
  }
  return fd;
}

Result<UniqueFd> open_regular_file(const std::string& path) {
  const auto refused = [&](mode_t mode) {
    return operating_error(fmt::format("cannot read '{}'", path))
        .with_why(fmt::format("it is {}, not a regular file", kind_of(mode)));
  };
  // Before it is opened, since that alone does things to a device; and after, for what came since.
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return refused(info.st_mode);
  }
  HEADRACE_ASSIGN(UniqueFd fd, open_file(path, O_RDONLY | O_NONBLOCK));
  HEADRACE_ASSIGN(info, stat_of(fd.get(), path));
  if (!S_ISREG(info.st_mode)) {
    return refused(info.st_mode);
  }
  return fd;
}

Result<std::string> read_file(const std::string& path, std::uint64_t bytes_max) {
  HEADRACE_ASSIGN(const UniqueFd fd, open_regular_file(path));
  HEADRACE_ASSIGN(const struct stat info, stat_of(fd.get(), path));
  const auto too_large = [&] {
    return operating_error(
        fmt::format("cannot read '{}': it is larger than {} bytes", path, bytes_max));
  };
  if (static_cast<std::uint64_t>(info.st_size) > bytes_max) {
    return too_large();
  }
  // Until the end of file, since files of /proc and /sys give no size.
  std::string text;
  constexpr std::size_t kReadBytes = std::size_t{1} << 16U;
  for (;;) {
    const std::size_t old_size = text.size();
    const std::size_t expected = static_cast<std::size_t>(info.st_size) + 1;
    text.resize(std::max(expected, old_size + kReadBytes));
    const ssize_t got = retry_interrupted(
        [&] { return ::read(fd.get(), text.data() + old_size, text.size() - old_size); });
    if (got < 0) {
      return errno_error(fmt::format("cannot read '{}'", path), errno);
    }
    text.resize(old_size + static_cast<std::size_t>(got));
    if (text.size() > bytes_max) {
      return too_large();
    }
    if (got == 0) {
      return text;
    }
  }
}

Result<std::uint64_t> file_size_bytes(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return errno_error(fmt::format("cannot look at '{}'", path), errno);
  }
  return static_cast<std::uint64_t>(info.st_size);
}

bool path_exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

bool is_directory(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool is_regular_file(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

Status read_exactly(int fd, std::span<std::byte> into, std::uint64_t offset_bytes) {
  while (!into.empty()) {
    const ssize_t got = retry_interrupted(
        [&] { return ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset_bytes)); });
    if (got < 0) {
      return errno_error("cannot read", errno);
    }
    if (got == 0) {
      return corrupt_error(
          fmt::format("the file ends at byte {}, {} bytes too early", offset_bytes, into.size()));
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset_bytes += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written =
        retry_interrupted([&] { return ::write(fd, text.data(), text.size()); });
    if (written < 0) {
      return errno_error("cannot write", errno);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status write_file_atomically(const std::string& path, std::string_view text) {
  // A random name, so that two writers of one target never share a half-written file.
  HEADRACE_ASSIGN(const Id128 id, random_id());
  const std::string beside = fmt::format("{}.{}.tmp", path, id.hex());
  Status status = write_and_sync(beside, text);
  if (status && ::rename(beside.c_str(), path.c_str()) != 0) {
    status = errno_error("cannot rename", errno);
  }
  if (!status) {
    ::unlink(beside.c_str());
    Error error = std::move(status).error();
    error.what = fmt::format("cannot write '{}': {}", path, error.what);
    return error;
  }
  return sync_directory(parent_path(path));
}

namespace {

Error making_error(const std::string& path, int errno_value) {
  Error error = errno_error(fmt::format("cannot make the folder '{}'", path), errno_value);
  if (error.hint.empty()) {
    error.hint = errno_value == ENOENT   ? "make the folder that it is to be in"
                 : errno_value == ENOSPC ? "free space there, or name another folder"
                                         : "name a folder that can be written to";
  }
  return error;
}

}  // namespace

Status make_directory(const std::string& path, Parents parents) {
  if (parents == Parents::kMake) {
    std::error_code code;
    std::filesystem::create_directories(path, code);
    if (code) {
      return making_error(path, code.value());
    }
  } else if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    return making_error(path, errno);
  }
  if (!is_directory(path)) {
    return operating_error(fmt::format("cannot make the folder '{}'", path))
        .with_why("a file of that name exists");
  }
  return {};
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  std::error_code code;
  std::filesystem::directory_iterator entries(path, code);
  std::vector<std::string> names;
  while (!code && entries != std::filesystem::directory_iterator()) {
    names.push_back(entries->path().filename().string());
    entries.increment(code);
  }
  if (code) {
    return errno_error(fmt::format("cannot list the folder '{}'", path), code.value());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string absolute_path(std::string_view base, std::string_view path) {
  // operator/ of an absolute right side is that side.
  std::filesystem::path joined = std::filesystem::path(base) / std::filesystem::path(path);
  joined = joined.lexically_normal();
  if (!joined.has_filename() && joined != joined.root_path()) {
    joined = joined.parent_path();  // without the slash at the end
  }
  return joined.string();
}

std::string real_path(const std::string& path) {
  const std::string absolute = absolute_path(working_directory(), path);
  std::error_code code;
  const std::filesystem::path real = std::filesystem::weakly_canonical(absolute, code);
  return code ? absolute : absolute_path("/", real.string());
}

std::string working_directory() {
  std::error_code code;
  const std::string path = std::filesystem::current_path(code).string();
  return code ? std::string("/") : path;
}

std::string parent_path(std::string_view path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? std::string(".") : parent;
}

Result<Filesystem> filesystem_of(const std::string& path) {
  struct statfs info = {};
  if (retry_interrupted([&] { return ::statfs(path.c_str(), &info); }) != 0) {
    return errno_error(fmt::format("cannot look at the filesystem of '{}'", path), errno);
  }
  // f_type is signed and 32 bits of it count.
  const auto magic = static_cast<std::uint64_t>(info.f_type) & 0xffffffffU;
  const auto block_bytes = static_cast<std::uint64_t>(info.f_bsize);
  Filesystem filesystem;
  filesystem.name = fmt::format("type {:#x}", magic);
  filesystem.free_bytes = static_cast<std::uint64_t>(info.f_bavail) * block_bytes;
  filesystem.total_bytes = static_cast<std::uint64_t>(info.f_blocks) * block_bytes;
  for (const KnownFilesystem& known : kKnownFilesystems) {
    if (known.magic == magic) {
      filesystem.kind = known.kind;
      filesystem.name = known.name;
    }
  }
  return filesystem;
}

void FileMappingTraits::close(Handle handle) noexcept {
  ::munmap(handle.address, handle.size_bytes);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  HEADRACE_ASSIGN(const UniqueFd fd, open_regular_file(path));
  HEADRACE_ASSIGN(const struct stat info, stat_of(fd.get(), path));
  const auto size_bytes = static_cast<std::size_t>(info.st_size);
  if (size_bytes == 0) {
    return MappedFile();  // mmap refuses a length of zero
  }
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return errno_error(fmt::format("cannot map '{}'", path), errno);
  }
  return MappedFile(FileMapping{.address = address, .size_bytes = size_bytes});
}

std::span<const std::byte> MappedFile::bytes() const {
  const FileMapping mapping = mapping_.get();
  return {static_cast<const std::byte*>(mapping.address), mapping.size_bytes};
}

}  // namespace headrace
