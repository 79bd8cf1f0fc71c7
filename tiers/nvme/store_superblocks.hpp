// The two superblock copies of a data file. Internal to tiers/nvme.
//
// Invariant: only copies that format::parse_superblock accepts are handed on; that a copy is
// damaged is told, not hidden. Thread: one at a time. Failure: Errors: not a store, its creation
// was interrupted, truncated, damaged (both copies), made by a newer version.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/error.hpp"
#include "tiers/nvme/block_file.hpp"
#include "tiers/nvme/format.hpp"

namespace headrace::tiers::nvme {

struct SuperblockCopies {
  std::array<std::optional<format::Superblock>, 2> blocks;
  std::optional<Error> damaged;  // one copy cannot be used: why

  // The copy that was written last; there is one.
  [[nodiscard]] int newest() const;

  [[nodiscard]] const format::Superblock& newest_block() const {
    return *blocks[static_cast<std::size_t>(newest())];
  }

  // The copy of a commit; the later one, if both are. -1: neither is.
  [[nodiscard]] int of_generation(std::uint64_t generation) const;
};

[[nodiscard]] Result<SuperblockCopies> read_superblocks(BlockFile& file);

// The superblock of a creation that was interrupted, where there is one: it names the run.
[[nodiscard]] std::optional<format::Superblock> read_creating_superblock(BlockFile& file);

// What is where superblocks are, in either copy: one of ours; nothing at all, which is what a crash
// leaves of a creation that had just begun; something else, or it cannot be read.
enum class FileBeginning : std::uint8_t { kStore, kBlank, kOther };
[[nodiscard]] FileBeginning beginning_of(BlockFile& file);

}  // namespace headrace::tiers::nvme
