// The drive's part of the probe.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace headrace::train {

inline constexpr int kDriveProbeThreads = 8;  // as the engine's default io_depth

struct DriveRates {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  double mixed_bytes_per_s = 0;  // reads + writes
  std::uint64_t capacity_bytes = 0;
  std::string device;  // "259:1"
};

// The folder itself, or its nearest parent that exists.
[[nodiscard]] std::string existing_parent(std::string folder);

// "major:minor" of the drive that holds `folder` (which exists), or the filesystem's name where
// that has no drive of its own (overlay, btrfs); "" where it cannot be told.
[[nodiscard]] std::string device_of(const std::string& folder);

// kDriveProbeThreads requests in flight, by threads that pread and pwrite. A filesystem that
// refuses direct I/O, is in memory, or has too little room gives rates of 0 and a line in the log.
[[nodiscard]] Result<DriveRates> probe_drive(const std::string& folder);

}  // namespace headrace::train
