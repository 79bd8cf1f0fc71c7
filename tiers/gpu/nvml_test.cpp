// NVML by a fake library: what is read of a GPU, what becomes of a driver that lacks, refuses or
// fails, and the sentences made of it.
#include "tiers/gpu/nvml.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "core/log.hpp"
#include "core/test_folder.hpp"
#include "tiers/gpu/fake_nvml.hpp"

#if __has_include(<nvml.h>)
#include <nvml.h>

#include <type_traits>
#define HEADRACE_HAS_NVML_H
#endif

namespace headrace::tiers::gpu {
namespace {

constexpr const char* kPciId = "0000:3B:00.0";
constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

#ifdef HEADRACE_HAS_NVML_H
// nvml_abi.hpp says what NVIDIA's header says.
static_assert(nvml_abi::kSuccess == NVML_SUCCESS);
static_assert(nvml_abi::kNotSupported == NVML_ERROR_NOT_SUPPORTED);
static_assert(nvml_abi::kNoPermission == NVML_ERROR_NO_PERMISSION);
static_assert(nvml_abi::kNotFound == NVML_ERROR_NOT_FOUND);
static_assert(nvml_abi::kInsufficientSize == NVML_ERROR_INSUFFICIENT_SIZE);
static_assert(nvml_abi::kDriverNotLoaded == NVML_ERROR_DRIVER_NOT_LOADED);
static_assert(nvml_abi::kFunctionNotFound == NVML_ERROR_FUNCTION_NOT_FOUND);
static_assert(nvml_abi::kGpuIsLost == NVML_ERROR_GPU_IS_LOST);
static_assert(nvml_abi::kResetRequired == NVML_ERROR_RESET_REQUIRED);
static_assert(nvml_abi::kLibRmVersionMismatch == NVML_ERROR_LIB_RM_VERSION_MISMATCH);
static_assert(nvml_abi::kNoData == NVML_ERROR_NO_DATA);
static_assert(nvml_abi::kDeprecated == NVML_ERROR_DEPRECATED);
static_assert(nvml_abi::kDriverVersionChars == NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);
static_assert(nvml_abi::kTemperatureGpu == NVML_TEMPERATURE_GPU);
static_assert(nvml_abi::kEccUncorrected == NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
static_assert(nvml_abi::kEccSinceDriverLoad == NVML_VOLATILE_ECC);
static_assert(nvml_abi::kReasonIdle == nvmlClocksThrottleReasonGpuIdle);
static_assert(nvml_abi::kReasonApplicationClocks == nvmlClocksThrottleReasonUserDefinedClocks);
static_assert(nvml_abi::kReasonPowerCap == nvmlClocksThrottleReasonSwPowerCap);
static_assert(nvml_abi::kReasonHardwareSlowdown == nvmlClocksThrottleReasonHwSlowdown);
static_assert(nvml_abi::kReasonSyncBoost == nvmlClocksThrottleReasonSyncBoost);
static_assert(nvml_abi::kReasonSoftwareThermal == nvmlClocksThrottleReasonSwThermalSlowdown);
static_assert(nvml_abi::kReasonHardwareThermal == nvmlClocksThrottleReasonHwThermalSlowdown);
static_assert(nvml_abi::kReasonPowerBrake == nvmlClocksThrottleReasonHwPowerBrakeSlowdown);
static_assert(nvml_abi::kReasonDisplayClocks == nvmlClocksThrottleReasonDisplayClockSetting);
static_assert(sizeof(nvml_abi::Return) == sizeof(nvmlReturn_t));
static_assert(sizeof(nvml_abi::Memory) == sizeof(nvmlMemory_t));
static_assert(offsetof(nvml_abi::Memory, used_bytes) == offsetof(nvmlMemory_t, used));
static_assert(sizeof(nvml_abi::ProcessInfo) == sizeof(nvmlProcessInfo_v2_t));
static_assert(offsetof(nvml_abi::ProcessInfo, memory_bytes) ==
              offsetof(nvmlProcessInfo_v2_t, usedGpuMemory));
static_assert(std::is_same_v<decltype(nvmlDeviceGetComputeRunningProcesses_v3),
                             nvmlReturn_t(nvmlDevice_t, unsigned*, nvmlProcessInfo_v2_t*)>);
static_assert(
    std::is_same_v<decltype(nvmlDeviceGetMemoryInfo), nvmlReturn_t(nvmlDevice_t, nvmlMemory_t*)>);
static_assert(std::is_same_v<decltype(nvmlDeviceGetHandleByPciBusId_v2),
                             nvmlReturn_t(const char*, nvmlDevice_t*)>);
static_assert(std::is_same_v<decltype(nvmlDeviceGetCurrPcieLinkWidth),
                             nvmlReturn_t(nvmlDevice_t, unsigned*)>);
static_assert(std::is_same_v<decltype(nvmlDeviceGetCurrentClocksEventReasons),
                             nvmlReturn_t(nvmlDevice_t, unsigned long long*)>);
static_assert(std::is_same_v<
              decltype(nvmlDeviceGetTotalEccErrors),
              nvmlReturn_t(
                  nvmlDevice_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, unsigned long long*)>);
static_assert(std::is_same_v<decltype(nvmlSystemGetDriverVersion), nvmlReturn_t(char*, unsigned)>);
#endif

std::string text_of(const Error& error) {
  return format_error(error, true);
}

// Keeps a fake library in the process, so that its state outlives what nvml.cpp opens and closes.
class FakeLibrary {
 public:
  explicit FakeLibrary(std::string path)
      : path_(std::move(path)), handle_(::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << ::dlerror();
    const auto get = reinterpret_cast<FakeNvmlStateFunction*>(::dlsym(handle_, "fake_nvml_state"));
    EXPECT_NE(get, nullptr);
    state_ = get();
    *state_ = {};
  }

  // Whoever started it shut it down, once each, and asked nothing outside.
  ~FakeLibrary() {
    EXPECT_EQ(state_->inits, state_->shutdowns);
    EXPECT_EQ(state_->questions_without_init, 0);
    ::dlclose(handle_);
    EXPECT_EQ(::dlopen(path_.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr) << "still loaded";
  }

  FakeLibrary(const FakeLibrary&) = delete;
  FakeLibrary& operator=(const FakeLibrary&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  FakeNvmlState* operator->() { return state_; }

 private:
  std::string path_;
  void* handle_;
  FakeNvmlState* state_ = nullptr;
};

NvmlFacts facts_of(const FakeLibrary& library) {
  const auto facts = nvml_facts(NvmlUse::kOn, kPciId, library.path());
  EXPECT_TRUE(facts.has_value()) << text_of(facts.error());
  EXPECT_TRUE(facts->has_value());
  return **facts;
}

void expect_every_fact(const NvmlFacts& facts) {
  EXPECT_EQ(facts.driver_version, "580.82.07");
  EXPECT_EQ(facts.memory_used_bytes, 6 * kGib);
  EXPECT_EQ(facts.memory_total_bytes, 24 * kGib);
  EXPECT_EQ(facts.pcie_generation, 1);
  EXPECT_EQ(facts.pcie_generation_max, 5);
  EXPECT_EQ(facts.pcie_width, 8);
  EXPECT_EQ(facts.pcie_width_max, 16);
  EXPECT_EQ(facts.temperature_c, 41);
  EXPECT_EQ(facts.is_idle, true);
  EXPECT_EQ(facts.throttle_reasons, std::vector<std::string>{"power cap"});
  EXPECT_EQ(facts.ecc_uncorrected, 3U) << "those since the driver was loaded";
  ASSERT_TRUE(facts.processes.has_value());
  ASSERT_EQ(facts.processes->size(), 2U);
  EXPECT_EQ(facts.processes->at(1).pid, 1001U);
  EXPECT_EQ(facts.processes->at(1).memory_bytes, kGib);
}

TEST(Nvml, EveryFactIsReadFromACurrentLibraryAndFromAnOldOne) {
  for (const char* path : {HEADRACE_FAKE_NVML, HEADRACE_FAKE_NVML_OLD}) {
    SCOPED_TRACE(path);
    FakeLibrary library(path);
    library->compute_processes = 2;
    library->reasons = nvml_abi::kReasonIdle | nvml_abi::kReasonPowerCap;
    expect_every_fact(facts_of(library));
    EXPECT_EQ(library->inits, 1);
  }
}

TEST(Nvml, WhatTheDriverDoesNotTellIsEmptyAndNoError) {
  for (const nvml_abi::Return untold :
       {nvml_abi::kNotSupported, nvml_abi::kNoPermission, nvml_abi::kFunctionNotFound}) {
    for (const char* function : {"nvmlDeviceGetMemoryInfo",
                                 "nvmlDeviceGetCurrPcieLinkGeneration",
                                 "nvmlDeviceGetMaxPcieLinkGeneration",
                                 "nvmlDeviceGetCurrPcieLinkWidth",
                                 "nvmlDeviceGetMaxPcieLinkWidth",
                                 "nvmlDeviceGetTemperature",
                                 "nvmlDeviceGetTotalEccErrors",
                                 "nvmlDeviceGetCurrentClocksEventReasons"}) {
      FakeLibrary library(HEADRACE_FAKE_NVML);
      library->query_result = untold;
      library->failing = function;
      const NvmlFacts facts = facts_of(library);
      const int missing = !facts.memory_used_bytes + !facts.pcie_generation +
                          !facts.pcie_generation_max + !facts.pcie_width + !facts.pcie_width_max +
                          !facts.temperature_c + !facts.ecc_uncorrected + !facts.throttle_reasons;
      EXPECT_EQ(missing, 1) << function;
      EXPECT_TRUE(facts.processes.has_value()) << function;
    }
  }
}

// Compute and graphics lists both; the compute list is the longer, so it is asked with more room.
// By the functions whose entries have one length in every driver.
TEST(Nvml, ProcessesOfAllListsAreMergedByPid) {
  FakeLibrary library(HEADRACE_FAKE_NVML);
  library->compute_processes = FakeNvmlState::kProcessesMax;
  const auto own = static_cast<std::uint32_t>(::getpid());
  library->graphics_processes = {nvml_abi::ProcessInfo{.pid = 1001, .memory_bytes = 3 * kGib},
                                 {.pid = own, .memory_bytes = nvml_abi::kNotAvailable}};
  library->graphics_process_count = 2;
  const NvmlFacts facts = facts_of(library);
  ASSERT_TRUE(facts.processes.has_value());
  const bool own_is_among = own >= 1000 && own < 1000 + FakeNvmlState::kProcessesMax;
  EXPECT_EQ(facts.processes->size(), FakeNvmlState::kProcessesMax + (own_is_among ? 0U : 1U));
  for (const NvmlProcess& process : *facts.processes) {
    if (process.pid == 1001 && own != 1001) {
      EXPECT_EQ(process.memory_bytes, 3 * kGib) << "the larger figure";
    }
    EXPECT_EQ(process.is_own, facts.knows_own_pid && process.pid == own);
    if (process.pid == own && !own_is_among) {
      EXPECT_FALSE(process.memory_bytes.has_value());
    }
  }
}

struct Failure {
  const char* path;
  nvml_abi::Return init;
  nvml_abi::Return query;
  ExitCode code;
  const char* text;
};

// Off asks nothing, auto goes on without, on says what is wrong and what to do.
TEST(Nvml, AFailingDriverIsAnErrorWithOnAndNoFactsWithAuto) {
  using nvml_abi::kSuccess;
  for (const Failure& failure : {Failure{HEADRACE_FAKE_NVML,
                                         nvml_abi::kLibRmVersionMismatch,
                                         kSuccess,
                                         ExitCode::kOperating,
                                         "reboot the machine"},
                                 Failure{HEADRACE_FAKE_NVML,
                                         nvml_abi::kLibRmVersionMismatch,
                                         kSuccess,
                                         ExitCode::kOperating,
                                         "nvmlInit_v2: Driver/library version mismatch (18)"},
                                 Failure{HEADRACE_FAKE_NVML,
                                         nvml_abi::kDriverNotLoaded,
                                         kSuccess,
                                         ExitCode::kHardwareAbsent,
                                         "modprobe nvidia"},
                                 Failure{HEADRACE_FAKE_NVML,
                                         nvml_abi::kNoPermission,
                                         kSuccess,
                                         ExitCode::kOperating,
                                         "/dev/nvidiactl"},
                                 Failure{HEADRACE_FAKE_NVML,
                                         kSuccess,
                                         nvml_abi::kGpuIsLost,
                                         ExitCode::kOperating,
                                         "does not answer any more (0000:3B:00.0)"},
                                 Failure{HEADRACE_FAKE_NVML_UNUSABLE,
                                         kSuccess,
                                         kSuccess,
                                         ExitCode::kOperating,
                                         "no function nvmlDeviceGetHandleByPciBusId_v2"}}) {
    SCOPED_TRACE(failure.text);
    FakeLibrary library(failure.path);
    library->init_result = failure.init;
    library->query_result = failure.query;
    const auto facts = nvml_facts(NvmlUse::kOn, kPciId, library.path());
    ASSERT_FALSE(facts.has_value());
    EXPECT_EQ(facts.error().code, failure.code);
    EXPECT_NE(text_of(facts.error()).find(failure.text), std::string::npos)
        << text_of(facts.error());
    const auto without = nvml_facts(NvmlUse::kAuto, kPciId, library.path());
    ASSERT_TRUE(without.has_value());
    EXPECT_FALSE(without->has_value());
    const int inits = library->inits;
    const auto off = nvml_facts(NvmlUse::kOff, kPciId, library.path());
    ASSERT_TRUE(off.has_value());
    EXPECT_FALSE(off->has_value());
    EXPECT_EQ(library->inits, inits) << "off starts nothing";
  }
}

TEST(Nvml, AnErrorOfAnyQuestionIsReported) {
  for (const char* function : {"nvmlDeviceGetHandleByPciBusId_v2",
                               "nvmlDeviceGetMemoryInfo",
                               "nvmlDeviceGetCurrPcieLinkGeneration",
                               "nvmlDeviceGetMaxPcieLinkWidth",
                               "nvmlDeviceGetTemperature",
                               "nvmlDeviceGetTotalEccErrors",
                               "nvmlDeviceGetCurrentClocksEventReasons",
                               "nvmlDeviceGetComputeRunningProcesses_v2",
                               "nvmlDeviceGetGraphicsRunningProcesses_v2"}) {
    FakeLibrary library(HEADRACE_FAKE_NVML);
    constexpr nvml_abi::Return kUnknown = 999;
    library->query_result = kUnknown;
    library->failing = function;
    const auto facts = nvml_facts(NvmlUse::kOn, kPciId, library.path());
    ASSERT_FALSE(facts.has_value()) << function;
    EXPECT_NE(text_of(facts.error()).find(function), std::string::npos) << text_of(facts.error());
  }
}

TEST(Nvml, AGpuThatItDoesNotKnowIsNamed) {
  FakeLibrary library(HEADRACE_FAKE_NVML);
  const auto facts = nvml_facts(NvmlUse::kOn, "0000:AF:00.0", library.path());
  ASSERT_FALSE(facts.has_value());
  EXPECT_EQ(facts.error().code, ExitCode::kHardwareAbsent);
  EXPECT_NE(facts.error().what.find("0000:AF:00.0"), std::string::npos);
}

// What auto writes to the log.
std::string logged_by(const std::string& library) {
  const TestFolder folder;
  const std::string path = folder.path("log");
  EXPECT_TRUE(set_log_file(path).has_value());
  const std::string mark = "asking now";
  log_to_file(LogLevel::kInfo, mark);
  EXPECT_TRUE(nvml_facts(NvmlUse::kAuto, kPciId, library).has_value());
  close_log_file();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str().substr(text.str().rfind(mark));
}

TEST(Nvml, AutoSaysInTheLogWhatFailed) {
  FakeLibrary library(HEADRACE_FAKE_NVML);
  library->init_result = nvml_abi::kLibRmVersionMismatch;
  const std::string text = logged_by(library.path());
  EXPECT_NE(text.find(" warning nvml: the driver was updated"), std::string::npos) << text;
  EXPECT_NE(text.find("reboot the machine"), std::string::npos) << text;
}

TEST(Nvml, AMachineWithoutTheLibraryIsAnErrorWithOnOnly) {
  const std::string library = "libheadrace-no-such-nvml.so.1";
  for (const NvmlUse use : {NvmlUse::kAuto, NvmlUse::kOff}) {
    const auto facts = nvml_facts(use, kPciId, library);
    ASSERT_TRUE(facts.has_value());
    EXPECT_FALSE(facts->has_value());
  }
  EXPECT_NE(logged_by(library).find(" debug nvml: there is no " + library), std::string::npos)
      << logged_by(library);
  const auto facts = nvml_facts(NvmlUse::kOn, kPciId, library);
  ASSERT_FALSE(facts.has_value());
  EXPECT_EQ(facts.error().code, ExitCode::kHardwareAbsent);
  EXPECT_NE(facts.error().what.find(library), std::string::npos);
  EXPECT_NE(facts.error().hint.find("NVIDIA_DRIVER_CAPABILITIES"), std::string::npos);
}

TEST(Nvml, OneStartServesSeveralQuestionsAndEndsOnce) {
  FakeLibrary library(HEADRACE_FAKE_NVML);
  {
    auto opened = Nvml::open(library.path());
    ASSERT_TRUE(opened.has_value());
    const Nvml nvml = std::move(*opened);
    EXPECT_TRUE(nvml.facts(kPciId).has_value());
    EXPECT_FALSE(nvml.facts("0000:AF:00.0").has_value());
    EXPECT_TRUE(nvml.facts(kPciId).has_value());
    EXPECT_EQ(library->inits, 1);
    EXPECT_EQ(library->shutdowns, 0);
  }
  EXPECT_EQ(library->shutdowns, 1);
}

// A GPU with nothing to complain of.
NvmlFacts good_facts() {
  NvmlFacts facts;
  facts.memory_used_bytes = kGib;
  facts.memory_total_bytes = 24 * kGib;
  facts.pcie_generation = 5;
  facts.pcie_generation_max = 5;
  facts.pcie_width = 16;
  facts.pcie_width_max = 16;
  facts.is_idle = false;
  facts.throttle_reasons.emplace();
  facts.ecc_uncorrected = 0;
  facts.processes.emplace();
  return facts;
}

std::string only_warning(const NvmlFacts& facts) {
  const std::vector<std::string> warnings = nvml_warnings(facts);
  EXPECT_EQ(warnings.size(), 1U);
  return warnings.empty() ? "" : warnings.front();
}

TEST(NvmlWarnings, NothingIsSaidOfAGpuThatIsWellOrUnknown) {
  EXPECT_EQ(nvml_warnings(good_facts()), std::vector<std::string>{});
  EXPECT_EQ(nvml_warnings({}), std::vector<std::string>{});
  NvmlFacts idle = good_facts();
  idle.is_idle = true;
  idle.pcie_generation = 1;
  EXPECT_EQ(nvml_warnings(idle), std::vector<std::string>{}) << "it rises under load";
  idle.is_idle.reset();
  EXPECT_EQ(nvml_warnings(idle), std::vector<std::string>{}) << "it may be idle";
}

TEST(NvmlWarnings, ASlowLinkIsToldWithItsShare) {
  NvmlFacts facts = good_facts();
  facts.pcie_generation = 3;
  EXPECT_NE(
      only_warning(facts).find("16 of 16 lanes at generation 3 of 5: transfers get about 25 %"),
      std::string::npos)
      << only_warning(facts);
  facts.pcie_width = 8;
  EXPECT_NE(only_warning(facts).find("about 12 %"), std::string::npos) << only_warning(facts);
  facts.is_idle = true;
  EXPECT_NE(only_warning(facts).find("8 of 16 lanes: transfers get about 50 %"), std::string::npos)
      << only_warning(facts);
  EXPECT_NE(only_warning(facts).find("3 of 5 now, rises under load"), std::string::npos);
}

TEST(NvmlWarnings, OtherProcessesAreCountedAndThisOneIsNot) {
  NvmlFacts facts = good_facts();
  facts.memory_used_bytes = 13 * kGib;
  facts.processes = {{.pid = 7, .memory_bytes = 9 * kGib},
                     {.pid = 8, .memory_bytes = kGib, .is_own = true},
                     {.pid = 9, .memory_bytes = 3 * kGib}};
  EXPECT_EQ(only_warning(facts), "2 other processes hold 12.0 GiB of its memory");
  facts.processes->erase(facts.processes->begin());
  facts.memory_used_bytes = 4 * kGib;
  EXPECT_EQ(only_warning(facts), "1 other process holds 3.0 GiB of its memory");
  facts.processes->push_back({.pid = 10});
  EXPECT_EQ(only_warning(facts), "2 other processes hold at least 3.0 GiB of its memory");
  facts.processes->resize(1);
  facts.memory_used_bytes = kGib;
  EXPECT_EQ(nvml_warnings(facts), std::vector<std::string>{}) << "this one alone";
  facts.knows_own_pid = false;
  facts.processes->front().is_own = false;
  EXPECT_NE(only_warning(facts).find("1 process holds 1.0 GiB of its memory (this one may be"),
            std::string::npos)
      << only_warning(facts);
}

TEST(NvmlWarnings, MemoryInUseThatTheDriverGivesNoUserOfIsTold) {
  NvmlFacts facts = good_facts();
  facts.memory_used_bytes = 12 * kGib;
  EXPECT_NE(
      only_warning(facts).find("12.0 GiB of its memory are in use by programs that the driver"),
      std::string::npos)
      << only_warning(facts);
  facts.processes.reset();
  EXPECT_NE(only_warning(facts).find("12.0 GiB"), std::string::npos);
}

TEST(NvmlWarnings, ThrottlingAndMemoryErrorsAreTold) {
  NvmlFacts facts = good_facts();
  facts.throttle_reasons = {"power cap", "heat"};
  EXPECT_EQ(only_warning(facts), "its clocks are held down: power cap, heat");
  facts.throttle_reasons->clear();
  facts.ecc_uncorrected = 1;
  EXPECT_EQ(only_warning(facts).find("1 memory error since"), 0U) << only_warning(facts);
}

TEST(Nvml, ReasonsAreInWordsAndUnknownOnesShown) {
  FakeLibrary library(HEADRACE_FAKE_NVML);
  library->reasons = 0x1000 | nvml_abi::kReasonHardwareThermal;
  const NvmlFacts facts = facts_of(library);
  EXPECT_EQ(facts.is_idle, false);
  EXPECT_EQ(facts.throttle_reasons,
            (std::vector<std::string>{"heat beyond what the hardware allows", "reason 0x1000"}));
}

}  // namespace
}  // namespace headrace::tiers::gpu
