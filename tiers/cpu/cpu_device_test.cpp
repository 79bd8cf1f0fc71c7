// The CPU device both ways: what aliasing refuses, what copies do, what a cap promises at least.
#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "core/float_environment.hpp"
#include "tiers/device.hpp"
#include "tiers/race_checker.hpp"
#include "tiers/test_support.hpp"

namespace headrace::tiers {
namespace {

std::unique_ptr<Device> make_device(Runtime& runtime, const CpuDeviceOptions& options) {
  auto device = make_cpu_device(runtime, options);
  EXPECT_TRUE(device.has_value()) << format_error(device.error(), true);
  return std::move(*device);
}

TEST(CpuDevice, AliasingIsTheDefaultAndComputes) {
  Runtime runtime;
  const auto device = make_device(runtime, {});
  EXPECT_EQ(device->name(), "cpu");
  EXPECT_TRUE(device->aliases_host());
  int value = 0;
  device->compute().submit({.name = "add"}, [&value] { value += 3; });
  ASSERT_TRUE(device->compute().drain().has_value());
  EXPECT_EQ(value, 3);
}

TEST(CpuDevice, ASeparateDeviceCopiesInBothDirectionsInOrder) {
  Runtime runtime;
  const auto device = make_device(runtime, {.aliases_host = false});
  EXPECT_FALSE(device->aliases_host());
  std::vector<std::uint64_t> host(100'003);
  std::iota(host.begin(), host.end(), 1);
  std::vector<std::uint64_t> on_device(host.size());
  std::vector<std::uint64_t> back(host.size());
  const std::size_t bytes = host.size() * sizeof(std::uint64_t);
  device->copy(device->h2d(), "weights", 1, on_device.data(), host.data(), bytes);
  device->compute().wait(device->h2d().record());
  device->compute().submit({.name = "double"}, [data = on_device.data(), count = host.size()] {
    for (std::size_t i = 0; i < count; ++i) {
      data[i] *= 2;
    }
  });
  device->d2h().wait(device->compute().record());
  device->copy(device->d2h(), "gradient", 2, back.data(), on_device.data(), bytes);
  ASSERT_TRUE(device->d2h().drain().has_value());
  for (std::size_t i = 0; i < host.size(); ++i) {
    ASSERT_EQ(back[i], 2 * host[i]);
  }
}

TEST(CpuDevice, WhatComputeStandsStillForIsWantedNow) {
  Runtime runtime;
  const auto device = make_device(runtime, {.aliases_host = false});
  HeldQueue drive(runtime, "drive");
  const Event read = drive.hold();
  const Event prefetch = drive.hold();
  device->h2d().wait(read);
  device->compute().wait(device->h2d().record());
  device->h2d().wait(prefetch);
  drive.wait_until_expedited(read);
  EXPECT_FALSE(drive.expedited(prefetch));
  drive.finish_all();
  ASSERT_TRUE(device->compute().drain().has_value());
  ASSERT_TRUE(device->h2d().drain().has_value());
}

TEST(CpuDevice, ACopyOfNothingIsAnOperation) {
  Runtime runtime;
  const auto device = make_device(runtime, {.aliases_host = false, .h2d_bytes_per_s = 1e6});
  device->copy(device->h2d(), "nothing", 1, nullptr, nullptr, 0);
  EXPECT_EQ(device->h2d().record().ticket(), 1U);
  EXPECT_TRUE(device->h2d().drain().has_value());
}

TEST(CpuDevice, CopiesDeclareTheirSpans) {
  RaceChecker races;
  Runtime runtime;
  runtime.races = &races;
  std::vector<std::byte> host(4096);
  std::vector<std::byte> on_device(4096);
  const auto device = make_device(runtime, {.aliases_host = false});
  device->copy(device->h2d(), "in", 1, on_device.data(), host.data(), 4096);
  device->d2h().wait(device->h2d().record());
  device->copy(device->d2h(), "out", 2, host.data(), on_device.data(), 4096);
  EXPECT_EQ(races.race_count(), 0U);
  poll(device->d2h().record());
  device->copy(device->h2d(), "again", 3, on_device.data(), host.data(), 4096);  // no wait
  EXPECT_EQ(races.race_count(), 2U) << "reads what 'out' writes, writes what it reads";
}

TEST(CpuDevice, ACapBoundsEveryCopyAndCopiesInARow) {
  using Seconds = std::chrono::duration<double>;
  Runtime runtime;
  constexpr double kCap = 1e8;
  const auto device = make_device(
      runtime, {.aliases_host = false, .h2d_bytes_per_s = kCap, .d2h_bytes_per_s = 2 * kCap});
  std::vector<std::byte> source(std::size_t{1} << 20);
  std::vector<std::byte> target(source.size());
  const auto bytes = static_cast<double>(source.size());
  // One, then several in a row, in each direction.
  for (Queue* link : {&device->h2d(), &device->d2h()}) {
    const double cap = link == &device->h2d() ? kCap : 2 * kCap;
    for (const int count : {1, 4}) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) {
        device->copy(*link, "copy", 1, target.data(), source.data(), source.size());
      }
      ASSERT_TRUE(link->drain().has_value());
      const Seconds taken = std::chrono::steady_clock::now() - begin;
      EXPECT_GE(taken.count(), count * bytes / cap);
    }
  }
  // A copy that was submitted early, but had to wait for its source, still takes its time.
  Gate gate;
  gate.block(device->compute());
  device->h2d().wait(device->compute().record());
  device->copy(device->h2d(), "late", 1, target.data(), source.data(), source.size());
  // tidy_test: time must pass for the fact that is tested; nothing is waited for.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // tidy_test: see above
  const auto begin = std::chrono::steady_clock::now();
  gate.open();
  ASSERT_TRUE(device->h2d().drain().has_value());
  const Seconds taken = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(taken.count(), bytes / kCap);
}

TEST(CpuDevice, TheComputeQueueHasItsTeamAndEveryMemberFlushesSubnormals) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "libgomp is not instrumented: ThreadSanitizer does not see it order a team";
#endif
  for (const int threads : {1, 3}) {
    Runtime runtime;
    const auto device = make_device(runtime, {.compute_threads = threads});
    int max_threads = 0;
    int is_dynamic = 1;
    std::atomic<int> members{0};
    std::atomic<int> flushing{0};
    device->compute().submit({.name = "team"}, [&max_threads, &is_dynamic, &members, &flushing] {
      max_threads = omp_get_max_threads();
      is_dynamic = omp_get_dynamic();
#pragma omp parallel
      {
        members.fetch_add(1);
        flushing.fetch_add(flush_to_zero_is_set() ? 1 : 0);
      }
    });
    ASSERT_TRUE(device->compute().drain().has_value());
    EXPECT_EQ(max_threads, threads);
    EXPECT_EQ(is_dynamic, 0);
    EXPECT_EQ(members.load(), threads);
    EXPECT_EQ(flushing.load(), threads);
  }
}

TEST(CpuDevice, ComputeHoldsTheCores) {
  Runtime runtime;
  Cores cores;
  const auto device = make_device(runtime, {.cores = &cores});
  bool free_while_running = true;
  device->compute().submit({.name = "try"}, [&cores, &free_while_running] {
    // Another thread's attempt, as the update queue would make it.
    std::thread other([&cores, &free_while_running] { free_while_running = cores.is_free(); });
    other.join();
  });
  ASSERT_TRUE(device->compute().drain().has_value());
  EXPECT_FALSE(free_while_running);
  EXPECT_TRUE(cores.is_free());
}

TEST(CpuDevice, WrongOptionsAreErrors) {
  Runtime runtime;
  EXPECT_FALSE(make_cpu_device(runtime, {.compute_threads = 0}).has_value());
  EXPECT_FALSE(
      make_cpu_device(runtime, {.aliases_host = false, .h2d_bytes_per_s = 0.0}).has_value());
  EXPECT_FALSE(
      make_cpu_device(runtime, {.aliases_host = false, .d2h_bytes_per_s = -1.0}).has_value());
  const auto capped = make_cpu_device(runtime, {.h2d_bytes_per_s = 1e9});
  ASSERT_FALSE(capped.has_value());
  EXPECT_NE(capped.error().what.find("no links to cap"), std::string::npos);
}

TEST(CpuDeviceDeathTest, AnAliasingDeviceCopiesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Runtime runtime;
  const auto device = make_device(runtime, {});
  std::vector<std::byte> memory(64);
  EXPECT_DEATH(device->copy(device->h2d(), "copy", 1, memory.data(), memory.data() + 32, 32),
               "copies nothing");
}

TEST(CpuDeviceDeathTest, CopiesGoThroughALink) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Runtime runtime;
  const auto device = make_device(runtime, {.aliases_host = false});
  std::vector<std::byte> memory(64);
  EXPECT_DEATH(device->copy(device->compute(), "copy", 1, memory.data(), memory.data() + 32, 32),
               "through a link");
}

}  // namespace
}  // namespace headrace::tiers
