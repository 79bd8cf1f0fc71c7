// Whatever CUDA call or operation of a run fails: the error form, no rule broken, nothing leaked,
// and a last commit from which the run goes on to the same bits.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "tests/engine/cuda_run.hpp"
#include "tiers/gpu/emulated/runtime.hpp"
#include "tiers/test_support.hpp"

namespace headrace::testing {
namespace {

namespace emulated = tiers::gpu::emulated;

// Cases that CTest runs side by side; each takes the failures of its residue.
constexpr std::uint64_t kShards = 5;
constexpr std::size_t kRingCapacity = 8;  // each slot has an event, and so two calls that may fail
// A run takes a tenth of a second under sanitizers: there only every fortieth failure is made,
// from a place that the seed chooses; the others are the same code.
#if defined(HEADRACE_SANITIZED)
constexpr std::uint64_t kOneOf = 40;
#else
constexpr std::uint64_t kOneOf = 1;
#endif

// One block, one micro-batch, two steps with a commit each: few calls, of every kind.
RunOptions short_run() {
  RunOptions options = streaming_run();
  options.architecture.layers = 1;
  options.architecture.hidden = 32;
  options.architecture.heads = options.architecture.kv_heads = 1;
  options.architecture.ffn = 64;
  options.architecture.vocab = 70;
  options.accumulate = 1;
  options.commit_every = 1;
  options.may_fail = true;
  return options;
}

struct Failure {
  std::string function;
  std::uint64_t call = 0;  // of the function
  cudaError_t error = cudaErrorUnknown;
};

// Of every call of a run without failures: an error of the call alone, and one that loses the
// device.
std::vector<Failure> all_failures() {
  std::vector<Failure> failures;
  for (const auto& [function, calls] : emulated::calls_by_function()) {
    for (std::uint64_t call = 0; call < calls; ++call) {
      for (const cudaError_t error : {cudaErrorUnknown, cudaErrorIllegalAddress}) {
        failures.push_back({.function = function, .call = call, .error = error});
      }
    }
  }
  return failures;
}

// Whether run `number` belongs to this case.
bool is_mine(std::uint64_t number, std::uint64_t shard, std::uint64_t seed) {
  return number % kShards == shard && (number / kShards + seed) % kOneOf == 0;
}

// Where all failures are made. A sample may hold early ones only, which leave no commit.
void expect_some_went_on(int resumed) {
  if (kOneOf == 1) {
    EXPECT_GT(resumed, 0);
  }
}

void check_outcome(const RunRecord& expected, const RunRecord& record, const std::string& what) {
  if (record.error) {
    EXPECT_FALSE(record.error->why.empty()) << what;
    EXPECT_EQ(record.error->what.find("cuda:0"), 0U) << what << ": " << record.error->what;
  }
  if (!record.error || record.resumed_at >= 0) {
    expect_same_bits(expected, record, what);
  }
  expect_clean_machine(what);
}

class FaultsOnCuda : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(FaultsOnCuda, AfterAnErrorOfEveryCallTheLastCommitIsGood) {
  const std::uint64_t seed = tiers::test_seed();
  const RunRecord expected = run_engine(short_run());
  ASSERT_FALSE(expected.error.has_value());
  const RunRecord counted = run_engine(on_cuda(short_run(), seed, kRingCapacity));
  expect_same_bits(expected, counted, "without failures");
  expect_clean_machine("without failures");
  const std::vector<Failure> failures = all_failures();
  std::map<std::string, int> failed;
  int resumed = 0;
  for (std::uint64_t number = 0; number < failures.size() && !HasFailure(); ++number) {
    if (!is_mine(number, GetParam(), seed)) {
      continue;
    }
    const Failure& failure = failures[number];
    RunOptions failing = on_cuda(short_run(), seed, kRingCapacity);
    failing.planned = counted.plan;
    emulated::fail_call_of(failure.function, failure.call, failure.error);
    const RunRecord record = run_engine(failing);
    ++failed[emulated::failed_call()];
    resumed += record.resumed_at >= 0 ? 1 : 0;
    check_outcome(expected,
                  record,
                  "seed " + std::to_string(seed) + ", call " + std::to_string(failure.call) +
                      " of " + failure.function);
  }
  expect_some_went_on(resumed);
  std::cout << failures.size() << " failures of calls in all; " << resumed
            << " runs of this case went on from a commit; failed:";
  for (const auto& [name, count] : failed) {
    std::cout << " " << (name.empty() ? "none" : name) << " " << count;
  }
  std::cout << "\n";
}

// A kernel or copy that goes wrong while it runs: the device is lost.
TEST_P(FaultsOnCuda, AfterEveryOperationThatFailsTheLastCommitIsGood) {
  const std::uint64_t seed = tiers::test_seed();
  const RunRecord expected = run_engine(short_run());
  const RunRecord counted = run_engine(on_cuda(short_run(), seed, kRingCapacity));
  expect_same_bits(expected, counted, "without failures");
  const std::uint64_t operations = emulated::operation_count();
  int resumed = 0;
  for (std::uint64_t number = 0; number < operations && !HasFailure(); ++number) {
    if (!is_mine(number, GetParam(), seed)) {
      continue;
    }
    RunOptions failing = on_cuda(short_run(), seed + number, kRingCapacity);
    failing.planned = counted.plan;
    emulated::fail_operation(number, cudaErrorLaunchFailure);
    const RunRecord record = run_engine(failing);
    const std::string what =
        "seed " + std::to_string(seed) + ", operation " + std::to_string(number);
    EXPECT_TRUE(record.error.has_value()) << what;
    if (record.error) {
      EXPECT_NE(record.error->what.find("device is lost"), std::string::npos) << what;
      EXPECT_FALSE(record.error->trace.empty()) << what;
    }
    check_outcome(expected, record, what);
    resumed += record.resumed_at >= 0 ? 1 : 0;
  }
  expect_some_went_on(resumed);
  std::cout << operations << " operations in all; " << resumed
            << " runs of this case went on from a commit\n";
}

INSTANTIATE_TEST_SUITE_P(Shards, FaultsOnCuda, ::testing::Range(std::uint64_t{0}, kShards));

}  // namespace
}  // namespace headrace::testing
