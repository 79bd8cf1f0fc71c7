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
#include <memory>
#include <span>
#include <string>

#include "core/error.hpp"
#include "core/unique.hpp"
#include "tiers/nvme/block_file.hpp"
#include "tiers/nvme/page_buffer.hpp"

namespace headrace::tiers::nvme {

class DataFile final : public BlockFile {
 public:
  enum class Mode : std::uint8_t { kRead, kWrite, kCreate };
  enum class Lock : std::uint8_t { kShared, kExclusive };

  // Opens `name` in the directory. `path` is for messages. kCreate: it must not exist (mode 0600).
  [[nodiscard]] static Result<std::unique_ptr<DataFile>> open_at(int directory,
                                                                 const char* name,
                                                                 std::string path,
                                                                 Mode mode);

  // flock: one exclusive holder, or any number of shared ones. Errors: held by another (which is
  // named), or the file was removed meanwhile.
  [[nodiscard]] Status lock(Lock kind);

  // Switches direct I/O on. Where the filesystem refuses it: an Error if `required`, else buffered
  // I/O and a log line. Needs a file of at least one page.
  [[nodiscard]] Status enable_direct_io(bool required);

  [[nodiscard]] Status allocate(std::uint64_t bytes) override;
  [[nodiscard]] Status cut(std::uint64_t bytes) override;
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> target) override;
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> source) override;
  [[nodiscard]] Status sync() override;  // fdatasync
  [[nodiscard]] Result<std::uint64_t> bytes() override;

  [[nodiscard]] int fd() const override { return fd_.get(); }

  // For locks, and for nothing else.
  [[nodiscard]] int lock_fd() const { return lock_fd_.get(); }

  [[nodiscard]] bool direct_io() const override { return direct_io_; }

  [[nodiscard]] const std::string& path() const override { return path_; }

 private:
  DataFile() = default;
  [[nodiscard]] std::string direct_io_problem();

  UniqueFd fd_;
  // The same file, opened once more for the lock alone: a lock lives as long as something refers to
  // what was opened, and an io_uring does so for a while after its process has ended.
  UniqueFd lock_fd_;
  std::string path_;
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
