// Errors of the CUDA runtime as ours. The only way in which a call's result is looked at.
//
// Invariant: the runtime's record of its last error is cleared with the report, so that the next
// check cannot blame another operation for it. Threads: any. Failure: it makes them.
#pragma once

#include "core/error.hpp"

namespace headrace::tiers::gpu {

// `code` is a cudaError_t, `call` what returned it, `device` its ordinal. Success: no error. A lost
// device, memory that ran out and a missing driver say what they mean and what to do.
[[nodiscard]] Status check(int code, const char* call, int device);

// Whether after this error every further call of the process fails.
[[nodiscard]] bool loses_device(int code);

}  // namespace headrace::tiers::gpu
