#include "tiers/nvme/registered_buffers.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace headrace::tiers::nvme {
namespace {

constexpr std::size_t kChunkBytesMax = std::size_t{1} << 30U;
constexpr std::size_t kChunksMax = 1024;  // of kernels before 5.13
constexpr std::size_t kWorthwhileBytes = std::size_t{64} << 10U;

std::uintptr_t address(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

// The first `bytes_max` bytes of the buffers, cut into chunks.
std::vector<iovec> cut(std::span<const std::span<std::byte>> buffers, std::size_t bytes_max) {
  std::vector<iovec> chunks;
  for (std::span<std::byte> rest : buffers) {
    while (!rest.empty() && bytes_max > 0 && chunks.size() < kChunksMax) {
      const std::size_t bytes = std::min({rest.size(), kChunkBytesMax, bytes_max});
      chunks.push_back({rest.data(), bytes});
      rest = rest.subspan(bytes);
      bytes_max -= bytes;
    }
  }
  std::sort(chunks.begin(), chunks.end(), [](const iovec& left, const iovec& right) {
    return address(left.iov_base) < address(right.iov_base);
  });
  return chunks;
}

std::size_t locked_bytes_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return SIZE_MAX;
  }
  return limit.rlim_cur;
}

}  // namespace

RegisteredBuffers::RegisteredBuffers(io_uring* ring,
                                     std::span<const std::span<std::byte>> buffers) {
  std::size_t wanted = 0;
  for (const std::span<std::byte> buffer : buffers) {
    wanted += buffer.size();
  }
  // The limit is tried after all of it, since it does not bind a process with CAP_IPC_LOCK; what
  // others of the same user have locked already counts too, so ever less is tried.
  bool at_limit = false;
  while (wanted > 0 && (!at_limit || wanted >= kWorthwhileBytes)) {
    std::vector<iovec> chunks = cut(buffers, wanted);
    const int result =
        ::io_uring_register_buffers(ring, chunks.data(), static_cast<unsigned>(chunks.size()));
    if (result == 0) {
      chunks_ = std::move(chunks);
      bytes_ = 0;
      for (const iovec& chunk : chunks_) {
        bytes_ += chunk.iov_len;
      }
      return;
    }
    if (result != -ENOMEM) {
      return;  // memory of a kind that this kernel does not pin
    }
    wanted = at_limit ? wanted / 2 : std::min(wanted / 2, locked_bytes_max());
    at_limit = true;
  }
}

std::optional<int> RegisteredBuffers::find(const iovec& piece) const {
  const std::uintptr_t begin = address(piece.iov_base);
  const auto after = std::upper_bound(
      chunks_.begin(), chunks_.end(), begin, [](std::uintptr_t value, const iovec& chunk) {
        return value < address(chunk.iov_base);
      });
  if (after == chunks_.begin()) {
    return std::nullopt;
  }
  const iovec& chunk = *(after - 1);
  if (begin + piece.iov_len > address(chunk.iov_base) + chunk.iov_len) {
    return std::nullopt;
  }
  return static_cast<int>(after - 1 - chunks_.begin());
}

}  // namespace headrace::tiers::nvme
