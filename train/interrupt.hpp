// SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup).
//
// Three ways, by what a command has to finish: kFinish (train) sets a flag that the loop looks at
// between steps, and says on every signal that the step is being finished; kPolled sets the flag
// and ends the process at the second signal; kImmediate ends it at the first. Ending is with exit
// code 130. Thread: install once, from main's; requested() from any. Failure: none (sigaction with
// valid arguments cannot fail).
#pragma once

#include <cstdint>

namespace headrace::train {

enum class InterruptMode : std::uint8_t { kFinish, kPolled, kImmediate };

void install_interrupt(InterruptMode mode);

[[nodiscard]] bool interrupt_requested();

}  // namespace headrace::train
