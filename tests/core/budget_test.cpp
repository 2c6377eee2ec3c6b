#include "../../core/budget.h"

#include "../../core/error.h"
#include "../../core/trace.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace spillway {
namespace {

TEST(Budget, CountsUseAndPeaksOfEachName) {
  Budget budget(Tier::host);
  budget.reserve("records", 100);
  budget.reserve("gradients", 30);
  budget.release("records", 100);
  budget.reserve("gradients", 40);
  EXPECT_EQ(budget.used(), 70);
  EXPECT_EQ(budget.peak(), 130);
  const std::map<std::string, std::int64_t> peaks = {{"records", 100}, {"gradients", 70}};
  EXPECT_EQ(budget.peaks_by_name(), peaks);
  EXPECT_EQ(budget.limit(), -1);
}

TEST(Budget, RefusesWhatExceedsTheLimitWithTheNumbersAndCountsNothing) {
  Budget budget(Tier::device, 4096);
  budget.reserve("staging", 3072);
  try {
    budget.reserve("activations", 1025);
    FAIL() << "accepted more than the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    EXPECT_STREQ(error.what(),
                 "device memory: 1.0 KiB for activations does not fit, 3 KiB of 4 KiB are in use");
  }
  EXPECT_EQ(budget.used(), 3072);
  EXPECT_EQ(budget.peaks_by_name().count("activations"), 0u);
  budget.reserve("activations", 1024);
  EXPECT_EQ(budget.used(), 4096);
  EXPECT_THROW(budget.reserve("one", 1), Error);
  // A sum that would overflow is as much too large as any other.
  EXPECT_THROW(budget.reserve("absurd", std::numeric_limits<std::int64_t>::max()), Error);
  EXPECT_THROW(budget.reserve("negative", -1), std::logic_error);
}

TEST(Budget, NeverExceedsItsLimitWithManyThreads) {
  Budget budget(Tier::host, 1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, name = "thread " + std::to_string(i)] {
      for (int repeat = 0; repeat < 2000; ++repeat) {
        try {
          budget.reserve(name, 400);
        } catch (const Error&) {
          continue;
        }
        EXPECT_LE(budget.used(), 1000);
        budget.release(name, 400);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0);
  EXPECT_LE(budget.peak(), 800);
  EXPECT_GE(budget.peak(), 400);
}

TEST(Memory, IsExactZeroedAndPageAligned) {
  Budget budget(Tier::host, 10000);
  const Memory memory(budget, "records", 10000);
  EXPECT_EQ(memory.bytes(), 10000);
  EXPECT_EQ(budget.used(), 10000);  // not rounded up to pages or powers of two
  EXPECT_EQ(
      reinterpret_cast<std::uintptr_t>(memory.data()) % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)), 0u);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + 10000, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Memory, LargeOnesBeginAtAHugePageAndEndExactly) {
  Budget budget(Tier::host);
  constexpr std::int64_t huge = std::int64_t{2} << 20;
  for (const std::int64_t bytes : {huge - 1, huge, huge + 1, 3 * huge + 4096, 8 * huge - 5000}) {
    for (const Pages pages : {Pages::present, Pages::untouched}) {
      const Memory memory(budget, "large", bytes, pages);
      if (bytes >= huge) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % huge, 0u);
      }
      EXPECT_TRUE(
          std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{}; }));
      std::fill_n(memory.data(), bytes, std::byte{7});
      // The kernel says which pages exist: those of the memory, and no more behind it.
      const std::int64_t page = sysconf(_SC_PAGESIZE), pages_of_it = (bytes + page - 1) / page;
      std::vector<unsigned char> there(static_cast<std::size_t>(pages_of_it));
      ASSERT_EQ(mincore(memory.data(), static_cast<std::size_t>(bytes), there.data()), 0);
      EXPECT_TRUE(
          std::all_of(there.begin(), there.end(), [](unsigned char state) { return (state & 1) != 0; }));
      std::ifstream maps("/proc/self/smaps");
      bool found = false;
      for (std::string line; std::getline(maps, line);) {
        unsigned long begin = 0, end = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) != 2) continue;
        if (begin != reinterpret_cast<std::uintptr_t>(memory.data()) || bytes < huge) continue;
        found = true;
        EXPECT_EQ(end - begin, static_cast<unsigned long>(pages_of_it * page));
      }
      EXPECT_EQ(found, bytes >= huge);
    }
  }
}

TEST(Memory, MovesWithItsBytesAndGivesThemBackOnce) {
  Budget budget(Tier::host, 8192);
  {
    Memory first(budget, "a", 4096);
    first.as<int>()[0] = 17;
    Memory second = std::move(first);
    EXPECT_EQ(second.as<int>()[0], 17);
    EXPECT_EQ(budget.used(), 4096);
    Memory third(budget, "b", 4096);
    EXPECT_THROW(Memory(budget, "c", 1), Error);
    third = std::move(second);  // b's bytes go with `second`
    EXPECT_EQ(third.as<int>()[0], 17);
    second.reset();
    EXPECT_EQ(budget.used(), 4096);
    third.reset();
    third.reset();
    EXPECT_EQ(budget.used(), 0);
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.peak(), 8192);
  EXPECT_EQ(Memory(budget, "none", 0).data(), nullptr);
}

TEST(Memory, WhatTheSystemCannotGiveIsAnErrorAndCountsNothing) {
  Budget budget(Tier::host);
  try {
    Memory memory(budget, "records", std::int64_t{1} << 60);
    FAIL() << "the system gave an exbibyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    EXPECT_NE(std::string(error.what()).find("records"), std::string::npos);
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(Memory, IsSeenByTheTraceFromAllocationToEnd) {
  Trace trace;
  Budget budget(Tier::nvme);
  budget.set_trace(&trace);
  { const Memory one(budget, "one", 10), two(budget, "two", 20); }
  budget.set_trace(nullptr);
  { const Memory unseen(budget, "unseen", 30); }
  const auto events = trace.buffer_events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].kind, "one");
  EXPECT_EQ(events[0].tier, Tier::nvme);
  EXPECT_EQ(events[0].bytes, 10);
  EXPECT_EQ(events[0].action, BufferAction::allocate);
  EXPECT_EQ(events[3].action, BufferAction::free);
  EXPECT_EQ(events[3].id, events[0].id);  // destroyed in the other order
  EXPECT_NE(events[0].id, events[1].id);
}

}  // namespace
}  // namespace spillway
