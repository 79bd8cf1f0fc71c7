// The emulated runtime itself: the rules of CUDA's streams and events hold under every seed, and
// each fault that it is there to find is found when planted.
#include "tiers/gpu/emulated/runtime.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/trace.hpp"
#include "tiers/memory.hpp"
#include "tiers/test_support.hpp"

namespace headrace::tiers::gpu::emulated {
namespace {

constexpr std::size_t kBytes = 1024;
constexpr std::size_t kBuffers = 4;
constexpr std::uint64_t kSeeds = 60;

// Two streams, four events and two with timing, four buffers on either side, by the raw calls of
// CUDA.
class Machine {
 public:
  explicit Machine(std::uint64_t seed) {
    start({.seed = seed});
    auto arena = Arena::create(Tier::kHost, "test", kBuffers * kBytes);
    EXPECT_TRUE(arena.has_value());
    host_ = std::move(*arena);
    EXPECT_EQ(cudaHostRegister(host_->data(), host_->bytes(), cudaHostRegisterDefault),
              cudaSuccess);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, kBuffers * kBytes), cudaSuccess);
    device_ = static_cast<std::byte*>(memory);
    for (cudaStream_t& stream : streams) {
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    }
    for (cudaEvent_t& event : events) {
      EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    }
    for (cudaEvent_t& event : timing) {
      EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
    }
    freeze();
  }

  ~Machine() {
    thaw();
    for (cudaEvent_t event : events) {
      (void)cudaEventDestroy(event);
    }
    for (cudaEvent_t event : timing) {
      (void)cudaEventDestroy(event);
    }
    for (cudaStream_t stream : streams) {
      (void)cudaStreamDestroy(stream);
    }
    (void)cudaFree(device_);
    (void)cudaHostUnregister(host_->data());
    EXPECT_EQ(leaks(), std::vector<std::string>{});
  }

  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] std::byte* host(std::size_t buffer) const {
    return host_->data() + buffer * kBytes;
  }

  [[nodiscard]] std::byte* device(std::size_t buffer) const { return device_ + buffer * kBytes; }

  void fill(std::size_t buffer, int value) const { std::memset(host(buffer), value, kBytes); }

  // The buffer's value, if all its bytes are alike.
  [[nodiscard]] int value(std::size_t buffer) const {
    const std::byte* data = host(buffer);
    const bool alike =
        std::all_of(data, data + kBytes, [data](std::byte byte) { return byte == *data; });
    return alike ? static_cast<int>(*data) : -1;
  }

  [[nodiscard]] cudaError_t to_device(std::size_t from, std::size_t to, std::size_t stream) const {
    return cudaMemcpyAsync(
        device(to), host(from), kBytes, cudaMemcpyHostToDevice, streams.at(stream));
  }

  [[nodiscard]] cudaError_t to_host(std::size_t from, std::size_t to, std::size_t stream) const {
    return cudaMemcpyAsync(
        host(to), device(from), kBytes, cudaMemcpyDeviceToHost, streams.at(stream));
  }

  // Until everything of the stream has run.
  void finish(std::size_t stream) const {
    EXPECT_EQ(cudaEventRecord(events.at(3), streams.at(stream)), cudaSuccess);
    cudaError_t error = cudaErrorNotReady;
    while (error == cudaErrorNotReady) {
      error = cudaEventQuery(events.at(3));
    }
    EXPECT_EQ(error, cudaSuccess);
  }

  std::array<cudaStream_t, 2> streams = {};
  std::array<cudaEvent_t, 4> events = {};
  std::array<cudaEvent_t, 2> timing = {};

 private:
  std::unique_ptr<Arena> host_;
  std::byte* device_ = nullptr;
};

bool violated(const std::string& text) {
  const std::vector<std::string> found = violations();
  return std::any_of(found.begin(), found.end(), [&text](const std::string& violation) {
    return violation.find(text) != std::string::npos;
  });
}

// Buffer 0 goes to the device on one stream and comes back to buffer 1 on the other.
int round_trip(std::uint64_t seed, bool with_wait) {
  const Machine machine(seed);
  machine.fill(0, 7);
  EXPECT_EQ(machine.to_device(0, 2, 0), cudaSuccess);
  if (with_wait) {
    EXPECT_EQ(cudaEventRecord(machine.events[0], machine.streams[0]), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(machine.streams[1], machine.events[0], 0), cudaSuccess);
  }
  EXPECT_EQ(machine.to_host(2, 1, 1), cudaSuccess);
  machine.finish(1);
  const int value = machine.value(1);
  machine.finish(0);
  EXPECT_EQ(violations(), std::vector<std::string>{});
  return value;
}

TEST(EmulatedCuda, AWaitOrdersStreamsUnderEverySeed) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    ASSERT_EQ(round_trip(seed, true), 7) << "seed " << seed;
  }
}

TEST(EmulatedCuda, AMissingWaitIsLateEnoughToShow) {
  std::uint64_t wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    wrong += round_trip(seed, false) != 7 ? 1 : 0;
  }
  EXPECT_GE(wrong, kSeeds / 4);
}

TEST(EmulatedCuda, AWaitIsForTheRecordThatWasThereWhenItWasMade) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Machine machine(seed);
    machine.fill(0, 1);
    machine.fill(1, 2);
    EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
    // An event that has never been recorded holds nothing back.
    EXPECT_EQ(cudaStreamWaitEvent(machine.streams[0], machine.events[1], 0), cudaSuccess);
    machine.finish(0);
    EXPECT_EQ(machine.to_device(1, 0, 1), cudaSuccess);
    EXPECT_EQ(machine.to_host(0, 2, 1), cudaSuccess);
    machine.finish(1);
    EXPECT_EQ(machine.value(2), 2);
    EXPECT_EQ(violations(), std::vector<std::string>{});
  }
}

TEST(EmulatedCudaDeathTest, TheHostCannotReadDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const Machine machine(0);
        volatile const std::byte* memory = machine.device(0);
        [[maybe_unused]] const std::byte value = *memory;
      },
      "");
}

TEST(EmulatedCuda, UnregisteredMemoryAndTwoRegistrationsAreRefused) {
  const Machine machine(1);
  std::vector<std::byte> pageable(kBytes);
  EXPECT_NE(
      cudaMemcpyAsync(
          machine.device(0), pageable.data(), kBytes, cudaMemcpyHostToDevice, machine.streams[0]),
      cudaSuccess);
  EXPECT_TRUE(violated("no single allocation or registration"));
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "cleared by the look at it";
  // Past the end of the device's memory.
  EXPECT_NE(cudaMemcpyAsync(machine.device(kBuffers - 1) + 1,
                            machine.host(0),
                            kBytes,
                            cudaMemcpyHostToDevice,
                            machine.streams[0]),
            cudaSuccess);
  thaw();
  auto arena = Arena::create(Tier::kHost, "two", std::size_t{2} * 4096);
  ASSERT_TRUE(arena.has_value());
  std::byte* data = (*arena)->data();
  EXPECT_EQ(cudaHostRegister(data, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(data + 4096, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(data + 512, 512, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_NE(cudaMemcpyAsync(machine.device(0),
                            data + 4096 - kBytes / 2,
                            kBytes,
                            cudaMemcpyHostToDevice,
                            machine.streams[0]),
            cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(data), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(data + 4096), cudaSuccess);
}

TEST(EmulatedCuda, HostMemoryOfTheDriverIsRegisteredUntilItIsFreed) {
  const Machine machine(0);
  void* memory = nullptr;
  EXPECT_NE(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault), cudaSuccess);
  EXPECT_TRUE(violated("cudaHostAlloc after the plan was frozen"));
  thaw();
  ASSERT_EQ(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault), cudaSuccess);
  const std::vector<std::string> alive = leaks();
  EXPECT_EQ(std::count(alive.begin(), alive.end(), "host allocation of 1024 bytes"), 1);
  EXPECT_EQ(cudaMemcpyAsync(
                machine.device(0), memory, kBytes, cudaMemcpyHostToDevice, machine.streams[0]),
            cudaSuccess);
  machine.finish(0);
  EXPECT_EQ(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaFreeHost(machine.host(0)), cudaErrorInvalidValue);
  EXPECT_TRUE(violated("cudaFreeHost of what cudaHostAlloc did not give"));
  EXPECT_EQ(cudaFreeHost(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(memory), cudaErrorInvalidValue) << "once";
}

TEST(EmulatedCuda, HostMemoryFreedUnderACopyIsFound) {
  const Machine machine(0);
  thaw();
  void* memory = nullptr;
  ASSERT_EQ(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(
                machine.device(0), memory, kBytes, cudaMemcpyHostToDevice, machine.streams[0]),
            cudaSuccess);
  EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
  EXPECT_TRUE(violated("memory that a pending copy uses"));
}

TEST(EmulatedCuda, PageableMemoryIsCopiedWithinTheCallWhereThatIsAskedFor) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    start({.seed = seed, .pageable_copies = true});
    cudaStream_t stream = nullptr;
    void* device = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device, kBytes), cudaSuccess);
    std::vector<std::byte> there(kBytes, std::byte{7});
    std::vector<std::byte> back(kBytes);
    EXPECT_EQ(cudaMemcpyAsync(device, there.data(), kBytes, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    there.assign(kBytes, std::byte{8});  // free to be used again
    EXPECT_EQ(cudaMemcpyAsync(back.data(), device, kBytes, cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    EXPECT_EQ(back, std::vector<std::byte>(kBytes, std::byte{7}));
    EXPECT_EQ(violations(), std::vector<std::string>{});
    freeze();
    EXPECT_NE(cudaMemcpyAsync(device, there.data(), kBytes, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    thaw();
    EXPECT_EQ(cudaFree(device), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
}

TEST(EmulatedCuda, ABufferThatIsUsedAgainTooEarlyIsFound) {
  for (std::uint64_t seed = 0; seed < kSeeds; seed += 3) {  // nothing runs before it must
    {
      const Machine machine(seed);
      EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
      machine.fill(0, 9);
      machine.finish(0);
      EXPECT_TRUE(violated("was changed before it ran"));
    }
    const Machine machine(seed);
    EXPECT_EQ(machine.to_host(0, 1, 0), cudaSuccess);
    machine.fill(1, 9);
    machine.finish(0);
    EXPECT_TRUE(violated("was written before it ran"));
  }
}

TEST(EmulatedCuda, WhatACopyWillBringIsNotThereBefore) {
  const Machine machine(0);
  machine.fill(1, 7);
  EXPECT_EQ(machine.to_host(0, 1, 0), cudaSuccess);
  EXPECT_NE(machine.value(1), 7);
  machine.finish(0);
  EXPECT_EQ(machine.value(1), 0xFF) << "memory that nobody wrote";
}

// A buffer that one stream reads and another fills, in the order that an event gives.
TEST(EmulatedCuda, BuffersPassedOnByEventsAreSound) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Machine machine(seed);
    machine.fill(0, 1);
    machine.fill(1, 2);
    EXPECT_EQ(machine.to_device(1, 1, 1), cudaSuccess);
    EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(machine.events[0], machine.streams[0]), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(machine.streams[1], machine.events[0], 0), cudaSuccess);
    EXPECT_EQ(machine.to_host(1, 0, 1), cudaSuccess);  // fills what the other stream read
    EXPECT_EQ(cudaEventRecord(machine.events[1], machine.streams[1]), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(machine.streams[0], machine.events[1], 0), cudaSuccess);
    EXPECT_EQ(machine.to_device(0, 2, 0), cudaSuccess);  // reads what was filled
    EXPECT_EQ(machine.to_host(2, 3, 0), cudaSuccess);
    machine.finish(0);
    EXPECT_EQ(machine.value(3), 2);
    machine.finish(1);
    EXPECT_EQ(violations(), std::vector<std::string>{}) << "seed " << seed;
  }
}

TEST(EmulatedCuda, AfterTheFreezeNothingIsMadeDestroyedOrWaitedFor) {
  const Machine machine(0);
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  EXPECT_NE(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_NE(cudaHostRegister(machine.host(0), 16, 0), cudaSuccess);
  EXPECT_NE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_NE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_NE(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_NE(cudaStreamSynchronize(machine.streams[0]), cudaSuccess);
  EXPECT_NE(cudaEventSynchronize(machine.events[0]), cudaSuccess);
  for (const char* call : {"cudaMalloc",
                           "cudaHostRegister",
                           "cudaStreamCreate",
                           "cudaEventCreate",
                           "cudaDeviceSynchronize",
                           "cudaStreamSynchronize",
                           "cudaEventSynchronize"}) {
    EXPECT_TRUE(violated(std::string(call) + " after the plan was frozen")) << call;
  }
}

// What passes between two records is what the host saw, on a clock that is off by a thousandth.
TEST(EmulatedCuda, ElapsedTimesLieWithinWhatTheHostSaw) {
  constexpr double kNsPerMs = 1e6;
  constexpr double kOff = 1e-3;
  constexpr double kTicksNs = 1000;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Machine machine(seed * 37);
    EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
    const std::int64_t before_ns = TraceRecorder::now_ns();
    EXPECT_EQ(cudaEventRecord(machine.timing[0], machine.streams[0]), cudaSuccess);
    machine.finish(0);
    const std::int64_t over_ns = TraceRecorder::now_ns();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // tidy_test: time must pass
    const std::int64_t later_ns = TraceRecorder::now_ns();
    EXPECT_EQ(cudaEventRecord(machine.timing[1], machine.streams[0]), cudaSuccess);
    machine.finish(0);
    const std::int64_t after_ns = TraceRecorder::now_ns();
    float elapsed_ms = -1;
    ASSERT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.timing[1]), cudaSuccess);
    const double elapsed_ns = static_cast<double>(elapsed_ms) * kNsPerMs;
    EXPECT_GE(elapsed_ns, static_cast<double>(later_ns - over_ns) * (1 - kOff) - kTicksNs);
    EXPECT_LE(elapsed_ns, static_cast<double>(after_ns - before_ns) * (1 + kOff) + kTicksNs);
    EXPECT_EQ(violations(), std::vector<std::string>{});
  }
}

TEST(EmulatedCuda, ElapsedTimesAreOfRecordsThatHaveRunAndOfEventsWithTiming) {
  const Machine machine(0);  // nothing runs before it must
  float elapsed_ms = 0;
  EXPECT_EQ(cudaEventRecord(machine.timing[0], machine.streams[0]), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(machine.events[0], machine.streams[0]), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.timing[1]),
            cudaErrorInvalidResourceHandle);
  EXPECT_TRUE(violated("cudaEventElapsedTime of an event that was never recorded"));
  machine.finish(0);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.events[0]),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.events[0], machine.timing[0]),
            cudaErrorInvalidResourceHandle);
  EXPECT_TRUE(violated("cudaEventElapsedTime of an event without timing"));
  EXPECT_EQ(cudaEventRecord(machine.timing[1], machine.streams[0]), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.timing[1]),
            cudaErrorNotReady);
  EXPECT_TRUE(violated("cudaEventElapsedTime of a record that has not run"));
  machine.finish(0);
  EXPECT_EQ(cudaEventElapsedTime(nullptr, machine.timing[0], machine.timing[1]),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.timing[1]), cudaSuccess);
  // Recorded again: of the new record, which has not run.
  EXPECT_EQ(cudaEventRecord(machine.timing[0], machine.streams[0]), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.timing[1]),
            cudaErrorNotReady);
  machine.finish(0);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, machine.timing[0], machine.timing[1]), cudaSuccess);
  EXPECT_LE(elapsed_ms, 0.0F);
}

TEST(EmulatedCuda, TheDefaultStreamIsRefused) {
  const Machine machine(0);
  for (cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    EXPECT_NE(
        cudaMemcpyAsync(machine.device(0), machine.host(0), kBytes, cudaMemcpyHostToDevice, stream),
        cudaSuccess);
    EXPECT_NE(cudaEventRecord(machine.events[0], stream), cudaSuccess);
  }
  EXPECT_TRUE(violated("cudaMemcpyAsync on the default stream"));
  EXPECT_TRUE(violated("cudaEventRecord on the default stream"));
}

TEST(EmulatedCuda, WhatIsNotDestroyedIsReported) {
  start({});
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
  std::vector<std::byte> host(64);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, 100), cudaSuccess);
  ASSERT_EQ(cudaHostRegister(host.data(), host.size(), 0), cudaSuccess);
  EXPECT_EQ(leaks(),
            (std::vector<std::string>{
                "stream 1", "event 2", "allocation of 100 bytes", "registration of 64 bytes"}));
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(leaks(), std::vector<std::string>{});
}

TEST(EmulatedCuda, AStreamDestroyedWithWorkOnItIsFound) {
  {
    const Machine machine(0);
    EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
  }
  EXPECT_TRUE(violated("while operations of it were pending"));
}

TEST(EmulatedCuda, AnInjectedErrorIsOneCallsUnlessItLosesTheDevice) {
  const Machine machine(0);
  fail_call(1, cudaErrorInvalidValue);
  EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
  EXPECT_EQ(machine.to_device(0, 1, 0), cudaErrorInvalidValue);
  EXPECT_EQ(failed_call(), "cudaMemcpyAsync");
  EXPECT_EQ(machine.to_device(0, 1, 0), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  machine.finish(0);
  fail_call(0, cudaErrorIllegalAddress);
  EXPECT_EQ(machine.to_device(0, 1, 0), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "cannot be cleared";
  EXPECT_EQ(cudaEventQuery(machine.events[0]), cudaErrorIllegalAddress);
}

TEST(EmulatedCuda, AnOperationThatFailsShowsInALaterCall) {
  const Machine machine(0);
  fail_operation(1, cudaErrorLaunchFailure);
  EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
  EXPECT_EQ(machine.to_device(1, 1, 0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(machine.events[0], machine.streams[0]), cudaSuccess);
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady) {
    error = cudaEventQuery(machine.events[0]);
  }
  EXPECT_EQ(error, cudaErrorLaunchFailure);
}

TEST(EmulatedCuda, ABodyIsAKernelThatMayTouchDeviceMemory) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Machine machine(seed);
    machine.fill(0, 20);
    EXPECT_EQ(machine.to_device(0, 0, 0), cudaSuccess);
    std::byte* memory = machine.device(0);
    const int launched =
        launch_body(machine.streams[0], Body([memory] {
                      for (std::size_t i = 0; i < kBytes; ++i) {
                        memory[i] = static_cast<std::byte>(static_cast<int>(memory[i]) + 1);
                      }
                    }));
    ASSERT_EQ(launched, cudaSuccess);
    EXPECT_EQ(machine.to_host(0, 1, 0), cudaSuccess);
    machine.finish(0);
    EXPECT_EQ(machine.value(1), 21);
  }
}

}  // namespace
}  // namespace headrace::tiers::gpu::emulated
