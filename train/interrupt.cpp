#include "train/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "core/assert.hpp"
#include "core/error.hpp"

namespace headrace::train {
namespace {

std::atomic<int> signals_seen{0};
std::atomic<InterruptMode> current_mode{InterruptMode::kImmediate};

static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

// What a handler may do: atomics, write(2) and _exit(2).
void say(std::string_view text) {
  const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  static_cast<void>(written);  // there is nobody to tell
}

void on_signal(int /*signal*/) {
  const int seen = signals_seen.fetch_add(1) + 1;
  const InterruptMode mode = current_mode.load();
  if (mode == InterruptMode::kImmediate || (mode == InterruptMode::kPolled && seen > 1)) {
    ::_exit(static_cast<int>(ExitCode::kInterrupted));
  }
  if (mode == InterruptMode::kFinish) {
    say(seen == 1 ? "\ninterrupted: finishing the step, then committing\n"
                  : "\nstill finishing the step and committing; kill -9 would lose the commit\n");
  }
}

}  // namespace

void install_interrupt(InterruptMode mode) {
  current_mode.store(mode);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction present = {};
    int result = ::sigaction(signal, nullptr, &present);
    HEADRACE_ASSERT(result == 0, "sigaction takes these arguments");
    // nohup: the end of the terminal is not to end the run.
    if (signal == SIGHUP && present.sa_handler == SIG_IGN) {
      continue;
    }
    result = ::sigaction(signal, &action, nullptr);
    HEADRACE_ASSERT(result == 0, "sigaction takes these arguments");
  }
}

bool interrupt_requested() {
  return signals_seen.load(std::memory_order_relaxed) > 0;
}

}  // namespace headrace::train
