// The executor's life and the control flow of a step.
#include "scheduler/exec/executor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "core/trace.hpp"
#include "scheduler/exec/executor_impl.hpp"
#include "scheduler/exec/first_touch.hpp"
#include "scheduler/exec/state_format.hpp"
#include "tiers/race_checker.hpp"

namespace headrace::exec {

using plan::Instruction;
using plan::InstructionKind;
using plan::QueueKind;

namespace {

// Whether the device may stand still before it.
bool is_timed(const Instruction& instruction) {
  return instruction.queue == QueueKind::kCompute && !instruction.waits.empty();
}

}  // namespace

const char* variant_name(StepKind kind) {
  switch (kind) {
    case StepKind::kFirst:
      return "first";
    case StepKind::kSteady:
      return "steady";
    case StepKind::kClipped:
      return "clipped";
    case StepKind::kRecovered:
      break;
  }
  return "recovered";
}

Result<std::unique_ptr<Executor>> Executor::create(tiers::Runtime& runtime,
                                                   const plan::Plan& plan,
                                                   const plan::ModelSpec& spec,
                                                   Model model,
                                                   tiers::nvme::Store* store,
                                                   const ExecutorOptions& options) {
  auto executor = std::make_unique<ExecutorImpl>(runtime, plan, spec, std::move(model), store);
  HEADRACE_TRY(executor->open(options));
  return std::unique_ptr<Executor>(std::move(executor));
}

Status ExecutorImpl::open(const ExecutorOptions& options) {
  optimizer_ = &optimizer_of(plan_.format);
  seed_ = options.seed;
  HEADRACE_TRY(create_device(options));
  HEADRACE_TRY(create_threads(options));
  HEADRACE_TRY(create_memory());
  HEADRACE_TRY(create_queues(options));
  HEADRACE_TRY(create_watchdog(options));
  read_check_ = options.read_check;
  std::size_t instructions_max = 0, marks_max = 0;
  for (const plan::Program* program : plan::programs_of(plan_)) {
    instructions_max = std::max(instructions_max, program->instructions.size());
    std::size_t marks = 0;
    for (const Instruction& instruction : program->instructions) {
      marks += is_timed(instruction) ? 1 + instruction.waits.size() : 0;
    }
    marks_max = std::max(marks_max, marks);
  }
  events_.resize(instructions_max);
  leases_.reserve(16);
  timeline_ = Timeline(marks_max);
  return {};
}

Status ExecutorImpl::create_device(const ExecutorOptions& options) {
  if (options.make_device) {
    HEADRACE_ASSERT(plan_.separate_device, "a device of its own needs a plan with a separate one");
    HEADRACE_ASSIGN(device_, options.make_device(runtime_, cores_));
    return {};
  }
  tiers::CpuDeviceOptions device_options;
  device_options.aliases_host = !plan_.separate_device;
  device_options.compute_threads = options.compute_threads;
  device_options.h2d_bytes_per_s = options.h2d_bytes_per_s;
  device_options.d2h_bytes_per_s = options.d2h_bytes_per_s;
  device_options.cores = &cores_;
  HEADRACE_ASSIGN(device_, tiers::make_cpu_device(runtime_, device_options));
  return {};
}

// Beside a device that is somewhere, host memory lies near it, whichever nodes the cores are of.
Status ExecutorImpl::create_threads(const ExecutorOptions& options) {
  std::span<const optim::NodeCores> nodes;
  if (device_->pci_id().empty()) {
    nodes = options.optimizer_nodes;
  }
  HEADRACE_ASSIGN(optimizer_threads_, optim::Threads::create(options.optimizer_threads, nodes));
  std::vector<int> shares;
  for (const optim::NodeThreads& node : optimizer_threads_->nodes()) {
    shares.push_back(node.threads);
  }
  if (!shares.empty()) {
    log_info(fmt::format("optimizer threads on NUMA nodes: {}", fmt::join(shares, " + ")));
  }
  return {};
}

Status ExecutorImpl::create_memory() {
  const std::string near = device_->pci_id();
  tiers::Arena::FirstTouch first_touch;
  if (!optimizer_threads_->nodes().empty()) {
    first_touch = [this](std::span<std::byte> memory) {
      const std::size_t page_bytes = touched_page_bytes(memory.size());
      const std::span<const optim::NodeThreads> nodes = optimizer_threads_->nodes();
      touch_pages(memory, page_bytes, page_nodes(plan_, *optimizer_, nodes, page_bytes), nodes);
    };
  }
  HEADRACE_ASSIGN(
      host_arena_,
      tiers::Arena::create(tiers::Tier::kHost, "host", plan_.host_arena_bytes, near, first_touch));
  if (plan_.separate_device) {
    HEADRACE_ASSIGN(device_memory_, device_->allocate(plan_.device_arena_bytes));
    HEADRACE_ASSIGN(bounce_arena_,
                    tiers::Arena::create(tiers::Tier::kHost, "bounce", kBounceBytes, near));
    for (const tiers::Arena* arena : {host_arena_.get(), bounce_arena_.get()}) {
      HEADRACE_TRY(device_->pin({arena->data(), arena->bytes()}));
    }
  }
  for (const plan::Buffer& buffer : plan_.buffers) {
    std::span<std::byte> memory;
    tiers::Tier tier = tiers::Tier::kNvme;
    if (buffer.tier != plan::MemoryTier::kStore) {
      const bool on_device = buffer.tier == plan::MemoryTier::kDevice;
      const std::span<std::byte> arena =
          on_device ? device_memory_ : std::span(host_arena_->data(), host_arena_->bytes());
      HEADRACE_ASSERT(buffer.offset + buffer.bytes <= arena.size(),
                      "a planned buffer lies within its arena");
      memory = arena.subspan(buffer.offset, buffer.bytes);
      tier = on_device ? tiers::Tier::kDevice : tiers::Tier::kHost;
    }
    extents_.emplace_back(tier, memory, buffer.name);
  }
  return {};
}

Status ExecutorImpl::create_queues(const ExecutorOptions& options) {
  tiers::ThreadQueueOptions host_options;
  host_options.cores = &cores_;
  host_options.expedites = true;    // an update that waits leaves cores idle, and compute behind it
  host_options.keeps_cores = true;  // many short ones, which transfers wait for
  try {
    host_queue_ = std::make_unique<tiers::ThreadQueue>(runtime_, "host", host_options);
  } catch (const std::exception& exception) {  // no thread, no memory
    return operating_error("host queue: cannot start its thread").with_why(exception.what());
  }
  const bool commits = store_ != nullptr && !plan_.compute.instructions.empty();
  if (plan_.lanes > 0 || commits) {
    HEADRACE_ASSERT(store_ != nullptr, "a plan that streams tiles needs a store");
    HEADRACE_TRY(reserve_spill(options));
    // Tiles pass through the host arena only. For commits alone it need not be pinned.
    std::vector<std::span<std::byte>> buffers;
    if (plan_.lanes > 0 && host_arena_->bytes() > 0) {
      buffers.emplace_back(host_arena_->data(), host_arena_->bytes());
    }
    HEADRACE_ASSIGN(io_, IoLanes::create(runtime_, *store_, lane_count(), options, buffers));
  }
  return {};
}

// Of a reader nothing is spilled; it finds the store as it is.
Status ExecutorImpl::reserve_spill(const ExecutorOptions& options) {
  if (plan_.compute.instructions.empty() || !store_->writable()) {
    return {};
  }
  std::vector<tiers::nvme::SpillBytes> extents;
  extents.reserve(plan_.spilled.size());
  for (const plan::SpilledSaved& spilled : plan_.spilled) {
    extents.push_back({.unit = static_cast<std::uint32_t>(spilled.unit),
                       .index = static_cast<std::uint32_t>(spilled.slot),
                       .bytes = spilled.bytes});
  }
  std::vector<std::optional<std::uint64_t>> space;
  space.reserve(options.drives.size());
  for (const DriveOptions& drive : options.drives) {
    space.push_back(drive.space_bytes);
  }
  Status reserved = store_->reserve_spill(std::move(extents), space);
  if (!reserved && reserved.error().code == ExitCode::kDoesNotFit) {
    Error error = std::move(reserved.error());
    error.hint += "; or tiers.spill_activations = false, which recomputes activations instead";
    return error;
  }
  return reserved;
}

Status ExecutorImpl::create_watchdog(const ExecutorOptions& options) {
  if (!options.stuck_after_s) {
    return {};
  }
  std::vector<tiers::Queue*> queues = {
      &device_->compute(), &device_->h2d(), &device_->d2h(), host_queue_.get()};
  if (io_) {
    io_->append_queues(queues);
  }
  Watchdog::Source source;
  source.progress = [this, queues] {
    std::uint64_t progress = 0;
    for (const tiers::Queue* queue : queues) {
      progress += queue->finished_ticket();
    }
    if (io_) {
      const tiers::nvme::IoTotals totals = io_->totals();
      progress += totals.read_bytes + totals.write_bytes;  // a large extent takes its time
    }
    return progress;
  };
  source.waits = [queues] {
    std::vector<tiers::QueueWait> waits;
    for (const tiers::Queue* queue : queues) {
      if (std::optional<tiers::QueueWait> wait = queue->describe_wait()) {
        waits.push_back(std::move(*wait));
      }
    }
    return waits;
  };
  // Whatever was configured: no more often than it is worth to look, and within 64 bits.
  constexpr double kNsPerSecond = 1e9;
  constexpr double kLimitNsMin = 1e6;
  constexpr double kLimitNsMax = 1e18;
  const double limit_ns =
      std::clamp(*options.stuck_after_s * kNsPerSecond, kLimitNsMin, kLimitNsMax);
  HEADRACE_ASSIGN(watchdog_,
                  Watchdog::create(std::move(source), static_cast<std::int64_t>(limit_ns)));
  return {};
}

// What the calling thread does with the store by itself.
Watchdog::Task ExecutorImpl::watched(std::string_view what) {
  std::string text = fmt::format("the store {}:", what);
  for (std::uint32_t folder = 0; store_ != nullptr && folder < store_->folder_count(); ++folder) {
    text += fmt::format(" '{}'", store_->data_path(folder));
  }
  return {watchdog_.get(), std::move(text)};
}

ExecutorImpl::~ExecutorImpl() {
  watchdog_.reset();  // it looks at the others
  // Queues first (each finishes what it has), memory last: members are destroyed in reverse order
  // of declaration.
  host_queue_.reset();
  device_.reset();
  io_.reset();
}

// ---- running a program ----

namespace {

const char* cause_of(const Instruction& instruction) {
  switch (instruction.queue) {
    case QueueKind::kNvme:
      return plan::is_read(instruction.kind) ? "nvme_read" : "nvme_write";
    case QueueKind::kH2d:
      return "h2d";
    case QueueKind::kD2h:
      return "d2h";
    case QueueKind::kHost:
      return instruction.kind == InstructionKind::kUpdate ||
                     instruction.kind == InstructionKind::kDecode
                 ? "optimizer"
                 : "host";
    case QueueKind::kCompute:
      break;
  }
  return "host";
}

}  // namespace

Status ExecutorImpl::run(const plan::Program& program) {
  timeline_.reset();
  for (std::size_t i = 0; i < program.instructions.size() && !runtime_.fault.raised(); ++i) {
    const Instruction& instruction = program.instructions[i];
    tiers::Queue& queue = queue_of(instruction);
    const bool timed = is_timed(instruction);
    if (timed) {
      timeline_.begin(queue);
    }
    for (const int wait : instruction.waits) {
      const tiers::Event& event = events_[static_cast<std::size_t>(wait)];
      if (timed) {
        timeline_.timed_wait(
            queue, event, cause_of(program.instructions[static_cast<std::size_t>(wait)]));
      } else {
        queue.wait(event);
      }
    }
    for (const plan::Access& access : instruction.accesses) {
      if (access.buffer >= 0 && access.content != 0) {
        const auto mode = access.mode == plan::AccessMode::kWrite ? tiers::Lease::Mode::kWrite
                                                                  : tiers::Lease::Mode::kRead;
        leases_.emplace_back(
            extents_[static_cast<std::size_t>(access.buffer)], access.content, mode);
      }
    }
    launch(instruction, i);
    events_[i] = queue.record();
    for (tiers::Lease& lease : leases_) {
      lease.release_after(events_[i]);
    }
    leases_.clear();
  }
  return finish_queues();
}

// Between programs nothing runs: every queue is drained, and the host is ordered after all of them.
Status ExecutorImpl::finish_queues() {
  Status status;
  const auto finish = [&status](tiers::Queue& queue) {
    if (Status finished = queue.record().wait_host(); !finished && status) {
      status = std::move(finished);
    }
  };
  finish(device_->compute());
  finish(device_->h2d());
  finish(device_->d2h());
  finish(*host_queue_);
  if (io_) {
    if (Status finished = io_->wait_all(); !finished && status) {
      status = std::move(finished);
    }
  }
  note_all_is_over();
  return status;
}

// ---- a step ----

void ExecutorImpl::set_inputs(const StepInputs& inputs) {
  const auto rows = static_cast<std::size_t>(spec_.rows() * spec_.accumulate);
  HEADRACE_ASSERT(inputs.tokens.size() == rows && inputs.targets.size() == rows,
                  "a step's tokens and targets are [accumulate, N]");
  running_.tokens = inputs.tokens;
  running_.targets = inputs.targets;
  running_.scale = inputs.unmasked_targets > 0
                       ? static_cast<float>(1.0 / static_cast<double>(inputs.unmasked_targets))
                       : 0.0F;
  const std::span<std::byte> target =
      extents_[static_cast<std::size_t>(plan_.targets_host)].memory();
  std::memcpy(target.data(), inputs.targets.data(), inputs.targets.size_bytes());
  note_host_access("set inputs", {}, {target.data(), target.size()});
  rows_.build(inputs.tokens);
}

void ExecutorImpl::note_host_access(const char* name,
                                    const tiers::MemorySpan& read,
                                    const tiers::MemorySpan& written) const {
  if (runtime_.races != nullptr) {
    runtime_.races->on_host_access(
        {.name = name, .reads = {&read, 1}, .writes = {&written, 1}, .id = 0});
  }
}

void ExecutorImpl::note_all_is_over() const {
  const tiers::MemorySpan none;
  note_host_access("end", none, {host_arena_->data(), host_arena_->bytes()});
  note_host_access("end", none, {device_memory_.data(), device_memory_.size()});
  note_host_access("end", none, tiers::MemorySpan::storage(0, UINT64_MAX));
}

double ExecutorImpl::loss_sum() const {
  const std::span<std::byte> memory =
      extents_[static_cast<std::size_t>(plan_.losses_host)].memory();
  note_host_access("read losses", {memory.data(), memory.size()}, {});
  double sum = 0;
  for (std::int64_t k = 0; k < spec_.accumulate; ++k) {
    double loss = 0;
    std::memcpy(
        &loss, memory.data() + static_cast<std::size_t>(k) * sizeof(double), sizeof(double));
    sum += loss;
  }
  return sum;
}

Result<StepResult> ExecutorImpl::step(const StepInputs& inputs) {
  const std::int64_t begin_ns = TraceRecorder::now_ns();
  const auto nvme_before = io_ ? io_->totals() : tiers::nvme::IoTotals{};
  set_inputs(inputs);
  const bool held = pending_.has_value();
  HEADRACE_ASSERT(!held || plan_.update != plan::Update::kAfterBackward,
                  "only held updates stay pending");
  if (held) {
    HEADRACE_TRY(prepare_update());
  }
  StepResult result;
  result.kind = next_step();
  result.applied_held_update = held;
  const plan::Program& program = program_of(result.kind);
  const bool speculates = plan_.update == plan::Update::kSpeculative &&
                          (result.kind == StepKind::kSteady || result.kind == StepKind::kRecovered);
  if (speculates) {
    prepare_speculation(inputs);
  }
  HEADRACE_TRY(run(program));
  pending_.reset();
  prefetched_ = true;
  note_measurements(program, result);
  decide_update(inputs, result);
  speculates_next_ = pending_ && pending_->clip_scale == 1.0;
  if (speculates) {
    settle_speculation();
  }
  if (plan_.update == plan::Update::kAfterBackward) {
    HEADRACE_TRY(drain());
  }
  if (io_) {
    const auto totals = io_->totals();
    result.link_bytes["nvme_read"] = totals.read_bytes - nvme_before.read_bytes;
    result.link_bytes["nvme_write"] = totals.write_bytes - nvme_before.write_bytes;
  }
  result.seconds = static_cast<double>(TraceRecorder::now_ns() - begin_ns) * 1e-9;
  return result;
}

// Loss and norm are known: the update is decided on, or the step is skipped and the gradients are
// dropped.
void ExecutorImpl::decide_update(const StepInputs& inputs, StepResult& result) {
  result.loss =
      inputs.unmasked_targets > 0 ? loss_sum() / static_cast<double>(inputs.unmasked_targets) : 0.0;
  const std::span<const double> sums = jobs_.block_sums();
  note_host_access("read norm", {sums.data(), sums.size_bytes()}, {});
  result.grad_norm = optim::total_norm(sums);
  result.non_finite = jobs_.non_finite(spec_);
  if (!result.non_finite && !std::isfinite(result.loss)) {
    result.non_finite = NonFinite{.tensor = "loss", .element = 0, .count = 1};
  }
  if (!result.non_finite) {
    ++update_count_;
    pending_ = Pending{.lr = inputs.lr,
                       .clip_scale = optim::clip_scale(result.grad_norm, inputs.clip),
                       .update_count = update_count_};
  }
}

void ExecutorImpl::note_measurements(const plan::Program& program, StepResult& result) const {
  result.stall_seconds = timeline_.stall_seconds();
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == InstructionKind::kCopy) {
      result.link_bytes[instruction.queue == QueueKind::kH2d ? "h2d" : "d2h"] +=
          instruction.link_bytes;
    }
  }
}

// Gives every tile's job the scalars of the pending update. The store is told before the first
// write that it no longer is what was committed.
Status ExecutorImpl::prepare_update() {
  if (plan_.staging_slots > 0) {
    HEADRACE_TRY(store_->mark_dirty());
  }
  HEADRACE_ASSERT(prefetched_, "the step that leaves an update pending has read tiles for it");
  running_.write_step = pending_->update_count;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    for (std::size_t t = 0; t < plan_.units[u].tiles.size(); ++t) {
      TileJob& tile = jobs_.at(static_cast<int>(u), static_cast<int>(t));
      set_scalars(static_cast<int>(u), tile, tile.update, *pending_);
    }
  }
  return {};
}

void ExecutorImpl::set_scalars(int unit,
                               const TileJob& tile,
                               UpdateJob& job,
                               const Pending& update) const {
  note_host_access("set update", {}, update_span(job));
  for (std::size_t s = 0; s < job.segments.size(); ++s) {
    const plan::TensorSpec& tensor =
        spec_.units[static_cast<std::size_t>(unit)]
            .tensors[static_cast<std::size_t>(tile.segments[s].tensor)];
    const plan::GroupSpec& group = spec_.groups[static_cast<std::size_t>(tensor.group)];
    job.segments[s].scalars = {.lr = update.lr * group.lr_scale,
                               .beta1 = group.beta1,
                               .beta2 = group.beta2,
                               .eps = group.eps,
                               .weight_decay = group.weight_decay,
                               .update_count = update.update_count,
                               .clip_scale = update.clip_scale,
                               .seed = seed_};
  }
}

// A step that follows one like the last: not clipped, not skipped. Whether a step is speculated
// never changes numbers, and what it costs is known beforehand; so the last step is reason enough.
StepKind ExecutorImpl::next_step() const {
  if (!pending_) {
    return plan_.update == plan::Update::kAfterBackward ? StepKind::kSteady : StepKind::kFirst;
  }
  if (plan_.update != plan::Update::kSpeculative || pending_->rest_only) {
    return StepKind::kSteady;
  }
  return speculates_next_ ? StepKind::kRecovered : StepKind::kClipped;
}

const plan::Program& ExecutorImpl::program_of(StepKind kind) const {
  switch (kind) {
    case StepKind::kSteady:
      return plan::steady_program(plan_);
    case StepKind::kClipped:
      return plan_.compute_held;
    case StepKind::kRecovered:
      return plan_.compute_held_speculating;
    case StepKind::kFirst:
      break;
  }
  return plan_.compute;
}

// Scalars of this step's own update, as if it needed no clipping: speculated units take it, beside
// what the store has of them.
void ExecutorImpl::prepare_speculation(const StepInputs& inputs) {
  const Pending update{.lr = inputs.lr, .clip_scale = 1, .update_count = update_count_ + 1};
  running_.speculated_step = update.update_count;
  store_->speculate(update.update_count);
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    for (std::size_t t = 0; plan_.units[u].speculated && t < plan_.units[u].tiles.size(); ++t) {
      TileJob& tile = jobs_.at(static_cast<int>(u), static_cast<int>(t));
      set_scalars(static_cast<int>(u), tile, tile.speculation, update);
    }
  }
}

// The norm is known: what was speculated counts, or was never there and stays pending.
void ExecutorImpl::settle_speculation() {
  const bool keep = speculates_next_;
  store_->settle(keep);
  if (!keep) {
    return;
  }
  pending_->rest_only = true;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    for (std::size_t t = 0; plan_.units[u].speculated && t < plan_.units[u].tiles.size(); ++t) {
      TileJob& tile = jobs_.at(static_cast<int>(u), static_cast<int>(t));
      tile.update.stats = tile.speculation.stats;
    }
  }
}

Status ExecutorImpl::drain() {
  if (!pending_) {
    return {};
  }
  HEADRACE_TRY(prepare_update());
  HEADRACE_TRY(run(pending_->rest_only ? plan_.drain_rest : plan_.drain));
  pending_.reset();
  prefetched_ = false;
  return {};
}

Result<double> ExecutorImpl::evaluate(const StepInputs& inputs) {
  HEADRACE_TRY(drain());
  set_inputs(inputs);
  prefetched_ = false;  // its tiles pass through the same slots
  HEADRACE_TRY(run(plan_.evaluation));
  return loss_sum();
}

Result<std::span<const float>> ExecutorImpl::logits(std::span<const std::int32_t> tokens,
                                                    std::int64_t position) {
  HEADRACE_ASSERT(plan_.logits_host >= 0, "logits need a plan for generation");
  HEADRACE_ASSERT(tokens.size() == static_cast<std::size_t>(spec_.rows()) && position >= 0 &&
                      position < spec_.rows(),
                  "one sequence, and a row of it");
  running_.tokens = tokens;
  running_.position = position;
  HEADRACE_TRY(run(plan_.evaluation));
  const std::span<std::byte> memory =
      extents_[static_cast<std::size_t>(plan_.logits_host)].memory();
  note_host_access("read logits", {memory.data(), memory.size()}, {});
  return std::span<const float>(reinterpret_cast<const float*>(memory.data()),
                                static_cast<std::size_t>(spec_.vocab));
}

PeakMemory ExecutorImpl::peak() const {
  // The driver and io_uring pin the same memory.
  const std::size_t io_bytes = io_ ? io_->pinned_bytes() : 0;
  return {.device_bytes = device_memory_.size(),
          .host_bytes = host_arena_->bytes(),
          .pinned_bytes = std::max(device_->pinned_bytes(), io_bytes)};
}

}  // namespace headrace::exec
