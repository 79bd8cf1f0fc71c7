// Memory that a ring knows beforehand: its pages are looked up and pinned once, not per request.
//
// Invariant: what is registered is a prefix of what was asked, in chunks of at most 1 GiB (the
// kernel's limit), as long as the limit of locked memory allows; find() names a chunk only when it
// holds the piece whole. Thread: the ring's. Failure: none; bytes() says what was obtained.
#pragma once

#include <liburing.h>
#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace headrace::tiers::nvme {

class RegisteredBuffers {
 public:
  RegisteredBuffers() = default;
  // The ring keeps the registration until it ends.
  RegisteredBuffers(io_uring* ring, std::span<const std::span<std::byte>> buffers);

  // The number that the ring has for the memory that holds the piece.
  [[nodiscard]] std::optional<int> find(const iovec& piece) const;

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::vector<iovec> chunks_;  // ascending addresses, as registered
  std::size_t bytes_ = 0;
};

}  // namespace headrace::tiers::nvme
