// The one file that sees hwloc. See numa.hpp.
#include "tiers/numa.hpp"

#include <hwloc.h>

#include <memory>

namespace headrace::tiers {

namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

struct BitmapDeleter {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};

using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    return nullptr;
  }
  Topology owned(topology);
  return hwloc_topology_load(topology) == 0 ? std::move(owned) : nullptr;
}

}  // namespace

bool bind_to_own_numa_nodes(void* data, std::size_t bytes) {
  const Topology topology = load_topology();
  if (topology == nullptr || hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE) < 2) {
    return false;
  }
  const Bitmap cores(hwloc_bitmap_alloc());
  const Bitmap nodes(hwloc_bitmap_alloc());
  if (cores == nullptr || nodes == nullptr ||
      hwloc_get_cpubind(topology.get(), cores.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    return false;
  }
  hwloc_cpuset_to_nodeset(topology.get(), cores.get(), nodes.get());
  return hwloc_set_area_membind(topology.get(),
                                data,
                                bytes,
                                nodes.get(),
                                HWLOC_MEMBIND_BIND,
                                HWLOC_MEMBIND_BYNODESET) == 0;
}

}  // namespace headrace::tiers
