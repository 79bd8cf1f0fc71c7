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
constexpr std::chrono::milliseconds kPassTimeMax{400};
// Requests of a block in flight that are tried; the sizes that are tried with as many bytes in
// flight; and the share of the best rate that will do.
constexpr int kWriteDepth = 8;
constexpr std::array<int, 3> kDepths = {4, 8, 16};
constexpr std::array<std::size_t, 5> kRequestBytes = {
    kBlockBytes / 4, kBlockBytes / 2, kBlockBytes, 2 * kBlockBytes, 4 * kBlockBytes};
constexpr std::size_t kBufferBytes = kDepths.back() * kBlockBytes;  // of all threads
constexpr std::chrono::milliseconds kDepthTimeMax{120};
constexpr double kGoodEnough = 0.95;

// Every page of the file begins with its number, so that none equals another and a misdirected
// read shows. `offset` is the block's in the file.
void stamp(std::span<std::byte> block, std::uint64_t offset) {
  for (std::size_t at = 0; at < block.size(); at += kPageBytes) {
    const std::uint64_t number = (offset + at) / kPageBytes;
    std::memcpy(block.data() + at, &number, sizeof number);
  }
}

bool stamped(std::span<const std::byte> block, std::uint64_t offset) {
  for (std::size_t at = 0; at < block.size(); at += kPageBytes) {
    std::uint64_t number = 0;
    std::memcpy(&number, block.data() + at, sizeof number);
    if (number != (offset + at) / kPageBytes) {
      return false;
    }
  }
  return true;
}

enum class Access { kRead, kWrite, kBoth };

// One pass over the file's beginning by as many threads as requests are to be in flight. Counts
// what was moved until the time is up.
class Pass {
 public:
  struct Work {
    Access access = Access::kRead;
    std::uint64_t bytes = 0;  // of the file
    DriveRequests requests{.in_flight = kWriteDepth, .bytes = kBlockBytes};
    std::chrono::milliseconds time_max = kPassTimeMax;
  };

  Pass(int descriptor, std::span<std::byte> buffers, const Work& work)
      : descriptor_(descriptor),
        buffers_(buffers),
        access_(work.access),
        block_bytes_(work.requests.bytes),
        blocks_(work.bytes / work.requests.bytes),
        depth_(static_cast<std::size_t>(work.requests.in_flight)),
        time_max_(work.time_max) {}

  // Bytes per second; `bytes_done` says how far it came.
  Result<double> run(std::uint64_t& bytes_done) {
    const Clock::time_point begin = Clock::now();
    deadline_ = begin + time_max_;
    std::vector<std::thread> threads;
    threads.reserve(depth_);
    std::optional<Error> not_started;
    try {
      for (std::size_t i = 0; i < depth_; ++i) {
        threads.emplace_back([this, i] { work(buffers_.subspan(i * block_bytes_, block_bytes_)); });
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
    bytes_done = std::min(next_.load(), blocks_) * block_bytes_;
    return static_cast<double>(done_.load() * block_bytes_) / seconds.count();
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
      const std::uint64_t at = index * block_bytes_;
      if (write) {
        stamp(buffer, at);
      }
      const auto offset = static_cast<off_t>(at);
      const ssize_t moved = write ? ::pwrite(descriptor_, buffer.data(), buffer.size(), offset)
                                  : ::pread(descriptor_, buffer.data(), buffer.size(), offset);
      if (moved != static_cast<ssize_t>(buffer.size())) {
        error_.store(moved < 0 ? errno : EIO);
        return;
      }
      if (!write && !stamped(buffer, at)) {
        wrong_.store(true);
      }
      done_.fetch_add(1);
    }
  }

  int descriptor_;
  std::span<std::byte> buffers_;
  Access access_;
  std::size_t block_bytes_;
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
  Result<UniqueFd> file = open_file(folder, O_RDWR | O_TMPFILE, 0600);
  if (file) {
    return file;
  }
  const std::string path = folder + "/.headrace-probe-" + std::to_string(::getpid());
  file = open_file(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file) {
    ::unlink(path.c_str());
  }
  return file;
}

// Afterwards, since a filesystem that refuses O_DIRECT may do so once it has made the file.
Status switch_to_direct_io(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) {
    return errno_error("the filesystem refuses direct I/O", errno);
  }
  return {};
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
  HEADRACE_ASSIGN(const std::unique_ptr<tiers::Arena> arena,
                  tiers::Arena::create(tiers::Tier::kHost, "probe", kBufferBytes));
  const std::span<std::byte> buffers(arena->data(), kBufferBytes);
  const RandomSource random(static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()),
                            RandomStream::kTest);
  for (std::size_t at = 0; at < buffers.size(); at += 4) {
    const std::uint32_t bits = random.bits({.update = 0, .tensor = 0, .element = at / 4});
    std::memcpy(buffers.data() + at, &bits, sizeof bits);
  }
  const auto pass = [&](const Pass::Work& work, std::uint64_t& bytes_done) {
    return Pass(descriptor, buffers, work).run(bytes_done);
  };
  std::uint64_t bytes = 0;
  HEADRACE_ASSIGN(rates.write_bytes_per_s,
                  pass({.access = Access::kWrite, .bytes = kProbeFileBytes}, bytes));
  std::uint64_t ignored = 0;
  const auto read = [&](const DriveRequests& requests) {
    return pass(
        {.access = Access::kRead, .bytes = bytes, .requests = requests, .time_max = kDepthTimeMax},
        ignored);
  };
  // More in flight than a drive needs only makes what is wanted now wait longer.
  std::vector<double> reads;
  for (const int depth : kDepths) {
    HEADRACE_ASSIGN(const double rate, read({.in_flight = depth, .bytes = kBlockBytes}));
    reads.push_back(rate);
  }
  const double at_blocks = *std::max_element(reads.begin(), reads.end());
  rates.read_bytes_per_s = at_blocks;
  for (std::size_t i = reads.size(); i-- > 0;) {
    if (reads[i] >= kGoodEnough * at_blocks) {
      rates.requests = {.in_flight = kDepths[i], .bytes = kBlockBytes};
    }
  }
  // Another size where it is faster by more than measurements differ.
  const std::size_t bytes_in_flight =
      static_cast<std::size_t>(rates.requests.in_flight) * kBlockBytes;
  for (const std::size_t request_bytes : kRequestBytes) {
    const DriveRequests requests{.in_flight = static_cast<int>(bytes_in_flight / request_bytes),
                                 .bytes = request_bytes};
    if (requests.in_flight > kDriveProbeThreads) {
      continue;
    }
    HEADRACE_ASSIGN(const double rate, read(requests));
    if (kGoodEnough * rate > rates.read_bytes_per_s) {
      rates.requests = requests;
      rates.read_bytes_per_s = rate;
    }
  }
  HEADRACE_ASSIGN(
      rates.mixed_bytes_per_s,
      pass({.access = Access::kBoth, .bytes = bytes, .requests = rates.requests}, ignored));
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

FolderTrial try_folder(const std::string& folder) {
  FolderTrial trial;
  const Result<UniqueFd> file = open_nameless(folder);
  if (!file) {
    trial.writing = file.error();
    return trial;
  }
  alignas(kPageBytes) std::array<std::byte, kPageBytes> page = {};
  const auto failed = [](ssize_t moved) { return moved != static_cast<ssize_t>(kPageBytes); };
  const auto problem = [&](const char* what, ssize_t moved) {
    return moved < 0 ? errno_error(what, errno) : operating_error(what);
  };
  ssize_t moved = ::pwrite(file->get(), page.data(), page.size(), 0);
  if (failed(moved)) {
    trial.writing = problem("a page cannot be written", moved);
    return trial;
  }
  trial.direct_io = switch_to_direct_io(file->get());
  if (!trial.direct_io) {
    return trial;
  }
  moved = ::pwrite(file->get(), page.data(), page.size(), 0);
  if (!failed(moved)) {
    moved = ::pread(file->get(), page.data(), page.size(), 0);
  }
  if (failed(moved)) {
    trial.direct_io = problem("a page cannot be moved past the page cache", moved);
  }
  return trial;
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
  if (const Status direct = switch_to_direct_io(file->get()); !direct) {
    log_warning(fmt::format("probe: '{}' was not measured: {}", folder, direct.error().why));
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
