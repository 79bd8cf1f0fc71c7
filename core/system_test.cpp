// Limits of cgroups count, in both versions and from any ancestor; process memory is measured.
#include "core/system.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "core/test_folder.hpp"

namespace headrace {
namespace {

constexpr std::uint64_t kMib = std::uint64_t{1} << 20U;

// A made-up /proc and /sys/fs/cgroup.
class SystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    put("proc/meminfo",
        "MemTotal:  65536 kB\nMemAvailable:  32768 kB\nHugePages_Free:  3\n"
        "Hugepagesize:  2048 kB\n");
  }

  void put(const std::string& name, const std::string& text) {
    const std::string path = folder_.path(name);
    ASSERT_TRUE(make_directory(parent_path(path), Parents::kMake));
    ASSERT_TRUE(write_file_atomically(path, text));
  }

  [[nodiscard]] SystemRoots roots() const {
    return {
        .proc = folder_.path("proc"), .cgroup = folder_.path("cgroup"), .sys = folder_.path("sys")};
  }

  TestFolder folder_;
};

TEST_F(SystemTest, WithoutACgroupLimitTheMachineCounts) {
  put("proc/self/cgroup", "0::/user\n");
  put("cgroup/user/memory.max", "max\n");
  const HostMemory memory = host_memory(roots()).value();
  EXPECT_EQ(memory.total_bytes, 64 * kMib);
  EXPECT_EQ(memory.available_bytes, 32 * kMib);
  EXPECT_FALSE(memory.limit_bytes);
  EXPECT_EQ(memory.huge_page_bytes, 2 * kMib);
  EXPECT_EQ(memory.huge_pages_free, 3U);
}

TEST_F(SystemTest, TheTightestLimitOfVersionTwoCountsAndPageCacheIsFree) {
  put("proc/self/cgroup", "0::/slice/job\n");
  put("cgroup/slice/memory.max", std::to_string(20 * kMib) + "\n");
  put("cgroup/slice/memory.current", std::to_string(12 * kMib) + "\n");
  put("cgroup/slice/memory.stat",
      "anon 1\ninactive_file " + std::to_string(3 * kMib) + "\nactive_file " +
          std::to_string(1 * kMib) + "\n");
  put("cgroup/slice/job/memory.max", std::to_string(30 * kMib) + "\n");
  put("cgroup/slice/job/memory.current", "0\n");
  const HostMemory memory = host_memory(roots()).value();
  EXPECT_EQ(memory.limit_bytes, 20 * kMib);
  EXPECT_EQ(memory.available_bytes, 12 * kMib);  // 20 - (12 - 4)
}

TEST_F(SystemTest, VersionOneCountsAlsoWhenThePathIsTheHosts) {
  put("proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n");
  put("cgroup/memory/memory.limit_in_bytes", std::to_string(16 * kMib) + "\n");
  put("cgroup/memory/memory.usage_in_bytes", std::to_string(6 * kMib) + "\n");
  put("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  put("cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const HostMemory memory = host_memory(roots()).value();
  EXPECT_EQ(memory.limit_bytes, 16 * kMib);
  EXPECT_EQ(memory.available_bytes, 10 * kMib);
  EXPECT_EQ(usable_cores(roots()), 1);
}

TEST_F(SystemTest, VersionOneWithoutLimitsIsUnlimited) {
  put("proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/\n");
  put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(host_memory(roots()).value().limit_bytes);
  EXPECT_GE(usable_cores(roots()), 1);
}

TEST_F(SystemTest, UsageAboveTheLimitLeavesNothing) {
  put("proc/self/cgroup", "0::/\n");
  put("cgroup/memory.max", std::to_string(4 * kMib) + "\n");
  put("cgroup/memory.current", std::to_string(5 * kMib) + "\n");
  EXPECT_EQ(host_memory(roots()).value().available_bytes, 0U);
}

TEST_F(SystemTest, AQuotaIsRoundedUpToWholeCores) {
  put("proc/self/cgroup", "0::/\n");
  put("cgroup/cpu.max", "max 100000\n");
  const int all = usable_cores(roots());
  put("cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(usable_cores(roots()), 1);
  put("cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(usable_cores(roots()), std::min(all, 2));
}

TEST_F(SystemTest, AQuotaIsToldBesideTheAffinity) {
  put("proc/self/cgroup", "0::/\n");
  EXPECT_FALSE(core_limits(roots()).quota);
  put("cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(core_limits(roots()).quota, 2);
  EXPECT_GE(core_limits(roots()).affinity, 1);
}

TEST_F(SystemTest, HugePagesAreWhatTheSystemWillGive) {
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const HugePages pages = huge_pages(roots());
  EXPECT_EQ(pages.transparent, "madvise");
  EXPECT_EQ(pages.page_bytes, 2 * kMib);
  EXPECT_EQ(pages.reserved_free, 3U);
  put("sys/kernel/mm/transparent_hugepage/enabled", "");
  EXPECT_EQ(huge_pages(roots()).transparent, "");
}

TEST_F(SystemTest, LastLevelCachesCountOnceEach) {
  EXPECT_EQ(last_level_cache_bytes(roots()), 0U);
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string cache = fmt::format("sys/devices/system/cpu/cpu{}/cache/index", cpu);
    put(cache + "0/level", "1\n");
    put(cache + "0/size", "32K\n");
    put(cache + "0/shared_cpu_list", fmt::format("{}\n", cpu));
    put(cache + "3/level", "3\n");
    put(cache + "3/size", "1024K\n");
    put(cache + "3/shared_cpu_list", cpu < 2 ? "0-1\n" : "2-3\n");
  }
  put("sys/devices/system/cpu/online", "0-3\n");
  EXPECT_EQ(last_level_cache_bytes(roots()), 2 * kMib);
}

TEST_F(SystemTest, NumaNodesComeByNumber) {
  EXPECT_TRUE(numa_nodes(roots()).empty());
  for (const int number : {10, 2}) {
    const std::string node = "sys/devices/system/node/node" + std::to_string(number);
    put(node + "/meminfo", "Node 2 MemTotal:       1024 kB\nNode 2 MemFree: 5 kB\n");
    put(node + "/cpulist", std::to_string(number) + "-15\n");
  }
  put("sys/devices/system/node/online", "2,10\n");
  const std::vector<NumaNode> nodes = numa_nodes(roots());
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].number, 2);
  EXPECT_EQ(nodes[1].number, 10);
  EXPECT_EQ(nodes[1].cores, "10-15");
  EXPECT_EQ(nodes[0].total_bytes, kMib);
}

TEST_F(SystemTest, LimitsOfTheProcessAndItsCgroupAreRead) {
  put("proc/self/cgroup", "0::/a/b\n7:pids:/c\n");
  put("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  put("cgroup/a/pids.max", "300\n");
  put("cgroup/a/b/pids.max", "max\n");
  put("cgroup/pids/c/pids.max", "200\n");
  ProcessLimits limits = process_limits(roots());
  EXPECT_TRUE(limits.may_lock_more);
  EXPECT_EQ(limits.cgroup_tasks, 200U);
  put("proc/self/status", "CapEff:\t00000000ffffbfff\n");
  put("proc/self/cgroup", "0::/\n");
  limits = process_limits(roots());
  EXPECT_FALSE(limits.may_lock_more);
  EXPECT_FALSE(limits.cgroup_tasks);
  const rlimit previous = [] {
    rlimit limit = {};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  }();
  const rlimit lower = {.rlim_cur = 100, .rlim_max = previous.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_EQ(process_limits(roots()).open_files, 100U);
  ::setrlimit(RLIMIT_NOFILE, &previous);
}

TEST(System, ThisProcessAndMachineAreMeasured) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(host_memory().value().total_bytes, 0U);
  const ProcessMemory before = process_memory().value();
  std::vector<std::byte> block(64 * kMib, std::byte{1});
  const ProcessMemory after = process_memory().value();
  EXPECT_GT(after.anonymous_bytes, before.anonymous_bytes + 48 * kMib);
  EXPECT_GE(after.resident_bytes_peak, after.anonymous_bytes);
  EXPECT_EQ(block.back(), std::byte{1});
  EXPECT_TRUE(process_memory_detailed());
  EXPECT_FALSE(cpu_model_name().empty());
}

TEST(System, AMissingProcIsAnError) {
  EXPECT_FALSE(host_memory({.proc = "/nonexistent", .cgroup = "/nonexistent"}));
  EXPECT_FALSE(process_memory({.proc = "/nonexistent", .cgroup = "/nonexistent"}));
}

TEST(System, MemoryThatTheProcessMayNotHaveIsAnErrorWithItsHint) {
  EXPECT_TRUE(check_memory(std::uint64_t{1} << 20U));
  const Status status = check_memory(std::uint64_t{1} << 60U);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ExitCode::kOperating);
  EXPECT_NE(status.error().hint.find("ulimit"), std::string::npos);
}

}  // namespace
}  // namespace headrace
