// What this machine is for headrace, section by section: facts, and problems with what to do.
//
// Invariant: looking only. Nothing is measured, made or left behind (a folder is tried with one
// page in a file without a name), and nothing of CUDA is called: a GPU is the command's matter.
// Thread: main's. Failure: none; what cannot be found out is a problem of its section.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/run_config.hpp"

namespace headrace::train {

struct Problem {
  bool stops_training = false;  // on the CPU; otherwise it costs speed or room
  std::string what = {};
  std::string hint = {};  // may be empty
};

struct Finding {
  std::string section;    // "huge pages"; in JSON "huge_pages"
  std::string text = {};  // the facts in words; may have several lines
  Json facts = Json::object();
  std::vector<Problem> problems = {};
};

// The sections of the machine, in the order of their report: cpu, memory, huge pages, locked
// memory, numa, io_uring, limits, profile, openmp.
[[nodiscard]] std::vector<Finding> examine_machine();

// A folder of tiers.nvme ("folder"); `config` says how it is used (direct_io, run.dir).
[[nodiscard]] Finding examine_folder(const RunConfig& config, const NvmeFolder& folder);

// A run ("run") and then each folder of its store.
[[nodiscard]] std::vector<Finding> examine_run(const RunConfig& config);

// "error: what; why" as a problem.
[[nodiscard]] Problem problem_of(const Error& error, bool stops_training);

// Aligned lines of a name and its text, problems below them; JSON with a member for each section
// ("folder" and "run" as lists, which are there in any case), and "problems" with all of them.
[[nodiscard]] std::string format_findings(const std::vector<Finding>& findings);
[[nodiscard]] Json findings_to_json(const std::vector<Finding>& findings);
[[nodiscard]] bool can_train(const std::vector<Finding>& findings);

}  // namespace headrace::train
