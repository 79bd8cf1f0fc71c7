// How requests reach a file: one interface, three back ends (io_uring, a pool of threads with
// preadv and pwritev, a seeded simulator), one conformance suite.
//
// Invariant: every request that was queued completes exactly once, with the bytes moved (fewer than
// asked: the caller goes on with the rest) or a negated errno; its pieces and their memory stay
// valid until then; the order of completions says nothing. The destructor awaits what is under way.
// Thread: all calls but wake() by the thread that made the back end (the engine's).
// Failure: create functions return Errors; afterwards only requests fail, each for itself.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/error.hpp"
#include "tiers/nvme/block_file.hpp"

namespace headrace::tiers::nvme {

// One transfer of whole pages between a file and memory in at most two pieces. Owned by the caller,
// who neither moves nor changes it while it is under way.
struct IoRequest {
  bool write = false;
  std::uint64_t offset = 0;  // in the file
  std::size_t bytes = 0;     // of all pieces
  std::array<iovec, 2> pieces{};
  unsigned piece_count = 1;
};

struct IoCompletion {
  IoRequest* request = nullptr;
  int result = 0;  // bytes moved, or a negated errno
};

// What a back end obtained of what it asked for.
struct BackendFacts {
  const char* name = "";             // "io_uring", "threads", "simulator"
  std::size_t buffer_bytes = 0;      // of BackendOptions::buffers
  std::size_t registered_bytes = 0;  // of them, pinned with the kernel
  bool registered_file = false;
  unsigned ring_flags = 0;       // IORING_SETUP_*
  std::size_t memory_bytes = 0;  // of its own
};

// "io_uring (file registered, 8.0MiB of 1.0GiB of buffers registered)", for the log.
[[nodiscard]] std::string describe(const BackendFacts& facts);

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  IoBackend(const IoBackend&) = delete;
  IoBackend& operator=(const IoBackend&) = delete;

  // Notes a request; at most the back end's depth may be under way. It is handed over with the
  // others at the next wait().
  virtual void queue(IoRequest& request) = 0;

  // Hands over what was queued and sleeps until a request has completed, wake() was called (also
  // before: wakes are kept, not counted), or the timeout is over. Returns how many completions it
  // wrote, at most the span's size; the rest comes with the next call.
  [[nodiscard]] virtual std::size_t wait(std::span<IoCompletion> completions,
                                         std::optional<std::int64_t> timeout_ns) = 0;

  // Any thread: makes the present or the next wait() return.
  virtual void wake() = 0;

  // What has not been started yet need not be: it completes with -ECANCELED, where the back end
  // can still hold it back. The rest completes as ever.
  virtual void cancel() = 0;

  // The clock that timeouts are of. The simulator's is virtual.
  [[nodiscard]] virtual std::int64_t now_ns() const = 0;

  [[nodiscard]] virtual BackendFacts facts() const = 0;

 protected:
  IoBackend() = default;
};

struct BackendOptions {
  unsigned depth = 8;  // requests under way, at most
  // Memory that requests will mostly use (arenas, headers): registered with the kernel as far as
  // the limit of locked memory allows.
  std::span<const std::span<std::byte>> buffers{};
};

using BackendFactory =
    std::function<Result<std::unique_ptr<IoBackend>>(BlockFile& file, const BackendOptions&)>;

// Errors: io_uring is forbidden or missing.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_uring_backend(BlockFile& file,
                                                                    const BackendOptions& options);
// Errors: the system starts no more threads.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_thread_backend(BlockFile& file,
                                                                     const BackendOptions& options);
// io_uring; where the system has none for us, threads, with a line in the log that says why.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_system_backend(BlockFile& file,
                                                                     const BackendOptions& options);

}  // namespace headrace::tiers::nvme
