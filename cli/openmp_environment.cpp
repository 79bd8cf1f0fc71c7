// See openmp_environment.hpp. Called once, before any thread is started.
#include "cli/openmp_environment.hpp"

#include <unistd.h>

#include <cstdlib>

namespace headrace::cli {

void adopt_passive_openmp_waits(char** arguments) {
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread exists yet.
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) {
    execv("/proc/self/exe", arguments);  // returns only on failure: then as it was
  }
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace headrace::cli
