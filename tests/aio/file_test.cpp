#include "../../aio/file.h"

#include "../../aio/file_system.h"
#include "file_errors.h"

#include <memory>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace spillway::aio {
namespace {

using FileTest = OnDrive;

struct stat status_of(const File& file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file.descriptor(), &status), 0);
  return status;
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

TEST_F(FileTest, TenThousandFilesLeaveNoDescriptorAndNoEntry) {
  const std::int64_t before = open_descriptors();
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000 / kThreads; i += 2) {
        File file = File::create(scratch.path(), 4 * KiB);
        File moved = std::move(file);
        moved = File::create(scratch.path(), 4 * KiB);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
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

TEST_F(FileTest, ANameThatStaysHiddenIsSaid) {
  std::vector<std::string> notes;
  // "Removed", and it is still there: as network file systems do it.
  if (!with_denied({deny_tmpfile(EOPNOTSUPP), {SYS_unlinkat, 0}},
                   [&] { notes = File::create(scratch.path(), 1).notes(); })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes.front().find(scratch.path() + " is on a file system that keeps a hidden name"), 0u);
}

TEST_F(FileTest, AKernelThatDoesNotTellTheAlignmentIsTried) {
  if (!with_denied({kNoStatx}, [&] {
        const File file = File::create(scratch.path(), 3 * MiB);
        EXPECT_EQ(file.alignment(), direct_io_alignment);
        EXPECT_EQ(file.memory_alignment(), direct_io_alignment);
        const struct stat status = status_of(file);
        EXPECT_EQ(status.st_size, 3 * MiB);
        EXPECT_GE(status.st_blocks * 512, 3 * MiB);
        EXPECT_EQ(file.notes(), std::vector<std::string>{});
        EXPECT_EQ(File::create(scratch.path(), 1).size(), direct_io_alignment);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

/// Writes of this length, and of all that are shorter, are not aligned enough.
std::vector<DeniedCall> only_above(std::uint32_t bytes) {
  std::vector<DeniedCall> denied{kNoStatx};
  for (; bytes >= 4096; bytes /= 2) denied.push_back({SYS_pwrite64, EINVAL, 2, 0xffffffffu, bytes});
  return denied;
}

TEST_F(FileTest, TryingGoesUpToOneMiB) {
  for (const std::uint32_t refused : {4096u, 65536u, 524288u}) {
    if (!with_denied(only_above(refused), [&] {
          const File file = File::create(scratch.path(), 1);
          EXPECT_EQ(file.alignment(), 2 * refused);
          EXPECT_EQ(file.size(), 2 * refused);
          const AlignedBytes memory = aligned_bytes(2 * refused);
          ASSERT_EQ(::pread(file.descriptor(), memory.get(), 2 * refused, 0), 2 * refused);
          for (std::uint32_t i = 0; i < 2 * refused; ++i) ASSERT_EQ(memory[i], std::byte{0}) << "not zeros";
        })) {
      GTEST_SKIP() << "seccomp filters are not allowed here";
    }
  }
  with_denied(only_above(1048576u),
              [&] { expect_refused(scratch.path(), ErrorKind::io, "has no direct I/O", EINVAL); });
}

TEST_F(FileTest, TryingHeedsTheLimitOnFileSize) {
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  struct rlimit small = limit;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool allowed = with_denied({kNoStatx}, [&] {
    expect_refused(scratch.path(), ErrorKind::resources, "larger than is allowed", 0, 4096);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

TEST_F(FileTest, WithoutAReservationItSaysSo) {
  if (!with_denied({{SYS_fallocate, EOPNOTSUPP}}, [&] {
        const File file = File::create(scratch.path(), 64 * MiB);
        EXPECT_EQ(status_of(file).st_size, 64 * MiB);
        EXPECT_LT(status_of(file).st_blocks * 512, MiB);
        ASSERT_EQ(file.notes().size(), 1u);
        EXPECT_EQ(file.notes().front().find(scratch.path() + " is on a file system that cannot reserve space"),
                  0u);
        EXPECT_EQ(file.notes().front().find('\n'), std::string::npos);
        EXPECT_NE(file.notes().front().find("67108864 bytes"), std::string::npos) << file.notes().front();
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

TEST_F(FileTest, NotesStayOnOneLine) {
  const std::string directory = scratch.path() + "/two\nlines";
  ASSERT_TRUE(std::filesystem::create_directory(directory));
  std::vector<std::string> notes;
  if (!with_denied({{SYS_fallocate, ENOSYS}}, [&] { notes = File::create(directory, 1).notes(); })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes.front().find('\n'), std::string::npos);
}

TEST_F(FileTest, WhereFreeSpaceIsNotToldTheReservationDecides) {
  // The descriptor of the file comes after that of its directory.
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int after = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(after, 0);
  ::close(next);
  ::close(after);
  const DeniedCall no_space_told{SYS_fstatfs, EIO, 0, 0xffffffffu, static_cast<std::uint32_t>(after)};
  if (!with_denied({no_space_told}, [&] { EXPECT_EQ(File::create(scratch.path(), MiB).size(), MiB); })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
  with_denied({no_space_told, {SYS_fallocate, ENOSPC}}, [&] {
    expect_refused(scratch.path(), ErrorKind::resources, "an unknown number of bytes are free", ENOSPC);
  });
}

TEST_F(FileTest, ThroughThePageCacheNothingNeedsToBeAligned) {
  const File file = File::create(scratch.path(), 4097, {.direct = false});
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(::fcntl(file.descriptor(), F_GETFL) & O_DIRECT, 0);
  EXPECT_EQ(file.alignment(), 1);
  EXPECT_EQ(file.memory_alignment(), 1);
  EXPECT_EQ(file.size(), 4097);
  EXPECT_EQ(status_of(file).st_nlink, 0u);
  EXPECT_GE(status_of(file).st_blocks * 512, 4097);
  EXPECT_EQ(::pwrite(file.descriptor(), "abc", 3, 4094), 3);
}

TEST_F(FileTest, AFileSystemWithoutDirectIoServesThroughThePageCache) {
  const std::vector<DeniedCall> denied{{SYS_openat, EINVAL, 2, O_DIRECT, O_DIRECT}};
  if (!with_denied(denied, [&] {
        const auto error = error_of([&] { File::create(scratch.path(), 1); });
        ASSERT_TRUE(error);
        EXPECT_NE(error->detail().hint.find(R"("spillway": {"direct_io": false}, or --direct-io false)"),
                  std::string::npos);
        EXPECT_EQ(File::create(scratch.path(), 5, {.direct = false}).size(), 5);
      })) {
    GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

TEST(FileInMemory, ServesWhereItIsAllowed) {
  struct statfs status {};
  if (::statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  const File buffered = File::create("/dev/shm", 4097, {.direct = false, .allow_memory = true});
  EXPECT_EQ(buffered.size(), 4097);
  const int probe = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (probe < 0) GTEST_SKIP() << "no direct I/O on this kernel's tmpfs";
  ::close(probe);
  const File direct = File::create("/dev/shm", 4097, {.allow_memory = true});
  EXPECT_EQ(direct.size(), 8192);
  EXPECT_EQ(direct.alignment(), 4096);
}

TEST(FileSystems, AreKnownByTheirType) {
  const auto note_of = [](std::uint32_t type) {
    return settle_copy_on_write(known_file_system(type), -1, "here");
  };
  // bcachefs, zfs, nilfs2, and a btrfs that does not do as it is asked to.
  for (const std::uint32_t type : {0xca451a4eu, 0x2fc12fc1u, 0x3434u, 0x9123683eu}) {
    const auto note = note_of(type);
    ASSERT_TRUE(note) << type;
    EXPECT_EQ(
        note->find(std::string("here is on ") + known_file_system(type).name + ", which writes what changes"),
        0u);
  }
  // ext4, xfs, f2fs, nfs, overlayfs.
  for (const std::uint32_t type : {0xef53u, 0x58465342u, 0xf2f52010u, 0x6969u, 0x794c7630u}) {
    EXPECT_FALSE(note_of(type)) << type;
    EXPECT_NO_THROW(refuse_memory(known_file_system(type), "here", false));
  }
  for (const std::uint32_t type : {0x01021994u, 0x858458f6u}) {  // tmpfs, ramfs
    EXPECT_THROW(refuse_memory(known_file_system(type), "here", false), Error);
    EXPECT_NO_THROW(refuse_memory(known_file_system(type), "here", true));
  }
  // Files of hugetlbfs can't be written.
  EXPECT_THROW(refuse_memory(known_file_system(0x958458f6u), "here", true), Error);
}

}  // namespace
}  // namespace spillway::aio
