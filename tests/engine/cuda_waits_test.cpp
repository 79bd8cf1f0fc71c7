// Every wait of the executor and of the links is needed: each is left out, one at a time, and the
// race checker reports it. On the emulated GPU, so with the waits of all queues.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "tests/engine/cuda_run.hpp"
#include "tiers/test_support.hpp"

namespace headrace::testing {
namespace {

using plan::Home;

// "nvme for nvme" of "nvme1.2 for ticket 3 of nvme0.2".
std::string queues_of(const std::string& wait) {
  const auto kind = [](const std::string& name) {
    return name.starts_with("nvme") ? std::string("nvme") : name;
  };
  return kind(wait.substr(0, wait.find(' '))) + " for " + kind(wait.substr(wait.rfind(' ') + 1));
}

// A run of three programs (steps, of which the second updates first, a drain for the evaluation,
// the evaluation) and a commit, with some placement and store.
struct MutationCase {
  const char* name;
  Home place;
  int folders;
};

class WaitsOnCuda : public ::testing::TestWithParam<MutationCase> {};

RunOptions mutation_run(const MutationCase& param, std::uint64_t seed) {
  RunOptions options = streaming_run();
  options.settings.place = param.place;
  options.folders = param.folders;
  options.evaluate_after = kStepsOnCuda - 1;
  RunOptions on = on_cuda(options, seed);
  on.may_fail = true;
  return on;
}

// "nvme1.20 for ticket 1 of nvme0.20": a lane of the plan goes over to another folder. Its order is
// what waits are derived from, whether or not these two operations need it.
bool keeps_lane_order(const std::string& wait) {
  const auto lane_of = [](const std::string& text) {
    return text.starts_with("nvme") ? text.substr(text.find('.') + 1) : std::string();
  };
  const std::string waiting = wait.substr(0, wait.find(' '));
  const std::string awaited = wait.substr(wait.rfind(' ') + 1);
  return waiting != awaited && !lane_of(waiting).empty() && lane_of(waiting) == lane_of(awaited);
}

TEST_P(WaitsOnCuda, OfQueuesAreEachReportedWhenLeftOut) {
#if defined(HEADRACE_SANITIZED)
  GTEST_SKIP() << "what a missing wait lets happen would be a fault of the test's making";
#endif
  const std::uint64_t seed = tiers::test_seed();
  const RunRecord sound = run_engine(mutation_run(GetParam(), seed));
  expect_clean_machine("the sound run");
  EXPECT_EQ(sound.races, 0U) << sound.first_race;
  for (const tiers::ImpliedWait& wait : sound.implied_queue_waits) {
    ADD_FAILURE() << "others imply wait " << wait.number << ": " << wait.text;
  }
  std::map<std::string, int> kinds;
  for (std::uint64_t number = 0; number < sound.waits; ++number) {
    RunOptions options = mutation_run(GetParam(), seed);
    options.planned = sound.plan;
    options.on_races = [number](tiers::RaceChecker& races) { races.leave_out_wait(number); };
    const RunRecord record = run_engine(options);
    EXPECT_TRUE(record.races > 0 || keeps_lane_order(record.left_out))
        << "seed " << seed << ", wait " << number << ": " << record.left_out;
    ++kinds[queues_of(record.left_out)];
  }
  for (const auto& [kind, count] : kinds) {
    std::cout << count << " waits of " << kind << "\n";
  }
}

TEST_P(WaitsOnCuda, OfTheHostAreReportedWhenLeftOutOrImpliedBesideOthers) {
  const std::uint64_t seed = tiers::test_seed();
  const RunRecord sound = run_engine(mutation_run(GetParam(), seed));
  int implied = 0;
  for (std::uint64_t number = 0; number < sound.host_waits; ++number) {
    RunOptions options = mutation_run(GetParam(), seed);
    options.planned = sound.plan;
    options.on_races = [number](tiers::RaceChecker& races) { races.leave_out_host_wait(number); };
    const RunRecord record = run_engine(options);
    EXPECT_TRUE(record.races > 0 || record.left_out_was_implied)
        << "seed " << seed << ", wait " << number << ": " << record.left_out;
    implied += record.races > 0 ? 0 : 1;
  }
  std::cout << sound.host_waits << " waits of the host, " << implied
            << " of them implied by others at the same place\n";
}

INSTANTIATE_TEST_SUITE_P(Placements,
                         WaitsOnCuda,
                         ::testing::Values(MutationCase{"nvme", Home::kNvme, 1},
                                           MutationCase{"nvme3", Home::kNvme, 3},
                                           MutationCase{"host2", Home::kHost, 2},
                                           MutationCase{"device", Home::kDevice, 1}),
                         [](const auto& named) { return named.param.name; });

}  // namespace
}  // namespace headrace::testing
