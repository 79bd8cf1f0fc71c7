// What the store's engine costs beside a bare io_uring loop, and what an urgent read waits for.
//
// Each comparison is one interleaved run on one file: the tier's lanes (sums on), then the bare
// loop over the same extents, with the same buffers and bytes in flight, then the tier again, ...;
// medians of the rounds are printed. The file is written before, contents are random, and what was
// written last is read back and compared. Threads: the main one submits, the engine's runs.
//
//   store_bench FOLDER [--depth N] [--lanes N] [--tile-mib N] [--total-gib N] [--rounds N]
//                      [--only tier,latency,pages,fio]
//
//   tier     read, write, mixed: GB/s of both sides, core-seconds per GB and where they went
//   latency  an urgent read while prefetch and write-back saturate the drive, and alone
//   pages    the bare loop over kinds of pages, sizes of the buffer set and sizes of requests
//   fio      the same patterns by fio, where it is installed (huge-page buffers where reserved)

#include <fmt/core.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tiers/nvme/io_engine.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
constexpr std::size_t kRequestBytes = std::size_t{1} << 20U;
constexpr double kGiga = 1e9;

struct Settings {
  std::string folder;
  unsigned io_depth = 8;
  unsigned lanes = 4;
  std::uint64_t tile_bytes = std::uint64_t{8} << 20U;
  std::uint64_t total_bytes = std::uint64_t{2} << 30U;
  int rounds = 5;
  std::string only = "tier,latency,pages,fio";
};

void fail(const Error& error) {
  fmt::print(stderr, "{}", format_error(error, true));
  std::exit(static_cast<int>(error.code));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The q-quantile; the largest value for q = 1.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void fill_randomly(std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= memory.size();
       at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

// kSplit: as contiguous as huge pages, but mapped page by page.
enum class Pages : std::uint8_t { kHuge, kSplit, kOrdinary };
constexpr std::array kPagesNames = {"huge", "split", "ordinary"};

// Memory on pages of a kind, filled.
class Buffers {
 public:
  Buffers(std::size_t bytes, Pages kind) : bytes_(bytes + kHugePageBytes) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      fail(errno_error("no memory for buffers", errno));
    }
    if (::madvise(memory_, bytes_, kind == Pages::kOrdinary ? MADV_NOHUGEPAGE : MADV_HUGEPAGE) !=
        0) {
      fmt::print("(the system does not take advice on huge pages)\n");
    }
    const auto address = reinterpret_cast<std::uintptr_t>(memory_);
    const std::size_t shift = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
    span_ = {static_cast<std::byte*>(memory_) + shift, bytes};
    fill_randomly(span_, 1);
    // Other rights for a part of a huge page take its one entry of the page table apart.
    for (std::size_t at = 0; kind == Pages::kSplit && at < bytes; at += kHugePageBytes) {
      if (::mprotect(&span_[at], kPageBytes, PROT_READ) != 0 ||
          ::mprotect(&span_[at], kPageBytes, PROT_READ | PROT_WRITE) != 0) {
        fail(errno_error("a huge page cannot be split", errno));
      }
    }
  }

  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  ~Buffers() { ::munmap(memory_, bytes_); }

  [[nodiscard]] std::span<std::byte> bytes() const { return span_; }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
  std::span<std::byte> span_;
};

enum class Pattern : std::uint8_t { kRead, kWrite, kMixed };
constexpr std::array kPatterns = {Pattern::kRead, Pattern::kWrite, Pattern::kMixed};
constexpr std::array kPatternNames = {"read", "write", "mixed"};

bool writes(Pattern pattern, std::uint64_t tile) {
  return pattern == Pattern::kWrite || (pattern == Pattern::kMixed && tile % 2 == 1);
}

// One transfer of the bare loop.
struct Piece {
  std::uint64_t offset = 0;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

// The least that can be done: one ring, a registered file, no sums, `depth` requests in flight.
// Buffers are registered as the engine registers them.
class BareLoop {
 public:
  BareLoop(int fd, unsigned depth, std::span<std::byte> buffers) {
    constexpr unsigned kFlags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    if (::io_uring_queue_init(depth, &ring_, kFlags) < 0 &&
        ::io_uring_queue_init(depth, &ring_, 0) < 0) {
      fail(operating_error("io_uring cannot be used here"));
    }
    const iovec piece{.iov_base = buffers.data(), .iov_len = buffers.size()};
    registered_ = ::io_uring_register_buffers(&ring_, &piece, 1) == 0;
    if (::io_uring_register_files(&ring_, &fd, 1) != 0) {
      fail(operating_error("a file cannot be registered with io_uring"));
    }
  }

  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  ~BareLoop() { ::io_uring_queue_exit(&ring_); }

  // Returns GB/s.
  double run(std::span<const Piece> pieces, unsigned depth) {
    const double begin = seconds_now();
    std::size_t next = 0;
    unsigned in_flight = 0;
    std::uint64_t bytes = 0;
    while (next < pieces.size() || in_flight > 0) {
      for (; in_flight < depth && next < pieces.size(); ++in_flight) {
        put(pieces[next++]);
      }
      if (::io_uring_submit_and_wait(&ring_, 1) < 0) {
        fail(operating_error("io_uring_enter fails"));
      }
      io_uring_cqe* done = nullptr;
      for (; ::io_uring_peek_cqe(&ring_, &done) == 0; --in_flight) {
        const auto& piece = *static_cast<const Piece*>(::io_uring_cqe_get_data(done));
        if (done->res != static_cast<int>(piece.bytes)) {
          fail(operating_error(fmt::format("a request of the bare loop gave {}", done->res)));
        }
        bytes += piece.bytes;
        ::io_uring_cqe_seen(&ring_, done);
      }
    }
    return static_cast<double>(bytes) / kGiga / (seconds_now() - begin);
  }

 private:
  void put(const Piece& piece) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(piece.bytes);
    if (registered_) {
      piece.write ? ::io_uring_prep_write_fixed(entry, 0, piece.memory, bytes, piece.offset, 0)
                  : ::io_uring_prep_read_fixed(entry, 0, piece.memory, bytes, piece.offset, 0);
    } else {
      piece.write ? ::io_uring_prep_write(entry, 0, piece.memory, bytes, piece.offset)
                  : ::io_uring_prep_read(entry, 0, piece.memory, bytes, piece.offset);
    }
    ::io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    ::io_uring_sqe_set_data(entry, const_cast<Piece*>(&piece));  // NOLINT: only read
  }

  io_uring ring_{};
  bool registered_ = false;
};

struct CpuTime {
  double user = 0;
  double system = 0;

  static CpuTime now() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    return {.user = seconds(usage.ru_utime), .system = seconds(usage.ru_stime)};
  }
};

// A store, an engine and what both sides transfer.
class Bench {
 public:
  explicit Bench(const Settings& settings);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void tier();
  void latency();
  void pages();
  void fio();

 private:
  struct Sides {
    std::vector<double> tier, bare;
    double bytes = 0;  // of the tier
    CpuTime cpu{};
    double sum_seconds = 0;
  };

  void make_engine();

  [[nodiscard]] static ExtentKey key(std::uint64_t tile) {
    return {.unit = 0, .tile = static_cast<std::uint32_t>(tile), .kind = ExtentKind::kParam};
  }

  [[nodiscard]] std::span<std::byte> of_lane(std::uint64_t lane) const {
    return buffers_->bytes().subspan(lane * settings_.tile_bytes, settings_.tile_bytes);
  }

  double run_tier(Pattern pattern);
  [[nodiscard]] std::vector<Piece> pieces(Pattern pattern) const;
  void verify();
  void saturate(const std::atomic<bool>& stop);
  [[nodiscard]] std::vector<double> urgent_reads(int count);

  Settings settings_;
  std::uint64_t tiles_;
  std::unique_ptr<Store> store_;
  Runtime runtime_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<IoEngine> engine_;
  std::int64_t step_ = 0;
};

Bench::Bench(const Settings& settings)
    : settings_(settings), tiles_(settings.total_bytes / settings.tile_bytes) {
  StoreContents contents;
  contents.layout_tag = "bench";
  contents.tensor_table = "{}";
  for (std::uint32_t tile = 0; tile < tiles_; ++tile) {
    contents.tiles.push_back(
        {.unit = 0, .tile = tile, .param_bytes = settings.tile_bytes, .state_bytes = 0});
  }
  StoreOptions options;
  options.folders = {{.path = settings.folder}};
  options.slots = 1;
  options.direct_io_required = false;
  Result<std::unique_ptr<Store>> store = Store::create(options, contents);
  if (!store) {
    fail(store.error());
  }
  store_ = std::move(*store);
  if (const Status status = store_->mark_dirty(); !status) {
    fail(status.error());
  }
  // One more lane than the patterns use: for the urgent read.
  buffers_ = std::make_unique<Buffers>((settings.lanes + 1) * settings.tile_bytes, Pages::kHuge);
  make_engine();
  run_tier(Pattern::kWrite);  // no round pays for blocks that were never written
  fmt::print("tiles of {} MiB, {} lanes, {} requests of 1 MiB in flight, {}, direct I/O {}\n",
             settings.tile_bytes >> 20U,
             settings.lanes,
             settings.io_depth,
             describe(engine_->facts()),
             store_->direct_io() ? "on" : "off");
}

Bench::~Bench() {
  engine_.reset();
  const std::string id = store_->id();
  store_.reset();
  if (const Status status = remove_store({settings_.folder}, id); !status) {
    fmt::print(stderr, "{}", format_error(status.error(), true));
  }
}

void Bench::make_engine() {
  EngineOptions options;
  options.lanes = static_cast<int>(settings_.lanes) + 1;
  options.io_depth = static_cast<int>(settings_.io_depth);
  options.request_bytes_max = kRequestBytes;
  options.buffers = {buffers_->bytes()};
  Result<std::unique_ptr<IoEngine>> engine = IoEngine::create(runtime_, *store_, 0, options);
  if (!engine) {
    fail(engine.error());
  }
  engine_ = std::move(*engine);
}

// Every tile once, over the lanes in turn. Returns GB/s of payload.
double Bench::run_tier(Pattern pattern) {
  ++step_;
  const double begin = seconds_now();
  for (std::uint64_t tile = 0; tile < tiles_; ++tile) {
    const std::uint64_t lane = tile % settings_.lanes;
    IoLane& queue = engine_->lane(static_cast<int>(lane));
    // Mixed: halves of the lanes change their direction with each tile.
    if (writes(pattern, tile / settings_.lanes + lane)) {
      queue.write(key(tile), of_lane(lane), step_, tile);
    } else {
      queue.read(key(tile), of_lane(lane), tile);
    }
  }
  for (std::uint64_t lane = 0; lane < settings_.lanes; ++lane) {
    if (const Status status = engine_->lane(static_cast<int>(lane)).drain(); !status) {
      fail(status.error());
    }
  }
  return static_cast<double>(tiles_ * settings_.tile_bytes) / kGiga / (seconds_now() - begin);
}

// The same extents for the bare loop: as many tiles at a time as there are lanes, a request of each
// in turn, which is how the engine's requests come.
std::vector<Piece> Bench::pieces(Pattern pattern) const {
  std::vector<Piece> pieces;
  for (std::uint64_t first = 0; first < tiles_; first += settings_.lanes) {
    for (std::size_t at = 0; at < settings_.tile_bytes; at += kRequestBytes) {
      for (std::uint64_t lane = 0; lane < settings_.lanes && first + lane < tiles_; ++lane) {
        const ExtentPlace place = store_->read_place(key(first + lane));
        pieces.push_back({.offset = place.offset + place.header_bytes + at,
                          .memory = of_lane(lane).data() + at,
                          .bytes = std::min<std::size_t>(kRequestBytes, settings_.tile_bytes - at),
                          .write = writes(pattern, first / settings_.lanes + lane)});
      }
    }
  }
  return pieces;
}

// What is in the file is what the buffers hold, in every tile.
void Bench::verify() {
  for (std::uint64_t lane = 0; lane < settings_.lanes; ++lane) {
    fill_randomly(of_lane(lane), 77 + lane);
  }
  run_tier(Pattern::kWrite);
  std::vector<std::byte> found(settings_.tile_bytes);
  for (std::uint64_t tile = 0; tile < tiles_; ++tile) {
    const Status status = store_->read_now(key(tile), found);
    if (!status) {
      fail(status.error());
    }
    if (std::memcmp(found.data(), of_lane(tile % settings_.lanes).data(), found.size()) != 0) {
      fail(corrupt_error("wrong bytes were read back"));
    }
  }
}

void Bench::tier() {
  for (std::size_t i = 0; i < kPatterns.size(); ++i) {
    Sides sides;
    BareLoop bare(store_->file(0).fd(), settings_.io_depth, buffers_->bytes());
    const std::vector<Piece> bare_pieces = pieces(kPatterns[i]);
    for (int round = 0; round < settings_.rounds; ++round) {
      // The bare loop writes the same bytes that the tier wrote, so sums stay right.
      const CpuTime before = CpuTime::now();
      const std::int64_t sums_before_ns = engine_->totals().sum_ns;
      sides.tier.push_back(run_tier(kPatterns[i]));
      const CpuTime after = CpuTime::now();
      sides.cpu.user += after.user - before.user;
      sides.cpu.system += after.system - before.system;
      sides.sum_seconds += static_cast<double>(engine_->totals().sum_ns - sums_before_ns) / 1e9;
      sides.bytes += static_cast<double>(tiles_ * settings_.tile_bytes);
      sides.bare.push_back(bare.run(bare_pieces, settings_.io_depth));
      verify();
    }
    const double gigabytes = sides.bytes / kGiga;
    fmt::print(
        "{:<5}  tier {:5.2f} GB/s   bare {:5.2f} GB/s   {:5.1f} %   {:.3f} core-s/GB: sums {:.3f}, "
        "kernel {:.3f}, rest {:.3f}\n",
        kPatternNames[i],
        median(sides.tier),
        median(sides.bare),
        100 * median(sides.tier) / median(sides.bare),
        (sides.cpu.user + sides.cpu.system) / gigabytes,
        sides.sum_seconds / gigabytes,
        sides.cpu.system / gigabytes,
        (sides.cpu.user - sides.sum_seconds) / gigabytes);
  }
}

// Reads and writes in all lanes but the last, as fast as their rings take them, until told to stop.
void Bench::saturate(const std::atomic<bool>& stop) {
  for (std::uint64_t tile = 0; !stop.load(); ++tile) {
    const std::uint64_t lane = tile % settings_.lanes;
    IoLane& queue = engine_->lane(static_cast<int>(lane));
    const std::uint64_t at = tile % (tiles_ / 2);
    lane % 2 == 0 ? queue.read(key(at), of_lane(lane), at)
                  : queue.write(key(at), of_lane(lane), step_, at);
  }
  for (std::uint64_t lane = 0; lane < settings_.lanes; ++lane) {
    if (const Status status = engine_->lane(static_cast<int>(lane)).drain(); !status) {
      fail(status.error());
    }
  }
}

// Seconds that each of so many reads of a tile took which were wanted at once.
std::vector<double> Bench::urgent_reads(int count) {
  std::vector<double> seconds;
  std::mt19937_64 random(5);
  IoLane& urgent = engine_->lane(static_cast<int>(settings_.lanes));
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 2000));
    const std::uint64_t wanted = tiles_ / 2 + random() % (tiles_ - tiles_ / 2);
    const double begin = seconds_now();
    urgent.read(key(wanted), of_lane(settings_.lanes), wanted, kWantedNow);
    if (const Status status = urgent.record().wait_host(); !status) {
      fail(status.error());
    }
    seconds.push_back(seconds_now() - begin);
  }
  return seconds;
}

void Bench::latency() {
  constexpr int kReads = 400;
  constexpr double kAllowed = 1.25;
  constexpr double kMs = 1e3;
  const double mixed = run_tier(Pattern::kMixed) * kGiga;
  const std::vector<double> idle = urgent_reads(kReads);
  std::atomic<bool> stop{false};
  std::thread others([&] { saturate(stop); });
  const std::vector<double> busy = urgent_reads(kReads);
  stop.store(true);
  others.join();
  const auto in_flight = static_cast<double>(settings_.io_depth * kRequestBytes);
  const double bound = quantile(idle, 0.99) + kAllowed * in_flight / mixed;
  fmt::print(
      "urgent read of {} MiB: idle p50 {:.2f} ms, p99 {:.2f} ms; while reads and writes saturate "
      "the drive p50 {:.2f} ms, p99 {:.2f} ms; bound {:.2f} ms ({} MiB in flight, {:.2f} GB/s)\n",
      settings_.tile_bytes >> 20U,
      kMs * quantile(idle, 0.5),
      kMs * quantile(idle, 0.99),
      kMs * quantile(busy, 0.5),
      kMs * quantile(busy, 0.99),
      kMs * bound,
      (settings_.io_depth * kRequestBytes) >> 20U,
      mixed / kGiga);
}

// Why pages matter: reads by the bare loop, the kinds taking turns.
void Bench::pages() {
  struct Kind {
    Pages pages;
    std::size_t set_mib;
    std::size_t request_kib;
  };

  // 1,016 KiB are 254 ordinary pages: what many virtual drives take as one request.
  constexpr std::array kKinds = {Kind{Pages::kHuge, 8, 1024},
                                 Kind{Pages::kSplit, 8, 1024},
                                 Kind{Pages::kOrdinary, 8, 1024},
                                 Kind{Pages::kHuge, 64, 1024},
                                 Kind{Pages::kOrdinary, 64, 1024},
                                 Kind{Pages::kHuge, 512, 1024},
                                 Kind{Pages::kOrdinary, 512, 1024},
                                 Kind{Pages::kHuge, 8, 1016},
                                 Kind{Pages::kOrdinary, 8, 1016},
                                 Kind{Pages::kHuge, 8, 256},
                                 Kind{Pages::kOrdinary, 8, 256}};
  std::array<std::vector<double>, kKinds.size()> rates;
  std::array<double, kKinds.size()> system{};
  const std::uint64_t begin = store_->read_place(key(0)).offset;
  const std::uint64_t end = store_->read_place(key(tiles_ - 1)).offset;
  for (int round = 0; round < settings_.rounds; ++round) {
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      const std::size_t request_bytes = kKinds[i].request_kib << 10U;
      const std::size_t in_set = (kKinds[i].set_mib << 20U) / request_bytes;
      const Buffers buffers(kKinds[i].set_mib << 20U, kKinds[i].pages);
      std::vector<Piece> reads;
      for (std::uint64_t at = begin; at + request_bytes <= end; at += request_bytes) {
        reads.push_back({.offset = at,
                         .memory = buffers.bytes().data() + (reads.size() % in_set) * request_bytes,
                         .bytes = request_bytes});
      }
      const unsigned depth =
          settings_.io_depth * static_cast<unsigned>(kRequestBytes / request_bytes);
      BareLoop bare(store_->file(0).fd(), depth, buffers.bytes());
      const CpuTime before = CpuTime::now();
      rates[i].push_back(bare.run(reads, depth));
      system[i] += (CpuTime::now().system - before.system) /
                   (static_cast<double>(reads.size() * request_bytes) / kGiga);
    }
  }
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    fmt::print(
        "{:<8} pages, buffers of {:3} MiB, requests of {:4} KiB: {:5.2f} GB/s, kernel "
        "{:.3f} core-s/GB\n",
        kPagesNames[static_cast<std::size_t>(kKinds[i].pages)],
        kKinds[i].set_mib,
        kKinds[i].request_kib,
        median(rates[i]),
        system[i] / settings_.rounds);
  }
}

// The exit status of a shell's command line: fio is a program, and its result needs a filter.
int shell(const std::string& command) {
  return std::system(command.c_str());  // tidy_test: a benchmark that runs another program
}

// fio's own lines, on a file of its own in the same folder.
void Bench::fio() {
  if (shell("command -v fio >/dev/null") != 0) {
    fmt::print("fio is not installed\n");
    return;
  }
  const std::string file = settings_.folder + "/store_bench.fio";
  const bool huge = shell("test $(cat /proc/sys/vm/nr_hugepages) -ge 16") == 0;
  const std::array modes = {"read", "write", "rw"};
  for (const char* engine : {"io_uring", "libaio"}) {
    for (std::size_t i = 0; i < modes.size(); ++i) {
      fmt::print("fio {} {}{}: ", engine, kPatternNames[i], huge ? ", huge pages" : "");
      if (std::fflush(stdout) != 0) {
        fail(errno_error("cannot write to stdout", errno));
      }
      const std::string command = fmt::format(
          "fio --name=x --ioengine={} --direct=1 --rw={} --bs=1M --iodepth={} --filename='{}' "
          "--size={} --loops={} --refill_buffers --overwrite=1 --randrepeat=0 --iomem={} "
          "--output-format=terse --terse-version=3 2>/dev/null | "
          "awk -F';' '{{printf \"%.2f GB/s\\n\", ($7 + $48) * 1024 / 1e9}}'",
          engine,
          modes[i],
          settings_.io_depth,
          file,
          settings_.total_bytes,
          settings_.rounds,
          huge ? "shmhuge" : "malloc");
      if (shell(command) != 0) {
        fmt::print("failed\n");
      }
    }
  }
  ::unlink(file.c_str());
}

int main_of(const Settings& settings) {
  Bench bench(settings);
  const auto wanted = [&](const char* name) {
    return settings.only.find(name) != std::string::npos;
  };
  if (wanted("tier")) {
    bench.tier();
  }
  if (wanted("latency")) {
    bench.latency();
  }
  if (wanted("pages")) {
    bench.pages();
  }
  if (wanted("fio")) {
    bench.fio();
  }
  return 0;
}

std::optional<Settings> parse(std::span<char*> arguments) {
  Settings settings;
  std::map<std::string, std::string> options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string text = arguments[i];
    if (text.starts_with("--") && i + 1 < arguments.size()) {
      options[text] = arguments[++i];
    } else if (settings.folder.empty() && !text.starts_with("-")) {
      settings.folder = text;
    } else {
      return std::nullopt;
    }
  }
  const auto number = [&](const char* name, std::uint64_t otherwise) {
    const auto found = options.find(name);
    return found == options.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
  };
  settings.io_depth = static_cast<unsigned>(number("--depth", settings.io_depth));
  settings.lanes = static_cast<unsigned>(number("--lanes", settings.lanes));
  settings.tile_bytes = number("--tile-mib", settings.tile_bytes >> 20U) << 20U;
  settings.total_bytes = number("--total-gib", settings.total_bytes >> 30U) << 30U;
  settings.rounds = static_cast<int>(number("--rounds", static_cast<unsigned>(settings.rounds)));
  if (options.contains("--only")) {
    settings.only = options["--only"];
  }
  const bool good = !settings.folder.empty() && settings.io_depth > 0 && settings.lanes > 0 &&
                    settings.tile_bytes > 0 && settings.rounds > 0 &&
                    settings.total_bytes >= 4 * std::uint64_t{settings.lanes} * settings.tile_bytes;
  return good ? std::optional(settings) : std::nullopt;
}

}  // namespace
}  // namespace headrace::tiers::nvme

int main(int argc, char** argv) {
  namespace nvme = headrace::tiers::nvme;
  const auto settings = nvme::parse(std::span(argv + 1, static_cast<std::size_t>(argc - 1)));
  if (!settings) {
    fmt::print(stderr,
               "store_bench FOLDER [--depth N] [--lanes N] [--tile-mib N] [--total-gib N] "
               "[--rounds N] [--only tier,latency,pages,fio]\n");
    return 2;
  }
  return nvme::main_of(*settings);
}
