// Offsets, lengths and addresses that are no multiples of anything: no byte beside the transfer changes.
#include "queue_support.h"

#include <array>
#include <fstream>
#include <thread>

#include <sys/resource.h>

namespace spillway::aio {
namespace {

constexpr std::int64_t block = 16 * KiB;
constexpr std::int64_t stripe = 24 * KiB;

struct Layout {
  int paths;
  bool direct;
};

std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  return (info.param.direct ? "Direct" : "Buffered") + std::to_string(info.param.paths);
}

/// A volume, and an array that should hold the same bytes.
class QueueUnaligned : public OnDrive, public ::testing::WithParamInterface<Layout> {
 protected:
  static constexpr std::int64_t total = 384 * KiB;

  void SetUp() override {
    OnDrive::SetUp();
    if (IsSkipped()) return;
    volume.emplace(volume_in(scratch.path(), total, GetParam().paths,
                             {.file = {.direct = GetParam().direct}, .stripe_bytes = stripe}));
    expected = random_bytes(volume->size(), 1);
    queue = std::make_unique<Queue>(QueueOptions{.ring = {.depth = 8}, .block_bytes = block});
    queue->wait(queue->write(*volume, 0, expected.data(), volume->size()));
  }
  void expect_all() {
    std::vector<std::byte> back(expected.size());
    queue->wait(queue->read(*volume, 0, back.data(), volume->size()));
    ASSERT_EQ(back, expected);
  }

  std::optional<Volume> volume;
  std::vector<std::byte> expected;
  std::unique_ptr<Queue> queue;
};

TEST_P(QueueUnaligned, EveryCombinationOfOffsetLengthAndAddressMovesTheseBytesAndNoOthers) {
  const std::array<std::int64_t, 6> offsets = {0, 1, 511, 4095, 4096, 4097};
  const std::array<std::int64_t, 3> bases = {0, block, stripe - 4096};
  const std::array<std::int64_t, 13> lengths = {
      1, 2, 511, 4095, 4096, 4097, 8191, block - 1, block, block + 1, stripe - 1, stripe + 1, 3 * stripe + 5};
  const AlignedBytes memory = aligned_bytes(8 * stripe);
  std::uint64_t seed = 100;
  for (const std::int64_t base : bases) {
    for (const std::int64_t at : offsets) {
      for (const std::int64_t length : lengths) {
        const std::int64_t address = std::array<std::int64_t, 4>{0, 1, 512, 4095}[seed % 4];
        const std::int64_t offset = base + at;
        const std::vector<std::byte> bytes = random_bytes(length, ++seed);
        std::copy(bytes.begin(), bytes.end(), memory.get() + address);
        std::copy(bytes.begin(), bytes.end(), expected.begin() + offset);
        queue->wait(queue->write(*volume, offset, memory.get() + address, length));

        // Read with as much around it, to see what should not have changed.
        const std::int64_t first = std::max<std::int64_t>(0, offset - 5001);
        const std::int64_t count = std::min(volume->size(), offset + length + 5003) - first;
        std::byte* const place = memory.get() + address + 1;
        std::fill_n(memory.get(), 8 * stripe, std::byte{0x5a});
        queue->wait(queue->read(*volume, first, place, count));
        ASSERT_TRUE(std::equal(place, place + count, expected.begin() + first))
            << "offset " << offset << " length " << length << " address " << address;
        ASSERT_TRUE(std::all_of(memory.get(), place, [](std::byte b) { return b == std::byte{0x5a}; }));
        ASSERT_TRUE(std::all_of(place + count, memory.get() + 8 * stripe,
                                [](std::byte b) { return b == std::byte{0x5a}; }));
      }
    }
  }
  expect_all();
}

TEST_P(QueueUnaligned, RandomTransfersAtTheSameTimeAreThoseOfAPlainArray) {
  std::mt19937_64 random(5);
  const auto below = [&](std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random);
  };
  for (int round = 0; round < 60; ++round) {
    // Neighbouring extents of any length, every second one left out at random: none overlap.
    std::vector<std::pair<std::int64_t, std::int64_t>> extents;
    for (std::int64_t offset = below(3000); offset < volume->size();) {
      const std::int64_t most = below(3) == 0 ? 3 * stripe : below(2) == 0 ? 9000 : 700;
      const std::int64_t bytes = std::min(1 + below(most), volume->size() - offset);
      if (below(3) != 0) extents.emplace_back(offset, bytes);
      offset += bytes;
    }
    std::shuffle(extents.begin(), extents.end(), random);
    std::vector<std::vector<std::byte>> memory;
    std::vector<bool> reads;
    for (const auto& [offset, bytes] : extents) {
      const std::int64_t shift = below(2) == 0 ? 0 : below(4096);
      memory.emplace_back(static_cast<std::size_t>(bytes + shift));
      std::byte* const place = memory.back().data() + shift;
      reads.push_back(below(2) == 0);
      if (reads.back()) {
        queue->read(*volume, offset, place, bytes);
      } else {
        const auto fresh = random_bytes(bytes, random());
        std::copy(fresh.begin(), fresh.end(), place);
        std::copy(fresh.begin(), fresh.end(), expected.begin() + offset);
        queue->write(*volume, offset, place, bytes);
      }
    }
    queue->drain();
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const auto [offset, bytes] = extents[i];
      ASSERT_TRUE(std::equal(memory[i].end() - bytes, memory[i].end(), expected.begin() + offset))
          << (reads[i] ? "read" : "write") << " of " << bytes << " at " << offset << " in round " << round;
    }
    expect_all();
    if (HasFatalFailure()) return;
  }
}

TEST_P(QueueUnaligned, NeighboursThatShareAPieceLoseNothing) {
  constexpr int threads = 6;
  for (int round = 0; round < 20; ++round) {
    const auto fresh = random_bytes(volume->size(), 1000 + static_cast<std::uint64_t>(round));
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; ++thread) {
      all.emplace_back([&, thread] {
        // 701 bytes each, so that five or six threads write into one piece.
        for (std::int64_t offset = thread * 701; offset < 40 * 4096; offset += threads * 701) {
          queue->write(*volume, offset, fresh.data() + offset, 701);
        }
      });
    }
    for (std::thread& thread : all) thread.join();
    queue->drain();
    for (std::int64_t offset = 0; offset < 40 * 4096; offset += 701) {
      std::copy_n(fresh.begin() + offset, 701, expected.begin() + offset);
    }
    expect_all();
    if (HasFatalFailure()) return;
  }
}

TEST_P(QueueUnaligned, TheVolumesLastByteIsLikeAnyOther) {
  const std::byte last = expected.back() ^ std::byte{0xff};
  expected.back() = last;
  queue->wait(queue->write(*volume, volume->size() - 1, &last, 1));
  expect_all();
  const auto tail = random_bytes(4099, 3);
  std::copy(tail.begin(), tail.end(), expected.end() - 4099);
  queue->wait(queue->write(*volume, volume->size() - 4099, tail.data(), 4099));
  expect_all();
}

INSTANTIATE_TEST_SUITE_P(Layouts, QueueUnaligned,
                         ::testing::Values(Layout{1, true}, Layout{3, true}, Layout{1, false},
                                           Layout{3, false}),
                         layout_name);

using QueueCopies = OverFakeRing;

TEST_F(QueueCopies, AlignedTransfersCopyNothingAndOthersAreCounted) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  queue->wait(write(*queue, 0, volume_bytes));
  queue->wait(read(*queue, 4096, 5 * block + 4096));
  EXPECT_EQ(queue->counters().copied_bytes, 0);
  const auto copied = [&](std::int64_t offset, std::byte* place, std::int64_t bytes, bool reading) {
    const QueueCounters before = queue->counters();
    queue->wait(reading ? queue->read(*volume, offset, place, bytes)
                        : queue->write(*volume, offset, place, bytes));
    const QueueCounters after = queue->counters();
    EXPECT_EQ(after.read_bytes - before.read_bytes, reading ? bytes : 0);
    EXPECT_EQ(after.written_bytes - before.written_bytes, reading ? 0 : bytes);
    EXPECT_EQ(after.resubmissions, before.resubmissions);
    return after.copied_bytes - before.copied_bytes;
  };
  for (const bool reading : {true, false}) {
    EXPECT_EQ(copied(1, memory.get() + 1, 1, reading), 1);
    EXPECT_EQ(copied(1, memory.get() + 1, 2 * 4096, reading), 4096) << "the middle needs no copy";
    EXPECT_EQ(copied(1, memory.get(), 2 * 4096, reading), 2 * 4096);
    EXPECT_EQ(copied(0, memory.get() + 8, 3 * block, reading), 3 * block);
    EXPECT_EQ(copied(0, memory.get(), 4096 + 5, reading), 5);
  }
  expect_aligned(drive);
  EXPECT_LE(drive.most_in_flight(), 4u);
}

TEST_F(QueueCopies, AWriteIntoAPieceReadsItFirstAndWritesItWhole) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  queue->wait(write(*queue, 0, block));
  drive.forget_started();
  const std::byte byte{0xee};
  queue->wait(queue->write(*volume, 4096 + 7, &byte, 1));
  const auto started = drive.started();
  ASSERT_EQ(started.size(), 2u);
  for (const Operation& operation : started) {
    EXPECT_EQ(operation.offset, 4096);
    EXPECT_EQ(operation.bytes, 4096);
  }
  EXPECT_EQ(started[0].direction, Direction::read);
  EXPECT_EQ(started[1].direction, Direction::write);
  const auto& contents = drive.contents(volume->file(0).descriptor());
  for (std::size_t i = 0; i < static_cast<std::size_t>(block); ++i) {
    ASSERT_EQ(contents[i], i == 4096 + 7 ? byte : memory[i]) << i;
  }
}

TEST_F(QueueCopies, WritesIntoOnePieceWaitForOneAnotherAndReadsGoOnBesideThem) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 8);
  for (std::int64_t i = 0; i < 5; ++i) write(*queue, i * 100, 100);
  const Ticket other = read(*queue, 2 * block, block);
  ASSERT_TRUE(drive.await_started(2));
  ASSERT_TRUE(drive.await_rest());
  EXPECT_EQ(drive.started_count(), 2u) << "one write, and the read beside it";
  drive.release();
  queue->wait(other);
  queue->drain();
  EXPECT_EQ(drive.started_count(), 2u * 5 + 1);
  const auto started = drive.started();
  int patches = 0;  // a read of the piece, then its write, one after another
  for (const Operation& operation : started) {
    if (operation.offset != 0) continue;
    EXPECT_EQ(operation.direction, patches++ % 2 == 0 ? Direction::read : Direction::write);
  }
  const auto& contents = drive.contents(volume->file(0).descriptor());
  EXPECT_TRUE(std::equal(contents.begin(), contents.begin() + 500, memory.get()));
}

TEST_F(QueueCopies, ShortAndInterruptedPatchesLoseNothing) {
  FakeDrive drive;
  std::mt19937_64 random(9);
  drive.next = [&](std::size_t count) { return random() % count; };
  drive.outcome = [&](const Operation& operation) -> std::int64_t {
    if (random() % 4 == 0) return -EINTR;
    return random() % 2 == 0
               ? operation.bytes
               : static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(operation.bytes));
  };
  const auto queue = queue_of(drive, 8);
  for (std::int64_t offset = 0; offset < volume_bytes;) {
    const std::int64_t bytes =
        std::min<std::int64_t>(volume_bytes - offset, 1 + static_cast<std::int64_t>(random() % 90000));
    write(*queue, offset, bytes);
    offset += bytes;
  }
  queue->drain();
  expect_written(drive, 0, volume_bytes);
  expect_aligned(drive);
  EXPECT_EQ(queue->counters().written_bytes, volume_bytes);
  std::vector<std::byte> back(static_cast<std::size_t>(volume_bytes) + 1);
  queue->wait(queue->read(*volume, 0, back.data() + 1, volume_bytes));
  EXPECT_TRUE(std::equal(back.begin() + 1, back.end(), memory.get()));
}

TEST_F(QueueCopies, AFailedReadOfAPieceIsReportedAsOneWithThePiecesOffset) {
  FakeDrive drive;
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    return operation.direction == Direction::read ? -EIO : operation.bytes;
  };
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 3 * 4096 + 100, 50);
  const Ticket behind = write(*queue, 3 * 4096 + 200, 50);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_EQ(error->detail().operation, "read");
  EXPECT_EQ(error->detail().offset, 3 * 4096);
  EXPECT_EQ(error->detail().length, 4096);
  EXPECT_EQ(error->detail().error_number, EIO);
  EXPECT_THROW(queue->wait(behind), Error) << "the piece was free again, and this one tried on its own";
  EXPECT_EQ(drive.started_count(), 2u) << "nothing may be written over what is not known";
  EXPECT_EQ(queue->counters().written_bytes, 0);
}

TEST_F(QueueCopies, AFailedWriteOfAPieceFreesItForTheNext) {
  FakeDrive drive;
  int writes = 0;
  drive.outcome = [&](const Operation& operation) -> std::int64_t {
    return operation.direction == Direction::write && ++writes == 1 ? -ENOSPC : operation.bytes;
  };
  const auto queue = queue_of(drive, 4);
  const Ticket first = write(*queue, 100, 50);
  const Ticket second = write(*queue, 200, 50);
  const auto error = error_of([&] { queue->wait(first); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::resources);
  EXPECT_EQ(error->detail().operation, "write");
  EXPECT_NO_THROW(queue->wait(second));
}

TEST_F(QueueCopies, APieceOfAFailedTransferIsNotWritten) {
  FakeDrive drive;
  drive.hold();
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    return operation.offset == 4096 ? -EIO : operation.bytes;
  };
  const auto queue = queue_of(drive, 4);
  const Ticket ticket = write(*queue, 1, 4096 + 4095);  // a piece, and one whole alignment that fails
  ASSERT_TRUE(drive.await_started(2));
  drive.next = [](std::size_t count) { return count - 1; };
  drive.allow(1);
  ASSERT_TRUE(drive.await_rest());
  EXPECT_FALSE(queue->done(ticket));
  drive.release();
  EXPECT_THROW(queue->wait(ticket), Error);
  EXPECT_EQ(drive.started_count(), 2u);
}

TEST_F(QueueCopies, WithoutMemoryForTheCopyTheTransferFailsAndTheNextIsTried) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs its address space";
#endif
  constexpr std::int64_t large = 256 * MiB;
  const std::string name = scratch.path() + "/sparse";
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, 2 * large), 0);
  ::close(descriptor);
  std::vector<File> files;
  files.push_back(File::open_existing(name));
  const Volume wide = Volume::over(std::move(files));
  const AlignedBytes user = aligned_bytes(large + 4096);
  FakeDrive drive;
  drive.moves_bytes = false;
  const auto queue = queue_over(drive, 2, {.block_bytes = large});
  queue->wait(queue->read(wide, 0, user.get(), 4096));

  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight{static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + large / 4), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  const Ticket ticket = queue->read(wide, 4096, user.get() + 1, large);
  const Ticket small = queue->read(wide, 1, user.get() + 1, 100);
  std::optional<Error> error;
  try {
    queue->wait(ticket);
  } catch (const Error& thrown) {
    error = thrown;
  }
  EXPECT_NO_THROW(queue->wait(small));
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::resources);
  EXPECT_EQ(error->detail().operation, "read");
  EXPECT_EQ(error->detail().path, name);
  EXPECT_EQ(error->detail().offset, 4096);
  EXPECT_EQ(error->detail().length, large);
  EXPECT_NO_THROW(queue->wait(queue->read(wide, 4096, user.get() + 1, large)));
}

}  // namespace
}  // namespace spillway::aio
