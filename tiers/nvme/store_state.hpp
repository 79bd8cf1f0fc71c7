// What a Store holds, and the steps that format, load and commit share. Internal to tiers/nvme.
//
// Invariant: `files[i].block` is the superblock copy `files[i].copy` as it lies in folder i's file;
// the next one goes to the other copy, so that a torn write leaves this one. Thread: as Store,
// except `newest`, `committed_slot` and `dirty`, which an engine's thread reads and writes too
// (atomics; the order comes from queues and events).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/block_file.hpp"
#include "tiers/nvme/format.hpp"
#include "tiers/nvme/page_buffer.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::int64_t kNeverWritten = -1;

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
  std::optional<CommitRecord> last_commit;
  // Of tile i (param at 2 i, state at 2 i + 1): 2 x the newest write's step + its slot, or
  // kNeverWritten.
  std::unique_ptr<std::atomic<std::int64_t>[]> newest;
  // Of tile i: the slot that the last commit names.
  std::unique_ptr<std::atomic<std::uint32_t>[]> committed_slot;
  std::atomic<bool> dirty{false};
  std::optional<Error> failure;  // of the commit after which nothing more is written
  PageBuffer header;             // as large as the largest header; synchronous calls only
  PageBuffer scratch;            // whole sub-blocks; synchronous calls only

  // Allocates what depends on `tiles` and fills contents.tiles.
  [[nodiscard]] Status take_tiles(std::vector<format::TileEntry> entries);
  [[nodiscard]] std::size_t tile_index(std::uint32_t unit, std::uint32_t tile) const;
  [[nodiscard]] std::size_t extent_index(const ExtentKey& key) const;  // of `newest`
  [[nodiscard]] std::int64_t step(const ExtentKey& key) const;
  [[nodiscard]] ExtentPlace place(const ExtentKey& key, std::uint32_t slot) const;
  [[nodiscard]] ExtentPlace read_place(const ExtentKey& key) const;
  [[nodiscard]] ExtentPlace write_place(const ExtentKey& key) const;
  [[nodiscard]] format::ExtentIdentity identity(const ExtentKey& key,
                                                const ExtentPlace& place) const;
  // "unit 3, tile 0 (state) of '/x/data', at offset 8192"
  [[nodiscard]] std::string describe(const ExtentKey& key, const ExtentPlace& place) const;
  [[nodiscard]] Error corrupt(const ExtentKey& key,
                              const ExtentPlace& place,
                              std::string why) const;

  // Writes `next` with the next sequence number over the folder's older copy, durably.
  [[nodiscard]] Status write_superblock(std::uint32_t folder, format::Superblock next);

  // Checks one extent through the scratch memory.
  [[nodiscard]] Status verify_extent(const ExtentKey& key, bool any_step) const;

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

[[nodiscard]] const char* kind_name(ExtentKind kind);
// What to say of a sub-block whose sum is wrong.
[[nodiscard]] std::string sub_block_problem(const ExtentPlace& place, std::uint64_t sub_block);

}  // namespace headrace::tiers::nvme
