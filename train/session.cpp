#include "train/session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

#include "core/config.hpp"
#include "core/files.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "model/initialize.hpp"
#include "train/interrupt.hpp"
#include "train/probe.hpp"
#include "train/state_format.hpp"
#include "train/store_folders.hpp"
#include "train/weights.hpp"

namespace headrace::train {
namespace {

using tiers::nvme::Store;

Result<std::vector<std::string>> expand(const RunConfig& config,
                                        const std::vector<std::string>& patterns,
                                        const std::string& key) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    Result<std::vector<std::string>> found = expand_glob(pattern);
    if (!found) {
      Error error = std::move(found).error();
      error.code = ExitCode::kUsage;
      error.what = fmt::format("{}: {}", key, error.what);
      error.where = config_place(config, key);
      return error;
    }
    files.insert(files.end(), found->begin(), found->end());
  }
  return files;
}

using Clock = std::chrono::steady_clock;

// While a store's blocks are written for the first time: a line now and then, and an end where one
// is asked for.
Status tell_progress(Clock::time_point& last, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  if (interrupt_requested()) {
    return make_error(ExitCode::kInterrupted, "interrupted while the store was made")
        .with_hint("nothing was begun; the same command starts the run");
  }
  constexpr std::chrono::seconds kPause{3};
  if (Clock::now() - last >= kPause) {
    last = Clock::now();
    log_info(fmt::format(
        "making the store: {} of {} written", format_bytes(done_bytes), format_bytes(total_bytes)));
  }
  return {};
}

// What a start builds up step by step.
class Opener {
 public:
  explicit Opener(const SessionOptions& options)
      : options_(options), session_(std::make_unique<Session>()) {}

  Result<std::unique_ptr<Session>> open() {
    session_->config = options_.config;
    session_->paths.dir = options_.config.run.dir;
    HEADRACE_TRY(look_at_run());
    HEADRACE_TRY(read_model_and_data());
    if (session_->resumed) {
      HEADRACE_TRY(check_same_numbers(session_->state, session_->config, numbers_));
      if (session_->state.step >= session_->steps) {
        session_->complete = true;
        if (path_exists(session_->paths.store_making())) {
          reclaim_leftovers(session_->store_folders, session_->paths, session_->store->id());
        }
        return std::move(session_);
      }
      log_changes();
    }
    session_->state.config = session_->config;
    session_->state.numbers = numbers_;
    HEADRACE_TRY(plan());
    HEADRACE_TRY(start());
    return std::move(session_);
  }

 private:
  // Reads only, except for the locks.
  Status look_at_run() {
    Session& session = *session_;
    if (options_.overwrite && options_.resume == ResumeMode::kRequired) {
      return usage_error("--overwrite and --resume required exclude each other")
          .with_why("one drops the commit that the other asks for");
    }
    if (is_directory(session.paths.dir)) {
      HEADRACE_ASSIGN(session.lock, RunLock::take(session.paths.dir));
    }
    HEADRACE_ASSIGN(Beginning beginning,
                    begin_run(session.paths,
                              {.resume = options_.resume,
                               .overwrite = options_.overwrite,
                               .direct_io_required = session.config.tiers.direct_io == "on"}));
    replaced_ = std::move(beginning.replaced);
    session.store = std::move(beginning.resumed);
    session.store_folders = std::move(beginning.folders);
    session.resumed = session.store != nullptr;
    if (session.resumed) {
      HEADRACE_ASSIGN(
          session.state,
          run_state_from_text(session.store->last_commit()->run_state, session.store->path()));
      HEADRACE_ASSIGN(
          table_,
          tensor_table_from_text(session.store->contents().tensor_table, session.store->path()));
      HEADRACE_TRY(check_format(*session.store, session.state.config));
    }
    session.config =
        resolve_config(std::move(session.config),
                       session.resumed ? session.state.config.run.compute_threads : std::nullopt);
    return session.resumed ? keep_folders(session.config, session.store_folders) : Status();
  }

  Status read_model_and_data() {
    Session& session = *session_;
    const std::string& path = session.config.model.path;
    const bool from_commit =
        session.resumed && !path.empty() && path == session.state.config.model.path;
    const model::Architecture* of_path =
        from_commit ? &session.state.numbers.architecture : nullptr;
    if (!path.empty() && !from_commit) {
      HEADRACE_ASSIGN(weights_, open_run_model(session.config));
      of_path = &weights_->architecture();
    }
    HEADRACE_ASSIGN(numbers_.architecture, resolve_architecture(session.config, of_path));
    HEADRACE_ASSIGN(session.data, open_run_data(session.config, numbers_.architecture.vocab));
    numbers_.data = session.data.train->identity();
    HEADRACE_ASSIGN(session.loader,
                    TrainLoader::make(*session.data.train,
                                      session.data.split.train,
                                      {.order = session.config.data.order,
                                       .batch = session.config.batch,
                                       .seed = session.config.run.seed,
                                       .packed = is_packed(session.config)}));
    HEADRACE_ASSIGN(session.eval_loader, make_eval_loader(session.config, session.data));
    if (!session.config.run.steps && !session.config.run.epochs) {
      return usage_error("neither run.steps nor run.epochs is set")
          .with_hint("say how long to train: --set run.steps=200")
          .with_where(session.config.file);
    }
    session.steps = session.config.run.steps ? *session.config.run.steps
                                             : session.loader->steps_in(*session.config.run.epochs);
    HEADRACE_ASSIGN(session.schedule, make_schedule(session.config, session.steps));
    return {};
  }

  void log_changes() {
    for (const std::string& line : changed_settings(session_->state.config, session_->config)) {
      log_info(fmt::format("changed since the commit: {}", line));
    }
  }

  Status plan() {
    Session& session = *session_;
    if (!session.resumed) {
      session.store_folders = paths_of(store_folders(session.config));
      HEADRACE_TRY(check_can_be_made(session.config));
    }
    HEADRACE_ASSIGN(const FoundMachine machine,
                    find_machine(options_.machine_file, session.store_folders));
    HEADRACE_ASSIGN(session.memory, MemoryMeter::start());
    PlanRequest request;
    request.steps = session.steps;
    request.drives = drives_of(session.config, session.store_folders, machine);
    std::vector<std::uint64_t> own_bytes;
    if (session.resumed) {
      HEADRACE_ASSIGN(own_bytes, bytes_by_folder(*session.store));
      request.stored_tile_elements = table_.tile_elements;
      request.stored_slots = static_cast<int>(session.store->slots());
      request.stored_undo_slot = session.store->undo_slot();
    }
    HEADRACE_ASSIGN(request.nvme_room_bytes, room_in(store_folders(session.config), own_bytes));
    HEADRACE_ASSIGN(planned_,
                    make_planned(session.config, numbers_.architecture, machine.profile, request));
    if (session.resumed) {
      HEADRACE_TRY(check_same_tiles(table_, planned_.plan, session.store->path()));
    }
    for (const std::string& note : planned_.plan.notes) {
      log_info(fmt::format("plan: {}", note));
    }
    if (!planned_.plan.wear_warning.empty()) {
      log_warning(planned_.plan.wear_warning);
    }
    if (!session.config.durability.verify_reads) {
      log_warning(
          "durability.verify_reads = false: steps use what they read from the store unchecked, so "
          "what a drive damages is trained on and committed; `headrace verify`, copies, exports "
          "and "
          "what a resume loads into memory are checked");
    }
    return {};
  }

  // From here on files change.
  Status start() {
    Status status = begin();
    if (status) {
      run_folder_.keep();
      for (MadeFolders& made : made_store_folders_) {
        made.keep();
      }
    } else {
      drop_new_store();
      drop_new_files();
    }
    return status;
  }

  Status begin() {
    Session& session = *session_;
    HEADRACE_ASSIGN(run_folder_, MadeFolders::make(session.paths.dir));
    for (const std::string& path : made_files()) {
      if (!path_exists(path)) {
        absent_before_.push_back(path);
      }
    }
    if (!session.lock) {
      HEADRACE_ASSIGN(session.lock, RunLock::take(session.paths.dir));
    }
    if (session.resumed) {
      reclaim_leftovers(session.store_folders, session.paths, session.store->id());
    }
    HEADRACE_TRY(session.resumed ? load_resumed() : load_fresh());
    HEADRACE_ASSIGN(session.store_bytes, file_lengths(*session.store));
    HEADRACE_ASSIGN(session.exports,
                    PeriodicExport::open(session.config, *session.store, session.state.step));
    return write_files();
  }

  Status load_resumed() {
    Session& session = *session_;
    HEADRACE_ASSIGN(session.engine, Engine::create(std::move(planned_), session.store.get()));
    log_info(fmt::format("resuming '{}' after step {} from '{}'",
                         session.paths.dir,
                         session.state.step,
                         session.store->path()));
    HEADRACE_TRY(session.engine->executor().load_committed(session.state.update_count));
    return {};
  }

  // Noted before anything of it is there, named by store.json once it is.
  Status make_store() {
    Session& session = *session_;
    tiers::nvme::StoreOptions options;
    options.direct_io_required = session.config.tiers.direct_io == "on";
    options.slots = static_cast<std::uint32_t>(planned_.settings.store_slots);
    options.undo_slot = planned_.plan.update == plan::Update::kSpeculative;
    options.progress = [last = Clock::now()](std::uint64_t done, std::uint64_t total) mutable {
      return tell_progress(last, done, total);
    };
    for (const StoreDrive& drive : planned_.drives) {
      if (is_directory(parent_path(drive.folder.path))) {
        HEADRACE_ASSIGN(MadeFolders made, MadeFolders::make(drive.folder.path));
        made_store_folders_.push_back(std::move(made));
      }
      options.folders.push_back({.path = drive.folder.path,
                                 .space_bytes_max = drive.folder.space_bytes,
                                 .weight = drive.weight});
    }
    HEADRACE_ASSIGN(options.id, random_id());
    const StoreReference made{
        .folders = session.store_folders, .id = options.id->hex(), .committed_step = std::nullopt};
    HEADRACE_ASSIGN(const CreationNote note, CreationNote::write(session.paths, made));
    HEADRACE_ASSIGN(session.store,
                    Store::create(options, store_contents(planned_, session.paths.dir)));
    new_store_ = made;
    return write_store_reference(session.paths, made);
  }

  Status load_fresh() {
    Session& session = *session_;
    if (replaced_) {
      log_info(fmt::format("removing the store {} of this run", replaced_->id));
      HEADRACE_TRY(tiers::nvme::remove_store(replaced_->folders, replaced_->id));
    }
    reclaim_leftovers(session.store_folders, session.paths, "");
    HEADRACE_TRY(make_store());
    HEADRACE_ASSIGN(session.engine, Engine::create(std::move(planned_), session.store.get()));
    log_info(fmt::format("loading {} into {} of store '{}'",
                         weights_ != nullptr ? weights_->description() : "initial weights",
                         format_bytes(session.store->bytes()),
                         session.store->path()));
    return session.engine->executor().load(
        [&](int unit, std::int64_t begin, std::span<float> out) -> Status {
          const plan::ModelSpec& spec = session.engine->planned().spec;
          if (weights_ != nullptr) {
            return weights_->read(spec, unit, begin, out);
          }
          model::initialize_range(spec,
                                  numbers_.architecture,
                                  {.seed = session.config.run.seed, .unit = unit, .begin = begin},
                                  out);
          return {};
        });
  }

  // What a start writes into the run's folder beside store.json.
  [[nodiscard]] std::vector<std::string> made_files() const {
    const RunPaths& paths = session_->paths;
    return {
        paths.config(), paths.plan(), paths.metrics(), paths.log(), session_->config.exports.dir};
  }

  void drop_new_files() {
    close_log_file();
    for (const std::string& path : absent_before_) {
      // A folder goes if it is empty; what cannot go is named by nothing.
      static_cast<void>(std::remove(path.c_str()));
    }
  }

  // Of a start that failed: nothing of it stays.
  void drop_new_store() {
    if (!new_store_) {
      return;
    }
    session_->exports.reset();
    session_->engine.reset();
    session_->store.reset();
    session_->metrics.reset();
    const Status removed = tiers::nvme::remove_store(new_store_->folders, new_store_->id);
    if (!removed || ::unlink(session_->paths.store().c_str()) != 0) {
      log_warning(fmt::format("the store {} of the failed start stays in {}: headrace store remove",
                              new_store_->id,
                              fmt::join(new_store_->folders, ", ")));
    }
  }

  Status write_files() {
    Session& session = *session_;
    const Planned& planned = session.engine->planned();
    HEADRACE_ASSIGN(session.metrics,
                    MetricsFile::open(session.paths.metrics(), session.state.step));
    HEADRACE_TRY(set_log_file(session.paths.log()));
    const std::string constants =
        fmt::format("Constants of the run: compute_threads {}, vocabulary rows a chunk {}",
                    planned.options.compute_threads,
                    planned.spec.head.rows_per_chunk);
    HEADRACE_TRY(write_file_atomically(
        session.paths.config(),
        to_toml(session.config,
                {"Every setting of the run, as resolved by headrace.", constants})));
    return write_file_atomically(
        session.paths.plan(),
        plan::plan_to_json(planned.plan, planned.spec, planned.settings).dump(1) + "\n");
  }

  const SessionOptions& options_;
  std::unique_ptr<Session> session_;
  std::optional<StoreReference> replaced_;
  std::optional<StoreReference> new_store_;
  MadeFolders run_folder_;
  std::vector<std::string> absent_before_;
  std::vector<MadeFolders> made_store_folders_;
  TensorTable table_;  // of the resumed store
  std::unique_ptr<Weights> weights_;
  RunNumbers numbers_;
  Planned planned_;
};

std::string data_in_words(const Session& session) {
  const TokenSource& source = *session.data.train;
  std::string text = fmt::format("{} tokens in {} files; the run is {:.2f} epochs",
                                 source.tokens(),
                                 source.identity().files,
                                 session.loader->epochs_at(session.steps));
  if (source.is_chat()) {
    const Rows& rows = session.loader->rows();
    text = fmt::format("{} examples, {}; {:.0f} % of the {} rows is padding",
                       source.whole().count,
                       text,
                       100 * (1 - rows.filled_share()),
                       rows.count());
  }
  return text;
}

// The lines "key = value" of TOML, with their sections put before the keys.
void add_toml(const std::string& toml, std::vector<Setting>& settings) {
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) {
      section =
          line.substr(line.find_first_not_of('['), line.find(']') - line.find_first_not_of('['));
      continue;
    }
    const std::size_t equals = line.find(" = ");
    if (!line.starts_with("#") && equals != std::string::npos) {
      settings.push_back(
          {.name = section + "." + line.substr(0, equals), .value = line.substr(equals + 3)});
    }
  }
}

}  // namespace

Result<std::unique_ptr<TokenSource>> open_token_files(const RunConfig& config,
                                                      const std::vector<std::string>& patterns,
                                                      const std::string& key,
                                                      std::int64_t vocab) {
  HEADRACE_ASSIGN(const std::vector<std::string> files, expand(config, patterns, key));
  return TokenSource::open(files,
                           {.tokenizer = config.data.tokenizer,
                            .token_width = config.data.token_width,
                            .eos = config.data.eos,
                            .vocab = vocab,
                            .where = config_place(config, key)});
}

Result<std::unique_ptr<Weights>> open_run_model(const RunConfig& config) {
  Result<std::unique_ptr<Weights>> weights = open_weights(config.model.path, config.model.ignore);
  if (weights || !weights.error().where.empty()) {
    return weights;
  }
  Error error = std::move(weights).error();
  error.where = config_place(config, "model.path");
  return error;
}

Result<RunData> open_run_data(const RunConfig& config, std::int64_t vocab) {
  if (config.data.train.empty()) {
    return usage_error("data.train is not set")
        .with_hint("name files or patterns: --set 'data.train=[\"corpus.txt\"]'")
        .with_where(config.file);
  }
  RunData data;
  HEADRACE_ASSIGN(data.train, open_token_files(config, config.data.train, "data.train", vocab));
  if (!config.eval.data.empty()) {
    HEADRACE_ASSIGN(data.eval, open_token_files(config, config.eval.data, "eval.data", vocab));
  }
  data.split = split_tail(data.train->whole(), config.eval.fraction);
  return data;
}

Result<std::optional<EvalLoader>> make_eval_loader(const RunConfig& config, RunData& data) {
  TokenSource* source = data.eval != nullptr ? data.eval.get() : data.train.get();
  const DataRange range = data.eval != nullptr ? data.eval->whole() : data.split.eval;
  if (data.eval == nullptr && !config.eval.fraction) {
    return std::optional<EvalLoader>();
  }
  Result<EvalLoader> loader = EvalLoader::make(
      *source,
      range,
      {.batch = config.batch, .micro_batches = config.eval.batches, .packed = is_packed(config)});
  if (!loader) {
    Error error = std::move(loader).error();
    error.where = config_place(config, data.eval != nullptr ? "eval.data" : "eval.fraction");
    return error;
  }
  return std::optional(*std::move(loader));
}

bool is_packed(const RunConfig& config) {
  return config.data.packing == "wrapped";
}

RunConfig resolve_config(RunConfig config, std::optional<int> committed_threads) {
  if (!config.run.compute_threads) {
    config.run.compute_threads =
        committed_threads ? *committed_threads : compute_threads_of(config);
  }
  if (!config.precision.compute) {
    config.precision.compute = "fp32";
  }
  if (!config.precision.grad) {
    config.precision.grad = config.precision.compute;
  }
  return config;
}

Result<std::unique_ptr<Session>> open_session(const SessionOptions& options) {
  return Opener(options).open();
}

std::vector<Setting> settings_of(const Session& session) {
  const Planned& planned = session.engine->planned();
  const model::Architecture& architecture = planned.architecture;
  std::vector<Setting> settings;
  const auto add = [&](std::string name, std::string value) {
    settings.push_back({.name = std::move(name), .value = std::move(value)});
  };
  add_toml(to_toml(session.config), settings);
  add("architecture",
      fmt::format("{}: {} layers, hidden {}, heads {} ({} of keys and values, width {}), ffn {}, "
                  "vocab {}, max_seq_len {}, head {}",
                  model::model_type(architecture),
                  architecture.layers,
                  architecture.hidden,
                  architecture.heads,
                  architecture.kv_heads,
                  architecture.head_dim,
                  architecture.ffn,
                  architecture.vocab,
                  architecture.max_seq_len,
                  architecture.tied ? "tied" : "untied"));
  add("parameters",
      fmt::format("{} ({} trainable)",
                  format_count(static_cast<double>(planned.spec.parameters())),
                  format_count(static_cast<double>(planned.spec.trainable_parameters()))));
  add("steps", fmt::format("{} of {}", session.steps - session.state.step, session.steps));
  add("tokens a step", std::to_string(session.loader->tokens_per_step()));
  add("data", data_in_words(session));
  add("optimizer threads", std::to_string(planned.options.optimizer_threads));
  add("store", session.store->path());
  return settings;
}

}  // namespace headrace::train
