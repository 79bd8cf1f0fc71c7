// The drive's part of the probe: what the store's engine reads and writes, with its sums, requests
// in flight and lanes, in a file without a name.
//
// Thread: main's; a DriveBench by one at a time. Failure: a drive that reads back something else
// than was written is corrupt data (exit code 4), found by the store's own sums and headers.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/error.hpp"
#include "tiers/memory.hpp"
#include "tiers/nvme/io_engine.hpp"

namespace headrace::train {

inline constexpr int kProbeQueueThreads = 8;       // of a probe, beside its teams of all cores
inline constexpr int kDriveProbeRequestsMax = 32;  // the most that are in flight

// What a drive is to be asked with; zeros: not measured.
struct DriveRequests {
  int in_flight = 0;
  std::uint64_t bytes = 0;  // of each

  friend bool operator==(const DriveRequests&, const DriveRequests&) = default;
};

struct DriveRates {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  // Reads + writes: half of each; three bytes read for each written; the reverse.
  double mixed_bytes_per_s = 0;
  double mixed_reads_bytes_per_s = 0;
  double mixed_writes_bytes_per_s = 0;
  DriveRequests requests;  // that the drive needs to be read at its rate
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

enum class DriveMix : std::uint8_t { kRead, kWrite, kBoth, kMoreReads, kMoreWrites };

// A store in a file without a name, and its engine. Contents are random, and what is read is
// checked.
class DriveBench {
 public:
  // Writes the file once. Errors: a filesystem that is in memory, refuses direct I/O or has too
  // little room; a folder that cannot be written.
  [[nodiscard]] static Result<std::unique_ptr<DriveBench>> create(const std::string& folder);
  ~DriveBench();
  DriveBench(const DriveBench&) = delete;
  DriveBench& operator=(const DriveBench&) = delete;

  // Requests of this size, so many in flight.
  [[nodiscard]] Status use(const DriveRequests& requests);
  // Bytes per second over the file, or what of it is passed over in the time; both directions
  // counted together.
  [[nodiscard]] Result<double> pass(DriveMix mix, std::chrono::milliseconds time_max);
  // The same; how many bytes it was.
  [[nodiscard]] Result<double> pass_bytes(DriveMix mix, std::chrono::milliseconds time_max);

 private:
  static constexpr std::size_t kLanesMax = 4;

  DriveBench() = default;
  [[nodiscard]] static bool writes(DriveMix mix, std::uint64_t tile);

  std::unique_ptr<tiers::Arena> arena_;
  std::unique_ptr<tiers::nvme::Store> store_;
  tiers::Runtime runtime_;
  std::unique_ptr<tiers::nvme::IoEngine> engine_;
  // Of each lane: the one before the last operation, which is waited for before the next.
  std::array<tiers::Event, kLanesMax> waits_, previous_;
  std::uint64_t tiles_ = 0;
  std::uint64_t passed_ = 0;  // tiles of the last pass
  std::int64_t step_ = 0;
};

// With requests of 1 MiB, 4, 8 and 16 in flight; of other sizes with as many bytes in flight as
// were found to do; then writes and mixtures with the requests that were found. A filesystem that
// refuses direct I/O, is in memory, or has too little room gives rates of 0 and a line in the log.
// `bench`, where given: what measured it, where it could be; `why_not`: otherwise the reason.
[[nodiscard]] Result<DriveRates> probe_drive(const std::string& folder,
                                             std::unique_ptr<DriveBench>* bench = nullptr,
                                             std::string* why_not = nullptr);

}  // namespace headrace::train
