// Queue over the kernel and a real drive.
#include "../../aio/queue.h"

#include "scratch.h"

#include <algorithm>
#include <csignal>
#include <ostream>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace spillway::aio {
namespace {

struct Extent {
  std::int64_t offset;
  std::int64_t bytes;
};

/// Neighbouring extents of 4 KiB to `largest` that cover all of `total`.
std::vector<Extent> cover(std::int64_t total, std::int64_t largest, std::mt19937_64& random) {
  std::vector<Extent> extents;
  for (std::int64_t offset = 0; offset < total;) {
    const auto pages = std::uniform_int_distribution<std::int64_t>(1, largest / 4096)(random);
    extents.push_back({offset, std::min(pages * 4096, total - offset)});
    offset += extents.back().bytes;
  }
  return extents;
}

struct Shape {
  unsigned depth;
  std::int64_t block_bytes;
  std::int64_t largest;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << "blocks of " << shape.block_bytes << ", extents up to " << shape.largest;
}

class QueueRoundTrip : public OnDrive, public ::testing::WithParamInterface<Shape> {};

TEST_P(QueueRoundTrip, RandomExtentsInRandomOrder) {
  constexpr std::int64_t total = 24 * MiB;
  std::mt19937_64 random(GetParam().depth);
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), total);
  const AlignedBytes source = aligned_bytes(total);
  const AlignedBytes destination = aligned_bytes(total);
  write_pattern(source.get(), total, 1, 0);
  Queue queue(GetParam().depth, GetParam().block_bytes);

  std::vector<Extent> extents = cover(total, GetParam().largest, random);
  const auto writes = static_cast<std::int64_t>(extents.size());
  std::shuffle(extents.begin(), extents.end(), random);
  for (const Extent& e : extents) queue.write(file, e.offset, source.get() + e.offset, e.bytes);
  queue.drain();

  extents = cover(total, GetParam().largest, random);
  std::shuffle(extents.begin(), extents.end(), random);
  std::vector<std::pair<Ticket, Extent>> reads;
  for (const Extent& e : extents) {
    reads.emplace_back(queue.read(file, e.offset, destination.get() + e.offset, e.bytes), e);
  }
  std::shuffle(reads.begin(), reads.end(), random);
  for (const auto& [ticket, e] : reads) {
    queue.wait(ticket);
    ASSERT_EQ(first_difference(destination.get() + e.offset, e.bytes, 1, e.offset), -1);
  }
  const QueueCounters counters = queue.counters();
  EXPECT_EQ(counters.written_bytes, total);
  EXPECT_EQ(counters.read_bytes, total);
  EXPECT_EQ(counters.writes, writes);
  EXPECT_EQ(counters.reads, static_cast<std::int64_t>(reads.size()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, QueueRoundTrip,
                         ::testing::Values(Shape{1, default_block_bytes, 256 * KiB},
                                           Shape{3, 4 * KiB, 64 * KiB},
                                           Shape{8, 4 * KiB, 4 * KiB},  // 6144 tickets under way
                                           Shape{64, 12 * KiB, 1024 * KiB},
                                           Shape{256, default_block_bytes, 8 * MiB}),
                         [](const auto& test) { return "Depth" + std::to_string(test.param.depth); });

using QueueTest = OnDrive;

TEST_F(QueueTest, UnwrittenSpaceReadsAsZeros) {
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), 3 * MiB);
  const AlignedBytes memory = aligned_bytes(3 * MiB);
  std::fill_n(memory.get(), 3 * MiB, std::byte{0xff});
  Queue queue(4);
  queue.wait(queue.read(file, 0, memory.get(), 3 * MiB));
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + 3 * MiB, [](std::byte b) { return b == std::byte{}; }));
}

TEST_F(QueueTest, OneTransferLargerThanTheRingAndItsNeighbourhood) {
  constexpr std::int64_t total = 40 * MiB + 4 * KiB;
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), total + 8 * KiB);
  const AlignedBytes memory = aligned_bytes(total);
  const AlignedBytes edge = aligned_bytes(4 * KiB);
  write_pattern(edge.get(), 4 * KiB, 9, 0);
  Queue queue(4);
  queue.write(file, 0, edge.get(), 4 * KiB);
  queue.write(file, total + 4 * KiB, edge.get(), 4 * KiB);
  write_pattern(memory.get(), total, 2, 0);
  queue.write(file, 4 * KiB, memory.get(), total);
  queue.drain();
  std::fill_n(memory.get(), total, std::byte{});
  queue.wait(queue.read(file, 4 * KiB, memory.get(), total));
  EXPECT_EQ(first_difference(memory.get(), total, 2, 0), -1);
  for (const std::int64_t offset : {std::int64_t{0}, total + 4 * KiB}) {
    std::fill_n(edge.get(), 4 * KiB, std::byte{});
    queue.wait(queue.read(file, offset, edge.get(), 4 * KiB));
    EXPECT_EQ(first_difference(edge.get(), 4 * KiB, 9, 0), -1);
  }
}

TEST_F(QueueTest, SeveralFilesInOneQueue) {
  Queue queue(16, 64 * KiB);
  const AlignedBytes memory = aligned_bytes(8 * MiB);
  std::vector<DirectFile> files;
  for (std::uint64_t f = 0; f < 8; ++f) {
    files.push_back(DirectFile::create_anonymous(scratch.path(), MiB));
    std::byte* const place = memory.get() + static_cast<std::int64_t>(f) * MiB;
    write_pattern(place, MiB, f, 0);
    queue.write(files.back(), 0, place, MiB);
  }
  queue.drain();
  std::fill_n(memory.get(), 8 * MiB, std::byte{});
  for (std::uint64_t f = 8; f-- > 0;)
    queue.read(files[f], 0, memory.get() + static_cast<std::int64_t>(f) * MiB, MiB);
  queue.drain();
  for (std::uint64_t f = 0; f < 8; ++f) {
    EXPECT_EQ(first_difference(memory.get() + static_cast<std::int64_t>(f) * MiB, MiB, f, 0), -1);
  }
}

TEST_F(QueueTest, AFileMayBeClosedWhileItsTransfersAreUnderWay) {
  const std::int64_t before = open_descriptors();
  const AlignedBytes source = aligned_bytes(8 * MiB);
  const AlignedBytes zeros = aligned_bytes(8 * MiB);
  write_pattern(source.get(), 8 * MiB, 5, 0);
  std::fill_n(zeros.get(), 8 * MiB, std::byte{});
  {
    Queue queue(2, 64 * KiB);
    {
      const DirectFile closed = DirectFile::create_anonymous(scratch.path(), 8 * MiB);
      queue.write(closed, 0, source.get(), 8 * MiB);
    }
    // Would take the descriptor over, and the blocks that had not started, were it free.
    const DirectFile other = DirectFile::create_anonymous(scratch.path(), 8 * MiB);
    queue.drain();
    queue.wait(queue.read(other, 0, source.get(), 8 * MiB));
    EXPECT_TRUE(std::equal(source.get(), source.get() + 8 * MiB, zeros.get()));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(QueueTest, AFileMadeShorterIsAnEndOfFile) {
  const DirectFile file = DirectFile::create_anonymous(scratch.path(), MiB);
  const AlignedBytes memory = aligned_bytes(MiB);
  write_pattern(memory.get(), MiB, 6, 0);
  Queue queue(4, 256 * KiB);
  queue.wait(queue.write(file, 0, memory.get(), MiB));
  ASSERT_EQ(::ftruncate(file.descriptor(), 600 * KiB), 0);
  std::fill_n(memory.get(), MiB, std::byte{});
  const Ticket ticket = queue.read(file, 512 * KiB, memory.get(), 256 * KiB);  // the kernel moves 88 KiB of it
  const auto error = error_of([&] { queue.wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(std::string(error->what()).find("unexpected end of file"), std::string::npos) << error->what();
  EXPECT_EQ(error->detail().offset, 600 * KiB);
  EXPECT_EQ(error->detail().length, 168 * KiB);
  EXPECT_EQ(queue.counters().resubmissions, 1);
  EXPECT_EQ(first_difference(memory.get(), 88 * KiB, 6, 512 * KiB), -1);
}

TEST_F(QueueTest, DestroyedWithTransfersUnderWayItWaitsForTheKernel) {
  for (int round = 0; round < 50; ++round) {
    const DirectFile file = DirectFile::create_anonymous(scratch.path(), 4 * MiB);
    const AlignedBytes memory = aligned_bytes(4 * MiB);
    Queue queue(8, 64 * KiB);
    queue.write(file, 0, memory.get(), 2 * MiB);
    queue.read(file, 2 * MiB, memory.get() + 2 * MiB, 2 * MiB);
  }  // AddressSanitizer or the heap's own checks would see a late write into freed memory
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(QueueTest, KilledInTheMiddleOfTransfersNoFileIsLeft) {
  int started[2] = {-1, -1};
  ASSERT_EQ(::pipe(started), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const DirectFile file = DirectFile::create_anonymous(scratch.path(), 32 * MiB);
      const AlignedBytes memory = aligned_bytes(32 * MiB);
      write_pattern(memory.get(), 32 * MiB, 4, 0);
      Queue queue(16, 64 * KiB);
      for (;;) {
        const Ticket ticket = queue.write(file, 0, memory.get(), 32 * MiB);
        if (::write(started[1], "x", 1) != 1) ::_exit(1);
        queue.wait(ticket);
      }
    } catch (...) {
      ::_exit(2);
    }
  }
  ::close(started[1]);
  char byte = 0;
  EXPECT_EQ(::read(started[0], &byte, 1), 1);
  EXPECT_EQ(::read(started[0], &byte, 1), 1);  // the second transfer is under way
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::close(started[0]);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(scratch.entries(), 0);
}

}  // namespace
}  // namespace spillway::aio
