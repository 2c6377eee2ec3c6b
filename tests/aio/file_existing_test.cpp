// Files that are there already.
#include "../../aio/file.h"
#include "../../aio/file_system.h"
#include "file_errors.h"

#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace spillway::aio {
namespace {

using ExistingFile = OnDrive;

void expect_not_opened(const std::string& path, ErrorKind kind, const std::string& message, int error_number) {
  const std::int64_t before = open_descriptors();
  const auto error = error_of([&] { File::open_existing(path); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_EQ(error->detail().error_number, error_number);
  expect_clear(*error, message, path);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(ExistingFile, OneThatExistsIsOpenedAsItIs) {
  const std::string name = file_of(scratch.path(), 3 * 4096 + 100);
  {
    const File file = File::open_existing(name);
    EXPECT_TRUE(file.direct());
    EXPECT_NE(::fcntl(file.descriptor(), F_GETFL) & O_DIRECT, 0);
    EXPECT_NE(::fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(file.directory(), name);
    EXPECT_EQ(file.size() % file.alignment(), 0);
    EXPECT_GT(file.size() + file.alignment(), 3 * 4096 + 100);
    EXPECT_LE(file.size(), 3 * 4096 + 100);
    EXPECT_EQ(file.notes(), std::vector<std::string>{});
    EXPECT_EQ(File::open_existing(name, {.direct = false}).size(), 3 * 4096 + 100);
  }
  std::ifstream file(name);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), std::string(3 * 4096 + 100, 'x'));
}

TEST_F(ExistingFile, OneThatExistsIsTriedByReadingOnly) {
  const std::string name = file_of(scratch.path(), 3 * 4096 + 100);
  if (!with_denied({kNoStatx, {SYS_pwrite64, EIO}, {SYS_ftruncate, EIO}},
                   [&] { EXPECT_EQ(File::open_existing(name).alignment(), 4096); })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  with_denied({kNoStatx, {SYS_pread64, EINVAL, 2, 0xffffffffu, 4096}},
              [&] { EXPECT_EQ(File::open_existing(name).alignment(), 8192); });
  with_denied({kNoStatx, {SYS_pread64, EIO}},
              [&] { expect_not_opened(name, ErrorKind::io, "cannot read the file", EIO); });
  with_denied({kNoStatx, {SYS_pread64, EINVAL}},
              [&] { expect_not_opened(name, ErrorKind::io, "has no direct I/O", EINVAL); });
  EXPECT_EQ(std::filesystem::file_size(name), 3 * 4096 + 100u);
}

TEST_F(ExistingFile, OneThatCannotServeIsRefusedWithTheCause) {
  const std::string& directory = scratch.path();
  expect_not_opened(directory + "/none", ErrorKind::io, "does not exist", ENOENT);
  expect_not_opened(directory, ErrorKind::io, "is a directory", EISDIR);
  const std::string name = file_of(directory, 100);
  expect_not_opened(name, ErrorKind::io, "the file has 100 bytes, and at least 4096 are needed", 0);
  expect_not_opened(name + "/below", ErrorKind::io, "does not exist", ENOTDIR);
  expect_not_opened(file_of(directory, 0), ErrorKind::io, "the file has 0 bytes", 0);
  const std::string pipe = directory + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_not_opened(pipe, ErrorKind::io, "neither a file nor a block device", 0);
  expect_not_opened("/dev/zero", ErrorKind::io, "neither a file nor a block device", 0);
}

TEST(ExistingFileInMemory, OneThatExistsIsRefused) {
  struct statfs status {};
  if (::statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  std::string name = "/dev/shm/spillway-test-XXXXXX";
  const Descriptor file(::mkstemp(name.data()));
  ASSERT_EQ(::ftruncate(file.get(), MiB), 0);
  const auto error = error_of([&] { File::open_existing(name, {.direct = false}); });
  EXPECT_EQ(File::open_existing(name, {.direct = false, .allow_memory = true}).size(), MiB);
  ::unlink(name.c_str());
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("which is memory"), std::string::npos);
}

class ExistingFileOpening : public OnDrive, public ::testing::WithParamInterface<Refusal> {};

TEST_P(ExistingFileOpening, NamesTheCause) {
  const std::string name = file_of(scratch.path(), 8192);
  if (!with_denied(GetParam().denied, [&] {
        const auto error = error_of([&] { File::open_existing(name); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->kind(), GetParam().kind) << error->what();
        EXPECT_EQ(error->detail().error_number, GetParam().error_number);
        expect_clear(*error, GetParam().message, name);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, ExistingFileOpening,
    ::testing::Values(
        Refusal{"Permission", {deny_direct(EACCES)}, ErrorKind::io, "no permission", EACCES},
        Refusal{"ReadOnly", {deny_direct(EROFS)}, ErrorKind::io, "read-only", EROFS},
        Refusal{"InUse", {deny_direct(ETXTBSY)}, ErrorKind::io, "is in use", ETXTBSY},
        Refusal{"NoDirectIo", {deny_direct(EINVAL)}, ErrorKind::io, "has no direct I/O", EINVAL},
        Refusal{"NoDescriptors", {deny_direct(ENFILE)}, ErrorKind::resources, "too many open files", ENFILE},
        Refusal{"Other", {deny_direct(EIO)}, ErrorKind::io, "cannot open the file", EIO},
        Refusal{"NoType", {{SYS_fstatfs, EIO}}, ErrorKind::io, "cannot tell the file system", EIO},
        Refusal{"NoSize", {{SYS_lseek, EIO}}, ErrorKind::io, "cannot open the file", EIO}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace spillway::aio
