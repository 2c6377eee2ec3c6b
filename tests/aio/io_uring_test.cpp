// The ring over the kernel: set-up, calls that fail or are interrupted, and threads that end.
#include "../../aio/queue.h"
#include "scratch.h"
#include "seccomp.h"

#include <csignal>
#include <ostream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <liburing.h>
#include <sys/syscall.h>
#include <sys/time.h>

namespace spillway::aio {
namespace {

using IoUringTest = OnDrive;

TEST(IoUring, DepthOutsideItsRangeIsALogicError) {
  EXPECT_THROW(make_io_uring(0), std::logic_error);
  EXPECT_THROW(make_io_uring(maximum_depth + 1), std::logic_error);
  EXPECT_EQ(make_io_uring(5)->depth(), 5u);
}

struct SetUp {
  int error_number;
  const char* hint;
};

void PrintTo(const SetUp& set_up, std::ostream* out) {
  *out << "errno " << set_up.error_number;
}

class IoUringSetUp : public ::testing::TestWithParam<SetUp> {};

TEST_P(IoUringSetUp, FailureIsAnErrorWithAHint) {
  const std::int64_t before = open_descriptors();
  const bool allowed = with_denied({{SYS_io_uring_setup, GetParam().error_number}}, [&] {
    const auto error = error_of([] { const Queue queue(8); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_EQ(error->detail().error_number, GetParam().error_number);
    EXPECT_NE(error->detail().hint.find(GetParam().hint), std::string::npos) << error->detail().hint;
    EXPECT_NE(std::string(error->what()).find("cannot set up an io_uring of depth 8"), std::string::npos);
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Errors, IoUringSetUp,
                         ::testing::Values(SetUp{ENOSYS, "kernel.io_uring_disabled"}, SetUp{EPERM, "seccomp"},
                                           SetUp{ENOMEM, "ulimit -l"}, SetUp{EMFILE, "ulimit -n"},
                                           SetUp{EINVAL, "5.6"}));

TEST(IoUring, ManyQueuesLeaveNoDescriptor) {
  const std::int64_t before = open_descriptors();
  for (int i = 0; i < 500; ++i) const Queue queue(4);
  EXPECT_EQ(open_descriptors(), before);
}

class IoUringSubmission : public OnDrive, public ::testing::WithParamInterface<int> {};

TEST_P(IoUringSubmission, RefusedByTheKernelFailsEveryTransferAndHangsNothing) {
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), MiB);
  const AlignedBytes memory = aligned_bytes(MiB);
  bool allowed = false;
  std::thread([&] {
    Queue queue(4, 64 * KiB);
    allowed = deny({{SYS_io_uring_enter, GetParam()}});
    if (!allowed) return;
    const Ticket first = queue.read(file, 0, memory.get(), MiB);
    const Ticket second = queue.write(file, 0, memory.get(), 64 * KiB);
    for (const Ticket ticket : {first, second}) {
      const auto error = error_of([&] { queue.wait(ticket); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::io);
      EXPECT_EQ(error->detail().error_number, GetParam()) << error->what();
      EXPECT_EQ(error->detail().path, scratch.path());
      EXPECT_EQ(error->detail().offset, 0);
      EXPECT_EQ(error->detail().length, 64 * KiB);
    }
    EXPECT_NO_THROW(queue.drain());
    EXPECT_EQ(queue.counters().reads + queue.counters().writes, 0);
  }).join();
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

INSTANTIATE_TEST_SUITE_P(Errors, IoUringSubmission, ::testing::Values(EBADF, ENXIO, EINTR, EAGAIN));

TEST_F(IoUringTest, CompletionsArriveWhereWaitingForThemIsRefused) {
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), 32 * MiB);
  const AlignedBytes memory = aligned_bytes(32 * MiB);
  write_pattern(memory.get(), 32 * MiB, 7, 0);
  bool allowed = false;
  std::thread([&] {
    Queue queue(32);
    allowed = deny({{SYS_io_uring_enter, EINVAL, 3, IORING_ENTER_GETEVENTS, IORING_ENTER_GETEVENTS}});
    if (!allowed) return;
    queue.write(file, 0, memory.get(), 32 * MiB);
    queue.drain();
    std::fill_n(memory.get(), 32 * MiB, std::byte{});
    queue.wait(queue.read(file, 0, memory.get(), 32 * MiB));
  }).join();
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(first_difference(memory.get(), 32 * MiB, 7, 0), -1);
}

volatile std::sig_atomic_t alarms = 0;

TEST_F(IoUringTest, SignalsInterruptNothing) {
  struct sigaction action {};
  action.sa_handler = [](int) { alarms = alarms + 1; };  // without SA_RESTART
  struct sigaction previous {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &previous), 0);
  const itimerval every{{0, 200}, {0, 200}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &every, nullptr), 0);

  const DirectFile file = DirectFile::create_anonymous(scratch.path(), 16 * MiB);
  const AlignedBytes memory = aligned_bytes(16 * MiB);
  Queue queue(2, 64 * KiB);
  for (std::uint64_t round = 0; round < 20 || (alarms < 100 && round < 1000); ++round) {
    write_pattern(memory.get(), 16 * MiB, round, 0);
    queue.wait(queue.write(file, 0, memory.get(), 16 * MiB));
    std::fill_n(memory.get(), 16 * MiB, std::byte{});
    queue.wait(queue.read(file, 0, memory.get(), 16 * MiB));
    ASSERT_EQ(first_difference(memory.get(), 16 * MiB, round, 0), -1);
  }
  const itimerval off{};
  ::setitimer(ITIMER_REAL, &off, nullptr);
  ::sigaction(SIGALRM, &previous, nullptr);
  EXPECT_GE(alarms, 100);
}

TEST_F(IoUringTest, TransfersOutliveTheThreadThatStartedThem) {
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), 32 * MiB);
  const AlignedBytes memory = aligned_bytes(32 * MiB);
  write_pattern(memory.get(), 32 * MiB, 3, 0);
  Queue queue(64, 256 * KiB);
  std::thread([&] { queue.write(file, 0, memory.get(), 32 * MiB); }).join();
  queue.drain();
  std::fill_n(memory.get(), 32 * MiB, std::byte{});
  std::thread([&] { queue.read(file, 0, memory.get(), 32 * MiB); }).join();
  queue.drain();
  EXPECT_EQ(first_difference(memory.get(), 32 * MiB, 3, 0), -1);
}

}  // namespace
}  // namespace spillway::aio
