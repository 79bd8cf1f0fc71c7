// What NVML, the management library of NVIDIA's driver, knows of a GPU and CUDA does not tell: how
// its PCIe link runs, who else uses it, what holds its clocks down, errors of its memory.
//
// Invariant: the library is loaded at run time (nothing links it), started once and shut down once
// for each Nvml. Thread: any; not for the step path (a start takes up to a second). Failure: by
// NvmlUse; what a driver does not tell of a GPU is an empty field, not an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/unique.hpp"

namespace headrace::tiers::gpu {

// off: never asked. auto: asked where it can be loaded and starts; any failure is a line in the log
// and no facts. on: any failure is an error.
enum class NvmlUse : std::uint8_t { kAuto, kOn, kOff };

struct NvmlProcess {
  std::uint32_t pid = 0;  // as the machine numbers it; a container may number it differently
  std::optional<std::uint64_t> memory_bytes = {};  // on the GPU
  bool is_own = false;  // it is this process; never set where the two numberings differ
};

// Of one GPU.
struct NvmlFacts {
  std::string driver_version;  // "580.82.07"; may be empty
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<std::uint64_t> memory_total_bytes;
  // Of the link: as it is now, and what GPU and machine could do together. A GPU lowers the
  // generation while it is idle; the width stays.
  std::optional<int> pcie_generation;
  std::optional<int> pcie_generation_max;
  std::optional<int> pcie_width;
  std::optional<int> pcie_width_max;
  std::optional<int> temperature_c;
  std::optional<bool> is_idle;
  // What keeps its clocks below what they could be, in words, other than idleness.
  std::optional<std::vector<std::string>> throttle_reasons;
  std::optional<std::uint64_t> ecc_uncorrected;  // since the driver was loaded
  // That hold memory of it: compute and graphics, by pid.
  std::optional<std::vector<NvmlProcess>> processes;
  // Whether pids here and there are the same numbers, so that is_own means something.
  bool knows_own_pid = true;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

class Nvml {
 public:
  // Loads and starts it. Errors: there is no such library or driver (kHardwareAbsent), one that is
  // too old, one that does not match the kernel's part.
  [[nodiscard]] static Result<Nvml> open(const std::string& library = kNvmlLibrary);

  Nvml(Nvml&&) noexcept = default;
  Nvml& operator=(Nvml&&) = delete;  // would unload the library before its shutdown
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() = default;

  // `pci_id` as cudaDeviceGetPCIBusId gives it ("0000:3B:00.0"): CUDA's ordinals are not NVML's,
  // since CUDA_VISIBLE_DEVICES hides and reorders. Errors: no such GPU; it is lost, or the driver
  // fails.
  [[nodiscard]] Result<NvmlFacts> facts(const std::string& pci_id) const;

 private:
  struct LibraryTraits {
    using Handle = void*;
    static constexpr std::nullptr_t kEmpty = nullptr;
    static void close(Handle handle) noexcept;
  };

  struct SessionTraits {
    using Handle = int (*)();  // nvmlShutdown
    static constexpr std::nullptr_t kEmpty = nullptr;
    static void close(Handle shutdown) noexcept;
  };

  explicit Nvml(Unique<LibraryTraits> library) : library_(std::move(library)) {}

  Unique<LibraryTraits> library_;
  Unique<SessionTraits> session_;  // after the library: ended before it is unloaded
};

// The facts of one GPU in one call. nullopt: NVML is not used; the log says why (absent: at debug
// level, failing: as a warning). Errors: with kOn only.
[[nodiscard]] Result<std::optional<NvmlFacts>> nvml_facts(
    NvmlUse use, const std::string& pci_id, const std::string& library = kNvmlLibrary);

// What of it makes training slower, or wrong, or not fit: a sentence each, for people. A lowered
// generation of the link counts only of a GPU that is known not to be idle.
[[nodiscard]] std::vector<std::string> nvml_warnings(const NvmlFacts& facts);

}  // namespace headrace::tiers::gpu
