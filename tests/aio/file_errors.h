#pragma once
// What the tests of File share: system calls that fail, and what an error must say.
#include "../../aio/file.h"
#include "scratch.h"
#include "seccomp.h"

#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

namespace spillway::aio {

/// Opening with O_TMPFILE, whose bit is the one beside O_DIRECTORY, fails so.
inline DeniedCall deny_tmpfile(int error_number) {
  constexpr std::uint32_t tmpfile_bit = O_TMPFILE & ~O_DIRECTORY;
  return {SYS_openat, error_number, 2, tmpfile_bit, tmpfile_bit};
}

/// Opening with O_DIRECT fails so.
inline DeniedCall deny_direct(int error_number) {
  return {SYS_openat, error_number, 2, O_DIRECT, O_DIRECT};
}

/// No answer of statx on direct I/O.
inline constexpr DeniedCall kNoStatx{SYS_statx, ENOSYS};

/// A file that exists.
inline std::string file_of(const std::string& directory, std::int64_t bytes) {
  std::string name = directory + "/file";
  std::ofstream(name) << std::string(static_cast<std::size_t>(bytes), 'x');
  return name;
}

inline void expect_clear(const Error& error, const std::string& message, const std::string& path) {
  const std::string line = error.what();
  EXPECT_NE(line.find(message), std::string::npos) << line;
  EXPECT_NE(line.find("path: " + path), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  EXPECT_EQ(error.detail().path, path);
  EXPECT_FALSE(error.detail().operation.empty());
  EXPECT_FALSE(error.detail().hint.empty());
}

/// Creating a file fails with an error of this kind, and nothing stays open.
inline void expect_refused(const std::string& directory, ErrorKind kind, const std::string& message,
                           int error_number, std::int64_t bytes = MiB) {
  const std::int64_t before = open_descriptors();
  const auto error = error_of([&] { File::create(directory, bytes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_EQ(error->detail().error_number, error_number);
  expect_clear(*error, message, directory);
  EXPECT_EQ(open_descriptors(), before);
}

struct Refusal {
  const char* name;
  std::vector<DeniedCall> denied;
  ErrorKind kind;
  const char* message;
  int error_number;
};

inline void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

}  // namespace spillway::aio
