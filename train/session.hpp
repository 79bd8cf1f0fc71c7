// A training run, made ready: everything between RUN.toml and the first step.
//
// open_session reads, checks and plans first, and only then touches the run's folder and the store,
// so that a start that fails leaves everything as it was. A resumed run takes its numbers from the
// commit and is refused where the settings would change them.
// Thread: main's. Failure: Result; codes as in design.md (2 usage, 3 does not fit, 4 corrupt).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "tiers/nvme/store.hpp"
#include "train/data.hpp"
#include "train/engine.hpp"
#include "train/memory_meter.hpp"
#include "train/metrics.hpp"
#include "train/periodic_export.hpp"
#include "train/report.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/schedule.hpp"
#include "train/tokens.hpp"
#include "train/weights.hpp"

namespace headrace::train {

struct SessionOptions {
  RunConfig config;
  ResumeMode resume = ResumeMode::kAuto;
  bool overwrite = false;
  std::string machine_file;  // "": the cached profile, or a probe
};

// The model of model.path, with the place of the key in its errors.
[[nodiscard]] Result<std::unique_ptr<Weights>> open_run_model(const RunConfig& config);

// The data of a run, read once (hashed, checked against the vocabulary).
struct RunData {
  std::unique_ptr<TokenSource> train;
  std::unique_ptr<TokenSource> eval;  // of eval.data; null: the tail of `train`, or none
  DataSplit split;                    // of `train`
};

// Errors: no data.train, files that cannot be used.
[[nodiscard]] Result<RunData> open_run_data(const RunConfig& config, std::int64_t vocab);

// Expands the patterns of `key` and opens them with the settings of [data].
[[nodiscard]] Result<std::unique_ptr<TokenSource>> open_token_files(
    const RunConfig& config,
    const std::vector<std::string>& patterns,
    const std::string& key,
    std::int64_t vocab);

// eval.data, else the held-out tail; nothing where neither is set. At most eval.batches.
// Whether rows of chat files hold several examples.
[[nodiscard]] bool is_packed(const RunConfig& config);
[[nodiscard]] Result<std::optional<EvalLoader>> make_eval_loader(const RunConfig& config,
                                                                 RunData& data);

// The settings as used: "auto" of what makes the numbers replaced by what it stands for.
[[nodiscard]] RunConfig resolve_config(RunConfig config, std::optional<int> committed_threads);

// In the order of their making; destroyed in the opposite one.
struct Session {
  RunConfig config;  // resolved
  RunPaths paths;
  std::int64_t steps = 0;  // of the whole run
  RunState state;          // where the run stands
  bool resumed = false;
  bool complete = false;  // the commit is of the last step: nothing below is there
  std::unique_ptr<MemoryMeter> memory;
  RunData data;
  std::optional<TrainLoader> loader;
  std::optional<EvalLoader> eval_loader;
  Schedule schedule;
  std::optional<RunLock> lock;
  std::vector<std::string> store_folders;  // in the store's order
  std::unique_ptr<tiers::nvme::Store> store;
  std::vector<std::uint64_t> store_bytes;  // of its files
  std::unique_ptr<Engine> engine;
  std::optional<MetricsFile> metrics;
  std::unique_ptr<PeriodicExport> exports;  // null: none are wanted
};

[[nodiscard]] Result<std::unique_ptr<Session>> open_session(const SessionOptions& options);

// Every resolved setting, for the table at the start of a run.
[[nodiscard]] std::vector<Setting> settings_of(const Session& session);

}  // namespace headrace::train
