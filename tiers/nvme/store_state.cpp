#include "tiers/nvme/store_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/assert.hpp"
#include "core/hash.hpp"

namespace headrace::tiers::nvme {

const char* kind_name(ExtentKind kind) {
  return kind == ExtentKind::kParam ? "param" : "state";
}

Status StoreState::take_tiles(std::vector<format::TileEntry> entries) {
  tiles = std::move(entries);
  steps = std::make_unique<std::atomic<std::int64_t>[]>(2 * tiles.size());
  contents.tiles.clear();
  contents.tiles.reserve(tiles.size());
  std::uint64_t payload_bytes_max = 0;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    steps[2 * i].store(kNeverWritten, std::memory_order_relaxed);
    steps[2 * i + 1].store(kNeverWritten, std::memory_order_relaxed);
    contents.tiles.push_back(TileBytes{.unit = tiles[i].unit,
                                       .tile = tiles[i].tile,
                                       .param_bytes = tiles[i].param_bytes,
                                       .state_bytes = tiles[i].state_bytes});
    payload_bytes_max = std::max({payload_bytes_max, tiles[i].param_bytes, tiles[i].state_bytes});
  }
  HEADRACE_ASSIGN(header, PageBuffer::create(format::header_bytes(payload_bytes_max)));
  return {};
}

std::size_t StoreState::tile_index(const ExtentKey& key) const {
  const auto place = std::lower_bound(
      tiles.begin(), tiles.end(), key, [](const format::TileEntry& tile, const ExtentKey& wanted) {
        return std::pair(tile.unit, tile.tile) < std::pair(wanted.unit, wanted.tile);
      });
  HEADRACE_ASSERT(place != tiles.end() && place->unit == key.unit && place->tile == key.tile,
                  "the store has the tile");
  HEADRACE_ASSERT(key.kind == ExtentKind::kParam || place->state_bytes > 0,
                  "a frozen tile has no state extent");
  return static_cast<std::size_t>(place - tiles.begin());
}

std::atomic<std::int64_t>& StoreState::step(const ExtentKey& key) const {
  return steps[2 * tile_index(key) + (key.kind == ExtentKind::kParam ? 0 : 1)];
}

format::ExtentIdentity StoreState::identity(const ExtentKey& key) const {
  const ExtentPlace place = format::extent_place(tiles[tile_index(key)], key.kind);
  return format::ExtentIdentity{.store_id = block.store_id,
                                .rank = block.rank,
                                .world = block.world,
                                .key = key,
                                .slot = 0,
                                .layout_tag = block.layout_tag,
                                .folder_index = block.folder_index,
                                .offset = place.offset,
                                .payload_bytes = place.payload_bytes};
}

std::string StoreState::describe(const ExtentKey& key) const {
  return fmt::format("unit {}, tile {} ({}) of '{}', at offset {}",
                     key.unit,
                     key.tile,
                     kind_name(key.kind),
                     file.path(),
                     format::extent_place(tiles[tile_index(key)], key.kind).offset);
}

Error StoreState::corrupt(const ExtentKey& key, std::string why) const {
  return corrupt_error(fmt::format("nvme tier: corrupt extent: {}", describe(key)))
      .with_why(std::move(why))
      .with_hint(fmt::format("`headrace verify {}` lists everything that is damaged", path));
}

Status StoreState::write_superblock(format::Superblock next) {
  next.sequence = block.sequence + 1;
  const int target = 1 - copy;
  std::array<std::byte, kPageBytes> page{};
  format::encode_superblock(next, page);
  HEADRACE_TRY(file.write(format::kSuperblockOffsets[target], page));
  HEADRACE_TRY(file.sync());
  block = next;
  copy = target;
  return {};
}

Result<std::vector<std::byte>> StoreState::read_region(const format::Region& region) const {
  std::vector<std::byte> bytes(format::round_up(region.bytes, kPageBytes));
  HEADRACE_TRY(file.read(region.offset, bytes));
  bytes.resize(region.bytes);
  return bytes;
}

Status StoreState::write_region(std::uint64_t offset, std::span<const std::byte> bytes) const {
  std::vector<std::byte> pages(format::round_up(bytes.size(), kPageBytes));
  std::copy(bytes.begin(), bytes.end(), pages.begin());
  return file.write(offset, pages);
}

Status StoreState::verify_extent(const ExtentKey& key, bool any_step) const {
  const format::ExtentIdentity want = identity(key);
  const std::span<std::byte> head = header.bytes().first(format::header_bytes(want.payload_bytes));
  HEADRACE_TRY(file.read(want.offset, head));
  std::optional<std::int64_t> step_wanted;
  if (!any_step) {
    step_wanted = step(key).load(std::memory_order_relaxed);
  }
  if (auto problem = format::extent_header_problem(want, step_wanted, head)) {
    return corrupt(key, std::move(*problem));
  }
  const std::span<std::byte> scratch = file.scratch();
  static_assert(kSumBlockBytes % kPageBytes == 0);
  const std::uint64_t chunk = scratch.size() / kSumBlockBytes * kSumBlockBytes;
  for (std::uint64_t begin = 0; begin < want.payload_bytes; begin += chunk) {
    const std::span<std::byte> part = scratch.first(std::min(chunk, want.payload_bytes - begin));
    HEADRACE_TRY(file.read(want.offset + head.size() + begin, part));
    for (std::uint64_t i = 0; i < format::sum_count(part.size()); ++i) {
      const std::uint64_t sub_block = begin / kSumBlockBytes + i;
      if (format::sub_block_sum(part, i) != format::extent_sum(head, sub_block)) {
        return corrupt(key, sub_block_problem(want, sub_block));
      }
    }
  }
  return {};
}

std::string sub_block_problem(const format::ExtentIdentity& extent, std::uint64_t sub_block) {
  const std::uint64_t begin = sub_block * kSumBlockBytes;
  const std::uint64_t end = std::min(begin + kSumBlockBytes, extent.payload_bytes);
  const std::uint64_t payload = extent.offset + format::header_bytes(extent.payload_bytes);
  return fmt::format("the checksum of sub-block {} (bytes {} to {} of the file) is wrong",
                     sub_block,
                     payload + begin,
                     payload + end - 1);
}

}  // namespace headrace::tiers::nvme
