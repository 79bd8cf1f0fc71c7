// The executor's waits are all needed, and the race checker sees it: a plan from which one is taken
// out is reported.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "tests/engine/harness.hpp"

namespace headrace::testing {
namespace {

// Every wait of the program that held steps run, by the queue that waits and the queue waited for.
std::map<std::pair<int, int>, std::vector<std::pair<std::size_t, std::size_t>>> waits_by_link(
    const plan::Program& program) {
  std::map<std::pair<int, int>, std::vector<std::pair<std::size_t, std::size_t>>> waits;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (std::size_t w = 0; w < program.instructions[i].waits.size(); ++w) {
      const auto waited = static_cast<std::size_t>(program.instructions[i].waits[w]);
      waits[{static_cast<int>(program.instructions[i].queue),
             static_cast<int>(program.instructions[waited].queue)}]
          .emplace_back(i, w);
    }
  }
  return waits;
}

// One wait of each pair of queues, chosen at random; more of them elsewhere would only take longer.
TEST(Races, AWaitTakenOutOfThePlanIsReported) {
  const char* text = std::getenv("HEADRACE_SEED");
  const std::uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  (void)std::fprintf(stderr, "HEADRACE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  RunOptions options;
  options.architecture = small_gpt2();
  options.architecture.tied = true;
  options.accumulate = 2;
  options.steps = 2;
  options.settings = ample_settings();
  options.settings.separate_device = true;
  options.settings.place = plan::Home::kNvme;
  options.settings.grad = Dtype::kBf16;
  const RunRecord sound = run_engine(options);
  options.may_fail = true;
  options.planned = sound.plan;
  int links = 0;
  for (const auto& [queues, places] : waits_by_link(sound.plan.compute_held)) {
    const auto [instruction, wait] = places[random() % places.size()];
    options.on_plan = [instruction = instruction, wait = wait](plan::Plan& plan) {
      std::vector<int>& waits = plan.compute_held.instructions[instruction].waits;
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(wait));
    };
    const RunRecord record = run_engine(options);
    EXPECT_GT(record.races, 0U) << "seed " << seed << ": queue " << queues.first
                                << " no longer waits for queue " << queues.second
                                << " at instruction " << instruction;
    ++links;
  }
  EXPECT_GE(links, 8) << "every link of a separate device has waits both ways";
}

}  // namespace
}  // namespace headrace::testing
