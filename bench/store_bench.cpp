// What the store's engine costs beside a bare io_uring loop, and what an urgent read waits for.
//
// Each comparison is one interleaved run on one file: the tier's lanes (sums on), then the bare
// loop over the same extents, with the same buffers and bytes in flight, then the bare loop while
// another thread sums the same bytes, then fio, then the tier again, ...; medians of the rounds are
// printed, and of the ratios within each. The file is written before, contents are random, and what
// was written last is read back and compared. Threads: the main one submits, the engine's runs.
//
//   store_bench FOLDER [--depth N] [--request-kib N] [--lanes N] [--tile-mib N] [--total-gib N]
//   [--rounds N]
//                      [--only tier,fio,latency,pages]
//
//   tier     read, write, mixed: GB/s of all sides, core-seconds per GB and where they went. What
//            the bare loop loses to the thread that sums is what summing costs here however it is
//            done: memory that is read twice at once
//   fio      beside tier: fio's lines too, where it is installed (huge-page buffers where reserved)
//   latency  an urgent read while prefetch and write-back saturate the drive, and alone; and the
//            same by a bare loop
//   pages    the bare loop over kinds of pages, sizes of the buffer set and sizes of requests

#include <fmt/core.h>
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

#include "bench/bare_loop.hpp"
#include "tiers/nvme/io_engine.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20U;  // of requests where pages are compared

struct Settings {
  std::string folder;
  unsigned io_depth = 8;
  unsigned lanes = 4;
  std::size_t request_bytes = std::size_t{1} << 20U;
  std::uint64_t tile_bytes = std::uint64_t{8} << 20U;
  std::uint64_t total_bytes = std::uint64_t{2} << 30U;
  int rounds = 5;
  std::string only = "tier,fio,latency,pages";
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The q-quantile; the largest value for q = 1.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

enum class Pattern : std::uint8_t { kRead, kWrite, kMixed };
constexpr std::array kPatterns = {Pattern::kRead, Pattern::kWrite, Pattern::kMixed};
constexpr std::array kPatternNames = {"read", "write", "mixed"};

bool writes(Pattern pattern, std::uint64_t tile) {
  return pattern == Pattern::kWrite || (pattern == Pattern::kMixed && tile % 2 == 1);
}

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

  void tier(bool with_fio);
  void latency();
  void pages();

 private:
  struct Sides {
    std::vector<double> tier, bare, summed;
    std::map<std::string, std::vector<double>> fio;
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

  [[nodiscard]] std::string fio_file() const { return settings_.folder + "/store_bench.fio"; }

  [[nodiscard]] double run_fio(const std::string& engine, Pattern pattern) const;
  [[nodiscard]] std::vector<Piece> urgent_pieces(std::mt19937_64& random) const;
  void saturate(const std::atomic<bool>& stop);
  [[nodiscard]] std::vector<double> urgent_reads(std::mt19937_64& random, int count);

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
  fmt::print("tiles of {} MiB, {} lanes, {} requests of {} KiB in flight, {}, direct I/O {}\n",
             settings.tile_bytes >> 20U,
             settings.lanes,
             settings.io_depth,
             settings.request_bytes >> 10U,
             describe(engine_->facts()),
             store_->direct_io() ? "on" : "off");
}

Bench::~Bench() {
  ::unlink(fio_file().c_str());
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
  options.request_bytes_max = settings_.request_bytes;
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
      queue.write(key(tile), of_lane(lane), step_, tile, tile + 1);
    } else {
      queue.read(key(tile), of_lane(lane), tile, tile + 1);
    }
  }
  for (std::uint64_t lane = 0; lane < settings_.lanes; ++lane) {
    if (const Status status = engine_->lane(static_cast<int>(lane)).drain(); !status) {
      fail(status.error());
    }
  }
  return static_cast<double>(tiles_ * settings_.tile_bytes) / kGiga / (seconds_now() - begin);
}

// The same extents in the same order for the bare loop.
std::vector<Piece> Bench::pieces(Pattern pattern) const {
  std::vector<Piece> pieces;
  for (std::uint64_t tile = 0; tile < tiles_; ++tile) {
    const std::uint64_t lane = tile % settings_.lanes;
    const ExtentPlace place = store_->read_place(key(tile));
    for (std::size_t at = 0; at < settings_.tile_bytes; at += settings_.request_bytes) {
      pieces.push_back(
          {.offset = place.offset + place.header_bytes + at,
           .memory = of_lane(lane).data() + at,
           .bytes = std::min<std::size_t>(settings_.request_bytes, settings_.tile_bytes - at),
           .write = writes(pattern, tile / settings_.lanes + lane)});
    }
  }
  return pieces;
}

// A tile of the second half, into the urgent lane's buffer, for the bare loop.
std::vector<Piece> Bench::urgent_pieces(std::mt19937_64& random) const {
  const std::uint64_t tile = tiles_ / 2 + random() % (tiles_ - tiles_ / 2);
  const ExtentPlace place = store_->read_place(key(tile));
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at < settings_.tile_bytes; at += settings_.request_bytes) {
    pieces.push_back(
        {.offset = place.offset + place.header_bytes + at,
         .memory = of_lane(settings_.lanes).data() + at,
         .bytes = std::min<std::size_t>(settings_.request_bytes, settings_.tile_bytes - at)});
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

void Bench::tier(bool with_fio) {
  const std::vector<std::string> fio_engines =
      with_fio ? std::vector<std::string>{"io_uring", "libaio"} : std::vector<std::string>{};
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
      {
        SumThread sums;
        sides.summed.push_back(bare.run(bare_pieces, settings_.io_depth, &sums));
      }
      for (const std::string& engine : fio_engines) {
        sides.fio[engine].push_back(run_fio(engine, kPatterns[i]));
      }
    }
    verify();
    const double gigabytes = sides.bytes / kGiga;
    const double rate = median(sides.tier);
    // The drive's rate drifts between rounds: sides are compared within each.
    const auto percent_of = [&](const std::vector<double>& other) {
      std::vector<double> ratios;
      for (std::size_t round = 0; round < other.size(); ++round) {
        ratios.push_back(sides.tier[round] / other[round]);
      }
      return 100 * median(ratios);
    };
    fmt::print(
        "{:<5}  tier {:5.2f} GB/s   bare {:5.2f}: {:5.1f} %   bare beside sums {:5.2f}: {:5.1f} %  "
        " {:.3f} core-s/GB: sums {:.3f}, kernel {:.3f}, rest {:.3f}\n",
        kPatternNames[i],
        rate,
        median(sides.bare),
        percent_of(sides.bare),
        median(sides.summed),
        percent_of(sides.summed),
        (sides.cpu.user + sides.cpu.system) / gigabytes,
        sides.sum_seconds / gigabytes,
        sides.cpu.system / gigabytes,
        (sides.cpu.user - sides.sum_seconds) / gigabytes);
    for (const auto& [engine, rates] : sides.fio) {
      fmt::print(
          "       fio {:<8} {:5.2f} GB/s: {:5.1f} %\n", engine, median(rates), percent_of(rates));
    }
  }
}

// Reads and writes in all lanes but the last, as fast as their rings take them, until told to stop.
void Bench::saturate(const std::atomic<bool>& stop) {
  for (std::uint64_t tile = 0; !stop.load(); ++tile) {
    const std::uint64_t lane = tile % settings_.lanes;
    IoLane& queue = engine_->lane(static_cast<int>(lane));
    const std::uint64_t at = tile % (tiles_ / 2);
    lane % 2 == 0 ? queue.read(key(at), of_lane(lane), at, tile + 1)
                  : queue.write(key(at), of_lane(lane), step_, at, tile + 1);
  }
  for (std::uint64_t lane = 0; lane < settings_.lanes; ++lane) {
    if (const Status status = engine_->lane(static_cast<int>(lane)).drain(); !status) {
      fail(status.error());
    }
  }
}

// Seconds that each of so many reads of a tile took which were wanted at once.
std::vector<double> Bench::urgent_reads(std::mt19937_64& random, int count) {
  std::vector<double> seconds;
  IoLane& urgent = engine_->lane(static_cast<int>(settings_.lanes));
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds(random)));
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
  constexpr int kReads = 40;  // a round
  constexpr int kRounds = 10;
  constexpr double kAllowed = 1.25;
  constexpr double kMs = 1e3;
  const double mixed = run_tier(Pattern::kMixed) * kGiga;
  BareLoop bare(store_->file(0).fd(), settings_.io_depth, buffers_->bytes());
  std::vector<Piece> background = pieces(Pattern::kMixed);
  background.resize(background.size() / 2);
  std::mt19937_64 random(5);
  std::vector<double> idle;
  std::vector<double> busy;
  std::vector<double> bare_busy;
  const auto append = [](std::vector<double>& all, const std::vector<double>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  for (int round = 0; round < kRounds; ++round) {
    append(idle, urgent_reads(random, kReads));
    std::atomic<bool> stop{false};
    std::thread others([&] { saturate(stop); });
    append(busy, urgent_reads(random, kReads));
    stop.store(true);
    others.join();
    append(bare_busy,
           bare.run_urgent(
               background, [&] { return urgent_pieces(random); }, settings_.io_depth, kReads));
  }
  const auto in_flight = static_cast<double>(settings_.io_depth * settings_.request_bytes);
  const double bound = quantile(idle, 0.99) + kAllowed * in_flight / mixed;
  fmt::print(
      "urgent read of {} MiB: idle p50 {:.2f} ms, p99 {:.2f} ms; while reads and writes saturate "
      "the drive p50 {:.2f} ms, p99 {:.2f} ms, by a bare loop p50 {:.2f} ms, p99 {:.2f} ms; bound "
      "{:.2f} ms ({} MiB in flight, {:.2f} GB/s)\n",
      settings_.tile_bytes >> 20U,
      kMs * quantile(idle, 0.5),
      kMs * quantile(idle, 0.99),
      kMs * quantile(busy, 0.5),
      kMs * quantile(busy, 0.99),
      kMs * quantile(bare_busy, 0.5),
      kMs * quantile(bare_busy, 0.99),
      kMs * bound,
      (settings_.io_depth * settings_.request_bytes) >> 20U,
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
          settings_.io_depth * static_cast<unsigned>(kBlockBytes / request_bytes);
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

// What a shell's command line prints: fio is a program, and its result needs a filter.
std::string shell(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");  // tidy_test: runs another program
  if (pipe == nullptr) {
    fail(errno_error("cannot start a shell", errno));
  }
  std::string text;
  for (int next = std::fgetc(pipe); next != EOF; next = std::fgetc(pipe)) {
    text.push_back(static_cast<char>(next));
  }
  ::pclose(pipe);
  return text;
}

// GB/s of fio, on a file of its own in the same folder, which its first run lays out.
double Bench::run_fio(const std::string& engine, Pattern pattern) const {
  constexpr unsigned long kHugePages = 16;
  const bool huge =
      std::strtoul(shell("cat /proc/sys/vm/nr_hugepages").c_str(), nullptr, 10) >= kHugePages;
  const std::array modes = {"read", "write", "rw"};
  const std::string text =
      shell(fmt::format("fio --name=x --ioengine={} --direct=1 --rw={} --bs=1M --iodepth={} "
                        "--filename='{}' --size={} --refill_buffers --overwrite=1 --randrepeat=0 "
                        "--iomem={} --output-format=terse --terse-version=3 2>/dev/null | "
                        "awk -F';' '{{print ($7 + $48) * 1024 / 1e9}}'",
                        engine,
                        modes[static_cast<std::size_t>(pattern)],
                        settings_.io_depth,
                        fio_file(),
                        settings_.total_bytes,
                        huge ? "shmhuge" : "malloc"));
  const double rate = std::strtod(text.c_str(), nullptr);
  if (rate <= 0) {
    fail(operating_error("fio gave no rate").with_hint("install fio, or use --only tier"));
  }
  return rate;
}

int main_of(const Settings& settings) {
  Bench bench(settings);
  const auto wanted = [&](const char* name) {
    return settings.only.find(name) != std::string::npos;
  };
  if (wanted("tier")) {
    bench.tier(wanted("fio"));
  }
  if (wanted("latency")) {
    bench.latency();
  }
  if (wanted("pages")) {
    bench.pages();
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
  settings.request_bytes = number("--request-kib", settings.request_bytes >> 10U) << 10U;
  settings.lanes = static_cast<unsigned>(number("--lanes", settings.lanes));
  settings.tile_bytes = number("--tile-mib", settings.tile_bytes >> 20U) << 20U;
  settings.total_bytes = number("--total-gib", settings.total_bytes >> 30U) << 30U;
  settings.rounds = static_cast<int>(number("--rounds", static_cast<unsigned>(settings.rounds)));
  if (options.contains("--only")) {
    settings.only = options["--only"];
  }
  const bool good = !settings.folder.empty() && settings.io_depth > 0 &&
                    settings.request_bytes > 0 && settings.request_bytes % kPageBytes == 0 &&
                    settings.lanes > 0 && settings.tile_bytes > 0 && settings.rounds > 0 &&
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
               "store_bench FOLDER [--depth N] [--request-kib N] [--lanes N] [--tile-mib N] "
               "[--total-gib N] "
               "[--rounds N] [--only tier,fio,latency,pages]\n");
    return 2;
  }
  return nvme::main_of(*settings);
}
