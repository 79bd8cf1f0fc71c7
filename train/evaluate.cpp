#include "train/evaluate.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "core/config.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "model/tokenizer.hpp"
#include "tiers/nvme/store.hpp"
#include "train/engine.hpp"
#include "train/interrupt.hpp"
#include "train/probe.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/session.hpp"
#include "train/weights.hpp"

namespace headrace::train {
namespace {

constexpr std::int64_t kDirectoryMicroBatch = 4;

// The tokens to evaluate on, and what they are called.
struct EvalData {
  RunData data;
  std::optional<EvalLoader> loader;
  std::string description;
};

Result<EvalData> open_eval_data(const RunConfig& config, std::int64_t vocab) {
  EvalData opened;
  HEADRACE_ASSIGN(opened.data, open_run_data(config, vocab));
  HEADRACE_ASSIGN(opened.loader, make_eval_loader(config, opened.data));
  if (opened.loader) {
    opened.description =
        opened.data.eval != nullptr ? "eval.data" : "the held-out tail of data.train";
    return opened;
  }
  log_warning("neither eval.data nor eval.fraction is set: evaluating on the training data");
  opened.description = "data.train";
  HEADRACE_ASSIGN(opened.loader,
                  EvalLoader::make(*opened.data.train,
                                   opened.data.split.train,
                                   {.batch = config.batch,
                                    .micro_batches = config.eval.batches,
                                    .packed = is_packed(config)}));
  return opened;
}

// The commit of the run, or nothing where the run has not begun.
struct Commit {
  std::unique_ptr<tiers::nvme::Store> store;
  RunState state;
  TensorTable table;
};

Result<std::optional<Commit>> open_commit(const RunPaths& paths) {
  HEADRACE_ASSIGN(const std::optional<StoreReference> reference, read_store_reference(paths));
  if (!reference) {
    return std::optional<Commit>();
  }
  Commit commit;
  HEADRACE_ASSIGN(commit.store, open_committed_store(paths));
  HEADRACE_ASSIGN(
      commit.state,
      run_state_from_text(commit.store->last_commit()->run_state, commit.store->path()));
  HEADRACE_ASSIGN(
      commit.table,
      tensor_table_from_text(commit.store->contents().tensor_table, commit.store->path()));
  return std::optional(std::move(commit));
}

Error no_weights(const RunConfig& config) {
  return usage_error(fmt::format("'{}' holds no commit", config.run.dir))
      .with_why("the run has not been trained, and model.path names no model to start from")
      .with_hint(fmt::format("headrace train {}", config.file));
}

Result<EvaluatedModel> evaluate_commit(const RunConfig& config, Commit commit, EvalData data) {
  HEADRACE_ASSIGN(const plan::MachineProfile machine, known_machine());
  PlanRequest request;
  request.steps = commit.state.step;
  request.stored_tile_elements = commit.table.tile_elements;
  HEADRACE_ASSIGN(Planned planned,
                  make_planned(config, commit.state.numbers.architecture, machine, request));
  HEADRACE_TRY(check_same_tiles(commit.table, planned.plan, commit.store->path()));
  HEADRACE_ASSIGN(const std::unique_ptr<Engine> engine,
                  Engine::create(std::move(planned), commit.store.get()));
  HEADRACE_TRY(engine->executor().load_committed(commit.state.update_count));
  StepBatch batch(config.batch);
  EvaluatedModel evaluated;
  evaluated.model = fmt::format("the commit of step {} of '{}'", commit.state.step, config.run.dir);
  evaluated.data = data.description;
  HEADRACE_ASSIGN(evaluated.result, evaluate(engine->executor(), *data.loader, batch, true));
  HEADRACE_TRY(engine->check_races());
  return evaluated;
}

Result<EvaluatedModel> evaluate_weights(const RunConfig& config, Weights& weights, EvalData data) {
  HEADRACE_ASSIGN(const plan::MachineProfile machine, known_machine());
  PlanRequest request;
  request.purpose = plan::Purpose::kEvaluate;
  HEADRACE_ASSIGN(Planned planned, make_planned(config, weights.architecture(), machine, request));
  HEADRACE_ASSIGN(const std::unique_ptr<Engine> engine,
                  Engine::create(std::move(planned), nullptr));
  const plan::ModelSpec& spec = engine->planned().spec;
  HEADRACE_TRY(
      engine->executor().load([&](int unit, std::int64_t begin, std::span<float> out) -> Status {
        return weights.read(spec, unit, begin, out);
      }));
  StepBatch batch(config.batch);
  EvaluatedModel evaluated;
  evaluated.model = weights.description();
  evaluated.data = data.description;
  HEADRACE_ASSIGN(evaluated.result, evaluate(engine->executor(), *data.loader, batch, true));
  HEADRACE_TRY(engine->check_races());
  return evaluated;
}

}  // namespace

Result<EvalResult> evaluate(exec::Executor& executor,
                            EvalLoader& loader,
                            StepBatch& batch,
                            bool stop_on_interrupt) {
  const auto begin = std::chrono::steady_clock::now();
  EvalResult result;
  double sum = 0;
  for (std::int64_t index = 0; index < loader.batches(); ++index) {
    if (stop_on_interrupt && interrupt_requested()) {
      return make_error(ExitCode::kInterrupted, "interrupted")
          .with_why("SIGINT or SIGTERM came before the end");
    }
    HEADRACE_TRY(loader.fill(index, batch));
    exec::StepInputs inputs;
    inputs.tokens = batch.tokens;
    inputs.targets = batch.targets;
    inputs.unmasked_targets = batch.unmasked_targets;
    HEADRACE_ASSIGN(const double loss, executor.evaluate(inputs));
    sum += loss;
    result.tokens += batch.unmasked_targets;
  }
  result.loss = sum / static_cast<double>(result.tokens);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Result<EvaluatedModel> evaluate_run(const RunConfig& asked) {
  HEADRACE_ASSIGN(std::optional<Commit> commit, open_commit({.dir = asked.run.dir}));
  RunConfig config =
      resolve_config(asked, commit ? commit->state.config.run.compute_threads : std::nullopt);
  std::unique_ptr<Weights> weights;
  model::Architecture architecture;
  if (commit) {
    architecture = commit->state.numbers.architecture;
    config.optim = commit->state.config.optim;  // what is frozen decides the store's tiles
  } else {
    if (!config.model.path.empty()) {
      HEADRACE_ASSIGN(weights, open_weights(config.model.path, config.model.ignore));
    }
    HEADRACE_ASSIGN(
        architecture,
        resolve_architecture(config, weights != nullptr ? &weights->architecture() : nullptr));
  }
  HEADRACE_ASSIGN(EvalData data, open_eval_data(config, architecture.vocab));
  if (commit) {
    return evaluate_commit(config, *std::move(commit), std::move(data));
  }
  if (weights == nullptr) {
    return no_weights(config);
  }
  return evaluate_weights(config, *weights, std::move(data));
}

Result<EvaluatedModel> evaluate_directory(const EvaluateDirectory& request) {
  HEADRACE_ASSIGN(const std::unique_ptr<Weights> weights, open_weights(request.dir, {}));
  HEADRACE_ASSIGN(RunConfig config, default_run_config({}));
  for (const std::string& pattern : request.data) {
    config.eval.data.push_back(absolute_path(working_directory(), pattern));
  }
  config.data.train = config.eval.data;
  config.data.tokenizer = tokenizer_of_directory(request.dir, weights->architecture());
  config.batch.seq_len = request.seq_len;
  config.batch.micro_batch = kDirectoryMicroBatch;
  config = resolve_config(std::move(config), std::nullopt);
  EvalData data;
  HEADRACE_ASSIGN(
      data.data.train,
      open_token_files(config, config.eval.data, "--data", weights->architecture().vocab));
  HEADRACE_ASSIGN(data.loader,
                  EvalLoader::make(*data.data.train,
                                   data.data.train->whole(),
                                   {.batch = config.batch, .micro_batches = std::nullopt}));
  data.description = request.data.front();
  return evaluate_weights(config, *weights, std::move(data));
}

}  // namespace headrace::train
