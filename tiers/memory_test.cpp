// Arenas: exact size, alignment, guard pages, refusal before the system kills. Extents and leases:
// what they prove, and the programmer's errors that they catch.
#include "tiers/memory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/system.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::unique_ptr<Arena> make_arena(std::size_t bytes) {
  auto arena = Arena::create(Tier::kHost, "test", bytes);
  EXPECT_TRUE(arena.has_value()) << format_error(arena.error(), true);
  return std::move(*arena);
}

TEST(Arena, ItHasTheSizeAskedForRoundedUpToAPageAndIsZeroed) {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const std::size_t bytes : {std::size_t{1},
                                  page_bytes - 1,
                                  page_bytes,
                                  page_bytes + 1,
                                  2 * kMiB - 1,
                                  2 * kMiB,
                                  2 * kMiB + 1,
                                  7 * kMiB + 5000}) {
    const auto arena = make_arena(bytes);
    EXPECT_EQ(arena->bytes(), (bytes + page_bytes - 1) / page_bytes * page_bytes);
    EXPECT_EQ(arena->stats().bytes, arena->bytes());
    const std::size_t alignment = bytes > 2 * kMiB - page_bytes ? 2 * kMiB : page_bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->data()) % alignment, 0U) << bytes;
    for (std::size_t at = 0; at < arena->bytes(); ++at) {
      ASSERT_EQ(arena->data()[at], std::byte{0});
    }
    std::memset(arena->data(), 0xff, arena->bytes());
  }
}

TEST(Arena, AnEmptyArenaIsLegal) {
  const auto arena = make_arena(0);
  EXPECT_EQ(arena->data(), nullptr);
  EXPECT_EQ(arena->bytes(), 0U);
  EXPECT_EQ(arena->stats().huge_page_bytes, 0U);
}

TEST(Arena, ItKeepsItsNameAndTier) {
  const auto arena = Arena::create(Tier::kDevice, "device", 4096);
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ((*arena)->name(), "device");
  EXPECT_EQ((*arena)->tier(), Tier::kDevice);
  EXPECT_STREQ(tier_name(Tier::kDevice), "device");
  EXPECT_STREQ(tier_name(Tier::kHost), "host");
  EXPECT_STREQ(tier_name(Tier::kNvme), "nvme");
}

TEST(Arena, AllOfItIsResidentWhenItIsMadeAndGivenBackWhenItEnds) {
#ifdef HEADRACE_SANITIZED
  GTEST_SKIP() << "a sanitizer's shadow is resident memory too";
#endif
  constexpr std::size_t kBytes = 64 * kMiB;
  const auto used = [] {
    const auto memory = process_memory();
    EXPECT_TRUE(memory.has_value());
    return static_cast<std::int64_t>(memory->used_bytes());
  };
  const std::int64_t before = used();
  auto arena = make_arena(kBytes);
  const std::int64_t grown = used() - before;
  // The kernel's counters are per thread and folded in batches: within a MiB.
  EXPECT_GE(grown, static_cast<std::int64_t>(kBytes - kMiB));
  EXPECT_LE(grown, static_cast<std::int64_t>(kBytes + kMiB))
      << "alignment costs address space only";
  std::memset(arena->data(), 1, arena->bytes());
  EXPECT_LE(used() - before, static_cast<std::int64_t>(kBytes + kMiB)) << "nothing is added later";
  arena.reset();
  EXPECT_LE(used() - before, static_cast<std::int64_t>(kMiB));
}

TEST(Arena, ItSaysHowManyHugePagesItGot) {
  const auto arena = make_arena(16 * kMiB + 4096);
  const ArenaStats stats = arena->stats();
  EXPECT_LE(stats.huge_page_bytes, 16 * kMiB);
  EXPECT_EQ(stats.huge_page_bytes % (2 * kMiB), 0U);
  std::cout << "huge pages: " << stats.huge_page_bytes << " of " << stats.bytes << " bytes"
            << (stats.hugetlb ? " (reserved pool)\n" : " (transparent)\n");
}

TEST(Arena, WhatTheSystemHasNoMemoryForIsRefusedWithAReason) {
  for (const std::size_t bytes : {std::size_t{1} << 45, ~std::size_t{0}}) {
    const auto arena = Arena::create(Tier::kHost, "weights", bytes);
    ASSERT_FALSE(arena.has_value());
    EXPECT_EQ(arena.error().code, ExitCode::kDoesNotFit);
    EXPECT_NE(arena.error().what.find("'weights'"), std::string::npos) << arena.error().what;
    EXPECT_FALSE(arena.error().why.empty());
    EXPECT_NE(arena.error().hint.find("tiers.host_memory"), std::string::npos);
  }
  const auto device = Arena::create(Tier::kDevice, "device", std::size_t{1} << 45);
  ASSERT_FALSE(device.has_value());
  EXPECT_NE(device.error().hint.find("tiers.device_memory"), std::string::npos);
}

TEST(ArenaDeathTest, TouchingThePagesBesideItIsFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::size_t bytes : {std::size_t{4096}, 2 * kMiB}) {
    const auto arena = make_arena(bytes);
    volatile std::byte* data = arena->data();
    EXPECT_DEATH(data[arena->bytes()] = std::byte{1}, "");
    EXPECT_DEATH(*(data - 1) = std::byte{1}, "");
  }
}

class LeaseTest : public ::testing::Test {
 protected:
  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  Extent extent_{Tier::kHost, memory_, "slot 0"};
};

TEST_F(LeaseTest, AnExtentHoldsNothingUntilAWriteLeaseSaysWhat) {
  EXPECT_EQ(extent_.content(), 0U);
  Lease write(extent_, 7, Lease::Mode::kWrite);
  EXPECT_EQ(extent_.content(), 7U);
  EXPECT_EQ(extent_.leases(), 1);
  EXPECT_EQ(write.memory().data(), memory_.data());
  Lease read(extent_, 7, Lease::Mode::kRead);
  EXPECT_EQ(extent_.leases(), 2);
  write.release_after(Event());
  read.release_after(Event());
  EXPECT_EQ(extent_.leases(), 0);
  EXPECT_EQ(extent_.content(), 7U) << "what it holds stays until something else is written";
  Lease next(extent_, 8, Lease::Mode::kWrite);
  next.release_after(Event());
  EXPECT_EQ(extent_.content(), 8U);
}

TEST_F(LeaseTest, AReleaseKeepsItsEvent) {
  Runtime runtime;
  ThreadQueue queue(runtime, "compute", {});
  queue.submit({.name = "use"}, [] {});
  Lease lease(extent_, 7, Lease::Mode::kWrite);
  lease.release_after(queue.record());
  EXPECT_EQ(lease.released().queue(), &queue);
  EXPECT_EQ(lease.released().ticket(), 1U);
  ASSERT_TRUE(lease.released().wait_host().has_value());
}

TEST_F(LeaseTest, AMovedFromLeaseHoldsNothing) {
  Lease first(extent_, 7, Lease::Mode::kWrite);
  Lease second(std::move(first));
  EXPECT_EQ(extent_.leases(), 1);
  Lease third;
  third = std::move(second);
  EXPECT_EQ(extent_.leases(), 1);
  EXPECT_EQ(third.memory().size(), 64U);
  third.release_after(Event());
  EXPECT_EQ(extent_.leases(), 0);
}

using LeaseDeathTest = LeaseTest;

TEST_F(LeaseDeathTest, ALeaseMustBeReleased) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH({ const Lease lease(extent_, 7, Lease::Mode::kWrite); }, "destroyed unreleased");
}

TEST_F(LeaseDeathTest, ALeaseIsNotOverwritten) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Lease lease(extent_, 7, Lease::Mode::kWrite);
  EXPECT_DEATH(lease = Lease(), "overwritten unreleased");
  lease.release_after(Event());
}

TEST_F(LeaseDeathTest, ALeaseIsReleasedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Lease lease(extent_, 7, Lease::Mode::kWrite);
  lease.release_after(Event());
  EXPECT_DEATH(lease.release_after(Event()), "released once");
  EXPECT_DEATH((void)lease.memory(), "holds nothing");
}

TEST_F(LeaseDeathTest, AReadNeedsWhatIsThere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Lease(extent_, 7, Lease::Mode::kRead), "does not hold");
  Lease lease(extent_, 7, Lease::Mode::kWrite);
  lease.release_after(Event());
  EXPECT_DEATH(Lease(extent_, 8, Lease::Mode::kRead), "does not hold");
}

TEST_F(LeaseDeathTest, AWriteNeedsThatNobodyHoldsSomethingElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Lease lease(extent_, 7, Lease::Mode::kWrite);
  EXPECT_DEATH(Lease(extent_, 8, Lease::Mode::kWrite), "leased for something else");
  lease.release_after(Event());
}

TEST(ExtentDeathTest, AnExtentOutlivesItsLeases) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        std::vector<std::byte> memory(64);
        Lease lease;
        const auto extent = std::make_unique<Extent>(Tier::kHost, memory, "slot");
        lease = Lease(*extent, 7, Lease::Mode::kWrite);
        // extent ends here, before lease
      },
      "destroyed while leased");
}

}  // namespace
}  // namespace headrace::tiers
