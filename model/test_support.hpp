// What the tests of this folder share: a queue under the race checker, memory, seeds, temporary
// folders.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "scheduler/exec/unit.hpp"
#include "tiers/queue.hpp"
#include "tiers/race_checker.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::model {

// Of HEADRACE_SEED, or fixed; printed once a process.
inline std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("HEADRACE_SEED");
    const std::uint64_t value = text == nullptr ? 20240807 : std::strtoull(text, nullptr, 10);
    std::printf("HEADRACE_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

inline std::vector<float> random_floats(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Largest difference, relative to the largest expected magnitude.
inline double relative_error(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(
        difference, std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])));
  }
  return largest == 0 ? difference : difference / largest;
}

// Bytes aligned as a workspace is, filled with NaNs so that a read of what was not written shows.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : lines_((bytes + 63) / 64), bytes_(bytes) {
    std::memset(lines_.data(), 0xff, lines_.size() * sizeof(Line));
  }

  [[nodiscard]] std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span(lines_)).first(bytes_);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  std::vector<Line> lines_;
  std::size_t bytes_;
};

// A queue whose operations are checked for races. finish() waits and expects neither fault nor
// race.
class QueueBench {
 public:
  QueueBench() {
    runtime_.races = &races_;
    queue_ = std::make_unique<tiers::ThreadQueue>(runtime_, "test", tiers::ThreadQueueOptions{});
  }

  [[nodiscard]] exec::Call call(std::span<std::byte> workspace = {}) {
    return {.queue = *queue_, .workspace = workspace, .id = 0};
  }

  void finish() {
    const Status status = queue_->record().wait_host();
    EXPECT_TRUE(status) << (status ? "" : format_error(status.error(), true));
    for (const tiers::Race& race : races_.races()) {
      ADD_FAILURE() << race.text;
    }
  }

 private:
  tiers::RaceChecker races_;
  tiers::Runtime runtime_;
  std::unique_ptr<tiers::ThreadQueue> queue_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "headrace_model_XXXXXX";
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    path_ = pattern;
  }

  ~TemporaryFolder() {
    std::error_code ignored;  // what is left is the system's to clean
    std::filesystem::remove_all(path_, ignored);
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The whole text of an error and of those collected with it.
inline std::string text_of(const Error& error) {
  return format_error(error, true);
}

}  // namespace headrace::model
