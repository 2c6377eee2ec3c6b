#pragma once
// What the tests of this folder share: a directory on a real drive, memory for direct I/O, recognisable
// contents.
#include "../../aio/file.h"
#include "../../core/error.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

namespace spillway::aio {

constexpr std::int64_t KiB = 1024;
constexpr std::int64_t MiB = 1024 * KiB;

/// An empty directory below $SPILLWAY_TEST_DIR, or below the current one; removed with all it holds.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const char* const base = std::getenv("SPILLWAY_TEST_DIR");
    path_ = (std::filesystem::path(base != nullptr ? base : ".") / "spillway-aio-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t entries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

/// Why direct I/O can't be tested in a directory; asked of the kernel, not of the code under test.
inline std::optional<std::string> no_direct_io(const std::string& directory) {
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0) return "statfs failed";
  if (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC) {
    return "the directory is in memory; set SPILLWAY_TEST_DIR";
  }
  const std::string name = directory + "/probe";
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  ::unlink(name.c_str());
  if (descriptor < 0) return "the file system has no direct I/O; set SPILLWAY_TEST_DIR";
  ::close(descriptor);
  return std::nullopt;
}

/// Each test has a directory on a drive, and is skipped where none is to be had.
class OnDrive : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = no_direct_io(scratch.path())) GTEST_SKIP() << *reason;
  }
  ScratchDirectory scratch;
};

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{4096}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

inline AlignedBytes aligned_bytes(std::int64_t bytes) {
  return AlignedBytes(
      static_cast<std::byte*>(::operator new (static_cast<std::size_t>(bytes), std::align_val_t{4096})));
}

/// Contents that tell where they belong: words of a hash of key and place.
inline std::uint64_t word_at(std::uint64_t key, std::int64_t place) {
  std::uint64_t x =
      (static_cast<std::uint64_t>(place) / 8 + 1) * 0x9e3779b97f4a7c15u ^ (key * 0xd1342543de82ef95u);
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9u;
}

inline void write_pattern(std::byte* memory, std::int64_t bytes, std::uint64_t key, std::int64_t place) {
  for (std::int64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = word_at(key, place + i);
    std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, memory + i);
  }
}

/// The first place whose word differs, or -1.
inline std::int64_t first_difference(const std::byte* memory, std::int64_t bytes, std::uint64_t key,
                                     std::int64_t place) {
  for (std::int64_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::copy_n(memory + i, 8, reinterpret_cast<std::byte*>(&word));
    if (word != word_at(key, place + i)) return place + i;
  }
  return -1;
}

/// The Error that a call throws; a failure of the test, and none, where it throws none.
inline std::optional<Error> error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no spillway::Error was thrown";
  return std::nullopt;
}

inline std::int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace spillway::aio
