// What every ring must do, whatever carries the operations out.
#include "../../aio/faults.h"
#include "../../aio/io_uring_setup.h"
#include "ring_fixture.h"

#include <atomic>
#include <functional>
#include <ostream>
#include <thread>

namespace spillway::aio {
namespace {

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Ring>(unsigned depth)> make;
  bool registers = false;  ///< the tests register files and memory
  bool threads = false;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

std::function<std::unique_ptr<Ring>(unsigned depth)> io_uring_with(std::size_t set, bool sqpoll = false,
                                                                   bool iopoll = false) {
  return [=](unsigned depth) {
    return make_io_uring_with({.depth = depth, .sqpoll = sqpoll, .iopoll = iopoll}, set);
  };
}

std::function<std::unique_ptr<Ring>(unsigned depth)> faulty(bool threads, const Faults& faults) {
  return [=](unsigned depth) {
    return make_faulty_ring(threads ? make_posix_ring(depth) : make_io_uring({.depth = depth}), faults);
  };
}

const std::vector<Kind> kinds = {
    {"DeferredTaskRun", io_uring_with(0)},
    {"DeferredTaskRunRegistered", io_uring_with(0), true},
    {"CooperativeTaskRun", io_uring_with(1), true},
    {"SeveralIssuers", io_uring_with(2)},
    {"NoFlags", io_uring_with(3)},
    {"NoFlagsRegistered", io_uring_with(3), true},
    {"KernelThread", io_uring_with(0, true)},
    {"KernelThreadRegistered", io_uring_with(0, true), true},
    {"KernelThreadNoFlags", io_uring_with(3, true)},
    {"Polled", io_uring_with(0, false, true), true},
    {"PolledByKernelThread", io_uring_with(0, true, true)},
    {"Threads", [](unsigned depth) { return make_posix_ring(depth); }, true, true},
    {"FaultyWithoutFaults", faulty(false, {}), true},
    {"FaultyLateAndReordered", faulty(false, {.delayed = 0.5, .delay_us = 300, .reorder = true})},
    {"FaultyThreads", faulty(true, {.delayed = 0.5, .delay_us = 300, .reorder = true}), false, true},
};

class RingConformance : public RingTest, public ::testing::WithParamInterface<Kind> {
 protected:
  /// Null, with a reason, where this user may not have such a ring.
  std::unique_ptr<Ring> make(unsigned depth) {
    try {
      return GetParam().make(depth);
    } catch (const Error& error) {
      reason = error.what();
      return nullptr;
    }
  }

  /// An operation that hangs until it is let go; nullopt, with a reason, where there is no such thing.
  std::optional<Operation> hanging(std::uint64_t tag) {
    if (!GetParam().threads) return socket.operation(tag);
    reason = "this user may not handle page faults (vm.unprivileged_userfaultfd)";
    if (!pages.usable()) return std::nullopt;
    return operation(Direction::read, 0, pages.at(0), 1, tag);
  }
  void let_go() {
    if (GetParam().threads) {
      pages.let_go();
    } else {
      socket.let_go();
    }
  }

  std::string reason;
  HangingSocket socket;
  HangingMemory pages{1};
};

TEST_P(RingConformance, MovesBytesBothWays) {
  const auto ring = make(8);
  if (!ring) GTEST_SKIP() << reason;
  EXPECT_EQ(ring->depth(), 8u);
  constexpr std::int64_t block = 64 * KiB;
  constexpr std::uint64_t blocks = file_bytes / block;
  const AlignedBytes memory = aligned_bytes(file_bytes);
  if (GetParam().registers) {
    ring->register_file(3, file);
    ring->register_memory(5, {memory.get(), file_bytes});
  }
  write_pattern(memory.get(), file_bytes, 1, 0);
  for (const Direction direction : {Direction::write, Direction::read}) {
    Results results;
    for (std::uint64_t next = 0; results.size() < blocks;) {
      std::vector<Operation> batch;
      for (; next - results.size() < 8 && next < blocks; ++next) {
        const auto place = static_cast<std::int64_t>(next) * block;
        batch.push_back(operation(direction, place, memory.get() + place, block, ~next));
        if (GetParam().registers) {
          batch.back().file_slot = 3;
          batch.back().memory_slot = 5;
        }
      }
      ring->start(batch);
      reap_into(results, *ring, true);
    }
    for (const auto& [tag, result] : results) EXPECT_EQ(result, block) << tag;
    if (direction == Direction::write) std::fill_n(memory.get(), file_bytes, std::byte{});
  }
  EXPECT_EQ(first_difference(memory.get(), file_bytes, 1, 0), -1);
}

TEST_P(RingConformance, TakesAsManyAsItsDepthAtOnceAgainAndAgain) {
  constexpr unsigned depth = 100;  // no power of two, and more than the threads of the pool
  const auto ring = make(depth);
  if (!ring) GTEST_SKIP() << reason;
  const AlignedBytes memory = aligned_bytes(depth * 512);
  for (int round = 0; round < 20; ++round) {
    std::vector<Operation> batch;
    for (unsigned i = 0; i < depth; ++i) {
      batch.push_back(operation(Direction::read, 512 * i, memory.get() + 512 * i, 512, i));
    }
    ring->start(batch);
    for (const auto& [tag, result] : reap_all(*ring, depth)) ASSERT_EQ(result, 512) << tag;
  }
}

TEST_P(RingConformance, FewCompletionsAtATimeAreEachHandedOutOnce) {
  const auto ring = make(16);
  if (!ring) GTEST_SKIP() << reason;
  const AlignedBytes memory = aligned_bytes(16 * 512);
  std::vector<Operation> batch;
  for (unsigned i = 0; i < 16; ++i) {
    batch.push_back(operation(Direction::read, 512 * i, memory.get() + 512 * i, 512, i));
  }
  ring->start(batch);
  Results results;
  std::array<Completion, 1> one;
  while (results.size() < 16) {
    if (ring->reap(one, true) == 0) continue;
    EXPECT_TRUE(results.emplace(one[0].tag, one[0].result).second);
  }
  EXPECT_EQ(ring->reap(one, true), 0u);
}

TEST_P(RingConformance, ErrorsAndTheEndOfTheFileAreResults) {
  const auto ring = make(4);
  if (!ring) GTEST_SKIP() << reason;
  const AlignedBytes memory = aligned_bytes(64 * KiB);
  std::vector<Operation> batch = {
      operation(Direction::read, 2 * file_bytes, memory.get(), 4096, 1),
      operation(Direction::read, file_bytes - 4096, memory.get(), 64 * KiB, 2),
      operation(Direction::read, 0, memory.get() + 8192, 4096, 3),
      operation(Direction::read, 0, memory.get() + 16384, 4096, 4),
  };
  batch[2].descriptor = 1000000;
  ring->start(batch);
  const auto results = reap_all(*ring, 4);
  EXPECT_EQ(results.at(1), 0);
  EXPECT_EQ(results.at(2), 4096);
  EXPECT_EQ(results.at(3), -EBADF);
  EXPECT_EQ(results.at(4), 4096);
}

TEST_P(RingConformance, NothingInFlightBlocksNothing) {
  const auto ring = make(4);
  if (!ring) GTEST_SKIP() << reason;
  std::array<Completion, 4> completions;
  EXPECT_EQ(ring->reap(completions, true), 0u);
  ring->wake();
  EXPECT_EQ(ring->reap(completions, true), 0u);
  EXPECT_EQ(ring->reap(completions, false), 0u);
}

TEST_P(RingConformance, WakesTheNextReapAndOneUnderWay) {
  const auto ring = make(4);
  if (!ring) GTEST_SKIP() << reason;
  const auto stuck = hanging(7);
  if (!stuck) GTEST_SKIP() << reason;
  ring->start({&*stuck, 1});
  std::array<Completion, 4> completions;
  EXPECT_EQ(ring->reap(completions, false), 0u);
  ring->wake();
  EXPECT_EQ(ring->reap(completions, true), 0u);

  std::atomic<int> round{0};
  std::thread waker([&] {
    for (int i = 1; i <= 60; ++i) {
      while (round.load() < i) std::this_thread::yield();
      if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      ring->wake();
    }
  });
  for (int i = 1; i <= 60; ++i) {
    round = i;
    EXPECT_EQ(ring->reap(completions, true), 0u);
  }
  waker.join();
  let_go();
  EXPECT_EQ(reap_all(*ring, 1).at(7), 1);
}

TEST_P(RingConformance, NoWakeIsLostWhereManyThreadsCall) {
  const auto ring = make(4);
  if (!ring) GTEST_SKIP() << reason;
  const auto stuck = hanging(7);
  if (!stuck) GTEST_SKIP() << reason;
  ring->start({&*stuck, 1});
  std::atomic<int> ended{0};
  std::vector<std::thread> wakers;
  for (int i = 0; i < 4; ++i) {
    wakers.emplace_back([&] {
      for (int call = 0; call < 200; ++call) ring->wake();
      ++ended;
      ring->wake();
    });
  }
  std::array<Completion, 4> completions;
  while (ended < 4) EXPECT_EQ(ring->reap(completions, true), 0u);
  for (std::thread& waker : wakers) waker.join();
  let_go();
  EXPECT_EQ(reap_all(*ring, 1).at(7), 1);
}

TEST_P(RingConformance, CancelledOperationsCompleteAndTheRingGoesOn) {
  const auto ring = make(4);
  if (!ring) GTEST_SKIP() << reason;
  const auto stuck = hanging(1);
  if (!stuck) GTEST_SKIP() << reason;
  const AlignedBytes memory = aligned_bytes(4096);
  ring->start({&*stuck, 1});
  Results results;
  reap_into(results, *ring, false);
  ring->cancel();
  if (GetParam().threads) let_go();  // what a thread does can't be interrupted
  while (results.empty()) reap_into(results, *ring, true);
  EXPECT_TRUE(results.at(1) == -ECANCELED || (GetParam().threads && results.at(1) == 1)) << results.at(1);

  const std::array<Operation, 2> batch = {operation(Direction::read, 0, memory.get(), 512, 2),
                                          operation(Direction::read, 512, memory.get() + 512, 512, 3)};
  ring->start(batch);
  const auto others = reap_all(*ring, 2);
  EXPECT_EQ(others.at(2), 512);
  EXPECT_EQ(others.at(3), 512);
}

TEST_P(RingConformance, WhatIsCancelledBeforeItRanStillCompletes) {
  const auto ring = make(64);
  if (!ring) GTEST_SKIP() << reason;
  const AlignedBytes memory = aligned_bytes(64 * 512);
  std::vector<Operation> batch;
  for (unsigned i = 0; i < 64; ++i) {
    batch.push_back(operation(Direction::read, 512 * i, memory.get() + 512 * i, 512, i));
  }
  ring->start(batch);
  ring->cancel();
  for (const auto& [tag, result] : reap_all(*ring, 64))
    EXPECT_TRUE(result == 512 || result == -ECANCELED) << tag;
}

TEST_P(RingConformance, LeavesNoDescriptor) {
  if (!make(4)) GTEST_SKIP() << reason;
  const std::int64_t before = open_descriptors();
  const AlignedBytes memory = aligned_bytes(4096);
  for (int i = 0; i < 50; ++i) {
    const auto ring = make(4);
    if (i % 10 != 0) continue;
    if (GetParam().registers) ring->register_file(0, file);
    const Operation one = operation(Direction::read, 0, memory.get(), 512, 1);
    ring->start({&one, 1});
    EXPECT_EQ(reap_all(*ring, 1).at(1), 512);
  }
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Rings, RingConformance, ::testing::ValuesIn(kinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace spillway::aio
