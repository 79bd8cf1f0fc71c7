// The bytes of a store: what is written is read back, and no other bytes pass.
#include "tiers/nvme/format.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/hash.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::expect_contains;
using testing::small_contents;

using Page = std::array<std::byte, kPageBytes>;

// With one slot, in one folder.
Result<format::Layout> layout_of(const StoreContents& contents) {
  format::LayoutOptions options;
  options.slots = 1;
  return format::make_layout(contents, options);
}

format::Superblock valid_superblock() {
  const format::Layout layout = layout_of(small_contents()).value();
  format::Superblock block{};
  block.magic = format::kSuperblockMagic;
  block.format_version = format::kVersion;
  block.page_bytes = kPageBytes;
  block.store_id = format::store_id_bytes(Id128{.high = 0x0123456789abcdef, .low = 42});
  block.sequence = 7;
  block.generation = 3;
  block.slots = 1;
  block.world = 1;
  block.folder_count = 1;
  block.sum_block_bytes = kSumBlockBytes;
  block.file_bytes = layout.folders[0].file_bytes;
  block.slot_bytes = layout.folders[0].slot_bytes;
  block.folder_paths = {layout.folder_paths_offset, 0, 0};
  block.extents_offset = layout.extents_offset;
  block.tile_count = layout.tiles.size();
  block.map_extent_bytes = layout.map_extent_bytes;
  block.map_extent_offsets[0] = format::kMapOffset;
  block.map_extent_offsets[1] = format::kMapOffset + layout.map_extent_bytes;
  const std::vector<std::byte> table = format::encode_tile_table(layout.tiles);
  block.tile_table = {layout.tile_table_offset, table.size(), hash_bytes(table)};
  block.tensor_table = {layout.tensor_table_offset, 0, 0};
  block.run_dir = {layout.run_dir_offset, 0, 0};
  block.map = {format::kMapOffset, sizeof(format::MapHeader), 0};
  return block;
}

// The same store with an undo slot.
format::Superblock with_undo_slot() {
  format::Superblock block = valid_superblock();
  block.features_incompatible = format::kFeatureUndoSlot;
  block.file_bytes += block.slot_bytes;
  return block;
}

Page encoded(const format::Superblock& block) {
  Page page{};
  format::encode_superblock(block, page);
  return page;
}

TEST(Format, ASuperblockReadsBackAndNoFlippedBitPasses) {
  Page page = encoded(valid_superblock());
  const Result<format::Superblock> read = format::parse_superblock(page, "data");
  ASSERT_TRUE(read.has_value()) << format_error(read.error(), true);
  EXPECT_EQ(read->sequence, 7U);
  EXPECT_EQ(format::store_id_text(read->store_id), "0123456789abcdef000000000000002a");
  for (std::size_t bit = 0; bit < page.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    page[bit / 8] ^= mask;
    ASSERT_FALSE(format::parse_superblock(page, "data").has_value()) << "bit " << bit;
    page[bit / 8] ^= mask;
  }
}

TEST(Format, ANewerVersionAndUnknownIncompatibleFeaturesAreRefusedAsUsage) {
  format::Superblock newer = valid_superblock();
  newer.format_version = format::kVersion + 1;
  format::Superblock features = valid_superblock();
  features.features_incompatible = format::kIncompatibleFeaturesKnown + 1;
  for (const format::Superblock& block : {newer, features}) {
    const Result<format::Superblock> read = format::parse_superblock(encoded(block), "data");
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code, ExitCode::kUsage);
    expect_contains(read.error().hint, "headrace that made it");
  }
  format::Superblock harmless = valid_superblock();
  harmless.features_compatible = ~std::uint64_t{0};
  EXPECT_TRUE(format::parse_superblock(encoded(harmless), "data").has_value());
}

// Fields that a checksum vouches for are bounded nevertheless: a parser computes with them.
TEST(Format, NoFieldOfASuperblockLeadsOutOfTheFile) {
  std::mt19937_64 random(testing::test_seed());
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    format::Superblock block = round % 2 == 0 ? valid_superblock() : with_undo_slot();
    Page page = encoded(block);
    const std::size_t field = 64 + random() % ((312 - 64) / 8) * 8;
    const std::array<std::uint64_t, 6> values = {
        0,
        ~std::uint64_t{0},
        random(),
        random() % (2 * block.file_bytes),
        random() % (2 * block.file_bytes) / kPageBytes * kPageBytes,
        std::uint64_t{1} << 63U};
    std::memcpy(page.data() + field, &values[random() % values.size()], sizeof(std::uint64_t));
    std::memcpy(&block, page.data(), sizeof(block));
    const Result<format::Superblock> read = format::parse_superblock(encoded(block), "data");
    if (!read) {
      continue;
    }
    ++accepted;
    ASSERT_LE(read->extents_offset, read->file_bytes);
    ASSERT_LE(format::physical_slots(*read) * read->slot_bytes,
              read->file_bytes - read->extents_offset);
    for (const format::Region& region :
         {read->tile_table, read->tensor_table, read->run_dir, read->folder_paths}) {
      ASSERT_LE(region.offset, read->extents_offset);
      ASSERT_LE(region.bytes, read->extents_offset - region.offset);
    }
    ASSERT_LE(read->tile_count * sizeof(format::TileEntry), read->tile_table.bytes);
    if (read->generation > 0) {
      ASSERT_LE(read->map.offset + read->map.bytes, read->extents_offset);
    }
  }
  EXPECT_GT(accepted, 0);
}

format::ExtentIdentity identity_of(std::uint64_t payload_bytes) {
  format::ExtentIdentity identity;
  identity.store_id = format::store_id_bytes(Id128{.high = 1, .low = 2});
  identity.key = {.unit = 3, .tile = 4, .kind = ExtentKind::kState};
  identity.layout_tag = format::layout_tag_bytes("fp32/fp32");
  identity.offset = 9 * kPageBytes;
  identity.payload_bytes = payload_bytes;
  return identity;
}

TEST(Format, AnExtentHeaderReadsBackAndNoFlippedBitPasses) {
  const format::ExtentIdentity identity = identity_of(kSumBlockBytes + kPageBytes);
  std::vector<std::byte> payload(identity.payload_bytes);
  testing::fill(payload, identity.key, 5);
  Page header{};
  format::encode_extent_header(identity, 5, payload, header);
  EXPECT_EQ(format::extent_header_problem(identity, 5, header), std::nullopt);
  EXPECT_EQ(format::extent_header_problem(identity, std::nullopt, header), std::nullopt);
  EXPECT_EQ(format::extent_step(header), 5);
  EXPECT_EQ(format::extent_sum(header, 0), hash_bytes(std::span(payload).first(kSumBlockBytes)));
  EXPECT_EQ(format::extent_sum(header, 1), hash_bytes(std::span(payload).last(kPageBytes)));
  for (std::size_t bit = 0; bit < header.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    header[bit / 8] ^= mask;
    ASSERT_TRUE(format::extent_header_problem(identity, 5, header).has_value()) << "bit " << bit;
    header[bit / 8] ^= mask;
  }
}

TEST(Format, AnExtentHeaderOfAnythingElseIsNamed) {
  const format::ExtentIdentity identity = identity_of(kPageBytes);
  const std::vector<std::byte> payload(kPageBytes);
  Page header{};
  format::encode_extent_header(identity, 5, payload, header);
  const auto problem_of = [&](auto change) {
    format::ExtentIdentity wanted = identity;
    change(wanted);
    return format::extent_header_problem(wanted, 5, header).value_or("");
  };
  using Identity = format::ExtentIdentity;
  expect_contains(problem_of([](Identity& i) { i.store_id[0] ^= 1U; }), "store");
  expect_contains(problem_of([](Identity& i) { i.rank = 1; }), "rank");
  expect_contains(problem_of([](Identity& i) { i.world = 2; }), "rank");
  expect_contains(problem_of([](Identity& i) { i.key.unit = 9; }), "unit 3, expected 9");
  expect_contains(problem_of([](Identity& i) { i.key.tile = 9; }), "tile 4, expected 9");
  expect_contains(problem_of([](Identity& i) { i.key.kind = ExtentKind::kParam; }), "kind");
  expect_contains(problem_of([](Identity& i) { i.slot = 1; }), "slot");
  expect_contains(problem_of([](Identity& i) { i.layout_tag[0] = 'b'; }), "layout");
  expect_contains(problem_of([](Identity& i) { i.folder_index = 1; }), "folder");
  expect_contains(problem_of([](Identity& i) { i.offset += kPageBytes; }), "offset");
  expect_contains(problem_of([](Identity& i) { i.payload_bytes += kPageBytes; }), "length");
  expect_contains(format::extent_header_problem(identity, 6, header).value_or(""),
                  "step 5, expected 6");
  header[offsetof(format::ExtentHeader, features_incompatible)] = std::byte{1};
  format::seal_extent_header(header);
  expect_contains(problem_of([](Identity&) {}), "with features 0x1");
}

TEST(Format, AHeaderGrowsByPagesWithItsSums) {
  EXPECT_EQ(format::header_bytes(kPageBytes), kPageBytes);
  EXPECT_EQ(format::header_bytes(479 * kSumBlockBytes), kPageBytes);
  EXPECT_EQ(format::header_bytes(479 * kSumBlockBytes + kPageBytes), 2 * kPageBytes);
  // On a state of tiles of 1 Mi elements the headers cost less than 1 %.
  EXPECT_LT(static_cast<double>(format::tile_bytes(4U << 20U, 8U << 20U)), 1.01 * (12U << 20U));
}

TEST(Format, ALayoutPutsTheExtentsOfATileSideBySide) {
  const StoreContents contents = small_contents();
  const format::Layout layout = layout_of(contents).value();
  std::uint64_t end = layout.extents_offset;
  for (const format::TileEntry& tile : layout.tiles) {
    for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
      if (kind == ExtentKind::kState && tile.state_bytes == 0) {
        continue;
      }
      const ExtentPlace place = format::extent_place(tile, kind, 0, 0);
      EXPECT_EQ(place.offset, end);
      EXPECT_EQ(place.offset % kPageBytes, 0U);
      end = place.offset + place.header_bytes + place.payload_bytes;
    }
  }
  EXPECT_EQ(layout.folders[0].file_bytes, end);
}

TEST(Format, ALayoutRefusesSizesThatAreNoWholePages) {
  for (std::uint64_t bytes = 0; bytes <= 3 * kPageBytes + 1; ++bytes) {
    StoreContents contents;
    contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = bytes, .state_bytes = 0}};
    EXPECT_EQ(layout_of(contents).has_value(), bytes > 0 && bytes % kPageBytes == 0);
    contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = kPageBytes, .state_bytes = bytes}};
    EXPECT_EQ(layout_of(contents).has_value(), bytes % kPageBytes == 0);
  }
  StoreContents contents;
  contents.tiles = {{.unit = 0, .tile = 7, .param_bytes = kPageBytes + 1, .state_bytes = 0}};
  const Result<format::Layout> refused = layout_of(contents);
  ASSERT_FALSE(refused.has_value());
  const Error& error = refused.error();
  EXPECT_EQ(error.code, ExitCode::kUsage);
  expect_contains(error.why, "tile 7 of unit 0 has 4097 bytes");
}

TEST(Format, ALayoutRefusesDisorderAndWhatNoFileHolds) {
  StoreContents contents = small_contents();
  std::swap(contents.tiles[0], contents.tiles[1]);
  EXPECT_FALSE(layout_of(contents).has_value());
  contents = small_contents();
  contents.tiles[1] = contents.tiles[0];
  EXPECT_FALSE(layout_of(contents).has_value());
  contents = small_contents();
  contents.tiles[0].state_bytes = std::uint64_t{1} << 63U;
  EXPECT_FALSE(layout_of(contents).has_value());
  contents = small_contents();
  contents.layout_tag = std::string(format::kLayoutTagBytes + 1, 'x');
  EXPECT_FALSE(layout_of(contents).has_value());
  contents = small_contents();
  contents.run_dir = std::string(format::kRunDirBytesMax + 1, 'x');
  EXPECT_FALSE(layout_of(contents).has_value());
}

// The promise of the store: at most 1 % beyond the slots' payloads, for tiles as a plan cuts them.
TEST(Format, ATwoSlotLayoutCostsLessThanOnePercentBeyondTheState) {
  const auto overhead = [](std::uint64_t elements, std::uint32_t tiles, std::uint32_t slots) {
    StoreContents contents;
    for (std::uint32_t tile = 0; tile < tiles; ++tile) {
      contents.tiles.push_back(
          {.unit = 0, .tile = tile, .param_bytes = 4 * elements, .state_bytes = 8 * elements});
    }
    const auto state = static_cast<double>(12 * elements * tiles * slots);
    const format::Layout layout =
        format::make_layout(contents, {.slots = slots, .folder_of = {}, .folder_paths = "/a\n"})
            .value();
    return static_cast<double>(layout.folders[0].file_bytes) / state - 1.0;
  };
  constexpr std::uint64_t kMebi = std::uint64_t{1} << 20U;
  EXPECT_LT(overhead(kMebi, 120, 2), 0.002);         // 124 M parameters
  EXPECT_LT(overhead(kMebi, 10'000, 2), 0.001);      // 10 G parameters
  EXPECT_LT(overhead(kMebi / 4, 40'000, 1), 0.004);  // tiles of 256 Ki elements, one slot
  EXPECT_LT(overhead(kMebi / 8, 80'000, 2), 0.006);
  EXPECT_LT(overhead(kMebi / 16, 160'000, 2), 0.011);  // the smallest tile: 1.05 %, as documented
}

TEST(Format, FoldersHaveTheirOwnOffsetsAndSlots) {
  const StoreContents contents = small_contents();
  format::LayoutOptions options{.slots = 2, .folder_of = {1, 0, 1, 0}, .folder_count = 2};
  options.folder_paths = format::join_paths(std::vector<std::string>{"/a", "/b"});
  const format::Layout layout = format::make_layout(contents, options).value();
  for (std::uint32_t folder = 0; folder < 2; ++folder) {
    std::uint64_t end = layout.extents_offset;
    for (const format::TileEntry& tile : layout.tiles) {
      if (tile.folder_index == folder) {
        EXPECT_EQ(tile.offset, end);
        end += format::tile_bytes(tile.param_bytes, tile.state_bytes);
      }
    }
    EXPECT_EQ(layout.folders[folder].slot_bytes, end - layout.extents_offset);
    EXPECT_EQ(layout.folders[folder].file_bytes,
              layout.extents_offset + 2 * layout.folders[folder].slot_bytes);
    const auto place =
        format::extent_place(layout.tiles[0], ExtentKind::kParam, 1, layout.folders[1].slot_bytes);
    EXPECT_EQ(place.folder, 1U);
    EXPECT_EQ(place.slot, 1U);
    EXPECT_EQ(place.offset, layout.tiles[0].offset + layout.folders[1].slot_bytes);
  }
  EXPECT_EQ(format::split_paths("/a\n/b\n"), (std::vector<std::string>{"/a", "/b"}));
}

TEST(Format, AnUndoSlotIsOneMoreInTheFile) {
  const StoreContents contents = small_contents();
  for (const std::uint32_t slots : {1U, 2U}) {
    format::LayoutOptions options{.slots = slots, .folder_of = {1, 0, 1, 0}, .folder_count = 2};
    const format::Layout without = format::make_layout(contents, options).value();
    options.undo_slot = true;
    const format::Layout with = format::make_layout(contents, options).value();
    for (std::size_t folder = 0; folder < 2; ++folder) {
      EXPECT_EQ(with.folders[folder].slot_bytes, without.folders[folder].slot_bytes);
      EXPECT_EQ(with.folders[folder].file_bytes,
                with.extents_offset + (slots + 1) * with.folders[folder].slot_bytes);
    }
    const std::uint32_t physical = format::physical_slots(slots, true);
    EXPECT_EQ(physical, slots + 1);
    EXPECT_EQ(format::stored_bytes(contents.tiles, physical)[0],
              physical *
                  format::tile_bytes(contents.tiles[0].param_bytes, contents.tiles[0].state_bytes));
  }
}

TEST(Format, ASuperblockWithAnUndoSlotHasRoomForItAndIsOfVersionTwo) {
  const format::Superblock block = with_undo_slot();
  const Result<format::Superblock> read = format::parse_superblock(encoded(block), "data");
  ASSERT_TRUE(read.has_value()) << format_error(read.error(), true);
  EXPECT_TRUE(format::has_undo_slot(*read));
  EXPECT_EQ(read->slots, 1U);
  EXPECT_EQ(format::physical_slots(*read), 2U);
  const auto problem_of = [](const format::Superblock& changed, ExitCode code) {
    const Result<format::Superblock> parsed = format::parse_superblock(encoded(changed), "data");
    EXPECT_FALSE(parsed.has_value());
    EXPECT_TRUE(parsed || parsed.error().code == code);
    return parsed ? std::string() : parsed.error().why;
  };
  format::Superblock changed = block;
  changed.file_bytes -= kPageBytes;
  expect_contains(problem_of(changed, ExitCode::kCorrupt), "slots of");
  changed = block;
  changed.slots = 2;
  expect_contains(problem_of(changed, ExitCode::kCorrupt), "slots of");
  changed = block;
  changed.format_version = 1;
  expect_contains(problem_of(changed, ExitCode::kCorrupt), "an undo slot");
  // What a later version may add is told apart from what is known.
  changed = block;
  changed.features_incompatible |= 2;
  const std::string why = problem_of(changed, ExitCode::kUsage);
  expect_contains(why, "features that this headrace does not know (0x2)");
}

TEST(Format, ACommitRecordNamesOnlySlotsThatAreThere) {
  for (const bool undo_slot : {false, true}) {
    for (const std::uint32_t slots : {1U, 2U}) {
      format::Superblock block = valid_superblock();
      block.slots = slots;
      block.features_incompatible = undo_slot ? format::kFeatureUndoSlot : 0;
      for (std::uint32_t slot = 0; slot < 5; ++slot) {
        format::Map map{.generation = block.generation,
                        .step = 12,
                        .update_count = 11,
                        .entries = std::vector<format::MapEntry>(block.tile_count, {0, 0, 12, 12}),
                        .run_state = {}};
        map.entries[2].slot = slot;
        std::vector<std::byte> bytes(format::map_bytes(map.entries.size(), 0));
        format::encode_map(block, map, bytes);
        block.map = {format::kMapOffset, bytes.size(), hash_bytes(bytes)};
        const Result<format::Map> read = format::parse_map(block, bytes, "data");
        EXPECT_EQ(read.has_value(), slot < slots + (undo_slot ? 1 : 0));
        if (!read) {
          expect_contains(read.error().why, "names a slot that the store does not have");
        }
      }
    }
  }
}

TEST(Format, ATileTableThatOverlapsOrLeavesTheFileIsRefused) {
  const format::Layout layout = layout_of(small_contents()).value();
  const auto parse = [](std::vector<format::TileEntry> tiles) {
    const std::vector<std::byte> bytes = format::encode_tile_table(tiles);
    format::Superblock block = valid_superblock();
    block.tile_count = tiles.size();
    block.tile_table.bytes = bytes.size();
    block.tile_table.xxh3 = hash_bytes(bytes);
    return format::parse_tile_table(block, bytes, "data").has_value();
  };
  EXPECT_TRUE(parse(layout.tiles));
  EXPECT_TRUE(parse({}));
  const auto with = [&](std::size_t index, auto change) {
    std::vector<format::TileEntry> tiles = layout.tiles;
    change(tiles[index]);
    return parse(std::move(tiles));
  };
  using Tile = format::TileEntry;
  EXPECT_FALSE(with(1, [](Tile& tile) { tile.offset -= kPageBytes; }));
  EXPECT_FALSE(with(1, [](Tile& tile) { tile.offset += 1; }));
  EXPECT_FALSE(with(0, [](Tile& tile) { tile.offset = 0; }));
  EXPECT_FALSE(with(3, [](Tile& tile) { tile.state_bytes += kPageBytes; })) << "beyond its slot";
  EXPECT_FALSE(with(3, [](Tile& tile) { tile.param_bytes = ~std::uint64_t{4095}; }));
  EXPECT_FALSE(with(3, [](Tile& tile) { tile.param_bytes = 0; }));
  EXPECT_FALSE(with(3, [](Tile& tile) { tile.folder_index = 1; }));
  EXPECT_FALSE(with(2, [](Tile& tile) { tile.unit = 0; }));
}

TEST(Format, ACommitRecordReadsBackAndNoFlippedBitPasses) {
  format::Superblock block = valid_superblock();
  format::Map map{.generation = block.generation,
                  .step = 12,
                  .update_count = 11,
                  .entries = std::vector<format::MapEntry>(block.tile_count, {0, 0, 12, 12}),
                  .run_state = R"({"seed":1})"};
  std::vector<std::byte> bytes(format::map_bytes(map.entries.size(), map.run_state.size()));
  format::encode_map(block, map, bytes);
  block.map = {format::kMapOffset, bytes.size(), hash_bytes(bytes)};
  const Result<format::Map> read = format::parse_map(block, bytes, "data");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->step, 12);
  EXPECT_EQ(read->update_count, 11);
  EXPECT_EQ(read->run_state, map.run_state);
  ASSERT_EQ(read->entries.size(), block.tile_count);
  EXPECT_EQ(read->entries[3].state_step, 12);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_FALSE(format::parse_map(block, bytes, "data").has_value()) << "bit " << bit;
    bytes[bit / 8] ^= mask;
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::span<const std::byte> part = std::span(bytes).first(length);
    block.map.xxh3 = hash_bytes(part);
    block.map.bytes = length;
    ASSERT_FALSE(format::parse_map(block, part, "data").has_value()) << "length " << length;
  }
  block.map.xxh3 = hash_bytes(bytes);
  block.map.bytes = bytes.size();
  block.generation += 1;
  EXPECT_FALSE(format::parse_map(block, bytes, "data").has_value());
  block.generation -= 1;
  bytes[offsetof(format::MapHeader, features_incompatible)] = std::byte{1};
  block.map.xxh3 = hash_bytes(bytes);
  EXPECT_FALSE(format::parse_map(block, bytes, "data").has_value());
}

}  // namespace
}  // namespace headrace::tiers::nvme
