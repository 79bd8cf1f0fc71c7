// The one file that sees hwloc. See numa.hpp.
#include "tiers/numa.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/assert.hpp"
#include "core/error.hpp"

namespace headrace::tiers {

namespace {

struct BitmapDeleter {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};

using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

Bitmap new_bitmap() {
  Bitmap bitmap(hwloc_bitmap_alloc());
  HEADRACE_ASSERT(bitmap != nullptr, "some bytes can be had");
  return bitmap;
}

std::vector<unsigned> numbers_in(hwloc_const_bitmap_t bitmap) {
  std::vector<unsigned> numbers;
  for (int i = hwloc_bitmap_first(bitmap); i >= 0; i = hwloc_bitmap_next(bitmap, i)) {
    numbers.push_back(static_cast<unsigned>(i));
  }
  return numbers;
}

Bitmap bitmap_of(const std::vector<unsigned>& numbers) {
  Bitmap bitmap = new_bitmap();
  for (const unsigned number : numbers) {
    hwloc_bitmap_set(bitmap.get(), number);
  }
  return bitmap;
}

std::string nodes_text(const std::vector<unsigned>& nodes) {
  std::string text = nodes.size() == 1 ? "NUMA node " : "NUMA nodes ";
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(nodes[i]);
  }
  return text;
}

// The nodes near a PCI device that memory may come from, or why there are none.
struct NearNodes {
  std::vector<unsigned> nodes = {};
  std::string why_not = {};
};

NearNodes nodes_near(hwloc_topology_t topology, const std::string& pci_id) {
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, pci_id.c_str());
  if (device == nullptr) {
    return {.why_not = "the system has no such device to show"};
  }
  hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, device);
  if (hwloc_bitmap_isequal(place->nodeset, hwloc_topology_get_topology_nodeset(topology)) != 0) {
    return {.why_not = "the system does not say to which node it belongs"};
  }
  const Bitmap allowed = new_bitmap();
  hwloc_bitmap_and(allowed.get(), place->nodeset, hwloc_topology_get_allowed_nodeset(topology));
  if (hwloc_bitmap_iszero(allowed.get()) != 0) {
    return {.why_not = "the process may not take memory of its " +
                       nodes_text(numbers_in(place->nodeset)) + " (cpuset)"};
  }
  return {.nodes = numbers_in(allowed.get())};
}

// The nodes of some cores that memory may come from; all such nodes if it is none of theirs.
std::vector<unsigned> nodes_of(hwloc_topology_t topology, const std::vector<unsigned>& cores) {
  const Bitmap core_set = bitmap_of(cores);
  const Bitmap nodes = new_bitmap();
  hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_nodeset(topology);
  hwloc_cpuset_to_nodeset(topology, core_set.get(), nodes.get());
  hwloc_bitmap_and(nodes.get(), nodes.get(), allowed);
  return numbers_in(hwloc_bitmap_iszero(nodes.get()) != 0 ? allowed : nodes.get());
}

// Read once a process: a machine does not change, and each reading takes milliseconds.
const std::optional<NumaTopology>& this_machine(bool with_pci_devices) {
  if (with_pci_devices) {
    static const std::optional<NumaTopology> with = NumaTopology::load(true);
    return with;
  }
  static const std::optional<NumaTopology> without = NumaTopology::load(false);
  return without;
}

}  // namespace

void NumaTopology::Traits::close(Handle topology) noexcept {
  hwloc_topology_destroy(topology);
}

std::optional<NumaTopology> NumaTopology::read(const Source& source) {
  hwloc_topology_t handle = nullptr;
  if (hwloc_topology_init(&handle) != 0) {
    return std::nullopt;
  }
  NumaTopology topology{Unique<Traits>(handle)};
  // Nodes that the process may not use are kept, so that their devices are known to be theirs.
  bool is_good = hwloc_topology_set_flags(handle, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0;
  if (source.pci_devices) {
    // Important ones (displays, accelerators among them), and no OS devices: for those hwloc's
    // plugins would start CUDA and OpenCL.
    is_good = is_good && hwloc_topology_set_type_filter(
                             handle, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0;
  }
  if (source.xml != nullptr) {
    // The zero at the end counts.
    is_good =
        is_good && hwloc_topology_set_xmlbuffer(
                       handle, source.xml->c_str(), static_cast<int>(source.xml->size() + 1)) == 0;
  }
  if (source.synthetic != nullptr) {
    is_good = is_good && hwloc_topology_set_synthetic(handle, source.synthetic->c_str()) == 0;
  }
  is_good = is_good && hwloc_topology_load(handle) == 0;
  return is_good ? std::optional(std::move(topology)) : std::nullopt;
}

std::optional<NumaTopology> NumaTopology::load(bool with_pci_devices) {
  return read({.pci_devices = with_pci_devices});
}

std::optional<NumaTopology> NumaTopology::from_xml(const std::string& xml) {
  return read({.pci_devices = true, .xml = &xml});
}

std::optional<NumaTopology> NumaTopology::from_synthetic(const std::string& description) {
  return read({.synthetic = &description});
}

NumaChoice NumaTopology::choose(const std::string& pci_id,
                                const std::vector<unsigned>& cores) const {
  hwloc_topology_t topology = topology_.get();
  if (hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) < 2) {
    return {};
  }
  NearNodes near;
  if (!pci_id.empty()) {
    near = nodes_near(topology, pci_id);
    if (!near.nodes.empty()) {
      std::string text = nodes_text(near.nodes) + ", near " + pci_id;
      return {.nodes = std::move(near.nodes), .is_near = true, .text = std::move(text)};
    }
  }
  NumaChoice choice{.nodes = nodes_of(topology, cores)};
  choice.text = nodes_text(choice.nodes) + ", of the process's cores";
  if (!pci_id.empty()) {
    choice.text += ", not near " + pci_id + ": " + near.why_not;
  }
  return choice;
}

std::vector<unsigned> NumaTopology::process_cores() const {
  const Bitmap cores = new_bitmap();
  if (hwloc_get_cpubind(topology_.get(), cores.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    return numbers_in(hwloc_topology_get_allowed_cpuset(topology_.get()));
  }
  return numbers_in(cores.get());
}

std::vector<std::vector<unsigned>> NumaTopology::by_node(const std::vector<unsigned>& cores) const {
  std::vector<hwloc_obj_t> nodes;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    nodes.push_back(node);
  }
  std::stable_sort(nodes.begin(), nodes.end(), [](hwloc_obj_t a, hwloc_obj_t b) {
    return hwloc_bitmap_weight(a->cpuset) < hwloc_bitmap_weight(b->cpuset);
  });
  const Bitmap rest = bitmap_of(cores);
  std::vector<std::vector<unsigned>> groups;
  const auto take = [&](hwloc_const_bitmap_t of_node) {
    const Bitmap taken = new_bitmap();
    hwloc_bitmap_and(taken.get(), rest.get(), of_node);
    if (hwloc_bitmap_iszero(taken.get()) == 0) {
      groups.push_back(numbers_in(taken.get()));
      hwloc_bitmap_andnot(rest.get(), rest.get(), taken.get());
    }
  };
  for (hwloc_obj_t node : nodes) {
    take(node->cpuset);
  }
  take(rest.get());  // those of no node
  std::sort(groups.begin(), groups.end());
  return groups;
}

bool NumaTopology::bind(void* data, std::size_t bytes, const std::vector<unsigned>& nodes) const {
  const Bitmap node_set = bitmap_of(nodes);
  // Without HWLOC_MEMBIND_STRICT: the kernel prefers these nodes, and takes others when they are
  // full. Bound strictly, an arena larger than they are would be the end of the process.
  return hwloc_set_area_membind(topology_.get(),
                                data,
                                bytes,
                                node_set.get(),
                                HWLOC_MEMBIND_BIND,
                                HWLOC_MEMBIND_BYNODESET) == 0;
}

NumaBinding bind_near_pci(void* data, std::size_t bytes, const std::string& pci_id) {
  const std::optional<NumaTopology>& machine = this_machine(!pci_id.empty());
  if (!machine.has_value()) {
    return {.text = "on NUMA nodes of the system's choice: hwloc cannot read the machine"};
  }
  const NumaChoice choice = machine->choose(pci_id, machine->process_cores());
  if (choice.nodes.empty()) {
    return {};
  }
  if (!machine->bind(data, bytes, choice.nodes)) {
    return {.text = "not bound to " + choice.text + " (" + errno_error("mbind", errno).why +
                    "; a container needs the capability SYS_NICE)"};
  }
  return {.is_bound = true, .is_near = choice.is_near, .text = "on " + choice.text};
}

std::vector<std::vector<unsigned>> cores_by_node() {
  const std::optional<NumaTopology>& machine = this_machine(false);
  return machine.has_value() ? machine->by_node(machine->process_cores())
                             : std::vector<std::vector<unsigned>>();
}

}  // namespace headrace::tiers
