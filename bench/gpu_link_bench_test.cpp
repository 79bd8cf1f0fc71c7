// The link benchmark on the emulated runtime: everything is measured and every byte checked, what
// fails is reported, and nothing is left. Its figures mean nothing here.
#include "bench/gpu_link_bench.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "bench/gpu_pattern.hpp"
#include "tiers/gpu/emulated/runtime.hpp"
#include "tiers/test_support.hpp"

namespace headrace::bench {
namespace {

namespace emulated = tiers::gpu::emulated;

constexpr std::size_t kBytes = std::size_t{64} << 10U;

LinkOptions small() {
  return {.bytes_min = kBytes / 4,
          .bytes_max = kBytes,
          .round_bytes = kBytes,
          .rounds = 2,
          .latency_samples = 2,
          .nvml = tiers::gpu::NvmlUse::kOff};
}

void expect_clean() {
  EXPECT_EQ(emulated::violations(), std::vector<std::string>{});
  EXPECT_EQ(emulated::leaks(), std::vector<std::string>{});
}

TEST(GpuLinkBench, EveryKindSizeAndDirectionIsMeasuredAndChecked) {
  const std::uint64_t first = tiers::test_seed();
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    emulated::start({.seed = seed, .pageable_copies = true});
    const Result<LinkReport> report = measure_links(small());
    ASSERT_TRUE(report) << format_error(report.error(), true);
    expect_clean();
    std::set<std::tuple<std::string, std::size_t, std::string>> cells;
    for (const LinkRate& rate : report->rates) {
      cells.insert({rate.memory, rate.bytes, rate.direction});
      EXPECT_GT(rate.bytes_per_s.median, 0);
      EXPECT_LE(rate.bytes_per_s.p5, rate.bytes_per_s.p95);
    }
    EXPECT_EQ(cells.size(), 4U * 2 * 3);
    EXPECT_EQ(report->rates.size(), cells.size());
    EXPECT_EQ(report->latencies.size(), 3U);
    // Three rounds with the warm-up, four kinds, four directions (two of them at once).
    constexpr std::uint64_t kChecks = 48;
    EXPECT_EQ(report->checked_bytes, kChecks * (kBytes + kBytes / 4));
    const std::string text = report_to_markdown(*report);
    EXPECT_NE(text.find("emulated GPU 0"), std::string::npos) << text;
    EXPECT_NE(text.find("| registered, huge pages | 64.0 KiB |"), std::string::npos) << text;
    EXPECT_EQ(report_to_json(*report).find("rates")->as_array()->size(), cells.size());
  }
}

TEST(GpuLinkBench, AnErrorOfAnyCallEndsItWithNothingLeft) {
  LinkOptions options = small();
  options.bytes_min = options.bytes_max;
  options.rounds = 1;
  options.latency_samples = 1;
  emulated::start({.pageable_copies = true});
  ASSERT_TRUE(measure_links(options));
  for (const auto& [function, count] : emulated::calls_by_function()) {
    const bool release = function == "cudaFree" || function == "cudaFreeHost" ||
                         function == "cudaHostUnregister" || function == "cudaStreamDestroy" ||
                         function == "cudaEventDestroy";
    // Asked, or asked again, for the line that describes the machine, which tells of errors and has
    // none.
    const bool only_described = function == "cudaDriverGetVersion";
    const bool described =
        function.starts_with("cudaGetDevice") || function == "cudaDeviceGetPCIBusId";
    for (const std::uint64_t call : {std::uint64_t{0}, described ? 0 : count / 2}) {
      emulated::start({.pageable_copies = true});
      emulated::fail_call_of(function, call, cudaErrorInvalidValue);
      const Result<LinkReport> report = measure_links(options);
      EXPECT_EQ(report.has_value(), release || only_described) << function << ", call " << call;
      EXPECT_EQ(emulated::leaks(), std::vector<std::string>{}) << function << ", call " << call;
    }
  }
}

TEST(GpuLinkBench, AMachineWithoutDriverOrGpuIsHardwareThatIsAbsent) {
  for (const int devices : {-1, 0}) {
    emulated::start({.devices = devices});
    const Result<LinkReport> report = measure_links(small());
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ExitCode::kHardwareAbsent);
  }
  emulated::start({.devices = 1});
  LinkOptions options = small();
  options.device = 1;
  const Result<LinkReport> report = measure_links(options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ExitCode::kHardwareAbsent);
  EXPECT_NE(report.error().what.find("cuda:1"), std::string::npos);
}

TEST(GpuLinkBench, MemoryThatTheDeviceDoesNotHaveIsAnError) {
  emulated::start({.device_bytes = kBytes, .pageable_copies = true});
  const Result<LinkReport> report = measure_links(small());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ExitCode::kDoesNotFit);
  expect_clean();
}

TEST(GpuPattern, AWordThatDiffersIsCounted) {
  std::vector<std::byte> words(kBytes);
  fill_on_host(words, 5);
  EXPECT_EQ(count_wrong_on_host(words, 5), 0U);
  EXPECT_EQ(count_wrong_on_host(words, 6), kBytes / kPatternWordBytes);
  words[17] ^= std::byte{1};
  words[4000] ^= std::byte{128};
  EXPECT_EQ(count_wrong_on_host(words, 5), 2U);
  // Its part says where it belongs.
  const std::span<const std::byte> part = std::span(words).subspan(8192, 512);
  EXPECT_EQ(count_wrong_on_host(part, 5, 8192 / kPatternWordBytes), 0U);
  EXPECT_NE(count_wrong_on_host(part, 5), 0U);
}

TEST(GpuPattern, TheDevicesSideIsFilledAndCounted) {
  emulated::start({});
  {
    auto pattern = DevicePattern::create(0);
    ASSERT_TRUE(pattern) << format_error(pattern.error(), true);
    void* memory = nullptr;
    const std::size_t bytes = (std::size_t{1} << 20U) + 4096;  // more than a piece
    ASSERT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);        // tidy_test: a test's own
    auto* words = static_cast<std::byte*>(memory);
    ASSERT_TRUE((*pattern)->fill(words, bytes, 9));
    EXPECT_EQ(*(*pattern)->count_wrong(words, bytes, 9), 0U);
    EXPECT_EQ(*(*pattern)->count_wrong(words, bytes, 8), bytes / kPatternWordBytes);
    ASSERT_TRUE((*pattern)->fill(words + 1024, 800, 8));
    EXPECT_EQ(*(*pattern)->count_wrong(words, bytes, 9), 100U);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }
  expect_clean();
}

TEST(GpuLinkBench, SpreadsAreOfTheSortedValues) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) {
    values.push_back(i);
  }
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.median, 50);
  EXPECT_EQ(spread.p5, 5);
  EXPECT_EQ(spread.p95, 95);
  EXPECT_EQ(spread_of({3}).p95, 3);
}

}  // namespace
}  // namespace headrace::bench
