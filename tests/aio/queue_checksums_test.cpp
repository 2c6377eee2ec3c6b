// What a drive changes without a word is found when it is read, and named.
#include "../../aio/checksums.h"
#include "queue_support.h"

#include <atomic>
#include <thread>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

constexpr std::int64_t stripe = 64 * KiB;
constexpr std::int64_t total = MiB;

class QueueChecksums : public OverEngine {
 protected:
  void SetUp() override {
    OverEngine::SetUp();
    if (IsSkipped()) return;
    std::filesystem::create_directory(scratch.path() + "/a");
    std::filesystem::create_directory(scratch.path() + "/b");
    queue = std::make_unique<Queue>(options(8, 16 * KiB));
    write_pattern(memory.get(), total, 1, 0);
    std::fill_n(back.get(), total, std::byte{});
  }
  void TearDown() override { queue.reset(); }  // before the memory
  Volume one() { return Volume::create({{scratch.path() + "/a"}}, total, {.checksums = true}); }
  Volume two() {
    return Volume::create({{scratch.path() + "/a"}, {scratch.path() + "/b"}}, total,
                          {.checksums = true, .stripe_bytes = stripe});
  }
  /// Changes one byte behind the queue's back.
  static void flip(const Volume& volume, std::int64_t offset) {
    const Volume::Place place = volume.locate(offset);
    const int descriptor = volume.file(place.path).descriptor();
    const AlignedBytes page = aligned_bytes(4096);
    const std::int64_t at = place.offset / 4096 * 4096;
    ASSERT_EQ(::pread(descriptor, page.get(), 4096, at), 4096);
    page[static_cast<std::size_t>(place.offset - at)] ^= std::byte{0x10};
    ASSERT_EQ(::pwrite(descriptor, page.get(), 4096, at), 4096);
  }
  Ticket write(const Volume& volume, std::int64_t offset, std::int64_t bytes) {
    return queue->write(volume, offset, memory.get() + offset, bytes);
  }
  Ticket read(const Volume& volume, std::int64_t offset, std::int64_t bytes) {
    return queue->read(volume, offset, back.get() + offset, bytes);
  }

  std::unique_ptr<Queue> queue;
  AlignedBytes memory = aligned_bytes(total), back = aligned_bytes(total);
};

TEST_P(QueueChecksums, WhatIsUnharmedIsReadAsEver) {
  for (const Volume& volume : {one(), two()}) {
    queue->wait(read(volume, 0, total));  // nothing is known of it
    for (std::int64_t offset = 0; offset < total; offset += 100'000) {
      write(volume, offset, std::min<std::int64_t>(100'000, total - offset));
    }
    queue->drain();
    EXPECT_GT(volume.checksums()->size(), 0u);
    EXPECT_NO_THROW(queue->wait(read(volume, 0, total)));
    EXPECT_NO_THROW(queue->wait(read(volume, 12345, 500'000)));
    EXPECT_EQ(first_difference(back.get(), total, 1, 0), -1);
  }
}

TEST_P(QueueChecksums, AChangedByteIsFoundAndNamedWithPathOffsetLengthAndBothValues) {
  const Volume volume = one();
  queue->wait(write(volume, 8 * KiB, 20 * KiB));
  flip(volume, 13 * KiB);
  const auto error = error_of([&] { queue->wait(read(volume, 0, 64 * KiB)); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_EQ(error->detail().operation, "read");
  EXPECT_EQ(error->detail().path, scratch.path() + "/a");
  EXPECT_EQ(error->detail().offset, 8 * KiB);
  EXPECT_EQ(error->detail().length, 20 * KiB);
  EXPECT_EQ(error->detail().error_number, 0);
  EXPECT_FALSE(error->detail().hint.empty());
  const std::string line = error->what();
  for (const std::byte* const bytes : {memory.get(), back.get()}) {
    const auto hash = fmt::format("{:016x}", Checksums::hash(bytes + 8 * KiB, 20 * KiB));
    EXPECT_NE(line.find(hash), std::string::npos) << hash << " is not in: " << line;
  }
}

TEST_P(QueueChecksums, OfAStripedVolumeThePathAndTheOffsetThereAreNamed) {
  const Volume volume = two();
  queue->wait(write(volume, 0, total));
  for (const std::int64_t offset : {std::int64_t{5}, stripe + 9, 3 * stripe + 4096, total - 1}) {
    flip(volume, offset);
    const auto error = error_of([&] { queue->wait(read(volume, 0, total)); });
    ASSERT_TRUE(error);
    const Volume::Place place = volume.locate(offset);
    EXPECT_EQ(error->detail().path, scratch.path() + (place.path == 0 ? "/a" : "/b"));
    EXPECT_LE(error->detail().offset, place.offset);
    EXPECT_GT(error->detail().offset + error->detail().length, place.offset);
    EXPECT_LE(error->detail().length, volume.locate(offset / stripe * stripe).bytes);
    flip(volume, offset);
    EXPECT_NO_THROW(queue->wait(read(volume, 0, total)));
  }
}

TEST_P(QueueChecksums, DoneAndDrainFindItToo) {
  const Volume volume = one();
  queue->wait(write(volume, 0, total));
  flip(volume, 77);
  const Ticket ticket = read(volume, 0, total);
  while (!queue->done(ticket)) std::this_thread::yield();
  EXPECT_TRUE(queue->done(ticket));
  EXPECT_THROW(queue->wait(ticket), Error);
  EXPECT_NO_THROW(queue->wait(ticket)) << "once";

  read(volume, 0, total);
  const Ticket second = read(volume, 0, total);
  EXPECT_THROW(queue->drain(), Error);
  EXPECT_THROW(queue->wait(second), Error) << "the later one is left";
  EXPECT_NO_THROW(queue->drain());

  const Ticket third = read(volume, 0, total);
  while (!queue->done(third)) std::this_thread::yield();
  EXPECT_THROW(queue->drain(), Error);
  EXPECT_NO_THROW(queue->wait(third));
}

TEST_P(QueueChecksums, OnlyExtentsThatAreReadAsAWholeAreHeldAgainst) {
  const Volume volume = one();
  for (std::int64_t i = 0; i < 8; ++i) queue->wait(write(volume, i * 32 * KiB, 32 * KiB));
  flip(volume, 3 * 32 * KiB + 20 * KiB);
  EXPECT_NO_THROW(queue->wait(read(volume, 3 * 32 * KiB, 31 * KiB))) << "a part cannot be checked";
  EXPECT_NO_THROW(queue->wait(read(volume, 3 * 32 * KiB + 1, 32 * KiB)));
  EXPECT_NO_THROW(queue->wait(read(volume, 0, 3 * 32 * KiB)));
  EXPECT_THROW(queue->wait(read(volume, 3 * 32 * KiB, 32 * KiB)), Error);
  EXPECT_THROW(queue->wait(read(volume, 2 * 32 * KiB + 7, 100 * KiB)), Error);
  EXPECT_THROW(queue->wait(read(volume, 0, total)), Error);
}

TEST_P(QueueChecksums, WhatIsWrittenAgainIsHeldAgainstItsNewBytes) {
  const Volume volume = one();
  queue->wait(write(volume, 0, 256 * KiB));
  write_pattern(memory.get() + 64 * KiB, 4 * KiB, 2, 0);
  queue->wait(write(volume, 64 * KiB, 4 * KiB));
  EXPECT_NO_THROW(queue->wait(read(volume, 0, 256 * KiB))) << "the old sum is not true any more";
  flip(volume, 100);
  EXPECT_NO_THROW(queue->wait(read(volume, 0, 256 * KiB))) << "and what is left of the old is not known";
  flip(volume, 64 * KiB + 100);
  EXPECT_THROW(queue->wait(read(volume, 0, 256 * KiB)), Error);
}

TEST_P(QueueChecksums, UnalignedTransfersAreCheckedToo) {
  const Volume volume = two();
  queue->wait(write(volume, 3, stripe + 1001));
  queue->wait(write(volume, stripe + 1004, 100));
  EXPECT_NO_THROW(queue->wait(read(volume, 0, 2 * stripe)));
  EXPECT_NO_THROW(queue->wait(read(volume, 3, stripe + 1101)));
  flip(volume, stripe + 1050);
  EXPECT_NO_THROW(queue->wait(read(volume, 3, stripe + 1001)));
  EXPECT_THROW(queue->wait(read(volume, 3, stripe + 1101)), Error);
}

/// A thread that asks with done() takes the work of finding out on itself; the one that waits must not pass by.
TEST_P(QueueChecksums, WhoWaitsBesideSomeoneThatAsksGetsTheError) {
  const Volume volume = one();
  queue->wait(write(volume, 0, total));
  flip(volume, total - 1);
  for (int round = 0; round < 300; ++round) {
    const Ticket ticket = read(volume, 0, total);
    std::atomic<bool> ended{false};
    std::thread asks([&] {
      while (!ended) queue->done(ticket);
    });
    bool thrown = false;
    try {
      if (round % 2 == 0) {
        queue->wait(ticket);
      } else {
        queue->drain();
      }
    } catch (const Error&) {
      thrown = true;
    }
    ended = true;
    asks.join();
    ASSERT_TRUE(thrown) << "in round " << round;
    ASSERT_NO_THROW(queue->drain());
  }
}

TEST_P(QueueChecksums, ABitThatFlipsOnTheWayIsFoundOnlyWithThem) {
  for (const bool sums : {false, true}) {
    const Volume volume = Volume::create({{scratch.path()}}, total, {.checksums = sums});
    // 16 blocks are written; the 5th that is read brings a wrong bit.
    Queue faulty(options(4, 64 * KiB, {.flip_at = 16 + 5}));
    faulty.wait(faulty.write(volume, 0, memory.get(), total));
    const Ticket ticket = faulty.read(volume, 0, back.get(), total);
    if (sums) {
      EXPECT_THROW(faulty.wait(ticket), Error);
    } else {
      EXPECT_NO_THROW(faulty.wait(ticket));
    }
    EXPECT_NE(first_difference(back.get(), total, 1, 0), -1);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, QueueChecksums, ::testing::Values(IoEngine::io_uring, IoEngine::posix),
                         engine_name);

/// What a write that failed, or never happened, has left on the drive is not known: reading it is no error.
class QueueForgets : public OverFakeRing {
 protected:
  void SetUp() override {
    OverFakeRing::SetUp();
    if (IsSkipped()) return;
    volume.emplace(volume_in(scratch.path(), volume_bytes, 1, {.checksums = true}));
  }
  void expect_forgotten() {
    EXPECT_EQ(volume->checksums()->size(), 0u);
    FakeDrive zeros;
    const auto other = queue_of(zeros, 4);
    const AlignedBytes back = aligned_bytes(volume_bytes);
    EXPECT_NO_THROW(other->wait(other->read(*volume, 0, back.get(), volume_bytes)));
  }
};

TEST_F(QueueForgets, AFailedWrite) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) { return operation.offset == block ? -EIO : operation.bytes; };
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 0, 6 * block);
  EXPECT_EQ(volume->checksums()->size(), 1u);
  EXPECT_THROW(queue->wait(ticket), Error);
  expect_forgotten();
}

TEST_F(QueueForgets, WritesThatAnEndedQueueDropped) {
  FakeDrive drive;
  drive.hold();
  {
    const auto queue = queue_of(drive, 4);
    for (std::int64_t i = 0; i < 8; ++i) write(*queue, i * 2 * block, 2 * block);
    ASSERT_TRUE(drive.await_rest());
    for (std::int64_t i = 8; i < 16; ++i) write(*queue, i * 2 * block, 2 * block);
    EXPECT_EQ(volume->checksums()->size(), 16u);
  }
  expect_forgotten();
}

TEST_F(QueueForgets, WritesThatAnExceptionOnTheThreadDropped) {
  FakeDrive drive;
  const auto queue = queue_over(
      drive, 4, {.block_bytes = block, .on_block = [](const BlockTiming&) { throw std::bad_alloc(); }});
  const Ticket ticket = write(*queue, 0, 8 * block);
  EXPECT_THROW(queue->wait(ticket), std::bad_alloc);
  EXPECT_THROW(queue->wait(write(*queue, 8 * block, block)), std::bad_alloc);
  expect_forgotten();
}

TEST_F(QueueForgets, AReadThatFailedIsNotHeldAgainstAnything) {
  FakeDrive drive;
  bool fails = false;
  drive.outcome = [&](const Operation& operation) -> std::int64_t { return fails ? -EIO : operation.bytes; };
  const auto queue = queue_of(drive, 4);
  queue->wait(write(*queue, 0, block));
  fails = true;
  const AlignedBytes back = aligned_bytes(block);
  std::fill_n(back.get(), block, std::byte{});
  const Ticket ticket = queue->read(*volume, 0, back.get(), block);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->detail().error_number, EIO);
  EXPECT_NO_THROW(queue->drain());
}

}  // namespace
}  // namespace spillway::aio
