// The engine on an emulated GPU (tiers/gpu/emulated): the executor's every wait, copy and lease
// over streams and events, with the CPU's kernels as operations of the compute stream. Same bits as
// on the CPU, whatever runs late.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/log.hpp"
#include "tests/engine/cuda_run.hpp"
#include "tiers/test_support.hpp"
#include "tiers/test_topology.hpp"

namespace headrace::testing {
namespace {

using plan::Home;
using plan::kBlockElements;
using plan::Update;

// Under sanitizers as many as there is time for.
#if defined(HEADRACE_SANITIZED)
constexpr std::uint64_t kSeeds = 20;
#else
constexpr std::uint64_t kSeeds = 200;
#endif

// Some placement or other, in words.
std::string choose_settings(std::uint64_t seed, plan::PlanSettings& settings) {
  std::mt19937_64 random(seed);
  const Home home = std::array{Home::kDevice, Home::kHost, Home::kNvme}.at(random() % 3);
  settings.place = home;
  settings.lookahead = static_cast<int>(1 + random() % 3);
  settings.tile_elements = static_cast<std::int64_t>(1 + random() % 2) * kBlockElements;
  settings.group_size = random() % 2 == 0 ? plan::kLayerMajor : plan::kBatchMajor;
  settings.update =
      std::array{Update::kHeld, Update::kSpeculative, Update::kAfterBackward}.at(random() % 3);
  return std::string(plan::home_name(home)) + ", lookahead " + std::to_string(*settings.lookahead) +
         ", " + (*settings.group_size == 1 ? "batch-major" : "layer-major") + ", " +
         plan::update_name(*settings.update);
}

TEST(EngineOnCuda, TheSameBitsAsOnTheCpuUnderEverySeedAndPlacement) {
  const std::uint64_t first = tiers::test_seed();
  std::vector<RunOptions> runs = {tiny_run(small_gpt2()), tiny_run(small_llama())};
  std::vector<RunRecord> references;
  std::vector<std::size_t> smallest;
  for (const RunOptions& options : runs) {
    references.push_back(run_engine(options));
    RunOptions small = options;
    small.settings.separate_device = true;
    small.settings.lookahead = 1;
    small.settings.place = Home::kNvme;
    smallest.push_back(smallest_device_bytes(small));
  }
  for (std::uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const std::size_t family = seed % runs.size();
    RunOptions options = on_cuda(runs[family], seed);
    std::string what =
        "seed " + std::to_string(seed) + ": " + choose_settings(seed, options.settings);
    if (options.settings.place == Home::kNvme && *options.settings.lookahead == 1 &&
        options.settings.group_size == plan::kLayerMajor) {
      options.settings.group_size.reset();
      options.settings.update.reset();
      options.settings.tile_elements.reset();
      options.settings.device_memory_bytes = smallest[family];
      what += ", the smallest arena";
    }
    expect_same_bits(references[family], run_engine(options), what);
    expect_clean_machine(what);
    if (HasFailure()) {
      return;
    }
  }
}

// On a machine of two nodes, at the first of which the emulated GPU is.
[[noreturn]] void run_on_two_nodes() {
  tiers::pretend_to_be({.pci_id = "FFFF:00:00.0"});
  set_log_level(LogLevel::kDebug);
  const RunRecord record = run_engine(on_cuda(streaming_run(), 1));
  std::exit(record.losses.empty() ? 1 : 0);
}

TEST(EngineOnCudaDeathTest, TheHostArenaLiesNearTheGpu) {
  if (!tiers::can_bind_memory()) {
    GTEST_SKIP() << "this system lets nobody bind memory";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_on_two_nodes(),
              ::testing::ExitedWithCode(0),
              "arena 'host' [^\n]*on NUMA node 0, near FFFF:00:00.0");
}

}  // namespace
}  // namespace headrace::testing
