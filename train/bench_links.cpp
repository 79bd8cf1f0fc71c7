#include "train/bench_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "core/log.hpp"
#include "core/quantity.hpp"
#include "core/threads.hpp"
#include "scheduler/exec/state_format.hpp"
#include "train/machine_file.hpp"
#include "train/probe_beside.hpp"
#include "train/probe_host.hpp"
#include "train/probe_nvme.hpp"

namespace headrace::train {
namespace {

using plan::MachineProfile;

constexpr std::string_view kHostCopy = "host-copy";
constexpr std::string_view kLinks = "links";
constexpr std::string_view kNvme = "nvme";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kGemm = "gemm";
constexpr std::string_view kTogether = "together";

constexpr Effort kQuick{.time = std::chrono::milliseconds(250), .rounds_min = 3, .spread = 0.03};
constexpr Effort kThorough{
    .time = std::chrono::milliseconds(3000), .rounds_min = 8, .spread = 0.02};
constexpr std::chrono::milliseconds kTogetherTime{200};
constexpr int kTogetherRoundsQuick = 3;
constexpr int kTogetherRounds = 10;
constexpr double kBillion = 1e9;
// Weights, m and v of fp32 are read and written once a step.
constexpr double kStateBytes = 24;
constexpr double kFlopsPerTokenAndParameter = 6;
constexpr double kTokens = 512;

struct MixName {
  DriveMix mix;
  const char* name;
  double MachineProfile::*rate;
};

constexpr std::array<MixName, 5> kMixes = {
    {{DriveMix::kRead, "read", &MachineProfile::nvme_read_bytes_per_s},
     {DriveMix::kWrite, "write", &MachineProfile::nvme_write_bytes_per_s},
     {DriveMix::kBoth, "read and write, half of each", &MachineProfile::nvme_mixed_bytes_per_s},
     {DriveMix::kMoreReads, "read and write, 3 : 1", &MachineProfile::nvme_mixed_reads_bytes_per_s},
     {DriveMix::kMoreWrites,
      "read and write, 1 : 3",
      &MachineProfile::nvme_mixed_writes_bytes_per_s}}};

// One run of the command.
class Bench {
 public:
  Bench(const BenchOptions& options, BenchReport& report)
      : options_(options), report_(report), effort_(options.quick ? kQuick : kThorough) {}

  Status run() {
    HEADRACE_ASSIGN(report_.machine, this_machine());
    HEADRACE_TRY(check_threads(2 * report_.machine.cores + kProbeQueueThreads));
    HEADRACE_ASSIGN(host_, HostBench::create(report_.machine.cores));
    if (wanted(kLinks) || wanted(kTogether)) {
      HEADRACE_ASSIGN(copies_, CopyBench::create());
    }
    HEADRACE_TRY(host_copy());
    HEADRACE_TRY(links());
    HEADRACE_TRY(nvme());
    HEADRACE_TRY(optimizer());
    HEADRACE_TRY(gemm());
    HEADRACE_TRY(together());
    report_.verdict = judge(report_.machine);
    return {};
  }

 private:
  [[nodiscard]] bool wanted(std::string_view part) const {
    return options_.parts.empty() ||
           std::find(options_.parts.begin(), options_.parts.end(), part) != options_.parts.end();
  }

  Result<double> add(BenchLine line, const Load& load) {
    log_info(fmt::format("measuring {}: {}", line.part, line.name));
    HEADRACE_ASSIGN(line.rate, measure_rate(effort_, load));
    const double median = line.rate.median;
    report_.lines.push_back(std::move(line));
    return median;
  }

  static BenchLine line(std::string_view part, std::string name, std::string unit) {
    return {.part = std::string(part), .name = std::move(name), .unit = std::move(unit)};
  }

  Status host_copy() {
    if (wanted(kHostCopy)) {
      HEADRACE_ASSIGN(report_.machine.host_copy_bytes_per_s,
                      add(line(kHostCopy, "memcpy by one thread", "B/s"), host_->copy()));
      HEADRACE_ASSIGN(report_.machine.memory_bytes_per_s,
                      add(line(kHostCopy, "four arrays, all cores", "B/s"), host_->stream()));
    }
    return {};
  }

  Status links() {
    if (wanted(kLinks)) {
      HEADRACE_TRY(add(line(kLinks, "host to device", "B/s"), copies_->load(CopyWay::kToDevice)));
      HEADRACE_TRY(add(line(kLinks, "device to host", "B/s"), copies_->load(CopyWay::kToHost)));
      HEADRACE_TRY(add(line(kLinks, "both at once", "B/s"), copies_->load(CopyWay::kBoth)));
    }
    return {};
  }

  // Rates of folders on drives of their own are added up, as a store over all of them has.
  Status nvme() {
    if (!wanted(kNvme) && !wanted(kTogether)) {
      return {};
    }
    std::vector<std::string> devices;
    for (const std::string& folder : options_.folders) {
      const std::string device = device_of(folder);
      const bool known = std::find(devices.begin(), devices.end(), device) != devices.end();
      devices.push_back(device);
      log_info(fmt::format("measuring nvme: the requests that '{}' needs", folder));
      std::unique_ptr<DriveBench> drive;
      std::string why;
      HEADRACE_ASSIGN(const DriveRates rates, probe_drive(folder, &drive, &why));
      if (drive == nullptr) {
        BenchLine skipped = line(kNvme, "read and write", "B/s");
        skipped.folder = folder;
        skipped.skipped = why;
        report_.lines.push_back(std::move(skipped));
        continue;
      }
      if (wanted(kNvme)) {
        HEADRACE_TRY(mixes(folder, *drive, !known));
      }
      if (first_drive_ == nullptr) {
        report_.machine.nvme_io_depth = rates.requests.in_flight;
        report_.machine.nvme_request_bytes = rates.requests.bytes;
        first_drive_ = std::move(drive);
      }
      report_.machine.nvme_capacity_bytes += known ? 0 : rates.capacity_bytes;
    }
    return {};
  }

  Status mixes(const std::string& folder, DriveBench& drive, bool counts) {
    for (const MixName& mix : kMixes) {
      BenchLine of_mix = line(kNvme, mix.name, "B/s");
      of_mix.folder = folder;
      HEADRACE_ASSIGN(const double rate, add(std::move(of_mix), drive_load(drive, mix.mix)));
      report_.machine.*mix.rate += counts ? rate : 0;
    }
    return {};
  }

  Status optimizer() {
    if (!wanted(kOptimizer)) {
      return {};
    }
    for (const plan::StateFormat& format : exec::state_formats()) {
      const std::unique_ptr<UpdateBench> updates = host_->updates(format);
      plan::UpdateRates& rates = report_.machine.update_rates[format.name];
      const auto named = [&](const char* what) {
        return line(kOptimizer, fmt::format("{}, state {}", what, format.name), "parameter/s");
      };
      HEADRACE_ASSIGN(rates.update_params_per_s, add(named("update"), updates->update()));
      if (format.decoded) {
        HEADRACE_ASSIGN(rates.update_decoded_params_per_s,
                        add(named("update with floats"), updates->update_decoded()));
        HEADRACE_ASSIGN(rates.decode_params_per_s, add(named("decode"), updates->decode()));
      }
    }
    return {};
  }

  Status gemm() {
    if (wanted(kGemm)) {
      KernelBench& kernels = host_->kernels();
      HEADRACE_ASSIGN(report_.machine.gemm_fp32_flops_per_s,
                      add(line(kGemm, "fp32, 512 x 1024 x 1024", "flop/s"),
                          kernels.load(kernels.product(kLargeProduct))));
    }
    return {};
  }

  struct Side {
    BenchLine line;
    Load load;
    double MachineProfile::*share;
  };

  Status pair(Side one, Side other) {
    log_info(fmt::format("measuring together: {} and {}", one.line.name, other.line.name));
    const auto alone_effort = Effort{.time = effort_.time / 2, .rounds_min = 3, .spread = 0.03};
    HEADRACE_ASSIGN(const Sample one_alone, measure_rate(alone_effort, one.load));
    HEADRACE_ASSIGN(const Sample other_alone, measure_rate(alone_effort, other.load));
    std::vector<double> ones;
    std::vector<double> others;
    const int rounds = options_.quick ? kTogetherRoundsQuick : kTogetherRounds;
    for (int round = 0; round < rounds; ++round) {
      HEADRACE_ASSIGN(const Together both, run_together(kTogetherTime, one.load, other.load));
      ones.push_back(both.first);
      others.push_back(both.second);
    }
    one.line.beside = other.line.name;
    other.line.beside = one.line.name;
    finish(std::move(one), std::move(ones), one_alone.median);
    finish(std::move(other), std::move(others), other_alone.median);
    return {};
  }

  void finish(Side side, std::vector<double> rates, double alone) {
    side.line.rate = summarize(std::move(rates));
    side.line.share = share_of(side.line.rate.median, alone);
    report_.machine.*side.share = side.line.share;
    report_.lines.push_back(std::move(side.line));
  }

  Status together() {
    if (!wanted(kTogether)) {
      return {};
    }
    KernelBench& kernels = host_->kernels();
    const Load product = kernels.load(kernels.product(kLargeProduct));
    HEADRACE_TRY(pair({.line = line(kTogether, "gemm", "flop/s"),
                       .load = product,
                       .share = &MachineProfile::compute_beside_copy},
                      {.line = line(kTogether, "copies both ways", "B/s"),
                       .load = copies_->load(CopyWay::kBoth),
                       .share = &MachineProfile::copy_beside_compute}));
    if (first_drive_ == nullptr) {
      return {};
    }
    const auto drive = [&](double MachineProfile::*share) {
      return Side{.line = line(kTogether, "nvme read and write", "B/s"),
                  .load = drive_load(*first_drive_, DriveMix::kBoth),
                  .share = share};
    };
    HEADRACE_TRY(pair({.line = line(kTogether, "gemm", "flop/s"),
                       .load = product,
                       .share = &MachineProfile::compute_beside_nvme},
                      drive(&MachineProfile::nvme_beside_compute)));
    const std::unique_ptr<UpdateBench> updates = host_->updates({});
    return pair({.line = line(kTogether, "update, state fp32", "parameter/s"),
                 .load = updates->update(),
                 .share = &MachineProfile::update_beside_nvme},
                drive(&MachineProfile::nvme_beside_update));
  }

  const BenchOptions& options_;
  BenchReport& report_;
  Effort effort_;
  std::unique_ptr<HostBench> host_;
  std::unique_ptr<CopyBench> copies_;
  std::unique_ptr<DriveBench> first_drive_;
};

std::string rate_text(double rate, const std::string& unit) {
  if (unit == "B/s") {
    return fmt::format("{:.2f} GB/s", rate * 1e-9);
  }
  return unit == "flop/s" ? fmt::format("{:.0f} GFLOP/s", rate * 1e-9)
                          : fmt::format("{:.2f} G/s", rate * 1e-9);
}

std::string verdict_text(const BenchVerdict& verdict) {
  if (verdict.slowest.empty()) {
    return "no verdict: nvme, optimizer and gemm were not all measured\n";
  }
  const auto seconds = [&](const char* link) { return verdict.seconds_per_billion.at(link); };
  return fmt::format(
      "A step of a billion parameters, state fp32 all on the drive, {:.0f} tokens: drive {:.1f} s, "
      "computing {:.1f} s,\nupdates {:.1f} s. The slowest is {}. {}\n",
      kTokens,
      seconds("nvme"),
      seconds("compute"),
      seconds("optimizer"),
      verdict.slowest,
      verdict.tokens_to_hide_nvme <= kTokens
          ? fmt::format(
                "The drive is fast enough: computing hides it from {:.0f} tokens a step on.",
                verdict.tokens_to_hide_nvme)
          : fmt::format("The drive is too slow for that: computing hides it from {:.0f} tokens a "
                        "step on; more tokens a step, more\nof the state in memory, or "
                        "optim.state = \"q8\" mend it.",
                        verdict.tokens_to_hide_nvme));
}

// `measured` where it was.
void take(double measured, double& rate) {
  if (measured > 0) {
    rate = measured;
  }
}

}  // namespace

const std::vector<BenchPart>& bench_parts() {
  static const std::vector<BenchPart> parts = {
      {kHostCopy, "copies within host memory"},
      {kLinks, "host to device and back, of the CPU's separate arena"},
      {kNvme, "each folder of --store: read, written, both"},
      {kOptimizer, "updates and decoding in each state format"},
      {kGemm, "products in fp32"},
      {kTogether, "computing, updates, copies and the drive beside one another"}};
  return parts;
}

Result<std::vector<std::string>> parse_parts(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string name(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    const auto& known = bench_parts();
    if (std::none_of(
            known.begin(), known.end(), [&](const BenchPart& part) { return part.name == name; })) {
      std::string names;
      for (const BenchPart& part : known) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", part.name);
      }
      return usage_error(fmt::format("--only: '{}' is not a part of the benchmark", name))
          .with_hint(fmt::format("the parts are {}", names));
    }
    parts.push_back(name);
  }
  if (parts.empty()) {
    return usage_error("--only names nothing").with_hint("such as --only nvme,gemm");
  }
  return parts;
}

Result<BenchReport> run_bench(const BenchOptions& options) {
  BenchReport report;
  report.quick = options.quick;
  Bench bench(options, report);
  HEADRACE_TRY(bench.run());
  return report;
}

void take_rates(const BenchReport& report, MachineProfile& profile) {
  const MachineProfile& measured = report.machine;
  for (double MachineProfile::*rate : {&MachineProfile::gemm_fp32_flops_per_s,
                                       &MachineProfile::memory_bytes_per_s,
                                       &MachineProfile::host_copy_bytes_per_s,
                                       &MachineProfile::nvme_read_bytes_per_s,
                                       &MachineProfile::nvme_write_bytes_per_s,
                                       &MachineProfile::nvme_mixed_bytes_per_s,
                                       &MachineProfile::nvme_mixed_reads_bytes_per_s,
                                       &MachineProfile::nvme_mixed_writes_bytes_per_s,
                                       &MachineProfile::compute_beside_nvme,
                                       &MachineProfile::update_beside_nvme,
                                       &MachineProfile::nvme_beside_compute,
                                       &MachineProfile::nvme_beside_update,
                                       &MachineProfile::compute_beside_copy,
                                       &MachineProfile::copy_beside_compute}) {
    take(measured.*rate, profile.*rate);
  }
  for (const auto& [state, rates] : measured.update_rates) {
    plan::UpdateRates& target = profile.update_rates[state];
    take(rates.update_params_per_s, target.update_params_per_s);
    take(rates.update_decoded_params_per_s, target.update_decoded_params_per_s);
    take(rates.decode_params_per_s, target.decode_params_per_s);
  }
  if (measured.nvme_io_depth > 0) {
    profile.nvme_io_depth = measured.nvme_io_depth;
    profile.nvme_request_bytes = measured.nvme_request_bytes;
    profile.nvme_capacity_bytes = measured.nvme_capacity_bytes;
  }
}

BenchVerdict judge(const MachineProfile& measured) {
  BenchVerdict verdict;
  const auto add = [&](const char* link, double work, double rate) {
    if (rate > 0) {
      verdict.seconds_per_billion[link] = work / rate;
    }
  };
  const double flops_per_token = kFlopsPerTokenAndParameter * kBillion;
  add("nvme", kStateBytes * kBillion, measured.nvme_mixed_bytes_per_s);
  add("compute", flops_per_token * kTokens, measured.gemm_fp32_flops_per_s);
  const auto fp32 = measured.update_rates.find(plan::StateFormat{}.name);
  add("optimizer",
      kBillion,
      fp32 == measured.update_rates.end() ? 0 : fp32->second.update_params_per_s);
  if (verdict.seconds_per_billion.size() == 3) {
    verdict.slowest =
        std::max_element(verdict.seconds_per_billion.begin(),
                         verdict.seconds_per_billion.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    verdict.tokens_to_hide_nvme =
        verdict.seconds_per_billion.at("nvme") * measured.gemm_fp32_flops_per_s / flops_per_token;
  }
  return verdict;
}

std::string format_bench(const BenchReport& report) {
  std::string text =
      fmt::format("{}, {} cores, {} of memory{}\n\n{:<10} {:<34} {:>13} {:>13} {:>13} {:>5}\n",
                  report.machine.cpu,
                  report.machine.cores,
                  format_bytes(report.machine.memory_bytes),
                  report.quick ? ", quick" : "",
                  "part",
                  "what",
                  "median",
                  "p5",
                  "p95",
                  "n");
  std::string folder;
  for (const BenchLine& line : report.lines) {
    if (line.folder != folder) {
      folder = line.folder;
      text += folder.empty() ? "" : fmt::format("{:<10} in '{}'\n", line.part, folder);
    }
    if (!line.skipped.empty()) {
      text += fmt::format("{:<10} not measured: {}\n", line.part, line.skipped);
      continue;
    }
    const std::string name =
        line.beside.empty() ? line.name : fmt::format("{} | {}", line.name, line.beside);
    text += fmt::format("{:<10} {:<34} {:>13} {:>13} {:>13} {:>5}{}\n",
                        line.part,
                        name,
                        rate_text(line.rate.median, line.unit),
                        rate_text(line.rate.p5, line.unit),
                        rate_text(line.rate.p95, line.unit),
                        line.rate.n,
                        line.share > 0 ? fmt::format("  {:.0f} % of alone", 100 * line.share) : "");
  }
  return text + "\n" + verdict_text(report.verdict);
}

Json bench_to_json(const BenchReport& report) {
  Json machine = Json::object();
  machine.add("cpu", report.machine.cpu);
  machine.add("cores", report.machine.cores);
  machine.add("memory_bytes", report.machine.memory_bytes);
  machine.add("kernel", report.machine.kernel);
  Json lines = Json::array();
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  for (const BenchLine& line : report.lines) {
    const bool measured = line.skipped.empty();
    const auto number = [&](double value) { return measured ? Json(value) : Json(); };
    Json entry = Json::object();
    entry.add("part", line.part);
    entry.add("name", line.name);
    entry.add("folder", text_or_null(line.folder));
    entry.add("beside", text_or_null(line.beside));
    entry.add("unit", line.unit);
    entry.add("median", number(line.rate.median));
    entry.add("p5", number(line.rate.p5));
    entry.add("p95", number(line.rate.p95));
    entry.add("n", line.rate.n);
    entry.add("share_of_alone", line.share > 0 ? Json(line.share) : Json());
    entry.add("skipped", text_or_null(line.skipped));
    lines.push_back(std::move(entry));
  }
  Json seconds = Json::object();
  for (const auto& [link, value] : report.verdict.seconds_per_billion) {
    seconds.add(link, value);
  }
  Json verdict = Json::object();
  const bool known = !report.verdict.slowest.empty();
  verdict.add("tokens", kTokens);
  verdict.add("seconds_per_billion_parameters", std::move(seconds));
  verdict.add("slowest", text_or_null(report.verdict.slowest));
  verdict.add("tokens_to_hide_nvme", known ? Json(report.verdict.tokens_to_hide_nvme) : Json());
  verdict.add("text", verdict_text(report.verdict));
  Json json = Json::object();
  json.add("machine", std::move(machine));
  json.add("quick", report.quick);
  json.add("lines", std::move(lines));
  json.add("verdict", std::move(verdict));
  return json;
}

}  // namespace headrace::train
