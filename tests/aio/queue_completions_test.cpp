// What Queue makes of completions: each outcome a kernel can give, in each order, by a ring that the test
// decides.
#include "queue_support.h"

#include <map>
#include <random>

#include <malloc.h>

namespace spillway::aio {
namespace {

using QueueCompletions = OverFakeRing;

TEST_F(QueueCompletions, ATransferIsCutAtBlockBorders) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 8);
  queue->wait(write(*queue, 8 * KiB, 3 * block + 4 * KiB));
  const std::vector<Operation> started = drive.started();
  ASSERT_EQ(started.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto begin = static_cast<std::int64_t>(i) * block;
    EXPECT_EQ(started[i].offset, 8 * KiB + begin);
    EXPECT_EQ(started[i].memory, memory.get() + 8 * KiB + begin);
    EXPECT_EQ(started[i].bytes, i < 3 ? block : 4 * KiB);
    EXPECT_EQ(started[i].direction, Direction::write);
    EXPECT_EQ(started[i].descriptor, volume->file(0).descriptor());
  }
  EXPECT_EQ(drive.most_in_flight(), 4u);
  EXPECT_NE(drive.thread(), std::this_thread::get_id());
}

TEST_F(QueueCompletions, AnyOrderOfCompletionGivesTheSameBytes) {
  std::mt19937_64 random(1);
  const std::vector<std::function<std::size_t(std::size_t)>> orders = {
      [](std::size_t) { return std::size_t{0}; },
      [](std::size_t count) { return count - 1; },
      [&](std::size_t count) { return random() % count; },
  };
  for (const auto& order : orders) {
    FakeDrive drive;
    drive.next = order;
    const auto queue = queue_of(drive, 5);
    for (std::int64_t offset = 0; offset < volume_bytes; offset += 160 * KiB) {
      write(*queue, offset, std::min(160 * KiB, volume_bytes - offset));
    }
    queue->drain();
    expect_written(drive, 0, volume_bytes);
    EXPECT_EQ(drive.most_in_flight(), 5u);

    const AlignedBytes back = aligned_bytes(volume_bytes);
    queue->wait(queue->read(*volume, 0, back.get(), volume_bytes));
    EXPECT_EQ(first_difference(back.get(), volume_bytes, 1, 0), -1);
    EXPECT_EQ(queue->counters().read_bytes, volume_bytes);
    EXPECT_EQ(queue->counters().written_bytes, volume_bytes);
    EXPECT_EQ(queue->counters().resubmissions, 0);
  }
}

TEST_F(QueueCompletions, ShortTransfersGoOnFromTheLastAlignedByte) {
  FakeDrive drive;
  std::mt19937_64 random(2);
  drive.next = [&](std::size_t count) { return random() % count; };
  drive.outcome = [&](const Operation& operation) {
    return random() % 2 == 0
               ? operation.bytes
               : static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(operation.bytes));
  };
  const auto queue = queue_of(drive, 8);
  queue->wait(write(*queue, 0, volume_bytes));
  expect_written(drive, 0, volume_bytes);
  const AlignedBytes back = aligned_bytes(volume_bytes);
  queue->wait(queue->read(*volume, 0, back.get(), volume_bytes));
  EXPECT_EQ(first_difference(back.get(), volume_bytes, 1, 0), -1);
  expect_aligned(drive);
  EXPECT_EQ(queue->counters().written_bytes, volume_bytes);
  EXPECT_EQ(queue->counters().read_bytes, volume_bytes);
  EXPECT_GT(queue->counters().resubmissions, 20);
  EXPECT_EQ(queue->counters().resubmissions,
            static_cast<std::int64_t>(drive.started_count()) - 2 * volume_bytes / block);
}

TEST_F(QueueCompletions, InterruptedAndRefusedAttemptsAreRepeated) {
  for (const int error_number : {EINTR, EAGAIN, ECANCELED}) {
    FakeDrive drive;
    std::map<std::int64_t, int> attempts;
    drive.outcome = [&](const Operation& operation) -> std::int64_t {
      return ++attempts[operation.offset] <= 3 ? -error_number : operation.bytes;
    };
    const auto queue = queue_of(drive, 4);
    queue->wait(write(*queue, 0, 6 * block));
    expect_written(drive, 0, 6 * block);
    EXPECT_EQ(queue->counters().resubmissions, 18);
    EXPECT_EQ(queue->counters().writes, 1);
  }
}

TEST_F(QueueCompletions, WaitingForOneTransferLeavesTheOthersUnderWay) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 8);
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 20; ++i) tickets.push_back(write(*queue, i * block, block));
  ASSERT_TRUE(drive.await_started(8));
  drive.allow(1);
  queue->wait(tickets[0]);
  ASSERT_TRUE(drive.await_rest());
  EXPECT_EQ(drive.in_flight(), 8u) << "a freed entry is used at once";
  EXPECT_EQ(drive.started_count(), 9u);
  drive.next = [](std::size_t count) { return count - 1; };
  drive.allow(1);
  queue->wait(tickets[8]);
  ASSERT_TRUE(drive.await_rest());
  EXPECT_EQ(drive.started_count(), 10u);
  EXPECT_FALSE(queue->done(tickets[1]));
  drive.release();
  queue->drain();
}

TEST_F(QueueCompletions, TheQueueGoesOnWithoutAnyCall) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 0, 40 * block);
  for (std::size_t completed = 0; completed < 36; ++completed) {
    ASSERT_TRUE(drive.await_started(completed + 4));
    ASSERT_TRUE(drive.await_rest());
    EXPECT_EQ(drive.started_count(), completed + 4);
    drive.allow(1);
  }
  ASSERT_TRUE(drive.await_started(40));
  drive.release();
  queue->wait(ticket);
  expect_written(drive, 0, 40 * block);
}

TEST_F(QueueCompletions, SeveralCompletionsAreTakenAtOnce) {
  FakeDrive drive;
  drive.completions_at_once = 5;
  std::mt19937_64 random(3);
  drive.outcome = [&](const Operation& operation) -> std::int64_t {
    return random() % 3 == 0 ? -EAGAIN : random() % 3 == 0 ? operation.bytes / 2 : operation.bytes;
  };
  const auto queue = queue_of(drive, 8);
  queue->wait(write(*queue, 0, volume_bytes));
  expect_written(drive, 0, volume_bytes);
  EXPECT_EQ(drive.most_in_flight(), 8u);
}

TEST_F(QueueCompletions, ReadsAndWritesTakeTurns) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 1);
  const Ticket first = write(*queue, 0, 10 * block);
  ASSERT_TRUE(drive.await_rest());
  write(*queue, 10 * block, 2 * block);
  const Ticket later = read(*queue, 20 * block, 3 * block);
  read(*queue, 30 * block, block);
  // Block by block, each one alone in the ring.
  drive.allow(6);
  queue->wait(later);
  EXPECT_FALSE(queue->done(first));
  drive.release();
  queue->drain();
  std::vector<std::int64_t> reads, writes;
  std::string turns;
  for (const Operation& operation : drive.started()) {
    const bool reading = operation.direction == Direction::read;
    turns += reading ? 'r' : 'w';
    (reading ? reads : writes).push_back(operation.offset / block);
  }
  EXPECT_EQ(turns, "wrwrwrwrwwwwwwww");
  EXPECT_EQ(reads, (std::vector<std::int64_t>{20, 21, 22, 30}));
  EXPECT_EQ(writes, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})) << "as they were called";
}

TEST_F(QueueCompletions, DoneNeverBlocks) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 2);
  const Ticket ticket = write(*queue, 0, 2 * block);
  EXPECT_FALSE(queue->done(ticket));
  ASSERT_TRUE(drive.await_started(2));
  EXPECT_FALSE(queue->done(ticket));
  drive.release();
  while (!queue->done(ticket)) std::this_thread::yield();
  expect_written(drive, 0, 2 * block);
}

TEST_F(QueueCompletions, EachBlockThatHasLandedIsTimedOnce) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    if (operation.offset == 40 * block) return -EIO;
    return operation.bytes == block ? operation.bytes / 2 : operation.bytes;
  };
  std::vector<BlockTiming> timings;
  std::thread::id thread;
  const auto queue = queue_over(drive, 3, {.block_bytes = block, .on_block = [&](const BlockTiming& timing) {
                                             timings.push_back(timing);
                                             thread = std::this_thread::get_id();
                                           }});
  queue->wait(write(*queue, 0, 5 * block));
  queue->wait(read(*queue, 1, 2 * 4096));  // a piece, what is aligned, and a piece
  EXPECT_THROW(queue->wait(write(*queue, 40 * block, block)), Error);
  std::int64_t read_bytes = 0;
  std::int64_t written = 0;
  for (const BlockTiming& timing : timings) {
    (timing.direction == Direction::read ? read_bytes : written) += timing.bytes;
    EXPECT_GE(timing.seconds, 0);
    EXPECT_LT(timing.seconds, 60);
  }
  EXPECT_EQ(timings.size(), 5u + 3u);
  EXPECT_EQ(written, 5 * block);
  EXPECT_EQ(read_bytes, 2 * 4096);
  EXPECT_EQ(thread, drive.thread());
}

TEST_F(QueueCompletions, ReportAndDepthAreTheRings) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 7);
  EXPECT_EQ(queue->depth(), 7u);
  EXPECT_EQ(queue->report().notes, std::vector<std::string>{"a fake"});
  write(*queue, 0, 20 * block);
  EXPECT_EQ(queue->report().notes, std::vector<std::string>{"a fake"}) << "also while nothing completes";
  drive.release();
  queue->drain();
}

TEST_F(QueueCompletions, NoBytesHaveLandedAtOnce) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 2);
  const Ticket ticket = queue->read(*volume, volume_bytes, nullptr, 0);
  EXPECT_TRUE(queue->done(ticket));
  EXPECT_NO_THROW(queue->wait(ticket));
  EXPECT_NO_THROW(queue->wait(write(*queue, 0, 0)));
  EXPECT_EQ(drive.started_count(), 0u);
  EXPECT_EQ(queue->counters().reads, 1);
  EXPECT_EQ(queue->counters().writes, 1);
}

TEST_F(QueueCompletions, LandedTransfersAreForgotten) {
  FakeDrive drive;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's heap keeps no statistics";
#endif
  const auto queue = queue_of(drive, 8);
  drive.moves_bytes = false;
  const auto move_many = [&](int times) {
    for (int i = 0; i < times; ++i) {
      write(*queue, i % 32 * block, 4096);  // neither waited for nor asked about
      if (i % 64 == 0) {
        queue->drain();
        drive.forget_started();
      }
    }
  };
  move_many(1000);
  const auto before = ::mallinfo2().uordblks;
  move_many(200'000);
  EXPECT_LT(::mallinfo2().uordblks, before + 64 * 1024);
  queue->drain();
  EXPECT_EQ(queue->counters().writes, 201'000);
}

}  // namespace
}  // namespace spillway::aio
