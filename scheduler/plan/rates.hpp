// Rates that host instructions are priced with: those of the machine profile, and what stands in
// for one that was not measured.
//
// Invariant: no rate is 0. Threads: any. Failure: none.
#pragma once

#include <string>
#include <vector>

#include "scheduler/plan/machine.hpp"
#include "scheduler/plan/state_format.hpp"

namespace headrace::plan {

// A rate that was not measured is taken as a modest desktop's.
[[nodiscard]] constexpr double rate_or(double measured, double fallback) {
  return measured > 0 ? measured : fallback;
}

[[nodiscard]] double memory_rate(const MachineProfile& machine);

// Every rate of a format. Updates that were not measured go at the rate of "fp32", and take for
// floats that they write as well what memory does; decoding goes at the rate of the format's
// updates.
[[nodiscard]] UpdateRates update_rates(const MachineProfile& machine, const StateFormat& format);

// What update_rates had to stand in for, a sentence each.
[[nodiscard]] std::vector<std::string> missing_update_rates(const MachineProfile& machine,
                                                            const StateFormat& format);

}  // namespace headrace::plan
