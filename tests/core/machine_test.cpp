#include "../../core/machine.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace spillway {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

/// A tree that looks like the root of a machine with 1,000 MiB, of which 600 can be taken.
class Machine : public testing::Test {
 protected:
  Machine() : root_(std::filesystem::absolute("machine." + std::to_string(getpid())).string()) {
    write("/proc/meminfo",
          "MemTotal:        1024000 kB\nMemFree:          100000 kB\nMemAvailable:     614400 kB\n");
  }
  ~Machine() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void expect(std::int64_t total_mib, std::int64_t available_mib, bool is_limited) const {
    const MachineMemory memory = machine_memory(root_);
    EXPECT_EQ(memory.total, total_mib * kMiB);
    EXPECT_EQ(memory.available, available_mib * kMiB);
    EXPECT_EQ(memory.is_limited, is_limited);
  }

  std::string root_;
};

TEST_F(Machine, WithoutGroupsMemoryIsWhatTheMachineHas) {
  expect(1000, 600, false);
  EXPECT_EQ(available_processors(root_), available_processors());
}

TEST_F(Machine, NothingIsKnownWhereNothingCanBeRead) {
  const MachineMemory memory = machine_memory(root_ + "/gone");
  EXPECT_EQ(memory.total, 0);
  EXPECT_EQ(memory.available, 0);
  EXPECT_GE(available_processors(root_ + "/gone"), 1);
}

TEST_F(Machine, ThisOneHasMemory) {
  const MachineMemory memory = machine_memory();
  EXPECT_GT(memory.available, 0);
  EXPECT_GE(memory.total, memory.available);
}

TEST_F(Machine, TheTightestGroupOnTheWayUpCountsAndPageCacheDoesNot) {
  write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::string groups = "/sys/fs/cgroup";
  write(groups + "/outer/inner/memory.max", "max\n");
  write(groups + "/outer/inner/memory.current", "999999999999\n");
  write(groups + "/outer/memory.max", std::to_string(400 * kMiB) + "\n");
  write(groups + "/outer/memory.current", std::to_string(350 * kMiB) + "\n");
  write(groups + "/outer/memory.stat", "anon 5\ninactive_file " + std::to_string(100 * kMiB) +
                                           "\nactive_file " + std::to_string(50 * kMiB) + "\n");
  expect(400, 200, true);
  write(groups + "/outer/inner/memory.high", std::to_string(300 * kMiB) + "\n");
  write(groups + "/outer/inner/memory.current", std::to_string(290 * kMiB) + "\n");
  expect(300, 10, true);
  write(groups + "/outer/inner/memory.current", std::to_string(310 * kMiB) + "\n");
  expect(300, 0, true);
}

TEST_F(Machine, AContainerThatSeesItsGroupAsTheRootIsUnderstood) {
  write("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  write("/sys/fs/cgroup/memory.max", std::to_string(512 * kMiB) + "\n");
  write("/sys/fs/cgroup/memory.current", std::to_string(12 * kMiB) + "\n");
  expect(512, 500, true);
  write("/sys/fs/cgroup/memory.max", std::to_string(5000 * kMiB) + "\n");
  expect(1000, 600, false);
}

TEST_F(Machine, VersionOneOfTheGroupsIsUnderstood) {
  write("/proc/self/cgroup", "11:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(300 * kMiB) + "\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(200 * kMiB) + "\n");
  write("/sys/fs/cgroup/memory/job/memory.stat",
        "inactive_file 7\ntotal_inactive_file " + std::to_string(80 * kMiB) + "\ntotal_active_file 0\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(900 * kMiB) + "\n");
  expect(300, 180, true);
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(available_processors(root_), 1);
}

TEST_F(Machine, AQuotaOfProcessorsIsRoundedUpAndNeverAddsAny) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const int all = CPU_COUNT(&set);
  write("/proc/self/cgroup", "0::/job\n");
  const auto with = [&](const std::string& quota) {
    write("/sys/fs/cgroup/job/cpu.max", quota);
    return available_processors(root_);
  };
  EXPECT_EQ(with("max 100000\n"), all);
  EXPECT_EQ(with("1 100000\n"), 1);
  EXPECT_EQ(with("100000 100000\n"), 1);
  EXPECT_EQ(with("100001 100000\n"), std::min(all, 2));
  EXPECT_EQ(with("900000000 100000\n"), all);
  EXPECT_EQ(with("0 0\n"), all);
  EXPECT_EQ(with("many\n"), all);
}

TEST(MemoryMargin, IsASixteenthAndAtLeast128MiB) {
  EXPECT_EQ(memory_without_margin(16'000 * kMiB), 15'000 * kMiB);
  EXPECT_EQ(memory_without_margin(1'000 * kMiB), 872 * kMiB);
  EXPECT_EQ(memory_without_margin(100 * kMiB), 0);
  EXPECT_EQ(memory_without_margin(0), 0);
}

}  // namespace
}  // namespace spillway
