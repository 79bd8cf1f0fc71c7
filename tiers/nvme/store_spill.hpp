// Where the spill extents of a store that is open lie, and what was written to them last. Internal
// to tiers/nvme.
//
// Invariant: places do not overlap and lie past the tiles' part of the data files. Thread: an
// engine's thread reads and writes steps (atomics; the order comes from queues and events), the
// rest stays as it was made.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/assign_folders.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::int64_t kNeverWritten = -1;

class SpillTable {
 public:
  SpillTable() = default;
  explicit SpillTable(std::vector<SpillBytes> extents);

  // `ends`: of each folder's file, where its extents begin.
  [[nodiscard]] Status place(std::span<const FolderShare> folders,
                             std::span<const std::uint64_t> ends);

  [[nodiscard]] bool empty() const { return extents_.empty(); }

  [[nodiscard]] std::uint64_t payload_bytes_max() const;

  // Of the folder's file, with its spill extents.
  [[nodiscard]] std::uint64_t end_of(std::size_t folder) const { return ends_[folder]; }

  [[nodiscard]] const ExtentPlace& place_of(const ExtentKey& key) const {
    return places_[index_of(key)];
  }

  // Of the last write; kNeverWritten.
  [[nodiscard]] std::int64_t step(const ExtentKey& key) const {
    return newest_[index_of(key)].load(std::memory_order_acquire);
  }

  void wrote(const ExtentKey& key, std::int64_t step) {
    newest_[index_of(key)].store(step, std::memory_order_release);
  }

 private:
  [[nodiscard]] std::size_t index_of(const ExtentKey& key) const;

  std::vector<SpillBytes> extents_;  // by unit and index
  std::vector<ExtentPlace> places_;
  std::vector<std::uint64_t> ends_;
  std::unique_ptr<std::atomic<std::int64_t>[]> newest_;
};

}  // namespace headrace::tiers::nvme
