// A run of the engine without the command line: a model, a plan, a store in a temporary folder,
// some steps. What comes back is everything that invariant 1 compares.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/run_config.hpp"
#include "model/architecture.hpp"
#include "scheduler/exec/executor.hpp"
#include "scheduler/plan/plan.hpp"
#include "tiers/race_checker.hpp"

namespace headrace::testing {

// Thirty, fewer under sanitizers, which look at memory and threads.
#if defined(HEADRACE_SANITIZED)
inline constexpr int kSteps = 2;
#else
inline constexpr int kSteps = 30;
#endif

struct RunOptions {
  model::Architecture architecture;
  OptimSection optim;
  std::int64_t micro_batch = 2;
  std::int64_t seq_len = 16;
  std::int64_t accumulate = 1;
  int steps = kSteps;
  int compute_threads = 2;
  int optimizer_threads = 2;
  std::vector<optim::NodeCores> optimizer_nodes = {};
  std::uint64_t seed = 1337;
  plan::PlanSettings settings;        // budgets default to plenty
  plan::MachineProfile machine = {};  // for planning
  std::optional<plan::Plan> planned;  // by an earlier run with these settings: spares planning
  // Called before each step; may change the tokens.
  std::function<void(int step, std::vector<std::int32_t>& tokens)> on_tokens;
  // Called on every weight range as it is loaded; may change it.
  std::function<void(int unit, std::int64_t begin, std::span<float> values)> on_weights;
  std::function<void(plan::Plan& plan)> on_plan;            // may damage it
  std::function<void(tiers::RaceChecker& races)> on_races;  // of the first executor, before it is
  int folders = 1;                    // of the store, which are all on one drive
  bool may_fail = false;              // errors and races are recorded, not failures of the test
  std::optional<int> evaluate_after;  // a step after which the loss is evaluated as well
  // See exec::ExecutorOptions; then `on_made` once the executor is there and before it loads, and
  // `on_end` before it is destroyed. Of the first executor only.
  decltype(exec::ExecutorOptions::make_device) make_device;
  std::function<void()> on_made, on_end;
  exec::DriveOptions drive;  // of every folder
  // Of the first executor only: what I/O goes through, and what stands for the model.
  tiers::nvme::BackendFactory make_io_backend = tiers::nvme::make_system_backend;
  std::function<exec::Model(exec::Model model)> wrap_model;
  // Commits after every so many steps; 0: at the end only. Where anything fails after a commit
  // (with may_fail), another executor, on the CPU, goes on from the last one, and the record is
  // that of the steps that were committed.
  int commit_every = 0;
  // After so many steps everything but the last commit is lost, as if the process had ended.
  std::optional<int> stop_after;
};

struct RunRecord {
  std::vector<double> losses, norms;
  std::vector<char> skipped;
  std::vector<exec::StepKind> kinds;          // of the steps
  std::vector<exec::NonFinite> non_finite;    // of the skipped steps
  std::optional<exec::NonFinite> bad_weight;  // after the last update
  std::int64_t update_count = 0;
  std::vector<double> evaluations;
  std::vector<float> params;                    // every unit, padding included
  std::vector<std::vector<std::byte>> extents;  // of the store at the end: param and state, by tile
  std::size_t races = 0;
  std::string first_race;
  std::uint64_t waits = 0, implied_waits = 0;  // of queues for others, as the race checker counts
  std::uint64_t host_waits = 0;
  std::vector<tiers::ImpliedWait> implied_queue_waits, implied_host_waits;
  std::string left_out;  // the wait that `on_races` had left out
  bool left_out_was_implied = false;
  std::uint64_t host_arena_bytes = 0, device_arena_bytes = 0;
  std::uint64_t nvme_read_bytes = 0, nvme_write_bytes = 0;
  plan::Plan plan;
  std::optional<Error> error;  // the first, with may_fail
  int resumed_at = -1;         // steps that the commit had which was resumed
};

// GPT-2 (tied) and Llama (untied, grouped-query) of a few blocks; sizes that are no multiples of
// anything.
[[nodiscard]] model::Architecture small_gpt2();
[[nodiscard]] model::Architecture small_llama();
[[nodiscard]] model::Architecture small_qwen3();

// Settings with budgets that never bind.
[[nodiscard]] plan::PlanSettings ample_settings();

// The smallest budgets with which the planner still makes a plan for these options, other things
// equal.
[[nodiscard]] std::size_t smallest_device_bytes(const RunOptions& options);
[[nodiscard]] std::size_t smallest_host_bytes(const RunOptions& options);

// Fails the test (and returns what it has) on any error.
[[nodiscard]] RunRecord run_engine(const RunOptions& options);

// Fails unless both are equal bit for bit in every compared number and in the weights.
void expect_same_bits(const RunRecord& expected, const RunRecord& actual, const std::string& what);

}  // namespace headrace::testing
