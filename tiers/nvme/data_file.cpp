#include "tiers/nvme/data_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/stat.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "tiers/nvme/format.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{1} << 20U;
constexpr std::size_t kTransferBytesMax = std::size_t{1}
                                          << 30U;  // a system call moves at most 2 GiB
constexpr int kLockTries = 10;
constexpr std::chrono::milliseconds kLockPause{10};

bool page_aligned(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0;
}

std::string process_name(long pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

std::string lock_holder(int fd) {
  struct stat info {};

  std::ifstream locks("/proc/locks");
  if (::fstat(fd, &info) != 0 || !locks) {
    return "another process";
  }
  // "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; a filesystem may show another device number
  // there than stat does, so the inode decides.
  const std::string inode = fmt::format(":{}", info.st_ino);
  std::string number;
  std::string kind;
  std::string advisory;
  std::string access;
  std::string place;
  std::string rest;
  long pid = 0;
  while (locks >> number >> kind) {
    if (kind == "->") {  // a process that waits for the lock above it
      std::getline(locks, rest);
      continue;
    }
    if (!(locks >> advisory >> access >> pid >> place) || !std::getline(locks, rest)) {
      break;
    }
    if (kind == "FLOCK" && place.ends_with(inode) && pid > 0) {
      return fmt::format("process {} ({})", pid, process_name(pid));
    }
  }
  return "another process";
}

Error transfer_error(const char* operation,
                     const std::string& path,
                     std::uint64_t offset,
                     int errno_value) {
  Error error = errno_error(
      fmt::format("nvme tier: cannot {} '{}' at offset {}", operation, path, offset), errno_value);
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
      error.hint = "free space on that filesystem, then run again";
      break;
    case EIO:
    case EREMOTEIO:
      error.hint = "the drive reports a fault: see the kernel's log (dmesg) and the drive's health";
      break;
    case EINVAL:
      error.hint = "the filesystem may refuse direct I/O here: tiers.direct_io = \"auto\"";
      break;
    case EROFS:
      error.hint = "the filesystem is read-only now: see the kernel's log (dmesg)";
      break;
    default:
      break;
  }
  return error;
}

Error truncated_error(const std::string& path, std::uint64_t offset) {
  return corrupt_error(fmt::format("nvme tier: '{}' ends at or before offset {}", path, offset))
      .with_why("the data file was truncated")
      .with_hint("restore it from a copy, or remove the store: headrace store remove");
}

Result<std::unique_ptr<DataFile>> DataFile::open_at(int directory,
                                                    const char* name,
                                                    std::string path,
                                                    Mode mode) {
  const int access = mode == Mode::kRead    ? O_RDONLY
                     : mode == Mode::kWrite ? O_RDWR
                                            : O_RDWR | O_CREAT | O_EXCL;
  std::unique_ptr<DataFile> file(new DataFile());
  file->path_ = std::move(path);
  // O_NONBLOCK: opening a pipe that lies there by mistake must not hang; it does nothing to files.
  file->fd_.reset(
      ::openat(directory, name, access | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR));
  if (!file->fd_) {
    if (errno == ELOOP) {
      return usage_error(fmt::format("nvme tier: cannot use '{}'", file->path_))
          .with_why("it is a symbolic link, and links are not followed out of a store");
    }
    const int reason = errno;
    Error error = errno_error(fmt::format("nvme tier: cannot open '{}'", file->path_), reason);
    if (reason == ENOSPC || reason == EDQUOT) {
      error.code = ExitCode::kDoesNotFit;
      error.hint = "free space there, or use another folder";
    }
    return error;
  }

  struct stat info {};

  if (::fstat(file->fd(), &info) != 0) {
    return errno_error(fmt::format("nvme tier: cannot look at '{}'", file->path_), errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return usage_error(fmt::format("nvme tier: cannot use '{}'", file->path_))
        .with_why("it is not a regular file");
  }
  file->lock_fd_.reset(::openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));

  struct stat same {};

  if (!file->lock_fd_ || ::fstat(file->lock_fd(), &same) != 0) {
    return errno_error(fmt::format("nvme tier: cannot open '{}'", file->path_), errno);
  }
  if (same.st_ino != info.st_ino || same.st_dev != info.st_dev) {
    return operating_error(fmt::format("nvme tier: cannot use '{}'", file->path_))
        .with_why("it was replaced while it was opened");
  }
  HEADRACE_ASSIGN(file->bounce_, PageBuffer::create(kBounceBytes));
  return file;
}

Status DataFile::lock(Lock kind) {
  const int operation = (kind == Lock::kExclusive ? LOCK_EX : LOCK_SH) | LOCK_NB;
  // `store list` takes the lock for an instant to see whether it is free: so try for a moment.
  for (int attempt = 1; ::flock(lock_fd(), operation) != 0; ++attempt) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return errno_error(fmt::format("nvme tier: cannot lock '{}'", path_), errno);
    }
    if (attempt == kLockTries) {
      return operating_error(fmt::format("nvme tier: the store '{}' is in use", path_))
          .with_why(fmt::format("it is held by {}", lock_holder(fd())))
          .with_hint("wait until it has finished, or end it");
    }
    std::this_thread::sleep_for(kLockPause);
  }

  struct stat info {};

  if (::fstat(fd(), &info) != 0 || info.st_nlink == 0) {
    return operating_error(fmt::format("nvme tier: the store '{}' was removed", path_));
  }
  return {};
}

// Empty: direct I/O is on. Otherwise why it cannot be.
std::string DataFile::direct_io_problem() {
  struct statx info {};

  if (::statx(fd(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_mem_align == 0 || info.stx_dio_offset_align == 0) {
      return "the filesystem has no direct I/O for this file";
    }
    if (kPageBytes % info.stx_dio_mem_align != 0 || kPageBytes % info.stx_dio_offset_align != 0) {
      return fmt::format(
          "its direct I/O wants memory aligned to {} bytes and offsets to {}, more than a page",
          info.stx_dio_mem_align,
          info.stx_dio_offset_align);
    }
  }
  const int flags = ::fcntl(fd(), F_GETFL);
  if (flags < 0 || ::fcntl(fd(), F_SETFL, flags | O_DIRECT) != 0) {
    return fmt::format("the filesystem refuses O_DIRECT ({})", errno_error({}, errno).why);
  }
  ssize_t got = 0;
  do {
    got = ::pread(fd(), bounce_.bytes().data(), kPageBytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    const int reason = errno;
    if (::fcntl(fd(), F_SETFL, flags) != 0) {
      return fmt::format("O_DIRECT cannot be switched off again ({})", errno_error({}, errno).why);
    }
    return fmt::format("a direct read of one page fails ({})", errno_error({}, reason).why);
  }
  return {};
}

Status DataFile::enable_direct_io(bool required) {
  const std::string problem = direct_io_problem();
  direct_io_ = problem.empty();
  if (direct_io_) {
    return {};
  }
  if (required) {
    return operating_error(fmt::format("nvme tier: cannot use '{}' with direct I/O", path_))
        .with_why(problem)
        .with_hint(
            "tiers.direct_io = \"auto\" uses buffered I/O there (slower, through the page "
            "cache), or use a folder on ext4 or xfs");
  }
  log_warning(fmt::format("nvme tier: '{}': buffered I/O, {}", path_, problem));
  return {};
}

Status DataFile::allocate(std::uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  int error = 0;
  do {
    error = ::fallocate(fd(), 0, 0, size) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP) {
    log_warning(fmt::format(
        "nvme tier: '{}': the filesystem has no fallocate; writing {} bytes", path_, bytes));
    error = ::posix_fallocate(fd(), 0, size);
  }
  if (error != 0) {
    Error failed = errno_error(
        fmt::format("nvme tier: cannot reserve {} bytes for '{}'", bytes, path_), error);
    if (error == ENOSPC || error == EDQUOT) {
      failed.code = ExitCode::kDoesNotFit;
      failed.hint = "free space there, or use another folder";
    }
    return failed;
  }
  return {};
}

Status DataFile::cut(std::uint64_t bytes) {
  HEADRACE_ASSIGN(const std::uint64_t now, this->bytes());
  if (now <= bytes) {
    return {};
  }
  int failed = 0;
  do {
    failed = ::ftruncate(fd(), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) {
    return errno_error(fmt::format("nvme tier: cannot cut '{}' to {} bytes", path_, bytes), errno);
  }
  return {};
}

Status DataFile::read(std::uint64_t offset, std::span<std::byte> target) {
  HEADRACE_ASSERT(offset % kPageBytes == 0 && target.size() % kPageBytes == 0,
                  "transfers are of whole pages");
  const bool bounced = direct_io_ && !page_aligned(target.data());
  while (!target.empty()) {
    const std::size_t wanted =
        std::min(target.size(), bounced ? bounce_.bytes().size() : kTransferBytesMax);
    std::byte* memory = bounced ? bounce_.bytes().data() : target.data();
    const ssize_t got = ::pread(fd(), memory, wanted, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return transfer_error("read", path_, offset, errno);
    }
    // A transfer that ends within a page is the file's end: direct I/O cannot go on from there.
    const std::size_t pages = static_cast<std::size_t>(got) / kPageBytes * kPageBytes;
    if (pages == 0) {
      return truncated_error(path_, offset + static_cast<std::uint64_t>(got));
    }
    if (bounced) {
      std::memcpy(target.data(), memory, pages);
    }
    target = target.subspan(pages);
    offset += pages;
  }
  return {};
}

Status DataFile::write(std::uint64_t offset, std::span<const std::byte> source) {
  HEADRACE_ASSERT(offset % kPageBytes == 0 && source.size() % kPageBytes == 0,
                  "transfers are of whole pages");
  const bool bounced = direct_io_ && !page_aligned(source.data());
  while (!source.empty()) {
    const std::size_t wanted =
        std::min(source.size(), bounced ? bounce_.bytes().size() : kTransferBytesMax);
    const std::byte* memory = source.data();
    if (bounced) {
      std::memcpy(bounce_.bytes().data(), source.data(), wanted);
      memory = bounce_.bytes().data();
    }
    const ssize_t put = ::pwrite(fd(), memory, wanted, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      return transfer_error("write", path_, offset, errno);
    }
    const std::size_t pages = static_cast<std::size_t>(put) / kPageBytes * kPageBytes;
    if (pages == 0) {
      return operating_error(
                 fmt::format("nvme tier: cannot write '{}' at offset {}", path_, offset))
          .with_why(fmt::format("the system took {} bytes of {}", put, wanted));
    }
    source = source.subspan(pages);
    offset += pages;
  }
  return {};
}

Status DataFile::sync() {
  int error = 0;
  do {
    error = ::fdatasync(fd()) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) {
    return errno_error(fmt::format("nvme tier: cannot make '{}' durable", path_), error)
        .with_hint("the drive reports a fault: see the kernel's log (dmesg)");
  }
  return {};
}

Result<std::uint64_t> DataFile::bytes() {
  struct stat info {};

  if (::fstat(fd(), &info) != 0) {
    return errno_error(fmt::format("nvme tier: cannot look at '{}'", path_), errno);
  }
  return static_cast<std::uint64_t>(info.st_size);
}

}  // namespace headrace::tiers::nvme
