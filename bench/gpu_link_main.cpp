// gpu_link_bench: what the link between host and GPU carries. See gpu_link_bench.hpp.
//
//   gpu_link_bench [--device N] [--rounds N] [--min-kib N] [--max-mib N] [--json]
//
// Prints a section for docs/performance.md, or one JSON document. Takes four times twice --max-mib
// of host memory. Exit code 77, with one line, where there is no driver or GPU.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/gpu_link_bench.hpp"

namespace headrace::bench {
namespace {

constexpr const char* kOptions = "[--device N] [--rounds N] [--min-kib N] [--max-mib N] [--json]";

int usage(const std::string& what) {
  (void)std::fprintf(stderr, "gpu_link_bench: %s; options: %s\n", what.c_str(), kOptions);
  return static_cast<int>(ExitCode::kUsage);
}

int run(int count, char** values) {
  LinkOptions options;
  bool json = false;
  for (int i = 1; i < count; ++i) {
    const std::string name = values[i];
    if (name == "--json") {
      json = true;
      continue;
    }
    constexpr long kMax = 1 << 20;
    const char* number = i + 1 < count ? values[++i] : "";
    char* end = nullptr;
    const long value = std::strtol(number, &end, 10);
    if (end == number || *end != '\0' || value < (name == "--device" ? 0 : 1) || value > kMax) {
      return usage("'" + name + "' is no option, or '" + number + "' no number for it");
    }
    if (name == "--device") {
      options.device = static_cast<int>(value);
    } else if (name == "--rounds") {
      options.rounds = static_cast<int>(value);
    } else if (name == "--min-kib") {
      options.bytes_min = static_cast<std::size_t>(value) << 10U;
    } else if (name == "--max-mib") {
      options.bytes_max = static_cast<std::size_t>(value) << 20U;
    } else {
      return usage("'" + name + "' is no option");
    }
  }
  if (options.bytes_min > options.bytes_max) {
    return usage("--min-kib is above --max-mib");
  }
  const Result<LinkReport> report = measure_links(options);
  if (!report) {
    const bool absent = report.error().code == ExitCode::kHardwareAbsent;
    const std::string text = absent ? "gpu_link_bench: " + tiers::gpu::describe_cuda() + "\n"
                                    : format_error(report.error(), true);
    (void)std::fputs(text.c_str(), stderr);
    return static_cast<int>(report.error().code);
  }
  const std::string text =
      json ? report_to_json(*report).dump(2) + "\n" : report_to_markdown(*report);
  return std::fputs(text.c_str(), stdout) >= 0 ? 0 : static_cast<int>(ExitCode::kOperating);
}

}  // namespace
}  // namespace headrace::bench

int main(int count, char** values) {
  return headrace::bench::run(count, values);
}
