// What Queue makes of failures, of a thread that ends, of its own end, and of misuse, over a ring that the test
// decides.
#include "queue_support.h"

#include <chrono>
#include <limits>
#include <map>
#include <thread>

namespace spillway::aio {
namespace {

using QueueErrors = OverFakeRing;

TEST_F(QueueErrors, NoProgressForASecondIsAnError) {
  const std::map<std::int64_t, int> results = {{-EAGAIN, EAGAIN}, {-EINTR, EINTR}, {100, 0}, {0, 0}};
  for (const auto& [result, error_number] : results) {
    FakeDrive drive;
    drive.outcome = [r = result](const Operation&) { return r; };
    const auto queue = queue_of(drive, 4);
    const Ticket ticket = write(*queue, block, block);
    const auto start = std::chrono::steady_clock::now();
    const auto error = error_of([&] { queue->wait(ticket); });
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("no progress"), std::string::npos);
    EXPECT_EQ(error->detail().error_number, error_number);
    EXPECT_EQ(error->detail().offset, block);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    EXPECT_LT(drive.started_count(), 2000u) << "the attempts must not spin";
  }
}

TEST_F(QueueErrors, OfSeveralPathsTheOneThatFailedIsNamedWithTheOffsetThere) {
  const ScratchDirectory other;
  const Volume striped =
      Volume::create({{scratch.path()}, {other.path()}}, volume_bytes, {.stripe_bytes = 2 * block});
  for (std::size_t path = 0; path < 2; ++path) {
    FakeDrive drive;
    drive.outcome = [&](const Operation& operation) {
      const bool bad = operation.descriptor == striped.file(path).descriptor() && operation.offset == 5 * block;
      return bad ? -EIO : operation.bytes;
    };
    const auto queue = queue_of(drive, 4);
    const Ticket ticket = queue->write(striped, 0, memory.get(), volume_bytes);
    const auto error = error_of([&] { queue->wait(ticket); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->detail().path, path == 0 ? scratch.path() : other.path());
    EXPECT_EQ(error->detail().offset, 5 * block);
    EXPECT_EQ(error->detail().length, block);
  }
}

TEST_F(QueueErrors, NothingReadIsAnEndOfFile) {
  FakeDrive drive;
  drive.outcome = [](const Operation&) { return std::int64_t{0}; };
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = queue->read(*volume, 0, memory.get(), block);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(std::string(error->what()).find("unexpected end of file"), std::string::npos);
  EXPECT_EQ(drive.started_count(), 1u);
}

TEST_F(QueueErrors, MoreThanAskedForIsAnError) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) { return operation.bytes + 4096; };
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 0, block);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("more bytes were reported than asked for"), std::string::npos);
}

TEST_F(QueueErrors, AnErrorNamesOperationDirectoryOffsetLengthAndErrno) {
  struct Case {
    int error_number;
    ErrorKind kind;
    const char* hint;
  };
  for (const Case& c :
       {Case{EIO, ErrorKind::io, "dmesg"}, Case{ENOSPC, ErrorKind::resources, "free some space"},
        Case{EDQUOT, ErrorKind::resources, "free some space"}, Case{EINVAL, ErrorKind::io, ""}}) {
    for (const Direction direction : {Direction::read, Direction::write}) {
      FakeDrive drive;
      drive.outcome = [&](const Operation& operation) {
        return operation.offset == 2 * block ? -std::int64_t{c.error_number} : operation.bytes;
      };
      const auto queue = queue_of(drive, 4);
      const Ticket ticket = direction == Direction::read
                                ? queue->read(*volume, 0, memory.get(), 3 * block - 4096)
                                : write(*queue, 0, 3 * block - 4096);
      const auto error = error_of([&] { queue->wait(ticket); });
      ASSERT_TRUE(error);
      const ErrorDetail& detail = error->detail();
      EXPECT_EQ(error->kind(), c.kind);
      EXPECT_EQ(detail.operation, direction == Direction::read ? "read" : "write");
      EXPECT_EQ(detail.path, scratch.path());
      EXPECT_EQ(detail.offset, 2 * block);
      EXPECT_EQ(detail.length, block - 4096);
      EXPECT_EQ(detail.error_number, c.error_number);
      EXPECT_NE(detail.hint.find(c.hint), std::string::npos);
      const std::string line = error->what();
      for (const std::string& part :
           {std::string("a transfer failed"), "operation: " + detail.operation, "path: " + scratch.path(),
            std::string("offset: 131072"), std::string("length: 61440"),
            "errno " + std::to_string(c.error_number)}) {
        EXPECT_NE(line.find(part), std::string::npos) << line;
      }
    }
  }
}

TEST_F(QueueErrors, AFailedTransferIsReportedWhenItsLastBlockHasLanded) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) { return operation.offset == 0 ? -EIO : operation.bytes; };
  const auto queue = queue_of(drive, 4);
  drive.hold();
  const Ticket ticket = write(*queue, 0, 16 * block);
  ASSERT_TRUE(drive.await_started(4));
  drive.allow(1);
  ASSERT_TRUE(drive.await_rest());
  EXPECT_FALSE(queue->done(ticket)) << "three blocks are still in flight";
  EXPECT_EQ(drive.in_flight(), 3u);
  drive.release();
  EXPECT_THROW(queue->wait(ticket), Error);
  EXPECT_EQ(drive.in_flight(), 0u);
  EXPECT_EQ(drive.started_count(), 4u) << "blocks that had not started must not start after the failure";
  EXPECT_EQ(queue->counters().writes, 0);
  EXPECT_EQ(queue->counters().written_bytes, 3 * block);

  const Ticket next = write(*queue, 16 * block, 8 * block);
  queue->wait(next);
  expect_written(drive, 16 * block, 8 * block);
}

TEST_F(QueueErrors, TheFirstOfSeveralFailedBlocksIsReported) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    return operation.offset == 0 ? -EIO : -ENOSPC;
  };
  drive.hold();
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 0, 4 * block);
  ASSERT_TRUE(drive.await_started(4));
  drive.release();
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->detail().error_number, EIO);
  EXPECT_NO_THROW(queue->drain());
}

TEST_F(QueueErrors, AShortBlockOfAFailedTransferIsNotResubmitted) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) { return operation.offset == 0 ? -EIO : operation.bytes / 2; };
  drive.hold();
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 0, 2 * block);
  ASSERT_TRUE(drive.await_started(2));
  drive.release();
  EXPECT_THROW(queue->wait(ticket), Error);
  EXPECT_EQ(drive.started_count(), 2u);
  EXPECT_EQ(queue->counters().resubmissions, 0);
}

TEST_F(QueueErrors, OneFailedTransferLeavesTheOthersAlone) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) {
    return operation.offset == 5 * block ? -EIO : operation.bytes;
  };
  const auto queue = queue_of(drive, 3);
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 20; ++i) tickets.push_back(write(*queue, 2 * i * block, 2 * block));
  for (std::size_t i = 20; i-- > 0;) {
    if (i == 2) {
      EXPECT_THROW(queue->wait(tickets[i]), Error);
    } else {
      EXPECT_NO_THROW(queue->wait(tickets[i]));
      expect_written(drive, static_cast<std::int64_t>(i) * 2 * block, 2 * block);
    }
  }
  EXPECT_EQ(queue->counters().writes, 19);
}

TEST_F(QueueErrors, DrainThrowsTheEarliestErrorAfterAllHasLanded) {
  FakeDrive drive;
  drive.next = [](std::size_t count) { return count - 1; };
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    if (operation.offset == 3 * block) return -EIO;
    return operation.offset == 9 * block ? -ENXIO : operation.bytes;
  };
  const auto queue = queue_of(drive, 16);
  drive.hold();
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 40; ++i) tickets.push_back(write(*queue, i * block, block));
  drive.release();
  const auto first = error_of([&] { queue->drain(); });
  ASSERT_TRUE(first);
  EXPECT_EQ(first->detail().error_number, EIO);
  EXPECT_EQ(drive.in_flight(), 0u);
  EXPECT_EQ(queue->counters().writes, 38);
  EXPECT_NO_THROW(queue->wait(tickets[3])) << "each error is thrown once";
  const auto second = error_of([&] { queue->drain(); });
  ASSERT_TRUE(second);
  EXPECT_EQ(second->detail().error_number, ENXIO);
  EXPECT_NO_THROW(queue->drain());
}

TEST_F(QueueErrors, WaitAndDoneOfFailedAndLandedTickets) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) { return operation.offset == 0 ? -EIO : operation.bytes; };
  const auto queue = queue_of(drive, 2);
  const Ticket bad = write(*queue, 0, block);
  const Ticket good = write(*queue, block, block);
  while (!queue->done(bad) || !queue->done(good)) std::this_thread::yield();
  EXPECT_THROW(queue->wait(bad), Error);
  EXPECT_NO_THROW(queue->wait(bad));
  EXPECT_TRUE(queue->done(bad));
  EXPECT_NO_THROW(queue->wait(good));
  EXPECT_NO_THROW(queue->wait(good));
}

TEST_F(QueueErrors, DestroyedItDropsWhatHasNotStartedAndCancelsTheRest) {
  FakeDrive drive;
  drive.hold();
  {
    const auto queue = queue_of(drive, 6);
    for (std::int64_t i = 0; i < 10; ++i) write(*queue, 4 * i * block, 4 * block);
    ASSERT_TRUE(drive.await_started(6));
  }  // FakeRing checks that nothing is in flight at its end
  EXPECT_TRUE(drive.cancelled());
  EXPECT_EQ(drive.started_count(), 6u);
}

TEST_F(QueueErrors, DestroyedItDoesNotRepeatWhatWasCancelledOrFailed) {
  for (int already = 0; already < 6; ++already) {
    FakeDrive drive;
    drive.hold();
    int completions = 0;
    drive.outcome = [&](const Operation& operation) -> std::int64_t {
      return ++completions % 2 == 0 ? -EIO : operation.bytes / 2;
    };
    {
      const auto queue = queue_of(drive, 6);
      for (std::int64_t i = 0; i < 6; ++i) write(*queue, i * block, block);
      ASSERT_TRUE(drive.await_started(6));
      drive.allow(static_cast<std::size_t>(already));
    }
    EXPECT_LE(completions, already);
  }
}

TEST_F(QueueErrors, DestroyedWithNothingUnderWayItCancelsNothing) {
  FakeDrive drive;
  {
    const auto queue = queue_of(drive, 6);
    queue->wait(write(*queue, 0, 4 * block));
  }
  EXPECT_FALSE(drive.cancelled());
}

/// on_block must not throw; here it stands for a lack of memory on the queue's thread.
TEST_F(QueueErrors, AnExceptionOnTheThreadFailsEverythingAndHangsNothing) {
  for (const std::size_t at_once : {1u, 3u}) {
    FakeDrive drive;
    drive.completions_at_once = at_once;
    drive.hold();
    int blocks = 0;
    const auto queue = queue_over(drive, 4, {.block_bytes = block, .on_block = [&](const BlockTiming&) {
                                               if (++blocks == 3) throw std::bad_alloc();
                                             }});
    std::vector<Ticket> tickets;
    for (std::int64_t i = 0; i < 10; ++i) tickets.push_back(write(*queue, i * block, block));
    ASSERT_TRUE(drive.await_started(4));
    std::thread waiter([&] { EXPECT_THROW(queue->wait(tickets[9]), std::bad_alloc); });
    drive.release();
    waiter.join();
    EXPECT_THROW(queue->wait(tickets[2]), std::bad_alloc);
    EXPECT_EQ(drive.in_flight(), 0u);
    EXPECT_THROW(queue->drain(), std::bad_alloc);
    const Ticket later = read(*queue, 0, block);
    EXPECT_TRUE(queue->done(later));
    EXPECT_THROW(queue->wait(later), std::bad_alloc);
    EXPECT_THROW(queue->register_volume(*volume), std::bad_alloc);
    EXPECT_THROW(queue->report(), std::bad_alloc);
  }
}

TEST_F(QueueErrors, ARingThatCannotBeMadeIsTheConstructorsError) {
  EXPECT_THROW(Queue([]() -> std::unique_ptr<Ring> { throw Error(ErrorKind::io, "no ring"); }, QueueOptions{}),
               Error);
  EXPECT_THROW(Queue([] { return std::unique_ptr<Ring>(); }, QueueOptions{}), std::logic_error);
  EXPECT_THROW(Queue(QueueOptions{.ring = {.depth = 0}}), std::logic_error);
  EXPECT_THROW(Queue(QueueOptions{.ring = {.depth = maximum_depth + 1}}), std::logic_error);
}

TEST_F(QueueErrors, MisuseIsALogicErrorThatNamesTheValues) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 2);
  std::byte* const m = memory.get();
  const auto refused = [&](std::int64_t offset, std::byte* address, std::int64_t bytes,
                           const std::string& part) {
    for (const bool reading : {true, false}) {
      try {
        reading ? queue->read(*volume, offset, address, bytes) : queue->write(*volume, offset, address, bytes);
        ADD_FAILURE() << "accepted: " << part;
      } catch (const std::logic_error& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(reading ? "read" : "write"), std::string::npos)
            << error.what();
      }
    }
  };
  refused(-4096, m, 4096, "offset -4096");
  refused(-1, m, 1, "offset -1");
  refused(0, m, -1, "-1 bytes");
  refused(volume_bytes, m, 1, "outside a volume of 4194304 bytes");
  refused(volume_bytes + 1, m, 0, "outside a volume of 4194304 bytes");
  refused(1, m, volume_bytes, "outside a volume of 4194304 bytes");
  refused(4096, m, std::numeric_limits<std::int64_t>::max(), "outside");
  refused(std::numeric_limits<std::int64_t>::max(), m, std::numeric_limits<std::int64_t>::max(), "outside");
  refused(0, nullptr, 4096, "no memory");
  EXPECT_EQ(drive.started_count(), 0u);
  EXPECT_EQ(queue->counters().reads + queue->counters().writes, 0);
  EXPECT_THROW(queue->wait({0}), std::logic_error);
  EXPECT_THROW(queue->wait({1}), std::logic_error);
  EXPECT_THROW(queue->done({1}), std::logic_error);
  for (const std::int64_t bad :
       {std::int64_t{0}, std::int64_t{-4096}, std::int64_t{5000}, 2 * maximum_operation_bytes}) {
    EXPECT_THROW(queue_over(drive, 2, {.block_bytes = bad}), std::logic_error);
  }
}

}  // namespace
}  // namespace spillway::aio
