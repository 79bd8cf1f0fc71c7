// What `headrace bench` measures: each link between the tiers, the optimizer and products, alone
// and while others run, repeated until they agree.
//
// Loads are the probe's (probe_host.hpp, probe_nvme.hpp, probe_beside.hpp); only the effort
// differs. A folder that cannot be measured is a line with the reason. Thread: main's. Failure: no
// memory, no threads; a drive that reads back something else is corrupt data.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/plan/machine.hpp"
#include "train/measure.hpp"

namespace headrace::train {

struct BenchPart {
  std::string_view name;
  std::string_view help;
};

[[nodiscard]] const std::vector<BenchPart>& bench_parts();

struct BenchOptions {
  bool quick = false;
  std::vector<std::string> parts;    // of bench_parts(); empty: all
  std::vector<std::string> folders;  // that exist; each on a drive of its own, or of one
};

// The names of a list "nvme,gemm". Errors: an unknown name (usage), with the known ones.
[[nodiscard]] Result<std::vector<std::string>> parse_parts(std::string_view list);

struct BenchLine {
  std::string part;
  std::string name;
  std::string unit;      // "B/s", "flop/s", "parameter/s"
  std::string folder{};  // of a drive
  std::string beside{};  // what ran at the same time; "": nothing
  Sample rate{};
  double share = 0;       // of the rate alone; 0: it ran alone
  std::string skipped{};  // why there is no rate
};

// A step of 1e9 parameters with fp32 state that all lies on the drive.
struct BenchVerdict {
  std::map<std::string, double> seconds_per_billion;  // "nvme", "optimizer", "compute"
  std::string slowest;                                // "" where too little was measured
  double tokens_to_hide_nvme = 0;  // of a step, from which on computing takes longer than the drive
};

struct BenchReport {
  bool quick = false;
  plan::MachineProfile machine;  // the fingerprint, and the rates that were measured; others are 0
  std::vector<BenchLine> lines;
  BenchVerdict verdict;
};

[[nodiscard]] Result<BenchReport> run_bench(const BenchOptions& options);

// The rates of `report` in the place of those of `profile`.
void take_rates(const BenchReport& report, plan::MachineProfile& profile);

[[nodiscard]] BenchVerdict judge(const plan::MachineProfile& measured);
[[nodiscard]] std::string format_bench(const BenchReport& report);
[[nodiscard]] Json bench_to_json(const BenchReport& report);

}  // namespace headrace::train
