#include "../../core/topology.h"

#include "../../core/error.h"
#include "../../core/machine.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

namespace spillway {
namespace {

/// As many systems number them: the first hardware threads of all cores, then the second ones.
std::vector<Processor> machine(int nodes, int cores_of_node, int threads_of_core) {
  std::vector<Processor> processors;
  const int cores = nodes * cores_of_node;
  for (int thread = 0; thread < threads_of_core; ++thread)
    for (int core = 0; core < cores; ++core)
      processors.push_back({.number = thread * cores + core, .core = core, .node = core / cores_of_node});
  return processors;
}

using Numbers = std::vector<int>;

TEST(Topology, EachCoreGetsAWorkerBeforeASecondHardwareThreadIsUsed) {
  EXPECT_EQ(worker_processors(machine(1, 4, 2), 4, 0), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(worker_processors(machine(1, 4, 2), 8, 0), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  // Numbers of which two neighbours are one core.
  const std::vector<Processor> paired = {{0, 0, 0}, {1, 0, 0}, {2, 1, 0}, {3, 1, 0}};
  EXPECT_EQ(worker_processors(paired, 2, 0), (Numbers{0, 2}));
  EXPECT_EQ(worker_processors(paired, 4, 0), (Numbers{0, 2, 1, 3}));
}

TEST(Topology, CoresOfANodeAreNeighboursHoweverTheSystemNumbersThem) {
  // Even numbers on one node, odd ones on the other.
  std::vector<Processor> alternating;
  for (int number = 0; number < 8; ++number)
    alternating.push_back({.number = number, .core = number, .node = number % 2});
  EXPECT_EQ(worker_processors(alternating, 8, 0), (Numbers{0, 2, 4, 6, 1, 3, 5, 7}));
  std::reverse(alternating.begin(), alternating.end());
  EXPECT_EQ(worker_processors(alternating, 8, 0), (Numbers{0, 2, 4, 6, 1, 3, 5, 7}));
}

TEST(Topology, FewWorkersAreSpreadOverAllNodes) {
  EXPECT_EQ(worker_processors(machine(2, 4, 2), 4, 0), (Numbers{0, 2, 4, 6}));
  EXPECT_EQ(worker_processors(machine(2, 4, 2), 2, 0), (Numbers{0, 4}));
  EXPECT_EQ(worker_processors(machine(2, 4, 2), 3, 0), (Numbers{0, 2, 5}));
  // Ten: each core, and two second hardware threads, one on each node.
  EXPECT_EQ(worker_processors(machine(2, 4, 2), 10, 0), (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 12}));
}

TEST(Topology, WorkersBeyondTheHardwareThreadsBeginAgain) {
  EXPECT_EQ(worker_processors(machine(1, 2, 2), 9, 0), (Numbers{0, 1, 2, 3, 0, 1, 2, 3, 0}));
  EXPECT_EQ(worker_processors({{5, 0, 0}}, 3, 0), (Numbers{5, 5, 5}));
}

TEST(Topology, AMaskMayLeaveOneHardwareThreadOfACoreOnly) {
  // Core 0 has two, core 1 its second one only, core 2 none.
  EXPECT_EQ(worker_processors({{0, 0, 0}, {4, 0, 0}, {5, 1, 0}}, 4, 0), (Numbers{0, 5, 4, 0}));
}

TEST(Topology, TheLastCoresAreReservedWithAllTheirHardwareThreads) {
  EXPECT_EQ(worker_processors(machine(2, 2, 2), 3, 1), (Numbers{0, 1, 2}));
  EXPECT_EQ(worker_processors(machine(2, 2, 2), 6, 1), (Numbers{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(worker_processors(machine(2, 2, 2), 7, 1), (Numbers{0, 1, 2, 4, 5, 6, 0}));
  EXPECT_EQ(worker_processors(machine(2, 2, 1), 1, 3), (Numbers{0}));
}

TEST(Topology, ReservingEveryCoreIsAnErrorThatSaysHowManyMayBe) {
  for (const int reserved : {4, 5}) {
    try {
      worker_processors(machine(2, 2, 2), 1, reserved);
      FAIL() << reserved << " of 4 cores were reserved";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      EXPECT_NE(std::string(error.what()).find("io_cores: " + std::to_string(reserved)), std::string::npos)
          << error.what();
      EXPECT_EQ(error.detail().hint, "leave at most 3 to the drive (spillway.io_cores, --io-cores)");
    }
  }
  try {
    worker_processors(machine(1, 1, 2), 1, 1);
    FAIL() << "the only core was reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().hint,
              "leave none (spillway.io_cores, --io-cores), or give the process more processors");
  }
}

TEST(Topology, NonsenseIsAnInvalidArgument) {
  EXPECT_THROW(worker_processors(machine(1, 2, 1), 0, 0), std::invalid_argument);
  EXPECT_THROW(worker_processors(machine(1, 2, 1), 1, -1), std::invalid_argument);
  EXPECT_THROW(worker_processors({}, 1, 0), std::invalid_argument);
}

TEST(Topology, BindsByDefaultWhereSeveralNodesAreWhollyOurs) {
  EXPECT_TRUE(should_pin_threads(machine(2, 4, 2), 16));
  EXPECT_FALSE(should_pin_threads(machine(2, 4, 2), 15)) << "a quota is worth less than the processors";
  EXPECT_FALSE(should_pin_threads(machine(1, 4, 2), 8)) << "one node";
  EXPECT_FALSE(should_pin_threads({}, 1));
}

TEST(Topology, ReadsCoresAndNodes) {
  const auto processors = allowed_processors("node:2 core:4 pu:2");
  ASSERT_EQ(processors.size(), 16u);
  std::map<int, std::set<int>> of_core, of_node;
  for (const Processor& processor : processors) {
    of_core[processor.core].insert(processor.number);
    of_node[processor.node].insert(processor.core);
  }
  EXPECT_EQ(of_core.size(), 8u);
  for (const auto& [core, numbers] : of_core) EXPECT_EQ(numbers, (std::set<int>{2 * core, 2 * core + 1}));
  EXPECT_EQ(of_node, (std::map<int, std::set<int>>{{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}}));
  EXPECT_EQ(worker_processors(processors, 8, 0), (Numbers{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_TRUE(should_pin_threads(processors, 16));
}

TEST(Topology, ReadsNumbersThatTheSystemGivesInAnotherOrder) {
  // As the system often does: the hardware threads of a core are 4 apart.
  const auto processors = allowed_processors("node:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)");
  EXPECT_EQ(worker_processors(processors, 4, 0), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(worker_processors(processors, 8, 0), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(should_pin_threads(processors, 8));
}

TEST(Topology, ProcessorsWithoutCoresAreCoresOfTheirOwn) {
  EXPECT_EQ(worker_processors(allowed_processors("node:2 pu:2"), 4, 1), (Numbers{0, 1, 2, 0}));
}

TEST(Topology, WhatHwlocCannotReadIsAnError) {
  try {
    allowed_processors("no topology");
    FAIL() << "hwloc read it";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    EXPECT_EQ(error.detail().operation, "hwloc_topology_set_synthetic");
    EXPECT_NE(error.detail().hint.find("pin_threads"), std::string::npos) << error.detail().hint;
  }
}

std::set<int> mask_of_this_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  std::set<int> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number)
    if (CPU_ISSET(static_cast<std::size_t>(number), &mask)) numbers.insert(number);
  return numbers;
}

TEST(Topology, ThisMachineHasTheProcessorsOfTheMask) {
  std::set<int> numbers;
  for (const Processor& processor : allowed_processors()) numbers.insert(processor.number);
  EXPECT_EQ(numbers, mask_of_this_thread());
}

TEST(Topology, ARestrictedMaskCounts) {
  const int last = *mask_of_this_thread().rbegin();
  std::thread([&] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(static_cast<std::size_t>(last), &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(worker_processors(2, 0), (Numbers{last, last}));
    EXPECT_THROW(worker_processors(1, 1), Error);
    EXPECT_FALSE(should_pin_threads());
  }).join();
}

TEST(Topology, TheDefaultForThisMachineFollowsItsNodesAndQuota) {
  EXPECT_EQ(should_pin_threads(), should_pin_threads(allowed_processors(), available_processors()));
}

TEST(Topology, PoolsAreBoundWhereItIsAskedFor) {
  EXPECT_EQ(pool_processors(false, 2, 0), Numbers{});
  EXPECT_EQ(pool_processors(true, 2, 0), worker_processors(2, 0));
  EXPECT_EQ(pool_processors(std::nullopt, 2, 0).empty(), !should_pin_threads());
  EXPECT_THROW(pool_processors(true, 1, 4096), Error);
}

TEST(Topology, DefaultThreadsLeaveTheReservedCoresAlone) {
  EXPECT_EQ(default_threads(0), available_processors());
  std::set<int> cores;
  for (const Processor& processor : allowed_processors()) cores.insert(processor.core);
  const int most = static_cast<int>(cores.size()) - 1;
  if (most == 0) GTEST_SKIP() << "one core";
  EXPECT_LT(default_threads(most), static_cast<int>(allowed_processors().size()));
  EXPECT_GE(default_threads(most), 1);
  EXPECT_THROW(default_threads(most + 1), Error);
}

}  // namespace
}  // namespace spillway
