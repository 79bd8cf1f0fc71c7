// See harness.hpp.
#include "tests/engine/harness.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/random.hpp"
#include "model/initialize.hpp"
#include "model/spec.hpp"
#include "model/units.hpp"
#include "scheduler/exec/state_format.hpp"
#include "scheduler/plan/exhaustive.hpp"
#include "scheduler/plan/search.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/race_checker.hpp"

namespace headrace::testing {

namespace {

// A folder of the test's own on the disk (not tmpfs), removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::current_path() / "headrace-engine-XXXXXX").string();
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
  }

  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The folder itself, or so many inside.
std::vector<std::string> folders_in(const TemporaryFolder& folder, int count) {
  if (count == 1) {
    return {folder.path()};
  }
  std::vector<std::string> paths;
  for (int i = 0; i < count; ++i) {
    paths.push_back(folder.path() + "/" + std::to_string(i));
    EXPECT_TRUE(std::filesystem::create_directory(paths.back()));
  }
  return paths;
}

tiers::nvme::StoreContents contents_of(const plan::Plan& plan) {
  tiers::nvme::StoreContents contents;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (std::size_t t = 0; t < plan.units[u].tiles.size(); ++t) {
      contents.tiles.push_back({.unit = static_cast<std::uint32_t>(u),
                                .tile = static_cast<std::uint32_t>(t),
                                .param_bytes = plan.units[u].param[t].bytes,
                                .state_bytes = plan.units[u].state_of[t].bytes});
    }
  }
  contents.tensor_table = "{}";
  contents.layout_tag = exec::layout_tag(plan.format);
  return contents;
}

std::string text_of(const Error& error) {
  return format_error(error, true);
}

struct Engine {
  tiers::RaceChecker races;
  tiers::Runtime runtime;
  std::unique_ptr<tiers::nvme::Store> store;
  std::unique_ptr<exec::Executor> executor;
};

void fill_tokens(const RunOptions& options,
                 int step,
                 std::vector<std::int32_t>& tokens,
                 std::vector<std::int32_t>& targets) {
  const auto rows =
      static_cast<std::size_t>(options.micro_batch * options.seq_len * options.accumulate);
  std::vector<std::int32_t> stream(rows + 1);
  for (std::size_t i = 0; i < stream.size(); ++i) {
    // Something to learn: every second token follows from the one before it.
    const auto mixed =
        (options.seed + static_cast<std::uint64_t>(step) * 7919 + i / 2 * 104729) * 2654435761U >>
        7U;
    // few tokens, so that thirty steps are enough to see the loss fall.
    constexpr std::uint64_t kTokens = 40;
    stream[i] = static_cast<std::int32_t>(
        i % 2 == 0 ? mixed % kTokens
                   : (static_cast<std::uint64_t>(stream[i - 1]) * 3 + 1) % kTokens);
  }
  tokens.assign(stream.begin(), stream.end() - 1);
  targets.assign(stream.begin() + 1, stream.end());
  if (options.on_tokens) {
    options.on_tokens(step, tokens);
  }
}

// Notes an error that the test allows; any other fails it.
void note_error(const RunOptions& options, RunRecord& record, const Status& status) {
  if (!status) {
    EXPECT_TRUE(options.may_fail || options.stop_after) << text_of(status.error());
    record.error = status.error();
  }
}

Status run_step(const RunOptions& options, Engine& engine, int step, RunRecord& record) {
  std::vector<std::int32_t> tokens, targets;
  fill_tokens(options, step, tokens, targets);
  const exec::StepInputs inputs{.tokens = tokens,
                                .targets = targets,
                                .unmasked_targets = static_cast<std::int64_t>(targets.size()),
                                .lr = options.optim.lr,
                                .clip = options.optim.clip};
  HEADRACE_ASSIGN(exec::StepResult result, engine.executor->step(inputs));
  if (options.commit_every > 0 && (step + 1) % options.commit_every == 0) {
    HEADRACE_TRY(engine.executor->commit(step + 1, "{}"));
  }
  record.losses.push_back(result.loss);
  record.norms.push_back(result.grad_norm);
  record.skipped.push_back(result.non_finite ? 1 : 0);
  record.kinds.push_back(result.kind);
  if (result.non_finite) {
    record.non_finite.push_back(*result.non_finite);
  }
  record.nvme_read_bytes += result.link_bytes["nvme_read"];
  record.nvme_write_bytes += result.link_bytes["nvme_write"];
  if (options.evaluate_after == step) {
    HEADRACE_ASSIGN(const double loss, engine.executor->evaluate(inputs));
    record.evaluations.push_back(loss);
  }
  return {};
}

// What was committed.
Status read_extents(tiers::nvme::Store& store, RunRecord& record) {
  record.extents.clear();
  for (const tiers::nvme::TileBytes& tile : store.contents().tiles) {
    for (const auto kind : {tiers::nvme::ExtentKind::kParam, tiers::nvme::ExtentKind::kState}) {
      const bool param = kind == tiers::nvme::ExtentKind::kParam;
      std::vector<std::byte> bytes(param ? tile.param_bytes : tile.state_bytes);
      if (!bytes.empty()) {
        HEADRACE_TRY(store.read_now({.unit = tile.unit, .tile = tile.tile, .kind = kind}, bytes));
      }
      record.extents.push_back(std::move(bytes));
    }
  }
  return {};
}

Status run_steps(const RunOptions& options, Engine& engine, int first_step, RunRecord& record) {
  for (int step = first_step; step < options.steps; ++step) {
    if (options.stop_after == step && first_step == 0) {
      return operating_error("stopped");
    }
    HEADRACE_TRY(run_step(options, engine, step, record));
  }
  record.update_count = engine.executor->update_count();
  HEADRACE_TRY(engine.executor->commit(options.steps, "{}"));
  HEADRACE_TRY(read_extents(*engine.store, record));
  record.bad_weight = engine.executor->non_finite_weights();
  return {};
}

Status read_params(const plan::ModelSpec& spec, Engine& engine, RunRecord& record) {
  for (std::size_t u = 0; u < spec.units.size(); ++u) {
    std::vector<float> values(static_cast<std::size_t>(spec.units[u].elements));
    HEADRACE_TRY(engine.executor->read_params(static_cast<int>(u), 0, values));
    record.params.insert(record.params.end(), values.begin(), values.end());
  }
  return {};
}

model::BatchShape batch_of(const RunOptions& options) {
  return {.micro_batch = options.micro_batch,
          .seq_len = options.seq_len,
          .accumulate = options.accumulate,
          .compute_threads = options.compute_threads};
}

// What stays the same over the executors of one run.
struct Job {
  const RunOptions& options;
  model::BatchShape batch;
  const plan::ModelSpec& spec;
  const plan::Plan& plan;
};

Status make_executor(const Job& job, bool first, Engine& engine) {
  HEADRACE_ASSIGN(exec::Model model,
                  model::make_model(job.options.architecture, job.spec, job.batch));
  engine.runtime.races = &engine.races;
  exec::ExecutorOptions executor_options{
      .compute_threads = job.options.compute_threads,
      .optimizer_threads = job.options.optimizer_threads,
      .optimizer_nodes = job.options.optimizer_nodes,
      .h2d_bytes_per_s = {},
      .d2h_bytes_per_s = {},
      .drives = std::vector<exec::DriveOptions>(static_cast<std::size_t>(job.options.folders),
                                                job.options.drive)};
  executor_options.seed = job.options.seed;
  executor_options.stuck_after_s = 1;  // it looks, beside all else
  if (first) {
    executor_options.make_device = job.options.make_device;
    executor_options.make_io_backend = job.options.make_io_backend;
    model = job.options.wrap_model ? job.options.wrap_model(std::move(model)) : std::move(model);
  }
  HEADRACE_ASSIGN(engine.executor,
                  exec::Executor::create(engine.runtime,
                                         job.plan,
                                         job.spec,
                                         std::move(model),
                                         engine.store.get(),
                                         executor_options));
  return {};
}

Status run_first(const Job& job, Engine& engine, RunRecord& record) {
  const RunOptions& options = job.options;
  HEADRACE_TRY(make_executor(job, true, engine));
  if (options.on_made) {
    options.on_made();
  }
  HEADRACE_TRY(engine.executor->load([&](int unit, std::int64_t begin, std::span<float> out) {
    model::initialize_range(
        job.spec, options.architecture, {.seed = options.seed, .unit = unit, .begin = begin}, out);
    if (options.on_weights) {
      options.on_weights(unit, begin, out);
    }
    return Status();
  }));
  HEADRACE_TRY(run_steps(options, engine, 0, record));
  return read_params(job.spec, engine, record);
}

// From the last commit, on the CPU.
Status run_rest(const Job& job, Engine& engine, RunRecord& record) {
  const tiers::nvme::CommitRecord commit = *engine.store->last_commit();
  record.resumed_at = static_cast<int>(commit.step);
  record.losses.resize(static_cast<std::size_t>(commit.step));
  record.norms.resize(static_cast<std::size_t>(commit.step));
  HEADRACE_TRY(make_executor(job, false, engine));
  HEADRACE_TRY(engine.executor->load_committed(commit.update_count));
  HEADRACE_TRY(run_steps(job.options, engine, record.resumed_at, record));
  return read_params(job.spec, engine, record);
}

void run_into(const RunOptions& options, RunRecord& record) {
  const TemporaryFolder folder;
  const model::BatchShape batch = batch_of(options);
  auto spec = model::make_model_spec(options.architecture, batch, options.optim);
  ASSERT_TRUE(spec) << text_of(spec.error());
  auto plan = options.planned ? Result<plan::Plan>(*options.planned)
                              : plan::make_plan(*spec, options.settings, options.machine);
  ASSERT_TRUE(plan) << text_of(plan.error());
  if (options.on_plan) {
    options.on_plan(*plan);
  }
  record.plan = *plan;
  record.host_arena_bytes = plan->host_arena_bytes;
  record.device_arena_bytes = plan->device_arena_bytes;
  const Job job{.options = options, .batch = batch, .spec = *spec, .plan = *plan};
  tiers::nvme::StoreOptions store_options;
  const std::vector<std::string> folders = folders_in(folder, options.folders);
  store_options.folders.clear();
  for (const std::string& path : folders) {
    store_options.folders.push_back({.path = path});
  }
  store_options.slots = options.commit_every > 0 ? 2 : 1;
  store_options.undo_slot = plan->update == plan::Update::kSpeculative;
  store_options.prewrite = false;  // nothing is timed
  auto store = tiers::nvme::Store::create(store_options, contents_of(*plan));
  ASSERT_TRUE(store) << text_of(store.error());
  const std::string id = (*store)->id();
  Engine engine;
  engine.store = std::move(*store);
  if (options.on_races) {
    options.on_races(engine.races);
  }
  note_error(options, record, run_first(job, engine, record));
  record.races = engine.races.races().size();
  record.first_race = record.races > 0 ? engine.races.races().front().text : "";
  record.waits = engine.races.waits_checked();
  record.implied_waits = engine.races.implied_waits();
  record.host_waits = engine.races.host_waits_checked();
  record.implied_queue_waits = engine.races.implied_queue_waits();
  record.implied_host_waits = engine.races.implied_host_waits();
  record.left_out = engine.races.left_out();
  record.left_out_was_implied = engine.races.left_out_was_implied();
  if (options.on_end) {
    options.on_end();
  }
  engine.executor.reset();
  if (!record.error || options.commit_every == 0) {
    return;
  }
  engine.store.reset();
  auto reopened = tiers::nvme::Store::open(folders, id, tiers::nvme::Store::Access::kWrite);
  ASSERT_TRUE(reopened) << text_of(reopened.error());
  if (!(*reopened)->last_commit()) {
    return;
  }
  Engine next;
  next.store = std::move(*reopened);
  const Status rest = run_rest(job, next, record);
  ASSERT_TRUE(rest) << text_of(rest.error());
}

}  // namespace

model::Architecture small_gpt2() {
  model::Architecture architecture;
  architecture.family = model::Family::kGpt2;
  architecture.layers = 3;
  architecture.hidden = 96;
  architecture.heads = architecture.kv_heads = 4;
  architecture.head_dim = 24;
  architecture.ffn = 384;
  architecture.vocab = 1511;
  architecture.max_seq_len = 24;
  architecture.tied = true;
  architecture.initializer_range = 0.08;
  return architecture;
}

model::Architecture small_llama() {
  model::Architecture architecture;
  architecture.family = model::Family::kLlama;
  architecture.layers = 3;
  architecture.hidden = 96;
  architecture.heads = 4;
  architecture.kv_heads = 2;
  architecture.head_dim = 22;
  architecture.ffn = 250;
  architecture.vocab = 1511;
  architecture.max_seq_len = 64;
  architecture.tied = false;
  architecture.initializer_range = 0.08;
  return architecture;
}

model::Architecture small_qwen3() {
  model::Architecture architecture = small_llama();
  architecture.dialect = model::Dialect::kQwen3;
  architecture.qk_norm = true;
  architecture.sliding_window = 5;
  architecture.slides = {false, true, false};
  architecture.rope_scaling.type = model::RopeType::kYarn;
  architecture.rope_scaling.factor = 4.0;
  architecture.rope_scaling.original_max_position_embeddings = 16;
  return architecture;
}

plan::PlanSettings ample_settings() {
  plan::PlanSettings settings;
  settings.host_memory_bytes = std::size_t{1} << 30;
  settings.host_available_bytes = std::size_t{4} << 30;
  settings.device_available_bytes = std::size_t{1} << 30;
  return settings;
}

namespace {

// Bisects the least budget for which `fits` holds, to a page.
std::size_t least_budget(const std::function<bool(std::size_t)>& fits) {
  std::size_t low = 0, high = std::size_t{1} << 32;
  while (high - low > 4096) {
    const std::size_t middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

// Of the arena that `arena_of` tells, where the other one's is within its budget.
template <class ArenaOf, class WithBudget>
std::size_t least_arena(const RunOptions& options,
                        const ArenaOf& arena_of,
                        const WithBudget& with_budget) {
  const auto spec = model::make_model_spec(options.architecture, batch_of(options), options.optim);
  EXPECT_TRUE(spec);
  plan::PlanSettings settings = options.settings;
  if (settings.update == plan::Update::kSpeculative) {
    settings.update = plan::Update::kHeld;  // takes the same memory, and is looked at wholly
  }
  if (!plan::searched_exhaustively(*spec, settings)) {
    return least_budget([&](std::size_t bytes) {
      return plan::make_plan(*spec, with_budget(settings, bytes), {}).has_value();
    });
  }
  const plan::PlanSettings any = with_budget(settings, std::size_t{1} << 40U);
  std::size_t least = std::size_t{1} << 40U;
  for (const plan::Choices& choices : plan::leanest_of_all(*spec, settings)) {
    const plan::Plan plan = plan::lay_out_candidate(*spec, settings, choices).plan;
    least = plan::fits(plan, any) ? std::min(least, arena_of(plan)) : least;
  }
  return least;
}

}  // namespace

std::size_t smallest_device_bytes(const RunOptions& options) {
  return least_arena(
      options,
      [](const plan::Plan& plan) { return plan.device_arena_bytes; },
      [](plan::PlanSettings settings, std::size_t bytes) {
        settings.device_memory_bytes = bytes;
        return settings;
      });
}

std::size_t smallest_host_bytes(const RunOptions& options) {
  return least_arena(
      options,
      [](const plan::Plan& plan) { return plan.host_arena_bytes; },
      [](plan::PlanSettings settings, std::size_t bytes) {
        settings.host_memory_bytes = bytes;
        return settings;
      });
}

RunRecord run_engine(const RunOptions& options) {
  RunRecord record;
  run_into(options, record);
  EXPECT_TRUE(options.may_fail || record.races == 0) << record.first_race;
  return record;
}

namespace {

std::uint64_t bits(double value) {
  return std::bit_cast<std::uint64_t>(value);
}

}  // namespace

void expect_same_bits(const RunRecord& expected, const RunRecord& actual, const std::string& what) {
  ASSERT_EQ(expected.losses.size(), actual.losses.size()) << what;
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    ASSERT_EQ(bits(expected.losses[i]), bits(actual.losses[i]))
        << what << ": loss of step " << i << ": " << expected.losses[i] << " and "
        << actual.losses[i];
    ASSERT_EQ(bits(expected.norms[i]), bits(actual.norms[i]))
        << what << ": norm of step " << i << ": " << expected.norms[i] << " and "
        << actual.norms[i];
  }
  ASSERT_EQ(expected.params.size(), actual.params.size()) << what;
  EXPECT_EQ(
      std::memcmp(
          expected.params.data(), actual.params.data(), expected.params.size() * sizeof(float)),
      0)
      << what << ": weights differ";
}

}  // namespace headrace::testing
