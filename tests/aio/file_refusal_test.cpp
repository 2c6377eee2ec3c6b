// What can't be used for swapping, and by whom.
#include "../../aio/file.h"
#include "../../aio/volume.h"
#include "file_errors.h"

#include <cstdio>
#include <fstream>
#include <limits>
#include <thread>

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

namespace spillway::aio {
namespace {

using FileRefusalOnDrive = OnDrive;

/// Runs on a process of its own that has become the user `nobody`. Returns false where that is not possible, or
/// nobody can't get to the directory.
bool as_nobody(const std::string& directory, const std::function<bool()>& body, bool& result) {
  constexpr uid_t nobody = 65534;
  if (::getuid() != 0 || ::chown(directory.c_str(), nobody, nobody) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    // _exit: this process has copies of everything that the parent cleans up.
    if (::setgroups(0, nullptr) != 0 || ::setgid(nobody) != 0 || ::setuid(nobody) != 0) ::_exit(2);
    if (::access(directory.c_str(), W_OK | X_OK) != 0) ::_exit(2);
    try {
      ::_exit(body() ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return false;
  result = WEXITSTATUS(status) == 0;
  return WEXITSTATUS(status) != 2;
}

TEST_F(FileRefusalOnDrive, AnOrdinaryUserWorksInADirectoryOfTheirOwn) {
  bool result = false;
  const std::string& own = scratch.path();
  if (!as_nobody(
          own,
          [&] {
            const Volume volume = Volume::create({{own}, {own}}, 3 * MiB);
            return volume.size() == 3 * MiB && volume.file(0).alignment() >= direct_io_alignment;
          },
          result)) {
    GTEST_SKIP() << "no other user can be tried here";
  }
  EXPECT_TRUE(result);
}

TEST_F(FileRefusalOnDrive, AnOrdinaryUserIsToldWhatIsMissing) {
  const std::string foreign = scratch.path() + "/foreign", hidden = scratch.path() + "/hidden";
  ASSERT_TRUE(std::filesystem::create_directory(foreign));
  ASSERT_TRUE(std::filesystem::create_directory(hidden));
  ASSERT_EQ(::chmod(foreign.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(hidden.c_str(), 0700), 0);
  const std::string name = file_of(foreign, 8192);
  const auto refused = [](const std::function<void()>& call, const std::string& path,
                          const std::string& message) {
    try {
      call();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::io && error.detail().error_number == EACCES &&
             error.detail().path == path && std::string(error.what()).find(message) == 0;
    }
    return false;
  };
  bool result = false;
  if (!as_nobody(
          scratch.path(),
          [&] {
            return refused([&] { Volume::create({{foreign}}, MiB); }, foreign,
                           "no permission to create files in the directory for swapping") &&
                   refused(
                       [&] {
                         Volume::create({{scratch.path()}, {hidden + "/below"}}, MiB);
                       },
                       hidden + "/below", "no permission to create files") &&
                   refused([&] { File::open_existing(name); }, name,
                           "no permission to read and write the file");
          },
          result)) {
    GTEST_SKIP() << "no other user can be tried here";
  }
  EXPECT_TRUE(result);
}

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

TEST_F(FileRefusalOnDrive, AReadOnlyMountIsRefusedAlsoForRoot) {
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

TEST_F(FileRefusalOnDrive, MoreThanTheFreeSpaceIsRefusedAtOnce) {
  struct statvfs before {};
  ASSERT_EQ(::statvfs(scratch.path().c_str(), &before), 0);
  const auto free = static_cast<std::int64_t>(before.f_bavail * before.f_frsize);
  const std::int64_t needed = free + 1024 * MiB;
  expect_refused(scratch.path(), ErrorKind::resources, std::to_string(needed) + " bytes are needed", 0, needed);
  struct statvfs after {};
  ASSERT_EQ(::statvfs(scratch.path().c_str(), &after), 0);
  EXPECT_GT(after.f_bavail, before.f_bavail / 2) << "the space was kept";
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(FileRefusalOnDrive, AnAbsurdSizeIsRefused) {
  expect_refused(scratch.path(), ErrorKind::resources, "bytes are free", 0,
                 std::numeric_limits<std::int64_t>::max());
}

TEST_F(FileRefusalOnDrive, TheLimitOnFileSizeIsRefusedWithoutASignal) {
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  struct rlimit small = limit;
  small.rlim_cur = static_cast<rlim_t>(16 * MiB);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_refused(scratch.path(), ErrorKind::resources, "larger than is allowed", 0, 16 * MiB + 1);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST_F(FileRefusalOnDrive, ANameThatCannotBeRemovedIsAnError) {
  if (!with_denied({deny_tmpfile(EISDIR), {SYS_unlinkat, EPERM}}, [&] {
        expect_refused(scratch.path(), ErrorKind::io, "cannot remove the name .spillway-", EPERM);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
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
        Refusal{"ReservationFails", {{SYS_fallocate, EIO}}, ErrorKind::io, "cannot reserve space", EIO},
        Refusal{"Quota", {{SYS_fallocate, EDQUOT}}, ErrorKind::resources, "not enough space", EDQUOT},
        Refusal{"NoSizeEither",
                {{SYS_fallocate, ENOSYS}, {SYS_ftruncate, EFBIG}},
                ErrorKind::resources,
                "larger than",
                EFBIG},
        Refusal{"SizeFails",
                {{SYS_fallocate, EOPNOTSUPP}, {SYS_ftruncate, EIO}},
                ErrorKind::io,
                "cannot reserve space",
                EIO},
        Refusal{"NoRandomNumbers",
                {deny_tmpfile(EOPNOTSUPP), {SYS_getrandom, ENOSYS}},
                ErrorKind::io,
                "no random numbers",
                ENOSYS},
        Refusal{"NamedFileFails",
                {deny_tmpfile(EOPNOTSUPP), {SYS_openat, EDQUOT, 2, O_CREAT, O_CREAT}},
                ErrorKind::resources,
                "no room for another file",
                EDQUOT},
        Refusal{"TryingFails", {kNoStatx, {SYS_pwrite64, EIO}}, ErrorKind::io, "cannot reserve space", EIO},
        Refusal{"TryingFindsNoSpace",
                {kNoStatx, {SYS_pwrite64, ENOSPC}},
                ErrorKind::resources,
                "not enough",
                ENOSPC},
        Refusal{"TryingCannotRead", {kNoStatx, {SYS_pread64, EINVAL}}, ErrorKind::io, "no direct I/O", EINVAL},
        Refusal{"TryingCannotCleanUp",
                {kNoStatx, {SYS_ftruncate, EIO}},
                ErrorKind::io,
                "cannot reserve space",
                EIO}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace spillway::aio
