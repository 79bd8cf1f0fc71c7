// The executor: owns a run's arenas, queues and NVMe engine, and walks the plan's programs over
// them.
//
// One scheduler thread (the caller's) calls everything here. A step: the caller's inputs are copied
// into planned buffers; every instruction is submitted with its waits and leases; the queues are
// drained; results are read. Between calls nothing runs. No arena is allocated on the step path.
//
// Failure: an operation's error raises the runtime's fault; the call returns it; the executor is
// then unusable (destroy it), the store keeps its last commit (this version: a store written since
// its last commit is dirty).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "optim_cpu/nodes.hpp"
#include "scheduler/exec/unit.hpp"
#include "scheduler/plan/plan.hpp"
#include "tiers/device.hpp"
#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/queue.hpp"

namespace headrace::exec {

// Of one folder of the store.
struct DriveOptions {
  int io_depth = 8;                                           // requests in flight
  std::size_t request_bytes = std::size_t{1} << 20U;          // of each, at most
  std::optional<double> read_bytes_per_s, write_bytes_per_s;  // caps
  std::optional<std::uint64_t> space_bytes = {};  // the most that the store's file may take there
};

struct ExecutorOptions {
  int compute_threads = 1;
  int optimizer_threads = 1;
  // The cores that the process may use, by NUMA node (tiers::cores_by_node()). Two nodes and more:
  // the optimizer's threads are bound to them, its memory lies where they work on it.
  std::vector<optim::NodeCores> optimizer_nodes = {};
  std::uint64_t seed = 0;  // the run's, of what the optimizer rounds stochastically
  std::optional<double> h2d_bytes_per_s, d2h_bytes_per_s;
  std::vector<DriveOptions> drives;  // by folder; those that are not there take the defaults
  tiers::nvme::BackendFactory make_io_backend = tiers::nvme::make_system_backend;
  // Makes the device of a plan with a separate one, once `cores` and the runtime are there. Empty:
  // the CPU's, with the threads and caps above.
  std::function<Result<std::unique_ptr<tiers::Device>>(tiers::Runtime& runtime,
                                                       tiers::Cores& cores)>
      make_device = {};
  // Of weights and state that a step, an evaluation or a drain streams. Loading, committing and
  // reading out check all in any case.
  tiers::nvme::ReadCheck read_check = tiers::nvme::ReadCheck::kHeaderAndSums;
  // Warns when nothing was done for so long, with what is stuck (watchdog.hpp); nothing: never.
  std::optional<double> stuck_after_s{};
};

// Everything a step needs beside the model. Spans are [accumulate * N]; targets of -1 are masked.
struct StepInputs {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> targets;
  std::int64_t unmasked_targets = 0;  // of the whole step, counted by the loader
  double lr = 0;                      // of this step's update
  double clip = 0;                    // 0: off
};

struct NonFinite {
  std::string tensor;
  std::int64_t element = 0;  // index in the tensor
  std::int64_t count = 0;    // over all gradients
};

// Which of its programs a step is (plan::Prediction::variant has its name).
enum class StepKind : std::uint8_t {
  kFirst,    // no update pending: after a start, a commit, a skipped step
  kSteady,   // as most are
  kClipped,  // Update::kSpeculative: the step before had to be clipped, so all updates are pending
  kRecovered,  // all updates are pending as well, and from here on it is speculated (again)
};

[[nodiscard]] const char* variant_name(StepKind kind);

struct StepResult {
  StepKind kind = StepKind::kFirst;
  double loss = 0;       // mean over unmasked targets
  double grad_norm = 0;  // before clipping
  std::optional<NonFinite>
      non_finite;  // the step was skipped: no update, the update count did not advance
  bool applied_held_update = false;  // that of the step before
  double seconds = 0;
  std::map<std::string, double>
      stall_seconds;  // by cause: nvme_read, nvme_write, h2d, d2h, optimizer, host
  std::map<std::string, std::uint64_t> link_bytes;  // nvme_read, nvme_write, h2d, d2h
};

struct PeakMemory {
  std::uint64_t device_bytes = 0, host_bytes = 0, pinned_bytes = 0;
};

class Executor {
 public:
  // Fills `out` with the unit's elements [begin, begin + out.size()); padding is zero.
  using ParamSource = std::function<Status(int unit, std::int64_t begin, std::span<float> out)>;

  // `store` may be null where nothing is kept (evaluate, generate) and no unit's home is NVMe.
  // Everything passed by reference outlives the executor.
  [[nodiscard]] static Result<std::unique_ptr<Executor>> create(tiers::Runtime& runtime,
                                                                const plan::Plan& plan,
                                                                const plan::ModelSpec& spec,
                                                                Model model,
                                                                tiers::nvme::Store* store,
                                                                const ExecutorOptions& options);
  virtual ~Executor() = default;

  // A fresh run: weights from `source`, in the plan's format (rounded to nearest where it has fewer
  // bits), zero state. Units whose home is NVMe are written to the
  // store (which is marked dirty).
  [[nodiscard]] virtual Status load(const ParamSource& source) = 0;
  // A resumed run: weights and state of units in memory are read from the store; the update count
  // is set.
  [[nodiscard]] virtual Status load_committed(std::int64_t update_count) = 0;

  // One training step. With `held` its update stays pending until the next step or drain(); with
  // `after-backward` it is done on return.
  [[nodiscard]] virtual Result<StepResult> step(const StepInputs& inputs) = 0;
  [[nodiscard]] virtual Status drain() = 0;  // no-op when nothing is pending
  [[nodiscard]] virtual bool update_pending() const = 0;
  [[nodiscard]] virtual std::int64_t update_count()
      const = 0;  // updates that were decided on (applied or pending)
  // Of the weights that the last update to be applied made; it cannot be undone, only reported.
  [[nodiscard]] virtual std::optional<NonFinite> non_finite_weights() const = 0;
  // Sum of losses over unmasked targets. Pending updates are drained first.
  [[nodiscard]] virtual Result<double> evaluate(const StepInputs& inputs) = 0;
  // Plans made with Purpose::kGenerate: logits [vocab] after row `position` of the (single)
  // sequence.
  [[nodiscard]] virtual Result<std::span<const float>> logits(std::span<const std::int32_t> tokens,
                                                              std::int64_t position) = 0;
  // Drains, writes the tiles that live in memory, commits. Returns the bytes written. `step`: steps
  // finished.
  [[nodiscard]] virtual Result<std::uint64_t> commit(std::int64_t step, std::string run_state) = 0;
  // Master weights, as floats, of a unit's range, wherever they live. Pending updates must have
  // been drained.
  [[nodiscard]] virtual Status read_params(int unit, std::int64_t begin, std::span<float> out) = 0;
  [[nodiscard]] virtual PeakMemory peak() const = 0;
};

}  // namespace headrace::exec
