// The planner: pure functions from a model, settings and a machine profile to a plan, which both
// predicts (`headrace plan`) and drives (`headrace train`).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/interval.hpp"
#include "core/json.hpp"
#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/program.hpp"
#include "scheduler/plan/state_format.hpp"

namespace headrace::plan {

enum class Home : std::uint8_t {
  kDevice,
  kHost,
  kNvme
};  // where a unit's master weights and state live
enum class Update : std::uint8_t { kHeld, kAfterBackward, kSpeculative };
enum class Purpose : std::uint8_t { kTrain, kEvaluate, kGenerate };

[[nodiscard]] const char* home_name(Home home);
[[nodiscard]] const char* update_name(Update update);

// Micro-batches that go through a unit before the next unit: one is batch-major, all of them (or
// more) layer-major, and in between blocks of layer-major follow one another.
inline constexpr int kBatchMajor = 1;
inline constexpr int kLayerMajor = std::numeric_limits<int>::max();

// How often weights pass by in each direction of a step.
[[nodiscard]] constexpr std::int64_t groups_of(std::int64_t accumulate, int group_size) {
  return (accumulate + group_size - 1) / group_size;
}

// "layer-major", "batch-major", "layer-major by 4".
[[nodiscard]] std::string traversal_name(int group_size, std::int64_t accumulate);

// Empty optionals are "auto": the planner chooses.
struct PlanSettings {
  Purpose purpose = Purpose::kTrain;
  bool separate_device =
      false;  // a device arena of its own with copying links; false: the CPU aliases host memory
  std::optional<std::size_t> device_memory_bytes;  // cap of the device arena (separate device)
  std::size_t host_memory_bytes = 0;               // cap of the host arenas
  std::size_t device_available_bytes =
      0;  // what the caps could be raised to on this machine (for hints)
  std::size_t host_available_bytes = 0;
  std::size_t usable_bytes = 0;   // what the machine has for arenas; 0: unknown
  std::size_t process_bytes = 0;  // code, stacks, libraries' scratch, loader: measured at start
  std::size_t reserve_bytes = 0;  // what an "auto" budget leaves to the rest of the machine
  std::optional<Home> place;
  std::optional<int> lookahead;               // pieces beyond the one in use
  std::optional<std::int64_t> tile_elements;  // a multiple of kBlockElements
  std::optional<int> group_size;              // kBatchMajor ... kLayerMajor
  std::optional<Update> update;
  // Activations that memory has no room for may leave it until backward, where that is faster than
  // to recompute them.
  bool may_spill = true;
  std::optional<std::uint64_t> nvme_room_bytes;  // for the store and what is spilled beside it
  Dtype grad = Dtype::kF32;
  StateFormat format;  // of a training run; the other purposes keep floats
  std::optional<double> h2d_cap, d2h_cap, nvme_read_cap, nvme_write_cap;  // bytes per second
  // What crosses the link for an extent of so many bytes: its header comes along. Empty: nothing
  // does.
  std::function<std::uint64_t(std::uint64_t payload_bytes)> stored_bytes;
  // Of the store: 2 slots a tile keep the last commit whole while the next one is made.
  int store_slots = 1;
  // Whether that store has a slot for what is speculated; nothing: it is made with what is needed.
  std::optional<bool> undo_slot;
  Interval commit_interval;               // never: at the end only
  std::int64_t steps = 0;                 // of the run, for the drive's life; 0: unknown
  std::optional<double> endurance_bytes;  // of the drive; unknown: 600 TBW per TB of capacity
  std::string config_name;                // for hints
};

// Where an extent of a tile lies.
struct TilePlace {
  int buffer = -1;         // in Plan::buffers; -1: not in memory, it is read from the store
  std::size_t offset = 0;  // in the buffer
  std::size_t bytes = 0;   // of the extent, wherever it is; 0: a frozen tile's state
};

// Where one unit's things are. Buffers are indices in Plan::buffers; -1: none.
struct UnitPlan {
  Home home = Home::kHost;
  bool pinned = false;         // weights stay on the device (their own buffer)
  bool write_through = false;  // the master in memory is a copy: the store has what updates made
  // Updated as soon as backward has its gradient, before the norm is known, beside what the store
  // has of it: what has to be clipped after all was never there.
  bool speculated = false;
  std::vector<TileSpec> tiles;
  int master = -1;  // in host or device memory: param extents, tile after tile
  int state = -1;   // in host or device memory: state extents, tile after tile
  std::vector<TilePlace> param, state_of;  // per tile
  // Pinned: floats, the unit's flat layout. The same as master on an aliasing device, unless the
  // format is one that is decoded.
  int weights = -1;
  int gradient = -1;  // held gradients in host (or device) memory: the unit's flat layout
  Dtype gradient_storage = Dtype::kF32;  // element type in `gradient`; values are rounded to the
                                         // run's grad dtype either way
};

struct MemoryRow {
  // weights, gradients, state, commits (the store's further slots), activations, logits, workspace,
  // staging; and, outside the arenas: process, reserve
  std::string purpose;
  std::uint64_t device_bytes = 0, host_bytes = 0, nvme_bytes = 0;
};

// The simulated step of one variant.
struct Prediction {
  std::string variant;  // first, steady, commit, skipped, clipped, recovered, evaluation, last
  double seconds = 0;
  double bound_seconds = 0;        // of any schedule that keeps what this plan keeps (bound.hpp)
  double order_bound_seconds = 0;  // the same that updates in this plan's order; not less
  std::map<std::string, double> busy_seconds;       // per resource: device, h2d, d2h, nvme, cores
  std::map<std::string, double> stall_seconds;      // time the device waits, by cause
  std::map<std::string, std::uint64_t> link_bytes;  // nvme_read, nvme_write, h2d, d2h, commit
};

// Activations of a block and a slot of micro-batches that wait on NVMe.
struct SpilledSaved {
  int unit = 0, slot = 0;
  std::size_t bytes = 0;  // whole pages
};

struct Plan {
  // Resolved choices.
  int group_size = 1;  // micro-batches that go through a unit together, of ModelSpec::accumulate
  Update update = Update::kHeld;
  int lookahead = 1;
  std::int64_t tile_elements = 0;
  Dtype grad = Dtype::kF32;
  StateFormat format;
  UpdateRates update_rates;  // that updates and decoding are priced with, none of them 0
  bool separate_device = false;
  bool offload_inputs = false;  // of blocks, to host memory, where they wait for backward
  int kept_blocks = 0;          // the last ones, whose activations are kept
  // Those before them: their activations wait for backward on NVMe, or beside a separate device in
  // host memory. The others' are recomputed.
  int spilled_blocks = 0;
  std::vector<SpilledSaved> spilled;  // what needs room beside the tiles on NVMe
  // Memory.
  std::vector<Buffer> buffers;
  std::size_t device_arena_bytes = 0;  // 0 on an aliasing device
  std::size_t host_arena_bytes = 0;
  std::vector<UnitPlan> units;
  int lanes = 0;
  int staging_slots = 0;     // tiles whose state may be on its way at once, without borrowed memory
  int borrowed_slots = 0;    // and in memory of held gradients while that is free
  int prefetched_tiles = 0;  // whose state a step reads for the next one
  std::vector<MemoryRow> memory;
  std::uint64_t device_peak_bytes = 0, host_peak_bytes = 0, nvme_bytes = 0;
  std::uint64_t process_bytes = 0;
  // Buffers the executor and its caller use by role (-1: absent).
  int tokens_x = -1;  // host: embedding output of every micro-batch [accumulate, N, C]
  int targets_host = -1, targets_device = -1;  // int32 [accumulate, N]
  int losses_device = -1, losses_host = -1;    // double [accumulate]
  int row_accumulators = -1;                   // host: embedding row sums [slots, C]
  int logits_host = -1;                        // generate: [vocab]
  // Programs (empty where the purpose has none).
  Program compute;       // forward and backward, no pending updates
  Program compute_held;  // the same, each unit updated as forward approaches it
  Program drain;         // pending updates only
  // Update::kSpeculative: as compute_held, and speculated units are updated in backward; the same
  // after a step whose own updates of them count; what is then left to a drain.
  Program compute_held_speculating, compute_rest_speculating, drain_rest;
  Program evaluation;  // forward and loss; for kGenerate: forward and logits of one row
  std::vector<Prediction> predictions;
  // The drive.
  std::uint64_t written_bytes_per_step = 0;  // commits included, each spread over its interval
  double written_bytes_per_day = 0;
  double drive_life_days = 0;  // at that rate; 0: nothing is written
  double endurance_bytes = 0;  // that the life was computed with; 0: unknown
  std::string wear_warning;  // "" or: would use more than a tenth of the drive's life; with a --set
                             // line that mends it
  std::vector<std::string> notes;  // what was assumed or could not be had
};

// Errors: kDoesNotFit, whose hint is the --set lines that make it fit (each checked by planning
// it; scheduler/plan/refusal.hpp); kUsage for contradictory settings.
[[nodiscard]] Result<Plan> make_plan(const ModelSpec& model,
                                     const PlanSettings& settings,
                                     const MachineProfile& machine);

// Whether backward makes a block's activations again.
[[nodiscard]] bool is_recomputed(const Plan& plan, int unit);
[[nodiscard]] bool is_spilled(const Plan& plan, int unit);
[[nodiscard]] std::size_t spilled_bytes(const Plan& plan);  // of Plan::nvme_bytes

// Of the common step: what Plan::update makes of it.
[[nodiscard]] const Program& steady_program(const Plan& plan);

// All that are not empty.
[[nodiscard]] std::vector<const Program*> programs_of(const Plan& plan);

[[nodiscard]] const Prediction* find_prediction(const Plan& plan, const std::string& variant);

// plan.json: everything but the instructions (their counts only). `tokens`: to say what they cost;
// 0: those of the run's steps.
[[nodiscard]] Json plan_to_json(const Plan& plan,
                                const ModelSpec& model,
                                const PlanSettings& settings,
                                std::int64_t tokens = 0);

// The table that `headrace plan` and the start of `headrace train` print. Plain text, lines ended.
[[nodiscard]] std::string format_plan(const Plan& plan,
                                      const ModelSpec& model,
                                      const PlanSettings& settings,
                                      std::int64_t tokens = 0);

}  // namespace headrace::plan
