#pragma once
// What the tests of rings share: a file, operations that hang until they are let go, and reaping.
#include "../../aio/io_uring_support.h"
#include "../../aio/ring.h"
#include "scratch.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

namespace spillway::aio {

using Results = std::map<std::uint64_t, std::int64_t>;

/// Adds what can be reaped now to `results`, which must not have it yet.
inline std::size_t reap_into(Results& results, Ring& ring, bool wait) {
  std::vector<Completion> completions(ring.depth());
  const std::size_t count = ring.reap(completions, wait);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(results.emplace(completions[i].tag, completions[i].result).second)
        << "tag " << completions[i].tag << " completed twice";
  }
  return count;
}

/// Reaps until `expected` operations have completed; there must be no more.
inline Results reap_all(Ring& ring, std::size_t expected) {
  Results results;
  while (results.size() < expected) reap_into(results, ring, true);
  EXPECT_EQ(reap_into(results, ring, true), 0u);
  return results;
}

inline bool contains(const std::vector<std::string>& notes, std::string_view part) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

/// For tests of io_uring alone.
#define SKIP_WITHOUT_IO_URING() \
  if (const IoUringSupport here = probe_io_uring(); !here.available) GTEST_SKIP() << here.reason

/// A file of zeros, through the page cache, with a name in a scratch directory.
class RingTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t file_bytes = 4 * MiB;

  void SetUp() override {
    file = open_file("file", file_bytes);
    ASSERT_GE(file, 0);
  }
  void TearDown() override {
    if (file >= 0) ::close(file);
  }

  int open_file(const std::string& name, std::int64_t bytes) const {
    const int descriptor = ::open((scratch.path() + "/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(::ftruncate(descriptor, bytes), 0);
    return descriptor;
  }

  Operation operation(Direction direction, std::int64_t offset, std::byte* memory, std::int64_t bytes,
                      std::uint64_t tag) const {
    return {direction, file, offset, memory, bytes, tag};
  }

  ScratchDirectory scratch;
  int file = -1;
};

/// A read from a socket: hangs in io_uring without a thread.
class HangingSocket {
 public:
  HangingSocket() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  ~HangingSocket() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  HangingSocket(const HangingSocket&) = delete;
  HangingSocket& operator=(const HangingSocket&) = delete;

  Operation operation(std::uint64_t tag) { return {Direction::read, ends_[0], 0, bytes_, 1, tag}; }
  void let_go() { EXPECT_EQ(::write(ends_[1], "x", 1), 1); }

 private:
  int ends_[2] = {-1, -1};
  std::byte bytes_[1] = {};
};

/// Memory whose pages do not come: a read into it hangs its thread. usable() is false where this user may not
/// have such memory.
class HangingMemory {
 public:
  explicit HangingMemory(std::size_t pages) : bytes_(pages * page) {
    handler_ = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    if (handler_ < 0) return;
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    void* const mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<std::byte*>(mapped);
    uffdio_register wanted{.range = {reinterpret_cast<std::uintptr_t>(memory_), bytes_},
                           .mode = UFFDIO_REGISTER_MODE_MISSING,
                           .ioctls = 0};
    usable_ = ::ioctl(handler_, UFFDIO_API, &api) == 0 && ::ioctl(handler_, UFFDIO_REGISTER, &wanted) == 0;
  }
  ~HangingMemory() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
    if (handler_ >= 0) ::close(handler_);
  }
  HangingMemory(const HangingMemory&) = delete;
  HangingMemory& operator=(const HangingMemory&) = delete;

  static constexpr std::size_t page = 4096;
  bool usable() const { return usable_; }
  std::byte* at(std::size_t index) const { return memory_ + index * page; }
  void let_go() const {
    uffdio_zeropage zero{
        .range = {reinterpret_cast<std::uintptr_t>(memory_), bytes_}, .mode = 0, .zeropage = 0};
    EXPECT_EQ(::ioctl(handler_, UFFDIO_ZEROPAGE, &zero), 0);
  }

 private:
  std::size_t bytes_;
  int handler_ = -1;
  std::byte* memory_ = nullptr;
  bool usable_ = false;
};

}  // namespace spillway::aio
