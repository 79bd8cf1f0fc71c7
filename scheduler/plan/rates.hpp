// Rates that instructions are priced with: those of the machine profile, and what stands in
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

// At a size between two measured: on the line between them where size and rate are logarithms; of
// the nearest beyond the ends. 0 where nothing was measured.
[[nodiscard]] double rate_at(const SizedRates& rates, double size);

// Products and attention that were not measured go at the rate of the one GEMM; operations over
// elements at that of memory; an operation has no cost of its own.
[[nodiscard]] double seconds_of(const Work& work, const MachineProfile& machine);
[[nodiscard]] double collect_seconds(const MachineProfile& machine, double elements);

// What seconds_of had to stand in for, a sentence; "" where nothing is missing.
[[nodiscard]] std::string missing_compute_rates(const MachineProfile& machine);

// Every rate of a format. Updates that were not measured go at the rate of "fp32", and take for
// floats that they write as well what memory does; decoding goes at the rate of the format's
// updates.
[[nodiscard]] UpdateRates update_rates(const MachineProfile& machine, const StateFormat& format);

// What update_rates had to stand in for, a sentence each.
[[nodiscard]] std::vector<std::string> missing_update_rates(const MachineProfile& machine,
                                                            const StateFormat& format);

}  // namespace headrace::plan
