// Loading NVML, asking it, and putting its answers into words. See nvml.hpp.
#include "tiers/gpu/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/log.hpp"
#include "core/quantity.hpp"
#include "tiers/gpu/nvml_abi.hpp"

namespace headrace::tiers::gpu {

namespace abi = nvml_abi;

namespace {

// Null: this version of the library has no such function.
template <class Function>
Function* find_function(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::string return_text(void* library, abi::Return code) {
  auto* text = find_function<abi::ErrorString>(library, "nvmlErrorString");
  return text != nullptr ? fmt::format("{} ({})", text(code), code) : std::to_string(code);
}

Error nvml_error(void* library, const char* call, abi::Return code) {
  std::string why = fmt::format("{}: {}", call, return_text(library, code));
  switch (code) {
    case abi::kDriverNotLoaded:
      return make_error(ExitCode::kHardwareAbsent, "nvml: NVIDIA's driver is not loaded")
          .with_why(std::move(why))
          .with_hint("`modprobe nvidia` as root; `dmesg` says why if it fails");
    case abi::kLibRmVersionMismatch:
      return operating_error("nvml: the driver was updated, and the kernel still runs the old one")
          .with_why(std::move(why))
          .with_hint("reboot the machine; until then no new program can use the GPU");
    case abi::kNotFound:
      return make_error(ExitCode::kHardwareAbsent, "nvml: there is no such GPU")
          .with_why(std::move(why))
          .with_hint("`nvidia-smi -L` lists them");
    case abi::kGpuIsLost:
    case abi::kResetRequired:
      return operating_error("nvml: the GPU does not answer any more")
          .with_why(std::move(why))
          .with_hint("look at the driver's Xid messages (`dmesg`), then reboot the machine");
    case abi::kNoPermission:
      return operating_error("nvml: this user may not use the driver")
          .with_why(std::move(why))
          .with_hint("look at the access rights of /dev/nvidiactl and /dev/nvidia0");
    default:
      return operating_error("nvml: a call failed").with_why(std::move(why));
  }
}

// Answers that say "not for this GPU", "not to you" or "not any more" rather than "I failed".
bool is_untold(abi::Return code) {
  return code == abi::kNotSupported || code == abi::kNoPermission ||
         code == abi::kFunctionNotFound || code == abi::kNoData || code == abi::kDeprecated;
}

// One GPU, to be asked.
class Inquiry {
 public:
  Inquiry(void* library, abi::Device device) : library_(library), device_(device) {}

  // Asks by the first of `names` that the library has. True: answered. False: the library or the
  // driver does not tell.
  template <class Function, class... Arguments>
  Result<bool> ask(std::initializer_list<const char*> names, Arguments... arguments) const {
    return is_told(call<Function>(names, arguments...));
  }

  Result<std::optional<int>> number(const char* name) const {
    unsigned value = 0;
    HEADRACE_ASSIGN(const bool told, ask<abi::GetNumber>({name}, &value));
    return told ? std::optional(static_cast<int>(value)) : std::nullopt;
  }

  // Adds those of one list. False: not told.
  Result<bool> append_processes(std::initializer_list<const char*> names,
                                std::vector<NvmlProcess>& processes) const {
    constexpr std::size_t kRoom = 64;
    constexpr std::size_t kRoomMax = std::size_t{1} << 16;
    std::vector<abi::ProcessInfo> infos(kRoom);
    auto count = static_cast<unsigned>(infos.size());
    Answer answer = call<abi::GetProcesses>(names, &count, infos.data());
    while (answer.code == abi::kInsufficientSize && infos.size() < kRoomMax) {
      infos.resize(infos.size() * 4);
      count = static_cast<unsigned>(infos.size());
      answer = call<abi::GetProcesses>(names, &count, infos.data());
    }
    HEADRACE_ASSIGN(const bool told, is_told(answer));
    infos.resize(told ? std::min<std::size_t>(count, infos.size()) : 0);
    for (const abi::ProcessInfo& info : infos) {
      NvmlProcess process;
      process.pid = info.pid;
      if (info.memory_bytes != abi::kNotAvailable) {
        process.memory_bytes = info.memory_bytes;
      }
      processes.push_back(process);
    }
    return told;
  }

 private:
  struct Answer {
    const char* call;
    abi::Return code;
  };

  template <class Function, class... Arguments>
  Answer call(std::initializer_list<const char*> names, Arguments... arguments) const {
    for (const char* name : names) {
      if (auto* function = find_function<Function>(library_, name); function != nullptr) {
        return {name, function(device_, arguments...)};
      }
    }
    return {*names.begin(), abi::kFunctionNotFound};
  }

  Result<bool> is_told(const Answer& answer) const {
    if (answer.code == abi::kSuccess) {
      return true;
    }
    if (!is_untold(answer.code)) {
      return nvml_error(library_, answer.call, answer.code);
    }
    log_debug(fmt::format("{}: {}", answer.call, return_text(library_, answer.code)));
    return false;
  }

  void* library_;
  abi::Device device_;
};

struct ReasonWords {
  std::uint64_t reason;
  const char* words;
};

constexpr std::array kReasons{
    ReasonWords{abi::kReasonApplicationClocks, "application clocks that somebody set"},
    ReasonWords{abi::kReasonPowerCap, "power cap"},
    ReasonWords{abi::kReasonHardwareSlowdown, "hardware slowdown"},
    ReasonWords{abi::kReasonSyncBoost, "a slower GPU of its sync boost group"},
    ReasonWords{abi::kReasonSoftwareThermal, "heat"},
    ReasonWords{abi::kReasonHardwareThermal, "heat beyond what the hardware allows"},
    ReasonWords{abi::kReasonPowerBrake, "power brake of the power supply"},
    ReasonWords{abi::kReasonDisplayClocks, "clocks of its display"},
};

std::vector<std::string> reasons_in_words(std::uint64_t reasons) {
  std::vector<std::string> words;
  std::uint64_t unknown = reasons & ~abi::kReasonIdle;
  for (const ReasonWords& known : kReasons) {
    if ((reasons & known.reason) != 0) {
      words.emplace_back(known.words);
      unknown &= ~known.reason;
    }
  }
  if (unknown != 0) {
    words.push_back(fmt::format("reason {:#x}", unknown));
  }
  return words;
}

// One entry a process, which may be in several lists; ascending.
void merge_by_pid(std::vector<NvmlProcess>& processes) {
  std::sort(processes.begin(), processes.end(), [](const NvmlProcess& one, const NvmlProcess& two) {
    return std::pair(one.pid, two.memory_bytes) < std::pair(two.pid, one.memory_bytes);
  });
  const auto end = std::unique(
      processes.begin(), processes.end(), [](const NvmlProcess& one, const NvmlProcess& two) {
        return one.pid == two.pid;
      });
  processes.erase(end, processes.end());
}

// Whether this process's numbers of processes are the machine's: it is in the first pid namespace,
// whose inode number the kernel fixes (PROC_PID_INIT_INO).
bool is_in_first_pid_namespace() {
  constexpr ino_t kFirstNamespace = 0xEFFFFFFC;
  struct stat info = {};
  return ::stat("/proc/self/ns/pid", &info) == 0 && info.st_ino == kFirstNamespace;
}

// The older functions first: some drivers (535.54 is one) fill longer entries by the newer ones,
// beyond the end of what they were given (NVIDIA/go-nvml 75).
Status ask_processes(const Inquiry& gpu, NvmlFacts& facts) {
  std::vector<NvmlProcess> processes;
  HEADRACE_ASSIGN(const bool compute,
                  gpu.append_processes({"nvmlDeviceGetComputeRunningProcesses_v2",
                                        "nvmlDeviceGetComputeRunningProcesses_v3"},
                                       processes));
  HEADRACE_ASSIGN(const bool graphics,
                  gpu.append_processes({"nvmlDeviceGetGraphicsRunningProcesses_v2",
                                        "nvmlDeviceGetGraphicsRunningProcesses_v3"},
                                       processes));
  HEADRACE_ASSIGN(const bool mps,
                  gpu.append_processes({"nvmlDeviceGetMPSComputeRunningProcesses_v2",
                                        "nvmlDeviceGetMPSComputeRunningProcesses_v3"},
                                       processes));
  if (!compute && !graphics && !mps) {
    return {};
  }
  merge_by_pid(processes);
  facts.knows_own_pid = is_in_first_pid_namespace();
  for (NvmlProcess& process : processes) {
    process.is_own = facts.knows_own_pid && std::cmp_equal(process.pid, ::getpid());
  }
  facts.processes = std::move(processes);
  return {};
}

Status ask_memory(const Inquiry& gpu, NvmlFacts& facts) {
  abi::Memory memory = {};
  HEADRACE_ASSIGN(const bool has_memory,
                  gpu.ask<abi::GetMemory>({"nvmlDeviceGetMemoryInfo"}, &memory));
  if (has_memory) {
    facts.memory_used_bytes = memory.used_bytes;
    facts.memory_total_bytes = memory.total_bytes;
  }
  std::uint64_t errors = 0;
  HEADRACE_ASSIGN(const bool has_errors,
                  gpu.ask<abi::GetEccErrors>({"nvmlDeviceGetTotalEccErrors"},
                                             abi::kEccUncorrected,
                                             abi::kEccSinceDriverLoad,
                                             &errors));
  if (has_errors) {
    facts.ecc_uncorrected = errors;
  }
  return {};
}

Status ask_clocks(const Inquiry& gpu, NvmlFacts& facts) {
  unsigned degrees = 0;
  HEADRACE_ASSIGN(
      const bool has_degrees,
      gpu.ask<abi::GetTemperature>({"nvmlDeviceGetTemperature"}, abi::kTemperatureGpu, &degrees));
  if (has_degrees) {
    facts.temperature_c = static_cast<int>(degrees);
  }
  std::uint64_t reasons = 0;
  HEADRACE_ASSIGN(const bool has_reasons,
                  gpu.ask<abi::GetReasons>({"nvmlDeviceGetCurrentClocksEventReasons",
                                            "nvmlDeviceGetCurrentClocksThrottleReasons"},
                                           &reasons));
  if (has_reasons) {
    facts.is_idle = (reasons & abi::kReasonIdle) != 0;
    facts.throttle_reasons = reasons_in_words(reasons);
  }
  return {};
}

Status ask_link(const Inquiry& gpu, NvmlFacts& facts) {
  HEADRACE_ASSIGN(facts.pcie_generation, gpu.number("nvmlDeviceGetCurrPcieLinkGeneration"));
  HEADRACE_ASSIGN(facts.pcie_generation_max, gpu.number("nvmlDeviceGetMaxPcieLinkGeneration"));
  HEADRACE_ASSIGN(facts.pcie_width, gpu.number("nvmlDeviceGetCurrPcieLinkWidth"));
  HEADRACE_ASSIGN(facts.pcie_width_max, gpu.number("nvmlDeviceGetMaxPcieLinkWidth"));
  return {};
}

}  // namespace

void Nvml::LibraryTraits::close(Handle handle) noexcept {
  ::dlclose(handle);
}

// A shutdown that fails leaves nothing to be done.
void Nvml::SessionTraits::close(Handle shutdown) noexcept {
  [[maybe_unused]] const abi::Return code = shutdown();
}

Result<Nvml> Nvml::open(const std::string& library) {
  Nvml nvml{Unique<LibraryTraits>(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL))};
  if (!nvml.library_) {
    const char* why = ::dlerror();
    return make_error(ExitCode::kHardwareAbsent, "nvml: there is no " + library)
        .with_why(why != nullptr ? why : "")
        .with_hint(
            "it comes with NVIDIA's driver; a container gets it by "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
  }
  void* handle = nvml.library_.get();
  auto* init = find_function<abi::Init>(handle, "nvmlInit_v2");
  auto* shutdown = find_function<abi::Shutdown>(handle, "nvmlShutdown");
  for (const char* name : {"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId_v2"}) {
    if (::dlsym(handle, name) == nullptr) {
      return operating_error("nvml: " + library + " is not usable")
          .with_why(std::string("it has no function ") + name)
          .with_hint("update NVIDIA's driver");
    }
  }
  if (const abi::Return code = init(); code != abi::kSuccess) {
    return nvml_error(handle, "nvmlInit_v2", code);
  }
  nvml.session_.reset(shutdown);
  return nvml;
}

Result<NvmlFacts> Nvml::facts(const std::string& pci_id) const {
  void* library = library_.get();
  abi::Device device = nullptr;
  constexpr const char* kFind = "nvmlDeviceGetHandleByPciBusId_v2";
  if (const abi::Return code =
          find_function<abi::FindDevice>(library, kFind)(pci_id.c_str(), &device);
      code != abi::kSuccess) {
    Error error = nvml_error(library, kFind, code);
    error.what += " (" + pci_id + ")";
    return error;
  }
  NvmlFacts facts;
  std::array<char, abi::kDriverVersionChars> version = {};
  if (auto* get_version = find_function<abi::DriverVersion>(library, "nvmlSystemGetDriverVersion");
      get_version != nullptr &&
      get_version(version.data(), abi::kDriverVersionChars) == abi::kSuccess) {
    facts.driver_version = version.data();
  }
  const Inquiry gpu(library, device);
  for (const auto ask : {ask_link, ask_memory, ask_clocks, ask_processes}) {
    if (Status status = ask(gpu, facts); !status) {
      Error error = std::move(status).error();
      error.what += " (" + pci_id + ")";
      return error;
    }
  }
  return facts;
}

Result<std::optional<NvmlFacts>> nvml_facts(NvmlUse use,
                                            const std::string& pci_id,
                                            const std::string& library) {
  if (use == NvmlUse::kOff) {
    log_debug("nvml: off");
    return std::optional<NvmlFacts>();
  }
  Result<NvmlFacts> facts = [&]() -> Result<NvmlFacts> {
    HEADRACE_ASSIGN(const Nvml nvml, Nvml::open(library));
    return nvml.facts(pci_id);
  }();
  if (facts) {
    return std::optional(std::move(*facts));
  }
  if (use == NvmlUse::kOn) {
    return std::move(facts).error();
  }
  const Error& error = facts.error();
  const bool absent = error.code == ExitCode::kHardwareAbsent;
  log(absent ? LogLevel::kDebug : LogLevel::kWarning,
      fmt::format("{}: {}{}{}", error.what, error.why, error.hint.empty() ? "" : "; ", error.hint));
  return std::optional<NvmlFacts>();
}

namespace {

// Of the link's bandwidth, what it has now. A generation counts about double the one before it.
std::optional<std::string> link_warning(const NvmlFacts& facts) {
  if (!facts.pcie_width.has_value() || !facts.pcie_width_max.has_value() ||
      *facts.pcie_width_max <= 0) {
    return std::nullopt;
  }
  const bool has_generation =
      facts.pcie_generation.has_value() && facts.pcie_generation_max.has_value();
  const int generations_short =
      has_generation ? std::max(*facts.pcie_generation_max - *facts.pcie_generation, 0) : 0;
  const bool is_busy = facts.is_idle.has_value() && !*facts.is_idle;
  const bool is_narrow = *facts.pcie_width < *facts.pcie_width_max;
  if (!is_narrow && (!is_busy || generations_short == 0)) {
    return std::nullopt;
  }
  const double share = std::ldexp(static_cast<double>(*facts.pcie_width) / *facts.pcie_width_max,
                                  is_busy ? -generations_short : 0);
  std::string text =
      fmt::format("its PCIe link has {} of {} lanes", *facts.pcie_width, *facts.pcie_width_max);
  if (has_generation && is_busy) {
    text +=
        fmt::format(" at generation {} of {}", *facts.pcie_generation, *facts.pcie_generation_max);
  }
  text += fmt::format(
      ": transfers get about {:.0f} % of its bandwidth; look at its slot, the riser "
      "and the firmware's PCIe settings",
      share * 100);
  if (generations_short > 0 && !is_busy) {
    text += fmt::format(" (its generation, {} of {} now, rises under load)",
                        *facts.pcie_generation,
                        *facts.pcie_generation_max);
  }
  return text;
}

std::optional<std::string> process_warning(const NvmlFacts& facts) {
  std::size_t others = 0;
  std::uint64_t bytes = 0;
  bool is_lower_bound = false;
  for (const NvmlProcess& process : facts.processes.value_or(std::vector<NvmlProcess>())) {
    if (!process.is_own) {
      ++others;
      bytes += process.memory_bytes.value_or(0);
      is_lower_bound |= !process.memory_bytes.has_value();
    }
  }
  if (others == 0) {
    return std::nullopt;
  }
  std::string text = std::to_string(others);
  text += facts.knows_own_pid ? " other" : "";
  text += others == 1 ? " process holds " : " processes hold ";
  text += bytes == 0 ? "memory of it"
                     : (is_lower_bound ? "at least " : "") + format_bytes(bytes) + " of its memory";
  if (!facts.knows_own_pid) {
    text += " (this one may be among them: in a container it does not know its number outside)";
  }
  return text;
}

// Memory in use of which the driver names no user: of another container, or another user's.
std::optional<std::string> unnamed_memory_warning(const NvmlFacts& facts) {
  // What the driver itself and a CUDA context or two take is well below.
  constexpr std::uint64_t kUnnamedBytes = std::uint64_t{2} << 30;
  if (!facts.memory_used_bytes.has_value()) {
    return std::nullopt;
  }
  std::uint64_t named_bytes = 0;
  for (const NvmlProcess& process : facts.processes.value_or(std::vector<NvmlProcess>())) {
    if (!process.memory_bytes.has_value()) {
      return std::nullopt;  // it may be the one
    }
    named_bytes += *process.memory_bytes;
  }
  if (*facts.memory_used_bytes < named_bytes + kUnnamedBytes) {
    return std::nullopt;
  }
  return format_bytes(*facts.memory_used_bytes - named_bytes) +
         " of its memory are in use by programs that the driver does not name (of another "
         "container or user)";
}

}  // namespace

std::vector<std::string> nvml_warnings(const NvmlFacts& facts) {
  std::vector<std::string> warnings;
  for (const auto warning : {link_warning, process_warning, unnamed_memory_warning}) {
    if (std::optional<std::string> text = warning(facts)) {
      warnings.push_back(std::move(*text));
    }
  }
  if (facts.throttle_reasons.has_value() && !facts.throttle_reasons->empty()) {
    warnings.push_back(
        fmt::format("its clocks are held down: {}", fmt::join(*facts.throttle_reasons, ", ")));
  }
  if (facts.ecc_uncorrected.value_or(0) > 0) {
    warnings.push_back(
        fmt::format("{} memory error{} since the driver was loaded could not be corrected: look at "
                    "`nvidia-smi -q -d ECC,ROW_REMAPPER`, and reset or replace it",
                    *facts.ecc_uncorrected,
                    *facts.ecc_uncorrected == 1 ? "" : "s"));
  }
  return warnings;
}

}  // namespace headrace::tiers::gpu
