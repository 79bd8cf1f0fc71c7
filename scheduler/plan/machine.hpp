// The machine profile: measured rates that predictions are made from (machine.toml). Made by the
// probe of train/, read by `plan` and `train`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scheduler/plan/work.hpp"

namespace headrace::plan {

// Of one state format: parameters per second with all cores, from fp32 gradients.
struct UpdateRates {
  double update_params_per_s = 0;
  // Formats that are decoded (StateFormat::decoded) only:
  double update_decoded_params_per_s = 0;  // which writes the new weights as floats as well
  double decode_params_per_s = 0;          // weights as floats, without an update
};

// A rate that depends on a size: measured at ascending sizes, in between as rates_at says.
struct SizedRates {
  std::vector<double> sizes;
  std::vector<double> rates;  // as many; none: not measured
};

// Rates are bytes or operations per second. 0 = not measured (the planner then takes a conservative
// value and says so).
struct MachineProfile {
  int schema = 5;
  // Fingerprint: a mismatch with the machine at hand is a warning.
  std::string cpu;
  int cores = 0;
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  // Rates with all cores (of the CPU device).
  double gemm_fp32_flops_per_s = 0;  // a large one
  // Products in fp32 by what they are for, layout of the weight and number of rows, over weights
  // that are in no cache; flops per second.
  std::array<std::array<SizedRates, kWeightLayouts>, kProductPasses> gemm{};
  SizedRates attention_forward, attention_backward;  // by tokens of a sequence; flops per second
  std::array<double, kElementOperations> elements_per_s{};  // of activations
  double operation_s = 0;            // of a kernel on all cores, however little it has to do
  double collect_params_per_s = 0;   // gradients checked, summed and kept, in fp32
  double memory_bytes_per_s = 0;     // stream of Adam's shape: 4 reads, 3 in-place writes
  double host_copy_bytes_per_s = 0;  // h2d and d2h of the CPU's separate arena, without caps
  std::map<std::string, UpdateRates, std::less<>> update_rates;  // by StateFormat::name
  double checksum_bytes_per_s = 0;                               // one core
  double nvme_read_bytes_per_s = 0;  // direct I/O on incompressible data, in the store's folder
  double nvme_write_bytes_per_s = 0;
  double nvme_mixed_bytes_per_s = 0;         // reads + writes together, half of each
  double nvme_mixed_reads_bytes_per_s = 0;   // three bytes read for each written, together
  double nvme_mixed_writes_bytes_per_s = 0;  // three bytes written for each read, together
  int nvme_io_depth = 0;                     // requests in flight that the drive needs
  std::uint64_t nvme_request_bytes = 0;      // of each of them
  std::uint64_t nvme_capacity_bytes = 0;     // of the folder's filesystem, for the drive's life
  // What a step sees: a rate while the other runs beside it, as a share of the rate alone. 0: not
  // measured, taken as 1.
  double compute_beside_nvme = 0;  // GEMM while the drive reads and writes half of each, with sums
  double update_beside_nvme = 0;   // updates (fp32) at the same time
  double nvme_beside_compute = 0;  // mixed reads and writes while GEMM runs
  double nvme_beside_update = 0;
  double compute_beside_copy = 0;  // GEMM while h2d and d2h copy (of the CPU's separate arena)
  double copy_beside_compute = 0;
};

}  // namespace headrace::plan
