// The pool of threads: what is particular to it.
#include "ring_fixture.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

namespace spillway::aio {
namespace {

using PosixRingTest = RingTest;

/// What the kernel says of each thread of a pool: /proc/self/task/*/status.
std::vector<std::string> threads() {
  std::vector<std::string> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "status");
    const std::string status{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (status.starts_with("Name:\tspillway-io\n")) all.push_back(status);
  }
  return all;
}

/// Threads that have been joined may be seen for a moment longer.
void await_no_threads() {
  while (!threads().empty()) std::this_thread::yield();
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
  await_no_threads();
  const auto ring = make_posix_ring(32);
  EXPECT_EQ(threads().size(), 0u);
  const AlignedBytes memory = aligned_bytes(512);
  const Operation one = operation(Direction::read, 0, memory.get(), 512, 1);
  ring->start({&one, 1});
  EXPECT_EQ(reap_all(*ring, 1).at(1), 512);
  EXPECT_EQ(threads().size(), 1u);
}

TEST_F(PosixRingTest, HasAtMost64ThreadsAndCancelsWhatNoneHasTaken) {
  const HangingMemory pages(70);
  if (!pages.usable()) GTEST_SKIP() << "this user may not handle page faults (vm.unprivileged_userfaultfd)";
  await_no_threads();
  const auto ring = make_posix_ring(70);
  std::vector<Operation> batch;
  for (unsigned i = 0; i < 70; ++i) batch.push_back(operation(Direction::read, 0, pages.at(i), 1, i));
  ring->start(batch);
  EXPECT_EQ(threads().size(), 64u);
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
  await_no_threads();
  const auto ring = make_posix_ring(1);
  const AlignedBytes memory = aligned_bytes(512);
  const Operation one = operation(Direction::read, 0, memory.get(), 512, 1);
  ring->start({&one, 1});
  reap_all(*ring, 1);
  const auto all = threads();
  ASSERT_EQ(all.size(), 1u);
  const std::size_t mask = all[0].find("SigBlk:");
  // All but SIGKILL, SIGSTOP and the two that the C library keeps for itself.
  EXPECT_EQ(std::stoull(all[0].substr(mask + 8, 16), nullptr, 16) | 0x180040100u, ~std::uint64_t{0});
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
