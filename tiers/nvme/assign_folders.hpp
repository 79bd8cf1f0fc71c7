// Which folder takes which tile: bytes in proportion to bandwidth, within what each folder holds.
//
// Invariant: a pure function of its arguments, the same on every machine; neighbouring tiles
// alternate, so that a pass over the tiles keeps all folders busy; a folder never gets more than
// its capacity. Header only and of core alone, so that a planner can ask before a store exists.
// Thread: any. Failure: an Error (does not fit) that names every folder with its numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace headrace::tiers::nvme {

struct FolderShare {
  std::string name;     // for messages
  double weight = 1.0;  // of bandwidth: only ratios count; greater than 0
  std::uint64_t capacity_bytes = std::numeric_limits<std::uint64_t>::max();
};

struct FolderAssignment {
  std::vector<std::uint32_t> folder_of;     // of each tile
  std::vector<std::uint64_t> folder_bytes;  // of each folder
};

inline Error no_folder_has_room(std::span<const FolderShare> folders,
                                const FolderAssignment& assigned,
                                std::uint64_t left_bytes) {
  std::string why = std::to_string(left_bytes) + " bytes of tiles find no room:";
  for (std::size_t i = 0; i < folders.size(); ++i) {
    why += std::string(i == 0 ? "" : ",") + " '" + folders[i].name + "' holds " +
           std::to_string(assigned.folder_bytes[i]) + " of " +
           std::to_string(folders[i].capacity_bytes);
  }
  return does_not_fit_error("nvme tier: no space in the store's folders")
      .with_why(why)
      .with_hint(
          "raise a folder's `space`, free space there (`headrace store list` shows other stores), "
          "or add a folder to tiers.nvme");
}

// `tile_bytes` are bytes on disk: all slots, with headers (format::stored_bytes).
[[nodiscard]] inline Result<FolderAssignment> assign_folders(
    std::span<const std::uint64_t> tile_bytes, std::span<const FolderShare> folders) {
  FolderAssignment assigned;
  assigned.folder_of.reserve(tile_bytes.size());
  assigned.folder_bytes.assign(folders.size(), 0);
  for (std::size_t tile = 0; tile < tile_bytes.size(); ++tile) {
    const std::uint64_t bytes = tile_bytes[tile];
    std::size_t best = folders.size();
    double best_time = 0.0;
    for (std::size_t i = 0; i < folders.size(); ++i) {
      const std::uint64_t used = assigned.folder_bytes[i];
      if (used > folders[i].capacity_bytes || bytes > folders[i].capacity_bytes - used) {
        continue;
      }
      // When it would be done with all that it has, this tile included.
      const double time = (static_cast<double>(used) + static_cast<double>(bytes)) /
                          std::max(folders[i].weight, std::numeric_limits<double>::min());
      if (best == folders.size() || time < best_time) {
        best = i;
        best_time = time;
      }
    }
    if (best == folders.size()) {
      std::uint64_t left_bytes = 0;
      for (const std::uint64_t rest : tile_bytes.subspan(tile)) {
        left_bytes += rest;
      }
      return no_folder_has_room(folders, assigned, left_bytes);
    }
    assigned.folder_of.push_back(static_cast<std::uint32_t>(best));
    assigned.folder_bytes[best] += bytes;
  }
  return assigned;
}

}  // namespace headrace::tiers::nvme
