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

tiers::nvme::StoreContents contents_of(const plan::Plan& plan) {
  tiers::nvme::StoreContents contents;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (std::size_t t = 0; t < plan.units[u].tiles.size(); ++t) {
      const plan::TileSpec& tile = plan.units[u].tiles[t];
      const auto elements = static_cast<std::uint64_t>(tile.elements);
      contents.tiles.push_back({.unit = static_cast<std::uint32_t>(u),
                                .tile = static_cast<std::uint32_t>(t),
                                .param_bytes = elements * 4,
                                .state_bytes = tile.frozen ? 0 : elements * 8});
    }
  }
  contents.tensor_table = "{}";
  contents.layout_tag = "fp32/fp32";
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

void run_steps(const RunOptions& options, Engine& engine, RunRecord& record) {
  std::vector<std::int32_t> tokens, targets;
  for (int step = 0; step < options.steps; ++step) {
    fill_tokens(options, step, tokens, targets);
    const exec::StepInputs inputs{.tokens = tokens,
                                  .targets = targets,
                                  .unmasked_targets = static_cast<std::int64_t>(targets.size()),
                                  .lr = options.optim.lr,
                                  .clip = options.optim.clip};
    auto result = engine.executor->step(inputs);
    if (!result && options.may_fail) {
      return;
    }
    ASSERT_TRUE(result) << text_of(result.error());
    record.losses.push_back(result->loss);
    record.norms.push_back(result->grad_norm);
    record.skipped.push_back(result->non_finite ? 1 : 0);
    if (result->non_finite) {
      record.non_finite.push_back(*result->non_finite);
    }
    record.nvme_read_bytes += result->link_bytes["nvme_read"];
    record.nvme_write_bytes += result->link_bytes["nvme_write"];
    if (options.evaluate_after == step) {
      auto loss = engine.executor->evaluate(inputs);
      ASSERT_TRUE(loss) << text_of(loss.error());
      record.evaluations.push_back(*loss);
    }
  }
  record.update_count = engine.executor->update_count();
  const auto committed = engine.executor->commit(options.steps, "{}");
  if (!committed && options.may_fail) {
    return;
  }
  ASSERT_TRUE(committed) << text_of(committed.error());
  record.bad_weight = engine.executor->non_finite_weights();
}

model::BatchShape batch_of(const RunOptions& options) {
  return {.micro_batch = options.micro_batch,
          .seq_len = options.seq_len,
          .accumulate = options.accumulate,
          .compute_threads = options.compute_threads};
}

void run_into(const RunOptions& options, RunRecord& record) {
  const TemporaryFolder folder;
  const model::BatchShape batch = batch_of(options);
  auto spec = model::make_model_spec(options.architecture, batch, options.optim);
  ASSERT_TRUE(spec) << text_of(spec.error());
  auto plan = plan::make_plan(*spec, options.settings, {});
  ASSERT_TRUE(plan) << text_of(plan.error());
  if (options.on_plan) {
    options.on_plan(*plan);
  }
  record.plan = *plan;
  record.host_arena_bytes = plan->host_arena_bytes;
  record.device_arena_bytes = plan->device_arena_bytes;
  auto model = model::make_model(options.architecture, *spec, batch);
  ASSERT_TRUE(model) << text_of(model.error());
  Engine engine;
  engine.runtime.races = &engine.races;
  tiers::nvme::StoreOptions store_options;
  store_options.folders = {{.path = folder.path()}};
  store_options.slots = 1;
  auto store = tiers::nvme::Store::create(store_options, contents_of(*plan));
  ASSERT_TRUE(store) << text_of(store.error());
  engine.store = std::move(*store);
  const exec::ExecutorOptions executor_options{.compute_threads = options.compute_threads,
                                               .optimizer_threads = options.optimizer_threads,
                                               .h2d_bytes_per_s = {},
                                               .d2h_bytes_per_s = {},
                                               .drives = {}};
  auto executor = exec::Executor::create(
      engine.runtime, *plan, *spec, std::move(*model), engine.store.get(), executor_options);
  ASSERT_TRUE(executor) << text_of(executor.error());
  engine.executor = std::move(*executor);
  const Status loaded =
      engine.executor->load([&](int unit, std::int64_t begin, std::span<float> out) -> Status {
        model::initialize_range(
            *spec, options.architecture, {.seed = options.seed, .unit = unit, .begin = begin}, out);
        if (options.on_weights) {
          options.on_weights(unit, begin, out);
        }
        return {};
      });
  ASSERT_TRUE(loaded) << text_of(loaded.error());
  run_steps(options, engine, record);
  record.races = engine.races.races().size();
  record.first_race = record.races > 0 ? engine.races.races().front().text : "";
  for (std::size_t u = 0; u < spec->units.size() && !options.may_fail; ++u) {
    std::vector<float> values(static_cast<std::size_t>(spec->units[u].elements));
    const Status read = engine.executor->read_params(static_cast<int>(u), 0, values);
    ASSERT_TRUE(read) << text_of(read.error());
    record.params.insert(record.params.end(), values.begin(), values.end());
  }
  engine.executor.reset();
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

bool plan_exists(const RunOptions& options, const plan::PlanSettings& settings) {
  const auto spec = model::make_model_spec(options.architecture, batch_of(options), options.optim);
  return spec && plan::make_plan(*spec, settings, {}).has_value();
}

}  // namespace

std::size_t smallest_device_bytes(const RunOptions& options) {
  return least_budget([&](std::size_t bytes) {
    plan::PlanSettings settings = options.settings;
    settings.device_memory_bytes = bytes;
    return plan_exists(options, settings);
  });
}

std::size_t smallest_host_bytes(const RunOptions& options) {
  return least_budget([&](std::size_t bytes) {
    plan::PlanSettings settings = options.settings;
    settings.host_memory_bytes = bytes;
    return plan_exists(options, settings);
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
