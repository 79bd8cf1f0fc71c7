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

bool bad_region(const Region& region, std::uint64_t bytes_max, std::uint64_t limit) {
  return region.offset % kPageBytes != 0 || region.bytes > bytes_max ||
         !within(region.offset, region.bytes, limit);
}

// What is wrong with the fields that say how many there are of everything.
std::string shape_problem(const Superblock& block) {
  if (block.page_bytes != kPageBytes || block.sum_block_bytes != kSumBlockBytes) {
    return fmt::format(
        "pages of {} bytes and sub-blocks of {}", block.page_bytes, block.sum_block_bytes);
  }
  const bool first_version = block.format_version == 1;
  if (block.slots == 0 || block.slots > (first_version ? 1 : kSlotsMax)) {
    return fmt::format("{} slots", block.slots);
  }
  if (first_version && has_undo_slot(block)) {
    return "an undo slot";
  }
  if (block.folder_count == 0 || block.folder_count > (first_version ? 1 : kFoldersMax) ||
      block.folder_index >= block.folder_count) {
    return fmt::format("folder {} of {}", block.folder_index, block.folder_count);
  }
  return {};
}

// The slots of version 1: one, as far as the file goes.
std::uint64_t slot_bytes_of(const Superblock& block) {
  return block.format_version == 1 ? block.file_bytes - block.extents_offset : block.slot_bytes;
}

// What is wrong with the fields that later code computes with; empty if nothing.
std::string superblock_problem(const Superblock& block) {
  if (std::string problem = shape_problem(block); !problem.empty()) {
    return problem;
  }
  if ((block.flags & kFlagCreating) != 0) {
    return bad_region(block.run_dir, kRunDirBytesMax, kFileBytesMax) ? "a run folder out of place"
                                                                     : "";
  }
  const std::uint64_t file_bytes = block.file_bytes;
  if (file_bytes > kFileBytesMax || file_bytes % kPageBytes != 0) {
    return fmt::format("a file of {} bytes", file_bytes);
  }
  if (block.extents_offset > file_bytes || block.extents_offset % kPageBytes != 0) {
    return fmt::format("extents at {} in {} bytes", block.extents_offset, file_bytes);
  }
  const std::uint64_t slot_bytes = slot_bytes_of(block);
  if (slot_bytes % kPageBytes != 0 || slot_bytes > kFileBytesMax ||
      !within(block.extents_offset, physical_slots(block) * slot_bytes, file_bytes)) {
    return fmt::format("slots of {} bytes in {} bytes", slot_bytes, file_bytes);
  }
  const std::uint64_t limit = block.extents_offset;
  if (block.tile_count > limit / sizeof(TileEntry) ||
      block.tile_table.bytes != block.tile_count * sizeof(TileEntry) ||
      bad_region(block.tile_table, limit, limit) ||
      bad_region(block.tensor_table, kTensorTableBytesMax, limit) ||
      bad_region(block.run_dir, kRunDirBytesMax, limit) ||
      bad_region(block.folder_paths, kFolderPathsBytesMax, limit)) {
    return "a table lies outside of its place";
  }
  for (const std::uint64_t offset : block.map_extent_offsets) {
    if (offset % kPageBytes != 0 || !within(offset, block.map_extent_bytes, limit)) {
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
  auto block = load<Superblock>(page);
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
  if (block.format_version == 1) {  // there these bytes are reserved
    block.slot_bytes = 0;
    block.folder_paths = {};
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
  if (fields.format_version != identity.format_version || fields.features_incompatible != 0) {
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

void encode_map(const Superblock& superblock, const Map& map, std::span<std::byte> bytes) {
  HEADRACE_ASSERT(bytes.size() == map_bytes(map.entries.size(), map.run_state.size()),
                  "the commit record has its length");
  MapHeader header{};
  header.magic = kMapMagic;
  header.format_version = superblock.format_version;
  header.header_bytes = sizeof(MapHeader);
  header.store_id = superblock.store_id;
  header.generation = map.generation;
  header.step = map.step;
  header.update_count = map.update_count;
  header.tile_count = map.entries.size();
  header.run_state_bytes = map.run_state.size();
  store(bytes, 0, header);
  const std::size_t entries_bytes = map.entries.size() * sizeof(MapEntry);
  if (entries_bytes > 0) {
    std::memcpy(bytes.data() + sizeof(MapHeader), map.entries.data(), entries_bytes);
  }
  if (!map.run_state.empty()) {
    std::memcpy(bytes.data() + sizeof(MapHeader) + entries_bytes,
                map.run_state.data(),
                map.run_state.size());
  }
}

Result<Map> parse_map(const Superblock& superblock,
                      std::span<const std::byte> bytes,
                      const std::string& name) {
  if (bytes.size() < sizeof(MapHeader) || bytes.size() != superblock.map.bytes ||
      hash_bytes(bytes) != superblock.map.xxh3) {
    return damaged(name,
                   fmt::format("the checksum of the commit record at offset {} is wrong",
                               superblock.map.offset));
  }
  const auto header = load<MapHeader>(bytes);
  if (header.magic != kMapMagic || header.format_version != superblock.format_version ||
      header.features_incompatible != 0 || header.header_bytes != sizeof(MapHeader) ||
      header.store_id != superblock.store_id || header.generation != superblock.generation ||
      header.tile_count != superblock.tile_count || header.run_state_bytes > kRunStateBytesMax ||
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
  const auto no_step = [](const MapEntry& entry) {
    return entry.param_step < 0 || entry.param_step > kStepMax || entry.state_step < -1 ||
           entry.state_step > kStepMax;
  };
  if (std::any_of(map.entries.begin(), map.entries.end(), no_step)) {
    return damaged(name, "the commit record names a step that no write has");
  }
  const std::uint32_t slots = physical_slots(superblock);
  const auto no_slot = [&](const MapEntry& entry) { return entry.slot >= slots; };
  if (std::any_of(map.entries.begin(), map.entries.end(), no_slot)) {
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
  const std::uint64_t limit = superblock.extents_offset + slot_bytes_of(superblock);
  std::vector<std::uint64_t> ends(superblock.folder_count, superblock.extents_offset);
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const TileEntry& tile = tiles[i];
    const bool in_order =
        i == 0 || std::pair(tiles[i - 1].unit, tiles[i - 1].tile) < std::pair(tile.unit, tile.tile);
    const bool sized = tile.param_bytes > 0 && tile.param_bytes <= kPayloadBytesMax &&
                       tile.state_bytes <= kPayloadBytesMax && tile.param_bytes % kPageBytes == 0 &&
                       tile.state_bytes % kPageBytes == 0;
    const bool stored = tile.folder_index < superblock.folder_count;
    // What another folder's file has is for that folder's superblock to say.
    const std::uint64_t end_max =
        tile.folder_index == superblock.folder_index ? limit : kFileBytesMax;
    if (!in_order || !sized || !stored || tile.offset < ends[tile.folder_index] ||
        tile.offset % kPageBytes != 0 ||
        !within(tile.offset, tile_bytes(tile.param_bytes, tile.state_bytes), end_max)) {
      return damaged(name, fmt::format("entry {} of its tile table makes no sense", i));
    }
    ends[tile.folder_index] = tile.offset + tile_bytes(tile.param_bytes, tile.state_bytes);
  }
  return tiles;
}

std::string join_paths(std::span<const std::string> paths) {
  std::string text;
  for (const std::string& path : paths) {
    text += path + "\n";
  }
  return text;
}

std::vector<std::string> split_paths(std::string_view text) {
  std::vector<std::string> paths;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    paths.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return paths;
}

std::uint64_t tile_bytes(std::uint64_t param_bytes, std::uint64_t state_bytes) {
  const std::uint64_t state = state_bytes == 0 ? 0 : header_bytes(state_bytes) + state_bytes;
  return header_bytes(param_bytes) + param_bytes + state;
}

std::vector<std::uint64_t> stored_bytes(std::span<const TileBytes> tiles,
                                        std::uint32_t physical_slots) {
  std::vector<std::uint64_t> bytes;
  bytes.reserve(tiles.size());
  for (const TileBytes& tile : tiles) {
    bytes.push_back(physical_slots * tile_bytes(tile.param_bytes, tile.state_bytes));
  }
  return bytes;
}

namespace {

// Everything before the extents: the same in every folder.
Layout metadata_layout(const StoreContents& contents, std::uint64_t folder_paths_bytes) {
  Layout layout;
  const std::uint64_t tile_count = contents.tiles.size();
  layout.map_extent_bytes = round_up(map_bytes(tile_count, kRunStateBytesMax), kRegionAlignBytes);
  layout.tile_table_offset = kMapOffset + 2 * layout.map_extent_bytes;
  layout.tensor_table_offset =
      round_up(layout.tile_table_offset + tile_count * sizeof(TileEntry), kPageBytes);
  layout.run_dir_offset =
      round_up(layout.tensor_table_offset + contents.tensor_table.size(), kPageBytes);
  layout.folder_paths_offset =
      round_up(layout.run_dir_offset + contents.run_dir.size(), kPageBytes);
  layout.extents_offset =
      round_up(layout.folder_paths_offset + folder_paths_bytes, kRegionAlignBytes);
  return layout;
}

Error cannot_make(std::string why) {
  return usage_error("nvme tier: cannot make a store").with_why(std::move(why));
}

Status check_tile(const TileBytes& tile, const TileBytes* previous) {
  if (previous != nullptr &&
      std::pair(previous->unit, previous->tile) >= std::pair(tile.unit, tile.tile)) {
    return cannot_make(fmt::format("tile {} of unit {} is out of order", tile.tile, tile.unit));
  }
  if (tile.param_bytes == 0 || tile.param_bytes % kPageBytes != 0 ||
      tile.state_bytes % kPageBytes != 0 || tile.param_bytes > kPayloadBytesMax ||
      tile.state_bytes > kPayloadBytesMax) {
    return cannot_make(
        fmt::format("tile {} of unit {} has {} bytes of parameters and {} of state: "
                    "both must be multiples of {}, and at most {}",
                    tile.tile,
                    tile.unit,
                    tile.param_bytes,
                    tile.state_bytes,
                    kPageBytes,
                    kPayloadBytesMax));
  }
  return {};
}

}  // namespace

std::uint64_t extents_offset(const StoreContents& contents, std::uint64_t folder_paths_bytes) {
  return metadata_layout(contents, folder_paths_bytes).extents_offset;
}

Status check_contents(const StoreContents& contents) {
  if (contents.layout_tag.size() > kLayoutTagBytes ||
      contents.tensor_table.size() > kTensorTableBytesMax ||
      contents.run_dir.size() > kRunDirBytesMax) {
    return cannot_make(
        fmt::format("its layout tag has {} bytes of {}, its tensor table {} of {}, the "
                    "run directory's name {} of {}",
                    contents.layout_tag.size(),
                    kLayoutTagBytes,
                    contents.tensor_table.size(),
                    kTensorTableBytesMax,
                    contents.run_dir.size(),
                    kRunDirBytesMax));
  }
  const TileBytes* previous = nullptr;
  for (const TileBytes& tile : contents.tiles) {
    HEADRACE_TRY(check_tile(tile, previous));
    previous = &tile;
  }
  return {};
}

Result<Layout> make_layout(const StoreContents& contents, const LayoutOptions& options) {
  HEADRACE_TRY(check_contents(contents));
  if (options.folder_count == 0 || options.folder_count > kFoldersMax ||
      options.folder_paths.size() > kFolderPathsBytesMax) {
    return cannot_make(fmt::format("it would have {} folders of at most {}, with {} bytes of names",
                                   options.folder_count,
                                   kFoldersMax,
                                   options.folder_paths.size()));
  }
  HEADRACE_ASSERT(options.slots == 1 || options.slots == kSlotsMax, "a tile has one or two slots");
  HEADRACE_ASSERT(options.folder_of.empty() || options.folder_of.size() == contents.tiles.size(),
                  "every tile has a folder");
  Layout layout = metadata_layout(contents, options.folder_paths.size());
  layout.folders.resize(options.folder_count);
  layout.tiles.reserve(contents.tiles.size());
  for (std::size_t i = 0; i < contents.tiles.size(); ++i) {
    const TileBytes& tile = contents.tiles[i];
    const std::uint32_t folder = options.folder_of.empty() ? 0 : options.folder_of[i];
    std::uint64_t& slot_bytes = layout.folders.at(folder).slot_bytes;
    layout.tiles.push_back(TileEntry{.unit = tile.unit,
                                     .tile = tile.tile,
                                     .folder_index = folder,
                                     .reserved = 0,
                                     .offset = layout.extents_offset + slot_bytes,
                                     .param_bytes = tile.param_bytes,
                                     .state_bytes = tile.state_bytes});
    slot_bytes += tile_bytes(tile.param_bytes, tile.state_bytes);
    if (slot_bytes > kFileBytesMax / 4) {
      return cannot_make(fmt::format("it would have more than {} bytes", kFileBytesMax / 4));
    }
  }
  for (FolderLayout& folder : layout.folders) {
    folder.file_bytes = layout.extents_offset +
                        physical_slots(options.slots, options.undo_slot) * folder.slot_bytes;
  }
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
