// From settings to a running engine: what is planned, and what executes it.
//
// Planned is pure numbers (nothing allocated); Engine owns the runtime, the units and the executor
// over a plan. HEADRACE_RACE_CHECK=1 turns the race checker on, HEADRACE_TRACE=1 the trace.
// Thread: main's, which is the scheduler thread. Failure: Result; exit code 3 where it does not
// fit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/run_config.hpp"
#include "core/system.hpp"
#include "core/trace.hpp"
#include "model/architecture.hpp"
#include "scheduler/exec/executor.hpp"
#include "scheduler/plan/plan.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/queue.hpp"
#include "tiers/race_checker.hpp"
#include "train/probe.hpp"

namespace headrace::train {

// A folder of the store, and the share of the tiles that it gets.
struct StoreDrive {
  NvmeFolder folder;
  double weight = 1;         // bytes per second, reads and writes together, within its write_limit
  DriveRequests requests{};  // as measured
};

// The settings of tiers.nvme for each folder of a store (those that it does not name have none).
[[nodiscard]] std::vector<StoreDrive> drives_of(const RunConfig& config,
                                                const std::vector<std::string>& folders,
                                                const FoundMachine& machine);

struct Planned {
  model::Architecture architecture;
  plan::ModelSpec spec;
  plan::PlanSettings settings;
  plan::MachineProfile machine;
  plan::Plan plan;
  exec::ExecutorOptions options;
  std::vector<StoreDrive> drives;  // by folder of the store
};

struct PlanRequest {
  plan::Purpose purpose = plan::Purpose::kTrain;
  std::int64_t steps = 0;  // of the run; 0: unknown
  // Of the store that a resumed run has; wins over "auto", contradicts anything else.
  std::optional<std::int64_t> stored_tile_elements;
  std::optional<int> stored_slots;
  bool stored_undo_slot = false;
  std::optional<std::uint64_t> nvme_room_bytes;  // of the folders, with what the store has there
  std::vector<StoreDrive> drives;                // by folder; none: nothing is said of them
  // Of another machine that is planned for: all of it is available there.
  std::optional<std::uint64_t> memory_bytes;
};

// The architecture that [model] names: a preset, sizes, or `path_architecture` (of model.path).
[[nodiscard]] Result<model::Architecture> resolve_architecture(
    const RunConfig& config, const model::Architecture* path_architecture);

// What the process is given: explicit settings, else what the machine and the cgroup have.
[[nodiscard]] Result<plan::PlanSettings> make_plan_settings(const RunConfig& config,
                                                            const PlanRequest& request);

// The model and its batch as numbers. A usage error where they are more than is planned for.
[[nodiscard]] Result<plan::ModelSpec> make_run_spec(const RunConfig& config,
                                                    const model::Architecture& architecture);

// Errors: kDoesNotFit with the changes that fit; also where the caps exceed what is free.
[[nodiscard]] Result<Planned> make_planned(const RunConfig& config,
                                           const model::Architecture& architecture,
                                           const plan::MachineProfile& machine,
                                           const PlanRequest& request);

// "auto" is every core that the process may use.
[[nodiscard]] int compute_threads_of(const RunConfig& config);

// What a store is made for, from a plan.
[[nodiscard]] tiers::nvme::StoreContents store_contents(const Planned& planned,
                                                        const std::string& run_dir);

class Engine {
 public:
  // `store` may be null where the plan needs none; it outlives the engine.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> create(Planned planned,
                                                              tiers::nvme::Store* store);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] exec::Executor& executor() { return *executor_; }

  [[nodiscard]] const Planned& planned() const { return planned_; }

  // An operation has failed: nothing can be run or committed any more.
  [[nodiscard]] bool failed() const { return runtime_.fault.raised(); }

  // The races found so far, as an error; ok without the checker.
  [[nodiscard]] Status check_races() const;
  // Writes <folder>/trace.json; nothing without HEADRACE_TRACE.
  [[nodiscard]] Status write_trace(const std::string& folder) const;

 private:
  explicit Engine(Planned planned);

  Planned planned_;
  std::unique_ptr<tiers::RaceChecker> races_;
  std::unique_ptr<TraceRecorder> trace_;
  tiers::Runtime runtime_;
  std::unique_ptr<exec::Executor> executor_;
};

}  // namespace headrace::train
