#include "core/threads.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "core/assert.hpp"

namespace headrace {

Status check_threads(int count) {
  HEADRACE_ASSERT(count >= 0, "a number of threads");
  std::latch all_started(1);
  std::vector<std::thread> threads;
  std::string problem;
  try {
    threads.reserve(static_cast<std::size_t>(count));
    while (threads.size() < static_cast<std::size_t>(count)) {
      threads.emplace_back([&all_started] { all_started.wait(); });
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  all_started.count_down();
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (problem.empty()) {
    return {};
  }
  return operating_error(fmt::format("cannot start {} threads", count))
      .with_why(fmt::format("{} could be started, then: {}", threads.size(), problem))
      .with_hint(
          "raise the limit of processes (`ulimit -u`, or pids.max of the cgroup) or of memory, or "
          "lower run.compute_threads and optim.threads");
}

}  // namespace headrace
