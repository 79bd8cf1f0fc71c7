// One file of pages with durability: all that a store asks of a medium.
//
// `DataFile` implements it over the system, `SimulatedFile` over memory with faults and power cuts.
// Invariant: every transfer is of whole pages at a page's offset, and is complete or an Error that
// names file and offset; what write() has accepted may be lost or torn by a power cut, page by page
// and in any order, until a sync() that began after it has returned. Thread: one at a time, and the
// thread of the engine beside it for requests that an IoBackend makes. Failure: Errors, see
// data_file.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/error.hpp"

namespace headrace::tiers::nvme {

class BlockFile {
 public:
  BlockFile() = default;
  virtual ~BlockFile() = default;
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  [[nodiscard]] virtual Status read(std::uint64_t offset, std::span<std::byte> target) = 0;
  [[nodiscard]] virtual Status write(std::uint64_t offset, std::span<const std::byte> source) = 0;
  // What was written before is durable when it returns.
  [[nodiscard]] virtual Status sync() = 0;
  // Gives the file its size, with blocks for all of it. Errors: no space.
  [[nodiscard]] virtual Status allocate(std::uint64_t bytes) = 0;
  // Gives back what lies behind the first `bytes`. Nothing to do where the file is no longer.
  [[nodiscard]] virtual Status cut(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> bytes() = 0;

  // For messages.
  [[nodiscard]] virtual const std::string& path() const = 0;
  // Of the system, for back ends that hand requests to it; -1: the file is no file of the system.
  [[nodiscard]] virtual int fd() const = 0;
  [[nodiscard]] virtual bool direct_io() const = 0;
};

}  // namespace headrace::tiers::nvme
