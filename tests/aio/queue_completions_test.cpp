// What Queue makes of completions: each outcome a kernel can give, in each order, by a ring that the test
// decides.
#include "../../aio/queue.h"
#include "fake_ring.h"
#include "scratch.h"

#include <chrono>
#include <map>
#include <random>

#include <gtest/gtest.h>
#include <malloc.h>

namespace spillway::aio {
namespace {

constexpr std::int64_t file_bytes = 4 * MiB;
constexpr std::int64_t block = 64 * KiB;

class QueueCompletions : public OnDrive {
 protected:
  void SetUp() override {
    OnDrive::SetUp();
    if (IsSkipped()) return;
    file.emplace(DirectFile::create_anonymous(scratch.path(), file_bytes));
    write_pattern(memory.get(), file_bytes, 1, 0);
  }

  std::unique_ptr<Queue> queue_of(unsigned depth) {
    return std::make_unique<Queue>(std::make_unique<FakeRing>(drive, depth), block);
  }
  Ticket write(Queue& queue, std::int64_t offset, std::int64_t bytes) {
    return queue.write(*file, offset, memory.get() + offset, bytes);
  }
  void expect_written(std::int64_t offset, std::int64_t bytes) {
    ASSERT_GE(static_cast<std::int64_t>(drive.contents.size()), offset + bytes);
    EXPECT_EQ(first_difference(drive.contents.data() + offset, bytes, 1, offset), -1);
  }
  void expect_aligned() {
    for (const Operation& operation : drive.started) {
      EXPECT_EQ(operation.offset % 4096, 0);
      EXPECT_EQ(operation.bytes % 4096, 0);
      EXPECT_GT(operation.bytes, 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(operation.memory) % 4096, 0u);
    }
  }

  FakeDrive drive;
  std::optional<DirectFile> file;
  AlignedBytes memory = aligned_bytes(file_bytes);
};

TEST_F(QueueCompletions, ATransferIsCutAtBlockBorders) {
  const auto queue = queue_of(8);
  queue->wait(write(*queue, 8 * KiB, 3 * block + 4 * KiB));
  ASSERT_EQ(drive.started.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto begin = static_cast<std::int64_t>(i) * block;
    EXPECT_EQ(drive.started[i].offset, 8 * KiB + begin);
    EXPECT_EQ(drive.started[i].memory, memory.get() + 8 * KiB + begin);
    EXPECT_EQ(drive.started[i].bytes, i < 3 ? block : 4 * KiB);
    EXPECT_EQ(drive.started[i].direction, Direction::write);
    EXPECT_EQ(drive.started[i].descriptor, file->descriptor());
  }
  EXPECT_EQ(drive.most_in_flight, 4u);
}

TEST_F(QueueCompletions, AnyOrderOfCompletionGivesTheSameBytes) {
  std::mt19937_64 random(1);
  const std::vector<std::function<std::size_t(std::size_t)>> orders = {
      [](std::size_t) { return std::size_t{0}; },
      [](std::size_t count) { return count - 1; },
      [&](std::size_t count) { return random() % count; },
  };
  for (const auto& order : orders) {
    drive = {};
    drive.next = order;
    const auto queue = queue_of(5);
    for (std::int64_t offset = 0; offset < file_bytes; offset += 160 * KiB) {
      write(*queue, offset, std::min(160 * KiB, file_bytes - offset));
    }
    queue->drain();
    expect_written(0, file_bytes);
    EXPECT_EQ(drive.most_in_flight, 5u);

    const AlignedBytes back = aligned_bytes(file_bytes);
    queue->wait(queue->read(*file, 0, back.get(), file_bytes));
    EXPECT_EQ(first_difference(back.get(), file_bytes, 1, 0), -1);
    EXPECT_EQ(queue->counters().read_bytes, file_bytes);
    EXPECT_EQ(queue->counters().written_bytes, file_bytes);
    EXPECT_EQ(queue->counters().resubmissions, 0);
  }
}

TEST_F(QueueCompletions, ShortTransfersGoOnFromTheLastAlignedByte) {
  std::mt19937_64 random(2);
  drive.next = [&](std::size_t count) { return random() % count; };
  drive.outcome = [&](const Operation& operation) {
    return random() % 2 == 0
               ? operation.bytes
               : static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(operation.bytes));
  };
  const auto queue = queue_of(8);
  queue->wait(write(*queue, 0, file_bytes));
  expect_written(0, file_bytes);
  const AlignedBytes back = aligned_bytes(file_bytes);
  queue->wait(queue->read(*file, 0, back.get(), file_bytes));
  EXPECT_EQ(first_difference(back.get(), file_bytes, 1, 0), -1);
  expect_aligned();
  EXPECT_EQ(queue->counters().written_bytes, file_bytes);
  EXPECT_EQ(queue->counters().read_bytes, file_bytes);
  EXPECT_GT(queue->counters().resubmissions, 20);
  EXPECT_EQ(queue->counters().resubmissions,
            static_cast<std::int64_t>(drive.started.size()) - 2 * file_bytes / block);
}

TEST_F(QueueCompletions, InterruptedAndRefusedAttemptsAreRepeated) {
  for (const int error_number : {EINTR, EAGAIN, ECANCELED}) {
    drive = {};
    std::map<std::int64_t, int> attempts;
    drive.outcome = [&](const Operation& operation) -> std::int64_t {
      return ++attempts[operation.offset] <= 3 ? -error_number : operation.bytes;
    };
    const auto queue = queue_of(4);
    queue->wait(write(*queue, 0, 6 * block));
    expect_written(0, 6 * block);
    EXPECT_EQ(queue->counters().resubmissions, 18);
    EXPECT_EQ(queue->counters().writes, 1);
  }
}

TEST_F(QueueCompletions, NoProgressForASecondIsAnError) {
  const std::map<std::int64_t, int> results = {{-EAGAIN, EAGAIN}, {-EINTR, EINTR}, {100, 0}, {0, 0}};
  for (const auto& [result, error_number] : results) {
    drive = {};
    drive.outcome = [r = result](const Operation&) { return r; };
    const auto queue = queue_of(4);
    const Ticket ticket = write(*queue, block, block);
    const auto start = std::chrono::steady_clock::now();
    const auto error = error_of([&] { queue->wait(ticket); });
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("no progress"), std::string::npos);
    EXPECT_EQ(error->detail().error_number, error_number);
    EXPECT_EQ(error->detail().offset, block);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    EXPECT_LT(drive.started.size(), 2000u) << "the attempts must not spin";
  }
}

TEST_F(QueueCompletions, NothingReadIsAnEndOfFile) {
  drive.outcome = [](const Operation&) { return std::int64_t{0}; };
  const auto queue = queue_of(4);
  const Ticket ticket = queue->read(*file, 0, memory.get(), block);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(std::string(error->what()).find("unexpected end of file"), std::string::npos);
  EXPECT_EQ(drive.started.size(), 1u);
}

TEST_F(QueueCompletions, MoreThanAskedForIsAnError) {
  drive.outcome = [](const Operation& operation) { return operation.bytes + 4096; };
  const auto queue = queue_of(4);
  const Ticket ticket = write(*queue, 0, block);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("more bytes were reported than asked for"), std::string::npos);
}

TEST_F(QueueCompletions, AnErrorNamesOperationDirectoryOffsetLengthAndErrno) {
  struct Case {
    int error_number;
    ErrorKind kind;
    const char* hint;
  };
  for (const Case& c :
       {Case{EIO, ErrorKind::io, "dmesg"}, Case{ENOSPC, ErrorKind::resources, "free some space"},
        Case{EDQUOT, ErrorKind::resources, "free some space"}, Case{EINVAL, ErrorKind::io, ""}}) {
    for (const Direction direction : {Direction::read, Direction::write}) {
      drive = {};
      drive.outcome = [&](const Operation& operation) {
        return operation.offset == 2 * block ? -std::int64_t{c.error_number} : operation.bytes;
      };
      const auto queue = queue_of(4);
      const Ticket ticket = direction == Direction::read ? queue->read(*file, 0, memory.get(), 3 * block - 4096)
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

TEST_F(QueueCompletions, AFailedTransferIsReportedWhenItsLastBlockHasLanded) {
  drive.outcome = [](const Operation& operation) { return operation.offset == 0 ? -EIO : operation.bytes; };
  const auto queue = queue_of(4);
  drive.hold = true;
  const Ticket ticket = write(*queue, 0, 16 * block);
  EXPECT_FALSE(queue->done(ticket));
  EXPECT_EQ(drive.in_flight, 4u);
  EXPECT_THROW(queue->wait(ticket), Error);
  EXPECT_EQ(drive.in_flight, 0u);
  EXPECT_EQ(drive.started.size(), 4u) << "blocks that had not started must not start after the failure";
  EXPECT_EQ(queue->counters().writes, 0);
  EXPECT_EQ(queue->counters().written_bytes, 3 * block);

  const Ticket next = write(*queue, 16 * block, 8 * block);
  queue->wait(next);
  expect_written(16 * block, 8 * block);
}

TEST_F(QueueCompletions, TheFirstOfSeveralFailedBlocksIsReported) {
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    return operation.offset == 0 ? -EIO : -ENOSPC;
  };
  const auto queue = queue_of(4);
  const Ticket ticket = write(*queue, 0, 4 * block);
  const auto error = error_of([&] { queue->wait(ticket); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->detail().error_number, EIO);
  EXPECT_NO_THROW(queue->drain());
}

TEST_F(QueueCompletions, AShortBlockOfAFailedTransferIsNotResubmitted) {
  drive.outcome = [](const Operation& operation) { return operation.offset == 0 ? -EIO : operation.bytes / 2; };
  const auto queue = queue_of(4);
  const Ticket ticket = write(*queue, 0, 2 * block);
  EXPECT_THROW(queue->wait(ticket), Error);
  EXPECT_EQ(drive.started.size(), 2u);
  EXPECT_EQ(queue->counters().resubmissions, 0);
}

TEST_F(QueueCompletions, OneFailedTransferLeavesTheOthersAlone) {
  drive.outcome = [](const Operation& operation) {
    return operation.offset == 5 * block ? -EIO : operation.bytes;
  };
  const auto queue = queue_of(3);
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 20; ++i) tickets.push_back(write(*queue, 2 * i * block, 2 * block));
  for (std::size_t i = 20; i-- > 0;) {
    if (i == 2) {
      EXPECT_THROW(queue->wait(tickets[i]), Error);
    } else {
      EXPECT_NO_THROW(queue->wait(tickets[i]));
      expect_written(static_cast<std::int64_t>(i) * 2 * block, 2 * block);
    }
  }
  EXPECT_EQ(queue->counters().writes, 19);
}

TEST_F(QueueCompletions, DrainThrowsTheEarliestErrorAfterAllHasLanded) {
  drive.next = [](std::size_t count) { return count - 1; };
  drive.outcome = [](const Operation& operation) -> std::int64_t {
    if (operation.offset == 3 * block) return -EIO;
    return operation.offset == 9 * block ? -ENXIO : operation.bytes;
  };
  const auto queue = queue_of(16);
  drive.hold = true;
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 40; ++i) tickets.push_back(write(*queue, i * block, block));
  const auto first = error_of([&] { queue->drain(); });
  ASSERT_TRUE(first);
  EXPECT_EQ(first->detail().error_number, EIO);
  EXPECT_EQ(drive.in_flight, 0u);
  EXPECT_EQ(queue->counters().writes, 38);
  EXPECT_NO_THROW(queue->wait(tickets[3])) << "each error is thrown once";
  const auto second = error_of([&] { queue->drain(); });
  ASSERT_TRUE(second);
  EXPECT_EQ(second->detail().error_number, ENXIO);
  EXPECT_NO_THROW(queue->drain());
}

TEST_F(QueueCompletions, WaitAndDoneOfFailedAndLandedTickets) {
  drive.outcome = [](const Operation& operation) { return operation.offset == 0 ? -EIO : operation.bytes; };
  const auto queue = queue_of(2);
  const Ticket bad = write(*queue, 0, block);
  const Ticket good = write(*queue, block, block);
  while (!queue->done(bad) || !queue->done(good)) {
  }
  EXPECT_THROW(queue->wait(bad), Error);
  EXPECT_NO_THROW(queue->wait(bad));
  EXPECT_TRUE(queue->done(bad));
  EXPECT_NO_THROW(queue->wait(good));
  EXPECT_NO_THROW(queue->wait(good));
}

TEST_F(QueueCompletions, WaitingForOneTransferLeavesTheOthersUnderWay) {
  drive.hold = true;
  const auto queue = queue_of(8);
  std::vector<Ticket> tickets;
  for (std::int64_t i = 0; i < 20; ++i) tickets.push_back(write(*queue, i * block, block));
  queue->wait(tickets[0]);
  EXPECT_EQ(drive.in_flight, 8u) << "a freed entry is used at once";
  EXPECT_EQ(drive.started.size(), 9u);
  drive.next = [](std::size_t count) { return count - 1; };
  queue->wait(tickets[8]);
  EXPECT_EQ(drive.started.size(), 10u);
  EXPECT_FALSE(queue->done(tickets[1]));
  queue->drain();
}

TEST_F(QueueCompletions, DoneNeverBlocks) {
  drive.hold = true;
  const auto queue = queue_of(2);
  const Ticket ticket = write(*queue, 0, 2 * block);
  EXPECT_FALSE(queue->done(ticket));
  EXPECT_FALSE(queue->done(ticket));
  drive.hold = false;
  while (!queue->done(ticket)) {
  }
  expect_written(0, 2 * block);
}

TEST_F(QueueCompletions, DestroyedItDropsWhatHasNotStartedAndWaitsForTheRest) {
  int completions = 0;
  drive.outcome = [&](const Operation& operation) -> std::int64_t {
    ++completions;
    return completions % 3 == 0 ? -EIO : (completions % 3 == 1 ? operation.bytes / 2 : operation.bytes);
  };
  drive.hold = true;
  {
    const auto queue = queue_of(6);
    for (std::int64_t i = 0; i < 10; ++i) write(*queue, 4 * i * block, 4 * block);
  }  // FakeRing checks that nothing is in flight at its end
  EXPECT_EQ(completions, 6);
  EXPECT_EQ(drive.started.size(), 6u);
}

TEST_F(QueueCompletions, NoBytesHaveLandedAtOnce) {
  const auto queue = queue_of(2);
  const Ticket ticket = queue->read(*file, file_bytes, nullptr, 0);
  EXPECT_TRUE(queue->done(ticket));
  EXPECT_NO_THROW(queue->wait(ticket));
  EXPECT_NO_THROW(queue->wait(write(*queue, 0, 0)));
  EXPECT_TRUE(drive.started.empty());
  EXPECT_EQ(queue->counters().reads, 1);
  EXPECT_EQ(queue->counters().writes, 1);
}

TEST_F(QueueCompletions, MisuseIsALogicErrorThatNamesTheValues) {
  const auto queue = queue_of(2);
  std::byte* const m = memory.get();
  const auto refused = [&](std::int64_t offset, std::byte* address, std::int64_t bytes,
                           const std::string& part) {
    for (const bool reading : {true, false}) {
      try {
        reading ? queue->read(*file, offset, address, bytes) : queue->write(*file, offset, address, bytes);
        ADD_FAILURE() << "accepted: " << part;
      } catch (const std::logic_error& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(reading ? "read" : "write"), std::string::npos)
            << error.what();
      }
    }
  };
  refused(512, m, 4096, "offset 512");
  refused(0, m, 4095, "length 4095");
  refused(0, m + 64, 4096, "multiples of 4096");
  refused(-4096, m, 4096, "offset -4096");
  refused(0, m, -4096, "-4096 bytes");
  refused(file_bytes, m, 4096, "outside a file of 4194304 bytes");
  refused(4096, m, file_bytes, "outside a file of 4194304 bytes");
  refused(4096, m, std::numeric_limits<std::int64_t>::max() / 4096 * 4096, "outside");
  refused(0, nullptr, 4096, "no memory");
  EXPECT_TRUE(drive.started.empty());
  EXPECT_THROW(queue->wait({0}), std::logic_error);
  EXPECT_THROW(queue->wait({1}), std::logic_error);
  EXPECT_THROW(queue->done({1}), std::logic_error);
  for (const std::int64_t bad :
       {std::int64_t{0}, std::int64_t{-4096}, std::int64_t{5000}, 2 * maximum_operation_bytes}) {
    EXPECT_THROW(Queue(std::make_unique<FakeRing>(drive, 2), bad), std::logic_error);
  }
  EXPECT_THROW(Queue(std::unique_ptr<Ring>()), std::logic_error);
}

TEST_F(QueueCompletions, LandedTransfersAreForgotten) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's heap keeps no statistics";
#endif
  const auto queue = queue_of(8);
  drive.contents.resize(static_cast<std::size_t>(file_bytes));
  const auto move_many = [&](int times) {
    for (int i = 0; i < times; ++i) {
      write(*queue, i % 32 * block, 4096);  // neither waited for nor asked about
      if (i % 64 == 0) {
        queue->drain();
        drive.started.clear();
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
