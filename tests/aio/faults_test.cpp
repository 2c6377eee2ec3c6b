// A ring that behaves like a bad drive, and the lists that say how.
#include "../../aio/faults.h"

#include "ring_fixture.h"

#include <cmath>
#include <limits>
#include <ostream>
#include <set>
#include <thread>

namespace spillway::aio {
namespace {

// ---- lists

TEST(Faults, AListGivesEveryFault) {
  const Faults faults = parse_faults(
      "short=0.2,interrupt=0.1,delay=0.25,delay_us=500,reorder,fail=100:ENOSPC,flip=20,eof=7,seed=3", "key");
  EXPECT_EQ(faults, (Faults{.short_transfers = 0.2,
                            .interrupted = 0.1,
                            .delayed = 0.25,
                            .delay_us = 500,
                            .reorder = true,
                            .fail_at = 100,
                            .fail_always = false,
                            .error_number = ENOSPC,
                            .flip_at = 20,
                            .truncate_at = 7,
                            .seed = 3}));
  EXPECT_EQ(parse_faults("fail_from=9:EDQUOT", "key"),
            (Faults{.fail_at = 9, .fail_always = true, .error_number = EDQUOT}));
  EXPECT_EQ(parse_faults("fail=9", "key"), (Faults{.fail_at = 9, .error_number = EIO}));
  EXPECT_EQ(parse_faults("fail=9:121", "key"), (Faults{.fail_at = 9, .error_number = EREMOTEIO}));
  EXPECT_EQ(parse_faults("", "key"), Faults{});
  EXPECT_FALSE(parse_faults("seed=4,delay_us=3", "key").any());
}

class FaultsError : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(FaultsError, NamesTheKeyThePartAndWhatIsWrong) {
  const auto& [list, part] = GetParam();
  const auto error = error_of([list = list] { parse_faults(list, "spillway.io_faults"); });
  ASSERT_TRUE(error) << list;
  EXPECT_EQ(error->kind(), ErrorKind::configuration);
  EXPECT_NE(std::string(error->what()).find("spillway.io_faults: \"" + std::string(part)), std::string::npos)
      << error->what();
}

INSTANTIATE_TEST_SUITE_P(
    Lists, FaultsError,
    ::testing::Values(
        std::pair{"shrt=0.2", "shrt=0.2\" is none of"}, std::pair{"short", "short\" needs a prob"},
        std::pair{"short=", "short=\" needs"}, std::pair{"short=1.5", "short=1.5\" needs"},
        std::pair{"short=-0.1", "short=-0.1\" needs"}, std::pair{"short=nan", "short=nan\" needs"},
        std::pair{"short=0.1x", "short=0.1x\" needs"}, std::pair{"reorder=1", "reorder=1\" takes no"},
        std::pair{"delay=0.1,delay=0.2", "delay=0.2\" is there a second"},
        std::pair{"fail=1,fail_from=2", "fail_from=2\" is there a second"},
        std::pair{"fail=0", "fail=0\" needs the number"}, std::pair{"fail=:EIO", "fail=:EIO\" needs"},
        std::pair{"fail=3:EFOO", "fail=3:EFOO\" needs an error"},
        std::pair{"fail=3:", "fail=3:\" needs an error"}, std::pair{"fail=3:0", "fail=3:0\" needs an error"},
        std::pair{"fail=99999999999999999999", "fail=9999"}, std::pair{"flip=x", "flip=x\" needs"},
        std::pair{"eof=-1", "eof=-1\" needs"}, std::pair{"delay_us=1e9", "delay_us=1e9\" needs"},
        std::pair{"delay_us=inf", "delay_us=inf\" needs"}, std::pair{"seed=-1", "seed=-1\" needs"},
        std::pair{"short=0.1,,reorder", "\" is none of"}, std::pair{"short=0.1,", "\" is none of"}));

TEST(Faults, TheirTextIsReadBackAsTheSame) {
  EXPECT_EQ(to_string(Faults{}), "");
  EXPECT_EQ(to_string({.reorder = true, .fail_at = 3, .fail_always = true, .error_number = ENOSPC}),
            "reorder,fail_from=3:ENOSPC");
  for (const Faults& faults :
       {Faults{}, Faults{.short_transfers = 1.0 / 3, .interrupted = 1, .delayed = 1e-9, .delay_us = 0},
        Faults{.reorder = true, .fail_at = 1, .error_number = 4000},
        Faults{.fail_at = std::numeric_limits<std::int64_t>::max(),
        .fail_always = true,
        .error_number = EIO,
        .flip_at = 2,
        .truncate_at = 3,
        .seed = std::numeric_limits<std::uint64_t>::max()}}) {
    EXPECT_EQ(parse_faults(to_string(faults), "key"), faults) << to_string(faults);
  }
}

// ---- the ring

/// A file that is memory, and what has been started on it.
struct MemoryDrive {
  std::vector<std::byte> contents{};
  std::vector<Operation> started{};
};

/// Does everything at once and well.
class MemoryRing final : public Ring {
 public:
  MemoryRing(MemoryDrive& drive, unsigned depth) : drive_(drive), depth_(depth) {}

  unsigned depth() const noexcept override { return depth_; }
  void start(std::span<const Operation> operations) noexcept override {
    for (const Operation& operation : operations) {
      drive_.started.push_back(operation);
      std::byte* const place = drive_.contents.data() + operation.offset;
      const bool reads = operation.direction == Direction::read;
      std::copy_n(reads ? place : operation.memory, operation.bytes, reads ? operation.memory : place);
      done_.push_back({operation.tag, operation.bytes});
    }
    EXPECT_LE(done_.size(), depth_);
  }
  std::size_t reap(std::span<Completion> completions, bool) noexcept override {
    const std::size_t count = std::min(completions.size(), done_.size());
    std::copy_n(done_.begin(), count, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void wake() noexcept override {}
  void cancel() noexcept override {}
  int register_file(int, int) noexcept override { return ENOTSUP; }
  int register_memory(int, std::span<std::byte>) noexcept override { return ENOTSUP; }
  RingReport report() const override { return {}; }

 private:
  MemoryDrive& drive_;
  unsigned depth_;
  std::vector<Completion> done_{};
};

/// Over a file that is memory; counts are exact, because each operation is reaped before the next starts.
class FaultyRing : public ::testing::Test {
 protected:
  static constexpr std::int64_t bytes = 64 * KiB;

  void use(const Faults& faults, unsigned depth = 16) {
    drive.contents.resize(static_cast<std::size_t>(bytes));
    write_pattern(drive.contents.data(), bytes, 5, 0);
    ring = make_faulty_ring(std::make_unique<MemoryRing>(drive, depth), faults);
  }

  /// The result of one operation over all of the file, or of its first bytes.
  std::int64_t one(Direction direction, std::int64_t length = bytes) {
    const Operation operation{direction, 3, 0, memory.data(), length, 9};
    ring->start({&operation, 1});
    return reap_all(*ring, 1).at(9);
  }

  MemoryDrive drive;
  std::vector<std::byte> memory = std::vector<std::byte>(static_cast<std::size_t>(bytes));
  std::unique_ptr<Ring> ring;
};

TEST_F(FaultyRing, FailsOneOperationByItsNumber) {
  use({.fail_at = 3, .error_number = ENOSPC});
  for (int i = 1; i <= 6; ++i) EXPECT_EQ(one(Direction::write), i == 3 ? -ENOSPC : bytes) << i;
  EXPECT_EQ(drive.started.size(), 5u) << "the operation that failed reached the drive";
}

TEST_F(FaultyRing, FailsFromANumberOn) {
  use({.fail_at = 3, .fail_always = true});
  for (int i = 1; i <= 6; ++i) EXPECT_EQ(one(Direction::read), i >= 3 ? -EIO : bytes) << i;
}

TEST_F(FaultyRing, InterruptsByTurnsAndMovesNothing) {
  use({.interrupted = 1});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(one(Direction::write), -EINTR);
    EXPECT_EQ(one(Direction::read), -EAGAIN);
  }
  EXPECT_TRUE(drive.started.empty());
}

TEST_F(FaultyRing, SharesAreProbabilities) {
  use({.interrupted = 0.25});
  int interrupted = 0;
  for (int i = 0; i < 4000; ++i) interrupted += one(Direction::read, 8) < 0 ? 1 : 0;
  EXPECT_GT(interrupted, 850);  // 1000, and five standard deviations of 27
  EXPECT_LT(interrupted, 1150);
}

TEST_F(FaultyRing, ShortReadsBringWhatTheySayAndNoMore) {
  use({.short_transfers = 1});
  std::set<std::int64_t> at_border;
  std::set<std::int64_t> in_the_middle;
  for (int i = 0; i < 300; ++i) {
    std::fill(memory.begin(), memory.end(), std::byte{0xee});
    const std::int64_t moved = one(Direction::read);
    ASSERT_GT(moved, 0);
    ASSERT_LT(moved, bytes);
    (moved % 4096 == 0 ? at_border : in_the_middle).insert(moved);
    EXPECT_TRUE(std::equal(memory.begin(), memory.begin() + moved, drive.contents.begin()));
    EXPECT_TRUE(std::all_of(memory.begin() + moved, memory.end(), [](std::byte byte) {
      return byte == std::byte{0xa5} || byte == std::byte{0xee};
    })) << "more was brought than was reported";
  }
  EXPECT_GT(at_border.size(), 10u);
  EXPECT_GT(in_the_middle.size(), 100u);
  for (const Operation& operation : drive.started) EXPECT_EQ(operation.bytes % 4096, 0) << "for direct I/O";
}

TEST_F(FaultyRing, ShortWritesWriteAPart) {
  use({.short_transfers = 1});
  for (int i = 0; i < 100; ++i) {
    std::fill(drive.contents.begin(), drive.contents.end(), std::byte{});
    write_pattern(memory.data(), bytes, 6, 0);
    const std::int64_t moved = one(Direction::write);
    ASSERT_GT(moved, 0);
    ASSERT_LT(moved, bytes);
    EXPECT_TRUE(std::equal(memory.begin(), memory.begin() + moved, drive.contents.begin()));
    const std::int64_t border = (moved + 4095) / 4096 * 4096;
    EXPECT_TRUE(std::all_of(drive.contents.begin() + border, drive.contents.end(),
                            [](std::byte byte) { return byte == std::byte{}; }));
  }
}

TEST_F(FaultyRing, OneByteIsNeverShort) {
  use({.short_transfers = 1});
  EXPECT_EQ(one(Direction::read, 1), 1);
  EXPECT_EQ(one(Direction::read, 2), 1);
}

TEST_F(FaultyRing, FlipsOneBitOfTheNextReadAndReportsNothing) {
  use({.flip_at = 3});
  const auto wrong_bits = [&] {
    int count = 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      count += __builtin_popcount(std::to_integer<unsigned>(memory[i] ^ drive.contents[i]));
    }
    return count;
  };
  EXPECT_EQ(one(Direction::read), bytes);
  EXPECT_EQ(wrong_bits(), 0);
  EXPECT_EQ(one(Direction::read), bytes);
  EXPECT_EQ(wrong_bits(), 0);
  EXPECT_EQ(one(Direction::write), bytes);  // the third: no read
  EXPECT_EQ(wrong_bits(), 0);
  EXPECT_EQ(one(Direction::read), bytes);
  EXPECT_EQ(wrong_bits(), 1);
  EXPECT_EQ(one(Direction::read), bytes);
  EXPECT_EQ(wrong_bits(), 0);
}

TEST_F(FaultyRing, EndsOneReadAtTheEndOfTheFile) {
  use({.truncate_at = 2});
  EXPECT_EQ(one(Direction::read), bytes);
  EXPECT_EQ(one(Direction::write), bytes);
  EXPECT_EQ(one(Direction::read), 0);
  EXPECT_EQ(one(Direction::read), bytes);
}

TEST_F(FaultyRing, TheSameSeedGivesTheSameFaults) {
  const auto results = [&](std::uint64_t seed) {
    use({.short_transfers = 0.5, .interrupted = 0.2, .seed = seed});
    std::vector<std::int64_t> all;
    for (int i = 0; i < 100; ++i) all.push_back(one(Direction::read));
    return all;
  };
  const auto first = results(1);
  EXPECT_EQ(results(1), first);
  EXPECT_NE(results(2), first);
}

TEST_F(FaultyRing, ReorderedCompletionsComeInAnotherOrderAndEachOnce) {
  use({.reorder = true});
  std::vector<Operation> batch;
  for (unsigned i = 0; i < 16; ++i) batch.push_back({Direction::read, 3, 8 * i, memory.data() + 8 * i, 8, i});
  std::vector<std::uint64_t> order;
  ring->start(batch);
  std::array<Completion, 3> some;
  while (order.size() < 16) {
    const std::size_t count = ring->reap(some, true);
    ASSERT_GT(count, 0u);
    for (std::size_t i = 0; i < count; ++i) order.push_back(some[i].tag);
  }
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(std::set<std::uint64_t>(order.begin(), order.end()).size(), 16u);
}

TEST_F(FaultyRing, ALateCompletionIsWaitedForAndWakeEndsTheWait) {
  use({.delayed = 1, .delay_us = 1e7, .seed = 2});
  const Operation operation{Direction::read, 3, 0, memory.data(), 8, 9};
  ring->start({&operation, 1});
  std::array<Completion, 1> completions;
  EXPECT_EQ(ring->reap(completions, false), 0u);
  ring->wake();
  EXPECT_EQ(ring->reap(completions, true), 0u);
  std::thread waker([&] { ring->wake(); });
  EXPECT_EQ(ring->reap(completions, true), 0u);
  waker.join();
  ring->cancel();  // nothing is held back any longer
  EXPECT_EQ(ring->reap(completions, true), 1u);
  EXPECT_EQ(completions[0].result, 8);
}

TEST_F(FaultyRing, LateCompletionsAllArrive) {
  use({.delayed = 0.7, .delay_us = 200, .reorder = true});
  for (int round = 0; round < 20; ++round) {
    std::vector<Operation> batch;
    for (unsigned i = 0; i < 16; ++i) batch.push_back({Direction::read, 3, 8 * i, memory.data() + 8 * i, 8, i});
    ring->start(batch);
    for (const auto& [tag, result] : reap_all(*ring, 16)) ASSERT_EQ(result, 8) << tag;
  }
}

TEST_F(FaultyRing, ItsReportSaysSo) {
  use({.reorder = true});
  EXPECT_TRUE(contains(ring->report().notes, "operations fail on purpose: reorder"));
}

/// On a real file, with direct I/O: the parts of short transfers must be what a drive takes.
TEST(FaultyDirectIo, ShortTransfersAndErrorsOfTheFileAreTheInnerRings) {
  const ScratchDirectory scratch;
  if (const auto reason = no_direct_io(scratch.path())) GTEST_SKIP() << *reason;
  const std::string name = scratch.path() + "/file";
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, MiB), 0);
  const auto ring = make_faulty_ring(make_posix_ring(4), {.short_transfers = 1});
  const AlignedBytes memory = aligned_bytes(MiB);
  write_pattern(memory.get(), MiB, 1, 0);
  for (int round = 0; round < 50; ++round) {
    const Operation one{
        round % 2 == 0 ? Direction::write : Direction::read, file, 0, memory.get(), 64 * KiB, 1};
    ring->start({&one, 1});
    const std::int64_t moved = reap_all(*ring, 1).at(1);
    EXPECT_GT(moved, 0);
    EXPECT_LT(moved, 64 * KiB);
  }
  const Operation wrong{Direction::read, -1, 0, memory.get(), 64 * KiB, 1};
  ring->start({&wrong, 1});
  EXPECT_EQ(reap_all(*ring, 1).at(1), -EBADF);
  ::close(file);
}

}  // namespace
}  // namespace spillway::aio
