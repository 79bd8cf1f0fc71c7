// The executor's class, over several files: executor.cpp (life, steps), launch.cpp (instructions),
// persist.cpp (load, commit, read).
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "optim_cpu/threads.hpp"
#include "scheduler/exec/executor.hpp"
#include "scheduler/exec/io_lanes.hpp"
#include "scheduler/exec/jobs.hpp"
#include "scheduler/exec/timeline.hpp"
#include "scheduler/exec/watchdog.hpp"
#include "tiers/device.hpp"
#include "tiers/memory.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::exec {

// At least so many tiles are on their way at a commit and at a resume.
inline constexpr int kCommitLanes = 4;
// Loads, commits and reads of a separate device's memory go through so much.
inline constexpr std::size_t kBounceBytes = std::size_t{1} << 20;

class ExecutorImpl final : public Executor {
 public:
  ExecutorImpl(tiers::Runtime& runtime,
               const plan::Plan& plan,
               const plan::ModelSpec& spec,
               Model model,
               tiers::nvme::Store* store)
      : runtime_(runtime),
        plan_(plan),
        spec_(spec),
        model_(std::move(model)),
        store_(store),
        jobs_(spec, plan),
        rows_(spec),
        timeline_(0) {}

  ~ExecutorImpl() override;
  [[nodiscard]] Status open(const ExecutorOptions& options);

  [[nodiscard]] Status load(const ParamSource& source) override;
  [[nodiscard]] Status load_committed(std::int64_t update_count) override;
  [[nodiscard]] Result<StepResult> step(const StepInputs& inputs) override;
  [[nodiscard]] Status drain() override;

  [[nodiscard]] bool update_pending() const override { return pending_.has_value(); }

  [[nodiscard]] std::int64_t update_count() const override { return update_count_; }

  [[nodiscard]] std::optional<NonFinite> non_finite_weights() const override {
    return jobs_.non_finite_weights(spec_);
  }

  [[nodiscard]] Result<double> evaluate(const StepInputs& inputs) override;
  [[nodiscard]] Result<std::span<const float>> logits(std::span<const std::int32_t> tokens,
                                                      std::int64_t position) override;
  [[nodiscard]] Result<std::uint64_t> commit(std::int64_t step, std::string run_state) override;
  [[nodiscard]] Status read_params(int unit, std::int64_t begin, std::span<float> out) override;
  [[nodiscard]] PeakMemory peak() const override;

 private:
  // The scalars of an update that has been decided on.
  struct Pending {
    double lr = 0;
    double clip_scale = 1;
    std::int64_t update_count = 0;
    bool rest_only = false;  // speculated units have it already
  };

  // What the operations of the running program are about.
  struct Running {
    std::span<const std::int32_t> tokens;
    std::span<const std::int32_t> targets;
    float scale = 0;
    std::int64_t position = 0;
    std::int64_t write_step = 0;  // headers of written extents carry the update that wrote them
    std::int64_t speculated_step = 0;  // the same of speculative writes
  };

  // executor.cpp
  [[nodiscard]] Status create_device(const ExecutorOptions& options);
  [[nodiscard]] Status create_threads(const ExecutorOptions& options);
  [[nodiscard]] Status create_memory();
  [[nodiscard]] Status create_queues(const ExecutorOptions& options);
  [[nodiscard]] Status create_watchdog(const ExecutorOptions& options);
  [[nodiscard]] Watchdog::Task watched(std::string_view what);
  void set_inputs(const StepInputs& inputs);
  // Tells the race checker, if there is one.
  void note_host_access(const char* name,
                        const tiers::MemorySpan& read,
                        const tiers::MemorySpan& written) const;
  // Nothing runs: from here on the host may do anything with all memory and the store.
  void note_all_is_over() const;
  [[nodiscard]] Status run(const plan::Program& program);
  [[nodiscard]] Status finish_queues();
  void note_measurements(const plan::Program& program, StepResult& result) const;
  [[nodiscard]] double loss_sum() const;
  void decide_update(const StepInputs& inputs, StepResult& result);
  [[nodiscard]] Status prepare_update();
  void set_scalars(int unit, const TileJob& tile, UpdateJob& job, const Pending& update) const;
  void prepare_speculation(const StepInputs& inputs);
  void settle_speculation();
  [[nodiscard]] StepKind next_step() const;
  [[nodiscard]] const plan::Program& program_of(StepKind kind) const;

  // launch.cpp
  [[nodiscard]] tiers::Queue& queue_of(const plan::Instruction& instruction);
  void launch(const plan::Instruction& instruction, std::uint64_t number);
  void launch_transfer(const plan::Instruction& instruction, std::uint64_t number);
  void launch_copy(const plan::Instruction& instruction, std::uint64_t number);
  void launch_block(const plan::Instruction& instruction, std::uint64_t number);
  void launch_head(const plan::Instruction& instruction, std::uint64_t number);
  void launch_embedding(const plan::Instruction& instruction, std::uint64_t number);
  void launch_accumulate(const plan::Instruction& instruction, std::uint64_t number);
  void launch_collect(const plan::Instruction& instruction, std::uint64_t number);
  void launch_update(const plan::Instruction& instruction, std::uint64_t number);
  void launch_decode(const plan::Instruction& instruction, std::uint64_t number);
  [[nodiscard]] std::span<std::byte> memory_of(const plan::Access& access);
  template <class T>
  [[nodiscard]] T* pointer(const plan::Instruction& instruction, std::size_t operand);
  [[nodiscard]] std::span<const std::int32_t> tokens_of(int micro_batch) const;

  // persist.cpp
  // A tile's weights or state whose home is host or device memory.
  struct MemoryTile {
    tiers::nvme::ExtentKey key;
    int buffer = -1;
    std::size_t offset = 0;  // in the buffer
    std::size_t bytes = 0;
    bool frozen = false;
  };

  [[nodiscard]] std::vector<MemoryTile> memory_tiles() const;
  [[nodiscard]] std::span<std::byte> direct_memory(const MemoryTile& tile);
  [[nodiscard]] tiers::nvme::IoLane& next_lane(const MemoryTile& tile);
  [[nodiscard]] Status load_device_weights();

  [[nodiscard]] Status reserve_spill(const ExecutorOptions& options);

  [[nodiscard]] int lane_count() const { return std::max(plan_.lanes, kCommitLanes); }

  // A tile's two extents, off the step path.
  struct TileBytes {
    std::vector<std::byte> param, state;
  };

  void encode_tile(const plan::UnitPlan& unit,
                   std::size_t tile,
                   std::span<const float> values,
                   TileBytes& bytes) const;
  [[nodiscard]] Status place_extent(const tiers::nvme::ExtentKey& key,
                                    const plan::TilePlace& place,
                                    std::span<const std::byte> bytes);
  [[nodiscard]] Status fetch_extent(const tiers::nvme::ExtentKey& key,
                                    const plan::TilePlace& place,
                                    std::span<std::byte> bytes);
  [[nodiscard]] Status load_tile(int unit, int tile, std::span<float> values, TileBytes& bytes);
  [[nodiscard]] Status place_device_weights(int unit, int tile, std::span<const float> values);
  [[nodiscard]] Status fetch_param(int unit, int tile, std::span<float> values);
  [[nodiscard]] Status copy_in(int buffer, std::size_t offset, std::span<const std::byte> source);
  [[nodiscard]] Status copy_out(int buffer, std::size_t offset, std::span<std::byte> target);
  [[nodiscard]] Result<std::uint64_t> write_memory_tiles(std::int64_t write_step);

  tiers::Runtime& runtime_;
  const plan::Plan& plan_;
  const plan::ModelSpec& spec_;
  Model model_;
  tiers::nvme::Store* store_;
  Jobs jobs_;
  RowIndex rows_;
  Timeline timeline_;
  tiers::Cores cores_;
  std::unique_ptr<tiers::Arena> host_arena_;
  // Separate device: pinned, for what comes from or goes to memory that is not (copy_in, copy_out).
  std::unique_ptr<tiers::Arena> bounce_arena_;
  std::deque<tiers::Extent> extents_;  // by buffer; those of the store are empty
  std::unique_ptr<optim::Threads> optimizer_threads_;
  const optim::Optimizer* optimizer_ = nullptr;
  std::unique_ptr<tiers::Device> device_;
  std::span<std::byte> device_memory_;  // of a separate device
  std::unique_ptr<tiers::ThreadQueue> host_queue_;
  tiers::nvme::ReadCheck read_check_ = tiers::nvme::ReadCheck::kHeaderAndSums;
  std::unique_ptr<IoLanes> io_;       // null where nothing is streamed or committed
  int turn_ = 0;                      // the lane that a commit or a resume used last
  std::vector<tiers::Event> events_;  // by instruction of the running program
  std::vector<tiers::Lease> leases_;  // of the instruction being launched
  bool prefetched_ = false;           // the first slots hold what the next program finds there
  std::optional<Pending> pending_;
  std::int64_t spills_ = 0;      // written so far
  bool speculates_next_ = true;  // the last step's update was not clipped
  std::int64_t update_count_ = 0;
  std::uint64_t seed_ = 0;
  Running running_;
  std::unique_ptr<Watchdog> watchdog_;  // null where none was asked for; looks at the queues
};

}  // namespace headrace::exec
