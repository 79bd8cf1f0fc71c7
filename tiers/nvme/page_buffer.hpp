// Page-aligned memory of the I/O layer's own: headers and bounce buffers, a few pages to a MiB.
//
// Invariant: mapped at creation, unmapped once, zeroed by the system. Tiles never live here; they
// live in arenas (tiers/memory.hpp). Thread: as a plain value. Failure: create() returns an Error.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "core/error.hpp"

namespace headrace::tiers::nvme {

class PageBuffer {
 public:
  PageBuffer() = default;
  // `bytes` is rounded up to a page.
  [[nodiscard]] static Result<PageBuffer> create(std::size_t bytes);

  PageBuffer(PageBuffer&& source) noexcept : bytes_(std::exchange(source.bytes_, {})) {}

  PageBuffer& operator=(PageBuffer&& source) noexcept;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  ~PageBuffer();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace headrace::tiers::nvme
