// What the link between host and GPU carries, by the kind of host memory.
//
// Each round measures every kind of memory at every size in every direction, one after the other,
// so that what changes meanwhile meets all of them; medians of the rounds are reported. Before a
// copy its target holds another pattern, and afterwards every word of it is checked. Time is the
// host's, from before the first call until the last event is seen.
//
// Threads: the caller's; copies of pageable memory in both directions take two of its own, since
// such a call returns when its copy is over. Failure: Results (kHardwareAbsent: no driver or GPU;
// kDoesNotFit; kCorrupt: bytes that did not arrive). Nothing is left behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "tiers/gpu/cuda_device.hpp"
#include "tiers/gpu/nvml.hpp"

namespace headrace::bench {

struct LinkOptions {
  int device = 0;
  std::size_t bytes_min = std::size_t{64} << 10U;
  std::size_t bytes_max = std::size_t{1} << 30U;     // by a factor of 4 up to it
  std::size_t round_bytes = std::size_t{64} << 20U;  // small copies are repeated to move so much
  int rounds = 7;
  int latency_samples = 200;  // a round
  tiers::gpu::NvmlUse nvml = tiers::gpu::NvmlUse::kAuto;
};

// Of the rounds: the median, and what 5 % and 95 % of them lie below.
struct Spread {
  double median = 0, p5 = 0, p95 = 0;
};

[[nodiscard]] Spread spread_of(std::vector<double> values);

struct LinkRate {
  std::string memory;  // "pageable", "registered", "registered, huge pages", "pinned"
  std::size_t bytes = 0;
  std::string direction;  // "h2d", "d2h", "both": the bytes of both
  Spread bytes_per_s;
};

struct LinkLatency {
  std::string what;
  Spread seconds;
};

struct LinkReport {
  tiers::gpu::CudaDeviceFacts device;
  std::optional<tiers::gpu::NvmlFacts> nvml;
  std::string cuda;       // runtime and driver, and what GPUs there are
  std::string checked;    // how the device's side was checked
  double huge_share = 0;  // of the arena "with huge pages", what the system gave
  int rounds = 0;
  std::vector<LinkRate> rates;
  std::vector<LinkLatency> latencies;
  std::uint64_t checked_bytes = 0;
};

[[nodiscard]] Result<LinkReport> measure_links(const LinkOptions& options);

// A Markdown section for docs/performance.md, and the same as JSON.
[[nodiscard]] std::string report_to_markdown(const LinkReport& report);
[[nodiscard]] Json report_to_json(const LinkReport& report);

}  // namespace headrace::bench
