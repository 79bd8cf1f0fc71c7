#include "tiers/nvme/page_buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "tiers/nvme/format.hpp"

namespace headrace::tiers::nvme {

Result<PageBuffer> PageBuffer::create(std::size_t bytes) {
  PageBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  const std::size_t rounded = format::round_up(bytes, kPageBytes);
  void* memory =
      ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return errno_error(fmt::format("nvme tier: cannot get {} bytes for headers", rounded), errno);
  }
  buffer.bytes_ = {static_cast<std::byte*>(memory), rounded};
  return buffer;
}

PageBuffer& PageBuffer::operator=(PageBuffer&& source) noexcept {
  std::swap(bytes_, source.bytes_);
  return *this;
}

PageBuffer::~PageBuffer() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

}  // namespace headrace::tiers::nvme
