// What the tests of this folder share: seeds, float buffers at any byte offset with guards around
// them, comparison of bits, flush-to-zero for a scope.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/float_environment.hpp"

namespace headrace::optim {

// Of a random test: HEADRACE_SEED, or fresh; printed.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("HEADRACE_SEED");  // NOLINT(concurrency-mt-unsafe)
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "HEADRACE_SEED=" << seed << "\n";
  return seed;
}

// `elements` of T whose first byte is `offset_bytes` after a multiple of 64, between guard bytes.
template <class T>
class OffsetBuffer {
 public:
  OffsetBuffer(std::int64_t elements, std::size_t offset_bytes)
      : elements_(static_cast<std::size_t>(std::max<std::int64_t>(elements, 0))),
        bytes_(2 * kGuardBytes + 64 + elements_ * sizeof(T), std::byte{kGuard}) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuardBytes;
    begin_ = kGuardBytes + (64 - address % 64) % 64 + offset_bytes % 64;
    if (begin_ >= kGuardBytes + 64) {
      begin_ -= 64;
    }
    std::memset(bytes_.data() + begin_, 0, elements_ * sizeof(T));
  }

  OffsetBuffer(const std::vector<T>& values, std::size_t offset_bytes)
      : OffsetBuffer(static_cast<std::int64_t>(values.size()), offset_bytes) {
    if (!values.empty()) {
      std::memcpy(bytes_.data() + begin_, values.data(), values.size() * sizeof(T));
    }
  }

  [[nodiscard]] T* data() { return reinterpret_cast<T*>(bytes_.data() + begin_); }

  [[nodiscard]] std::span<T> span() { return {data(), elements_}; }

  // Nothing before or after the elements was written.
  [[nodiscard]] bool guards_intact() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= begin_ && i < begin_ + elements_ * sizeof(T);
      if (!inside && bytes_[i] != std::byte{kGuard}) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuardBytes = 128;
  static constexpr unsigned char kGuard = 0xa5;

  std::size_t elements_;
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;
};

// Equal bits; any NaN equals any NaN. Stops at the first difference, and says where.
template <class T>
testing::AssertionResult same_bits(std::span<const T> left, std::span<const T> right) {
  if (left.size() != right.size()) {
    return testing::AssertionFailure() << "lengths " << left.size() << " and " << right.size();
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(left[i]) && std::isnan(right[i])) {
        continue;
      }
    }
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bits are what is compared
    if (std::memcmp(&left[i], &right[i], sizeof(T)) != 0) {
      return testing::AssertionFailure()
             << "element " << i << " of " << left.size() << ": " << left[i] << " and " << right[i];
    }
  }
  return testing::AssertionSuccess();
}

template <class T>
testing::AssertionResult same_bits(std::span<T> left, std::span<T> right) {
  return same_bits(std::span<const T>(left), std::span<const T>(right));
}

inline testing::AssertionResult same_bits(double left, double right) {
  return same_bits(std::span<const double>(&left, 1), std::span<const double>(&right, 1));
}

// Floats of all magnitudes that a run can meet: mostly normal(0, 1) times a power of ten in [low,
// high], some zeros, some subnormals.
inline std::vector<float> mixed_floats(std::mt19937_64& random,
                                       std::int64_t elements,
                                       int low_exponent,
                                       int high_exponent) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(low_exponent, high_exponent);
  std::uniform_int_distribution<int> kind(0, 49);
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& value : values) {
    const int k = kind(random);
    value = normal(random) * std::pow(10.0F, static_cast<float>(exponent(random)));
    if (k == 0) {
      value = 0.0F;
    } else if (k == 1) {
      value *= 1e-38F;
    }
  }
  return values;
}

inline std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = bf16_from_float(values[i]);
  }
  return result;
}

}  // namespace headrace::optim
