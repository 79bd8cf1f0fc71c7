// Timestamps of a stream: the arithmetic by itself, and on the emulated runtime, whose device has a
// clock that is not the host's, what they say of work that runs late and of calls that fail.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "core/trace.hpp"
#include "tiers/gpu/cuda_queue.hpp"
#include "tiers/gpu/emulated/runtime.hpp"
#include "tiers/gpu/stream_clock.hpp"
#include "tiers/gpu/test_machine.hpp"
#include "tiers/test_support.hpp"
#include "tiers/thread_queue.hpp"

namespace headrace::tiers::gpu {
namespace {

constexpr std::int64_t kUs = 1000;
constexpr std::int64_t kMs = 1'000'000;
constexpr double kNsPerMs = 1e6;

// As cudaEventElapsedTime gives it.
double as_float_ms(std::int64_t ns) {
  return static_cast<double>(static_cast<float>(static_cast<double>(ns) / kNsPerMs));
}

TEST(StreamClock, ADayOfTimesKeepsEveryIntervalToAMicrosecond) {
  std::mt19937_64 random(test_seed());
  std::uniform_int_distribution<std::int64_t> interval(0, 100 * kMs);
  StreamClock clock;
  std::int64_t true_ns = 0;
  std::int64_t last_ns = clock.begin({.issued_ns = 0, .seen_ns = 0});
  constexpr std::int64_t kDay = std::int64_t{24} * 3600 * 1000 * kMs;
  while (true_ns < kDay) {
    const std::int64_t passed = interval(random);
    true_ns += passed;
    const std::int64_t time_ns = clock.next(
        as_float_ms(passed), {.issued_ns = 0, .seen_ns = std::numeric_limits<std::int64_t>::max()});
    ASSERT_LE(std::abs(time_ns - last_ns - passed), kUs);
    last_ns = time_ns;
  }
  // From one base an interval of a millisecond would have been lost altogether.
  EXPECT_EQ(as_float_ms(kDay + kMs), as_float_ms(kDay));
}

// The first time is seen 50 ms after it was; later ones some time after they were. What comes out
// is off by no more than the least delay, and where the clocks drift apart by no more than a delay.
TEST(StreamClock, ABadBeginAndADriftingClockArePulledBackToWhatTheHostSaw) {
  const std::uint64_t seed = test_seed();
  constexpr std::int64_t kDelayMin = 5 * kUs;
  constexpr std::int64_t kDelayMax = 200 * kUs;
  for (const double rate : {0.999, 1.0, 1.001}) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<std::int64_t> delay(kDelayMin, kDelayMax);
    StreamClock clock;
    std::int64_t last_ns = clock.begin({.issued_ns = -kDelayMin, .seen_ns = 50 * kMs});
    std::int64_t true_ns = 50 * kMs;  // of the second
    std::int64_t passed_ns = true_ns;
    for (int i = 0; i < 10'000; ++i) {
      const StreamClock::Bounds bounds{.issued_ns = true_ns - delay(random),
                                       .seen_ns = true_ns + delay(random)};
      const auto device_ns = static_cast<std::int64_t>(static_cast<double>(passed_ns) * rate);
      const std::int64_t time_ns = clock.next(as_float_ms(device_ns), bounds);
      ASSERT_GE(time_ns, last_ns);
      ASSERT_GE(time_ns, bounds.issued_ns);
      ASSERT_LE(time_ns, bounds.seen_ns);
      last_ns = time_ns;
      passed_ns = kMs;
      true_ns += passed_ns;
    }
    if (rate == 1.0) {
      EXPECT_NEAR(
          static_cast<double>(last_ns), static_cast<double>(true_ns - kMs), 2.0 * kDelayMin);
    }
  }
}

class CudaTimestamps : public ::testing::Test {
 protected:
  // A fresh machine with a compute stream on which plain bodies are kernels.
  void make(std::uint64_t seed) {
    end();
    begin_test_machine(seed);
    runtime_ = std::make_unique<Runtime>();
    auto poller = StreamPoller::create(
        *runtime_,
        {.queues = {{.name = "compute", .capacity = 8, .launch_body = &emulated::launch_body}}});
    ASSERT_TRUE(poller.has_value());
    poller_ = std::move(*poller);
    freeze_test_machine();
  }

  void end() {
    if (poller_ != nullptr) {
      thaw_test_machine();
      poller_.reset();
      end_test_machine();
    }
  }

  ~CudaTimestamps() override { end(); }

  Queue& compute() { return poller_->queue(0); }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<StreamPoller> poller_;
};

// A kernel still runs when the poller comes to the wait, and is over after what is waited for: the
// stream never stood still.
TEST_F(CudaTimestamps, WorkAheadOfAWaitIsNotAStall) {
  const std::uint64_t first = test_seed();
  for (std::uint64_t seed = first; seed < first + 30; ++seed) {
    make(seed);
    ThreadQueue host(*runtime_, "host", {});
    std::int64_t before_ns = 0, host_over_ns = 0, kernel_over_ns = 0, begin_ns = 0, end_ns = 0;
    compute().timestamp(&before_ns);
    ASSERT_TRUE(compute().drain().has_value());
    host.submit({.name = "host work"}, [&] { host_over_ns = TraceRecorder::now_ns(); });
    const Event host_work = host.record();
    Gate gate;
    compute().submit({.name = "kernel"}, [&] {
      gate.pass();
      poll(host_work);
      kernel_over_ns = TraceRecorder::now_ns();
    });
    compute().timestamp(&begin_ns);
    compute().wait(host_work);
    compute().timestamp(&end_ns);
    gate.open();
    ASSERT_TRUE(compute().drain().has_value());
    EXPECT_LE(host_over_ns, kernel_over_ns);
    // The device's clock loses a thousandth at most.
    const std::int64_t loss_ns = (kernel_over_ns - before_ns) / 1000 + kUs;
    EXPECT_LE(kernel_over_ns - loss_ns, begin_ns) << "seed " << seed;
    EXPECT_LE(begin_ns, end_ns);
  }
}

TEST_F(CudaTimestamps, AClockThatGainsOrLosesStaysWithinTheHosts) {
  constexpr std::uint64_t kRates = 2001;  // of the emulated device's clock, by seed
  for (std::uint64_t rate = 0; rate < kRates; rate += kRates / 2) {
    for (std::uint64_t mood = 0; mood < 3; ++mood) {
      make(rate + mood * kRates);
      for (int i = 0; i < 200; ++i) {
        std::int64_t time_ns = 0;
        const std::int64_t before_ns = TraceRecorder::now_ns();
        compute().timestamp(&time_ns);
        ASSERT_TRUE(compute().drain().has_value());
        ASSERT_LE(before_ns, time_ns);
        ASSERT_LE(time_ns, TraceRecorder::now_ns());
      }
    }
  }
}

TEST_F(CudaTimestamps, AnErrorOfEachOfItsCallsIsTheRunsAndNamesIt) {
  for (const char* call : {"cudaEventRecord", "cudaEventQuery", "cudaEventElapsedTime"}) {
    make(test_seed());
    std::int64_t first_ns = 0, second_ns = 0;
    emulated::fail_call_of(call, 0, cudaErrorUnknown);
    compute().timestamp(&first_ns);
    compute().timestamp(&second_ns);
    const Status status = compute().drain();
    ASSERT_FALSE(status.has_value()) << call;
    const std::string text = format_error(status.error(), true);
    EXPECT_NE(text.find(std::string(call) + ": "), std::string::npos) << text;
    EXPECT_NE(text.find("'timestamp' (#0 on compute)"), std::string::npos) << text;
    EXPECT_EQ(second_ns, 0) << "of what failed there is no time";
  }
}

}  // namespace
}  // namespace headrace::tiers::gpu
