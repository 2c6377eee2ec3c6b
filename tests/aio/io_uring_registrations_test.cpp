// Files and memory that a ring knows by number.
#include "ring_fixture.h"
#include "seccomp.h"

#include <functional>

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>

namespace spillway::aio {
namespace {

using IoUringRegistrations = RingTest;

TEST_F(IoUringRegistrations, ARegisteredFileIsReadThroughItsSlotUntilItIsReplacedOrEmptied) {
  SKIP_WITHOUT_IO_URING();
  const auto ring = make_io_uring({.depth = 4});
  std::vector<std::byte> memory(512);
  const auto read = [&](int descriptor) {
    Operation one = operation(Direction::read, 0, memory.data(), 512, 1);
    one.descriptor = descriptor;
    one.file_slot = 1023;
    ring->start({&one, 1});
    return reap_all(*ring, 1).at(1);
  };
  // The ring knows the files by their descriptors, also where this process has closed them.
  const int first = open_file("first", 512);
  ASSERT_EQ(ring->register_file(1023, first), 0);
  EXPECT_TRUE(ring->report().registered_files);
  ::close(first);
  EXPECT_EQ(read(first), 512);

  ASSERT_EQ(ring->register_file(1023, file), 0);
  EXPECT_EQ(read(first), -EBADF);
  EXPECT_EQ(read(file), 512);
  ASSERT_EQ(ring->register_file(1023, -1), 0);
  EXPECT_EQ(read(file), 512) << "an operation whose slot is empty goes without";
}

TEST_F(IoUringRegistrations, AnEmptiedOrReplacedSlotKeepsNoFileOpen) {
  SKIP_WITHOUT_IO_URING();
  for (const bool replace : {false, true}) {
    const auto ring = make_io_uring({.depth = 4});
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ASSERT_EQ(ring->register_file(0, ends[1]), 0);
    ::close(ends[1]);
    pollfd reader{.fd = ends[0], .events = 0, .revents = 0};
    EXPECT_EQ(::poll(&reader, 1, 0), 0) << "the slot does not hold the pipe";
    ASSERT_EQ(ring->register_file(0, replace ? file : -1), 0);
    EXPECT_EQ(::poll(&reader, 1, 60000), 1) << "the slot still holds the pipe";
    ::close(ends[0]);
  }
}

/// Pages that this process can lose while the kernel has them registered.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    memory_ =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
  }
  ~Pages() { ::munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_), bytes_}; }
  void allow(bool access) const { ::mprotect(memory_, bytes_, access ? PROT_READ | PROT_WRITE : PROT_NONE); }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

TEST_F(IoUringRegistrations, RegisteredMemoryIsFilledThroughItsSlotUntilItIsReplacedOrEmptied) {
  SKIP_WITHOUT_IO_URING();
  const auto ring = make_io_uring({.depth = 4});
  const Pages pages(64 * KiB);
  const Pages others(64 * KiB);
  const auto move = [&](Direction direction) {
    Operation one = operation(direction, 0, pages.span().data() + 4096, 4096, 1);
    one.memory_slot = 1023;
    ring->start({&one, 1});
    return reap_all(*ring, 1).at(1);
  };
  if (const int error = ring->register_memory(1023, pages.span())) GTEST_SKIP() << "errno " << error;
  EXPECT_TRUE(ring->report().registered_memory);
  write_pattern(pages.span().data(), 64 * KiB, 3, 0);
  pages.allow(false);  // the kernel has pinned the pages: it needs no access through this process
  EXPECT_EQ(move(Direction::write), 4096);
  EXPECT_EQ(move(Direction::read), 4096);
  ASSERT_EQ(ring->register_memory(1023, others.span()), 0);
  EXPECT_EQ(move(Direction::read), -EFAULT);
  ASSERT_EQ(ring->register_memory(1023, {}), 0);
  EXPECT_EQ(move(Direction::read), -EFAULT);
  pages.allow(true);
  EXPECT_EQ(move(Direction::read), 4096);
  EXPECT_EQ(first_difference(pages.span().data(), 64 * KiB, 3, 0), -1);
}

TEST_F(IoUringRegistrations, OperationsBesideTheRegisteredMemoryGoWithoutIt) {
  SKIP_WITHOUT_IO_URING();
  const auto ring = make_io_uring({.depth = 4});
  const Pages pages(16 * KiB);
  if (const int error = ring->register_memory(0, pages.span().subspan(4096, 8192))) {
    GTEST_SKIP() << "errno " << error;
  }
  std::uint64_t tag = 0;
  for (const std::int64_t place : {0, 4095, 4096, 8192, 8193, 12288}) {
    Operation one = operation(Direction::read, 0, pages.span().data() + place, 4096, ++tag);
    one.memory_slot = 0;
    ring->start({&one, 1});
    EXPECT_EQ(reap_all(*ring, 1).at(tag), 4096) << place;
  }
}

TEST_F(IoUringRegistrations, RegistersUpToAGiBInOnePieceAndRefusesMore) {
  SKIP_WITHOUT_IO_URING();
  constexpr std::size_t GiB = std::size_t{1} << 30;
  const auto ring = make_io_uring({.depth = 4});
  const Pages pages(GiB + 4096);
  // The same 4 MiB again and again: as long, and not as much memory.
  const int shared = ::memfd_create("pages", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(shared, 4 * MiB), 0);
  for (std::size_t place = 0; place < GiB; place += 4 * MiB) {
    ASSERT_NE(
        ::mmap(pages.span().data() + place, 4 * MiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared, 0),
        MAP_FAILED);
  }
  ::close(shared);
  const int error = ring->register_memory(0, pages.span().first(GiB));
  if (error == ENOMEM) GTEST_SKIP() << ring->report().notes.at(0);
  ASSERT_EQ(error, 0);
  Operation last = operation(Direction::read, 0, pages.span().data() + GiB - 4096, 4096, 1);
  last.memory_slot = 0;
  ring->start({&last, 1});
  EXPECT_EQ(reap_all(*ring, 1).at(1), 4096);
  EXPECT_NE(ring->register_memory(0, pages.span()), 0);
  EXPECT_FALSE(ring->report().registered_memory);
  EXPECT_TRUE(contains(ring->report().notes, "registering 1073745920 bytes of memory was refused"));
}

TEST_F(IoUringRegistrations, SlotsOutsideTheirRangeAreRefused) {
  SKIP_WITHOUT_IO_URING();
  const auto ring = make_io_uring({.depth = 4});
  std::vector<std::byte> memory(4096);
  for (const int slot : {-1, maximum_slots}) {
    EXPECT_EQ(ring->register_file(slot, file), EINVAL);
    EXPECT_EQ(ring->register_memory(slot, memory), EINVAL);
  }
}

TEST_F(IoUringRegistrations, WhereRegisteringIsRefusedItIsSaidOnceAndTransfersGoOn) {
  SKIP_WITHOUT_IO_URING();
  const bool allowed = with_denied({{SYS_io_uring_register, EINVAL}}, [&] {
    const auto ring = make_io_uring({.depth = 4});
    std::vector<std::byte> memory(4096);
    for (int slot = 0; slot < 3; ++slot) {
      EXPECT_EQ(ring->register_file(slot, file), EINVAL);
      EXPECT_EQ(ring->register_memory(slot, memory), EINVAL);
    }
    Operation one = operation(Direction::read, 0, memory.data(), 512, 1);
    one.file_slot = one.memory_slot = 1;
    ring->start({&one, 1});
    EXPECT_EQ(reap_all(*ring, 1).at(1), 512);
    const RingReport report = ring->report();
    EXPECT_FALSE(report.registered_files);
    EXPECT_FALSE(report.registered_memory);
    EXPECT_EQ(report.notes.size(), 2u);
    EXPECT_TRUE(contains(report.notes, "registering a file was refused"));
    EXPECT_TRUE(contains(report.notes, "registering 4096 bytes of memory was refused"));
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

/// Runs in a child as a user of no rights who may lock 8 MiB; returns its exit status.
int as_an_ordinary_user(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{8 * MiB, 8 * MiB};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(77);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(IoUringRegistrations, MemoryBeyondTheLimitOnLockedMemoryIsRefusedAndTransfersGoOn) {
  SKIP_WITHOUT_IO_URING();
  const Pages pages(64 * MiB);
  const int status = as_an_ordinary_user([&] {
    const auto ring = make_io_uring({.depth = 4});
    if (ring->register_memory(0, pages.span()) != ENOMEM) return 1;
    if (ring->register_memory(0, pages.span()) != ENOMEM) return 2;
    const std::vector<std::string> notes = ring->report().notes;
    if (notes !=
        std::vector<std::string>{"registering 67108864 bytes of memory was refused: this user may lock "
                                 "8388608 bytes (ulimit -l); transfers go on without"}) {
      return 3;
    }
    if (ring->report().registered_memory) return 4;
    Operation one = operation(Direction::read, 0, pages.span().data(), 4096, 1);
    one.memory_slot = 0;
    ring->start({&one, 1});
    if (reap_all(*ring, 1).at(1) != 4096) return 5;
    // A piece that fits is taken.
    return ring->register_memory(1, pages.span().first(1 * MiB)) == 0 ? 0 : 6;
  });
  if (status == 77) GTEST_SKIP() << "this user cannot become another";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace spillway::aio
