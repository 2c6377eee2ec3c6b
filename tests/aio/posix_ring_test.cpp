// The pool of threads: what is particular to it.
#include "ring_fixture.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

namespace spillway::aio {
namespace {

using PosixRingTest = RingTest;

std::size_t threads() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                                std::filesystem::directory_iterator()));
}

TEST(PosixRing, DepthOutsideItsRangeIsALogicError) {
  EXPECT_THROW(make_posix_ring(0), std::logic_error);
  EXPECT_THROW(make_posix_ring(maximum_depth + 1), std::logic_error);
}

TEST(PosixRing, ReportsWhatItIsAndTheNotesItWasGiven) {
  const RingReport report = make_posix_ring(3, {"a note"})->report();
  EXPECT_EQ(report.engine, IoEngine::posix);
  EXPECT_EQ(report.notes, std::vector<std::string>{"a note"});
}

TEST_F(PosixRingTest, StartsThreadsAsOperationsNeedThemAndOneForOneAfterAnother) {
  const std::size_t before = threads();
  const auto ring = make_posix_ring(32);
  EXPECT_EQ(threads(), before);
  const AlignedBytes memory = aligned_bytes(512);
  const Operation one = operation(Direction::read, 0, memory.get(), 512, 1);
  ring->start({&one, 1});
  EXPECT_EQ(reap_all(*ring, 1).at(1), 512);
  EXPECT_EQ(threads(), before + 1);
}

TEST_F(PosixRingTest, HasAtMost64ThreadsAndCancelsWhatNoneHasTaken) {
  const HangingMemory pages(70);
  if (!pages.usable()) GTEST_SKIP() << "this user may not handle page faults (vm.unprivileged_userfaultfd)";
  const std::size_t before = threads();
  const auto ring = make_posix_ring(70);
  std::vector<Operation> batch;
  for (unsigned i = 0; i < 70; ++i) batch.push_back(operation(Direction::read, 0, pages.at(i), 1, i));
  ring->start(batch);
  EXPECT_EQ(threads(), before + 64);
  ring->cancel();
  Results results;
  while (results.size() < 6) reap_into(results, *ring, true);
  pages.let_go();
  while (results.size() < 70) reap_into(results, *ring, true);
  std::size_t cancelled = 0;
  for (const auto& [tag, result] : results) {
    EXPECT_TRUE(result == 1 || result == -ECANCELED) << tag;
    if (result == -ECANCELED) ++cancelled;
  }
  EXPECT_GE(cancelled, 6u);
}

TEST_F(PosixRingTest, ThreadsTakeNoSignals) {
  const auto ring = make_posix_ring(1);
  const AlignedBytes memory = aligned_bytes(512);
  const Operation one = operation(Direction::read, 0, memory.get(), 512, 1);
  ring->start({&one, 1});
  reap_all(*ring, 1);
  std::size_t without_signals = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      // All but SIGKILL, SIGSTOP and the two that the C library keeps for itself.
      if (!line.starts_with("SigBlk:")) continue;
      if ((std::stoull(line.substr(8), nullptr, 16) | 0x180040100u) == ~std::uint64_t{0}) ++without_signals;
    }
  }
  EXPECT_EQ(without_signals, 1u);
}

TEST_F(PosixRingTest, RegistersNothingAndSaysNothingAboutIt) {
  const auto ring = make_posix_ring(1);
  std::vector<std::byte> memory(4096);
  EXPECT_EQ(ring->register_file(0, file), ENOTSUP);
  EXPECT_EQ(ring->register_memory(0, memory), ENOTSUP);
  EXPECT_TRUE(ring->report().notes.empty());
  EXPECT_FALSE(ring->report().registered_files);
}

}  // namespace
}  // namespace spillway::aio
