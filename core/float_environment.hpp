// Flush-to-zero for the calling thread: subnormal results and inputs count as zero.
//
// Invariant: every compute and optimizer thread calls set_flush_to_zero() where it starts, so that
// no placement or thread count changes bits, and subnormal moments cost no time.
// Thread: acts on the calling thread only; a new thread does not inherit it everywhere.
#pragma once

#include <cfenv>

namespace headrace {

// x86: MXCSR's FTZ and DAZ; AArch64: FPCR's FZ.
void set_flush_to_zero() noexcept;

// For tests and assertions: measured by arithmetic, not by reading the register.
[[nodiscard]] bool flush_to_zero_is_set() noexcept;

// For a thread that is not one of those, while it does their arithmetic; then as it was before.
class FlushToZeroScope {
 public:
  FlushToZeroScope() {
    std::fegetenv(&saved_);
    set_flush_to_zero();
  }

  ~FlushToZeroScope() { std::fesetenv(&saved_); }

  FlushToZeroScope(const FlushToZeroScope&) = delete;
  FlushToZeroScope& operator=(const FlushToZeroScope&) = delete;

 private:
  std::fenv_t saved_{};
};

}  // namespace headrace
