// Where host memory should lie: on the NUMA nodes near a PCI device (a GPU) where one is named,
// otherwise on those that the process's cores belong to; and which cores belong together. The one
// place that sees hwloc.
//
// Invariant: a binding is a preference: memory that does not fit goes to other nodes rather than
// nowhere. On a machine of one node there is nothing to bind. Thread: any. Failure: no binding;
// memory then lies where the kernel puts it, which costs speed only, and the text says so.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/unique.hpp"

struct hwloc_topology;

namespace headrace::tiers {

struct NumaChoice {
  std::vector<unsigned> nodes = {};  // as the system numbers them; none: nothing to bind
  bool is_near = false;              // near the device that was named
  // For people: "NUMA node 1, near 0000:3B:00.0"; with the reason where that could not be had.
  std::string text = {};
};

class NumaTopology {
 public:
  // This machine's. PCI devices are looked for on demand, since that takes up to a tenth of a
  // second. Nothing: hwloc cannot read it.
  [[nodiscard]] static std::optional<NumaTopology> load(bool with_pci_devices);
  // Another machine's, as `lstopo --of xml` writes it, or in hwloc's words ("pack:2 [numa]
  // core:4 pu:1"): to choose on, not to bind.
  [[nodiscard]] static std::optional<NumaTopology> from_xml(const std::string& xml);
  [[nodiscard]] static std::optional<NumaTopology> from_synthetic(const std::string& description);

  // A pure function of its arguments. `pci_id`: "0000:3B:00.0", or empty for none. `cores`: those
  // that the process may run on.
  [[nodiscard]] NumaChoice choose(const std::string& pci_id,
                                  const std::vector<unsigned>& cores) const;
  [[nodiscard]] std::vector<unsigned> process_cores() const;
  // `cores`, each once, by the node that they belong to, by their lowest number. A core of several
  // nodes (memory of another kind) is the smallest's; nodes without any of them are not there.
  [[nodiscard]] std::vector<std::vector<unsigned>> by_node(
      const std::vector<unsigned>& cores) const;
  // Before the memory is first touched. False: the system refuses; errno says why.
  [[nodiscard]] bool bind(void* data, std::size_t bytes, const std::vector<unsigned>& nodes) const;

 private:
  struct Traits {
    using Handle = hwloc_topology*;
    static constexpr std::nullptr_t kEmpty = nullptr;
    static void close(Handle topology) noexcept;
  };

  explicit NumaTopology(Unique<Traits> topology) : topology_(std::move(topology)) {}

  struct Source {
    bool pci_devices = false;
    const std::string* xml = nullptr;  // this machine where both are null
    const std::string* synthetic = nullptr;
  };

  static std::optional<NumaTopology> read(const Source& source);

  Unique<Traits> topology_;
};

struct NumaBinding {
  bool is_bound = false;
  bool is_near = false;
  std::string text = {};  // empty: nothing to bind, nothing to say
};

// Chooses and binds. Call before the memory is first touched. The machine is read at the first call
// of a process, and again at the first that names a device.
[[nodiscard]] NumaBinding bind_near_pci(void* data, std::size_t bytes, const std::string& pci_id);

// This process's cores by node; nothing if hwloc cannot read the machine.
[[nodiscard]] std::vector<std::vector<unsigned>> cores_by_node();

}  // namespace headrace::tiers
