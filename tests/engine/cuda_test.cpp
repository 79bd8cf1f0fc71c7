// The engine on an emulated GPU (tiers/gpu/emulated): the executor's every wait, copy and lease
// over streams and events, with the CPU's kernels as operations of the compute stream. Same bits as
// on the CPU, whatever runs late; every wait needed; any CUDA call may fail.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/float_environment.hpp"
#include "tests/engine/harness.hpp"
#include "tiers/gpu/cuda_device.hpp"
#include "tiers/gpu/emulated/runtime.hpp"
#include "tiers/test_support.hpp"

namespace headrace::testing {
namespace {

namespace emulated = tiers::gpu::emulated;
using plan::Home;
using plan::kBlockElements;
using plan::Traversal;
using plan::Update;

constexpr int kStepsOnCuda = 2;
// Under sanitizers as many as there is time for.
#if defined(HEADRACE_SANITIZED)
constexpr std::uint64_t kSeeds = 20;
constexpr int kFailures = 10;
#else
constexpr std::uint64_t kSeeds = 200;
constexpr int kFailures = 80;
#endif

// Two blocks, and tables of two tiles.
model::Architecture tiny(model::Architecture architecture) {
  architecture.layers = 2;
  architecture.hidden = 64;
  architecture.heads = 2;
  architecture.kv_heads = architecture.family == model::Family::kGpt2 ? 2 : 1;
  architecture.head_dim = 32;
  architecture.ffn = architecture.family == model::Family::kGpt2 ? 256 : 90;
  architecture.vocab = 1100;
  return architecture;
}

RunOptions tiny_run(const model::Architecture& architecture) {
  RunOptions options;
  options.architecture = tiny(architecture);
  options.micro_batch = 1;
  options.seq_len = 8;
  options.accumulate = 2;
  options.steps = kStepsOnCuda;
  options.compute_threads = 1;
  options.optimizer_threads = 1;
  options.optim.lr = 1e-3;
  options.settings = ample_settings();
  return options;
}

// The same run with its device on a fresh emulated machine.
RunOptions on_cuda(RunOptions options, std::uint64_t seed) {
  emulated::start({.seed = seed});
  options.settings.separate_device = true;
  options.make_device = [threads = options.compute_threads](tiers::Runtime& runtime,
                                                            tiers::Cores& cores) {
    emulated::use_cores(cores);
    tiers::gpu::CudaDeviceOptions device;
    device.slab_bytes = std::size_t{1} << 20;
    device.launch_body = &emulated::launch_body;
    // Kernels run on the poller's thread, with the team that the CPU's compute queue has.
    device.on_thread_start = [threads] {
      omp_set_dynamic(0);
      omp_set_num_threads(threads);
#pragma omp parallel
      set_flush_to_zero();
    };
    return tiers::gpu::make_cuda_device(runtime, device);
  };
  options.on_made = [] { emulated::freeze(); };
  options.on_end = [] { emulated::thaw(); };
  return options;
}

void expect_clean_machine(const std::string& what) {
  EXPECT_EQ(emulated::violations(), std::vector<std::string>{}) << what;
  EXPECT_EQ(emulated::leaks(), std::vector<std::string>{}) << what;
}

// Some placement or other, in words.
std::string choose_settings(std::uint64_t seed, plan::PlanSettings& settings) {
  std::mt19937_64 random(seed);
  const Home home = std::array{Home::kDevice, Home::kHost, Home::kNvme}.at(random() % 3);
  settings.place = home;
  settings.lookahead = static_cast<int>(1 + random() % 3);
  settings.tile_elements = static_cast<std::int64_t>(1 + random() % 2) * kBlockElements;
  settings.traversal = random() % 2 == 0 ? Traversal::kLayerMajor : Traversal::kBatchMajor;
  settings.update = random() % 2 == 0 ? Update::kHeld : Update::kAfterBackward;
  return std::string(plan::home_name(home)) + ", lookahead " + std::to_string(*settings.lookahead) +
         ", " + plan::traversal_name(*settings.traversal) + ", " +
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
        options.settings.traversal == Traversal::kLayerMajor) {
      options.settings.traversal.reset();
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

// Everything streams, on one placement with all queues in use.
RunOptions streaming_run() {
  RunOptions options = tiny_run(small_gpt2());
  options.settings.place = Home::kNvme;
  options.settings.grad = Dtype::kBf16;
  options.settings.tile_elements = kBlockElements;
  options.settings.lookahead = 1;
  return options;
}

// The programs that a run of two held steps and a commit goes through.
constexpr std::array<plan::Program plan::Plan::*, 3> kPrograms = {
    &plan::Plan::compute, &plan::Plan::compute_held, &plan::Plan::drain};

// Not under sanitizers: what a missing wait lets happen is then a fault of the test's making.
TEST(Races, EveryWaitOfAPlanOnCudaIsNeeded) {
  const std::uint64_t seed = tiers::test_seed();
  const RunRecord sound = run_engine(on_cuda(streaming_run(), seed));
  expect_clean_machine("the sound plan");
  EXPECT_EQ(sound.races, 0U) << sound.first_race;
  EXPECT_EQ(sound.implied_waits, 0U) << "of " << sound.waits << " waits";
  int waits = 0;
  for (const auto program : kPrograms) {
    const std::vector<plan::Instruction>& instructions = (sound.plan.*program).instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      for (std::size_t w = 0; w < instructions[i].waits.size(); ++w) {
        RunOptions options = on_cuda(streaming_run(), seed);
        options.may_fail = true;
        options.on_plan = [program, i, w](plan::Plan& plan) {
          std::vector<int>& of_instruction = (plan.*program).instructions[i].waits;
          of_instruction.erase(of_instruction.begin() + static_cast<std::ptrdiff_t>(w));
        };
        EXPECT_GT(run_engine(options).races, 0U)
            << "seed " << seed << ": wait " << w << " of instruction " << i;
        ++waits;
      }
    }
  }
  std::cout << waits << " waits, each reported when it was taken out\n";
}

TEST(EngineOnCuda, AfterAnErrorOfAnyCallTheLastCommitIsGood) {
  const std::uint64_t seed = tiers::test_seed();
  RunOptions options = streaming_run();
  options.steps = 3;
  options.commit_every_step = true;
  options.may_fail = true;
  const RunRecord expected = run_engine(options);
  ASSERT_FALSE(expected.error.has_value());
  [[maybe_unused]] const RunRecord counted = run_engine(on_cuda(options, seed));
  expect_clean_machine("without failures");
  const std::uint64_t calls = emulated::call_count();
  std::mt19937_64 random(seed);
  std::map<std::string, int> failed;
  int resumed = 0;
  for (int run = 0; run < kFailures; ++run) {
    const std::uint64_t call = random() % calls;
    const bool loses_device = random() % 2 == 0;
    const RunOptions failing = on_cuda(options, seed);
    emulated::fail_call(call, loses_device ? cudaErrorIllegalAddress : cudaErrorUnknown);
    const RunRecord record = run_engine(failing);
    const std::string what = "seed " + std::to_string(seed) + ", call " + std::to_string(call) +
                             " (" + emulated::failed_call() + ")";
    ++failed[emulated::failed_call()];
    if (record.error) {
      EXPECT_FALSE(record.error->why.empty()) << what;
      EXPECT_EQ(record.error->what.find("cuda:0"), 0U) << what << ": " << record.error->what;
    }
    if (!record.error || record.resumed_at >= 0) {
      expect_same_bits(expected, record, what);
    }
    resumed += record.resumed_at >= 0 ? 1 : 0;
    expect_clean_machine(what);
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(resumed, 0);
  std::cout << calls << " calls; " << resumed << " runs went on from a commit; failed:";
  for (const auto& [name, count] : failed) {
    std::cout << " " << (name.empty() ? "none" : name) << " " << count;
  }
  std::cout << "\n";
}

// A kernel or copy that goes wrong while it runs: the device is lost.
TEST(EngineOnCuda, AfterAnOperationThatFailedTheLastCommitIsGood) {
  const std::uint64_t seed = tiers::test_seed();
  RunOptions options = streaming_run();
  options.steps = 3;
  options.commit_every_step = true;
  options.may_fail = true;
  const RunRecord expected = run_engine(options);
  std::mt19937_64 random(seed);
  int resumed = 0;
  for (int run = 0; run < kFailures / 4; ++run) {
    constexpr std::uint64_t kOperations = 400;
    const std::uint64_t operation = random() % kOperations;
    const RunOptions failing = on_cuda(options, seed + static_cast<std::uint64_t>(run));
    emulated::fail_operation(operation, cudaErrorLaunchFailure);
    const RunRecord record = run_engine(failing);
    const std::string what = "seed " + std::to_string(seed) + ", run " + std::to_string(run) +
                             ", operation " + std::to_string(operation);
    if (record.error) {
      EXPECT_NE(record.error->what.find("device is lost"), std::string::npos) << what;
      EXPECT_FALSE(record.error->trace.empty()) << what;
    }
    if (!record.error || record.resumed_at >= 0) {
      expect_same_bits(expected, record, what);
    }
    resumed += record.resumed_at >= 0 ? 1 : 0;
    expect_clean_machine(what);
  }
  std::cout << resumed << " runs went on from a commit\n";
}

}  // namespace
}  // namespace headrace::testing
