// Binds memory to the NUMA nodes that the process's cores belong to, by hwloc.
//
// On a machine of one node there is nothing to bind. Thread: any. Failure: false; memory then lies
// where the kernel puts it, which costs speed only, and Arena::stats says so.
#pragma once

#include <cstddef>

namespace headrace::tiers {

// Call before the memory is first touched. True: bound.
[[nodiscard]] bool bind_to_own_numa_nodes(void* data, std::size_t bytes);

}  // namespace headrace::tiers
