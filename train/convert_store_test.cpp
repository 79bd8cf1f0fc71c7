// Conversions of a run's store: what the new one holds, against the optimizer's own reading and
// writing of state; and that the run has one whole store whatever happens.
#include "train/convert_store.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/files.hpp"
#include "optim_cpu/convert.hpp"
#include "scheduler/exec/state_format.hpp"
#include "tiers/nvme/store.hpp"
#include "train/inspect.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/state_format.hpp"
#include "train/store_folders.hpp"
#include "train/test_folder.hpp"

namespace {

// What is asked before each fsync of this program; it gets the file's path.
std::function<void(const std::string& path)>& before_fsync() {
  static std::function<void(const std::string& path)> observer;
  return observer;
}

}  // namespace

// In the C library's place.
extern "C" int fsync(int fd) {
  if (before_fsync()) {
    before_fsync()(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string());
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace headrace::train {
namespace {

using tiers::nvme::ExtentKey;
using tiers::nvme::ExtentKind;
using tiers::nvme::Store;

constexpr std::int64_t kStep = 6;
constexpr std::int64_t kUpdates = 5;
const std::vector<std::string> kFormats = {"fp32", "bf16", "q8"};

std::uint64_t test_seed() {
  const char* given = std::getenv("HEADRACE_SEED");
  const std::uint64_t seed =
      given != nullptr && *given != '\0' ? std::strtoull(given, nullptr, 10) : 20240611;
  std::cout << "HEADRACE_SEED=" << seed << "\n";
  return seed;
}

StoredTensor tensor(const char* name, std::int64_t offset, std::int64_t elements, bool frozen) {
  return {
      .name = name, .shape = {elements}, .elements = elements, .offset = offset, .frozen = frozen};
}

model::Architecture small_architecture() {
  model::Architecture architecture;
  architecture.family = model::Family::kLlama;
  architecture.layers = 2;
  architecture.hidden = 32;
  architecture.heads = 4;
  architecture.kv_heads = 2;
  architecture.head_dim = 8;
  architecture.ffn = 96;
  architecture.vocab = 256;
  architecture.max_seq_len = 64;
  architecture.tokenizer = "bytes";
  return architecture;
}

// A frozen tile; a tensor over two tiles; tensors that end within a group, and padding.
TensorTable small_table() {
  TensorTable table;
  table.architecture = small_architecture();
  table.tile_elements = 65536;
  table.units.push_back({.name = "embedding",
                         .tensors = {tensor("wte", 0, 4096, true)},
                         .tiles = {{.begin = 0, .elements = 4096, .frozen = true}}});
  table.units.push_back(
      {.name = "block",
       .tensors = {tensor("long", 0, 70001, false),
                   tensor("middle", 71680, 3000, false),
                   tensor("short", 74688, 150, false)},
       .tiles = {{.begin = 0, .elements = 65536}, {.begin = 65536, .elements = 10240}}});
  return table;
}

struct Values {
  std::vector<float> param, m, v;

  explicit Values(std::int64_t elements)
      : param(static_cast<std::size_t>(elements)), m(param.size()), v(param.size()) {}

  optim::StateValues view() { return {.param = param, .m = m, .v = v}; }
};

Values random_values(std::mt19937_64& random, std::int64_t elements) {
  Values values(elements);
  std::normal_distribution<float> normal;
  const auto magnitude = [&](float least) {
    return std::exp2(std::uniform_real_distribution<float>(least, 0.0F)(random));
  };
  for (std::size_t i = 0; i < values.param.size(); ++i) {
    values.param[i] = normal(random) * magnitude(-10);
    values.m[i] = normal(random) * magnitude(-20);
    const float gradient = normal(random) * magnitude(-20);
    values.v[i] = gradient * gradient;
  }
  return values;
}

// A tile's extents in memory.
struct Tile {
  plan::TileSpec spec;
  std::vector<std::byte> param, state;

  Tile(const plan::StateFormat& format, const plan::TileSpec& tile, std::byte fill)
      : spec(tile),
        param(format.param_extent_bytes(tile), fill),
        state(format.state_extent_bytes(tile), fill) {}

  optim::TileMemory memory() {
    return {.param = param.data(), .state = state.data(), .tile_elements = spec.elements};
  }
};

struct Part {
  std::int64_t begin = 0;  // within the tile
  std::int64_t elements = 0;
};

// The tensors' parts in a tile.
std::vector<Part> parts_of(const StoredUnit& unit, const plan::TileSpec& tile) {
  std::vector<Part> parts;
  for (const StoredTensor& tensor : unit.tensors) {
    const std::int64_t begin = std::max(tensor.offset, tile.begin);
    const std::int64_t end = std::min(tensor.offset + tensor.elements, tile.begin + tile.elements);
    if (begin < end) {
      parts.push_back({.begin = begin - tile.begin, .elements = end - begin});
    }
  }
  return parts;
}

class ConvertStoreTest : public TestFolder {
 protected:
  void SetUp() override {
    TestFolder::SetUp();
    random_.seed(test_seed());
  }

  // A run that was committed with random state, its store in `folders`; padding is not zero.
  RunPaths make_run(const std::string& name,
                    const std::string& state,
                    const std::vector<std::string>& folders,
                    std::uint32_t slots = 2,
                    const std::vector<double>& weights = {1.0, 1.0},
                    bool undo_slot = false) {
    RunPaths paths{.dir = path(name)};
    std::filesystem::create_directories(paths.dir);
    RunState committed = run_state(paths, state, folders);
    const plan::StateFormat format = exec::state_format(state);
    tiers::nvme::StoreOptions options;
    options.direct_io_required = false;
    options.slots = slots;
    options.undo_slot = undo_slot;
    for (const std::string& folder : folders) {
      options.folders.push_back({.path = folder, .weight = weights[options.folders.size()]});
    }
    auto store = Store::create(options, contents_of(table_, format, paths.dir));
    EXPECT_TRUE(store) << format_error(store.error(), false);
    EXPECT_TRUE((*store)->mark_dirty());
    for (std::uint32_t u = 0; u < table_.units.size(); ++u) {
      for (std::uint32_t t = 0; t < table_.units[u].tiles.size(); ++t) {
        write_tile(**store, {.unit = u, .tile = t}, format);
      }
    }
    EXPECT_TRUE((*store)->commit(
        {.step = kStep, .update_count = kUpdates, .run_state = run_state_to_text(committed)}));
    EXPECT_TRUE(write_store_reference(
        paths, {.folders = folders, .id = (*store)->id(), .committed_step = kStep}));
    EXPECT_TRUE(write_file_atomically(paths.config(), to_toml(committed.config, {"A comment."})));
    return paths;
  }

  static RunState run_state(const RunPaths& paths,
                            const std::string& state,
                            const std::vector<std::string>& folders) {
    RunState committed;
    committed.step = kStep;
    committed.update_count = kUpdates;
    committed.tokens = 6144;
    committed.config.run.name = "demo";
    committed.config.run.dir = paths.dir;
    committed.config.run.steps = 20;
    committed.config.run.compute_threads = 1;
    committed.config.model.preset = "gpt2-124m";
    committed.config.data.train = {"/data/a.txt"};
    committed.config.data.tokenizer = "bytes";
    committed.config.optim.lr = 1.0 / 3;
    committed.config.optim.state = state;
    committed.config.exports.dir = paths.dir + "/exports";
    for (const std::string& folder : folders) {
      committed.config.tiers.nvme.emplace_back().path = folder;
    }
    committed.numbers.architecture = small_architecture();
    committed.numbers.data = {.files = 1, .bytes = 900, .tokens = 900, .hash = 17};
    return committed;
  }

  void write_tile(Store& store, ExtentKey key, const plan::StateFormat& format) {
    const StoredUnit& unit = table_.units[key.unit];
    Tile tile(format, unit.tiles[key.tile], std::byte{0x5a});
    for (const Part& part : parts_of(unit, tile.spec)) {
      Values values = random_values(random_, part.elements);
      if (tile.spec.frozen) {
        std::memcpy(tile.param.data() + static_cast<std::size_t>(part.begin) * sizeof(float),
                    values.param.data(),
                    values.param.size() * sizeof(float));
      } else {
        optim::write_state(exec::optimizer_of(format), tile.memory(), part.begin, values.view());
      }
    }
    const std::int64_t step = kStep - key.tile % 3;  // not all are alike
    key.kind = ExtentKind::kParam;
    EXPECT_TRUE(store.write_now(key, tile.param, step));
    key.kind = ExtentKind::kState;
    EXPECT_TRUE(tile.spec.frozen || store.write_now(key, tile.state, step));
  }

  static Tile read_tile(Store& store,
                        ExtentKey key,
                        const plan::StateFormat& format,
                        const plan::TileSpec& spec) {
    Tile tile(format, spec, std::byte{0});
    key.kind = ExtentKind::kParam;
    EXPECT_TRUE(store.read_now(key, tile.param));
    key.kind = ExtentKind::kState;
    EXPECT_TRUE(spec.frozen || store.read_now(key, tile.state));
    return tile;
  }

  // All tiles of the run's commit, in the store's order.
  std::vector<Tile> tiles_of(const RunPaths& paths, const std::string& state) {
    const auto store = open_committed_store(paths);
    EXPECT_TRUE(store) << format_error(store.error(), false);
    std::vector<Tile> tiles;
    for (std::uint32_t u = 0; u < table_.units.size(); ++u) {
      for (std::uint32_t t = 0; t < table_.units[u].tiles.size(); ++t) {
        tiles.push_back(read_tile(
            **store, {.unit = u, .tile = t}, exec::state_format(state), table_.units[u].tiles[t]));
      }
    }
    return tiles;
  }

  static std::string store_id(const RunPaths& paths) {
    return read_store_reference(paths).value()->id;
  }

  static std::vector<std::string> stores_in(const std::string& folder) {
    std::vector<std::string> names = list_directory(folder).value();
    std::sort(names.begin(), names.end());
    return names;
  }

  void expect_tile(const StoredUnit& unit,
                   const plan::StateFormat& from,
                   const plan::StateFormat& to,
                   Tile& before,
                   Tile& after) {
    if (before.spec.frozen) {
      EXPECT_TRUE(after.param == before.param);
      return;
    }
    Tile expected(to, before.spec, std::byte{0});  // and padding with it
    for (const Part& part : parts_of(unit, before.spec)) {
      Values old_values(part.elements);
      Values new_values(part.elements);
      optim::read_state(exec::optimizer_of(from), before.memory(), part.begin, old_values.view());
      optim::write_state(exec::optimizer_of(to), expected.memory(), part.begin, old_values.view());
      optim::read_state(exec::optimizer_of(to), after.memory(), part.begin, new_values.view());
      expect_values(to.name, old_values, new_values);
    }
    EXPECT_TRUE(after.param == expected.param);
    EXPECT_TRUE(after.state == expected.state);
  }

  // What each format promises (docs/cli.md).
  static void expect_values(const std::string& to, const Values& before, const Values& after) {
    if (to == "fp32") {
      EXPECT_TRUE(after.param == before.param && after.m == before.m && after.v == before.v);
      return;
    }
    EXPECT_TRUE(to == "q8" || after.param == before.param);
    for (std::size_t i = 0; i < before.param.size(); ++i) {
      float m_scale = std::fabs(before.m[i]);
      float v_scale = before.v[i];
      for (std::size_t j = i / 32 * 32;
           to == "q8" && j < std::min(before.m.size(), i / 32 * 32 + 32);
           ++j) {
        m_scale = std::max(m_scale, std::fabs(before.m[j]));
        v_scale = std::max(v_scale, before.v[j]);
      }
      const bool q8 = to == "q8";
      ASSERT_LE(std::fabs(after.param[i] - before.param[i]),
                std::fabs(before.param[i]) * (q8 ? 0x1p-16F : 0.0F));
      ASSERT_LE(std::fabs(after.m[i] - before.m[i]), m_scale * (q8 ? 0.0085F : 0x1p-8F)) << i;
      ASSERT_LE(std::fabs(after.v[i] - before.v[i]), v_scale * (q8 ? 0.0041F : 0x1p-8F)) << i;
      ASSERT_EQ(after.v[i] > 0, before.v[i] > 0) << i;
    }
  }

  TensorTable table_ = small_table();
  std::mt19937_64 random_;
};

TEST_F(ConvertStoreTest, EveryFormatBecomesEveryOther) {
  for (const std::string& from : kFormats) {
    for (const std::string& to : kFormats) {
      if (from == to) {
        continue;
      }
      std::string name = from;
      name += "-";
      name += to;
      SCOPED_TRACE(name);
      const RunPaths paths = make_run(name, from, {path(name + "-a"), path(name + "-b")});
      const std::string old_id = store_id(paths);
      std::vector<Tile> before = tiles_of(paths, from);
      const Result<Converted> converted = convert_store({.run_dir = paths.dir, .state = to});
      ASSERT_TRUE(converted) << format_error(converted.error(), false);
      EXPECT_TRUE(converted->converted && converted->old_removed);
      EXPECT_EQ(converted->state_before, from);
      EXPECT_EQ(converted->state, to);
      EXPECT_NE(store_id(paths), old_id);
      EXPECT_EQ(stores_in(path(name + "-a")), std::vector{store_id(paths)});
      EXPECT_EQ(stores_in(path(name + "-b")), std::vector{store_id(paths)});
      EXPECT_FALSE(path_exists(paths.store_making()));
      std::vector<Tile> after = tiles_of(paths, to);
      std::size_t tile = 0;
      for (const StoredUnit& unit : table_.units) {
        for (std::size_t t = 0; t < unit.tiles.size(); ++t, ++tile) {
          expect_tile(
              unit, exec::state_format(from), exec::state_format(to), before[tile], after[tile]);
        }
      }
    }
  }
}

TEST_F(ConvertStoreTest, TheCommitSaysTheSameButTheFormat) {
  for (const std::uint32_t slots : {1U, 2U}) {
    const std::string name = "run" + std::to_string(slots);
    const RunPaths paths = make_run(name, "fp32", {path(name) + "/store"}, slots);
    RunState before =
        run_state_from_text(open_committed_store(paths).value()->last_commit()->run_state, "")
            .value();
    ASSERT_TRUE(convert_store({.run_dir = paths.dir, .state = "bf16"}));
    const std::unique_ptr<Store> store = open_committed_store(paths).value();
    before.config.optim.state = "bf16";
    EXPECT_EQ(store->last_commit()->run_state, run_state_to_text(before));
    EXPECT_EQ(store->last_commit()->step, kStep);
    EXPECT_EQ(store->last_commit()->update_count, kUpdates);
    EXPECT_EQ(store->slots(), slots);
    EXPECT_EQ(store->contents().run_dir, paths.dir);
    EXPECT_EQ(store->step_of({.unit = 1, .tile = 1, .kind = ExtentKind::kState}), kStep - 1);
    EXPECT_TRUE(check_format(*store, before.config));
    EXPECT_EQ(read_store_reference(paths).value()->committed_step, kStep);
    const std::string config = read(name + "/config.resolved.toml");
    EXPECT_EQ(config, to_toml(before.config, {"A comment."}));
  }
}

TEST_F(ConvertStoreTest, AnUndoSlotStays) {
  for (const bool undo_slot : {false, true}) {
    const std::string name = undo_slot ? "with" : "without";
    const RunPaths paths =
        make_run(name, "fp32", {path(name) + "/store"}, 2, {1.0, 1.0}, undo_slot);
    ASSERT_TRUE(convert_store({.run_dir = paths.dir, .state = "bf16"}));
    EXPECT_EQ(open_committed_store(paths).value()->undo_slot(), undo_slot);
    const Json inspection = inspect_path(paths.dir).value();
    EXPECT_EQ(inspection.find("undo_slot")->as_bool(), undo_slot);
    EXPECT_EQ(inspection.find("slots")->as_uint(), 2U);
  }
}

TEST_F(ConvertStoreTest, TheSameCommitGivesTheSameBytes) {
  const RunPaths one = make_run("one", "fp32", {path("one-nvme")});
  const RunPaths two{.dir = path("two")};
  std::filesystem::create_directories(two.dir);
  // The same store, as a copy of the run's.
  const std::string copied =
      tiers::nvme::copy_store({.folders = {path("one-nvme")}, .id = store_id(one)},
                              {{.path = two.dir + "/store"}})
          .value();
  ASSERT_TRUE(write_store_reference(
      two, {.folders = {two.dir + "/store"}, .id = copied, .committed_step = kStep}));
  ASSERT_TRUE(convert_store({.run_dir = one.dir, .state = "q8"}));
  ASSERT_TRUE(convert_store({.run_dir = two.dir, .state = "q8"}));
  const std::vector<Tile> first = tiles_of(one, "q8");
  const std::vector<Tile> second = tiles_of(two, "q8");
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(first[i].param == second[i].param && first[i].state == second[i].state) << i;
  }
}

TEST_F(ConvertStoreTest, TheFormatThatItHasIsNoConversion) {
  const RunPaths paths = make_run("run", "q8", {path("nvme")});
  const std::string id = store_id(paths);
  const Result<Converted> converted = convert_store({.run_dir = paths.dir, .state = "q8"});
  ASSERT_TRUE(converted);
  EXPECT_FALSE(converted->converted);
  EXPECT_EQ(store_id(paths), id);
  EXPECT_EQ(stores_in(path("nvme")), std::vector{id});
}

TEST_F(ConvertStoreTest, FoldersKeepTheirShares) {
  constexpr std::int64_t kTiles = 12;
  constexpr std::int64_t kElements = 65536;
  StoredUnit unit{
      .name = "long", .tensors = {tensor("w", 0, kTiles * kElements, false)}, .tiles = {}};
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    unit.tiles.push_back({.begin = tile * kElements, .elements = kElements});
  }
  table_.units = {unit};
  const RunPaths paths = make_run("run", "fp32", {path("a"), path("b")}, 2, {3.0, 1.0});
  const auto tiles_in_first = [&] {
    const std::unique_ptr<Store> store = open_committed_store(paths).value();
    std::size_t count = 0;
    for (const tiers::nvme::TileBytes& tile : store->contents().tiles) {
      count += store->folder_of(tile.unit, tile.tile) == 0 ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(tiles_in_first(), 9U);
  for (const char* state : {"q8", "bf16"}) {
    ASSERT_TRUE(convert_store({.run_dir = paths.dir, .state = state}));
    EXPECT_EQ(tiles_in_first(), 9U);
  }
}

// The run is as it was, and nothing of a new store is left.
class FailedConversion : public ConvertStoreTest {
 protected:
  void expect_refused(const RunPaths& paths, ExitCode code) {
    const std::string reference = read_file(paths.store(), 1 << 16).value();
    const std::vector<std::string> stores = stores_in(path("nvme"));
    const Result<Converted> converted = convert_store({.run_dir = paths.dir, .state = "q8"});
    ASSERT_FALSE(converted);
    EXPECT_EQ(converted.error().code, code) << format_error(converted.error(), false);
    EXPECT_EQ(read_file(paths.store(), 1 << 16).value(), reference);
    EXPECT_EQ(stores_in(path("nvme")), stores);
    EXPECT_FALSE(path_exists(paths.store_making()));
  }
};

TEST_F(FailedConversion, NoRoom) {
  const RunPaths paths = make_run("run", "fp32", {path("nvme")});
  std::unique_ptr<Store> store =
      Store::open({path("nvme")}, store_id(paths), Store::Access::kWrite, false).value();
  tiers::nvme::CommitRecord record = *store->last_commit();
  RunState state = run_state_from_text(record.run_state, "").value();
  state.config.tiers.nvme[0].space_bytes = 100000;
  record.run_state = run_state_to_text(state);
  ASSERT_TRUE(store->commit(record));
  store.reset();
  expect_refused(paths, ExitCode::kDoesNotFit);
}

TEST_F(FailedConversion, ADamagedTile) {
  const RunPaths paths = make_run("run", "fp32", {path("nvme")});
  {
    const std::unique_ptr<Store> store = open_committed_store(paths).value();
    const tiers::nvme::ExtentPlace place =
        store->read_place({.unit = 1, .tile = 1, .kind = ExtentKind::kState});
    std::fstream file(store->data_path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(place.offset + place.header_bytes + 77));
    file.put('\x33');
    ASSERT_TRUE(file.flush());
  }
  expect_refused(paths, ExitCode::kCorrupt);
}

TEST_F(FailedConversion, ARunThatIsUnderWayOrAnotherOnes) {
  const RunPaths paths = make_run("run", "fp32", {path("nvme")});
  {
    const Result<RunLock> lock = RunLock::take(paths.dir);
    expect_refused(paths, ExitCode::kOperating);
  }
  const RunPaths other{.dir = path("other")};
  std::filesystem::copy(paths.dir, other.dir);
  expect_refused(other, ExitCode::kUsage);
  EXPECT_EQ(convert_store({.run_dir = path("absent"), .state = "q8"}).error().code,
            ExitCode::kUsage);
}

TEST_F(FailedConversion, ARunWithoutACommit) {
  const RunPaths paths = make_run("run", "fp32", {path("nvme")});
  const std::unique_ptr<Store> store =
      Store::create({.folders = {{.path = path("nvme")}}, .direct_io_required = false},
                    contents_of(table_, exec::state_format("fp32"), paths.dir))
          .value();
  ASSERT_TRUE(write_store_reference(paths, {.folders = {path("nvme")}, .id = store->id()}));
  expect_refused(paths, ExitCode::kOperating);
}

// For as long as it lives.
class FsyncObserver {
 public:
  explicit FsyncObserver(std::function<void(const std::string& path)> observer) {
    before_fsync() = std::move(observer);
  }

  ~FsyncObserver() { before_fsync() = nullptr; }

  FsyncObserver(const FsyncObserver&) = delete;
  FsyncObserver& operator=(const FsyncObserver&) = delete;
};

// Otherwise a power cut could leave it there with nothing that says that it goes.
TEST_F(ConvertStoreTest, TheOldStoreIsGoneForGoodBeforeItsNoteIs) {
  const std::vector<std::string> folders = {path("a"), path("b")};
  const RunPaths paths = make_run("run", "fp32", folders);
  const std::string old_id = store_id(paths);
  std::vector<std::string> gone_for_good;
  const FsyncObserver observer([&](const std::string& synced) {
    if (!path_exists(synced + "/" + old_id) && path_exists(paths.store_making()) &&
        store_id(paths) != old_id) {
      gone_for_good.push_back(synced);
    }
  });
  ASSERT_TRUE(convert_store({.run_dir = paths.dir, .state = "q8"}));
  for (const std::string& folder : folders) {
    EXPECT_NE(std::find(gone_for_good.begin(), gone_for_good.end(), real_path(folder)),
              gone_for_good.end())
        << folder;
  }
}

// `store list` tells it as left by a conversion until then.
TEST_F(ConvertStoreTest, NobodyCanRemoveTheNewStoreWhileTheRunIsAboutToNameIt) {
  const RunPaths paths = make_run("run", "fp32", {path("nvme")});
  std::vector<ExitCode> refusals;
  const FsyncObserver observer([&](const std::string& synced) {
    const Result<std::optional<StoreReference>> noted = CreationNote::read(paths);
    if (noted && *noted && synced.starts_with(real_path(paths.dir) + "/store.json.")) {
      const Status removed = tiers::nvme::remove_store({path("nvme")}, (*noted)->id);
      refusals.push_back(removed ? ExitCode::kOk : removed.error().code);
    }
  });
  ASSERT_TRUE(convert_store({.run_dir = paths.dir, .state = "q8"}));
  EXPECT_EQ(refusals, std::vector{ExitCode::kOperating});
}

TEST_F(ConvertStoreTest, AnOldStoreInUseStaysAndIsTold) {
  const RunPaths paths = make_run("run", "fp32", {path("nvme")});
  const std::string old_id = store_id(paths);
  std::unique_ptr<Store> reader = open_committed_store(paths).value();
  const Result<Converted> converted = convert_store({.run_dir = paths.dir, .state = "q8"});
  ASSERT_TRUE(converted) << format_error(converted.error(), false);
  EXPECT_TRUE(converted->converted);
  EXPECT_FALSE(converted->old_removed);
  EXPECT_EQ(stores_in(path("nvme")).size(), 2U);
  EXPECT_TRUE(is_left_of_conversion(paths.dir, old_id));
  EXPECT_FALSE(is_left_of_conversion(paths.dir, store_id(paths)));
  // It would no longer be noted.
  EXPECT_EQ(convert_store({.run_dir = paths.dir, .state = "bf16"}).error().code,
            ExitCode::kOperating);
  reader.reset();
  EXPECT_FALSE(convert_store({.run_dir = paths.dir, .state = "q8"}).value().converted);
  EXPECT_EQ(stores_in(path("nvme")), std::vector{store_id(paths)});
  EXPECT_FALSE(is_left_of_conversion(paths.dir, old_id));
}

// Two stores with a commit and a note: where a kill finds a conversion.
class CutConversion : public ConvertStoreTest {
 protected:
  void SetUp() override {
    ConvertStoreTest::SetUp();
    paths_ = make_run("run", "fp32", {path("nvme")});
    old_id_ = store_id(paths_);
    new_id_ = tiers::nvme::copy_store({.folders = {path("nvme")}, .id = old_id_},
                                      {{.path = path("nvme")}})
                  .value();
    Result<CreationNote> note = CreationNote::write(
        paths_, {.folders = {path("nvme")}, .id = new_id_, .replaces = old_id_});
    ASSERT_TRUE(note);
    note->keep();
  }

  void name(const std::string& id) const {
    ASSERT_TRUE(write_store_reference(
        paths_, {.folders = {path("nvme")}, .id = id, .committed_step = kStep}));
  }

  RunPaths paths_;
  std::string old_id_, new_id_;
};

TEST_F(CutConversion, BeforeTheSwitchTheNewStoreGoes) {
  EXPECT_TRUE(is_left_of_conversion(paths_.dir, new_id_));
  reclaim_leftovers({path("nvme")}, paths_, old_id_);
  EXPECT_EQ(stores_in(path("nvme")), std::vector{old_id_});
  EXPECT_FALSE(path_exists(paths_.store_making()));
}

TEST_F(CutConversion, AfterTheSwitchTheOldStoreGoes) {
  name(new_id_);
  EXPECT_TRUE(is_left_of_conversion(paths_.dir, old_id_));
  reclaim_leftovers({path("nvme")}, paths_, new_id_);
  EXPECT_EQ(stores_in(path("nvme")), std::vector{new_id_});
  EXPECT_FALSE(path_exists(paths_.store_making()));
}

// A conversion that was killed had perhaps not come to it: a power cut could then bring back the
// name of the store that was removed.
TEST_F(CutConversion, WhichStoreTheRunNamesIsDurableBeforeTheOtherGoes) {
  name(new_id_);
  bool is_durable = false;
  const FsyncObserver observer([&](const std::string& synced) {
    is_durable |=
        synced == real_path(paths_.dir) && path_exists(path("nvme") + "/" + old_id_ + "/data");
  });
  reclaim_leftovers({path("nvme")}, paths_, new_id_);
  EXPECT_EQ(stores_in(path("nvme")), std::vector{new_id_});
  EXPECT_TRUE(is_durable);
}

TEST_F(CutConversion, HalfARemovalIsFinished) {
  name(new_id_);
  std::filesystem::remove(path("nvme") + "/" + old_id_ + "/data");
  reclaim_leftovers({path("nvme")}, paths_, new_id_);
  EXPECT_EQ(stores_in(path("nvme")), std::vector{new_id_});
}

TEST_F(CutConversion, WhereTheRunNamesNeitherNoneGoes) {
  name(std::string(32, 'a'));
  reclaim_leftovers({path("nvme")}, paths_, "");
  EXPECT_EQ(stores_in(path("nvme")).size(), 2U);
}

}  // namespace
}  // namespace headrace::train
