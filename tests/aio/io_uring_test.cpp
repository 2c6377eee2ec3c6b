// The ring over the kernel: set-up, what is registered, and calls that fail or are interrupted.
#include "../../aio/io_uring_setup.h"
#include "../../aio/io_uring_support.h"
#include "ring_fixture.h"
#include "seccomp.h"

#include <csignal>
#include <ostream>
#include <thread>

#include <sys/time.h>
#include <sys/utsname.h>

namespace spillway::aio {
namespace {

using IoUringTest = RingTest;

bool kernel_is_at_least(int major, int minor) {
  utsname names{};
  ::uname(&names);
  int have_major = 0;
  int have_minor = 0;
  std::sscanf(names.release, "%d.%d", &have_major, &have_minor);
  return have_major > major || (have_major == major && have_minor >= minor);
}

// ---- set-up

TEST(IoUring, DepthOutsideItsRangeIsALogicError) {
  EXPECT_THROW(make_io_uring({.depth = 0}), std::logic_error);
  EXPECT_THROW(make_io_uring({.depth = maximum_depth + 1}), std::logic_error);
}

TEST_F(IoUringTest, TheLargestDepthCanBeInFlight) {
  SKIP_WITHOUT_IO_URING();
  const auto ring = make_io_uring({.depth = maximum_depth});
  std::vector<std::byte> memory(512);
  const std::vector<Operation> batch(maximum_depth, operation(Direction::read, 0, memory.data(), 512, 1));
  ring->start(batch);
  std::vector<Completion> completions(1000);
  for (std::size_t left = maximum_depth; left > 0;) left -= ring->reap(completions, true);
  EXPECT_EQ(ring->reap(completions, true), 0u);
}

TEST(IoUring, TakesTheBestFlagsOfTheKernelAndSaysWhich) {
  SKIP_WITHOUT_IO_URING();
  if (!kernel_is_at_least(6, 1)) GTEST_SKIP() << "a kernel before 6.1";
  const RingReport best = make_io_uring({})->report();
  EXPECT_EQ(best.engine, IoEngine::io_uring);
  EXPECT_TRUE(best.single_issuer);
  EXPECT_TRUE(best.deferred_task_run);
  EXPECT_FALSE(best.sqpoll);
  EXPECT_FALSE(best.iopoll);
  EXPECT_TRUE(best.notes.empty());
  const RingReport plain = make_io_uring_with({}, 3)->report();
  EXPECT_FALSE(plain.single_issuer);
  EXPECT_FALSE(plain.deferred_task_run);
}

TEST(IoUring, AThreadOfTheKernelTakesSubmissionsWhereAskedFor) {
  SKIP_WITHOUT_IO_URING();
  const RingReport report = make_io_uring({.sqpoll = true})->report();
  EXPECT_EQ(report.sqpoll, probe_io_uring().sqpoll);
  EXPECT_EQ(contains(report.notes, "sqpoll"), !report.sqpoll);
}

TEST_F(IoUringTest, PollingEndsAtAFileThatCannotBePolledAndNothingFails) {
  SKIP_WITHOUT_IO_URING();
  const auto ring = make_io_uring({.depth = 8, .iopoll = true});
  if (!ring->report().iopoll) GTEST_SKIP() << ring->report().notes.at(0);
  std::vector<std::byte> memory(8 * 512);
  ring->register_memory(0, memory);
  std::vector<Operation> batch;
  for (unsigned i = 0; i < 8; ++i) {
    batch.push_back(operation(Direction::read, 512 * i, memory.data() + 512 * i, 512, i));
    batch.back().memory_slot = 0;
  }
  for (int round = 0; round < 2; ++round) {  // the file is in the page cache: never polled
    ring->start(batch);
    for (const auto& [tag, result] : reap_all(*ring, 8)) EXPECT_EQ(result, 512) << tag;
  }
  const RingReport report = ring->report();
  EXPECT_FALSE(report.iopoll);
  EXPECT_EQ(report.notes.size(), 1u);
  EXPECT_TRUE(contains(report.notes, "iopoll"));
  EXPECT_TRUE(report.registered_memory);
}

struct SetUp {
  int error_number;
  const char* hint;
  const char* reason;  ///< of the threads that serve instead; null: none do
};

void PrintTo(const SetUp& set_up, std::ostream* out) {
  *out << "errno " << set_up.error_number;
}

class IoUringSetUp : public ::testing::TestWithParam<SetUp> {};

/// A filter may forbid the ring, or allow it and forbid its use.
void expect_that_threads_serve_without(int call, const SetUp& set_up) {
  const std::int64_t before = open_descriptors();
  const bool allowed = with_denied({{call, set_up.error_number}}, [&] {
    for (const IoEngine engine : {IoEngine::io_uring, IoEngine::automatic}) {
      if (engine == IoEngine::automatic && set_up.reason != nullptr) continue;
      const auto error = error_of([&] { make_ring({.depth = 8, .engine = engine}); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::io);
      EXPECT_EQ(error->detail().error_number, set_up.error_number);
      EXPECT_NE(error->detail().hint.find(set_up.hint), std::string::npos) << error->detail().hint;
      EXPECT_NE(std::string(error->what()).find("cannot set up an io_uring of depth 8"), std::string::npos);
    }
    const IoUringSupport support = probe_io_uring();
    EXPECT_FALSE(support.available);
    EXPECT_EQ(support.error_number, set_up.error_number);
    EXPECT_FALSE(support.reason.empty());
    EXPECT_NE(support.hint.find(set_up.hint), std::string::npos) << support.hint;
    if (set_up.reason == nullptr) return;
    const RingReport report = make_ring({.depth = 8, .sqpoll = true})->report();
    EXPECT_EQ(report.engine, IoEngine::posix);
    ASSERT_EQ(report.notes.size(), 2u);
    EXPECT_NE(report.notes[0].find("io_uring is not allowed here ("), std::string::npos) << report.notes[0];
    EXPECT_NE(report.notes[0].find(set_up.reason), std::string::npos) << report.notes[0];
    EXPECT_NE(report.notes[1].find("sqpoll"), std::string::npos) << report.notes[1];
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(IoUringSetUp, FailureIsAnErrorWithAHintOrThreadsServe) {
  expect_that_threads_serve_without(SYS_io_uring_setup, GetParam());
}

TEST_P(IoUringSetUp, ARingThatMayNotBeUsedIsNone) {
  SKIP_WITHOUT_IO_URING();
  expect_that_threads_serve_without(SYS_io_uring_enter, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Errors, IoUringSetUp,
    ::testing::Values(SetUp{ENOSYS, "kernel.io_uring_disabled", "seccomp"}, SetUp{EPERM, "seccomp", "seccomp"},
                      SetUp{EACCES, "seccomp", "seccomp"},
                      SetUp{ENOMEM, "ulimit -l", locked_memory_limit() < 0 ? "no memory for it" : "ulimit -l"},
                      SetUp{EMFILE, "ulimit -n", nullptr}, SetUp{EINVAL, "5.6", nullptr}));

TEST(IoUring, ThreadsServeWhereTheyAreAskedFor) {
  const RingReport report = make_ring({.engine = IoEngine::posix})->report();
  EXPECT_EQ(report.engine, IoEngine::posix);
  EXPECT_TRUE(report.notes.empty());
  EXPECT_EQ(name_of(IoEngine::automatic), "auto");
  EXPECT_EQ(name_of(IoEngine::io_uring), "io_uring");
  EXPECT_EQ(name_of(IoEngine::posix), "posix");
}

TEST(IoUring, WithoutRoomForADescriptorSetUpIsAnErrorWithAHint) {
  SKIP_WITHOUT_IO_URING();
  const bool allowed = with_denied({{SYS_eventfd2, EMFILE}}, [] {
    const auto error = error_of([] { make_ring({}); });
    ASSERT_TRUE(error);
    EXPECT_NE(error->detail().hint.find("ulimit -n"), std::string::npos);
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

TEST(IoUring, WhatIsSaidOfTheKernelIsWhatARingGets) {
  const IoUringSupport support = probe_io_uring();
  if (!support.available) GTEST_SKIP() << support.reason;
  const auto ring = make_io_uring({});
  const RingReport report = ring->report();
  EXPECT_EQ(support.single_issuer, report.single_issuer);
  EXPECT_EQ(support.deferred_task_run, report.deferred_task_run);
  EXPECT_EQ(support.iopoll, make_io_uring({.iopoll = true})->report().iopoll);
  std::vector<std::byte> memory(4096);
  EXPECT_EQ(support.registered_memory, ring->register_memory(0, memory) == 0);
  EXPECT_TRUE(support.reason.empty());
}

TEST(IoUring, ManyRingsLeaveNoDescriptor) {
  SKIP_WITHOUT_IO_URING();
  const std::int64_t before = open_descriptors();
  for (int i = 0; i < 1000; ++i) make_io_uring({.depth = 4});
  EXPECT_EQ(open_descriptors(), before);
}

// ---- calls that fail

class IoUringSubmission : public RingTest, public ::testing::WithParamInterface<int> {};

TEST_P(IoUringSubmission, RefusedByTheKernelFailsEveryOperationAndHangsNothing) {
  SKIP_WITHOUT_IO_URING();
  for (const std::size_t set : {0u, 3u}) {
    std::vector<std::byte> memory(4096);
    bool allowed = false;
    std::thread([&] {
      const auto ring = make_io_uring_with({.depth = 4}, set);
      allowed = deny({{SYS_io_uring_enter, GetParam()}});
      if (!allowed) return;
      for (int round = 0; round < 2; ++round) {
        std::vector<Operation> batch;
        for (unsigned i = 0; i < 4; ++i) batch.push_back(operation(Direction::read, 0, memory.data(), 512, i));
        ring->start(batch);
        const auto results = reap_all(*ring, 4);
        for (const auto& [tag, result] : results) EXPECT_EQ(result, -GetParam()) << tag;
      }
    }).join();
    if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, IoUringSubmission, ::testing::Values(EBADF, ENXIO, EINTR, EAGAIN));

class IoUringWait : public RingTest, public ::testing::WithParamInterface<int> {};

TEST_P(IoUringWait, CompletionsArriveWhereWaitingForThemIsRefused) {
  SKIP_WITHOUT_IO_URING();
  bool allowed = false;
  HangingSocket socket;
  std::thread([&] {
    const auto ring = make_io_uring_with({.depth = 4}, 3);
    const Operation one = socket.operation(5);
    ring->start({&one, 1});
    Results results;
    reap_into(results, *ring, false);  // the kernel has it
    allowed = deny({{SYS_io_uring_enter, GetParam(), 3, IORING_ENTER_GETEVENTS, IORING_ENTER_GETEVENTS}});
    if (!allowed) return;
    std::thread writer([&] { socket.let_go(); });
    while (results.empty()) reap_into(results, *ring, true);
    writer.join();
    EXPECT_EQ(results.at(5), 1);
    // What the kernel does not take fails, and only that.
    const Operation two = operation(Direction::read, 8192, nullptr, 512, 6);
    ring->start({&two, 1});
    EXPECT_LT(reap_all(*ring, 1).at(6), 0);
  }).join();
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

INSTANTIATE_TEST_SUITE_P(Errors, IoUringWait, ::testing::Values(EINVAL, EINTR, EAGAIN));

TEST_F(IoUringTest, AHardRefusalFailsWhatTheKernelHasNotTakenAndWaitsForTheRest) {
  SKIP_WITHOUT_IO_URING();
  bool allowed = false;
  HangingSocket socket;
  std::vector<std::byte> memory(512);
  std::thread([&] {
    const auto ring = make_io_uring_with({.depth = 4}, 3);
    const Operation one = socket.operation(1);
    ring->start({&one, 1});
    Results results;
    reap_into(results, *ring, false);
    allowed = deny({{SYS_io_uring_enter, EBADF}});
    if (!allowed) return;
    const Operation two = operation(Direction::write, 0, memory.data(), 512, 2);
    ring->start({&two, 1});
    while (results.empty()) reap_into(results, *ring, true);
    EXPECT_EQ(results.at(2), -EBADF);
    EXPECT_EQ(reap_into(results, *ring, false), 0u);
    socket.let_go();
    while (results.size() < 2) reap_into(results, *ring, true);
    EXPECT_EQ(results.at(1), 1);
  }).join();
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

TEST_F(IoUringTest, ARingThatCannotReplaceAPollingOneFailsWhatIsLeft) {
  SKIP_WITHOUT_IO_URING();
  bool allowed = false;
  std::vector<std::byte> memory(512);
  std::thread([&] {
    const auto ring = make_io_uring({.depth = 4, .iopoll = true});
    allowed = deny({{SYS_io_uring_setup, ENOMEM}});
    if (!allowed || !ring->report().iopoll) return;
    const Operation one = operation(Direction::read, 0, memory.data(), 512, 1);
    for (int round = 0; round < 2; ++round) {
      ring->start({&one, 1});
      EXPECT_EQ(reap_all(*ring, 1).at(1), -ENOMEM);
    }
  }).join();
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

volatile std::sig_atomic_t alarms = 0;

TEST_F(IoUringTest, SignalsInterruptNothing) {
  SKIP_WITHOUT_IO_URING();
  struct sigaction action {};
  action.sa_handler = [](int) { alarms = alarms + 1; };  // without SA_RESTART
  struct sigaction previous {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &previous), 0);
  const itimerval every{{0, 200}, {0, 200}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &every, nullptr), 0);

  const auto ring = make_io_uring({.depth = 2});
  std::vector<std::byte> memory(2 * 64 * KiB);
  for (int round = 0; round < 50 || (alarms < 100 && round < 100000); ++round) {
    std::vector<Operation> batch;
    for (unsigned i = 0; i < 2; ++i) {
      batch.push_back(operation(Direction::read, 64 * KiB * i, memory.data() + 64 * KiB * i, 64 * KiB, i));
    }
    ring->start(batch);
    const auto results = reap_all(*ring, 2);
    ASSERT_EQ(results.at(0), 64 * KiB);
    ASSERT_EQ(results.at(1), 64 * KiB);
  }
  const itimerval off{};
  ::setitimer(ITIMER_REAL, &off, nullptr);
  ::sigaction(SIGALRM, &previous, nullptr);
  EXPECT_GE(alarms, 100);
}

TEST_F(IoUringTest, OneCallStartsABatchAndWaitsForIt) {
  SKIP_WITHOUT_IO_URING();
  std::vector<std::byte> memory(4096);
  bool allowed = false;
  std::thread([&] {
    const auto ring = make_io_uring({.depth = 8});
    ASSERT_EQ(::pread(file, memory.data(), 4096, 0), 4096);     // now it is in the page cache
    allowed = deny({{SYS_io_uring_enter, EBADF, 1, 0xff, 0}});  // one that submits nothing
    if (!allowed) return;
    std::vector<Operation> batch;
    for (unsigned i = 0; i < 8; ++i)
      batch.push_back(operation(Direction::read, 512 * i, memory.data() + 512 * i, 512, i));
    ring->start(batch);
    Results results;
    reap_into(results, *ring, true);
    EXPECT_EQ(results.size(), 8u) << "the file is in the page cache: everything ends at once";
    for (const auto& [tag, result] : results) EXPECT_EQ(result, 512) << tag;
  }).join();
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

}  // namespace
}  // namespace spillway::aio
