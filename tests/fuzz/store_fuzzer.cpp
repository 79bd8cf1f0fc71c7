// One parser of a store's bytes under libFuzzer; HEADRACE_FUZZ_PARSER says which.
//
// Invariant: whatever the input is, the parser returns; what it accepts lies within the bounds that
// later code relies on. Thread: one. Failure: abort, which libFuzzer reports with its input.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tiers/nvme/format.hpp"

namespace headrace::tiers::nvme {
namespace {

void require(bool fact) {
  if (!fact) {
    std::abort();
  }
}

bool inside(const format::Region& region, std::uint64_t limit) {
  return region.offset <= limit && region.bytes <= limit - region.offset;
}

// Pages as an input, zeros after its end.
std::vector<std::byte> padded(std::span<const std::byte> input, std::size_t bytes) {
  std::vector<std::byte> page(bytes);
  std::copy_n(input.begin(), std::min(bytes, input.size()), page.begin());
  return page;
}

void check_superblock(std::span<const std::byte> page) {
  const Result<format::Superblock> block = format::parse_superblock(page, "fuzz");
  if (!block || (block->flags & format::kFlagCreating) != 0) {
    return;
  }
  require(block->slots >= 1 && block->slots <= format::kSlotsMax);
  require(block->folder_index < block->folder_count);
  require(block->extents_offset <= block->file_bytes);
  require(format::physical_slots(*block) <= block->slots + 1);
  require(format::physical_slots(*block) * block->slot_bytes <=
          block->file_bytes - block->extents_offset);
  for (const format::Region& region :
       {block->tile_table, block->tensor_table, block->run_dir, block->folder_paths}) {
    require(inside(region, block->extents_offset));
  }
  require(block->generation == 0 || inside(block->map, block->extents_offset));
}

[[maybe_unused]] void fuzz_superblock(std::span<const std::byte> input) {
  std::vector<std::byte> page = padded(input, kPageBytes);
  check_superblock(page);
  format::Superblock block{};
  std::copy(page.begin(), page.end(), reinterpret_cast<std::byte*>(&block));
  block.magic = format::kSuperblockMagic;
  format::encode_superblock(block, page);
  check_superblock(page);
}

format::Superblock small_superblock() {
  format::Superblock block{};
  block.format_version = format::kVersion;
  block.slots = 2;
  block.folder_count = 2;
  block.extents_offset = std::uint64_t{4} << 20U;
  block.slot_bytes = std::uint64_t{1} << 30U;
  block.file_bytes = block.extents_offset + 2 * block.slot_bytes;
  return block;
}

void check_map(const format::Superblock& block, std::span<const std::byte> input) {
  const Result<format::Map> map = format::parse_map(block, input, "fuzz");
  if (!map) {
    return;
  }
  require(map->entries.size() == block.tile_count);
  for (const format::MapEntry& entry : map->entries) {
    require(entry.slot < format::physical_slots(block));
    require(entry.param_step >= 0 && entry.param_step <= format::kStepMax);
    require(entry.state_step >= -1 && entry.state_step <= format::kStepMax);
  }
}

[[maybe_unused]] void fuzz_map(std::span<const std::byte> input) {
  format::Superblock block = small_superblock();
  block.generation = 1;
  block.map.bytes = input.size();
  block.map.xxh3 = hash_bytes(input);
  for (const std::uint64_t features : {std::uint64_t{0}, format::kFeatureUndoSlot}) {
    block.features_incompatible = features;
    for (block.tile_count = 0; block.tile_count < 5; ++block.tile_count) {
      check_map(block, input);
    }
  }
}

[[maybe_unused]] void fuzz_tile_table(std::span<const std::byte> input) {
  format::Superblock block = small_superblock();
  block.tile_count = input.size() / sizeof(format::TileEntry);
  const std::span<const std::byte> table =
      input.first(block.tile_count * sizeof(format::TileEntry));
  block.tile_table.bytes = table.size();
  block.tile_table.xxh3 = hash_bytes(table);
  const auto tiles = format::parse_tile_table(block, table, "fuzz");
  if (!tiles) {
    return;
  }
  for (const format::TileEntry& tile : *tiles) {
    const ExtentPlace param = format::extent_place(tile, ExtentKind::kParam, 1, block.slot_bytes);
    require(param.folder < block.folder_count);
    if (param.folder == block.folder_index) {
      require(param.offset + format::tile_bytes(tile.param_bytes, tile.state_bytes) <=
              block.file_bytes);
    }
  }
}

[[maybe_unused]] void fuzz_extent_header(std::span<const std::byte> input) {
  format::ExtentIdentity identity;
  identity.offset = 9 * kPageBytes;
  identity.payload_bytes = 3 * kSumBlockBytes + kPageBytes;
  std::vector<std::byte> header = padded(input, format::header_bytes(identity.payload_bytes));
  static_cast<void>(format::extent_header_problem(identity, 5, header));
  format::seal_extent_header(header);
  if (!format::extent_header_problem(identity, std::nullopt, header)) {
    static_cast<void>(format::extent_step(header));
    for (std::uint64_t i = 0; i < format::sum_count(identity.payload_bytes); ++i) {
      static_cast<void>(format::extent_sum(header, i));
    }
  }
}

}  // namespace
}  // namespace headrace::tiers::nvme

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headrace::tiers::nvme::HEADRACE_FUZZ_PARSER(std::as_bytes(std::span(data, size)));
  return 0;
}
