// The bytes of a store's data file, as docs/store_format.md specifies them: fixed little-endian
// structs, and pure functions that make and check them.
//
// Invariant: nothing here touches a file, and no parser trusts a byte that it has not bounded:
// whatever is in the buffer, the answer is a value or an Error. Threads: any. Failure: Error with
// ExitCode::kCorrupt (a sum or a field is wrong) or kUsage (not a store, or made by a newer
// version).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme::format {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

inline constexpr std::uint32_t kVersion = 2;        // what new stores have
inline constexpr std::uint32_t kVersionOldest = 1;  // stores of it are read and written as they are
// Incompatible features of a superblock. Headers of extents and commit records have none.
inline constexpr std::uint64_t kFeatureUndoSlot = 1U << 0;  // one more physical slot than `slots`
inline constexpr std::uint64_t kIncompatibleFeaturesKnown = kFeatureUndoSlot;
inline constexpr std::uint64_t kSuperblockOffsets[2] = {0, std::uint64_t{64} * 1024};
inline constexpr std::uint64_t kMapOffset = std::uint64_t{128} * 1024;  // of map extent 0
inline constexpr std::uint64_t kRegionAlignBytes = std::uint64_t{64} * 1024;
inline constexpr std::uint64_t kRunStateBytesMax = std::uint64_t{1} << 20U;
inline constexpr std::uint64_t kRunDirBytesMax = std::uint64_t{64} * 1024;
inline constexpr std::uint64_t kFolderPathsBytesMax = std::uint64_t{1} << 20U;
inline constexpr std::uint64_t kTensorTableBytesMax = std::uint64_t{256} << 20U;
inline constexpr std::uint64_t kPayloadBytesMax = std::uint64_t{1} << 40U;  // of one extent
inline constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 60U;
inline constexpr std::int64_t kStepMax = std::int64_t{1} << 60U;
inline constexpr std::uint32_t kSlotsMax = 2;  // of commits
inline constexpr std::uint32_t kFoldersMax = 64;
inline constexpr std::size_t kLayoutTagBytes = 32;
inline constexpr std::size_t kSumBytes = sizeof(std::uint64_t);

using StoreId = std::array<std::uint8_t, 16>;
using Magic = std::array<char, 8>;

inline constexpr Magic kSuperblockMagic = {'H', 'E', 'A', 'D', 'R', 'A', 'C', 'E'};
inline constexpr Magic kExtentMagic = {'H', 'R', 'E', 'X', 'T', 'E', 'N', 'T'};
inline constexpr Magic kMapMagic = {'H', 'R', 'C', 'O', 'M', 'M', 'I', 'T'};

// A run of bytes of the file and its XXH3.
struct Region {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t xxh3;
};

inline constexpr std::uint32_t kFlagDirty = 1U << 0;     // written since the last commit
inline constexpr std::uint32_t kFlagCreating = 1U << 1;  // create() has not finished
inline constexpr std::uint32_t kFlagCopy = 1U << 2;      // made by a copy: never an orphan

struct Superblock {
  Magic magic;
  std::uint32_t format_version;
  std::uint32_t page_bytes;
  std::uint64_t features_incompatible;
  std::uint64_t features_compatible;
  StoreId store_id;
  std::uint64_t sequence;
  std::uint64_t generation;
  std::uint32_t flags;
  std::uint32_t slots;
  std::uint32_t rank;
  std::uint32_t world;
  std::uint32_t folder_index;
  std::uint32_t folder_count;
  std::uint32_t sum_block_bytes;
  std::uint32_t reserved_0;
  std::uint64_t file_bytes;
  std::uint64_t extents_offset;
  std::uint64_t tile_count;
  std::uint64_t map_extent_offsets[2];
  std::uint64_t map_extent_bytes;
  Region map;
  Region tile_table;
  Region tensor_table;
  Region run_dir;
  std::uint64_t created_unix_s;
  std::array<char, kLayoutTagBytes> layout_tag;
  // From here on since version 2; zeros in version 1.
  std::uint64_t slot_bytes;  // of all of this folder's tiles: from a tile in slot 0 to it in slot 1
  Region folder_paths;
  std::array<std::uint8_t, 3776> reserved_1;
  std::uint64_t xxh3;
};

static_assert(sizeof(Superblock) == kPageBytes && std::is_trivially_copyable_v<Superblock>);
static_assert(offsetof(Superblock, format_version) == 8);
static_assert(offsetof(Superblock, features_incompatible) == 16);
static_assert(offsetof(Superblock, store_id) == 32);
static_assert(offsetof(Superblock, sequence) == 48);
static_assert(offsetof(Superblock, generation) == 56);
static_assert(offsetof(Superblock, flags) == 64);
static_assert(offsetof(Superblock, rank) == 72);
static_assert(offsetof(Superblock, folder_index) == 80);
static_assert(offsetof(Superblock, sum_block_bytes) == 88);
static_assert(offsetof(Superblock, file_bytes) == 96);
static_assert(offsetof(Superblock, extents_offset) == 104);
static_assert(offsetof(Superblock, tile_count) == 112);
static_assert(offsetof(Superblock, map_extent_offsets) == 120);
static_assert(offsetof(Superblock, map_extent_bytes) == 136);
static_assert(offsetof(Superblock, map) == 144);
static_assert(offsetof(Superblock, tile_table) == 168);
static_assert(offsetof(Superblock, tensor_table) == 192);
static_assert(offsetof(Superblock, run_dir) == 216);
static_assert(offsetof(Superblock, created_unix_s) == 240);
static_assert(offsetof(Superblock, layout_tag) == 248);
static_assert(offsetof(Superblock, slot_bytes) == 280);
static_assert(offsetof(Superblock, folder_paths) == 288);
static_assert(offsetof(Superblock, xxh3) == 4088);

struct TileEntry {
  std::uint32_t unit;
  std::uint32_t tile;
  std::uint32_t folder_index;
  std::uint32_t reserved;
  std::uint64_t offset;  // of the param extent's header, slot 0
  std::uint64_t param_bytes;
  std::uint64_t state_bytes;
};

static_assert(sizeof(TileEntry) == 40 && std::is_trivially_copyable_v<TileEntry>);
static_assert(offsetof(TileEntry, offset) == 16 && offsetof(TileEntry, state_bytes) == 32);

struct MapHeader {
  Magic magic;
  std::uint32_t format_version;
  std::uint32_t header_bytes;
  std::uint64_t features_incompatible;
  std::uint64_t features_compatible;
  StoreId store_id;
  std::uint64_t generation;
  std::int64_t step;
  std::int64_t update_count;
  std::uint64_t tile_count;
  std::uint64_t run_state_bytes;
  std::array<std::uint8_t, 40> reserved;
};

static_assert(sizeof(MapHeader) == 128 && std::is_trivially_copyable_v<MapHeader>);
static_assert(offsetof(MapHeader, store_id) == 32 && offsetof(MapHeader, generation) == 48);
static_assert(offsetof(MapHeader, run_state_bytes) == 80);

struct MapEntry {
  std::uint32_t slot;
  std::uint32_t reserved;
  std::int64_t param_step;
  std::int64_t state_step;  // -1 for a frozen tile
};

static_assert(sizeof(MapEntry) == 24 && std::is_trivially_copyable_v<MapEntry>);
static_assert(offsetof(MapEntry, param_step) == 8 && offsetof(MapEntry, state_step) == 16);

struct ExtentHeader {
  Magic magic;
  std::uint32_t format_version;
  std::uint32_t header_bytes;
  std::uint64_t features_incompatible;
  std::uint64_t features_compatible;
  StoreId store_id;
  std::uint32_t rank;
  std::uint32_t world;
  std::uint32_t unit;
  std::uint32_t tile;
  std::uint32_t kind;
  std::uint32_t slot;
  std::array<char, kLayoutTagBytes> layout_tag;
  std::int64_t step;
  std::uint32_t folder_index;
  std::uint32_t reserved_0;
  std::uint64_t offset;
  std::uint64_t payload_bytes;
  std::uint32_t sum_block_bytes;
  std::uint32_t sum_count;
  std::array<std::uint8_t, 112> reserved_1;
  // sum_count XXH3 values follow, then zeros, then the XXH3 of all bytes before it, which ends the
  // header.
};

static_assert(sizeof(ExtentHeader) == 256 && std::is_trivially_copyable_v<ExtentHeader>);
static_assert(offsetof(ExtentHeader, rank) == 48 && offsetof(ExtentHeader, unit) == 56);
static_assert(offsetof(ExtentHeader, kind) == 64 && offsetof(ExtentHeader, layout_tag) == 72);
static_assert(offsetof(ExtentHeader, step) == 104 && offsetof(ExtentHeader, folder_index) == 112);
static_assert(offsetof(ExtentHeader, offset) == 120);
static_assert(offsetof(ExtentHeader, payload_bytes) == 128);
static_assert(offsetof(ExtentHeader, sum_block_bytes) == 136);

// The slots that a tile has in the file: those of commits, and the undo slot where there is one.
[[nodiscard]] constexpr std::uint32_t physical_slots(std::uint32_t slots, bool undo_slot) {
  return slots + (undo_slot ? 1 : 0);
}

[[nodiscard]] constexpr bool has_undo_slot(const Superblock& block) {
  return (block.features_incompatible & kFeatureUndoSlot) != 0;
}

[[nodiscard]] constexpr std::uint32_t physical_slots(const Superblock& block) {
  return physical_slots(block.slots, has_undo_slot(block));
}

// Sub-blocks of a payload, and the header that holds their sums (a multiple of kPageBytes).
[[nodiscard]] constexpr std::uint64_t sum_count(std::uint64_t payload_bytes) {
  return (payload_bytes + kSumBlockBytes - 1) / kSumBlockBytes;
}

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

[[nodiscard]] constexpr std::uint64_t header_bytes(std::uint64_t payload_bytes) {
  return round_up(sizeof(ExtentHeader) + (sum_count(payload_bytes) + 1) * kSumBytes, kPageBytes);
}

// The id's bytes in the order of its hex digits.
[[nodiscard]] StoreId store_id_bytes(const Id128& id);
[[nodiscard]] std::string store_id_text(const StoreId& id);
[[nodiscard]] std::array<char, kLayoutTagBytes> layout_tag_bytes(std::string_view tag);
[[nodiscard]] std::string layout_tag_text(const std::array<char, kLayoutTagBytes>& bytes);

// A page that begins with the store's magic, whatever the rest of it is.
[[nodiscard]] bool has_superblock_magic(std::span<const std::byte> page);

// Sets the checksum and copies out the page.
void encode_superblock(const Superblock& superblock, std::span<std::byte> page);
// Checks magic, sum, version, features and every field that later code computes with. `name` is
// the file's, for messages.
[[nodiscard]] Result<Superblock> parse_superblock(std::span<const std::byte> page,
                                                  const std::string& name);

// What an extent must be, to be what the reader wants.
struct ExtentIdentity {
  std::uint32_t format_version = kVersion;
  StoreId store_id{};
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  ExtentKey key;
  std::uint32_t slot = 0;
  std::array<char, kLayoutTagBytes> layout_tag{};
  std::uint32_t folder_index = 0;
  std::uint64_t offset = 0;
  std::uint64_t payload_bytes = 0;
};

// Fills `header` (header_bytes(payload.size())) with the identity and the sums of the payload.
void encode_extent_header(const ExtentIdentity& identity,
                          std::int64_t step,
                          std::span<const std::byte> payload,
                          std::span<std::byte> header);

// The same in parts: everything but the sums, each sum, and the header's own checksum at last.
void begin_extent_header(const ExtentIdentity& identity,
                         std::int64_t step,
                         std::span<std::byte> header);
void set_extent_sum(std::span<std::byte> header, std::uint64_t block, std::uint64_t sum);
void seal_extent_header(std::span<std::byte> header);

// nullopt: no problem; otherwise what is wrong, in words ("the header's checksum is wrong").
// `expected_step` empty: any step.
[[nodiscard]] std::optional<std::string> extent_header_problem(
    const ExtentIdentity& identity,
    std::optional<std::int64_t> expected_step,
    std::span<const std::byte> header);
// XXH3 of one sub-block of a payload.
[[nodiscard]] std::uint64_t sub_block_sum(std::span<const std::byte> payload, std::uint64_t block);
// Of a header that extent_header_problem has accepted: the sum of a sub-block, and the step.
[[nodiscard]] std::uint64_t extent_sum(std::span<const std::byte> header, std::uint64_t block);
[[nodiscard]] std::int64_t extent_step(std::span<const std::byte> header);

// The commit record as it lies in a map extent.
struct Map {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  std::int64_t update_count = 0;
  std::vector<MapEntry> entries;
  std::string run_state;
};

[[nodiscard]] std::uint64_t map_bytes(std::uint64_t tile_count, std::uint64_t run_state_bytes);
// Fills `bytes`, which has map_bytes() of the map's entries and run state.
void encode_map(const Superblock& superblock, const Map& map, std::span<std::byte> bytes);
// `superblock` names the record: its place, length, hash and generation.
[[nodiscard]] Result<Map> parse_map(const Superblock& superblock,
                                    std::span<const std::byte> bytes,
                                    const std::string& name);

[[nodiscard]] std::vector<std::byte> encode_tile_table(std::span<const TileEntry> tiles);
// Checks order, that no two extents overlap, and the bounds of those in the superblock's folder.
[[nodiscard]] Result<std::vector<TileEntry>> parse_tile_table(const Superblock& superblock,
                                                              std::span<const std::byte> bytes,
                                                              const std::string& name);

// The paths of a store's folders, as they were when it was made: one a line.
[[nodiscard]] std::string join_paths(std::span<const std::string> paths);
[[nodiscard]] std::vector<std::string> split_paths(std::string_view text);

// Where everything of a new store goes: a pure function of its contents.
struct LayoutOptions {
  std::uint32_t slots = kSlotsMax;
  bool undo_slot = false;
  std::vector<std::uint32_t> folder_of{};  // of each tile; empty: all in folder 0
  std::uint32_t folder_count = 1;
  std::string folder_paths{};
};

struct FolderLayout {
  std::uint64_t slot_bytes = 0;
  std::uint64_t file_bytes = 0;
};

struct Layout {
  std::vector<TileEntry> tiles;
  std::uint64_t map_extent_bytes = 0;
  std::uint64_t tile_table_offset = 0;
  std::uint64_t tensor_table_offset = 0;
  std::uint64_t run_dir_offset = 0;
  std::uint64_t folder_paths_offset = 0;
  std::uint64_t extents_offset = 0;
  std::vector<FolderLayout> folders;
};

// Errors (usage): sizes that are no page multiples, tiles out of order, limits exceeded.
[[nodiscard]] Status check_contents(const StoreContents& contents);
[[nodiscard]] Result<Layout> make_layout(const StoreContents& contents,
                                         const LayoutOptions& options);

// Header and payload of a tile's extents together, in one slot.
[[nodiscard]] std::uint64_t tile_bytes(std::uint64_t param_bytes, std::uint64_t state_bytes);
// What each tile takes of a disk in so many physical slots, and what a folder's file has before its
// first tile.
[[nodiscard]] std::vector<std::uint64_t> stored_bytes(std::span<const TileBytes> tiles,
                                                      std::uint32_t physical_slots);
[[nodiscard]] std::uint64_t extents_offset(const StoreContents& contents,
                                           std::uint64_t folder_paths_bytes);
// Header and payload of an extent, the param's directly followed by the state's.
[[nodiscard]] ExtentPlace extent_place(const TileEntry& tile,
                                       ExtentKind kind,
                                       std::uint32_t slot,
                                       std::uint64_t slot_bytes);

}  // namespace headrace::tiers::nvme::format
