// Bytes that say where they belong, made and checked on both sides of a link.
//
// A pattern is 64-bit words that depend on a seed and their index; sizes are multiples of a word.
// On the device either kernels do it (gpu_pattern_device.cpp over gpu_pattern.cu, where nvcc is),
// or the host through copies in pieces (gpu_pattern_host.cpp); the build links one of them.
// Threads: one. Failure: Results; calls return when their work is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "bench/gpu_pattern_word.hpp"
#include "core/error.hpp"

namespace headrace::bench {

inline void fill_on_host(std::span<std::byte> target, std::uint64_t seed, std::uint64_t first = 0) {
  for (std::size_t i = 0; i < target.size() / kPatternWordBytes; ++i) {
    const std::uint64_t word = pattern_word(seed, first + i);
    std::memcpy(target.data() + i * kPatternWordBytes, &word, kPatternWordBytes);
  }
}

// Words that differ from the pattern.
[[nodiscard]] inline std::uint64_t count_wrong_on_host(std::span<const std::byte> source,
                                                       std::uint64_t seed,
                                                       std::uint64_t first = 0) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < source.size() / kPatternWordBytes; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, source.data() + i * kPatternWordBytes, kPatternWordBytes);
    wrong += word != pattern_word(seed, first + i) ? 1 : 0;
  }
  return wrong;
}

class DevicePattern {
 public:
  // Of the variant that the program was linked with. Takes what memory it needs.
  [[nodiscard]] static Result<std::unique_ptr<DevicePattern>> create(int device);
  virtual ~DevicePattern() = default;
  DevicePattern(const DevicePattern&) = delete;
  DevicePattern& operator=(const DevicePattern&) = delete;

  // Memory of the device.
  [[nodiscard]] virtual Status fill(std::byte* target, std::size_t bytes, std::uint64_t seed) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> count_wrong(const std::byte* source,
                                                          std::size_t bytes,
                                                          std::uint64_t seed) = 0;
  // "by kernels", "by the host": for the report.
  [[nodiscard]] virtual const char* how() const = 0;

 protected:
  DevicePattern() = default;
};

}  // namespace headrace::bench
