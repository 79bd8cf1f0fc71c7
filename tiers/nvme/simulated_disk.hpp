// A disk in memory that fails as disks do, from a seed: what a store promises is tested on it.
//
// `SimulatedDisk` holds one file, with a durable image and writes that are not flushed yet; a back
// end over it completes requests in virtual time and in any order. Faults are drawn for each
// request: short transfers, EINTR, EIO, ENOSPC, and silent ones: torn, lost and misdirected writes,
// stale reads, flipped bits. When the power goes, requests under way and unflushed pages survive,
// vanish or tear, sector by sector. Invariant: everything follows from the seed and the order of
// calls; each fault is recorded. Thread: the disk by several (a mutex); for the same faults again,
// drive it by one. Failure: as BlockFile and IoBackend, since that is what it is for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/block_file.hpp"
#include "tiers/nvme/io_backend.hpp"

namespace headrace::tiers::nvme {

enum class DiskFault : std::uint8_t {
  // Said to the caller.
  kInterrupted,
  kShort,
  kReadError,
  kWriteError,
  kNoSpace,
  kSyncError,
  // Not said: checksums must find them.
  kTornWrite,
  kLostWrite,
  kMisdirectedWrite,
  kStaleRead,
  kFlippedBit,
  kPowerCut,
};

[[nodiscard]] const char* disk_fault_name(DiskFault fault);

struct InjectedFault {
  DiskFault kind = DiskFault::kInterrupted;
  std::uint64_t offset = 0;  // what it hit
  std::uint64_t bytes = 0;
  bool write = false;
};

// How likely each fault is, a transfer.
struct FaultRates {
  double interrupted = 0;
  double short_transfer = 0;
  double read_error = 0;
  double write_error = 0;
  double no_space = 0;
  double sync_error = 0;
  double torn_write = 0;
  double lost_write = 0;
  double misdirected_write = 0;
  double stale_read = 0;
  double flipped_bit = 0;  // of a write: stays; of a read: in this answer only
};

// What several disks of one machine share. Off: every transfer fails with EIO.
class PowerSupply {
 public:
  enum class State : std::uint8_t { kOn, kGoesNow, kOff };

  // The power goes during the operation after the next `operations`.
  void cut_after(std::uint64_t operations);
  void restore();
  [[nodiscard]] State use();  // by an operation that begins
  [[nodiscard]] bool on() const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t left_ = std::numeric_limits<std::uint64_t>::max();
  bool on_ = true;
};

struct SimulatedDiskOptions {
  std::uint64_t seed = 1;
  std::int64_t latency_ns = 80'000;
  std::int64_t jitter_ns = 300'000;  // of one request: this is what reorders them
  double bytes_per_s = 3e9;
  std::uint64_t space_bytes = std::numeric_limits<std::uint64_t>::max();
  FaultRates rates{};
};

class SimulatedDisk {
 public:
  SimulatedDisk(std::string path, const SimulatedDiskOptions& options, PowerSupply& power);

  // As BlockFile has them.
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> target);
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> source);
  [[nodiscard]] Status sync();
  [[nodiscard]] Status allocate(std::uint64_t bytes);
  void cut(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes() const;

  [[nodiscard]] const std::string& path() const { return path_; }

  // One transfer as the system would make it: bytes moved or a negated errno.
  [[nodiscard]] int transfer(const IoRequest& request);
  // A write that was under way when the power went: some of its pages arrive.
  void arrive_in_part(const IoRequest& request);
  // After a power cut: of what was not flushed, some of it is there. The power must be on again.
  void restart();

  void set_rates(const FaultRates& rates);
  // For tests: damage of a resting disk.
  void flip_bit(std::uint64_t offset, unsigned bit);
  void truncate(std::uint64_t bytes);

  [[nodiscard]] std::vector<InjectedFault> faults() const;

  [[nodiscard]] PowerSupply& power() { return power_; }

  [[nodiscard]] const SimulatedDiskOptions& options() const { return options_; }

  // Virtual time, which only what the file or its back end does moves on.
  [[nodiscard]] std::int64_t now_ns() const;
  void advance_to(std::int64_t now_ns);
  [[nodiscard]] std::int64_t draw_jitter_ns();

 private:
  static constexpr std::size_t kBytesOfPage = 4096;
  static constexpr std::size_t kBytesOfSector = 512;
  using PageBytes = std::array<std::byte, kBytesOfPage>;
  using Page = std::shared_ptr<const PageBytes>;  // null: zeros

  struct PageState {
    Page durable;
    Page previous;                // what the last write replaced
    std::vector<Page> unflushed;  // since the last sync, oldest first
  };

  // A run of a request's memory within one page of the file.
  struct Part {
    std::uint64_t page = 0;
    std::size_t offset = 0;  // in the page
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  template <class Visit>
  static void for_each_part(const IoRequest& request, std::uint64_t bytes, Visit visit);
  [[nodiscard]] bool chance(double probability);
  [[nodiscard]] std::uint64_t below(std::uint64_t limit);
  void record(DiskFault kind, std::uint64_t offset, std::uint64_t bytes, bool write);
  [[nodiscard]] int refusal(const IoRequest& request);
  void put(const IoRequest& request, std::uint64_t bytes);
  void get(const IoRequest& request, std::uint64_t bytes);
  void put_part(const Part& part);
  void put_page(std::uint64_t page, Page contents);
  [[nodiscard]] Page current(std::uint64_t page) const;
  [[nodiscard]] Page torn(const Page& before, const Page& after);
  void some_arrives(const IoRequest& request);
  [[nodiscard]] Status synchronous(IoRequest request, const char* operation);

  std::string path_;
  SimulatedDiskOptions options_;
  PowerSupply& power_;
  mutable std::mutex mutex_;  // guards all that follows
  std::mt19937_64 random_;
  std::unordered_map<std::uint64_t, PageState> pages_;
  std::vector<std::uint64_t> dirty_pages_;  // with unflushed versions, in the order of their first
  std::uint64_t size_bytes_ = 0;
  std::int64_t now_ns_ = 0;
  std::vector<InjectedFault> faults_;
};

// The disk as a file that a store may own: the disk itself outlives a restart.
class SimulatedFile final : public BlockFile {
 public:
  explicit SimulatedFile(std::shared_ptr<SimulatedDisk> disk) : disk_(std::move(disk)) {}

  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> target) override {
    return disk_->read(offset, target);
  }

  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> source) override {
    return disk_->write(offset, source);
  }

  [[nodiscard]] Status sync() override { return disk_->sync(); }

  [[nodiscard]] Status allocate(std::uint64_t bytes) override { return disk_->allocate(bytes); }

  [[nodiscard]] Status cut(std::uint64_t bytes) override {
    disk_->cut(bytes);
    return {};
  }

  [[nodiscard]] Result<std::uint64_t> bytes() override { return disk_->bytes(); }

  [[nodiscard]] const std::string& path() const override { return disk_->path(); }

  [[nodiscard]] int fd() const override { return -1; }

  [[nodiscard]] bool direct_io() const override { return true; }

  [[nodiscard]] SimulatedDisk& disk() { return *disk_; }

 private:
  std::shared_ptr<SimulatedDisk> disk_;
};

// `file` must be a SimulatedFile.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_simulated_backend(
    BlockFile& file, const BackendOptions& options);

}  // namespace headrace::tiers::nvme
