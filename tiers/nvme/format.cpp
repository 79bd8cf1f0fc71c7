#include "tiers/nvme/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/assert.hpp"

namespace headrace::tiers::nvme::format {
namespace {

template <class T>
T load(std::span<const std::byte> bytes, std::size_t offset = 0) {
  HEADRACE_ASSERT(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset,
                  "a struct is read within its buffer");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
void store(std::span<std::byte> bytes, std::size_t offset, const T& value) {
  HEADRACE_ASSERT(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset,
                  "a struct is written within its buffer");
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

// A checksummed page run ends with the XXH3 of everything before it.
void seal(std::span<std::byte> pages) {
  const std::uint64_t sum = hash_bytes(pages.first(pages.size() - kSumBytes));
  store(pages, pages.size() - kSumBytes, sum);
}

bool sealed(std::span<const std::byte> pages) {
  return load<std::uint64_t>(pages, pages.size() - kSumBytes) ==
         hash_bytes(pages.first(pages.size() - kSumBytes));
}

bool within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t limit) {
  return offset <= limit && bytes <= limit - offset;
}

Error damaged(const std::string& name, const std::string& why) {
  return corrupt_error(fmt::format("nvme tier: the store '{}' is damaged", name))
      .with_why(why)
      .with_hint("restore it from a copy, or remove it: headrace store remove");
}

Error made_by_newer(const std::string& name, const std::string& why) {
  return usage_error(fmt::format("nvme tier: cannot use the store '{}'", name))
      .with_why(why)
      .with_hint("use the headrace that made it, or a later one");
}

// What is wrong with the fields that later code computes with; empty if nothing.
std::string superblock_problem(const Superblock& block) {
  const bool creating = (block.flags & kFlagCreating) != 0;
  if (block.page_bytes != kPageBytes || block.sum_block_bytes != kSumBlockBytes) {
    return fmt::format(
        "pages of {} bytes and sub-blocks of {}", block.page_bytes, block.sum_block_bytes);
  }
  if (block.slots != 1 || block.folder_count != 1 || block.folder_index != 0) {
    return fmt::format(
        "{} slots in folder {} of {}", block.slots, block.folder_index, block.folder_count);
  }
  if (creating) {
    return {};
  }
  const std::uint64_t file_bytes = block.file_bytes;
  if (file_bytes > kFileBytesMax || file_bytes % kPageBytes != 0) {
    return fmt::format("a file of {} bytes", file_bytes);
  }
  const auto bad_region = [&](const Region& region, std::uint64_t bytes_max) {
    return region.offset % kPageBytes != 0 || region.bytes > bytes_max ||
           !within(region.offset, region.bytes, block.extents_offset);
  };
  if (block.extents_offset > file_bytes || block.extents_offset % kPageBytes != 0) {
    return fmt::format("extents at {} in {} bytes", block.extents_offset, file_bytes);
  }
  if (block.tile_count > block.extents_offset / sizeof(TileEntry) ||
      block.tile_table.bytes != block.tile_count * sizeof(TileEntry) ||
      bad_region(block.tile_table, block.extents_offset) ||
      bad_region(block.tensor_table, kTensorTableBytesMax) ||
      bad_region(block.run_dir, kRunDirBytesMax)) {
    return "a table lies outside of its place";
  }
  for (const std::uint64_t offset : block.map_extent_offsets) {
    if (offset % kPageBytes != 0 || !within(offset, block.map_extent_bytes, block.extents_offset)) {
      return "a map extent lies outside of its place";
    }
  }
  const bool in_a_map_extent = block.map.offset == block.map_extent_offsets[0] ||
                               block.map.offset == block.map_extent_offsets[1];
  if (block.generation > 0 && (!in_a_map_extent || block.map.bytes > block.map_extent_bytes ||
                               block.map.bytes < sizeof(MapHeader))) {
    return "the commit record lies outside of its place";
  }
  return {};
}

// The first field of an extent header that is not what is expected, in words.
std::optional<std::string> identity_problem(const ExtentIdentity& want,
                                            std::optional<std::int64_t> step,
                                            const ExtentHeader& is) {
  const auto differs = [](const char* field, auto have, auto expected) {
    return fmt::format("its header says {} {}, expected {}", field, have, expected);
  };
  if (is.store_id != want.store_id) {
    return differs("store", store_id_text(is.store_id), store_id_text(want.store_id));
  }
  if (is.rank != want.rank || is.world != want.world) {
    return differs("rank",
                   fmt::format("{} of {}", is.rank, is.world),
                   fmt::format("{} of {}", want.rank, want.world));
  }
  if (is.unit != want.key.unit) {
    return differs("unit", is.unit, want.key.unit);
  }
  if (is.tile != want.key.tile) {
    return differs("tile", is.tile, want.key.tile);
  }
  if (is.kind != static_cast<std::uint32_t>(want.key.kind)) {
    return differs("kind", is.kind, static_cast<std::uint32_t>(want.key.kind));
  }
  if (is.slot != want.slot) {
    return differs("slot", is.slot, want.slot);
  }
  if (is.layout_tag != want.layout_tag) {
    return "its header says another layout tag";
  }
  if (is.folder_index != want.folder_index) {
    return differs("folder", is.folder_index, want.folder_index);
  }
  if (is.offset != want.offset) {
    return differs("offset", is.offset, want.offset);
  }
  if (is.payload_bytes != want.payload_bytes) {
    return differs("length", is.payload_bytes, want.payload_bytes);
  }
  if (is.sum_block_bytes != kSumBlockBytes || is.sum_count != sum_count(want.payload_bytes)) {
    return differs("sub-blocks", is.sum_count, sum_count(want.payload_bytes));
  }
  if (step && is.step != *step) {
    return differs("step", is.step, *step) +
           " (an older or newer write than the one that is wanted)";
  }
  return std::nullopt;
}

}  // namespace

StoreId store_id_bytes(const Id128& id) {
  StoreId bytes{};
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::uint8_t>(id.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::uint8_t>(id.low >> (56 - 8 * i));
  }
  return bytes;
}

std::string store_id_text(const StoreId& id) {
  Id128 value;
  for (std::size_t i = 0; i < 8; ++i) {
    value.high = (value.high << 8) | id[i];
    value.low = (value.low << 8) | id[8 + i];
  }
  return value.hex();
}

std::array<char, kLayoutTagBytes> layout_tag_bytes(std::string_view tag) {
  HEADRACE_ASSERT(tag.size() <= kLayoutTagBytes, "a layout tag fits in its field");
  std::array<char, kLayoutTagBytes> bytes{};
  std::copy(tag.begin(), tag.end(), bytes.begin());
  return bytes;
}

std::string layout_tag_text(const std::array<char, kLayoutTagBytes>& bytes) {
  return {bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0')};
}

bool has_superblock_magic(std::span<const std::byte> page) {
  return page.size() >= sizeof(Magic) && load<Magic>(page) == kSuperblockMagic;
}

void encode_superblock(const Superblock& superblock, std::span<std::byte> page) {
  HEADRACE_ASSERT(page.size() == kPageBytes, "a superblock is one page");
  store(page, 0, superblock);
  seal(page);
}

Result<Superblock> parse_superblock(std::span<const std::byte> page, const std::string& name) {
  HEADRACE_ASSERT(page.size() == kPageBytes, "a superblock is one page");
  const auto block = load<Superblock>(page);
  if (block.magic != kSuperblockMagic) {
    return usage_error(fmt::format("nvme tier: '{}' is not a headrace store", name))
        .with_why("it does not begin as one");
  }
  if (!sealed(page)) {
    return damaged(name, "a superblock's checksum is wrong");
  }
  if (block.format_version > kVersion) {
    return made_by_newer(
        name,
        fmt::format(
            "its format is version {}, this headrace knows {}", block.format_version, kVersion));
  }
  const std::uint64_t unknown = block.features_incompatible & ~kIncompatibleFeaturesKnown;
  if (unknown != 0) {
    return made_by_newer(
        name, fmt::format("it uses features that this headrace does not know ({:#x})", unknown));
  }
  if (std::string problem = superblock_problem(block);
      block.format_version == 0 || !problem.empty()) {
    return damaged(name, "its superblock says " + (problem.empty() ? "version 0" : problem));
  }
  return block;
}

void begin_extent_header(const ExtentIdentity& identity,
                         std::int64_t step,
                         std::span<std::byte> header) {
  HEADRACE_ASSERT(header.size() == header_bytes(identity.payload_bytes),
                  "the header has its length");
  ExtentHeader fields{};
  fields.magic = kExtentMagic;
  fields.format_version = identity.format_version;
  fields.header_bytes = static_cast<std::uint32_t>(header.size());
  fields.store_id = identity.store_id;
  fields.rank = identity.rank;
  fields.world = identity.world;
  fields.unit = identity.key.unit;
  fields.tile = identity.key.tile;
  fields.kind = static_cast<std::uint32_t>(identity.key.kind);
  fields.slot = identity.slot;
  fields.layout_tag = identity.layout_tag;
  fields.step = step;
  fields.folder_index = identity.folder_index;
  fields.offset = identity.offset;
  fields.payload_bytes = identity.payload_bytes;
  fields.sum_block_bytes = kSumBlockBytes;
  fields.sum_count = static_cast<std::uint32_t>(sum_count(identity.payload_bytes));
  std::memset(header.data(), 0, header.size());
  store(header, 0, fields);
}

void set_extent_sum(std::span<std::byte> header, std::uint64_t block, std::uint64_t sum) {
  store(header, sizeof(ExtentHeader) + block * kSumBytes, sum);
}

void seal_extent_header(std::span<std::byte> header) {
  seal(header);
}

void encode_extent_header(const ExtentIdentity& identity,
                          std::int64_t step,
                          std::span<const std::byte> payload,
                          std::span<std::byte> header) {
  HEADRACE_ASSERT(payload.size() == identity.payload_bytes, "the payload has the extent's length");
  begin_extent_header(identity, step, header);
  for (std::uint64_t block = 0; block < sum_count(payload.size()); ++block) {
    set_extent_sum(header, block, sub_block_sum(payload, block));
  }
  seal_extent_header(header);
}

std::uint64_t sub_block_sum(std::span<const std::byte> payload, std::uint64_t block) {
  const std::uint64_t begin = block * kSumBlockBytes;
  return hash_bytes(payload.subspan(begin, std::min(kSumBlockBytes, payload.size() - begin)));
}

std::optional<std::string> extent_header_problem(const ExtentIdentity& identity,
                                                 std::optional<std::int64_t> expected_step,
                                                 std::span<const std::byte> header) {
  HEADRACE_ASSERT(header.size() == header_bytes(identity.payload_bytes),
                  "the header has its length");
  const auto fields = load<ExtentHeader>(header);
  if (fields.magic != kExtentMagic) {
    return "there is no extent header at its place";
  }
  if (!sealed(header)) {
    return "its header's checksum is wrong";
  }
  if (fields.format_version != identity.format_version ||
      (fields.features_incompatible & ~kIncompatibleFeaturesKnown) != 0) {
    return fmt::format("its header is of format version {} with features {:#x}",
                       fields.format_version,
                       fields.features_incompatible);
  }
  if (fields.header_bytes != header.size()) {
    return fmt::format(
        "its header says that it has {} bytes, expected {}", fields.header_bytes, header.size());
  }
  return identity_problem(identity, expected_step, fields);
}

std::uint64_t extent_sum(std::span<const std::byte> header, std::uint64_t block) {
  return load<std::uint64_t>(header, sizeof(ExtentHeader) + block * kSumBytes);
}

std::int64_t extent_step(std::span<const std::byte> header) {
  return load<ExtentHeader>(header).step;
}

std::uint64_t map_bytes(std::uint64_t tile_count, std::uint64_t run_state_bytes) {
  return sizeof(MapHeader) + tile_count * sizeof(MapEntry) + run_state_bytes;
}

std::vector<std::byte> encode_map(const StoreId& id, const Map& map) {
  std::vector<std::byte> bytes(map_bytes(map.entries.size(), map.run_state.size()));
  MapHeader header{};
  header.magic = kMapMagic;
  header.format_version = kVersion;
  header.header_bytes = sizeof(MapHeader);
  header.store_id = id;
  header.generation = map.generation;
  header.step = map.step;
  header.update_count = map.update_count;
  header.tile_count = map.entries.size();
  header.run_state_bytes = map.run_state.size();
  store(std::span(bytes), 0, header);
  const std::size_t entries_bytes = map.entries.size() * sizeof(MapEntry);
  if (entries_bytes > 0) {
    std::memcpy(bytes.data() + sizeof(MapHeader), map.entries.data(), entries_bytes);
  }
  if (!map.run_state.empty()) {
    std::memcpy(bytes.data() + sizeof(MapHeader) + entries_bytes,
                map.run_state.data(),
                map.run_state.size());
  }
  return bytes;
}

Result<Map> parse_map(const Superblock& superblock,
                      std::span<const std::byte> bytes,
                      const std::string& name) {
  if (bytes.size() < sizeof(MapHeader) || hash_bytes(bytes) != superblock.map.xxh3) {
    return damaged(name,
                   fmt::format("the checksum of the commit record at offset {} is wrong",
                               superblock.map.offset));
  }
  const auto header = load<MapHeader>(bytes);
  if (header.magic != kMapMagic || header.format_version != superblock.format_version ||
      header.header_bytes != sizeof(MapHeader) || header.store_id != superblock.store_id ||
      header.generation != superblock.generation || header.tile_count != superblock.tile_count ||
      header.run_state_bytes > kRunStateBytesMax ||
      map_bytes(header.tile_count, header.run_state_bytes) != bytes.size()) {
    return damaged(
        name,
        fmt::format("the commit record at offset {} is not this store's", superblock.map.offset));
  }
  Map map{.generation = header.generation,
          .step = header.step,
          .update_count = header.update_count,
          .entries = std::vector<MapEntry>(header.tile_count),
          .run_state = {}};
  const std::size_t entries_bytes = map.entries.size() * sizeof(MapEntry);
  if (entries_bytes > 0) {
    std::memcpy(map.entries.data(), bytes.data() + sizeof(MapHeader), entries_bytes);
  }
  const std::span<const std::byte> run_state = bytes.subspan(sizeof(MapHeader) + entries_bytes);
  map.run_state.assign(reinterpret_cast<const char*>(run_state.data()), run_state.size());
  if (std::any_of(map.entries.begin(), map.entries.end(), [](const MapEntry& entry) {
        return entry.slot != 0;
      })) {
    return damaged(name, "the commit record names a slot that the store does not have");
  }
  return map;
}

std::vector<std::byte> encode_tile_table(std::span<const TileEntry> tiles) {
  const std::span<const std::byte> bytes = std::as_bytes(tiles);
  return {bytes.begin(), bytes.end()};
}

Result<std::vector<TileEntry>> parse_tile_table(const Superblock& superblock,
                                                std::span<const std::byte> bytes,
                                                const std::string& name) {
  if (bytes.size() != superblock.tile_table.bytes ||
      hash_bytes(bytes) != superblock.tile_table.xxh3) {
    return damaged(name,
                   fmt::format("the checksum of the tile table at offset {} is wrong",
                               superblock.tile_table.offset));
  }
  std::vector<TileEntry> tiles(superblock.tile_count);
  if (!tiles.empty()) {
    std::memcpy(tiles.data(), bytes.data(), bytes.size());
  }
  std::uint64_t end = superblock.extents_offset;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const TileEntry& tile = tiles[i];
    const bool in_order =
        i == 0 || std::pair(tiles[i - 1].unit, tiles[i - 1].tile) < std::pair(tile.unit, tile.tile);
    const bool sized = tile.param_bytes > 0 && tile.param_bytes <= kPayloadBytesMax &&
                       tile.state_bytes <= kPayloadBytesMax && tile.param_bytes % kPageBytes == 0 &&
                       tile.state_bytes % kPageBytes == 0;
    if (!in_order || !sized || tile.folder_index != 0 || tile.offset < end ||
        tile.offset % kPageBytes != 0 ||
        !within(tile.offset, tile_bytes(tile), superblock.file_bytes)) {
      return damaged(name, fmt::format("entry {} of its tile table makes no sense", i));
    }
    end = tile.offset + tile_bytes(tile);
  }
  return tiles;
}

std::uint64_t tile_bytes(const TileEntry& tile) {
  const std::uint64_t state =
      tile.state_bytes == 0 ? 0 : header_bytes(tile.state_bytes) + tile.state_bytes;
  return header_bytes(tile.param_bytes) + tile.param_bytes + state;
}

Result<Layout> make_layout(const StoreContents& contents) {
  const auto refuse = [](std::string why) {
    return usage_error("nvme tier: cannot make a store").with_why(std::move(why));
  };
  if (contents.layout_tag.size() > kLayoutTagBytes ||
      contents.tensor_table.size() > kTensorTableBytesMax ||
      contents.run_dir.size() > kRunDirBytesMax) {
    return refuse(
        fmt::format("its layout tag has {} bytes of {}, its tensor table {} of {}, the "
                    "run directory's name {} of {}",
                    contents.layout_tag.size(),
                    kLayoutTagBytes,
                    contents.tensor_table.size(),
                    kTensorTableBytesMax,
                    contents.run_dir.size(),
                    kRunDirBytesMax));
  }
  Layout layout;
  const std::uint64_t tile_count = contents.tiles.size();
  layout.map_extent_bytes = round_up(map_bytes(tile_count, kRunStateBytesMax), kRegionAlignBytes);
  layout.tile_table_offset = kMapOffset + 2 * layout.map_extent_bytes;
  layout.tensor_table_offset =
      round_up(layout.tile_table_offset + tile_count * sizeof(TileEntry), kPageBytes);
  layout.run_dir_offset =
      round_up(layout.tensor_table_offset + contents.tensor_table.size(), kPageBytes);
  layout.extents_offset =
      round_up(layout.run_dir_offset + contents.run_dir.size(), kRegionAlignBytes);
  layout.tiles.reserve(tile_count);
  std::uint64_t end = layout.extents_offset;
  const TileBytes* previous = nullptr;
  for (const TileBytes& tile : contents.tiles) {
    if (previous != nullptr &&
        std::pair(previous->unit, previous->tile) >= std::pair(tile.unit, tile.tile)) {
      return refuse(fmt::format("tile {} of unit {} is out of order", tile.tile, tile.unit));
    }
    if (tile.param_bytes == 0 || tile.param_bytes % kPageBytes != 0 ||
        tile.state_bytes % kPageBytes != 0 || tile.param_bytes > kPayloadBytesMax ||
        tile.state_bytes > kPayloadBytesMax) {
      return refuse(
          fmt::format("tile {} of unit {} has {} bytes of parameters and {} of state: "
                      "both must be multiples of {}, and at most {}",
                      tile.tile,
                      tile.unit,
                      tile.param_bytes,
                      tile.state_bytes,
                      kPageBytes,
                      kPayloadBytesMax));
    }
    layout.tiles.push_back(TileEntry{.unit = tile.unit,
                                     .tile = tile.tile,
                                     .folder_index = 0,
                                     .reserved = 0,
                                     .offset = end,
                                     .param_bytes = tile.param_bytes,
                                     .state_bytes = tile.state_bytes});
    end += tile_bytes(layout.tiles.back());
    if (end > kFileBytesMax) {
      return refuse(fmt::format("it would have more than {} bytes", kFileBytesMax));
    }
    previous = &tile;
  }
  layout.file_bytes = end;
  return layout;
}

ExtentPlace extent_place(const TileEntry& tile,
                         ExtentKind kind,
                         std::uint32_t slot,
                         std::uint64_t slot_bytes) {
  ExtentPlace place;
  place.folder = tile.folder_index;
  place.slot = slot;
  place.offset = tile.offset + slot * slot_bytes;
  place.payload_bytes = tile.param_bytes;
  place.header_bytes = static_cast<std::uint32_t>(header_bytes(tile.param_bytes));
  if (kind == ExtentKind::kState) {
    HEADRACE_ASSERT(tile.state_bytes > 0, "a frozen tile has no state extent");
    place.offset += place.header_bytes + place.payload_bytes;
    place.payload_bytes = tile.state_bytes;
    place.header_bytes = static_cast<std::uint32_t>(header_bytes(tile.state_bytes));
  }
  return place;
}

}  // namespace headrace::tiers::nvme::format
