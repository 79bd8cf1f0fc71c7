// headrace doctor: what this machine is for headrace, and every problem with what to do.
#include "train/doctor.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "cli/command.hpp"
#include "cli/cuda.hpp"
#include "cli/device.hpp"
#include "core/config.hpp"
#include "core/files.hpp"
#include "core/quantity.hpp"
#include "train/interrupt.hpp"

namespace headrace::cli {
namespace {

using train::Finding;

CommandSpec spec() {
  return {.name = "doctor",
          .summary = "What this machine is for headrace, and what to do about its problems",
          .positionals = {{.name = "PATH",
                           .help = "A folder for tiers.nvme, or a RUN.toml, whose folders are "
                                   "looked at; any number",
                           .required = false,
                           .repeated = true}},
          .options = {{.name = "--nvml",
                       .value = "WHEN",
                       .help = "Ask NVIDIA's management library: auto: where CUDA finds a GPU; on: "
                               "fail where it cannot be asked; off",
                       .choices = {"auto", "on", "off"}}}};
}

Json processes_to_json(const tiers::gpu::NvmlFacts& facts) {
  if (!facts.processes) {
    return {};
  }
  Json list = Json::array();
  for (const tiers::gpu::NvmlProcess& process : *facts.processes) {
    Json entry = Json::object();
    entry.add("pid", process.pid);
    entry.add("memory_bytes", process.memory_bytes);
    list.push_back(std::move(entry));
  }
  return list;
}

Json nvml_to_json(const tiers::gpu::NvmlFacts& facts) {
  Json json = Json::object();
  json.add("driver_version", facts.driver_version);
  json.add("memory_used_bytes", facts.memory_used_bytes);
  json.add("memory_total_bytes", facts.memory_total_bytes);
  json.add("pcie_generation", facts.pcie_generation);
  json.add("pcie_generation_max", facts.pcie_generation_max);
  json.add("pcie_width", facts.pcie_width);
  json.add("pcie_width_max", facts.pcie_width_max);
  json.add("temperature_c", facts.temperature_c);
  json.add("ecc_uncorrected", facts.ecc_uncorrected);
  Json reasons;
  if (facts.throttle_reasons) {
    reasons = Json::array();
    for (const std::string& reason : *facts.throttle_reasons) {
      reasons.push_back(reason);
    }
  }
  json.add("throttle_reasons", std::move(reasons));
  json.add("processes", processes_to_json(facts));
  return json;
}

std::string nvml_text(const tiers::gpu::NvmlFacts& facts) {
  std::string text;
  if (facts.pcie_generation_max && facts.pcie_width) {
    text += fmt::format(", PCIe {}.0 x{}", *facts.pcie_generation_max, *facts.pcie_width);
  }
  if (facts.memory_used_bytes) {
    text += fmt::format(", {} in use", format_bytes(*facts.memory_used_bytes));
  }
  if (facts.temperature_c) {
    text += fmt::format(", {} °C", *facts.temperature_c);
  }
  return text + (facts.driver_version.empty() ? "" : ", driver " + facts.driver_version);
}

void add_gpu(const Gpu& gpu, Finding& finding, Json& list) {
  const std::string capability = fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor);
  finding.text += fmt::format("\ncuda:{} {}, {}, compute capability {}, at {}{}{}",
                              gpu.ordinal,
                              gpu.name,
                              format_bytes(gpu.memory_bytes),
                              capability,
                              gpu.pci_id,
                              gpu.numa_node ? fmt::format(", NUMA node {}", *gpu.numa_node) : "",
                              gpu.nvml ? nvml_text(*gpu.nvml) : "");
  Json entry = Json::object();
  entry.add("ordinal", gpu.ordinal);
  entry.add("name", gpu.name);
  entry.add("pci_id", gpu.pci_id);
  entry.add("compute_capability", Json(Json::Array{gpu.compute_major, gpu.compute_minor}));
  entry.add("memory_bytes", gpu.memory_bytes);
  entry.add("numa_node", gpu.numa_node);
  entry.add("nvml", gpu.nvml ? nvml_to_json(*gpu.nvml) : Json());
  list.push_back(std::move(entry));
  for (const std::string& warning : gpu.warnings) {
    finding.problems.push_back({.what = fmt::format("cuda:{}: {}", gpu.ordinal, warning)});
  }
}

// Nothing here stops training on the CPU, which is all that this version does.
Finding examine_gpu(const CudaFacts& cuda, const Status& nvml) {
  Finding finding{.section = "gpu"};
  Json list = Json::array();
  if (!cuda.linked) {
    finding.text = "none: this headrace was built without CUDA";
  } else if (cuda.lacks_driver()) {
    finding.text =
        fmt::format("none: CUDA {} in this binary, no NVIDIA driver on this machine", cuda.runtime);
  } else {
    finding.text = fmt::format("{}CUDA {} in this binary, driver for CUDA {}",
                               cuda.gpus.empty() ? "none: " : "",
                               cuda.runtime,
                               cuda.driver.empty() ? "(it does not answer)" : cuda.driver);
    for (const Gpu& gpu : cuda.gpus) {
      add_gpu(gpu, finding, list);
    }
  }
  if (cuda.problem && !cuda.lacks_driver()) {
    finding.problems.push_back(train::problem_of(*cuda.problem, false));
  }
  if (!nvml) {
    finding.problems.push_back(train::problem_of(nvml.error(), false));
  }
  finding.facts.add("cuda", cuda.linked);
  finding.facts.add("runtime", cuda.linked ? Json("CUDA " + cuda.runtime) : Json());
  finding.facts.add("driver", cuda.driver.empty() ? Json() : Json("CUDA " + cuda.driver));
  finding.facts.add("devices", std::move(list));
  finding.facts.add("trains", false);
  return finding;
}

Result<Finding> look_at_gpus(const std::string& nvml_use) {
  CudaFacts cuda = cuda_facts();
  Status nvml;
  if (nvml_use == "on" || (nvml_use == "auto" && !cuda.gpus.empty())) {
    nvml = add_nvml_facts(cuda);
    if (!nvml && nvml_use == "on") {
      return std::move(nvml).error();
    }
  }
  return examine_gpu(cuda, nvml);
}

// A run.toml that is not there is a mistake in its name, not a folder that is still to be made.
bool names_a_run(const std::string& path) {
  return is_regular_file(path) || (path.ends_with(".toml") && !path_exists(path));
}

Result<std::vector<Finding>> examine_path(const std::string& path) {
  if (!names_a_run(path)) {
    RunConfig config;
    NvmeFolder folder;
    folder.path = absolute_path(working_directory(), path);
    config.run.dir =
        folder.path;  // so that it counts as a folder of tiers.nvme, not as the run's own
    return std::vector<Finding>{train::examine_folder(config, folder)};
  }
  HEADRACE_ASSIGN(const RunConfig config, load_run_config(path, {}));
  std::vector<Finding> findings = train::examine_run(config);
  if (const Status device = check_device(config); !device) {
    findings.front().problems.push_back(train::problem_of(device.error(), true));
  }
  return findings;
}

Result<ExitCode> run(const Invocation& invocation) {
  train::install_interrupt(train::InterruptMode::kImmediate);
  const Arguments& arguments = invocation.arguments;
  HEADRACE_ASSIGN(Finding gpu, look_at_gpus(arguments.text("--nvml").value_or("auto")));
  std::vector<Finding> findings = train::examine_machine();
  findings.push_back(std::move(gpu));
  for (const std::string& path : arguments.all("PATH")) {
    HEADRACE_ASSIGN(std::vector<Finding> more, examine_path(path));
    findings.insert(
        findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  const bool can_train = train::can_train(findings);
  findings.push_back({.section = "training",
                      .text = std::string(can_train ? "nothing here stops it on the CPU"
                                                    : "stopped by what is marked as an error") +
                              "; on a GPU it is not in this version"});
  std::string text = train::format_findings(findings);
  findings.pop_back();
  invocation.output.result(train::findings_to_json(findings), invocation.json, text);
  return can_train ? ExitCode::kOk : ExitCode::kOperating;
}

}  // namespace

const Command kDoctorCommand = {.spec = spec, .run = run};

}  // namespace headrace::cli
