// Spill extents: what a process puts aside and reads back itself, past the end of the data files.
#include "tiers/nvme/store_spill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "tiers/nvme/assign_folders.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {

namespace {

std::uint64_t stored_bytes(const SpillBytes& extent) {
  return format::header_bytes(extent.bytes) + extent.bytes;
}

bool comes_before(const SpillBytes& a, const SpillBytes& b) {
  return std::pair(a.unit, a.index) < std::pair(b.unit, b.index);
}

}  // namespace

SpillTable::SpillTable(std::vector<SpillBytes> extents) : extents_(std::move(extents)) {
  std::sort(extents_.begin(), extents_.end(), comes_before);
  newest_ = std::make_unique<std::atomic<std::int64_t>[]>(extents_.size());
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    newest_[i].store(kNeverWritten, std::memory_order_relaxed);
  }
}

Status SpillTable::place(std::span<const FolderShare> folders,
                         std::span<const std::uint64_t> ends) {
  std::vector<std::uint64_t> bytes;
  bytes.reserve(extents_.size());
  for (const SpillBytes& extent : extents_) {
    bytes.push_back(stored_bytes(extent));
  }
  HEADRACE_ASSIGN(const FolderAssignment assigned, assign_folders(bytes, folders));
  ends_.assign(ends.begin(), ends.end());
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    const std::uint32_t folder = assigned.folder_of[i];
    places_.push_back(
        {.folder = folder,
         .slot = 0,
         .offset = ends_[folder],
         .header_bytes = static_cast<std::uint32_t>(format::header_bytes(extents_[i].bytes)),
         .payload_bytes = extents_[i].bytes});
    ends_[folder] += bytes[i];
  }
  return {};
}

std::size_t SpillTable::index_of(const ExtentKey& key) const {
  const SpillBytes wanted{.unit = key.unit, .index = key.tile, .bytes = 0};
  const auto found = std::lower_bound(extents_.begin(), extents_.end(), wanted, comes_before);
  HEADRACE_ASSERT(found != extents_.end() && found->unit == key.unit && found->index == key.tile,
                  "room for the spill extent was reserved");
  return static_cast<std::size_t>(found - extents_.begin());
}

std::uint64_t SpillTable::payload_bytes_max() const {
  std::uint64_t largest = 0;
  for (const SpillBytes& extent : extents_) {
    largest = std::max(largest, extent.bytes);
  }
  return largest;
}

Status Store::reserve_spill(std::vector<SpillBytes> extents,
                            std::span<const std::optional<std::uint64_t>> space_bytes_max) {
  HEADRACE_ASSERT(writable(), "a reader spills nothing");
  SpillTable table(std::move(extents));
  for (const StoreFile& part : state_->files) {
    HEADRACE_TRY(part.file->cut(part.block.file_bytes));
  }
  // As the tiles are spread, whose bytes went by bandwidth.
  std::vector<FolderShare> shares;
  std::vector<std::uint64_t> ends;
  for (std::size_t i = 0; i < state_->files.size(); ++i) {
    const BlockFile& data = file(static_cast<std::uint32_t>(i));
    const std::uint64_t own_bytes = state_->files[i].block.file_bytes;
    FolderShare share{.name = data.path(), .weight = static_cast<double>(own_bytes)};
    if (i < space_bytes_max.size() && space_bytes_max[i]) {
      share.capacity_bytes = *space_bytes_max[i] - std::min(*space_bytes_max[i], own_bytes);
    }
    if (data.fd() >= 0) {
      HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(parent_path(data.path())));
      share.capacity_bytes = std::min(share.capacity_bytes, filesystem.free_bytes);
    }
    shares.push_back(std::move(share));
    ends.push_back(own_bytes);
  }
  HEADRACE_TRY(table.place(shares, ends));
  state_->spill = std::move(table);  // from here on ~Store gives back what was made
  for (std::size_t i = 0; i < state_->files.size(); ++i) {
    BlockFile& data = file(static_cast<std::uint32_t>(i));
    if (state_->spill.end_of(i) > ends[i]) {
      HEADRACE_TRY(data.allocate(state_->spill.end_of(i)));
    }
  }
  HEADRACE_ASSIGN(state_->header, PageBuffer::create(format::header_bytes(payload_bytes_max())));
  return {};
}

std::uint64_t Store::payload_bytes_max() const {
  std::uint64_t largest = state_->spill.payload_bytes_max();
  for (const TileBytes& tile : contents().tiles) {
    largest = std::max({largest, tile.param_bytes, tile.state_bytes});
  }
  return largest;
}

// Who goes takes what was put aside along: nobody else could use it.
void Store::give_up_spill() {
  for (std::size_t i = 0; !state_->spill.empty() && i < state_->files.size(); ++i) {
    if (Status cut = state_->files[i].file->cut(state_->files[i].block.file_bytes); !cut) {
      log_warning(
          fmt::format("{}; the next start of the run gives the space back", cut.error().what));
    }
  }
}

}  // namespace headrace::tiers::nvme
