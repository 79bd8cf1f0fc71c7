// The ring's set-up, refused rings, and the pacer of caps.
#include "tiers/nvme/ring.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <random>
#include <string_view>

#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/pacer.hpp"
#include "tiers/nvme/test_support.hpp"
#include "tiers/nvme/uring_facts.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::expect_contains;

TEST(Ring, EveryChoiceOfFlagsGivesARingThatWorks) {
  for (const unsigned flags : ring_flag_choices()) {
    const std::array<unsigned, 3> choices = {1U << 31U, 1U << 30U, flags};  // two unknown ones
    const Result<std::unique_ptr<Ring>> ring = Ring::create(4, choices);
    if (!ring) {
      continue;  // an older kernel
    }
    EXPECT_EQ((*ring)->flags() & flags, flags);
    EXPECT_GT((*ring)->memory_bytes(), 0U);
    io_uring* raw = (*ring)->get();
    io_uring_sqe* entry = ::io_uring_get_sqe(raw);
    ASSERT_NE(entry, nullptr);
    ::io_uring_prep_nop(entry);
    ::io_uring_sqe_set_data64(entry, 77);
    ASSERT_EQ(::io_uring_submit_and_wait(raw, 1), 1);
    io_uring_cqe* completion = nullptr;
    ASSERT_EQ(::io_uring_peek_cqe(raw, &completion), 0);
    EXPECT_EQ(completion->user_data, 77U);
    ::io_uring_cqe_seen(raw, completion);
  }
  EXPECT_EQ(ring_flag_choices().back(), 0U) << "the last choice is every kernel's";
}

TEST(Ring, EveryReasonForNoRingSaysWhatToDo) {
  expect_contains(ring_setup_error(EPERM).hint, "kernel.io_uring_disabled");
  expect_contains(ring_setup_error(ENOSYS).hint, "Linux 5.6");
  expect_contains(ring_setup_error(ENOMEM).hint, "ulimit -l");
  expect_contains(ring_setup_error(EMFILE).hint, "ulimit -n");
  expect_contains(ring_setup_error(EBADF).why, "EBADF");
}

// From now on io_uring_setup fails with `error`, for this process.
bool forbid_io_uring(int error) {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter = {.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(Ring, TheFactsAreThoseOfARingOrItsError) {
  const auto facts = uring_facts();
  const auto ring = Ring::create(8);
  ASSERT_EQ(facts.has_value(), ring.has_value());
  if (ring) {
    EXPECT_EQ(facts->deferred, ((*ring)->flags() & IORING_SETUP_DEFER_TASKRUN) != 0);
    EXPECT_EQ(facts->cooperative, ((*ring)->flags() & IORING_SETUP_COOP_TASKRUN) != 0);
    EXPECT_GE(facts->single_issuer, facts->deferred) << "it needs the other";
  }
}

TEST(Ring, WhereTheSystemForbidsItTheEngineTakesThreads) {
  const testing::TestFolder folder;
  const auto store = testing::make_store(folder.path());
  for (const int error : {EPERM, ENOSYS}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!forbid_io_uring(error)) {
        ::_exit(77);
      }
      const auto ring = make_uring_backend(store->file(0), {});
      Runtime runtime;
      const auto engine = IoEngine::create(runtime, *store, 0, {});
      ::_exit(!ring && ring.error().hint == ring_setup_error(error).hint && engine &&
                      std::string_view((*engine)->facts().name) == "threads"
                  ? 0
                  : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
      GTEST_SKIP() << "seccomp filters cannot be set here";
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

TEST(Pacer, WithoutARateEverythingStartsAtOnce) {
  Pacer pacer;
  pacer.start(0, std::uint64_t{1} << 40U);
  EXPECT_EQ(pacer.delay_ns(0), 0);
}

TEST(Pacer, KeepsAnyStretchOfTimeBelowItsRateWhateverTheTimersDo) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 50; ++round) {
    constexpr double kRate = 1e9;  // bytes/s: a byte is a nanosecond
    Pacer pacer(kRate);
    std::int64_t now = 1'000'000'000;
    const std::int64_t begin = now;
    std::int64_t bytes = 0;
    std::int64_t largest = 0;
    for (int i = 0; i < 500; ++i) {
      now += pacer.delay_ns(now) + static_cast<std::int64_t>(random() % 3'000'000);  // late timers
      ASSERT_EQ(pacer.delay_ns(now), 0);
      const auto size = static_cast<std::int64_t>(random() % 2'000'000);
      pacer.start(now, static_cast<std::uint64_t>(size));
      bytes += size;
      largest = std::max(largest, size);
      ASSERT_LE(bytes, now - begin + Pacer::kBurstNs + largest);
    }
  }
}

TEST(Pacer, MakesUpForTimersThatAreALittleLate) {
  Pacer pacer(1e9);
  std::int64_t now = 1'000'000'000;
  pacer.start(now, 1);
  const std::int64_t begin = now;
  std::int64_t bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    now += pacer.delay_ns(now) + 50'000;
    pacer.start(now, 1'000'000);
    bytes += 1'000'000;
  }
  EXPECT_GT(static_cast<double>(bytes), 0.98 * static_cast<double>(now - begin));
}

}  // namespace
}  // namespace headrace::tiers::nvme
