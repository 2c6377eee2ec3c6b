// Queue over the kernel and a real drive.
#include "queue_support.h"

#include <algorithm>
#include <csignal>
#include <ostream>
#include <random>
#include <vector>

#include <sys/mman.h>
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
  IoEngine engine;
  int paths;
  unsigned depth;
  std::int64_t block_bytes;
  std::int64_t largest;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.paths << " paths, blocks of " << shape.block_bytes << ", extents up to " << shape.largest;
}

class QueueRoundTrip : public OnDrive, public ::testing::WithParamInterface<Shape> {};

TEST_P(QueueRoundTrip, RandomExtentsInRandomOrder) {
  constexpr std::int64_t total = 24 * MiB;
  std::mt19937_64 random(GetParam().depth);
  const Volume volume = volume_in(scratch.path(), total, GetParam().paths, {.stripe_bytes = 64 * KiB});
  const AlignedBytes source = aligned_bytes(total);
  const AlignedBytes destination = aligned_bytes(total);
  write_pattern(source.get(), total, 1, 0);
  Queue queue(QueueOptions{.ring = {.depth = GetParam().depth, .engine = GetParam().engine},
                           .block_bytes = GetParam().block_bytes});

  std::vector<Extent> extents = cover(total, GetParam().largest, random);
  const auto writes = static_cast<std::int64_t>(extents.size());
  std::shuffle(extents.begin(), extents.end(), random);
  for (const Extent& e : extents) queue.write(volume, e.offset, source.get() + e.offset, e.bytes);
  queue.drain();

  extents = cover(total, GetParam().largest, random);
  std::shuffle(extents.begin(), extents.end(), random);
  std::vector<std::pair<Ticket, Extent>> reads;
  for (const Extent& e : extents) {
    reads.emplace_back(queue.read(volume, e.offset, destination.get() + e.offset, e.bytes), e);
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
                         ::testing::Values(Shape{IoEngine::automatic, 1, 1, default_block_bytes, 256 * KiB},
                                           Shape{IoEngine::automatic, 3, 3, 4 * KiB, 64 * KiB},
                                           Shape{IoEngine::automatic, 1, 8, 4 * KiB,
                                                 4 * KiB},  // 6144 tickets under way
                                           Shape{IoEngine::automatic, 2, 64, 12 * KiB, 1024 * KiB},
                                           Shape{IoEngine::automatic, 1, 256, default_block_bytes, 8 * MiB},
                                           Shape{IoEngine::posix, 1, 1, default_block_bytes, 256 * KiB},
                                           Shape{IoEngine::posix, 3, 16, 64 * KiB, 1024 * KiB},
                                           Shape{IoEngine::posix, 1, 200, 8 * KiB, 64 * KiB}),
                         [](const auto& test) {
                           return (test.param.engine == IoEngine::posix ? "Posix" : "") +
                                  ("Depth" + std::to_string(test.param.depth));
                         });

using QueueTest = OnDrive;

TEST_F(QueueTest, UnwrittenSpaceReadsAsZeros) {
  const Volume volume = volume_in(scratch.path(), 3 * MiB);
  const AlignedBytes memory = aligned_bytes(3 * MiB);
  std::fill_n(memory.get(), 3 * MiB, std::byte{0xff});
  Queue queue(QueueOptions{.ring = {.depth = 4}});
  queue.wait(queue.read(volume, 0, memory.get(), 3 * MiB));
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + 3 * MiB, [](std::byte b) { return b == std::byte{}; }));
}

TEST_F(QueueTest, OneTransferLargerThanTheRingAndItsNeighbourhood) {
  constexpr std::int64_t total = 40 * MiB + 4 * KiB;
  const Volume volume = volume_in(scratch.path(), total + 8 * KiB);
  const AlignedBytes memory = aligned_bytes(total);
  const AlignedBytes edge = aligned_bytes(4 * KiB);
  write_pattern(edge.get(), 4 * KiB, 9, 0);
  Queue queue(QueueOptions{.ring = {.depth = 4}});
  queue.write(volume, 0, edge.get(), 4 * KiB);
  queue.write(volume, total + 4 * KiB, edge.get(), 4 * KiB);
  write_pattern(memory.get(), total, 2, 0);
  queue.write(volume, 4 * KiB, memory.get(), total);
  queue.drain();
  std::fill_n(memory.get(), total, std::byte{});
  queue.wait(queue.read(volume, 4 * KiB, memory.get(), total));
  EXPECT_EQ(first_difference(memory.get(), total, 2, 0), -1);
  for (const std::int64_t offset : {std::int64_t{0}, total + 4 * KiB}) {
    std::fill_n(edge.get(), 4 * KiB, std::byte{});
    queue.wait(queue.read(volume, offset, edge.get(), 4 * KiB));
    EXPECT_EQ(first_difference(edge.get(), 4 * KiB, 9, 0), -1);
  }
}

TEST_F(QueueTest, SeveralVolumesInOneQueueAndOneDirectory) {
  Queue queue(QueueOptions{.ring = {.depth = 16}, .block_bytes = 64 * KiB});
  const AlignedBytes memory = aligned_bytes(8 * MiB);
  std::vector<Volume> files;
  for (std::uint64_t f = 0; f < 8; ++f) {
    files.push_back(volume_in(scratch.path(), MiB));
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

TEST_F(QueueTest, AVolumeMayBeClosedWhileItsTransfersAreUnderWay) {
  const std::int64_t before = open_descriptors();
  const AlignedBytes source = aligned_bytes(8 * MiB);
  const AlignedBytes zeros = aligned_bytes(8 * MiB);
  write_pattern(source.get(), 8 * MiB, 5, 0);
  std::fill_n(zeros.get(), 8 * MiB, std::byte{});
  {
    Queue queue(QueueOptions{.ring = {.depth = 2}, .block_bytes = 64 * KiB});
    {
      const Volume closed = volume_in(scratch.path(), 8 * MiB);
      queue.write(closed, 0, source.get(), 8 * MiB);
    }
    // Would take the descriptor over, and the blocks that had not started, were it free.
    const Volume other = volume_in(scratch.path(), 8 * MiB);
    queue.drain();
    queue.wait(queue.read(other, 0, source.get(), 8 * MiB));
    EXPECT_TRUE(std::equal(source.get(), source.get() + 8 * MiB, zeros.get()));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(QueueTest, AFileMadeShorterIsAnEndOfFile) {
  const Volume volume = volume_in(scratch.path(), MiB);
  const AlignedBytes memory = aligned_bytes(MiB);
  write_pattern(memory.get(), MiB, 6, 0);
  Queue queue(QueueOptions{.ring = {.depth = 4}, .block_bytes = 256 * KiB});
  queue.wait(queue.write(volume, 0, memory.get(), MiB));
  ASSERT_EQ(::ftruncate(volume.file(0).descriptor(), 600 * KiB), 0);
  std::fill_n(memory.get(), MiB, std::byte{});
  const Ticket ticket =
      queue.read(volume, 512 * KiB, memory.get(), 256 * KiB);  // the kernel moves 88 KiB of it
  const auto error = error_of([&] { queue.wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(std::string(error->what()).find("unexpected end of file"), std::string::npos) << error->what();
  EXPECT_EQ(error->detail().offset, 600 * KiB);
  EXPECT_EQ(error->detail().length, 168 * KiB);
  EXPECT_EQ(queue.counters().resubmissions, 1);
  EXPECT_EQ(first_difference(memory.get(), 88 * KiB, 6, 512 * KiB), -1);
}

TEST_F(QueueTest, AClosedVolumesSpaceIsBackWhenItsLastTransferHasBeenWaitedFor) {
  const AlignedBytes memory = aligned_bytes(MiB);
  Queue queue(QueueOptions{.ring = {.depth = 4}, .block_bytes = 64 * KiB});
  const std::int64_t before = open_descriptors();
  for (int round = 0; round < 200; ++round) {
    std::optional<Volume> volume = volume_in(scratch.path(), MiB, 2);
    const Ticket ticket = queue.write(*volume, 0, memory.get(), MiB);
    volume.reset();
    queue.wait(ticket);
    ASSERT_EQ(open_descriptors(), before);
  }
}

TEST_F(QueueTest, KilledInTheMiddleOfTransfersNoFileIsLeft) {
  int started[2] = {-1, -1};
  ASSERT_EQ(::pipe(started), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const Volume volume = volume_in(scratch.path(), 32 * MiB);
      const AlignedBytes memory = aligned_bytes(32 * MiB);
      write_pattern(memory.get(), 32 * MiB, 4, 0);
      Queue queue(QueueOptions{.ring = {.depth = 16}, .block_bytes = 64 * KiB});
      for (;;) {
        const Ticket ticket = queue.write(volume, 0, memory.get(), 32 * MiB);
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

/// Over a fake ring, which moves nothing, and a file that has no bytes: it is the sums that are tested.
TEST_F(QueueTest, ATransferOfMoreThan4GiBIsCutWithoutALossOrAnOverlap) {
  constexpr std::int64_t total = 5 * 1024 * MiB;
  const std::string name = scratch.path() + "/sparse";
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, total), 0);
  ::close(descriptor);
  std::vector<File> files;
  files.push_back(File::open_existing(name));
  const Volume volume = Volume::over(std::move(files));
  void* const region =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "5 GiB of address space are not to be had";
  std::byte* const memory = static_cast<std::byte*>(region);
  for (const std::int64_t block_bytes : {std::int64_t{MiB}, maximum_operation_bytes}) {
    // The second is odd at both ends; its middle is aligned.
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{4097}}) {
      FakeDrive drive;
      drive.moves_bytes = false;
      const auto queue = queue_over(drive, 16, {.block_bytes = block_bytes});
      queue->wait(queue->read(volume, cut, memory + cut, total - 2 * cut));
      std::int64_t next = cut;
      for (const Operation& operation : drive.started()) {
        const std::int64_t end = std::min(operation.offset + operation.bytes, total - cut);
        ASSERT_EQ(operation.offset, next / 4096 * 4096);
        const bool partial = next % 4096 != 0 || end % 4096 != 0;
        ASSERT_TRUE(partial || operation.memory == memory + next);
        ASSERT_LE(operation.bytes, block_bytes);
        next = end;
      }
      EXPECT_EQ(next, total - cut);
      EXPECT_EQ(queue->counters().read_bytes, total - 2 * cut);
      EXPECT_EQ(queue->counters().copied_bytes, cut == 0 ? 0 : 2 * 4095);
      EXPECT_EQ(queue->counters().reads, 1);
    }
  }
  ::munmap(region, total);
}

TEST_F(QueueTest, MoreThan4GiBInOneTransfer) {
  if (std::getenv("SPILLWAY_FULL_GRID") == nullptr) GTEST_SKIP() << "set SPILLWAY_FULL_GRID=1";
  constexpr std::int64_t total = 4 * 1024 * MiB + 3 * MiB;
  const Volume volume = volume_in(scratch.path(), total);
  void* const region =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(region, MAP_FAILED);
  std::byte* const memory = static_cast<std::byte*>(region);
  write_pattern(memory, total, 7, 0);
  Queue queue;
  queue.wait(queue.write(volume, 0, memory, total));
  ASSERT_EQ(::madvise(region, total, MADV_DONTNEED), 0);  // zeros again
  queue.wait(queue.read(volume, 0, memory, total));
  EXPECT_EQ(first_difference(memory, total, 7, 0), -1);
  ::munmap(region, total);
}

}  // namespace
}  // namespace spillway::aio
