// Writes one valid input for each fuzzed parser: DIR/superblock, DIR/map, DIR/tile_table,
// DIR/extent_header.
//
// Invariant: they are what store_fuzzer.cpp expects. Thread: main's. Failure: exit code 1.
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "tiers/nvme/format.hpp"

namespace headrace::tiers::nvme {
namespace {

bool write(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

bool write_seeds(const std::string& folder) {
  StoreContents contents;
  contents.tiles = {{.unit = 0, .tile = 0, .param_bytes = 8192, .state_bytes = 16384},
                    {.unit = 0, .tile = 1, .param_bytes = 4096, .state_bytes = 0}};
  format::LayoutOptions options;
  options.folder_of = {0, 1};
  options.folder_count = 2;
  const auto layout = format::make_layout(contents, options);
  if (!layout) {
    return false;
  }
  const std::vector<std::byte> table = format::encode_tile_table(layout->tiles);
  format::Superblock block{};
  block.magic = format::kSuperblockMagic;
  block.format_version = format::kVersion;
  block.page_bytes = kPageBytes;
  block.generation = 1;
  block.slots = 2;
  block.folder_count = 2;
  block.sum_block_bytes = kSumBlockBytes;
  block.slot_bytes = layout->folders[0].slot_bytes;
  block.file_bytes = layout->folders[0].file_bytes;
  block.extents_offset = layout->extents_offset;
  block.tile_count = layout->tiles.size();
  block.map_extent_bytes = layout->map_extent_bytes;
  block.map_extent_offsets[0] = format::kMapOffset;
  block.map_extent_offsets[1] = format::kMapOffset + layout->map_extent_bytes;
  block.tile_table = {layout->tile_table_offset, table.size(), hash_bytes(table)};
  block.map = {format::kMapOffset, format::map_bytes(2, 2), 0};
  std::vector<std::byte> page(kPageBytes);
  format::encode_superblock(block, page);
  const format::Map map{.generation = 1,
                        .step = 3,
                        .update_count = 3,
                        .entries = {{0, 0, 3, 3}, {1, 0, 3, -1}},
                        .run_state = "{}"};
  std::vector<std::byte> record(format::map_bytes(2, 2));
  format::Superblock plain{};  // the fuzzer's store has the id 0
  plain.format_version = format::kVersion;
  format::encode_map(plain, map, record);
  format::ExtentIdentity identity;
  identity.offset = 9 * kPageBytes;
  identity.payload_bytes = 3 * kSumBlockBytes + kPageBytes;
  std::vector<std::byte> header(format::header_bytes(identity.payload_bytes));
  format::encode_extent_header(identity, 5, std::vector<std::byte>(identity.payload_bytes), header);
  return write(folder + "/superblock", page) && write(folder + "/map", record) &&
         write(folder + "/tile_table", table) && write(folder + "/extent_header", header);
}

}  // namespace
}  // namespace headrace::tiers::nvme

int main(int argc, char** argv) {
  return argc == 2 && headrace::tiers::nvme::write_seeds(argv[1]) ? 0 : 1;
}
