// The data file of a store: opened without following links, locked, with direct I/O where the
// filesystem has it, and synchronous reads and writes that are complete or an Error.
//
// Invariant: every transfer is of whole pages at a page's offset; memory of any alignment is
// accepted (bounced where direct I/O needs it). Thread: one at a time. Failure: every result of
// the system is looked at; short transfers go on, EINTR is repeated, the rest is an Error that
// names the file and the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/error.hpp"
#include "core/unique.hpp"
#include "tiers/nvme/page_buffer.hpp"

namespace headrace::tiers::nvme {

class DataFile {
 public:
  enum class Mode : std::uint8_t { kRead, kWrite, kCreate };
  enum class Lock : std::uint8_t { kShared, kExclusive };

  DataFile() = default;
  // Opens `name` in the directory. `path` is for messages. kCreate: it must not exist (mode 0600).
  [[nodiscard]] static Result<DataFile> open_at(int directory,
                                                const char* name,
                                                std::string path,
                                                Mode mode);

  // flock: one exclusive holder, or any number of shared ones. Errors: held by another (which is
  // named), or the file was removed meanwhile.
  [[nodiscard]] Status lock(Lock kind) const;

  // Switches direct I/O on. Where the filesystem refuses it: an Error if `required`, else buffered
  // I/O and a log line. Needs a file of at least one page.
  [[nodiscard]] Status enable_direct_io(bool required);

  // Gives the file its size, with blocks for all of it. Errors: no space.
  [[nodiscard]] Status allocate(std::uint64_t bytes) const;

  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> target) const;
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> source) const;
  // fdatasync: what was written before is durable when it returns.
  [[nodiscard]] Status sync() const;

  [[nodiscard]] Result<std::uint64_t> bytes() const;

  [[nodiscard]] int fd() const { return fd_.get(); }

  [[nodiscard]] bool direct_io() const { return direct_io_; }

  [[nodiscard]] const std::string& path() const { return path_; }

  // One MiB of page-aligned memory for users of this file between calls of read and write.
  [[nodiscard]] std::span<std::byte> scratch() const { return scratch_.bytes(); }

 private:
  [[nodiscard]] std::string direct_io_problem() const;

  UniqueFd fd_;
  std::string path_;
  PageBuffer scratch_;
  PageBuffer bounce_;
  bool direct_io_ = false;
};

// Who holds a flock on the file, for messages: "process 1234 (headrace)"; "another process" where
// the system does not say.
[[nodiscard]] std::string lock_holder(int fd);

// The Error of a failed transfer: what failed, where, why and what to do.
[[nodiscard]] Error transfer_error(const char* operation,
                                   const std::string& path,
                                   std::uint64_t offset,
                                   int errno_value);
// The Error of a file that ends before it should.
[[nodiscard]] Error truncated_error(const std::string& path, std::uint64_t offset);

}  // namespace headrace::tiers::nvme
