// Small POSIX helpers for files that are not on the step path: configs, tables, traces, exports.
//
// Invariant: every result of the system is checked; interrupted and short calls are resumed; a file
// is replaced whole or not at all. Thread: any. Failure: an operating error with errno's words.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/unique.hpp"

namespace headrace {

// open(2) with O_CLOEXEC; mode counts only where O_CREAT is among the flags.
[[nodiscard]] Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode = 0644);

// For reading. Errors: what is there is no regular file (a pipe, say, would keep an open waiting).
[[nodiscard]] Result<UniqueFd> open_regular_file(const std::string& path);

// The whole file; an error when it is larger than bytes_max or not a regular file.
[[nodiscard]] Result<std::string> read_file(const std::string& path, std::uint64_t bytes_max);

[[nodiscard]] Result<std::uint64_t> file_size_bytes(const std::string& path);
[[nodiscard]] bool path_exists(const std::string& path);
[[nodiscard]] bool is_directory(const std::string& path);
[[nodiscard]] bool is_regular_file(const std::string& path);

// Reads exactly into.size() bytes at offset; an end of file before that is a corrupt-data error.
[[nodiscard]] Status read_exactly(int fd, std::span<std::byte> into, std::uint64_t offset_bytes);
// Writes all of it, at the descriptor's position.
[[nodiscard]] Status write_all(int fd, std::string_view text);

// Writes beside the target, fsync, rename, fsync of the folder: after a crash the old or the new.
[[nodiscard]] Status write_file_atomically(const std::string& path, std::string_view text);

enum class Parents { kMustExist, kMake };

// An existing directory is fine.
[[nodiscard]] Status make_directory(const std::string& path, Parents parents);

// Names in a directory, sorted, without . and ..
[[nodiscard]] Result<std::vector<std::string>> list_directory(const std::string& path);

// Expands *, ?, [..] and ** (any number of folders, hidden ones left out) to regular files, sorted
// bytewise; a name without a wildcard stands for itself. A pattern that matches nothing is an
// error.
[[nodiscard]] Result<std::vector<std::string>> expand_glob(const std::string& pattern);

// path itself when absolute, else below base; "." and ".." resolved as text. base is absolute.
[[nodiscard]] std::string absolute_path(std::string_view base, std::string_view path);
// As absolute_path, with links followed as far as the path exists.
[[nodiscard]] std::string real_path(const std::string& path);
[[nodiscard]] std::string working_directory();
// "a/b" of "a/b/c"; "." of "c".
[[nodiscard]] std::string parent_path(std::string_view path);

enum class FilesystemKind { kExt, kXfs, kBtrfs, kZfs, kTmpfs, kOverlay, kNetwork, kOther };

struct Filesystem {
  FilesystemKind kind = FilesystemKind::kOther;
  std::string name;              // "ext4", or the magic number in hexadecimal
  std::uint64_t free_bytes = 0;  // for this user
  std::uint64_t total_bytes = 0;
};

// Of the filesystem that holds path, which must exist.
[[nodiscard]] Result<Filesystem> filesystem_of(const std::string& path);

struct FileMapping {
  void* address = nullptr;
  std::size_t size_bytes = 0;

  friend bool operator==(const FileMapping&, const FileMapping&) = default;
};

struct FileMappingTraits {
  using Handle = FileMapping;
  static constexpr Handle kEmpty = {};
  static void close(Handle handle) noexcept;
};

// A whole file mapped for reading: token files, safetensors. Unmapped at the end; the file must not
// shrink meanwhile (a read beyond its end is SIGBUS).
class MappedFile {
 public:
  MappedFile() = default;

  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  // Valid as long as this object.
  [[nodiscard]] std::span<const std::byte> bytes() const;

 private:
  explicit MappedFile(FileMapping mapping) : mapping_(mapping) {}

  Unique<FileMappingTraits> mapping_;
};

}  // namespace headrace
