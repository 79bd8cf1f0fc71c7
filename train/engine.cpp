#include "train/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/config.hpp"
#include "core/files.hpp"
#include "core/interval.hpp"
#include "core/quantity.hpp"
#include "core/threads.hpp"
#include "model/spec.hpp"
#include "model/tokenizer.hpp"
#include "model/units.hpp"
#include "scheduler/exec/state_format.hpp"
#include "scheduler/plan/refusal.hpp"
#include "tiers/numa.hpp"
#include "tiers/nvme/format.hpp"
#include "train/data.hpp"
#include "train/periodic_export.hpp"
#include "train/plan_changes.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/state_format.hpp"

namespace headrace::train {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20U;
constexpr std::int64_t kTileElementsMax = 16 * plan::kBlockElements;  // that "auto" chooses
// What the process still grows by once the arenas are there: threads' stacks, libraries' scratch,
// generated code. Runs were seen to take 6 to 15 MiB.
constexpr std::size_t kProcessGrowthBytes = 24 * kMebibyte;
// "auto" leaves so much of the machine's memory alone, or a sixteenth of it where that is more.
constexpr std::size_t kReserveBytes = 256 * kMebibyte;
constexpr std::size_t kReservePart = 16;
// What oneDNN, oneTBB and OpenMP take before there is a plan.
constexpr std::size_t kLibraryBytes = 32 * kMebibyte;
constexpr DriveRequests kDriveRequests{.in_flight = 8, .bytes = std::uint64_t{1} << 20U};
constexpr std::size_t kTraceEventsMax = 200'000;
constexpr std::size_t kRacesShown = 5;
// compute, h2d, d2h, host, the engine of the store, and the watchdog.
constexpr int kQueueThreads = 6;

// Step batches that are held at once: in use and read ahead, and that of an evaluation.
std::size_t batches_of(plan::Purpose purpose) {
  switch (purpose) {
    case plan::Purpose::kTrain:
      return 3;
    case plan::Purpose::kEvaluate:
      return 1;
    case plan::Purpose::kGenerate:
      break;
  }
  return 0;
}

bool environment_flag(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets it
  return value != nullptr && std::string_view(value) == "1";
}

std::optional<plan::Home> place_of(const RunConfig& config) {
  if (!config.tiers.place) {
    return std::nullopt;
  }
  return *config.tiers.place == "device" ? plan::Home::kDevice
         : *config.tiers.place == "host" ? plan::Home::kHost
                                         : plan::Home::kNvme;
}

std::optional<int> group_size_of(const RunConfig& config) {
  if (!config.batch.traversal) {
    return std::nullopt;
  }
  return *config.batch.traversal == "layer-major" ? plan::kLayerMajor : plan::kBatchMajor;
}

Result<std::optional<plan::Update>> update_of(const RunConfig& config, const PlanRequest& request) {
  if (!config.optim.update) {
    return std::optional<plan::Update>();
  }
  for (const plan::Update update : {plan::Update::kHeld, plan::Update::kAfterBackward}) {
    if (*config.optim.update == plan::update_name(update)) {
      return std::optional(update);
    }
  }
  if (request.stored_slots && !request.stored_undo_slot) {
    return usage_error("optim.update = \"speculative\", but the run's store was made without")
        .with_why(
            "what is speculated is written to a slot of its own, and a store keeps the slots that "
            "it was made with")
        .with_hint("--set optim.update=held")
        .with_where(config_place(config, "optim.update"));
  }
  return std::optional(plan::Update::kSpeculative);
}

std::optional<double> smaller_of(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

Result<std::optional<std::int64_t>> tile_of(const RunConfig& config, const PlanRequest& request) {
  std::optional<std::int64_t> asked;
  if (config.tiers.tile_elements) {
    asked = static_cast<std::int64_t>(*config.tiers.tile_elements);
  }
  if (!request.stored_tile_elements) {
    return asked;
  }
  if (asked && *asked != *request.stored_tile_elements) {
    const std::int64_t stored_blocks = *request.stored_tile_elements / plan::kBlockElements;
    return usage_error(fmt::format("tiers.tile = {}, but the run's store has tiles of {} blocks",
                                   *asked / plan::kBlockElements,
                                   stored_blocks))
        .with_why("a store keeps the tiles that it was made with")
        .with_hint(fmt::format("--set tiers.tile={}, or leave it \"auto\"", stored_blocks))
        .with_where(config_place(config, "tiers.tile"));
  }
  return request.stored_tile_elements;
}

double weight_of_all(const std::vector<StoreDrive>& drives) {
  double sum = 0;
  for (const StoreDrive& drive : drives) {
    sum += drive.weight;
  }
  return sum;
}

// Tiles are spread by weight, so all drives together write as fast as the one that is held back
// most lets its share be written.
std::optional<double> write_limit_of(const std::vector<StoreDrive>& drives) {
  std::optional<double> limit;
  for (const StoreDrive& drive : drives) {
    if (drive.folder.write_limit_bytes_per_s) {
      const double share = drive.weight / weight_of_all(drives);
      limit = smaller_of(limit, *drive.folder.write_limit_bytes_per_s / share);
    }
  }
  return limit;
}

// Bytes that the store may write before the first of the drives, as far as they are known, is worn
// out.
std::optional<double> endurance_of(const std::vector<StoreDrive>& drives) {
  std::optional<double> bytes;
  for (const StoreDrive& drive : drives) {
    if (drive.folder.endurance_bytes) {
      const double share = drive.weight / weight_of_all(drives);
      bytes = smaller_of(bytes, *drive.folder.endurance_bytes / share);
    }
  }
  return bytes;
}

// Caps of a link are for all folders together.
std::vector<exec::DriveOptions> drive_options(const RunConfig& config,
                                              const std::vector<StoreDrive>& drives) {
  std::vector<exec::DriveOptions> options;
  for (const StoreDrive& drive : drives) {
    const double share = drive.weight / weight_of_all(drives);
    const auto part = [&](const std::optional<double>& cap) {
      return cap ? std::optional(*cap * share) : std::nullopt;
    };
    const bool measured = drive.requests.in_flight > 0 && drive.requests.bytes > 0;
    const DriveRequests requests = measured ? drive.requests : kDriveRequests;
    options.push_back({.io_depth = config.tiers.io_depth.value_or(requests.in_flight),
                       .request_bytes = requests.bytes,
                       .read_bytes_per_s = part(config.tiers.links.nvme_read),
                       .write_bytes_per_s = smaller_of(part(config.tiers.links.nvme_write),
                                                       drive.folder.write_limit_bytes_per_s),
                       .space_bytes = drive.folder.space_bytes});
  }
  return options;
}

// Two slots a tile are what makes commits safe while the run goes on.
Result<int> slots_of(const RunConfig& config, const Interval& commits, const PlanRequest& request) {
  const int wanted = commits.never() ? 1 : 2;
  if (!request.stored_slots || *request.stored_slots >= wanted) {
    return request.stored_slots.value_or(wanted);
  }
  if (config.where.contains("durability.checkpoint")) {
    return usage_error(fmt::format("durability.checkpoint = \"{}\", but the run's store was made "
                                   "with \"none\"",
                                   config.durability.checkpoint))
        .with_why(
            "with one slot a tile no commit can be made while the run goes on, and a store "
            "keeps the slots that it was made with")
        .with_hint("--set durability.checkpoint=none")
        .with_where(config_place(config, "durability.checkpoint"));
  }
  return *request.stored_slots;
}

// A plan takes seconds up to here.
constexpr std::int64_t kParametersMax = 1'000'000'000'000;
constexpr std::int64_t kUnitPassesMax = std::int64_t{1} << 16U;  // units x micro-batches of a step

Status check_plannable(const RunConfig& config, const plan::ModelSpec& spec) {
  const std::int64_t parameters = spec.parameters();
  if (parameters > kParametersMax) {
    return usage_error(fmt::format("a model of {} parameters is more than is planned for",
                                   format_count(static_cast<double>(parameters))))
        .with_why(fmt::format("this version goes up to {}",
                              format_count(static_cast<double>(kParametersMax))))
        .with_hint("use fewer model.layers, or a smaller model.hidden or model.ffn")
        .with_where(config_place(config, "model.layers"));
  }
  const auto units = static_cast<std::int64_t>(spec.units.size());
  if (units * spec.accumulate > kUnitPassesMax) {
    return usage_error(
               fmt::format("batch.accumulate = {} with {} units is more than is planned for",
                           spec.accumulate,
                           units))
        .with_why(fmt::format("a step goes through {} units at most, each micro-batch counted",
                              kUnitPassesMax))
        .with_hint(fmt::format("--set batch.accumulate={} and a larger batch.micro_batch",
                               kUnitPassesMax / units))
        .with_where(config_place(config, "batch.accumulate"));
  }
  return {};
}

model::BatchShape batch_shape(const RunConfig& config) {
  return {.micro_batch = config.batch.micro_batch,
          .seq_len = config.batch.seq_len,
          .accumulate = config.batch.accumulate,
          .compute_threads = compute_threads_of(config)};
}

std::size_t reserve_bytes(const HostMemory& memory) {
  return std::max(kReserveBytes, static_cast<std::size_t>(memory.available_bytes) / kReservePart);
}

// For arenas, where nobody says more.
std::size_t usable_bytes(const HostMemory& memory) {
  const auto available = static_cast<std::size_t>(memory.available_bytes);
  const std::size_t taken = reserve_bytes(memory) + kProcessGrowthBytes;
  return available > taken ? available - taken : 0;
}

Result<HostMemory> memory_of(const PlanRequest& request) {
  if (!request.memory_bytes) {
    return host_memory();
  }
  HostMemory memory;
  memory.total_bytes = *request.memory_bytes;
  memory.available_bytes = *request.memory_bytes;
  return memory;
}

void set_budgets(const RunConfig& config, const HostMemory& memory, plan::PlanSettings& settings) {
  const std::size_t usable = usable_bytes(memory);
  const std::optional<std::uint64_t>& device = config.tiers.device_memory_bytes;
  const std::optional<std::uint64_t>& host = config.tiers.host_memory_bytes;
  settings.usable_bytes = usable;
  settings.host_available_bytes = usable;
  settings.device_available_bytes = settings.separate_device ? usable : 0;
  if (device) {
    settings.device_memory_bytes = static_cast<std::size_t>(*device);
  } else if (settings.separate_device) {
    // A device of its own that nobody sized takes half of what is there.
    settings.device_memory_bytes = usable / 2;
  }
  const std::size_t device_bytes = settings.device_memory_bytes.value_or(0);
  if (host) {
    settings.host_memory_bytes = static_cast<std::size_t>(*host);
    return;
  }
  settings.reserve_bytes = reserve_bytes(memory);
  settings.host_memory_bytes = usable > device_bytes ? usable - device_bytes : 0;
  // "auto" makes room for a device cap that is raised: its own size is not in the way of a hint.
  settings.host_available_bytes += settings.host_memory_bytes;
}

// Caps may be larger than the machine; what counts is what the plan takes.
Status check_machine(const Planned& planned, const HostMemory& memory) {
  const std::uint64_t needed = std::uint64_t{planned.plan.host_arena_bytes} +
                               planned.plan.device_arena_bytes + kProcessGrowthBytes;
  if (needed <= memory.available_bytes) {
    return {};
  }
  const std::size_t usable = usable_bytes(memory);
  return does_not_fit_error(fmt::format("the plan needs {} of memory, but {} are available",
                                        format_bytes(needed),
                                        format_bytes(memory.available_bytes)))
      .with_why(memory.limit_bytes
                    ? fmt::format("the cgroup's limit is {}", format_bytes(*memory.limit_bytes))
                    : "the rest of the machine's memory is in use")
      .with_hint(fmt::format(
          "--set tiers.host_memory=\"{}MiB\"{}, or \"auto\"",
          usable / kMebibyte,
          planned.settings.separate_device ? " and a smaller tiers.device_memory" : ""));
}

}  // namespace

std::vector<StoreDrive> drives_of(const RunConfig& config,
                                  const std::vector<std::string>& folders,
                                  const FoundMachine& machine) {
  std::vector<StoreDrive> drives;
  const std::vector<NvmeFolder> settings = store_folders(config);
  for (std::size_t i = 0; i < folders.size(); ++i) {
    StoreDrive drive;
    drive.folder.path = folders[i];
    for (const NvmeFolder& setting : settings) {
      if (setting.path == folders[i]) {
        drive.folder = setting;
      }
    }
    drive.weight = machine.folder_bytes_per_s[i];
    drive.requests = machine.folder_requests[i];
    if (drive.folder.write_limit_bytes_per_s) {
      // A step reads about as much as it writes.
      drive.weight = std::min(drive.weight, 2 * *drive.folder.write_limit_bytes_per_s);
    }
    drives.push_back(std::move(drive));
  }
  return drives;
}

int compute_threads_of(const RunConfig& config) {
  return config.run.compute_threads.value_or(usable_cores());
}

Result<model::Architecture> resolve_architecture(const RunConfig& config,
                                                 const model::Architecture* path_architecture) {
  std::optional<std::int64_t> tokenizer_vocab;
  if (!config.data.tokenizer.empty()) {
    HEADRACE_ASSIGN(const auto tokenizer, model::make_tokenizer(config.data.tokenizer));
    tokenizer_vocab = tokenizer->vocab();
  }
  model::Architecture architecture;
  if (path_architecture != nullptr) {
    architecture = *path_architecture;
  } else {
    HEADRACE_ASSIGN(architecture, model::architecture_from_section(config.model, tokenizer_vocab));
  }
  if (!config.data.tokenizer.empty()) {
    architecture.tokenizer = config.data.tokenizer;
  }
  return architecture;
}

Result<plan::ModelSpec> make_run_spec(const RunConfig& config,
                                      const model::Architecture& architecture) {
  HEADRACE_ASSIGN(plan::ModelSpec spec,
                  model::make_model_spec(architecture, batch_shape(config), config.optim));
  HEADRACE_TRY(check_plannable(config, spec));
  return spec;
}

Result<plan::PlanSettings> make_plan_settings(const RunConfig& config, const PlanRequest& request) {
  plan::PlanSettings settings;
  settings.purpose = request.purpose;
  settings.separate_device = config.tiers.device_memory_bytes.has_value() ||
                             config.tiers.links.h2d.has_value() ||
                             config.tiers.links.d2h.has_value();
  HEADRACE_ASSIGN(const HostMemory memory, memory_of(request));
  set_budgets(config, memory, settings);
  HEADRACE_ASSIGN(const ProcessMemory process, process_memory());
  settings.process_bytes = static_cast<std::size_t>(process.used_bytes()) + kProcessGrowthBytes;
  settings.process_bytes += batches_of(request.purpose) * step_batch_bytes(config.batch);
  settings.place = place_of(config);
  settings.lookahead = config.tiers.lookahead;
  settings.may_spill = config.tiers.spill_activations;
  settings.nvme_room_bytes = request.nvme_room_bytes;
  HEADRACE_ASSIGN(settings.tile_elements, tile_of(config, request));
  settings.format = exec::state_format(config.optim.state);
  if (request.purpose == plan::Purpose::kTrain && config.exports.every != "none") {
    const std::int64_t tile = settings.tile_elements.value_or(kTileElementsMax);
    settings.process_bytes += export_memory_bytes(
        committed_tile_bytes(settings.format, {.begin = 0, .elements = tile, .frozen = false}));
  }
  settings.stored_bytes = [](std::uint64_t payload_bytes) {
    return payload_bytes + tiers::nvme::format::header_bytes(payload_bytes);
  };
  settings.group_size = group_size_of(config);
  HEADRACE_ASSIGN(settings.update, update_of(config, request));
  settings.grad = config.precision.grad.value_or("fp32") == "bf16" ? Dtype::kBf16 : Dtype::kF32;
  settings.h2d_cap = config.tiers.links.h2d;
  settings.d2h_cap = config.tiers.links.d2h;
  settings.nvme_read_cap = config.tiers.links.nvme_read;
  settings.nvme_write_cap =
      smaller_of(config.tiers.links.nvme_write, write_limit_of(request.drives));
  HEADRACE_ASSIGN(settings.commit_interval, parse_interval(config.durability.checkpoint));
  HEADRACE_ASSIGN(settings.store_slots, slots_of(config, settings.commit_interval, request));
  if (request.stored_slots) {
    settings.undo_slot = request.stored_undo_slot;
  }
  if (settings.store_slots < 2) {
    settings.commit_interval = {};
  }
  settings.steps = request.steps;
  settings.endurance_bytes = endurance_of(request.drives);
  settings.config_name = config.file;
  return settings;
}

Result<Planned> make_planned(const RunConfig& config,
                             const model::Architecture& architecture,
                             const plan::MachineProfile& machine,
                             const PlanRequest& request) {
  HEADRACE_TRY(check_memory(kLibraryBytes));
  Planned planned;
  planned.architecture = architecture;
  planned.machine = machine;
  HEADRACE_ASSIGN(planned.spec, make_run_spec(config, architecture));
  HEADRACE_ASSIGN(planned.settings, make_plan_settings(config, request));
  HEADRACE_ASSIGN(
      planned.plan,
      plan::make_plan(
          planned.spec, planned.settings, machine, changes_of(config, architecture, request)));
  HEADRACE_ASSIGN(const HostMemory memory, memory_of(request));
  HEADRACE_TRY(check_machine(planned, memory));
  planned.options.compute_threads = compute_threads_of(config);
  planned.options.seed = config.run.seed;
  planned.options.optimizer_threads =
      config.optim.threads.value_or(std::max(1, usable_cores() - config.optim.cores_left));
  planned.options.h2d_bytes_per_s = planned.settings.h2d_cap;
  planned.options.d2h_bytes_per_s = planned.settings.d2h_cap;
  planned.options.read_check = config.durability.verify_reads
                                   ? tiers::nvme::ReadCheck::kHeaderAndSums
                                   : tiers::nvme::ReadCheck::kHeaderOnly;
  HEADRACE_ASSIGN(const Interval stuck_after, parse_time_interval(config.log.stuck_after));
  if (!stuck_after.never()) {
    planned.options.stuck_after_s = stuck_after.seconds;
  }
  planned.drives = request.drives;
  planned.options.drives = drive_options(config, request.drives);
  return planned;
}

tiers::nvme::StoreContents store_contents(const Planned& planned, const std::string& run_dir) {
  return contents_of(make_tensor_table(planned.architecture, planned.spec, planned.plan),
                     planned.plan.format,
                     run_dir);
}

Engine::Engine(Planned planned) : planned_(std::move(planned)) {
  if (environment_flag("HEADRACE_RACE_CHECK")) {
    races_ = std::make_unique<tiers::RaceChecker>();
  }
  if (environment_flag("HEADRACE_TRACE")) {
    trace_ = std::make_unique<TraceRecorder>(kTraceEventsMax);
  }
  runtime_.races = races_.get();
  runtime_.trace = trace_.get();
}

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(Planned planned, tiers::nvme::Store* store) {
  std::unique_ptr<Engine> engine(new Engine(std::move(planned)));
  const Planned& owned = engine->planned_;
  const model::BatchShape batch = {.micro_batch = owned.spec.micro_batch,
                                   .seq_len = owned.spec.seq_len,
                                   .accumulate = owned.spec.accumulate,
                                   .compute_threads = owned.options.compute_threads};
  // OpenMP's team and oneTBB's, which the embedding uses too; the compute and the host queue are
  // one of them each.
  HEADRACE_TRY(check_threads(owned.options.compute_threads +
                             std::max(owned.options.optimizer_threads, usable_cores()) +
                             kQueueThreads - 2));
  engine->planned_.options.optimizer_nodes = tiers::cores_by_node();
  HEADRACE_ASSIGN(exec::Model model, model::make_model(owned.architecture, owned.spec, batch));
  HEADRACE_ASSIGN(
      engine->executor_,
      exec::Executor::create(
          engine->runtime_, owned.plan, owned.spec, std::move(model), store, owned.options));
  return engine;
}

Status Engine::check_races() const {
  if (races_ == nullptr) {
    return {};
  }
  const std::vector<tiers::Race> races = races_->races();
  if (races.empty()) {
    return {};
  }
  Error error = operating_error(fmt::format("the race checker found {} races in {} operations",
                                            races.size(),
                                            races_->operations_checked()))
                    .with_hint("this is a fault of headrace: please report it");
  for (std::size_t i = 0; i < std::min(kRacesShown, races.size()); ++i) {
    error.others.push_back(operating_error(races[i].text));
  }
  return error;
}

Status Engine::write_trace(const std::string& folder) const {
  if (trace_ == nullptr) {
    return {};
  }
  HEADRACE_TRY(make_directory(folder, Parents::kMake));
  return trace_->write(folder + "/trace.json");
}

}  // namespace headrace::train
