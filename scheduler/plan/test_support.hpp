// What the planner's tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace headrace::plan {

// Of so many random cases one is tried: sanitizers look at memory, the properties need numbers.
#if defined(HEADRACE_SANITIZED)
inline constexpr int kPart = 20;
#else
inline constexpr int kPart = 1;
#endif

// HEADRACE_SEED, or one of the moment; printed and recorded.
inline std::uint64_t test_seed() {
  const char* text = std::getenv("HEADRACE_SEED");
  const std::uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  std::cerr << "HEADRACE_SEED=" << seed << "\n";
  return seed;
}

}  // namespace headrace::plan
