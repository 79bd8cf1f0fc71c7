#include "train/probe.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/threads.hpp"
#include "scheduler/exec/state_format.hpp"
#include "train/measure.hpp"
#include "train/probe_beside.hpp"
#include "train/probe_host.hpp"
#include "train/probe_kernels.hpp"
#include "train/probe_nvme.hpp"

namespace headrace::train {
namespace {

using plan::MachineProfile;

// Of what tells most of a step's time, of the others, and of two things at once.
constexpr Effort kEffort{.time = std::chrono::milliseconds(120)};
constexpr Effort kShortEffort{.time = std::chrono::milliseconds(50)};
constexpr std::chrono::milliseconds kBesideTime{100};

Status host_rates(HostBench& host, MachineProfile& profile) {
  const auto rate = [](const Effort& effort, double& target, const Load& load) -> Status {
    HEADRACE_ASSIGN(const Sample sample, measure_rate(effort, load));
    target = sample.median;
    return {};
  };
  HEADRACE_TRY(rate(kEffort, profile.memory_bytes_per_s, host.stream()));
  HEADRACE_TRY(rate(kShortEffort, profile.host_copy_bytes_per_s, host.copy()));
  HEADRACE_TRY(rate(kShortEffort, profile.collect_params_per_s, host.collect()));
  HEADRACE_TRY(rate(kShortEffort, profile.checksum_bytes_per_s, host.checksum()));
  for (const plan::StateFormat& format : exec::state_formats()) {
    const std::unique_ptr<UpdateBench> updates = host.updates(format);
    plan::UpdateRates& rates = profile.update_rates[format.name];
    HEADRACE_TRY(rate(kShortEffort, rates.update_params_per_s, updates->update()));
    if (format.decoded) {
      HEADRACE_TRY(rate(kShortEffort, rates.decode_params_per_s, updates->decode()));
      HEADRACE_TRY(
          rate(kShortEffort, rates.update_decoded_params_per_s, updates->update_decoded()));
    }
  }
  return {};
}

// The kernels once, the one large product among them; the better of it and of what is known.
Status compute_rates(HostBench& host, MachineProfile& profile) {
  KernelBench& kernels = host.kernels();
  HEADRACE_ASSIGN(const Sample gemm,
                  measure_rate(kShortEffort, kernels.load(kernels.product(kLargeProduct))));
  profile.gemm_fp32_flops_per_s = std::max(profile.gemm_fp32_flops_per_s, gemm.median);
  return kernel_rates(kernels, profile);
}

void warn_of_differences(const std::string& path, const std::vector<std::string>& differences) {
  for (const std::string& difference : differences) {
    log_warning(fmt::format("'{}' is of another machine: {}", path, difference));
  }
}

// What a child process sends to its parent: "ok" or "error" in the first line, then the text. The
// stack above is the parent's: nothing may unwind it, be it by an exception.
[[noreturn]] void probe_and_send(int pipe, const std::string& store_folder) {
  std::string text;
  try {
    const Result<MachineFile> machine = probe_machine(store_folder);
    text = machine ? "ok\n" + machine_to_toml(*machine)
                   : fmt::format("error\n{}: {}", machine.error().what, machine.error().why);
  } catch (const std::exception& error) {
    text = fmt::format("error\n{}", error.what());
  }
  const Status status = write_all(pipe, text);
  ::_exit(status ? 0 : 1);
}

std::string receive(int pipe) {
  std::string text;
  std::array<char, 4096> part = {};
  ssize_t got = 0;
  while ((got = ::read(pipe, part.data(), part.size())) > 0 || (got < 0 && errno == EINTR)) {
    text.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  return text;
}

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return errno_error("probe: cannot make a pipe", errno);
  }
  return Pipe{.reader = UniqueFd(ends[0]), .writer = UniqueFd(ends[1])};
}

// In a process of its own, so that neither its memory nor its threads are the run's.
Result<MachineFile> probe_in_child(const std::string& store_folder) {
  HEADRACE_ASSIGN(Pipe pipe, make_pipe());
  const pid_t child = ::fork();
  if (child < 0) {
    return errno_error("probe: cannot start a process", errno)
        .with_hint("raise the limit of processes: `ulimit -u`, or pids.max of the cgroup");
  }
  if (child == 0) {
    probe_and_send(pipe.writer.get(), store_folder);
  }
  pipe.writer.reset();
  const std::string text = receive(pipe.reader.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.starts_with("ok\n")) {
    return machine_from_toml(text.substr(3), "probe");
  }
  return operating_error("this machine cannot be measured")
      .with_why(text.starts_with("error\n") ? text.substr(6)
                                            : fmt::format("the probe ended with status {}", status))
      .with_hint("give a profile: headrace plan --machine FILE");
}

Result<MachineFile> probe_and_keep(const std::string& cache, const std::string& store_folder) {
  HEADRACE_ASSIGN(MachineFile machine, probe_in_child(store_folder));
  if (cache.empty()) {
    log_warning("neither XDG_CACHE_HOME nor HOME is set: the machine profile is not kept");
    return machine;
  }
  if (const Status status = write_machine_file(cache, machine); !status) {
    log_warning(fmt::format("the machine profile could not be kept: {}", status.error().what));
  }
  return machine;
}

void set_drive(const DriveRates& drive, MachineFile& machine) {
  machine.nvme_device = drive.device;
  machine.profile.nvme_read_bytes_per_s = drive.read_bytes_per_s;
  machine.profile.nvme_write_bytes_per_s = drive.write_bytes_per_s;
  machine.profile.nvme_mixed_bytes_per_s = drive.mixed_bytes_per_s;
  machine.profile.nvme_mixed_reads_bytes_per_s = drive.mixed_reads_bytes_per_s;
  machine.profile.nvme_mixed_writes_bytes_per_s = drive.mixed_writes_bytes_per_s;
  machine.profile.nvme_io_depth = drive.requests.in_flight;
  machine.profile.nvme_request_bytes = drive.requests.bytes;
  machine.profile.nvme_capacity_bytes = drive.capacity_bytes;
}

DriveRequests requests_of(const MachineProfile& profile) {
  return {.in_flight = profile.nvme_io_depth, .bytes = profile.nvme_request_bytes};
}

DriveRates drive_of(const MachineFile& machine) {
  return DriveRates{.read_bytes_per_s = machine.profile.nvme_read_bytes_per_s,
                    .write_bytes_per_s = machine.profile.nvme_write_bytes_per_s,
                    .mixed_bytes_per_s = machine.profile.nvme_mixed_bytes_per_s,
                    .mixed_reads_bytes_per_s = machine.profile.nvme_mixed_reads_bytes_per_s,
                    .mixed_writes_bytes_per_s = machine.profile.nvme_mixed_writes_bytes_per_s,
                    .requests = requests_of(machine.profile),
                    .capacity_bytes = machine.profile.nvme_capacity_bytes,
                    .device = machine.nvme_device};
}

// The drives below a store's folders, each measured once.
class Drives {
 public:
  // A drive whose rates need not be measured.
  void know(DriveRates rates) { drives_.push_back({.rates = std::move(rates), .folders = 0}); }

  [[nodiscard]] Status add(const std::string& folder) {
    const std::string device = device_of(folder);
    auto drive = std::find_if(drives_.begin(), drives_.end(), [&](const Drive& known) {
      return known.rates.device == device;
    });
    if (drive == drives_.end()) {
      log_info(fmt::format("measuring the drive of '{}'", folder));
      HEADRACE_ASSIGN(DriveRates rates, probe_drive(folder));
      drive = drives_.insert(drives_.end(), {.rates = std::move(rates), .folders = 0});
    }
    drive->folders += 1;
    folder_drives_.push_back(static_cast<std::size_t>(drive - drives_.begin()));
    return {};
  }

  // `profile` with the rates of all drives that hold a folder.
  [[nodiscard]] MachineProfile together(MachineProfile profile) const {
    profile.nvme_read_bytes_per_s = profile.nvme_write_bytes_per_s = 0;
    profile.nvme_mixed_bytes_per_s = 0;
    profile.nvme_mixed_reads_bytes_per_s = profile.nvme_mixed_writes_bytes_per_s = 0;
    profile.nvme_capacity_bytes = 0;
    for (const Drive& drive : drives_) {
      if (drive.folders > 0) {
        profile.nvme_read_bytes_per_s += drive.rates.read_bytes_per_s;
        profile.nvme_write_bytes_per_s += drive.rates.write_bytes_per_s;
        profile.nvme_mixed_bytes_per_s += drive.rates.mixed_bytes_per_s;
        profile.nvme_mixed_reads_bytes_per_s += drive.rates.mixed_reads_bytes_per_s;
        profile.nvme_mixed_writes_bytes_per_s += drive.rates.mixed_writes_bytes_per_s;
        profile.nvme_capacity_bytes += drive.rates.capacity_bytes;
      }
    }
    return profile;
  }

  [[nodiscard]] std::vector<double> folder_rates() const {
    std::vector<double> rates;
    for (const std::size_t index : folder_drives_) {
      const Drive& drive = drives_[index];
      // One that could not be measured counts as a slow drive, not as none.
      constexpr double kUnmeasuredBytesPerS = 1e8;
      rates.push_back(std::max(drive.rates.mixed_bytes_per_s, kUnmeasuredBytesPerS) /
                      drive.folders);
    }
    return rates;
  }

  [[nodiscard]] std::vector<DriveRequests> folder_requests() const {
    std::vector<DriveRequests> requests;
    requests.reserve(folder_drives_.size());
    for (const std::size_t index : folder_drives_) {
      requests.push_back(drives_[index].rates.requests);
    }
    return requests;
  }

 private:
  struct Drive {
    DriveRates rates;
    int folders = 0;
  };

  std::vector<Drive> drives_;
  std::vector<std::size_t> folder_drives_;  // by folder, in the order of add()
};

// The cached profile, where it is of this machine.
std::optional<MachineFile> cached_machine(const std::string& cache, const MachineProfile& here) {
  if (cache.empty() || !path_exists(cache)) {
    return std::nullopt;
  }
  Result<MachineFile> machine = read_machine_file(cache);
  if (!machine) {
    log_warning(
        fmt::format("'{}' cannot be read ({}); measuring again", cache, machine.error().what));
    return std::nullopt;
  }
  if (lacks_rates(*machine)) {
    log_info(
        fmt::format("'{}' is of an older version and lacks rates that predictions are made from; "
                    "measuring again",
                    cache));
    return std::nullopt;
  }
  const std::vector<std::string> differences = fingerprint_differences(machine->profile, here);
  warn_of_differences(cache, differences);
  if (!differences.empty()) {
    return std::nullopt;
  }
  return *std::move(machine);
}

}  // namespace

Result<MachineFile> probe_machine(const std::string& store_folder) {
  log_info("measuring this machine (about five seconds, once)");
  MachineFile machine;
  HEADRACE_ASSIGN(machine.profile, this_machine());
  machine.profile.schema = kMachineSchema;
  // OpenMP's team, oneTBB's, and those of queues and of the drive's engine.
  HEADRACE_TRY(check_threads(2 * machine.profile.cores + kProbeQueueThreads));
  HEADRACE_ASSIGN(const std::unique_ptr<HostBench> host, HostBench::create(machine.profile.cores));
  HEADRACE_TRY(compute_rates(*host, machine.profile));
  HEADRACE_TRY(host_rates(*host, machine.profile));
  std::unique_ptr<DriveBench> drive_bench;
  HEADRACE_ASSIGN(const DriveRates drive, probe_drive(existing_parent(store_folder), &drive_bench));
  HEADRACE_ASSIGN(const std::unique_ptr<CopyBench> copies, CopyBench::create());
  HEADRACE_TRY(beside_rates(*host, *copies, drive_bench.get(), kBesideTime, machine.profile));
  HEADRACE_TRY(compute_rates(*host, machine.profile));
  set_drive(drive, machine);
  std::string updates;
  for (const auto& [state, rates] : machine.profile.update_rates) {
    updates += fmt::format("{} {}/s, ", state, format_count(rates.update_params_per_s));
  }
  log_info(fmt::format("measured: GEMM {:.0f} GFLOP/s, memory {}, AdamW {}drive read {}, write {}",
                       machine.profile.gemm_fp32_flops_per_s * 1e-9,
                       format_rate(machine.profile.memory_bytes_per_s),
                       updates,
                       format_rate(drive.read_bytes_per_s),
                       format_rate(drive.write_bytes_per_s)));
  return machine;
}

Result<FoundMachine> find_machine(const std::string& given,
                                  const std::vector<std::string>& store_folders) {
  HEADRACE_ASSERT(!store_folders.empty(), "a store has a folder");
  HEADRACE_ASSIGN(const MachineProfile here, this_machine());
  if (!given.empty()) {
    HEADRACE_ASSIGN(const MachineFile machine, read_machine_file(given));
    warn_of_differences(given, fingerprint_differences(machine.profile, here));
    return FoundMachine{
        .profile = machine.profile,
        .folder_bytes_per_s = std::vector<double>(store_folders.size(), 1.0),
        .folder_requests = std::vector(store_folders.size(), requests_of(machine.profile))};
  }
  const std::string cache = machine_cache_path();
  std::optional<MachineFile> machine = cached_machine(cache, here);
  if (!machine) {
    HEADRACE_ASSIGN(machine, probe_and_keep(cache, store_folders.front()));
  }
  Drives drives;
  drives.know(drive_of(*machine));
  for (const std::string& folder : store_folders) {
    HEADRACE_TRY(drives.add(existing_parent(folder)));
  }
  return FoundMachine{.profile = drives.together(machine->profile),
                      .folder_bytes_per_s = drives.folder_rates(),
                      .folder_requests = drives.folder_requests()};
}

Result<MachineProfile> known_machine() {
  const std::string cache = machine_cache_path();
  if (!cache.empty() && path_exists(cache)) {
    if (Result<MachineFile> machine = read_machine_file(cache)) {
      return machine->profile;
    }
  }
  return this_machine();
}

}  // namespace headrace::train
