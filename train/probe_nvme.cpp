#include "train/probe_nvme.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/log.hpp"
#include "core/random.hpp"
#include "core/unique.hpp"
#include "tiers/memory.hpp"
#include "train/probe.hpp"

namespace headrace::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20U;
constexpr std::size_t kPageBytes = 4096;
constexpr std::uint64_t kBlocks = kProbeFileBytes / kBlockBytes;
constexpr std::chrono::milliseconds kPassTimeMax{400};
// Requests of a block in flight that are tried, and the share of the best rate that will do.
constexpr int kWriteDepth = 8;
constexpr std::array<int, 3> kDepths = {4, 8, 16};
constexpr std::chrono::milliseconds kDepthTimeMax{120};
constexpr double kGoodEnough = 0.95;

// Every page of a block begins with its number, so that no page of the file equals another and a
// misdirected read shows.
void stamp(std::span<std::byte> block, std::uint64_t index) {
  for (std::size_t at = 0; at < block.size(); at += kPageBytes) {
    const std::uint64_t number = index * (kBlockBytes / kPageBytes) + at / kPageBytes;
    std::memcpy(block.data() + at, &number, sizeof number);
  }
}

bool stamped(std::span<const std::byte> block, std::uint64_t index) {
  for (std::size_t at = 0; at < block.size(); at += kPageBytes) {
    std::uint64_t number = 0;
    std::memcpy(&number, block.data() + at, sizeof number);
    if (number != index * (kBlockBytes / kPageBytes) + at / kPageBytes) {
      return false;
    }
  }
  return true;
}

enum class Access { kRead, kWrite, kBoth };

// One pass over blocks by as many threads as requests are to be in flight. Counts what was moved
// until the time is up.
class Pass {
 public:
  struct Work {
    Access access = Access::kRead;
    std::uint64_t blocks = 0;
    int depth = kWriteDepth;
    std::chrono::milliseconds time_max = kPassTimeMax;
  };

  Pass(int descriptor, std::span<std::byte> buffers, const Work& work)
      : descriptor_(descriptor),
        buffers_(buffers),
        access_(work.access),
        blocks_(work.blocks),
        depth_(static_cast<std::size_t>(work.depth)),
        time_max_(work.time_max) {}

  // Bytes per second; `blocks_done` says how far it came.
  Result<double> run(std::uint64_t& blocks_done) {
    const Clock::time_point begin = Clock::now();
    deadline_ = begin + time_max_;
    std::vector<std::thread> threads;
    threads.reserve(depth_);
    std::optional<Error> not_started;
    try {
      for (std::size_t i = 0; i < depth_; ++i) {
        threads.emplace_back([this, i] { work(buffers_.subspan(i * kBlockBytes, kBlockBytes)); });
      }
    } catch (const std::exception& error) {
      not_started = operating_error("probe: cannot start its threads")
                        .with_why(error.what())
                        .with_hint(
                            "raise the limit of processes: `ulimit -u`, or pids.max of the "
                            "cgroup");
      stop_.store(true);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (not_started) {
      return *std::move(not_started);
    }
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    if (error_.load() != 0) {
      return errno_error("probe: direct I/O failed", error_.load());
    }
    if (wrong_.load()) {
      return corrupt_error("probe: the drive read back something else than was written")
          .with_hint("do not use this drive: it loses data");
    }
    blocks_done = std::min(next_.load(), blocks_);
    return static_cast<double>(done_.load() * kBlockBytes) / seconds.count();
  }

 private:
  void work(std::span<std::byte> buffer) {
    while (Clock::now() < deadline_ && error_.load() == 0 && !stop_.load()) {
      const std::uint64_t index = next_.fetch_add(1);
      if (index >= blocks_) {
        return;
      }
      // Both: the even half of the file is read, the odd half written.
      const bool write = access_ == Access::kWrite || (access_ == Access::kBoth && index % 2 == 1);
      if (write) {
        stamp(buffer, index);
      }
      const auto offset = static_cast<off_t>(index * kBlockBytes);
      const ssize_t moved = write ? ::pwrite(descriptor_, buffer.data(), buffer.size(), offset)
                                  : ::pread(descriptor_, buffer.data(), buffer.size(), offset);
      if (moved != static_cast<ssize_t>(kBlockBytes)) {
        error_.store(moved < 0 ? errno : EIO);
        return;
      }
      if (!write && !stamped(buffer, index)) {
        wrong_.store(true);
      }
      done_.fetch_add(1);
    }
  }

  int descriptor_;
  std::span<std::byte> buffers_;
  Access access_;
  std::uint64_t blocks_;
  std::size_t depth_;
  std::chrono::milliseconds time_max_;
  Clock::time_point deadline_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<int> error_{0};
  std::atomic<bool> wrong_{false};
  std::atomic<bool> stop_{false};
};

// A file without a name, or one that loses its name at once.
Result<UniqueFd> open_nameless(const std::string& folder) {
  Result<UniqueFd> file = open_file(folder, O_RDWR | O_TMPFILE | O_DIRECT, 0600);
  if (file) {
    return file;
  }
  const std::string path = folder + "/.headrace-probe-" + std::to_string(::getpid());
  file = open_file(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600);
  if (file) {
    ::unlink(path.c_str());
  }
  return file;
}

std::string why_not(const Filesystem& filesystem) {
  if (filesystem.kind == FilesystemKind::kTmpfs) {
    return "its filesystem is in memory";
  }
  if (filesystem.free_bytes < 2 * kProbeFileBytes) {
    return "it has too little room";
  }
  return "";
}

Status measure(int descriptor, DriveRates& rates) {
  HEADRACE_ASSIGN(
      const std::unique_ptr<tiers::Arena> arena,
      tiers::Arena::create(tiers::Tier::kHost, "probe", kDriveProbeThreads * kBlockBytes));
  const std::span<std::byte> buffers(arena->data(), kDriveProbeThreads * kBlockBytes);
  const RandomSource random(static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()),
                            RandomStream::kTest);
  for (std::size_t at = 0; at < buffers.size(); at += 4) {
    const std::uint32_t bits = random.bits({.update = 0, .tensor = 0, .element = at / 4});
    std::memcpy(buffers.data() + at, &bits, sizeof bits);
  }
  const auto pass = [&](const Pass::Work& work, std::uint64_t& blocks_done) {
    return Pass(descriptor, buffers, work).run(blocks_done);
  };
  std::uint64_t blocks = 0;
  std::uint64_t ignored = 0;
  HEADRACE_ASSIGN(rates.write_bytes_per_s,
                  pass({.access = Access::kWrite, .blocks = kBlocks}, blocks));
  // More in flight than a drive needs only makes what is wanted now wait longer.
  std::vector<double> reads;
  for (const int depth : kDepths) {
    HEADRACE_ASSIGN(
        const double rate,
        pass({.access = Access::kRead, .blocks = blocks, .depth = depth, .time_max = kDepthTimeMax},
             ignored));
    reads.push_back(rate);
  }
  rates.read_bytes_per_s = *std::max_element(reads.begin(), reads.end());
  for (std::size_t i = reads.size(); i-- > 0;) {
    if (reads[i] >= kGoodEnough * rates.read_bytes_per_s) {
      rates.io_depth = kDepths[i];
    }
  }
  HEADRACE_ASSIGN(
      rates.mixed_bytes_per_s,
      pass({.access = Access::kBoth, .blocks = blocks, .depth = rates.io_depth}, ignored));
  return {};
}

}  // namespace

std::string existing_parent(std::string folder) {
  while (!is_directory(folder) && folder != "/" && folder != ".") {
    folder = parent_path(folder);
  }
  return folder;
}

std::string device_of(const std::string& folder) {
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) {
    return "";
  }
  if (major(status.st_dev) == 0) {
    // Not a block device's number, and another one after the next boot.
    const Result<Filesystem> filesystem = filesystem_of(folder);
    return filesystem ? filesystem->name : "";
  }
  return fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
}

Result<DriveRates> probe_drive(const std::string& folder) {
  DriveRates rates;
  HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(folder));
  rates.capacity_bytes = filesystem.total_bytes;
  rates.device = device_of(folder);
  if (const std::string why = why_not(filesystem); !why.empty()) {
    log_warning(fmt::format("probe: '{}' was not measured: {}", folder, why));
    return rates;
  }
  Result<UniqueFd> file = open_nameless(folder);
  if (!file) {
    log_warning(fmt::format("probe: '{}' was not measured: {}", folder, file.error().why));
    return rates;
  }
  Status status = measure(file->get(), rates);
  if (!status && status.error().code == ExitCode::kOperating) {
    log_warning(fmt::format("probe: '{}' was not measured: {}", folder, status.error().why));
    rates.read_bytes_per_s = rates.write_bytes_per_s = rates.mixed_bytes_per_s = 0;
    return rates;
  }
  HEADRACE_TRY(std::move(status));
  return rates;
}

}  // namespace headrace::train
