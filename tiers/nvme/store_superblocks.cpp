#include "tiers/nvme/store_superblocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tiers/nvme/data_file.hpp"
#include "tiers/nvme/store_folder.hpp"

namespace headrace::tiers::nvme {
namespace {

using Page = std::array<std::byte, kPageBytes>;

bool all_zeros(std::span<const std::byte> bytes) {
  return std::all_of(
      bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

bool is_creating(const std::optional<format::Superblock>& block) {
  return block && (block->flags & format::kFlagCreating) != 0;
}

// What the two places hold, before it is judged.
struct Found {
  SuperblockCopies copies;
  bool magic = false;
  bool zeros = true;
};

Result<Found> look(BlockFile& file, std::uint64_t file_bytes) {
  Found found;
  for (int copy = 0; copy < 2; ++copy) {
    const std::uint64_t offset = format::kSuperblockOffsets[copy];
    if (offset + kPageBytes > file_bytes) {
      found.zeros = found.zeros && offset >= file_bytes;
      found.copies.damaged = truncated_error(file.path(), file_bytes);
      continue;
    }
    Page page{};
    HEADRACE_TRY(file.read(offset, page));
    found.zeros = found.zeros && all_zeros(page);
    found.magic = found.magic || format::has_superblock_magic(page);
    Result<format::Superblock> block = format::parse_superblock(page, file.path());
    if (block) {
      found.copies.blocks[static_cast<std::size_t>(copy)] = *block;
      continue;
    }
    if (format::has_superblock_magic(page) && block.error().code == ExitCode::kUsage) {
      return std::move(block).error();  // a newer version: the other copy is no way out
    }
    found.copies.damaged = std::move(block).error();
    found.copies.damaged->why += fmt::format(" (superblock copy {}, at offset {})", copy, offset);
  }
  return found;
}

}  // namespace

int SuperblockCopies::newest() const {
  const bool second = blocks[1] && (!blocks[0] || blocks[1]->sequence > blocks[0]->sequence);
  return second ? 1 : 0;
}

int SuperblockCopies::of_generation(std::uint64_t generation) const {
  int found = -1;
  for (int copy = 0; copy < 2; ++copy) {
    const auto& block = blocks[static_cast<std::size_t>(copy)];
    if (block && block->generation == generation &&
        (found < 0 || block->sequence > blocks[static_cast<std::size_t>(found)]->sequence)) {
      found = copy;
    }
  }
  return found;
}

Result<SuperblockCopies> read_superblocks(BlockFile& file) {
  HEADRACE_ASSIGN(const std::uint64_t file_bytes, file.bytes());
  HEADRACE_ASSIGN(Found found, look(file, file_bytes));
  SuperblockCopies& copies = found.copies;
  const bool any = copies.blocks[0] || copies.blocks[1];
  if (found.zeros ||
      (any && is_creating(copies.blocks[static_cast<std::size_t>(copies.newest())]))) {
    return usage_error(cannot_use(file.path()))
        .with_why("the creation of this store was interrupted: it holds nothing")
        .with_hint("remove it: headrace store remove");
  }
  if (!found.magic) {
    return usage_error(fmt::format("nvme tier: '{}' is not a headrace store", file.path()))
        .with_why("neither of its superblocks is there");
  }
  if (!any) {
    return std::move(*copies.damaged);
  }
  for (auto& block : copies.blocks) {
    if (is_creating(block)) {
      block.reset();  // the creation ended with the other copy
    }
  }
  if (file_bytes < copies.newest_block().file_bytes) {
    return truncated_error(file.path(), file_bytes);
  }
  if (copies.damaged) {
    copies.damaged->code = ExitCode::kCorrupt;
  }
  return std::move(copies);
}

std::optional<format::Superblock> read_creating_superblock(BlockFile& file) {
  const Result<std::uint64_t> file_bytes = file.bytes();
  if (!file_bytes) {
    return std::nullopt;
  }
  const Result<Found> found = look(file, *file_bytes);
  if (!found || (!found->copies.blocks[0] && !found->copies.blocks[1])) {
    return std::nullopt;
  }
  const format::Superblock& block = found->copies.newest_block();
  return is_creating(block) ? std::optional(block) : std::nullopt;
}

FileBeginning beginning_of(BlockFile& file) {
  const Result<std::uint64_t> bytes = file.bytes();
  if (!bytes) {
    return FileBeginning::kOther;
  }
  bool zeros = true;
  for (const std::uint64_t offset : format::kSuperblockOffsets) {
    Page page{};
    if (offset + kPageBytes > *bytes) {
      zeros = zeros && offset >= *bytes;
      continue;
    }
    if (!file.read(offset, page)) {
      return FileBeginning::kOther;
    }
    if (format::has_superblock_magic(page)) {
      return FileBeginning::kStore;
    }
    zeros = zeros && all_zeros(page);
  }
  return zeros ? FileBeginning::kBlank : FileBeginning::kOther;
}

}  // namespace headrace::tiers::nvme
