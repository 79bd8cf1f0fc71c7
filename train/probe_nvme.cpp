#include "train/probe_nvme.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/log.hpp"
#include "core/random.hpp"
#include "core/unique.hpp"
#include "train/probe.hpp"

namespace headrace::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20U;
constexpr std::size_t kPageBytes = tiers::nvme::kPageBytes;
constexpr std::chrono::milliseconds kPassTimeMax{300};
// Requests of a block in flight that are tried; the sizes that are tried with as many bytes in
// flight; and the share of the best rate that will do.
constexpr std::array<int, 3> kDepths = {4, 8, 16};
constexpr std::array<std::size_t, 5> kRequestBytes = {
    kBlockBytes / 4, kBlockBytes / 2, kBlockBytes, 2 * kBlockBytes, 4 * kBlockBytes};
constexpr std::chrono::milliseconds kDepthTimeMax{60};
constexpr std::chrono::milliseconds kMixedTimeMax{100};
constexpr double kGoodEnough = 0.95;
// As of a run's tiles with the usual settings, and its lanes.
constexpr std::uint64_t kTileBytes = std::uint64_t{4} << 20U;
constexpr int kLanes = 4;

// What a store lies in here: a file without a name, which is gone whatever happens.
class NamelessFile final : public tiers::nvme::BlockFile {
 public:
  NamelessFile(UniqueFd file, std::string folder)
      : file_(std::move(file)), path_(std::move(folder) + "/(a file without a name)") {}

  Status read(std::uint64_t offset, std::span<std::byte> target) override {
    return move(target.size(), [&](std::size_t done) {
      return ::pread(file_.get(),
                     target.data() + done,
                     target.size() - done,
                     static_cast<off_t>(offset + done));
    });
  }

  Status write(std::uint64_t offset, std::span<const std::byte> source) override {
    return move(source.size(), [&](std::size_t done) {
      return ::pwrite(file_.get(),
                      source.data() + done,
                      source.size() - done,
                      static_cast<off_t>(offset + done));
    });
  }

  Status sync() override {
    return ::fdatasync(file_.get()) == 0 ? Status() : errno_error("probe: cannot flush", errno);
  }

  Status allocate(std::uint64_t bytes) override {
    int result = 0;
    do {
      result = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes));
    } while (result == EINTR);
    return result == 0 ? Status() : errno_error("probe: cannot make its file", result);
  }

  Status cut(std::uint64_t bytes) override {
    const int failed = ::ftruncate(file_.get(), static_cast<off_t>(bytes));
    return failed == 0 ? Status() : errno_error("probe: cannot cut its file", errno);
  }

  Result<std::uint64_t> bytes() override {
    struct stat status = {};
    if (::fstat(file_.get(), &status) != 0) {
      return errno_error("probe: cannot look at its file", errno);
    }
    return static_cast<std::uint64_t>(status.st_size);
  }

  [[nodiscard]] const std::string& path() const override { return path_; }

  [[nodiscard]] int fd() const override { return file_.get(); }

  [[nodiscard]] bool direct_io() const override { return true; }

 private:
  template <class Move>
  Status move(std::size_t bytes, const Move& part) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t moved = part(done);
      if (moved <= 0 && (moved == 0 || errno != EINTR)) {
        return errno_error("probe: I/O failed", moved == 0 ? EIO : errno);
      }
      done += static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
    }
    return {};
  }

  UniqueFd file_;
  std::string path_;
};

tiers::nvme::ExtentKey key_of(std::uint64_t tile) {
  return {
      .unit = 0, .tile = static_cast<std::uint32_t>(tile), .kind = tiers::nvme::ExtentKind::kParam};
}

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

// Requests that the drive needs, and how fast it is read with them.
Status find_requests(DriveBench& bench, DriveRates& rates) {
  const auto read = [&](const DriveRequests& requests) -> Result<double> {
    HEADRACE_TRY(bench.use(requests));
    return bench.pass(DriveMix::kRead, kDepthTimeMax);
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
    if (requests.in_flight > kDriveProbeRequestsMax || request_bytes == kBlockBytes) {
      continue;
    }
    HEADRACE_ASSIGN(const double rate, read(requests));
    if (kGoodEnough * rate > rates.read_bytes_per_s) {
      rates.requests = requests;
      rates.read_bytes_per_s = rate;
    }
  }
  return bench.use(rates.requests);
}

Status measure(DriveBench& bench, DriveRates& rates) {
  HEADRACE_TRY(find_requests(bench, rates));
  const auto pass = [&](DriveMix mix, double& rate) -> Status {
    HEADRACE_ASSIGN(rate, bench.pass(mix, kMixedTimeMax));
    return {};
  };
  HEADRACE_TRY(pass(DriveMix::kWrite, rates.write_bytes_per_s));
  HEADRACE_TRY(pass(DriveMix::kBoth, rates.mixed_bytes_per_s));
  HEADRACE_TRY(pass(DriveMix::kMoreReads, rates.mixed_reads_bytes_per_s));
  return pass(DriveMix::kMoreWrites, rates.mixed_writes_bytes_per_s);
}

}  // namespace

DriveBench::~DriveBench() {
  engine_.reset();
}

Result<std::unique_ptr<DriveBench>> DriveBench::create(const std::string& folder) {
  HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(folder));
  if (const std::string why = why_not(filesystem); !why.empty()) {
    return operating_error(fmt::format("'{}' cannot be measured", folder))
        .with_why(why)
        .with_hint("use a folder on a drive, with 512 MiB free");
  }
  HEADRACE_ASSIGN(UniqueFd file, open_nameless(folder));
  const int descriptor = file.get();
  std::unique_ptr<DriveBench> bench(new DriveBench);
  HEADRACE_ASSIGN(bench->arena_,
                  tiers::Arena::create(tiers::Tier::kHost, "probe", kLanes * kTileBytes));
  const std::span<std::byte> buffers(bench->arena_->data(), kLanes * kTileBytes);
  const RandomSource random(static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()),
                            RandomStream::kTest);
  for (std::size_t at = 0; at < buffers.size(); at += 4) {
    const std::uint32_t bits = random.bits({.update = 0, .tensor = 0, .element = at / 4});
    std::memcpy(buffers.data() + at, &bits, sizeof bits);
  }
  tiers::nvme::StoreContents contents{.tiles = {}, .tensor_table = "{}", .layout_tag = "probe"};
  bench->tiles_ = kProbeFileBytes / kTileBytes;
  for (std::uint32_t tile = 0; tile < bench->tiles_; ++tile) {
    contents.tiles.push_back({.unit = 0, .tile = tile, .param_bytes = kTileBytes});
  }
  std::vector<std::unique_ptr<tiers::nvme::BlockFile>> files;
  files.push_back(std::make_unique<NamelessFile>(std::move(file), folder));
  HEADRACE_ASSIGN(const Id128 id, random_id());
  HEADRACE_ASSIGN(bench->store_,
                  tiers::nvme::Store::format(std::move(files), id, contents, {.slots = 1}));
  HEADRACE_TRY(bench->store_->mark_dirty());
  HEADRACE_TRY(switch_to_direct_io(descriptor));
  HEADRACE_TRY(bench->use({.in_flight = kDepths[1], .bytes = kBlockBytes}));
  // The first write to a block costs more than later ones; on a slow drive it also says how much
  // can be passed over in the time.
  HEADRACE_TRY(bench->pass(DriveMix::kWrite, kPassTimeMax));
  bench->tiles_ = std::max<std::uint64_t>(bench->passed_ / kLanes * kLanes, kLanes);
  return bench;
}

Status DriveBench::use(const DriveRequests& requests) {
  engine_.reset();
  HEADRACE_ASSIGN(
      engine_,
      tiers::nvme::IoEngine::create(runtime_,
                                    *store_,
                                    0,
                                    {.lanes = kLanes,
                                     .io_depth = requests.in_flight,
                                     .request_bytes_max = requests.bytes,
                                     .buffers = {{arena_->data(), kLanes * kTileBytes}}}));
  return {};
}

bool DriveBench::writes(DriveMix mix, std::uint64_t tile) {
  switch (mix) {
    case DriveMix::kRead:
      return false;
    case DriveMix::kWrite:
      return true;
    // Lanes change their direction with each tile.
    case DriveMix::kBoth:
      return (tile / kLanes + tile) % 2 == 1;
    case DriveMix::kMoreReads:
      return (tile / kLanes + tile) % 4 == 3;
    case DriveMix::kMoreWrites:
      return (tile / kLanes + tile) % 4 != 3;
  }
  return false;
}

Result<double> DriveBench::pass(DriveMix mix, std::chrono::milliseconds time_max) {
  const auto begin = Clock::now();
  HEADRACE_ASSIGN(const double bytes, pass_bytes(mix, time_max));
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return bytes / std::max(seconds.count(), 1e-9);
}

Result<double> DriveBench::pass_bytes(DriveMix mix, std::chrono::milliseconds time_max) {
  const auto begin = Clock::now();
  std::uint64_t moved = 0;
  // A round of the lanes at a time, so that no more is in their rings than ends soon.
  for (std::uint64_t tile = 0; tile < tiles_ && (tile < kLanes || Clock::now() < begin + time_max);
       ++tile) {
    const std::uint64_t lane_index = tile % kLanes;
    tiers::nvme::IoLane& lane = engine_->lane(static_cast<int>(lane_index));
    const std::span<std::byte> buffer(arena_->data() + lane_index * kTileBytes, kTileBytes);
    HEADRACE_TRY(waits_[lane_index].wait_host());
    if (writes(mix, tile)) {
      ++step_;
      lane.write(key_of(tile), buffer, step_, tile);
    } else {
      lane.read(key_of(tile), buffer, tile);
    }
    waits_[lane_index] = previous_[lane_index];
    previous_[lane_index] = lane.record();
    ++moved;
  }
  for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
    HEADRACE_TRY(engine_->lane(static_cast<int>(lane)).drain());
    waits_[lane] = previous_[lane] = {};
  }
  passed_ = moved;
  return static_cast<double>(moved * kTileBytes);
}

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

Result<DriveRates> probe_drive(const std::string& folder,
                               std::unique_ptr<DriveBench>* bench,
                               std::string* why_not) {
  DriveRates rates;
  HEADRACE_ASSIGN(const Filesystem filesystem, filesystem_of(folder));
  rates.capacity_bytes = filesystem.total_bytes;
  rates.device = device_of(folder);
  const DriveRates unmeasured = rates;
  Result<std::unique_ptr<DriveBench>> made = DriveBench::create(folder);
  Status status = made ? measure(**made, rates) : Status(made.error());
  if (!status && status.error().code == ExitCode::kOperating) {
    log_warning(fmt::format("probe: '{}' was not measured: {}", folder, status.error().why));
    if (why_not != nullptr) {
      *why_not = status.error().why;
    }
    return unmeasured;
  }
  HEADRACE_TRY(std::move(status));
  if (bench != nullptr) {
    *bench = *std::move(made);
  }
  return rates;
}

}  // namespace headrace::train
