#include "tiers/nvme/store_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "core/assert.hpp"
#include "core/hash.hpp"

namespace headrace::tiers::nvme {

const char* kind_name(ExtentKind kind) {
  switch (kind) {
    case ExtentKind::kParam:
      return "param";
    case ExtentKind::kState:
      return "state";
    case ExtentKind::kSpill:
      break;
  }
  return "spilled activations";
}

Status StoreState::take_tiles(std::vector<format::TileEntry> entries) {
  tiles = std::move(entries);
  newest = std::make_unique<std::atomic<std::int64_t>[]>(2 * tiles.size());
  committed_slot = std::make_unique<std::atomic<std::uint32_t>[]>(tiles.size());
  if (format::has_undo_slot(block())) {
    newest_before = std::make_unique<std::atomic<std::int64_t>[]>(2 * tiles.size());
    for (std::size_t i = 0; i < 2 * tiles.size(); ++i) {
      newest_before[i].store(kNotSpeculative, std::memory_order_relaxed);
    }
  }
  contents.tiles.clear();
  contents.tiles.reserve(tiles.size());
  std::uint64_t payload_bytes_max = 0;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    newest[2 * i].store(kNeverWritten, std::memory_order_relaxed);
    newest[2 * i + 1].store(kNeverWritten, std::memory_order_relaxed);
    committed_slot[i].store(kNoSlot, std::memory_order_relaxed);
    contents.tiles.push_back(TileBytes{.unit = tiles[i].unit,
                                       .tile = tiles[i].tile,
                                       .param_bytes = tiles[i].param_bytes,
                                       .state_bytes = tiles[i].state_bytes});
    payload_bytes_max = std::max({payload_bytes_max, tiles[i].param_bytes, tiles[i].state_bytes});
  }
  HEADRACE_ASSIGN(header, PageBuffer::create(format::header_bytes(payload_bytes_max)));
  HEADRACE_ASSIGN(scratch, PageBuffer::create(kScratchBytes));
  if (access == Store::Access::kWrite) {
    HEADRACE_ASSIGN(record, PageBuffer::create(block().map_extent_bytes));
    map.entries.reserve(tiles.size());
  }
  return {};
}

std::size_t StoreState::tile_index(std::uint32_t unit, std::uint32_t tile) const {
  const std::pair wanted(unit, tile);
  const auto place = std::lower_bound(
      tiles.begin(), tiles.end(), wanted, [](const format::TileEntry& entry, const auto& key) {
        return std::pair(entry.unit, entry.tile) < key;
      });
  HEADRACE_ASSERT(place != tiles.end() && place->unit == unit && place->tile == tile,
                  "the store has the tile");
  return static_cast<std::size_t>(place - tiles.begin());
}

std::size_t StoreState::extent_index(const ExtentKey& key) const {
  const std::size_t index = tile_index(key.unit, key.tile);
  const bool param = key.kind == ExtentKind::kParam;
  HEADRACE_ASSERT(param || tiles[index].state_bytes > 0, "a frozen tile has no state extent");
  return 2 * index + (param ? 0 : 1);
}

std::int64_t StoreState::step(const ExtentKey& key) const {
  if (key.kind == ExtentKind::kSpill) {
    return spill.step(key);
  }
  return step_of_newest(newest[extent_index(key)].load(std::memory_order_acquire));
}

ExtentPlace StoreState::place(const ExtentKey& key, std::uint32_t slot) const {
  if (key.kind == ExtentKind::kSpill) {
    return spill.place_of(key);
  }
  const format::TileEntry& tile = tiles[tile_index(key.unit, key.tile)];
  return format::extent_place(tile, key.kind, slot, files[tile.folder_index].block.slot_bytes);
}

ExtentPlace StoreState::read_place(const ExtentKey& key) const {
  if (key.kind == ExtentKind::kSpill) {
    return spill.place_of(key);
  }
  const std::int64_t value = newest[extent_index(key)].load(std::memory_order_acquire);
  return place(key, value == kNeverWritten ? 0 : slot_of_newest(value));
}

namespace {

std::uint32_t smallest_slot_but(std::uint32_t first, std::uint32_t second) {
  std::uint32_t slot = 0;
  while (slot == first || slot == second) {
    ++slot;
  }
  return slot;
}

}  // namespace

ExtentPlace StoreState::write_place(const ExtentKey& key, std::int64_t step) const {
  if (key.kind == ExtentKind::kSpill) {
    return spill.place_of(key);
  }
  const std::size_t extent = extent_index(key);
  const std::uint32_t now = slot_of_newest(newest[extent].load(std::memory_order_acquire));
  // With one slot nothing keeps what the commit names.
  const std::uint32_t kept =
      block().slots == 1 ? kNoSlot : committed_slot[extent / 2].load(std::memory_order_acquire);
  HEADRACE_ASSERT(
      !newest_before || newest_before[extent].load(std::memory_order_acquire) == kNotSpeculative,
      "an extent is written once at most between its speculative write and settle()");
  if (step == speculative_step.load(std::memory_order_acquire)) {
    return place(key, smallest_slot_but(kept, now));
  }
  return place(key, now != kNoSlot && now != kept ? now : smallest_slot_but(kept, kept));
}

void StoreState::wrote(const ExtentKey& key, std::uint32_t slot, std::int64_t step) {
  if (key.kind == ExtentKind::kSpill) {
    spill.wrote(key, step);
    return;
  }
  const std::size_t extent = extent_index(key);
  if (step == speculative_step.load(std::memory_order_acquire)) {
    const std::int64_t before = newest[extent].load(std::memory_order_acquire);
    HEADRACE_ASSERT(newest_before[extent].load(std::memory_order_acquire) == kNotSpeculative &&
                        slot != slot_of_newest(before),
                    "a speculative write leaves what was there before");
    newest_before[extent].store(before, std::memory_order_release);
  }
  newest[extent].store(newest_of(step, slot), std::memory_order_release);
}

void StoreState::settle(bool keep) {
  if (!speculating()) {
    return;
  }
  for (std::size_t i = 0; i < 2 * tiles.size(); ++i) {
    const std::int64_t before =
        newest_before[i].exchange(kNotSpeculative, std::memory_order_acq_rel);
    if (before != kNotSpeculative && !keep) {
      newest[i].store(before, std::memory_order_release);
    }
  }
  speculative_step.store(kNotSpeculative, std::memory_order_release);
}

format::ExtentIdentity StoreState::identity(const ExtentKey& key, const ExtentPlace& place) const {
  return format::ExtentIdentity{.format_version = block().format_version,
                                .store_id = block().store_id,
                                .rank = block().rank,
                                .world = block().world,
                                .key = key,
                                .slot = place.slot,
                                .layout_tag = block().layout_tag,
                                .folder_index = place.folder,
                                .offset = place.offset,
                                .payload_bytes = place.payload_bytes};
}

std::string StoreState::describe(const ExtentKey& key, const ExtentPlace& place) const {
  return fmt::format("unit {}, tile {} ({}) of '{}', at offset {}",
                     key.unit,
                     key.tile,
                     kind_name(key.kind),
                     files[place.folder].file->path(),
                     place.offset);
}

Error StoreState::corrupt(const ExtentKey& key, const ExtentPlace& place, std::string why) const {
  return corrupt_error(fmt::format("nvme tier: corrupt extent: {}", describe(key, place)))
      .with_why(std::move(why))
      .with_hint(
          key.kind == ExtentKind::kSpill
              ? "the drive did not give back what it was given; nothing that is committed is "
                "touched: start the run again, and see to the drive (`headrace doctor`)"
              : fmt::format("`headrace verify {}` lists everything that is damaged", path));
}

Status StoreState::write_superblocks(const std::vector<std::uint32_t>& folders,
                                     std::vector<format::Superblock> next) {
  for (std::size_t i = 0; i < folders.size(); ++i) {
    StoreFile& target = files[folders[i]];
    next[i].sequence = target.block.sequence + 1;
    std::array<std::byte, kPageBytes> page{};
    format::encode_superblock(next[i], page);
    HEADRACE_TRY(target.file->write(format::kSuperblockOffsets[1 - target.copy], page));
  }
  HEADRACE_TRY(sync(folders));
  for (std::size_t i = 0; i < folders.size(); ++i) {
    StoreFile& target = files[folders[i]];
    target.block = next[i];
    target.copy = 1 - target.copy;
  }
  return {};
}

Status StoreState::sync(const std::vector<std::uint32_t>& folders) {
  std::vector<BlockFile*> targets;
  targets.reserve(folders.size());
  for (const std::uint32_t folder : folders) {
    targets.push_back(files[folder].file.get());
  }
  return for_each_file(targets, [](BlockFile& file) { return file.sync(); });
}

std::vector<std::uint32_t> StoreState::all_folders() const {
  std::vector<std::uint32_t> folders(files.size());
  std::iota(folders.begin(), folders.end(), 0U);
  return folders;
}

std::vector<format::Superblock> StoreState::blocks() const {
  std::vector<format::Superblock> blocks;
  blocks.reserve(files.size());
  for (const StoreFile& part : files) {
    blocks.push_back(part.block);
  }
  return blocks;
}

Status for_each_file(const std::vector<BlockFile*>& files,
                     const std::function<Status(BlockFile&)>& call) {
  std::vector<Status> results(files.size());
  {
    std::vector<std::jthread> threads;
    threads.reserve(files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
      // A simulated medium shares its clock and its dice between files: one after the other.
      bool here = files.size() == 1 || files[i]->fd() < 0;
      if (!here) {
        try {
          threads.emplace_back([&, i] { results[i] = call(*files[i]); });
        } catch (const std::system_error&) {
          here = true;  // no thread to be had: slower, and as good
        }
      }
      if (here) {
        results[i] = call(*files[i]);
      }
    }
  }
  for (Status& result : results) {
    HEADRACE_TRY(std::move(result));
  }
  return {};
}

Result<std::vector<std::byte>> read_region(BlockFile& file, const format::Region& region) {
  std::vector<std::byte> bytes(format::round_up(region.bytes, kPageBytes));
  HEADRACE_TRY(file.read(region.offset, bytes));
  bytes.resize(region.bytes);
  return bytes;
}

Status write_region(BlockFile& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  std::vector<std::byte> pages(format::round_up(bytes.size(), kPageBytes));
  std::copy(bytes.begin(), bytes.end(), pages.begin());
  return file.write(offset, pages);
}

std::string sub_block_problem(const ExtentPlace& place, std::uint64_t sub_block) {
  const std::uint64_t begin = sub_block * kSumBlockBytes;
  const std::uint64_t end = std::min(begin + kSumBlockBytes, place.payload_bytes);
  const std::uint64_t payload = place.offset + place.header_bytes;
  return fmt::format("the checksum of sub-block {} (bytes {} to {} of the file) is wrong",
                     sub_block,
                     payload + begin,
                     payload + end - 1);
}

}  // namespace headrace::tiers::nvme
