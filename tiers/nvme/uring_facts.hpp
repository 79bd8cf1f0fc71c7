// What io_uring this process can have: for reports. Makes a small ring and ends it.
//
// Thread: any. Failure: why there is none and what to do, as the engine would say.
#pragma once

#include "core/error.hpp"

namespace headrace::tiers::nvme {

// Flags of the setup that the kernel takes, each from a newer one on.
struct UringFacts {
  bool cooperative = false;    // COOP_TASKRUN, Linux 5.19
  bool single_issuer = false;  // SINGLE_ISSUER, 6.0
  bool deferred = false;       // DEFER_TASKRUN, 6.1
};

[[nodiscard]] Result<UringFacts> uring_facts();

}  // namespace headrace::tiers::nvme
