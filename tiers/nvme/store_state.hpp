// What a Store holds, and the steps that create, open and commit share. Internal to tiers/nvme.
//
// Invariant: `block` is the superblock copy `copy` as it lies in the file; the next one goes to the
// other copy, so that a torn write leaves this one. Thread: as Store, except `steps` and `dirty`,
// which the engine's thread reads and writes too (atomics; the order comes from queues and events).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/data_file.hpp"
#include "tiers/nvme/format.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::int64_t kNeverWritten = -1;

struct StoreState {
  std::string id;
  std::string path;  // <folder>/<id>
  Store::Access access = Store::Access::kRead;
  DataFile file;
  format::Superblock block{};
  int copy = 0;
  std::vector<format::TileEntry> tiles;
  StoreContents contents;
  std::optional<CommitRecord> last_commit;
  std::unique_ptr<std::atomic<std::int64_t>[]> steps;  // of tile i: param at 2 i, state at 2 i + 1
  std::atomic<bool> dirty{false};
  PageBuffer header;  // as large as the largest header; synchronous calls only

  // Allocates what depends on `tiles` and fills contents.tiles.
  [[nodiscard]] Status take_tiles(std::vector<format::TileEntry> entries);
  [[nodiscard]] std::size_t tile_index(const ExtentKey& key) const;
  [[nodiscard]] std::atomic<std::int64_t>& step(const ExtentKey& key) const;
  [[nodiscard]] format::ExtentIdentity identity(const ExtentKey& key) const;
  // "unit 3, tile 0 (state) of '/x/data', at offset 8192"
  [[nodiscard]] std::string describe(const ExtentKey& key) const;
  [[nodiscard]] Error corrupt(const ExtentKey& key, std::string why) const;

  // Writes `next` with the next sequence number over the older copy, durably.
  [[nodiscard]] Status write_superblock(format::Superblock next);
  // Reads or writes bytes of any length in whole pages (the rest of the last page is zero).
  [[nodiscard]] Result<std::vector<std::byte>> read_region(const format::Region& region) const;
  [[nodiscard]] Status write_region(std::uint64_t offset, std::span<const std::byte> bytes) const;

  // Checks one extent through the scratch memory.
  [[nodiscard]] Status verify_extent(const ExtentKey& key, bool any_step) const;
};

[[nodiscard]] const char* kind_name(ExtentKind kind);
// What to say of a sub-block whose sum is wrong.
[[nodiscard]] std::string sub_block_problem(const format::ExtentIdentity& extent,
                                            std::uint64_t sub_block);

}  // namespace headrace::tiers::nvme
