// A drive that fails in every way the wrapper of faults.h knows, below both engines: the right bytes, or an
// error that says what happened.
#include "queue_support.h"

#include <thread>

namespace spillway::aio {
namespace {

class QueueFaults : public OverEngine {
 protected:
  static constexpr std::int64_t total = 2 * MiB;
  void SetUp() override {
    OverEngine::SetUp();
    if (IsSkipped()) return;
    volume.emplace(volume_in(scratch.path(), total, 2, {.stripe_bytes = 64 * KiB}));
    write_pattern(memory.get(), total, 1, 0);
  }
  /// The error of a write of everything in blocks of 64 KiB, one after another.
  std::optional<Error> error_of_write(const Faults& faults) {
    Queue queue(options(1, 64 * KiB, faults));
    const Ticket ticket = queue.write(*volume, 0, memory.get(), total);
    return error_of([&] { queue.wait(ticket); });
  }
  std::optional<Error> error_of_read(const Faults& faults) {
    Queue queue(options(1, 64 * KiB, faults));
    const Ticket ticket = queue.read(*volume, 0, memory.get(), total);
    return error_of([&] { queue.wait(ticket); });
  }

  std::optional<Volume> volume;
  AlignedBytes memory = aligned_bytes(total);
};

TEST_P(QueueFaults, ThousandsOfTransfersOverABadDriveBringTheSameBytes) {
  const Faults faults[] = {
      {.short_transfers = 0.3, .interrupted = 0.2, .seed = 1},
      {.delayed = 0.2, .delay_us = 300, .reorder = true, .seed = 2},
      {.short_transfers = 0.2, .interrupted = 0.1, .delayed = 0.1, .delay_us = 200, .reorder = true, .seed = 3},
  };
  for (const Faults& bad : faults) {
    Queue queue(options(16, 16 * KiB, bad));
    std::vector<std::byte> expected = random_bytes(total, bad.seed);
    const std::vector<std::byte> source = expected;
    std::vector<std::byte> back(static_cast<std::size_t>(total));
    std::mt19937_64 random(bad.seed);
    std::vector<std::pair<std::int64_t, std::int64_t>> extents;
    for (std::int64_t offset = 0; offset < total;) {
      const auto most = random() % 8 == 0 ? std::uint64_t{40'000} : std::uint64_t{1500};
      const auto bytes = std::min<std::int64_t>(total - offset, 1 + static_cast<std::int64_t>(random() % most));
      extents.emplace_back(offset, bytes);
      offset += bytes;
    }
    std::shuffle(extents.begin(), extents.end(), random);
    for (const auto& [offset, bytes] : extents) queue.write(*volume, offset, source.data() + offset, bytes);
    queue.drain();
    for (const auto& [offset, bytes] : extents) queue.read(*volume, offset, back.data() + offset, bytes);
    queue.drain();
    EXPECT_EQ(back, expected);
    const QueueCounters counters = queue.counters();
    EXPECT_EQ(counters.written_bytes, total);
    EXPECT_EQ(counters.read_bytes, total);
    EXPECT_EQ(counters.writes + counters.reads, 2 * static_cast<std::int64_t>(extents.size()));
    EXPECT_EQ(counters.resubmissions > 0, bad.interrupted > 0);

    // The bytes are on the drive, not only in what was wrong in the same way twice.
    Queue good(options(4));
    std::fill(back.begin(), back.end(), std::byte{});
    good.wait(good.read(*volume, 0, back.data(), total));
    EXPECT_EQ(back, expected);
  }
}

TEST_P(QueueFaults, AFailureOfTheNthOperationIsReportedWithWhereItWas) {
  for (const int error_number : {EIO, ENOSPC, EDQUOT, EINVAL, ENODEV}) {
    for (const std::int64_t at : {1, 2, 17, 32}) {
      const Volume::Place place = volume->locate((at - 1) * 64 * KiB);
      for (const bool reading : {false, true}) {
        const Faults faults{.fail_at = at, .error_number = error_number};
        const auto error = reading ? error_of_read(faults) : error_of_write(faults);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->detail().error_number, error_number);
        EXPECT_EQ(error->detail().operation, reading ? "read" : "write");
        EXPECT_EQ(error->detail().path, scratch.path());
        EXPECT_EQ(error->detail().offset, place.offset);
        EXPECT_EQ(error->detail().length, 64 * KiB);
        EXPECT_EQ(error->kind(),
                  error_number == ENOSPC || error_number == EDQUOT ? ErrorKind::resources : ErrorKind::io);
      }
    }
  }
}

TEST_P(QueueFaults, AfterOneFailureTheQueueServesOn) {
  Queue queue(options(4, 64 * KiB, {.fail_at = 5}));
  const Ticket bad = queue.write(*volume, 0, memory.get(), total);
  EXPECT_THROW(queue.wait(bad), Error);
  queue.wait(queue.write(*volume, 0, memory.get(), total));
  std::fill_n(memory.get(), total, std::byte{});
  queue.wait(queue.read(*volume, 0, memory.get(), total));
  EXPECT_EQ(first_difference(memory.get(), total, 1, 0), -1);
}

TEST_P(QueueFaults, OfADriveThatIsGoneEveryTransferFailsOnce) {
  Queue queue(options(8, 64 * KiB, {.fail_at = 9, .fail_always = true, .error_number = ENODEV}));
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 32; ++i) {
    tickets.push_back(queue.write(*volume, i * 64 * KiB, memory.get() + i * 64 * KiB, 64 * KiB));
  }
  int failed = 0;
  for (const Ticket ticket : tickets) {
    try {
      queue.wait(ticket);
    } catch (const Error& error) {
      EXPECT_EQ(error.detail().error_number, ENODEV);
      ++failed;
    }
  }
  EXPECT_EQ(failed, 24);
  EXPECT_NO_THROW(queue.drain());
  EXPECT_THROW(queue.wait(queue.read(*volume, 0, memory.get(), 1)), Error);
}

TEST_P(QueueFaults, AReadThatEndsTooEarlyIsAnError) {
  const auto error = error_of_read({.truncate_at = 3});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(std::string(error->what()).find("unexpected end of file"), std::string::npos);
  EXPECT_EQ(error->detail().offset, volume->locate(2 * 64 * KiB).offset);
}

TEST_P(QueueFaults, InterruptedForEverItIsGivenUp) {
  Queue queue(options(4, 64 * KiB, {.interrupted = 1}));
  const Ticket ticket = queue.write(*volume, 0, memory.get(), 64 * KiB);
  const auto error = error_of([&] { queue.wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("no progress"), std::string::npos);
  EXPECT_GE(queue.counters().resubmissions, 100);
}

TEST_P(QueueFaults, DestroyedWithEverythingUnderWayNothingHangsLeaksOrIsTouchedLater) {
  const std::int64_t before = open_descriptors();
  for (int round = 0; round < 50; ++round) {
    const Faults faults = round % 2 == 0 ? Faults{}
                                         : Faults{.short_transfers = 0.2,
                                                  .interrupted = 0.2,
                                                  .delayed = 0.5,
                                                  .delay_us = 2000,
                                                  .reorder = true,
                                                  .seed = static_cast<std::uint64_t>(round)};
    const Volume own = volume_in(scratch.path(), 4 * MiB, 2);
    const AlignedBytes bytes = aligned_bytes(4 * MiB);
    Queue queue(options(static_cast<unsigned>(1 + round % 20), 64 * KiB, faults));
    const bool registered = round % 3 == 0 && queue.register_volume(own);
    queue.write(own, 0, bytes.get(), 2 * MiB);
    queue.read(own, 2 * MiB, bytes.get() + 2 * MiB, 2 * MiB - 77);
    queue.write(own, 4 * MiB - 50, bytes.get() + 4 * MiB - 50, 20);
    if (round % 5 == 4) std::this_thread::yield();
    static_cast<void>(registered);
  }  // AddressSanitizer or the heap's own checks would see a late write into freed memory
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(scratch.entries(), 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, QueueFaults, ::testing::Values(IoEngine::io_uring, IoEngine::posix),
                         engine_name);

}  // namespace
}  // namespace spillway::aio
