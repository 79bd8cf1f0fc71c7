// The control registers of float arithmetic (core/float_environment.hpp).
#include "core/float_environment.hpp"

#include <cstdint>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#error "headrace needs a way to flush subnormals to zero on this architecture"
#endif

namespace headrace {

void set_flush_to_zero() noexcept {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#else
  constexpr std::uint64_t kFlushToZero = std::uint64_t{1} << 24U;
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  control |= kFlushToZero;
  asm volatile("msr fpcr, %0" : : "r"(control));
#endif
}

bool flush_to_zero_is_set() noexcept {
  // volatile: the operations happen at run time, under the thread's control register.
  const volatile float smallest_normal = std::numeric_limits<float>::min();
  const volatile float subnormal = std::numeric_limits<float>::denorm_min();
  const volatile float half = 0.5F;
  const volatile float large = 0x1.0p100F;
  const volatile float flushed_result = smallest_normal * half;
  const volatile float flushed_input = subnormal * large;
  return flushed_result == 0.0F && flushed_input == 0.0F;
}

}  // namespace headrace
