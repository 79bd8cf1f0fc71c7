#include "train/plan_run.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "train/data.hpp"
#include "train/plan_changes.hpp"
#include "train/probe.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/session.hpp"
#include "train/store_folders.hpp"
#include "train/weights.hpp"

namespace headrace::train {
namespace {

// What the store of a run that is under way decides.
struct Committed {
  std::optional<int> threads;
  std::optional<std::int64_t> tile_elements;
  std::optional<int> slots;
  bool undo_slot = false;
  std::vector<std::uint64_t> bytes;  // of the store, by folder
};

// A run that is damaged is planned as a fresh one.
Result<Committed> read_commit(const RunPaths& paths, RunConfig& config) {
  Committed committed;
  if (!path_exists(paths.store())) {
    return committed;
  }
  const Result<std::unique_ptr<tiers::nvme::Store>> store = open_committed_store(paths);
  if (!store) {
    return committed;
  }
  HEADRACE_ASSIGN(const RunState state,
                  run_state_from_text((*store)->last_commit()->run_state, (*store)->path()));
  HEADRACE_ASSIGN(const TensorTable table,
                  tensor_table_from_text((*store)->contents().tensor_table, (*store)->path()));
  committed.threads = state.config.run.compute_threads;
  committed.tile_elements = table.tile_elements;
  committed.slots = static_cast<int>((*store)->slots());
  committed.undo_slot = (*store)->undo_slot();
  HEADRACE_ASSIGN(committed.bytes, bytes_by_folder(**store));
  HEADRACE_ASSIGN(const std::optional<StoreReference> reference, read_store_reference(paths));
  HEADRACE_TRY(keep_folders(config, reference->folders));
  return committed;
}

Result<std::int64_t> steps_of(const RunConfig& config, std::int64_t vocab) {
  if (!config.run.epochs) {
    return config.run.steps.value_or(0);
  }
  HEADRACE_ASSIGN(const RunData data, open_run_data(config, vocab));
  HEADRACE_ASSIGN(const TrainLoader loader,
                  TrainLoader::make(*data.train,
                                    data.split.train,
                                    {.order = config.data.order,
                                     .batch = config.batch,
                                     .seed = config.run.seed,
                                     .packed = is_packed(config)}));
  return loader.steps_in(*config.run.epochs);
}

}  // namespace

Result<PlanInputs> read_plan_inputs(RunConfig config, const std::string& machine_file) {
  PlanInputs inputs;
  PlanRequest& request = inputs.request;
  const RunPaths paths{.dir = config.run.dir};
  HEADRACE_ASSIGN(Committed committed, read_commit(paths, config));
  request.stored_tile_elements = committed.tile_elements;
  request.stored_slots = committed.slots;
  request.stored_undo_slot = committed.undo_slot;
  const std::vector<std::string> folders = paths_of(store_folders(config));
  inputs.store_is_new = machine_file.empty() && !path_exists(paths.store());
  if (inputs.store_is_new) {
    HEADRACE_TRY(check_can_be_made(config));
  }
  HEADRACE_ASSIGN(const FoundMachine found, find_machine(machine_file, folders));
  request.drives = drives_of(config, folders, found);
  if (machine_file.empty()) {
    HEADRACE_ASSIGN(request.nvme_room_bytes, room_in(store_folders(config), committed.bytes));
  }
  inputs.machine = found.profile;
  if (!machine_file.empty()) {
    request.memory_bytes = inputs.machine.memory_bytes;
    if (!committed.threads) {
      committed.threads = std::max(1, inputs.machine.cores);
    }
  }
  inputs.config = resolve_config(std::move(config), committed.threads);
  std::unique_ptr<Weights> weights;
  if (!inputs.config.model.path.empty()) {
    HEADRACE_ASSIGN(weights, open_run_model(inputs.config));
  }
  HEADRACE_ASSIGN(
      inputs.architecture,
      resolve_architecture(inputs.config, weights != nullptr ? &weights->architecture() : nullptr));
  HEADRACE_ASSIGN(request.steps, steps_of(inputs.config, inputs.architecture.vocab));
  return inputs;
}

Result<Planned> plan_run(const PlanInputs& inputs) {
  HEADRACE_ASSIGN(Planned planned,
                  make_planned(inputs.config, inputs.architecture, inputs.machine, inputs.request));
  if (inputs.store_is_new) {
    HEADRACE_TRY(check_room(store_folders(inputs.config), planned.plan.nvme_bytes));
  }
  return planned;
}

Result<plan::Refusal> refuse_run(const PlanInputs& inputs) {
  HEADRACE_ASSIGN(const plan::ModelSpec spec, make_run_spec(inputs.config, inputs.architecture));
  HEADRACE_ASSIGN(const plan::PlanSettings settings,
                  make_plan_settings(inputs.config, inputs.request));
  return plan::refuse(
      spec, settings, changes_of(inputs.config, inputs.architecture, inputs.request));
}

}  // namespace headrace::train
