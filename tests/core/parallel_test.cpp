#include "../../core/parallel.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

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
  std::atomic<bool> shared{false};
  auto call = [&] {
    for (int repeat = 0; repeat < 20; ++repeat) {
      workers.for_blocks(50, [&](std::int64_t, int worker) {
        if (inside[static_cast<std::size_t>(worker)]++ != 0) shared = true;
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
