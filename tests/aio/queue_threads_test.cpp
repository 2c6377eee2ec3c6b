// One queue, called from several threads at once.
#include "queue_support.h"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace spillway::aio {
namespace {

class QueueThreads : public OverEngine {};

TEST_P(QueueThreads, ThousandsOfTicketsOfEightThreadsEachBringTheirOwnBytes) {
  constexpr std::int64_t threads = 8;
  constexpr std::int64_t each = 2000;
  constexpr std::int64_t piece = 4096;
  const Volume volume = volume_in(scratch.path(), threads * each * piece / 4, 3, {.stripe_bytes = 64 * KiB});
  const AlignedBytes memory = aligned_bytes(threads * each * piece / 4);
  Queue queue(options(64));
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  for (std::int64_t thread = 0; thread < threads; ++thread) {
    all.emplace_back([&, thread] {
      // A quarter of the pieces are on the drive at a time, so that all fit.
      const std::int64_t mine = thread * each / 4 * piece;
      for (std::uint64_t round = 0; round < 4; ++round) {
        const std::uint64_t key = 100 * static_cast<std::uint64_t>(thread) + round;
        std::vector<Ticket> tickets;
        for (std::int64_t i = 0; i < each / 4; ++i) {
          std::byte* const place = memory.get() + mine + i * piece;
          write_pattern(place, piece, key, i * piece);
          tickets.push_back(queue.write(volume, mine + i * piece, place, piece));
        }
        for (const Ticket ticket : tickets) queue.wait(ticket);
        std::fill_n(memory.get() + mine, each / 4 * piece, std::byte{});
        tickets.clear();
        for (std::int64_t i = each / 4; i-- > 0;) {
          tickets.push_back(queue.read(volume, mine + i * piece, memory.get() + mine + i * piece, piece));
        }
        for (std::int64_t i = each / 4; i-- > 0;) {
          queue.wait(tickets[static_cast<std::size_t>(each / 4 - 1 - i)]);
          if (first_difference(memory.get() + mine + i * piece, piece, key, i * piece) != -1) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  EXPECT_EQ(wrong, 0);
  const QueueCounters counters = queue.counters();
  EXPECT_EQ(counters.reads, threads * each);
  EXPECT_EQ(counters.writes, threads * each);
  EXPECT_EQ(counters.read_bytes, threads * each * piece);
  EXPECT_EQ(counters.written_bytes, threads * each * piece);
}

TEST_P(QueueThreads, EveryMemberMayBeCalledMeanwhile) {
  const Volume volume = volume_in(scratch.path(), 4 * MiB, 2, {.checksums = true});
  const AlignedBytes memory = aligned_bytes(4 * MiB);
  const AlignedBytes spare = aligned_bytes(MiB);
  write_pattern(memory.get(), 4 * MiB, 1, 0);
  Queue queue(options(8));
  std::atomic<bool> ended{false};
  std::vector<std::thread> others;
  others.emplace_back([&] {
    while (!ended) queue.drain();
  });
  others.emplace_back([&] {
    std::int64_t last = 0;
    while (!ended) {
      const std::int64_t moved = queue.counters().read_bytes;
      EXPECT_GE(moved, last);
      last = moved;
      EXPECT_EQ(queue.report().engine, GetParam());
    }
  });
  others.emplace_back([&] {
    while (!ended) {
      const Volume own = volume_in(scratch.path(), 64 * KiB);
      const bool files = queue.register_volume(own);
      const bool pinned = queue.register_memory({spare.get(), static_cast<std::size_t>(MiB)});
      queue.wait(queue.write(own, 0, spare.get(), 64 * KiB));
      if (pinned) queue.unregister_memory({spare.get(), static_cast<std::size_t>(MiB)});
      if (files) queue.unregister_volume(own);
    }
  });
  std::vector<std::thread> movers;
  for (std::int64_t thread = 0; thread < 3; ++thread) {
    movers.emplace_back([&, thread] {
      const std::int64_t begin = thread * MiB + thread * 1000;  // unaligned, and side by side
      for (int round = 0; round < 20; ++round) {
        queue.wait(queue.write(volume, begin, memory.get() + begin, MiB + 1000));
        const Ticket ticket = queue.read(volume, begin, memory.get() + begin, MiB + 1000);
        while (!queue.done(ticket)) std::this_thread::yield();
        EXPECT_NO_THROW(queue.wait(ticket));
      }
    });
  }
  for (std::thread& thread : movers) thread.join();
  ended = true;
  for (std::thread& thread : others) thread.join();
  EXPECT_EQ(first_difference(memory.get(), 4 * MiB, 1, 0), -1);
}

INSTANTIATE_TEST_SUITE_P(Engines, QueueThreads, ::testing::Values(IoEngine::io_uring, IoEngine::posix),
                         engine_name);

using QueueWaiters = OverFakeRing;

TEST_F(QueueWaiters, SeveralMayWaitAndEachReturnsWithItsOwnTransfer) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 16);
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 12; ++i) tickets.push_back(write(*queue, i * block, block));
  ASSERT_TRUE(drive.await_started(12));
  std::atomic<int> returned{0};
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < 4; ++i) {
    all.emplace_back([&, i] {
      for (std::size_t ticket = i; ticket < 8; ticket += 4) queue->wait(tickets[ticket]);
      ++returned;
    });
  }
  drive.allow(8);
  for (std::thread& thread : all) thread.join();
  EXPECT_EQ(returned, 4);
  EXPECT_EQ(drive.in_flight(), 4u) << "nobody had to wait for those";
  drive.release();
  queue->drain();
}

TEST_F(QueueWaiters, OneErrorIsReportedToOneOfThem) {
  for (int round = 0; round < 50; ++round) {
    FakeDrive drive;
    drive.outcome = [](const Operation&) { return std::int64_t{-EIO}; };
    drive.hold();
    const auto queue = queue_of(drive, 4);
    const Ticket ticket = write(*queue, 0, block);
    std::atomic<int> thrown{0};
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i) {
      all.emplace_back([&] {
        try {
          queue->wait(ticket);
        } catch (const Error& error) {
          EXPECT_EQ(error.detail().error_number, EIO);
          ++thrown;
        }
      });
    }
    drive.release();
    for (std::thread& thread : all) thread.join();
    ASSERT_EQ(thrown, 1);
  }
}

TEST_F(QueueWaiters, DrainReturnsWhenAllHasLandedAndNotBefore) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 16);
  for (std::int64_t i = 0; i < 4; ++i) write(*queue, i * block, block);
  std::atomic<bool> drained{false};
  std::thread drains([&] {
    queue->drain();
    drained = true;
  });
  ASSERT_TRUE(drive.await_started(4));
  drive.allow(3);
  ASSERT_TRUE(drive.await_rest());
  EXPECT_FALSE(drained);
  drive.allow(1);
  drains.join();
}

/// That the drain has begun before the later transfers cannot be seen from outside: tried until it has.
TEST_F(QueueWaiters, DrainDoesNotWaitForWhatWasStartedLater) {
  bool returned = false;
  for (int attempt = 0; attempt < 9 && !returned; ++attempt) {
    FakeDrive drive;
    drive.hold();
    const auto queue = queue_of(drive, 16);
    const Ticket first = write(*queue, 0, block);
    ASSERT_TRUE(drive.await_started(1));
    const auto time = std::chrono::milliseconds(20 << attempt);
    const std::future<void> drained = std::async(std::launch::async, [&] { queue->drain(); });
    drained.wait_for(time / 2);
    const Ticket later = write(*queue, block, block);
    ASSERT_TRUE(drive.await_started(2));
    drive.allow(1);
    queue->wait(first);
    returned = drained.wait_for(time) == std::future_status::ready;
    EXPECT_FALSE(queue->done(later));
    drive.release();
    drained.wait();
  }
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace spillway::aio
