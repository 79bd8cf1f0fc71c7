// The drive's part of the probe.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace headrace::train {

inline constexpr int kDriveProbeThreads = 32;  // the most that are in flight

// What a drive is to be asked with; zeros: not measured.
struct DriveRequests {
  int in_flight = 0;
  std::uint64_t bytes = 0;  // of each

  friend bool operator==(const DriveRequests&, const DriveRequests&) = default;
};

struct DriveRates {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  double mixed_bytes_per_s = 0;  // reads + writes
  DriveRequests requests;        // that the drive needs to be read at its rate
  std::uint64_t capacity_bytes = 0;
  std::string device;  // "259:1"
};

// The folder itself, or its nearest parent that exists.
[[nodiscard]] std::string existing_parent(std::string folder);

// "major:minor" of the drive that holds `folder` (which exists), or the filesystem's name where
// that has no drive of its own (overlay, btrfs); "" where it cannot be told.
[[nodiscard]] std::string device_of(const std::string& folder);

// What became of a page in a nameless file of the folder, which exists.
struct FolderTrial {
  Status writing;    // through the page cache
  Status direct_io;  // nothing to say where it cannot be written
};

[[nodiscard]] FolderTrial try_folder(const std::string& folder);

// By threads that pread and pwrite: writes of 1 MiB with eight in flight; reads of 1 MiB with 4, 8
// and 16; reads of other sizes with as many bytes in flight as were found to do; both together with
// the requests that were found. A filesystem that refuses direct I/O, is
// in memory, or has too little room gives rates of 0 and a line in the log.
[[nodiscard]] Result<DriveRates> probe_drive(const std::string& folder);

}  // namespace headrace::train
