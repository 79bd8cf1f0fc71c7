// What a Store holds, and the steps that format, load and commit share. Internal to tiers/nvme.
//
// Invariant: `files[i].block` is the superblock copy `files[i].copy` as it lies in folder i's file;
// the next one goes to the other copy, so that a torn write leaves this one. Thread: as Store,
// except `newest`, `newest_before`, `committed_slot` and `dirty`, which an engine's thread reads
// and writes too (atomics; the order comes from queues and events).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/block_file.hpp"
#include "tiers/nvme/format.hpp"
#include "tiers/nvme/page_buffer.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/nvme/store_spill.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::int64_t kNotSpeculative = -2;
inline constexpr std::uint32_t kNoSlot = 0xFFFFFFFF;
inline constexpr std::int64_t kPhysicalSlotsMax = 4;  // that a value of `newest` has room for

static_assert(format::kSlotsMax + 1 <= kPhysicalSlotsMax);
static_assert(format::kStepMax <= std::numeric_limits<std::int64_t>::max() / kPhysicalSlotsMax - 1);

// A write's step and slot in one value: of an extent's newest write, or kNeverWritten.
[[nodiscard]] constexpr std::int64_t newest_of(std::int64_t step, std::uint32_t slot) {
  return step < 0 ? kNeverWritten : kPhysicalSlotsMax * step + slot;
}

[[nodiscard]] constexpr std::int64_t step_of_newest(std::int64_t newest) {
  return newest < 0 ? kNeverWritten : newest / kPhysicalSlotsMax;
}

// kNoSlot where there is no write.
[[nodiscard]] constexpr std::uint32_t slot_of_newest(std::int64_t newest) {
  return newest < 0 ? kNoSlot : static_cast<std::uint32_t>(newest % kPhysicalSlotsMax);
}

// A folder's file and the superblock that counts in it.
struct StoreFile {
  std::unique_ptr<BlockFile> file;
  format::Superblock block{};
  int copy = 0;
};

struct StoreState {
  std::string id;
  std::string path;  // <folder>/<id> of the first folder
  Store::Access access = Store::Access::kRead;
  std::vector<StoreFile> files;  // one for each folder
  std::vector<format::TileEntry> tiles;
  StoreContents contents;
  std::vector<std::string> folder_paths;  // as they were when the store was made
  std::optional<CommitRecord> last_commit;
  // Of tile i (param at 2 i, state at 2 i + 1): newest_of the newest write.
  std::unique_ptr<std::atomic<std::int64_t>[]> newest;
  // With an undo slot, of the same extents: what `newest` was before the speculative write, or
  // kNotSpeculative.
  std::unique_ptr<std::atomic<std::int64_t>[]> newest_before;
  std::atomic<std::int64_t> speculative_step{kNotSpeculative};
  // Of tile i: the slot that the last commit names; kNoSlot before the first.
  std::unique_ptr<std::atomic<std::uint32_t>[]> committed_slot;
  std::vector<format::MapEntry> committed;  // of tile i, in the last commit
  std::atomic<bool> dirty{false};
  SpillTable spill;
  std::optional<Error> failure;  // of the commit after which nothing more is written
  PageBuffer header;             // as large as the largest header; synchronous calls only
  PageBuffer scratch;            // whole sub-blocks; synchronous calls only
  PageBuffer record;             // for commit records; writers only
  format::Map map;               // of the commit that is being made: keeps its memory

  // Allocates what depends on `tiles` and fills contents.tiles.
  [[nodiscard]] Status take_tiles(std::vector<format::TileEntry> entries);
  [[nodiscard]] std::size_t tile_index(std::uint32_t unit, std::uint32_t tile) const;
  [[nodiscard]] std::size_t extent_index(const ExtentKey& key) const;  // of `newest`
  [[nodiscard]] std::int64_t step(const ExtentKey& key) const;
  [[nodiscard]] ExtentPlace place(const ExtentKey& key, std::uint32_t slot) const;
  [[nodiscard]] ExtentPlace read_place(const ExtentKey& key) const;
  [[nodiscard]] ExtentPlace write_place(const ExtentKey& key, std::int64_t step) const;
  void wrote(const ExtentKey& key, std::uint32_t slot, std::int64_t step);
  void settle(bool keep);

  [[nodiscard]] bool speculating() const {
    return speculative_step.load(std::memory_order_acquire) != kNotSpeculative;
  }

  [[nodiscard]] format::ExtentIdentity identity(const ExtentKey& key,
                                                const ExtentPlace& place) const;
  // "unit 3, tile 0 (state) of '/x/data', at offset 8192"
  [[nodiscard]] std::string describe(const ExtentKey& key, const ExtentPlace& place) const;
  [[nodiscard]] Error corrupt(const ExtentKey& key,
                              const ExtentPlace& place,
                              std::string why) const;

  // Writes next[i] with the next sequence number over the older copy of folders[i], then flushes
  // these folders.
  [[nodiscard]] Status write_superblocks(const std::vector<std::uint32_t>& folders,
                                         std::vector<format::Superblock> next);
  // Flushes the folders' files, side by side where they are files of the system.
  [[nodiscard]] Status sync(const std::vector<std::uint32_t>& folders);
  [[nodiscard]] std::vector<std::uint32_t> all_folders() const;
  // The superblocks of all folders, for write_superblocks.
  [[nodiscard]] std::vector<format::Superblock> blocks() const;

  [[nodiscard]] const format::Superblock& block() const { return files.front().block; }
};

inline constexpr std::size_t kScratchBytes = std::size_t{1} << 20U;
static_assert(kScratchBytes % kSumBlockBytes == 0);

// Reads or writes bytes of any length in whole pages (the rest of the last page is zero).
[[nodiscard]] Result<std::vector<std::byte>> read_region(BlockFile& file,
                                                         const format::Region& region);
[[nodiscard]] Status write_region(BlockFile& file,
                                  std::uint64_t offset,
                                  std::span<const std::byte> bytes);

// Calls it for each file, side by side where there are several files of the system and threads to
// be had; the first error. What is called has files of its own.
[[nodiscard]] Status for_each_file(const std::vector<BlockFile*>& files,
                                   const std::function<Status(BlockFile&)>& call);

// What each folder's file takes of a store that format() would make (options.folders are given).
[[nodiscard]] Result<std::vector<format::FolderLayout>> folder_layouts(
    const StoreContents& contents, const StoreLayoutOptions& options);

[[nodiscard]] const char* kind_name(ExtentKind kind);
// What to say of a sub-block whose sum is wrong.
[[nodiscard]] std::string sub_block_problem(const ExtentPlace& place, std::uint64_t sub_block);

}  // namespace headrace::tiers::nvme
