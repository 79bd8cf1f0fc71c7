// CudaDevice on the emulated runtime: what it copies, pins and refuses, and what becomes of it when
// any call fails.
#include "tiers/gpu/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tiers/gpu/emulated/runtime.hpp"
#include "tiers/gpu/test_machine.hpp"
#include "tiers/memory.hpp"
#include "tiers/test_support.hpp"

namespace headrace::tiers::gpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kArenaBytes = 5 * kPage;

std::string text_of(const Error& error) {
  return format_error(error, true);
}

std::unique_ptr<Arena> host_arena() {
  auto arena = Arena::create(Tier::kHost, "host", kArenaBytes);
  EXPECT_TRUE(arena.has_value());
  return std::move(*arena);
}

// Slabs of a page: every copy of some length crosses them.
Result<std::unique_ptr<Device>> make_device(Runtime& runtime) {
  return make_cuda_device(runtime, {.ring_capacity = 3, .slab_bytes = kPage});
}

TEST(CudaDevice, CopiesCrossSlabsInBothDirections) {
  const std::uint64_t first = test_seed();
  for (std::uint64_t seed = first; seed < first + 30; ++seed) {
    emulated::start({.seed = seed});
    {
      Runtime runtime;
      const auto arena = host_arena();
      auto device = make_device(runtime);
      ASSERT_TRUE(device.has_value()) << text_of(device.error());
      ASSERT_TRUE((*device)->pin({arena->data(), arena->bytes()}).has_value());
      auto memory = (*device)->allocate(2 * kPage);
      ASSERT_TRUE(memory.has_value());
      emulated::freeze();
      std::byte* source = arena->data() + 100;
      std::byte* target = arena->data() + 2 * kPage + 200;
      constexpr std::size_t kBytes = kPage + 500;
      for (std::size_t i = 0; i < kBytes; ++i) {
        source[i] = static_cast<std::byte>(i % 251);
      }
      (*device)->copy((*device)->h2d(), "in", 1, memory->data() + 8, source, kBytes);
      (*device)->d2h().wait((*device)->h2d().record());
      (*device)->copy((*device)->d2h(), "out", 2, target, memory->data() + 8, kBytes);
      (*device)->copy((*device)->d2h(), "nothing", 3, target, memory->data() + 8, 0);
      ASSERT_TRUE((*device)->d2h().drain().has_value());
      EXPECT_EQ(std::memcmp(source, target, kBytes), 0);
      emulated::thaw();
    }
    end_test_machine();
  }
}

TEST(CudaDevice, PinnedBytesAreThoseOfTheArenasToTheByte) {
  emulated::start({});
  {
    Runtime runtime;
    const auto arena = host_arena();
    const auto device = make_device(runtime);
    ASSERT_TRUE(device.has_value());
    EXPECT_EQ((*device)->pinned_bytes(), 0U);
    ASSERT_TRUE((*device)->pin({arena->data(), kArenaBytes - 100}).has_value());
    EXPECT_EQ((*device)->pinned_bytes(), kArenaBytes - 100);
    EXPECT_EQ(emulated::leaks().back(), "registration of 3996 bytes") << "the last slab is short";
    EXPECT_FALSE((*device)->aliases_host());
    EXPECT_EQ((*device)->name(), "cuda:0");
  }
  end_test_machine();
}

TEST(CudaDevice, MemoryThatIsNotThereIsRefusedWithFigures) {
  emulated::start({.device_bytes = 1 << 20});
  {
    Runtime runtime;
    const auto device = make_device(runtime);
    ASSERT_TRUE(device.has_value());
    const auto memory = (*device)->allocate(2 << 20);
    ASSERT_FALSE(memory.has_value());
    EXPECT_EQ(memory.error().code, ExitCode::kDoesNotFit);
    const std::string text = text_of(memory.error());
    EXPECT_NE(text.find("cannot take 2.0 MiB of cuda:0"), std::string::npos) << text;
    EXPECT_NE(text.find("1.0 MiB are free"), std::string::npos) << text;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(*available_device_bytes(0), 0U) << "less than the driver's reserve";
  }
  end_test_machine();
}

TEST(CudaDevice, AMachineWithoutDriverOrGpuSaysSoInOneLine) {
  struct Case {
    int devices;
    int ordinal;
    const char* error;
    const char* line;
  };

  for (const Case& machine :
       {Case{-1, 0, "no NVIDIA driver", "CUDA 13.0: no NVIDIA driver on this machine"},
        Case{0, 0, "no such GPU", "CUDA 13.0, driver for 13.0: no GPU"},
        Case{2, 2, "cuda:2: there is no such GPU", "cuda:1 emulated GPU 1 (256.0 MiB)"}}) {
    emulated::start({.devices = machine.devices});
    Runtime runtime;
    const auto device = make_cuda_device(runtime, {.ordinal = machine.ordinal});
    ASSERT_FALSE(device.has_value());
    EXPECT_EQ(device.error().code, ExitCode::kHardwareAbsent);
    EXPECT_NE(text_of(device.error()).find(machine.error), std::string::npos)
        << text_of(device.error());
    const std::string line = describe_cuda();
    EXPECT_NE(line.find(machine.line), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
    end_test_machine();
  }
}

TEST(CudaDevice, ALostDeviceIsReportedWithTheOperationAndEverythingEnds) {
  const std::uint64_t first = test_seed();
  for (std::uint64_t seed = first; seed < first + 30; ++seed) {
    emulated::start({.seed = seed});
    {
      Runtime runtime;
      const auto arena = host_arena();
      auto device = make_device(runtime);
      ASSERT_TRUE(device.has_value());
      ASSERT_TRUE((*device)->pin({arena->data(), arena->bytes()}).has_value());
      auto memory = (*device)->allocate(kPage);
      ASSERT_TRUE(memory.has_value());
      emulated::fail_operation(1, cudaErrorIllegalAddress);
      for (std::uint64_t id = 10; id < 20; ++id) {
        (*device)->copy((*device)->h2d(), "copy", id, memory->data(), arena->data(), 64);
      }
      const Status status = (*device)->h2d().drain();
      ASSERT_FALSE(status.has_value());
      const std::string text = text_of(status.error());
      EXPECT_NE(text.find("the device is lost"), std::string::npos) << text;
      EXPECT_NE(text.find("cudaErrorIllegalAddress"), std::string::npos) << text;
      EXPECT_NE(text.find("'copy' (#1"), std::string::npos) << text;
      EXPECT_TRUE((*device)->h2d().record().done());
    }
    EXPECT_EQ(emulated::leaks(), std::vector<std::string>{});
  }
}

// A device, its memory, some copies with waits, and its end; whatever comes of it.
Status small_run(Arena& arena) {
  Runtime runtime;
  HEADRACE_ASSIGN(auto device, make_device(runtime));
  HEADRACE_TRY(device->pin({arena.data(), arena.bytes()}));
  HEADRACE_ASSIGN(const std::span<std::byte> memory, device->allocate(kPage));
  for (std::uint64_t id = 0; id < 6; ++id) {
    device->copy(device->h2d(), "in", id, memory.data(), arena.data() + kPage - 50, 100);
    device->compute().wait(device->h2d().record());
    device->compute().submit({.name = "body", .id = id}, [] {});
    device->d2h().wait(device->compute().record());
    device->copy(device->d2h(), "out", id, arena.data() + 2 * kPage, memory.data(), 100);
    device->h2d().wait(device->d2h().record());
  }
  Status status;
  for (Queue* queue : {&device->compute(), &device->h2d(), &device->d2h()}) {
    if (Status drained = queue->drain(); !drained) {
      status = std::move(drained);
    }
  }
  return status;
}

TEST(CudaDevice, AnErrorOfAnyCallIsReportedAndNothingLeaksOrHangs) {
  const auto arena = host_arena();
  const std::uint64_t seed = test_seed();
  emulated::start({.seed = seed});
  ASSERT_TRUE(small_run(*arena).has_value());
  // How often events are asked depends on time: some more than this run's calls.
  const std::uint64_t calls = emulated::call_count();
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorIllegalAddress}) {
    for (std::uint64_t call = 0; call < calls; ++call) {
      emulated::start({.seed = seed});
      emulated::fail_call(call, error);
      const Status status = small_run(*arena);
      // The calls of the end are releases, whose errors nobody could use.
      const std::string failed = emulated::failed_call();
      const bool release = failed.empty() || failed == "cudaFree" ||
                           failed == "cudaHostUnregister" || failed == "cudaStreamDestroy" ||
                           failed == "cudaEventDestroy";
      ASSERT_EQ(status.has_value(), release) << "call " << call << ", " << failed;
      if (!status) {
        ASSERT_FALSE(status.error().why.empty());
      }
      ASSERT_EQ(emulated::leaks(), std::vector<std::string>{}) << "call " << call << ", " << failed;
      ASSERT_EQ(emulated::violations(), std::vector<std::string>{}) << "call " << call;
    }
  }
}

TEST(CudaDevice, ADriverThatDoesNotAnswerIsNotCalledMissing) {
  emulated::start({});
  emulated::fail_call_of("cudaDriverGetVersion", 0, cudaErrorSystemDriverMismatch);
  const std::string line = describe_cuda();
  EXPECT_NE(line.find("does not answer"), std::string::npos) << line;
  EXPECT_NE(line.find("cudaDriverGetVersion"), std::string::npos) << line;
}

TEST(CudaDeviceDeathTest, ACopyOfMemoryThatWasNotPinnedIsAProgrammersError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        emulated::start({});
        Runtime runtime;
        const auto device = make_device(runtime);
        const auto memory = (*device)->allocate(kPage);
        std::vector<std::byte> pageable(64);
        (*device)->copy((*device)->h2d(), "copy", 1, memory->data(), pageable.data(), 64);
        (void)(*device)->h2d().drain();
      },
      "was pinned");
}

}  // namespace
}  // namespace headrace::tiers::gpu
