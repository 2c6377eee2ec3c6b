#include "../../core/parallel.h"

#include "../../core/error.h"
#include "../aio/seccomp.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

namespace spillway {
namespace {

/// Waits until another thread makes it true; false where that has not happened after long.
template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

using Blocks = std::vector<std::int64_t>;

/// What each of `threads` workers ran, in its order, where all are equally fast: each begins its next block
/// when all have begun the last one. `blocks` is a multiple of the threads, or less than they are.
std::vector<Blocks> blocks_of_equals(Workers& workers, std::int64_t blocks) {
  std::vector<Blocks> ran(static_cast<std::size_t>(workers.threads()));
  const int together = static_cast<int>(std::min<std::int64_t>(blocks, workers.threads()));
  std::atomic<int> begun{0};
  workers.for_blocks(blocks, [&](std::int64_t block, int worker) {
    auto& own = ran[static_cast<std::size_t>(worker)];
    own.push_back(block);
    ++begun;
    const int round_end = static_cast<int>(own.size()) * together;
    if (!comes_true([&] { return begun >= round_end; })) throw std::runtime_error("a worker has not come");
  });
  return ran;
}

/// The processors that this thread may run on.
std::vector<int> mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number)
    if (CPU_ISSET(static_cast<std::size_t>(number), &set)) numbers.push_back(number);
  return numbers;
}

/// What the system has none of, if it has fewer than 1,024 processors.
constexpr int kNoProcessor = CPU_SETSIZE - 1;

TEST(Workers, EveryBlockRunsOnceUnderAValidWorker) {
  for (int threads : {1, 2, 3, 5}) {
    Workers workers(threads);
    for (std::int64_t blocks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(blocks));
      std::atomic<bool> valid{true};
      workers.for_blocks(blocks, [&](std::int64_t block, int worker) {
        runs[static_cast<std::size_t>(block)]++;
        if (worker < 0 || worker >= threads) valid = false;
      });
      for (auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_TRUE(valid);
    }
  }
}

TEST(Workers, NoTwoBlocksShareAWorkerAtOnceEvenWithSeveralCallers) {
  Workers workers(3);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared{false}, has_slept{false};
  std::atomic<int> callers{0};
  auto call = [&] {
    ++callers;
    for (int repeat = 0; repeat < 20; ++repeat) {
      workers.for_blocks(50, [&](std::int64_t, int worker) {
        if (inside[static_cast<std::size_t>(worker)]++ != 0) shared = true;
        EXPECT_TRUE(comes_true([&] { return callers == 2; }));
        if (!has_slept.exchange(true)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        inside[static_cast<std::size_t>(worker)]--;
      });
    }
  };
  std::thread a(call), b(call);
  a.join();
  b.join();
  EXPECT_FALSE(shared);
}

TEST(Workers, ThrowsTheExceptionOfABlockAndStaysUsable) {
  Workers workers(2);
  EXPECT_THROW(workers.for_blocks(100,
                                  [](std::int64_t block, int) {
                                    if (block == 13) throw std::runtime_error("thirteen");
                                  }),
               std::runtime_error);
  std::atomic<int> count{0};
  workers.for_blocks(10, [&](std::int64_t, int) { ++count; });
  EXPECT_EQ(count, 10);
}

TEST(Workers, RefusesNoThreads) {
  EXPECT_THROW(Workers(0), std::invalid_argument);
}

TEST(Workers, EqualWorkersRunTheirOwnRangesFrontToBack) {
  Workers workers(4);
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_EQ(blocks_of_equals(workers, 12),
              (std::vector<Blocks>{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}}));
  }
}

TEST(Workers, FewerBlocksThanWorkersGoToTheFirstOnesAlone) {
  Workers workers(4);
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_EQ(blocks_of_equals(workers, 2), (std::vector<Blocks>{{0}, {1}, {}, {}}));
    EXPECT_EQ(blocks_of_equals(workers, 1), (std::vector<Blocks>{{0}, {}, {}, {}}));
  }
}

TEST(Workers, RangesDifferByOneBlockAtMost) {
  Workers workers(4);
  std::vector<std::int64_t> first(4, -1);
  std::atomic<int> begun{0};
  workers.for_blocks(10, [&](std::int64_t block, int worker) {
    if (first[static_cast<std::size_t>(worker)] >= 0) return;
    first[static_cast<std::size_t>(worker)] = block;
    ++begun;
    EXPECT_TRUE(comes_true([&] { return begun == 4; }));
  });
  EXPECT_EQ(first, (Blocks{0, 2, 5, 7}));
}

TEST(Workers, OthersRunTheBlocksOfOneThatIsHeldUp) {
  constexpr int kThreads = 3, kLate = 1;
  constexpr std::int64_t kBlocks = 30;
  Workers workers(kThreads);
  std::vector<std::atomic<int>> ran_by(kBlocks);
  for (auto& worker : ran_by) worker = -1;
  std::atomic<bool> has_begun{false};
  std::atomic<std::int64_t> done{0};
  workers.for_blocks(kBlocks, [&](std::int64_t block, int worker) {
    ran_by[static_cast<std::size_t>(block)] = worker;
    if (worker == kLate) {
      has_begun = true;
      EXPECT_TRUE(comes_true([&] { return done == kBlocks - 1; }));
    } else {
      EXPECT_TRUE(comes_true([&] { return has_begun.load(); }));
    }
    ++done;
  });
  // Its range is [10, 20): it has begun at the front, and the others have taken all that was left.
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    const int worker = ran_by[static_cast<std::size_t>(block)];
    if (block == 10) {
      EXPECT_EQ(worker, kLate);
    } else {
      EXPECT_NE(worker, -1) << block;
      EXPECT_NE(worker, kLate) << block;
    }
  }
}

std::atomic<bool> is_held{false}, may_go_on{false};

/// Keeps the thread that gets the signal from running anything else.
void hold(int) {
  is_held = true;
  const timespec millisecond = {.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int i = 0; i < 5000 && !may_go_on; ++i) nanosleep(&millisecond, nullptr);
  is_held = false;
}

TEST(Workers, ACallDoesNotWaitForAWorkerThatDoesNotCome) {
  may_go_on = false;
  Workers workers(2);
  pthread_t late{};
  std::atomic<int> begun{0};
  workers.for_blocks(2, [&](std::int64_t, int worker) {
    if (worker == 1) late = pthread_self();
    ++begun;
    EXPECT_TRUE(comes_true([&] { return begun == 2; }));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it goes to sleep
  struct sigaction action = {}, before;
  action.sa_handler = hold;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  ASSERT_EQ(pthread_kill(late, SIGUSR1), 0);
  EXPECT_TRUE(comes_true([] { return is_held.load(); }));
  Blocks ran;
  workers.for_blocks(4, [&](std::int64_t block, int worker) {
    EXPECT_EQ(worker, 0);
    ran.push_back(block);
  });
  EXPECT_TRUE(is_held) << "the call has waited";
  EXPECT_EQ(ran, (Blocks{0, 1, 3, 2}));
  may_go_on = true;
  EXPECT_TRUE(comes_true([] { return !is_held; }));
  EXPECT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
  EXPECT_EQ(blocks_of_equals(workers, 4), (std::vector<Blocks>{{0, 1}, {2, 3}})) << "it does not come back";
}

TEST(Workers, HelpersTakeBlocksFromTheBack) {
  Workers workers(2);
  std::atomic<bool> has_begun{false};
  std::atomic<int> done{0};
  Blocks helped;
  workers.for_blocks(8, [&](std::int64_t block, int worker) {
    if (worker == 1) {
      has_begun = true;
      EXPECT_TRUE(comes_true([&] { return done == 7; }));
      return;
    }
    EXPECT_TRUE(comes_true([&] { return has_begun.load(); }));
    if (block >= 4) helped.push_back(block);
    ++done;
  });
  EXPECT_EQ(helped, (Blocks{7, 6, 5}));
}

TEST(Workers, ABlockThatThrowsLeavesOutThoseNotYetBegun) {
  Workers workers(2);
  std::atomic<bool> throws{false};
  std::atomic<int> begun{0};
  EXPECT_THROW(workers.for_blocks(1000,
                                  [&](std::int64_t, int worker) {
                                    ++begun;
                                    if (worker == 0) {
                                      EXPECT_TRUE(comes_true([&] { return begun == 2; }));
                                      throws = true;
                                      throw std::runtime_error("a block");
                                    }
                                    EXPECT_TRUE(comes_true([&] { return throws.load(); }));
                                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                  }),
               std::runtime_error);
  EXPECT_LT(begun, 1000);
}

TEST(Workers, RunOnTheirProcessorsAndGiveTheCallerItsMaskBack) {
  const std::vector<int> own = mask();
  const std::vector<int> processors = {own.back(), own.front(), own.back()};
  Workers workers(3, processors);
  EXPECT_EQ(mask(), own) << "between construction and call";
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::vector<int>> inside(3);
    std::atomic<int> begun{0};
    workers.for_blocks(3, [&](std::int64_t, int worker) {
      inside[static_cast<std::size_t>(worker)] = mask();
      ++begun;
      EXPECT_TRUE(comes_true([&] { return begun == 3; }));
    });
    for (std::size_t worker = 0; worker < 3; ++worker)
      EXPECT_EQ(inside[worker], std::vector<int>{processors[worker]}) << worker;
    EXPECT_EQ(mask(), own);
  }
}

TEST(Workers, GiveTheCallerItsMaskBackAfterAnException) {
  const std::vector<int> own = mask();
  if (own.size() < 2) GTEST_SKIP() << "one processor: every mask is the same";
  Workers workers(2, {own[1], own[0]});
  std::vector<int> inside;
  EXPECT_THROW(workers.for_blocks(1,
                                  [&](std::int64_t, int) {
                                    inside = mask();
                                    throw std::runtime_error("a block");
                                  }),
               std::runtime_error);
  EXPECT_EQ(inside, std::vector<int>{own[1]});
  EXPECT_EQ(mask(), own);
}

TEST(Workers, WithoutProcessorsNobodyIsBound) {
  const std::vector<int> own = mask();
  if (own.size() < 2) GTEST_SKIP() << "one processor: every mask is the same";
  Workers workers(2);
  std::vector<std::vector<int>> inside(2);
  std::atomic<int> begun{0};
  workers.for_blocks(2, [&](std::int64_t, int worker) {
    inside[static_cast<std::size_t>(worker)] = mask();
    ++begun;
    EXPECT_TRUE(comes_true([&] { return begun == 2; }));
  });
  EXPECT_EQ(inside, (std::vector<std::vector<int>>{own, own}));
}

TEST(Workers, AProcessorThatTheSystemRefusesIsAnError) {
  const std::vector<int> own = mask();
  if (own.back() == kNoProcessor) GTEST_SKIP() << "this machine has so many processors";
  const int good = own.front();
  for (const int bad : {kNoProcessor, CPU_SETSIZE, -1}) {
    for (std::size_t worker : {0u, 1u, 2u}) {
      std::vector<int> processors(3, good);
      processors[worker] = bad;
      try {
        Workers workers(3, processors);
        FAIL() << "worker " << worker << " was bound to " << bad;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::resources);
        EXPECT_EQ(error.detail().operation, "pthread_setaffinity_np");
        EXPECT_EQ(error.detail().error_number, EINVAL);
        EXPECT_NE(error.detail().hint.find("pin_threads"), std::string::npos) << error.detail().hint;
        const std::string named = "worker " + std::to_string(worker) + " to processor " + std::to_string(bad);
        EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
      }
      EXPECT_EQ(mask(), own);
    }
  }
}

TEST(Workers, WithoutAProcessorForEachWorkerIsAnInvalidArgument) {
  const int good = mask().front();
  EXPECT_THROW(Workers(2, {good}), std::invalid_argument);
  EXPECT_THROW(Workers(2, {good, good, good}), std::invalid_argument);
}

TEST(Workers, ACallerThatCanNoLongerBeBoundWorksWhereItIs) {
  const std::vector<int> own = mask();
  Workers workers(2, {own.back(), own.front()});
  int ran = 0;
  std::vector<int> inside;
  const bool allowed = aio::with_denied({{SYS_sched_setaffinity, EPERM}}, [&] {
    workers.for_blocks(1, [&](std::int64_t, int) {
      ++ran;
      inside = mask();
    });
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(inside, own);
}

#if defined(__x86_64__)
TEST(Workers, KeepsSubnormalsWhateverTheCallerSet) {
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040u);  // flush to zero, denormals are zero
  Workers workers(3);
  std::atomic<int> lost{0};
  workers.for_blocks(64, [&](std::int64_t, int) {
    volatile float tiny = 1e-38f, factor = 0.125f;
    volatile float product = tiny * factor;
    if (product == 0.0f) ++lost;
  });
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(after & 0x8040u, 0x8040u) << "the caller's state was not restored";
}
#endif

}  // namespace
}  // namespace spillway
