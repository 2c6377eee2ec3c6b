#include "../../aio/file.h"

#include "scratch.h"
#include "seccomp.h"

#include <chrono>
#include <fstream>
#include <limits>
#include <memory>
#include <ostream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

namespace spillway::aio {
namespace {

using FileTest = OnDrive;

/// The bit that O_TMPFILE has beside O_DIRECTORY.
constexpr std::uint32_t tmpfile_bit = O_TMPFILE & ~O_DIRECTORY;

DeniedCall deny_tmpfile(int error_number) {
  return {SYS_openat, error_number, 2, tmpfile_bit, tmpfile_bit};
}

struct stat status_of(const File& file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file.descriptor(), &status), 0);
  return status;
}

void expect_clear(const Error& error, const std::string& message, const std::string& path) {
  const std::string line = error.what();
  EXPECT_NE(line.find(message), std::string::npos) << line;
  EXPECT_NE(line.find("path: " + path), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  EXPECT_EQ(error.detail().path, path);
  EXPECT_FALSE(error.detail().operation.empty());
  EXPECT_FALSE(error.detail().hint.empty());
}

void expect_refused(const std::string& directory, ErrorKind kind, const std::string& message, int error_number,
                    std::int64_t bytes = MiB) {
  const std::int64_t before = open_descriptors();
  const auto error = error_of([&] { File::create(directory, bytes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_EQ(error->detail().error_number, error_number);
  expect_clear(*error, message, directory);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(FileTest, HasNoNameAtAnyTime) {
  const File file = File::create(scratch.path(), 3 * MiB);
  EXPECT_EQ(scratch.entries(), 0);
  EXPECT_EQ(status_of(file).st_nlink, 0u);
}

TEST_F(FileTest, EveryByteIsReserved) {
  const File file = File::create(scratch.path(), 64 * MiB);
  EXPECT_EQ(file.size(), 64 * MiB);
  const struct stat status = status_of(file);
  EXPECT_EQ(status.st_size, 64 * MiB);
  EXPECT_GE(status.st_blocks * 512, 64 * MiB);
  EXPECT_LE(status.st_blocks * 512, 65 * MiB);  // the file system's own index is counted too
}

TEST_F(FileTest, SizeIsRoundedUpToTheAlignment) {
  const File one = File::create(scratch.path(), 1);
  EXPECT_EQ(one.size(), one.alignment());
  const File more = File::create(scratch.path(), one.alignment() + 1);
  EXPECT_EQ(more.size(), 2 * one.alignment());
  EXPECT_EQ(status_of(more).st_size, more.size());
}

TEST_F(FileTest, IsDirectPrivateAndNotInherited) {
  const File file = File::create(scratch.path(), 1);
  EXPECT_NE(::fcntl(file.descriptor(), F_GETFL) & O_DIRECT, 0);
  EXPECT_NE(::fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(status_of(file).st_mode & 0777u, 0600u);
  EXPECT_GE(file.alignment(), direct_io_alignment);
  EXPECT_EQ(file.alignment() & (file.alignment() - 1), 0);
  EXPECT_EQ(file.directory(), scratch.path());
}

TEST_F(FileTest, ManyFilesLeaveNoDescriptorAndNoEntry) {
  const std::int64_t before = open_descriptors();
  for (int i = 0; i < 2000; ++i) {
    File file = File::create(scratch.path(), 4 * KiB);
    File moved = std::move(file);
    if (i % 2 == 0) moved = File::create(scratch.path(), 8 * KiB);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(FileTest, MisuseIsALogicError) {
  EXPECT_THROW(File::create(scratch.path(), 0), std::logic_error);
  EXPECT_THROW(File::create(scratch.path(), -4096), std::logic_error);
  File file = File::create(scratch.path(), 1);
  const File moved = std::move(file);
  EXPECT_THROW(file.descriptor(), std::logic_error);
  EXPECT_GE(moved.descriptor(), 0);
}

TEST_F(FileTest, WithoutUnnamedFilesANameLivesForAMomentOnly) {
  std::int64_t entries = -1;
  struct stat status {};
  if (!with_denied({deny_tmpfile(EOPNOTSUPP)}, [&] {
        const File first = File::create(scratch.path(), MiB);
        const File second = File::create(scratch.path(), MiB);
        entries = scratch.entries();
        status = status_of(first);
        EXPECT_NE(status.st_ino, status_of(second).st_ino);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  EXPECT_EQ(entries, 0);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_GE(status.st_blocks * 512, MiB);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST_F(FileTest, ANameThatCannotBeRemovedIsAnError) {
  if (!with_denied({deny_tmpfile(EISDIR), {SYS_unlinkat, EPERM}}, [&] {
        expect_refused(scratch.path(), ErrorKind::io, "cannot remove the name .spillway-", EPERM);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

TEST_F(FileTest, AKernelThatDoesNotTellTheAlignmentGetsTheDefault) {
  std::int64_t alignment = 0;
  if (!with_denied({{SYS_statx, ENOSYS}}, [&] { alignment = File::create(scratch.path(), 1).alignment(); })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  EXPECT_EQ(alignment, direct_io_alignment);
}

// What can't be used.

TEST(FileRefusal, MissingDirectory) {
  const ScratchDirectory scratch;
  expect_refused(scratch.path() + "/none", ErrorKind::io, "does not exist", ENOENT);
}

TEST(FileRefusal, AFileInsteadOfADirectory) {
  const ScratchDirectory scratch;
  const std::string name = scratch.path() + "/file";
  std::ofstream(name) << "x";
  expect_refused(name, ErrorKind::io, "is not a directory", ENOTDIR);
  expect_refused(name + "/below", ErrorKind::io, "is not a directory", ENOTDIR);
}

TEST(FileRefusal, MemoryInsteadOfADrive) {
  struct statfs status {};
  if (::statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  expect_refused("/dev/shm", ErrorKind::io, "is on tmpfs, which is memory, not a drive", 0);
}

TEST(FileRefusal, AFileSystemWithoutFiles) {
  const auto error = error_of([&] { File::create("/proc/self", 1); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(error->detail().error_number, 0);
}

TEST_F(FileTest, AReadOnlyMountIsRefusedAlsoForRoot) {
  const std::string path = std::filesystem::absolute(scratch.path()).string();
  bool mounted = false;
  // In a mount namespace of this thread, which ends with it.
  std::thread([&] {
    mounted = ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
              ::mount("none", path.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
    if (mounted) expect_refused(path, ErrorKind::io, "read-only file system", EROFS);
  }).join();
  if (!mounted) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(FileTest, MoreThanTheFreeSpaceIsRefusedAtOnce) {
  struct statvfs before {};
  ASSERT_EQ(::statvfs(scratch.path().c_str(), &before), 0);
  const auto free = static_cast<std::int64_t>(before.f_bavail * before.f_frsize);
  const std::int64_t needed = free + 1024 * MiB;
  const auto start = std::chrono::steady_clock::now();
  expect_refused(scratch.path(), ErrorKind::resources, std::to_string(needed) + " bytes are needed", 0, needed);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  struct statvfs after {};
  ASSERT_EQ(::statvfs(scratch.path().c_str(), &after), 0);
  EXPECT_GT(after.f_bavail, before.f_bavail / 2) << "the space was kept";
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(FileTest, AnAbsurdSizeIsRefused) {
  expect_refused(scratch.path(), ErrorKind::resources, "bytes are free", 0,
                 std::numeric_limits<std::int64_t>::max());
}

TEST_F(FileTest, TheLimitOnFileSizeIsRefusedWithoutASignal) {
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  struct rlimit small = limit;
  small.rlim_cur = static_cast<rlim_t>(16 * MiB);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_refused(scratch.path(), ErrorKind::resources, "larger than is allowed", 0, 16 * MiB + 1);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

struct Refusal {
  const char* name;
  std::vector<DeniedCall> denied;
  ErrorKind kind;
  const char* message;
  int error_number;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

class FileRefusals : public OnDrive, public ::testing::WithParamInterface<Refusal> {};

TEST_P(FileRefusals, NamesTheCause) {
  if (!with_denied(GetParam().denied, [&] {
        expect_refused(scratch.path(), GetParam().kind, GetParam().message, GetParam().error_number);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  EXPECT_EQ(scratch.entries(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, FileRefusals,
    ::testing::Values(
        Refusal{"Permission", {deny_tmpfile(EACCES)}, ErrorKind::io, "no permission", EACCES},
        Refusal{"ReadOnly", {deny_tmpfile(EROFS)}, ErrorKind::io, "read-only", EROFS},
        Refusal{"NoDirectIo", {deny_tmpfile(EINVAL)}, ErrorKind::io, "has no direct I/O", EINVAL},
        Refusal{"NoDirectIoUnderAName",
                {deny_tmpfile(EOPNOTSUPP), {SYS_openat, EINVAL, 2, O_DIRECT, O_DIRECT}},
                ErrorKind::io,
                "has no direct I/O",
                EINVAL},
        Refusal{"NoInodes", {deny_tmpfile(ENOSPC)}, ErrorKind::resources, "no room for another file", ENOSPC},
        Refusal{"NoDescriptors", {deny_tmpfile(EMFILE)}, ErrorKind::resources, "too many open files", EMFILE},
        Refusal{"Other", {deny_tmpfile(EIO)}, ErrorKind::io, "cannot create a file", EIO},
        Refusal{"NoType", {{SYS_fstatfs, EIO}}, ErrorKind::io, "cannot tell the file system", EIO},
        Refusal{"FilledMeanwhile", {{SYS_fallocate, ENOSPC}}, ErrorKind::resources, "not enough space", ENOSPC},
        Refusal{
            "TooLargeForTheFileSystem", {{SYS_fallocate, EFBIG}}, ErrorKind::resources, "larger than", EFBIG},
        Refusal{"ReservationFails", {{SYS_fallocate, EIO}}, ErrorKind::io, "cannot reserve space", EIO}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace spillway::aio
