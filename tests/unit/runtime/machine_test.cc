// Cores, control groups and memory, on texts and synthetic machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/cgroup.h"
#include "runtime/memory.h"
#include "runtime/topology.h"

namespace xjit {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

FileReader Files(std::map<std::string, std::string> files) {
  return [files](const std::string& path) -> std::optional<std::string> {
    const auto it = files.find(path);
    if (it == files.end()) return std::nullopt;
    return it->second;
  };
}

TEST(Cgroup, ParsesCpuMax) {
  EXPECT_EQ(ParseCpuMax("150000 100000\n"), 1.5);
  EXPECT_EQ(ParseCpuMax("max 100000\n"), std::nullopt);
  for (const char* odd : {"", "\n", "100000", "a b", "-1 100000", "100000 0", "1 -5", "99999999999999999999 1"}) {
    EXPECT_EQ(ParseCpuMax(odd), std::nullopt) << odd;
  }
}

TEST(Cgroup, ParsesCfsQuota) {
  EXPECT_EQ(ParseCfsQuota("50000\n", "100000\n"), 0.5);
  EXPECT_EQ(ParseCfsQuota("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(ParseCfsQuota("50000", ""), std::nullopt);
}

TEST(Cgroup, ParsesLimitsAndFields) {
  EXPECT_EQ(ParseLimit("4096\n"), 4096);
  EXPECT_EQ(ParseLimit("max\n"), std::nullopt);
  EXPECT_EQ(ParseLimit("9223372036854771712\n"), std::nullopt);  // how v1 writes no limit
  EXPECT_EQ(ParseLimit("-1"), std::nullopt);
  const char* text = "MemTotal:  10 kB\nMemAvailable:    7 kB\ninactive_file 4096\ninactive_file_x 1\nbad:\n";
  EXPECT_EQ(ParseField(text, "MemAvailable"), 7 * 1024);
  EXPECT_EQ(ParseField(text, "inactive_file"), 4096);
  EXPECT_EQ(ParseField(text, "Mem"), std::nullopt);
  EXPECT_EQ(ParseField(text, "bad"), std::nullopt);
  EXPECT_EQ(ParseField("k: 9223372036854775807 kB", "k"), std::nullopt);
}

constexpr char kMountV2[] = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kMountV1[] =
    "22 27 0:21 / /proc rw - proc proc rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

TEST(Cgroup, FindsAllParents) {
  EXPECT_THAT(CgroupDirs("0::/a/b\n", kMountV2, "cpu"),
              ElementsAre(CgroupDir{"/sys/fs/cgroup/a/b", true}, CgroupDir{"/sys/fs/cgroup/a", true},
                          CgroupDir{"/sys/fs/cgroup", true}));
  EXPECT_THAT(CgroupDirs("0::/\n", kMountV2, "cpu"), ElementsAre(CgroupDir{"/sys/fs/cgroup", true}));
  // Outside of the cgroup namespace.
  EXPECT_THAT(CgroupDirs("0::/../x\n", kMountV2, "cpu"), ElementsAre(CgroupDir{"/sys/fs/cgroup", true}));
  // A hybrid machine: v1 holds the controller, v2 is there too and harmless.
  EXPECT_THAT(CgroupDirs("4:memory:/m\n3:cpu,cpuacct:/c\n0::/\n", kMountV1, "cpu"),
              ElementsAre(CgroupDir{"/sys/fs/cgroup/cpu,cpuacct/c", false},
                          CgroupDir{"/sys/fs/cgroup/cpu,cpuacct", false}, CgroupDir{"/sys/fs/cgroup/unified", true}));
  // "cpuset" is not "cpu".
  EXPECT_THAT(CgroupDirs("3:cpuset:/c\n", kMountV1, "cpu"), IsEmpty());
}

TEST(Cgroup, ContainerThatSeesTheHostsPath) {
  const char* mount = "32 31 0:29 /docker/f00 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
  EXPECT_THAT(CgroupDirs("3:cpu:/docker/f00/sub\n", mount, "cpu"),
              ElementsAre(CgroupDir{"/sys/fs/cgroup/cpu/sub", false}, CgroupDir{"/sys/fs/cgroup/cpu", false}));
  EXPECT_THAT(CgroupDirs("3:cpu:/docker/f00d\n", mount, "cpu"), ElementsAre(CgroupDir{"/sys/fs/cgroup/cpu", false}));
}

TEST(Cgroup, OddTextsAreNoLimit) {
  for (const char* odd : {"", "\n\n", ":", "0", "0:", "1 2 3 4 5 6 - cgroup2", " - - - - - - - - "}) {
    EXPECT_THAT(CgroupDirs(odd, odd, "cpu"), IsEmpty()) << odd;
    EXPECT_THAT(CgroupDirs(odd, kMountV2, "cpu"), IsEmpty()) << odd;
    EXPECT_THAT(CgroupDirs("0::/", odd, "cpu"), IsEmpty()) << odd;
  }
  EXPECT_EQ(CgroupDirs("0::/", "1 2 3 / /a\\040b rw - cgroup2 c rw", "cpu").at(0).path, "/a b");
}

TEST(Cgroup, TakesTheTightestQuota) {
  EXPECT_EQ(CgroupCpus(Files({{"/proc/self/cgroup", "0::/a/b"},
                              {"/proc/self/mountinfo", kMountV2},
                              {"/sys/fs/cgroup/a/b/cpu.max", "400000 100000"},
                              {"/sys/fs/cgroup/a/cpu.max", "250000 100000"},
                              {"/sys/fs/cgroup/cpu.max", "max 100000"}})),
            2.5);
  EXPECT_EQ(CgroupCpus(Files({{"/proc/self/cgroup", "3:cpu,cpuacct:/c\n0::/\n"},
                              {"/proc/self/mountinfo", kMountV1},
                              {"/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "-1"},
                              {"/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000"},
                              {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000"},
                              {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"}})),
            3);
  EXPECT_EQ(CgroupCpus(Files({})), std::nullopt);
}

TEST(Memory, AvailableIsTheLeast) {
  const std::map<std::string, std::string> machine = {{"/proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 50 kB\n"}};
  EXPECT_EQ(*MemoryAvailable(Files(machine)), 50 * 1024);

  auto v2 = machine;
  v2["/proc/self/cgroup"] = "0::/a";
  v2["/proc/self/mountinfo"] = kMountV2;
  v2["/sys/fs/cgroup/a/memory.max"] = "30000";
  v2["/sys/fs/cgroup/a/memory.current"] = "25000";
  v2["/sys/fs/cgroup/a/memory.stat"] = "anon 1\ninactive_file 10000\n";
  EXPECT_EQ(*MemoryAvailable(Files(v2)), 15000);
  v2["/sys/fs/cgroup/a/memory.current"] = "99999";
  EXPECT_EQ(*MemoryAvailable(Files(v2)), 0);
  v2["/sys/fs/cgroup/a/memory.max"] = "max";
  EXPECT_EQ(*MemoryAvailable(Files(v2)), 50 * 1024);

  auto v1 = machine;
  v1["/proc/self/cgroup"] = "4:memory:/m";
  v1["/proc/self/mountinfo"] = kMountV1;
  v1["/sys/fs/cgroup/memory/m/memory.limit_in_bytes"] = "9223372036854771712";
  v1["/sys/fs/cgroup/memory/m/memory.usage_in_bytes"] = "5";
  v1["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "20000";
  v1["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = "8000";
  v1["/sys/fs/cgroup/memory/memory.stat"] = "inactive_file 1\ntotal_inactive_file 3000\n";
  EXPECT_EQ(*MemoryAvailable(Files(v1)), 15000);

  EXPECT_EQ(MemoryAvailable(Files({})).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_GT(*MemoryAvailable(), 0);
}

TEST(Memory, BuffersAreAlignedZeroedAndMove) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4097}, HugeBuffer::kHugePage - 1, 3 * HugeBuffer::kHugePage + 5}) {
    auto buffer = HugeBuffer::Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    ASSERT_EQ(buffer->size(), bytes);
    const auto address = reinterpret_cast<uintptr_t>(buffer->data());
    EXPECT_EQ(address % 4096, 0U);
    if (bytes >= HugeBuffer::kHugePage) {
      EXPECT_EQ(address % HugeBuffer::kHugePage, 0U);
    }
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
    buffer->data()[bytes - 1] = std::byte{7};
    std::byte* data = buffer->data();
    HugeBuffer moved = *std::move(buffer);
    EXPECT_EQ(moved.data(), data);
    EXPECT_EQ(moved.data()[bytes - 1], std::byte{7});
    EXPECT_EQ(buffer->data(), nullptr);
    HugeBuffer assigned;
    assigned = std::move(moved);
    EXPECT_EQ(assigned.size(), bytes);
    EXPECT_GE(assigned.HugeBytes(), 0);
    EXPECT_LE(assigned.HugeBytes(), (bytes / HugeBuffer::kHugePage + 1) * HugeBuffer::kHugePage);
  }
  EXPECT_EQ(HugeBuffer::Allocate(0)->data(), nullptr);
  EXPECT_EQ(HugeBuffer::Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HugeBuffer::Allocate(INT64_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  // More than the machine has is refused before the system is asked to lock it.
  EXPECT_EQ(HugeBuffer::Allocate(int64_t{1} << 45, {.huge = true, .lock = true}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(HugeBuffer::Allocate(4096, {.huge = false, .lock = true}).ok());
}

std::vector<int> FirstPus(const CpuTopology& topology) {
  std::vector<int> pus;
  for (const auto& core : topology.cores) pus.push_back(core.pus[0]);
  return pus;
}

TEST(Topology, ReadsSyntheticMachines) {
  const auto six = SyntheticTopology("pack:2 numa:3 core:20 pu:2");
  ASSERT_TRUE(six.ok()) << six.status();
  EXPECT_EQ(six->nodes.size(), 6U);
  EXPECT_EQ(six->cores.size(), 120U);
  EXPECT_EQ(six->pus(), 240);
  EXPECT_EQ(six->cores[0].node, 0);
  EXPECT_EQ(six->cores[20].node, 1);
  EXPECT_EQ(six->cores[119].node, 5);
  const auto caches = SyntheticTopology("pack:1 l3:1(size=33554432) l2:2(size=1048576) l1d:1(size=32768) core:1 pu:1");
  ASSERT_TRUE(caches.ok()) << caches.status();
  EXPECT_EQ(caches->l3_bytes, 32 << 20);
  EXPECT_EQ(caches->l2_bytes, 1 << 20);
  EXPECT_EQ(caches->l1d_bytes, 32 << 10);
  EXPECT_EQ(SyntheticTopology("six apples").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Topology, RestrictKeepsWhatTheMaskAllows) {
  const auto machine = SyntheticTopology("numa:2 core:2 pu:2");  // units 0 1 | 2 3 || 4 5 | 6 7
  ASSERT_TRUE(machine.ok());
  const CpuTopology some = Restrict(*machine, {5, 6, 7, 99});
  EXPECT_THAT(some.nodes, ElementsAre(1));
  EXPECT_THAT(some.cores, ElementsAre(CpuTopology::Core{{5}, 0}, CpuTopology::Core{{6, 7}, 0}));
  EXPECT_THAT(Restrict(*machine, {}).cores, IsEmpty());
}

TEST(Topology, ChoosesThreads) {
  const auto machine = SyntheticTopology("numa:2 core:2 pu:2");
  ASSERT_TRUE(machine.ok());
  // One a core, all pinned.
  auto choice = ChooseThreads(std::nullopt, *machine, std::nullopt);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->cpus, FirstPus(*machine));
  EXPECT_EQ(choice->reason, "4 physical cores");
  EXPECT_EQ(choice->warning, "");
  // A quota rounds up and unpins.
  choice = ChooseThreads(std::nullopt, *machine, 1.5);
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->cpus, ElementsAre(-1, -1));
  EXPECT_EQ(choice->reason, "cgroup quota of 1.5 cpus, 4 physical cores");
  EXPECT_EQ(ChooseThreads(std::nullopt, *machine, 0.2)->threads(), 1);
  EXPECT_EQ(ChooseThreads(std::nullopt, *machine, 4)->threads(), 4);
  EXPECT_EQ(ChooseThreads(std::nullopt, *machine, 64)->threads(), 4);
  // Fewer on request; more only with a warning, second units last.
  EXPECT_THAT(ChooseThreads(1, *machine, std::nullopt)->cpus, ElementsAre(-1));
  choice = ChooseThreads(6, *machine, std::nullopt);
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->cpus, ElementsAre(0, 2, 4, 6, 1, 3));
  EXPECT_THAT(choice->warning, HasSubstr("more than the 4 usable"));
  EXPECT_THAT(ChooseThreads(4, *machine, 2.0)->warning, HasSubstr("cgroup quota of 2 cpus"));
  // Beyond the processing units they are left to the system.
  choice = ChooseThreads(9, *machine, std::nullopt);
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->cpus, Each(-1));
  EXPECT_THAT(choice->warning, HasSubstr("more than the 4 usable"));
  const int most = 8 * kMaxThreadsPerPu;
  EXPECT_TRUE(ChooseThreads(most, *machine, std::nullopt).ok());
  EXPECT_THAT(std::string(ChooseThreads(most + 1, *machine, std::nullopt).status().message()),
              HasSubstr("--threads 257: more than 256, 32 for each of 8 processing units"));
  for (const int bad : {0, -1}) {
    const auto status = ChooseThreads(bad, *machine, std::nullopt).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("leave it out for 4"));
  }
}

TEST(Topology, ReadsThisMachine) {
  const auto host = HostTopology();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_GE(host->cores.size(), 1U);
  EXPECT_GE(host->nodes.size(), 1U);
  const auto cores = UsableCores();
  ASSERT_TRUE(cores.ok());
  EXPECT_GE(cores->size(), 1U);
  EXPECT_LE(cores->size(), host->cores.size());
  EXPECT_EQ(ChooseThreads(std::nullopt)->threads(), static_cast<int>(cores->size()));
}

}  // namespace
}  // namespace xjit
