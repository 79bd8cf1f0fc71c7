// GB/s of a store's extents through the lanes: reads, writes and both, into huge pages and ordinary
// ones, checksums on.
//
// The two kinds of buffers take turns within each round, since a disk's level drifts; the median of
// five rounds is printed. The file is written once before, so that no round pays for blocks that
// are allocated but were never written. Contents are random, so no drive compresses them.
// Threads: the main one submits, the engine's runs.
//
//   store_bench FOLDER [depth] [lanes] [mebibytes of a tile] [gibibytes in all]

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tiers/nvme/io_engine.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr int kRounds = 5;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;

struct Settings {
  std::string folder;
  int io_depth = 8;
  int lanes = 4;
  std::uint64_t tile_bytes = std::uint64_t{8} << 20U;
  std::uint64_t total_bytes = std::uint64_t{2} << 30U;
};

// One buffer a lane, on huge pages or expressly not.
class Buffers {
 public:
  Buffers(const Settings& settings, bool huge) : tile_bytes_(settings.tile_bytes) {
    bytes_ = static_cast<std::size_t>(settings.lanes) * tile_bytes_ + kHugePageBytes;
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      std::abort();
    }
    if (::madvise(memory_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0) {
      fmt::print("(the system does not take advice on huge pages)\n");
    }
    std::mt19937_64 random(1);
    for (std::size_t at = 0; at < bytes_; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(static_cast<std::byte*>(memory_) + at, &word, sizeof(word));
    }
  }

  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  ~Buffers() { ::munmap(memory_, bytes_); }

  [[nodiscard]] std::span<std::byte> of_lane(int lane) const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_);
    const std::size_t shift = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
    return {static_cast<std::byte*>(memory_) + shift + static_cast<std::size_t>(lane) * tile_bytes_,
            tile_bytes_};
  }

 private:
  std::uint64_t tile_bytes_;
  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
};

enum class Pattern : std::uint8_t { kWrite, kRead, kMixed };

void fail(const Error& error) {
  fmt::print(stderr, "{}", format_error(error, true));
  std::exit(static_cast<int>(error.code));  // NOLINT(concurrency-mt-unsafe)
}

// Every tile once, over the lanes in turn. Returns GB/s.
double run(const Settings& settings,
           IoEngine& engine,
           const Buffers& buffers,
           Pattern pattern,
           std::int64_t step) {
  const auto tiles = static_cast<std::uint32_t>(settings.total_bytes / settings.tile_bytes);
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint32_t tile = 0; tile < tiles; ++tile) {
    const int lane = static_cast<int>(tile) % settings.lanes;
    const ExtentKey key{.unit = 0, .tile = tile, .kind = ExtentKind::kParam};
    const bool write = pattern == Pattern::kWrite ||
                       (pattern == Pattern::kMixed &&
                        (tile / static_cast<std::uint32_t>(settings.lanes)) % 2 == tile % 2);
    if (write) {
      engine.lane(lane).write(key, buffers.of_lane(lane), step, tile);
    } else {
      engine.lane(lane).read(key, buffers.of_lane(lane), tile);
    }
  }
  for (int lane = 0; lane < settings.lanes; ++lane) {
    if (const Status status = engine.lane(lane).drain(); !status) {
      fail(status.error());
    }
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(tiles * settings.tile_bytes) / 1e9 / taken.count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void bench(const Settings& settings, Store& store) {
  Runtime runtime;
  Result<std::unique_ptr<IoEngine>> engine =
      IoEngine::create(runtime, store, 0, {.lanes = settings.lanes, .io_depth = settings.io_depth});
  if (!engine) {
    fail(engine.error());
  }
  const Buffers huge(settings, true);
  const Buffers ordinary(settings, false);
  std::int64_t step = 0;
  run(settings, **engine, ordinary, Pattern::kWrite, step);
  const std::array patterns = {Pattern::kRead, Pattern::kWrite, Pattern::kMixed};
  const std::array names = {"read", "write", "mixed"};
  fmt::print("tiles of {} MiB, {} lanes, {} requests of 1 MiB, direct I/O {}, checksums on\n",
             settings.tile_bytes >> 20U,
             settings.lanes,
             settings.io_depth,
             store.direct_io() ? "on" : "off");
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    std::vector<double> of_huge;
    std::vector<double> of_ordinary;
    for (int round = 0; round < kRounds; ++round) {
      of_huge.push_back(run(settings, **engine, huge, patterns[i], ++step));
      of_ordinary.push_back(run(settings, **engine, ordinary, patterns[i], ++step));
    }
    fmt::print("{:<5}  huge pages {:5.2f} GB/s   ordinary pages {:5.2f} GB/s\n",
               names[i],
               median(of_huge),
               median(of_ordinary));
  }
}

int main_of(const Settings& settings) {
  StoreContents contents;
  contents.layout_tag = "bench";
  for (std::uint32_t tile = 0; tile < settings.total_bytes / settings.tile_bytes; ++tile) {
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
  if (const Status status = (*store)->mark_dirty(); !status) {
    fail(status.error());
  }
  bench(settings, **store);
  const std::string id = (*store)->id();
  store->reset();
  if (const Status status = remove_store({settings.folder}, id); !status) {
    fail(status.error());
  }
  return 0;
}

}  // namespace
}  // namespace headrace::tiers::nvme

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto number = [&](std::size_t index, std::uint64_t otherwise) {
    return index < arguments.size() ? std::strtoull(arguments[index].c_str(), nullptr, 10)
                                    : otherwise;
  };
  headrace::tiers::nvme::Settings settings;
  if (!arguments.empty()) {
    settings.folder = arguments[0];
  }
  settings.io_depth = static_cast<int>(number(1, 8));
  settings.lanes = static_cast<int>(number(2, 4));
  settings.tile_bytes = number(3, 8) << 20U;
  settings.total_bytes = number(4, 2) << 30U;
  if (settings.folder.empty() || settings.io_depth < 1 || settings.lanes < 1 ||
      settings.tile_bytes == 0 || settings.total_bytes < settings.tile_bytes) {
    fmt::print(stderr, "store_bench FOLDER [depth] [lanes] [mebibytes of a tile] [gibibytes]\n");
    return 2;
  }
  return headrace::tiers::nvme::main_of(settings);
}
