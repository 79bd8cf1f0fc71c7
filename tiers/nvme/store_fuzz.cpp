// Seeded schedules of a store's life on simulated disks: engines, commits, faults, power cuts.
//
// After each life the store is loaded again. The promise: the last commit that was acknowledged, or
// the one that was being made, reads back; where bits were damaged silently, an extent reads back
// or is an Error that names it; never a wrong byte, never a hang; every fault that the disk reports
// ends the run with an Error that names file, offset and extent.
// Everything follows from the seed: engines are driven by this thread. Thread: one.
// Failure: the seed and what was broken, on stderr; exit code 1.
//
//   store_fuzz [--seconds N] [--seed S]     seeds S, S + 1, ... for N seconds; at least one

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/hash.hpp"
#include "core/log.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/page_buffer.hpp"
#include "tiers/nvme/simulated_disk.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr int kLivesMax = 4;
constexpr int kStepsMax = 12;
constexpr int kTurnsMax = 1'000'000;  // of one wait: more is a hang
constexpr std::size_t kLaneCapacity = 64;

struct KeyOrder {
  bool operator()(const ExtentKey& left, const ExtentKey& right) const {
    return std::tie(left.unit, left.tile, left.kind) < std::tie(right.unit, right.tile, right.kind);
  }
};

// The step whose contents each extent holds.
using Steps = std::map<ExtentKey, std::int64_t, KeyOrder>;

// What a commit named.
struct Commit {
  std::int64_t step = -1;  // none yet
  Steps steps;
};

class Broken {
 public:
  explicit Broken(std::string what) : what_(std::move(what)) {}

  [[nodiscard]] const std::string& what() const { return what_; }

 private:
  std::string what_;
};

[[noreturn]] void broken(std::string what) {
  throw Broken(std::move(what));
}

void fill(std::span<std::byte> memory, const ExtentKey& key, std::int64_t step) {
  std::uint64_t word = (std::uint64_t{key.unit} << 40U) ^ (std::uint64_t{key.tile} << 20U) ^
                       (static_cast<std::uint64_t>(key.kind) << 16U) ^
                       (static_cast<std::uint64_t>(step) * 0x9E3779B97F4A7C15U);
  for (std::size_t at = 0; at < memory.size(); at += sizeof(word)) {
    word = word * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed);
  // Throws Broken.
  void run();

 private:
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  [[nodiscard]] bool one_in(std::uint64_t count) { return below(count) == 0; }

  void make_contents();
  void make_disks();
  void set_rates(bool faults);
  [[nodiscard]] std::vector<std::unique_ptr<BlockFile>> files() const;
  [[nodiscard]] bool format();
  [[nodiscard]] bool load();
  [[nodiscard]] bool holds(const Commit& commit);
  void check_commit();
  void live();
  [[nodiscard]] bool step_once();
  [[nodiscard]] bool commit_once();
  void submit_step();
  void settle_step(bool keep);
  void write_tile(const TileBytes& tile, std::int64_t step);
  void read_extent(const ExtentKey& key);
  [[nodiscard]] IoLane& some_lane(const ExtentKey& key);
  void pump();
  [[nodiscard]] bool operations_done();
  void check_reads();
  void check_fault(const Error& error, bool of_extent);
  [[nodiscard]] bool silent_fault() const;
  [[nodiscard]] bool loud_fault() const;
  void end_life();
  [[nodiscard]] std::span<std::byte> memory(std::size_t bytes);

  std::mt19937_64 random_;
  bool silent_ = false;  // faults that nobody reports
  std::uint32_t slots_ = 2;
  bool undo_slot_ = false;
  StoreContents contents_;
  std::vector<ExtentKey> keys_;
  std::map<ExtentKey, std::uint64_t, KeyOrder> bytes_;
  PowerSupply power_;
  std::vector<std::shared_ptr<SimulatedDisk>> disks_;
  PageBuffer memory_;
  std::size_t memory_used_ = 0;

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Store> store_;
  std::vector<std::unique_ptr<IoEngine>> engines_;
  std::vector<int> lanes_;
  std::map<ExtentKey, Event, KeyOrder> last_use_;

  struct Read {
    ExtentKey key;
    std::int64_t step;
    std::span<std::byte> target;
  };

  std::vector<Read> reads_;
  std::int64_t step_ = 0;
  bool speculative_ = false;
  Steps newest_;
  Steps before_;  // of what the step has written speculatively; -1: nothing
  Commit acknowledged_;
  Commit attempted_;
};

Schedule::Schedule(std::uint64_t seed) : random_(seed) {
  silent_ = one_in(3);
  slots_ = one_in(4) ? 1 : 2;
  undo_slot_ = one_in(2);
  make_contents();
  make_disks();
}

void Schedule::make_contents() {
  const std::uint64_t tiles = 1 + below(6);
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < tiles; ++i) {
    const std::uint64_t pages_max = one_in(4) ? 80 : 6;
    const TileBytes tile{.unit = i / 3,
                         .tile = i % 3,
                         .param_bytes = (1 + below(pages_max)) * kPageBytes,
                         .state_bytes = one_in(4) ? 0 : (1 + below(pages_max)) * kPageBytes};
    contents_.tiles.push_back(tile);
    for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
      const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
      const std::uint64_t bytes = kind == ExtentKind::kParam ? tile.param_bytes : tile.state_bytes;
      if (bytes > 0) {
        keys_.push_back(key);
        bytes_[key] = bytes;
        total += bytes;
      }
    }
  }
  contents_.tensor_table = "{}";
  contents_.layout_tag = "fuzz";
  memory_ = std::move(PageBuffer::create(4 * total).value());
}

void Schedule::make_disks() {
  const std::uint64_t folders = std::min<std::uint64_t>(1 + below(3), contents_.tiles.size());
  for (std::uint64_t i = 0; i < folders; ++i) {
    SimulatedDiskOptions options;
    options.seed = random_();
    options.jitter_ns = one_in(3) ? 0 : 1'000'000;
    options.bytes_per_s = 1e9 * static_cast<double>(1 + below(4));
    disks_.push_back(
        std::make_shared<SimulatedDisk>(fmt::format("/disk{}/data", i), options, power_));
  }
}

void Schedule::set_rates(bool faults) {
  FaultRates rates;
  if (faults) {
    rates.interrupted = 0.02;
    rates.short_transfer = 0.05;
    if (one_in(3)) {
      rates.read_error = rates.write_error = 0.003;
      rates.no_space = rates.sync_error = 0.003;
    }
    if (silent_) {
      rates.torn_write = rates.lost_write = rates.misdirected_write = 0.004;
      rates.stale_read = rates.flipped_bit = 0.004;
    }
  }
  for (const auto& disk : disks_) {
    disk->set_rates(rates);
  }
}

std::vector<std::unique_ptr<BlockFile>> Schedule::files() const {
  std::vector<std::unique_ptr<BlockFile>> files;
  files.reserve(disks_.size());
  for (const auto& disk : disks_) {
    files.push_back(std::make_unique<SimulatedFile>(disk));
  }
  return files;
}

std::span<std::byte> Schedule::memory(std::size_t bytes) {
  const std::span<std::byte> part = memory_.bytes().subspan(memory_used_, bytes);
  memory_used_ += bytes;
  return part;
}

// False: the power went.
bool Schedule::format() {
  if (one_in(10)) {
    power_.cut_after(below(60));
  }
  Result<std::unique_ptr<Store>> made = Store::format(
      files(), Id128{random_(), random_()}, contents_, {.slots = slots_, .undo_slot = undo_slot_});
  if (made) {
    store_ = std::move(*made);
    return true;
  }
  if (power_.on()) {
    broken("format failed without a fault: " + format_error(made.error(), true));
  }
  return false;
}

// What the disk did to the store that nobody reported.
bool Schedule::silent_fault() const {
  return std::any_of(disks_.begin(), disks_.end(), [](const auto& disk) {
    const std::vector<InjectedFault> faults = disk->faults();
    return std::any_of(faults.begin(), faults.end(), [](const InjectedFault& fault) {
      return fault.kind >= DiskFault::kTornWrite && fault.kind <= DiskFault::kFlippedBit;
    });
  });
}

bool Schedule::loud_fault() const {
  return !power_.on() || std::any_of(disks_.begin(), disks_.end(), [](const auto& disk) {
    const std::vector<InjectedFault> faults = disk->faults();
    return std::any_of(faults.begin(), faults.end(), [](const InjectedFault& fault) {
      return fault.kind >= DiskFault::kReadError && fault.kind <= DiskFault::kSyncError;
    });
  });
}

bool Schedule::load() {
  Result<std::unique_ptr<Store>> found = Store::load(files(), Store::Access::kWrite);
  if (!found) {
    if (!silent_fault()) {
      broken("the store cannot be loaded: " + format_error(found.error(), true));
    }
    return false;
  }
  store_ = std::move(*found);
  return true;
}

// Whether every extent reads back as this commit left it. Damage that a checksum found is allowed
// where something was damaged silently.
bool Schedule::holds(const Commit& commit) {
  for (const auto& [key, step] : commit.steps) {
    std::vector<std::byte> found(bytes_.at(key));
    std::vector<std::byte> wanted(found.size());
    const Status status = store_->read_now(key, found);
    fill(wanted, key, step);
    if (!status) {
      if (!silent_fault()) {
        broken("an extent of the commit cannot be read: " + format_error(status.error(), true));
      }
      check_fault(status.error(), true);
      return true;
    }
    if (found != wanted) {
      return false;
    }
  }
  return true;
}

// The store was loaded after the end of a life: what does it say, and does it hold that?
void Schedule::check_commit() {
  if (store_->dirty()) {
    if (slots_ != 1) {
      broken("a store with two slots says that it is dirty");
    }
    return;  // one slot: nothing is promised, and it says so
  }
  const std::optional<CommitRecord>& record = store_->last_commit();
  const std::int64_t step = record ? record->step : -1;
  const Commit* commit = step == attempted_.step ? &attempted_ : nullptr;
  if (step == acknowledged_.step) {
    commit = &acknowledged_;
  }
  if (commit == nullptr) {
    if (silent_fault()) {
      return;  // an older commit, where superblocks were damaged: its extents are checked when read
    }
    broken(fmt::format("the last commit is of step {}, acknowledged was {}, attempted {}",
                       step,
                       acknowledged_.step,
                       attempted_.step));
  }
  if (record && record->run_state != fmt::format("state {}", step)) {
    broken("the run's state is another one's");
  }
  if (!holds(*commit)) {
    broken(fmt::format("wrong bytes in the commit of step {}", step));
  }
  acknowledged_ = *commit;
  newest_ = acknowledged_.steps;
}

// An Error that ends a run names the file, the offset, and the extent if it was one.
void Schedule::check_fault(const Error& error, bool of_extent) {
  const std::string text = format_error(error, true);
  const bool file = std::any_of(disks_.begin(), disks_.end(), [&](const auto& disk) {
    return text.find(disk->path()) != std::string::npos;
  });
  if (!file || (of_extent && (text.find("offset ") == std::string::npos ||
                              text.find("unit ") == std::string::npos))) {
    broken("an error does not name file, offset and extent: " + text);
  }
  const bool damage = error.code == ExitCode::kCorrupt;
  if (damage ? !silent_fault() : !loud_fault()) {
    broken("an error without a fault: " + text);
  }
}

IoLane& Schedule::some_lane(const ExtentKey& key) {
  const std::uint32_t folder = store_->folder_of(key.unit, key.tile);
  const auto lanes = static_cast<std::uint64_t>(lanes_[folder]);
  return engines_[folder]->lane(static_cast<int>(below(lanes)));
}

void Schedule::write_tile(const TileBytes& tile, std::int64_t step) {
  for (const ExtentKind kind : {ExtentKind::kParam, ExtentKind::kState}) {
    const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = kind};
    if (!bytes_.contains(key)) {
      continue;
    }
    const std::span<std::byte> source = memory(bytes_.at(key));
    fill(source, key, step);
    IoLane& lane = some_lane(key);
    lane.wait(last_use_[key]);
    lane.write(key, source, step, 0, below(100));
    last_use_[key] = lane.record();
    if (speculative_ && step == step_) {
      before_[key] = newest_.contains(key) ? newest_[key] : -1;
    }
    newest_[key] = step;
  }
}

void Schedule::read_extent(const ExtentKey& key) {
  IoLane& lane = some_lane(key);
  lane.wait(last_use_[key]);
  reads_.push_back({.key = key, .step = newest_.at(key), .target = memory(bytes_.at(key))});
  lane.read(key, reads_.back().target, 0, below(100));
  last_use_[key] = lane.record();
  if (one_in(8)) {
    lane.expedite(last_use_[key]);
  }
}

bool Schedule::operations_done() {
  for (std::size_t folder = 0; folder < engines_.size(); ++folder) {
    for (int lane = 0; lane < lanes_[folder]; ++lane) {
      if (!engines_[folder]->lane(lane).record().done()) {
        return false;
      }
    }
  }
  return true;
}

// Drives the engines until they have done everything.
void Schedule::pump() {
  for (int turn = 0; !operations_done(); ++turn) {
    bool progress = false;
    const std::size_t first = below(engines_.size());
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      progress = engines_[(first + i) % engines_.size()]->turn() || progress;
    }
    if (!progress && !operations_done()) {
      broken("a hang: nothing is under way, and " + engines_.front()->describe_waits()[0].what);
    }
    if (turn == kTurnsMax) {
      broken("a hang: no end in sight");
    }
  }
}

void Schedule::submit_step() {
  memory_used_ = 0;
  reads_.clear();
  last_use_.clear();
  for (const TileBytes& tile : contents_.tiles) {
    const ExtentKey key{.unit = tile.unit, .tile = tile.tile, .kind = ExtentKind::kParam};
    const bool first = !newest_.contains(key);
    if (!first && one_in(2)) {
      read_extent(key);
    }
    if (speculative_ && one_in(4)) {
      write_tile(tile, step_ - 1);  // late: not this step's, and so it counts
    }
    if (first || !one_in(3)) {
      write_tile(tile, step_);
    }
    if (one_in(2)) {
      read_extent(key);
    }
  }
}

void Schedule::settle_step(bool keep) {
  store_->settle(keep);
  for (const auto& [key, step] : before_) {
    if (!keep && step < 0) {
      newest_.erase(key);
    } else if (!keep) {
      newest_[key] = step;
    }
  }
  before_.clear();
  speculative_ = false;
}

void Schedule::check_reads() {
  for (const Read& read : reads_) {
    std::vector<std::byte> wanted(read.target.size());
    fill(wanted, read.key, read.step);
    if (std::memcmp(wanted.data(), read.target.data(), wanted.size()) != 0) {
      broken(fmt::format("a lane has read wrong bytes of {}", store_->describe(read.key)));
    }
  }
}

// False: the life is over.
bool Schedule::step_once() {
  ++step_;
  if (const Status status = store_->mark_dirty(); !status) {
    check_fault(status.error(), false);
    return false;
  }
  before_.clear();
  speculative_ = undo_slot_ && !one_in(3);
  if (speculative_) {
    store_->speculate(++step_);
  }
  submit_step();
  pump();
  if (runtime_->fault.raised()) {
    check_fault(*runtime_->fault.error(), true);
    return false;
  }
  check_reads();
  if (speculative_) {
    settle_step(!one_in(3));
  }
  return true;
}

bool Schedule::commit_once() {
  attempted_ = {.step = step_, .steps = newest_};
  const Status status = store_->commit(
      {.step = step_, .update_count = step_, .run_state = fmt::format("state {}", step_)});
  if (!status) {
    check_fault(status.error(), false);
    return false;
  }
  acknowledged_ = attempted_;
  return true;
}

void Schedule::live() {
  runtime_ = std::make_unique<Runtime>();
  engines_.clear();
  lanes_.clear();
  for (std::uint32_t folder = 0; folder < disks_.size(); ++folder) {
    EngineOptions options;
    options.lanes = static_cast<int>(1 + below(4));
    options.io_depth = static_cast<int>(1 + below(6));
    options.request_bytes_max = (1 + below(40)) * kPageBytes;
    options.lane_capacity = kLaneCapacity;
    options.make_backend = make_simulated_backend;
    options.driven_by_caller = true;
    if (one_in(3)) {
      options.bytes_in_flight_max = (1 + below(60)) * kPageBytes;
    }
    if (one_in(5)) {
      options.write_bytes_per_s = 50e6;
    }
    engines_.push_back(IoEngine::create(*runtime_, *store_, folder, options).value());
    lanes_.push_back(options.lanes);
  }
  set_rates(true);
  if (!one_in(3)) {
    power_.cut_after(below(one_in(2) ? 40 : 400));
  }
  const std::uint64_t steps = 1 + below(kStepsMax);
  for (std::uint64_t i = 0; i < steps; ++i) {
    if (!step_once()) {
      return;
    }
    // What was never written, or was forgotten, cannot be committed.
    if (newest_.size() == keys_.size() && one_in(2) && !commit_once()) {
      return;
    }
  }
}

void Schedule::end_life() {
  engines_.clear();
  runtime_.reset();
  store_.reset();
  const bool cut = !power_.on() || one_in(3);
  power_.restore();
  set_rates(false);
  if (cut) {
    for (const auto& disk : disks_) {
      disk->restart();
    }
  }
}

void Schedule::run() {
  if (!format()) {
    end_life();
    // An interrupted creation: no store, or an empty one; not a store that claims a commit.
    const auto found = Store::load(files(), Store::Access::kRead);
    if (found && (*found)->last_commit()) {
      broken("a store that was never finished claims a commit");
    }
    return;
  }
  for (int life = 0; life < kLivesMax; ++life) {
    live();
    end_life();
    if (!load()) {
      return;
    }
    check_commit();
    if (silent_fault() || store_->dirty()) {
      return;
    }
  }
}

void say(std::FILE* stream, const std::string& text) {
  fmt::print(stream, "store_fuzz: {}\n", text);  // tidy_test: a program of its own
}

std::uint64_t first_seed(const char* given) {
  const char* seed = given != nullptr ? given : std::getenv("HEADRACE_SEED");
  constexpr std::uint64_t kShort = 0xFFFFFFFF;  // easier to type again
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : random_id().value().low & kShort;
}

int fuzz(double seconds, std::uint64_t seed) {
  // Damage that is found is part of every other schedule: not a line each.
  set_log_level(LogLevel::kOff);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::uint64_t count = 0;
  say(stdout, fmt::format("from seed {}", seed));
  do {
    try {
      Schedule(seed + count).run();
    } catch (const Broken& found) {
      say(stderr, fmt::format("seed {}: {}", seed + count, found.what()));
      say(stderr, fmt::format("again: store_fuzz --seconds 0 --seed {}", seed + count));
      return 1;
    }
    ++count;
  } while (passed() < seconds);
  say(stdout, fmt::format("{} schedules in {:.1f} s, none broke a promise", count, passed()));
  return 0;
}

}  // namespace
}  // namespace headrace::tiers::nvme

int main(int argc, char** argv) {
  double seconds = 5;
  const char* seed = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seconds") {
      seconds = std::strtod(argv[i + 1], nullptr);
    } else if (name == "--seed") {
      seed = argv[i + 1];
    } else {
      headrace::tiers::nvme::say(stderr, "[--seconds N] [--seed S]");
      return 2;
    }
  }
  return headrace::tiers::nvme::fuzz(seconds, headrace::tiers::nvme::first_seed(seed));
}
