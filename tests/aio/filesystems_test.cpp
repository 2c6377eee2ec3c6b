// Files and volumes on real file systems, made on loop devices. Needs root and such devices; skipped elsewhere.
#include "../../aio/file.h"
#include "../../aio/volume.h"
#include "loop_device.h"
#include "seccomp.h"

#include <fstream>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

namespace spillway::aio {
namespace {

using FileSystemTest = OnDrive;

const LoopFileSystem kExt4{"ext4", "mkfs.ext4 -q -F", 16 * MiB};
const LoopFileSystem kExt4Of4K{"ext4", "mkfs.ext4 -q -F", 16 * MiB, 4096};
const LoopFileSystem kExt2{"ext2", "mkfs.ext2 -q -F", 16 * MiB};
const LoopFileSystem kXfs{"xfs", "mkfs.xfs -q -f", 320 * MiB};
const LoopFileSystem kXfsOf16K{"xfs", "mkfs.xfs -q -f -s size=16384 -b size=16384", 320 * MiB, 16384};
const LoopFileSystem kBtrfs{"btrfs", "mkfs.btrfs -q -f -m single -d single", 256 * MiB};

const DeniedCall kNoFallocate{SYS_fallocate, EOPNOTSUPP};
const DeniedCall kNoStatx{SYS_statx, ENOSYS};
const DeniedCall kNoFlags{SYS_ioctl, EPERM, 1, 0xffffffffu, static_cast<std::uint32_t>(FS_IOC_SETFLAGS)};

#define SPILLWAY_SKIP_FOR(call)                              \
  do {                                                       \
    if (const auto reason = (call)) GTEST_SKIP() << *reason; \
  } while (false)

/// Takes all space that is left, without writing to it, until the descriptor that it returns is closed.
int fill(const std::string& directory) {
  const int filler = ::open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  EXPECT_GE(filler, 0);
  std::int64_t end = 0;
  for (std::int64_t step = 16 * MiB; step >= 4 * KiB; step /= 2) {
    while (::fallocate(filler, 0, end, step) == 0) end += step;
    EXPECT_EQ(errno, ENOSPC);
  }
  return filler;
}

/// Writes every block once, in an order that leaves no two neighbours behind one another. Returns 0 or the
/// errno of the first that fails.
int overwrite(const File& file, std::uint64_t key) {
  constexpr std::int64_t kBlock = 64 * KiB;
  const AlignedBytes memory = aligned_bytes(kBlock);
  const std::int64_t blocks = file.size() / kBlock;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t at = i * 37 % blocks * kBlock;
    write_pattern(memory.get(), kBlock, key, at);
    const auto written = ::pwrite(file.descriptor(), memory.get(), static_cast<std::size_t>(kBlock), at);
    if (written != kBlock) return written < 0 ? errno : ENOSPC;
  }
  return ::fsync(file.descriptor()) == 0 ? 0 : errno;
}

void expect_contents(const File& file, std::uint64_t key) {
  const AlignedBytes memory = aligned_bytes(file.size());
  ASSERT_EQ(::pread(file.descriptor(), memory.get(), static_cast<std::size_t>(file.size()), 0), file.size());
  EXPECT_EQ(first_difference(memory.get(), file.size(), key, 0), -1);
}

/// 5 MiB and a block: 81 blocks of 64 KiB, of which 37 is no divisor.
constexpr std::int64_t kFileBytes = 81 * 64 * KiB;

void expect_reservation_holds(const std::string& directory) {
  const File file = File::create(directory, kFileBytes);
  EXPECT_TRUE(file.direct());
  EXPECT_EQ(file.notes(), std::vector<std::string>{});
  const Descriptor filler(fill(directory));
  for (const std::uint64_t key : {1u, 2u, 3u}) ASSERT_EQ(overwrite(file, key), 0) << "pass " << key;
  expect_contents(file, 3);
}

TEST_F(FileSystemTest, OnAFullExt4TheReservationHolds) {
  SPILLWAY_SKIP_FOR(on_file_system(
      scratch, kExt4, [](const auto& directory, const auto&) { expect_reservation_holds(directory); }));
}

TEST_F(FileSystemTest, OnAFullXfsTheReservationHolds) {
  SPILLWAY_SKIP_FOR(on_file_system(
      scratch, kXfs, [](const auto& directory, const auto&) { expect_reservation_holds(directory); }));
}

TEST_F(FileSystemTest, OnAFullBtrfsTheReservationHolds) {
  SPILLWAY_SKIP_FOR(on_file_system(
      scratch, kBtrfs, [](const auto& directory, const auto&) { expect_reservation_holds(directory); }));
}

TEST_F(FileSystemTest, OnABtrfsThatCompressesTheReservationHolds) {
  LoopFileSystem compressing = kBtrfs;
  compressing.options = "compress-force=zstd";
  SPILLWAY_SKIP_FOR(on_file_system(scratch, compressing, [](const auto& directory, const auto&) {
    // What a directory hands down to its files is in the way, too.
    for (const int inherited : {FS_COMPR_FL, FS_NOCOMP_FL}) {
      const std::string below = directory + "/" + std::to_string(inherited);
      ASSERT_TRUE(std::filesystem::create_directory(below));
      const Descriptor itself(::open(below.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      ASSERT_EQ(::ioctl(itself.get(), FS_IOC_SETFLAGS, &inherited), 0);
      const File file = File::create(below, MiB);
      EXPECT_EQ(file.notes(), std::vector<std::string>{});
      int flags = 0;
      ASSERT_EQ(::ioctl(file.descriptor(), FS_IOC_GETFLAGS, &flags), 0);
      EXPECT_EQ(flags & (FS_COMPR_FL | FS_NOCOMP_FL | FS_NOCOW_FL), FS_NOCOW_FL);
    }
    expect_reservation_holds(directory);
  }));
}

TEST_F(FileSystemTest, AnOverlayOverBtrfsHandsTheWishOn) {
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kBtrfs, [](const std::string& directory, const auto&) {
    for (const char* name : {"/lower", "/upper", "/work", "/merged"}) {
      ASSERT_TRUE(std::filesystem::create_directory(directory + name));
    }
    const std::string options =
        "lowerdir=" + directory + "/lower,upperdir=" + directory + "/upper,workdir=" + directory + "/work";
    const std::string merged = directory + "/merged";
    if (::mount("overlay", merged.c_str(), "overlay", 0, options.c_str()) != 0) {
      GTEST_SKIP() << "cannot mount an overlay";
    }
    const File file = File::create(merged, kFileBytes);
    EXPECT_EQ(file.notes(), std::vector<std::string>{});
    const Descriptor filler(fill(directory));
    for (const std::uint64_t key : {1u, 2u, 3u}) EXPECT_EQ(overwrite(file, key), 0) << "pass " << key;
    EXPECT_EQ(::umount2(merged.c_str(), MNT_DETACH), 0);
  }));
}

TEST_F(FileSystemTest, AReservationThatDoesNotHoldIsSaid) {
  bool allowed = false;
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kBtrfs, [&](const std::string& directory, const auto&) {
    allowed = with_denied({kNoFlags}, [&] {
      const File file = File::create(directory, kFileBytes);
      ASSERT_EQ(file.notes().size(), 1u);
      const std::string& note = file.notes().front();
      EXPECT_EQ(note.find(directory + " is on btrfs, which writes what changes to another place"), 0u) << note;
      // It is true: a second pass finds no room.
      const Descriptor filler(fill(directory));
      EXPECT_EQ(overwrite(file, 1), 0);
      int error_number = 0;
      for (std::uint64_t key = 2; key < 6 && error_number == 0; ++key) error_number = overwrite(file, key);
      EXPECT_EQ(error_number, ENOSPC);
    });
  }));
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

TEST_F(FileSystemTest, WithoutReservationsAFullDriveIsFoundLaterAndThatIsSaid) {
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kExt2, [](const std::string& directory, const auto&) {
    const File file = File::create(directory, kFileBytes);
    EXPECT_EQ(file.size(), kFileBytes);
    struct stat status {};
    ASSERT_EQ(::fstat(file.descriptor(), &status), 0);
    EXPECT_EQ(status.st_size, kFileBytes);
    ASSERT_EQ(file.notes().size(), 1u);
    EXPECT_EQ(file.notes().front().find(directory + " is on a file system that cannot reserve space"), 0u);
    EXPECT_NE(file.notes().front().find(std::to_string(kFileBytes)), std::string::npos);
    {
      struct statvfs space {};
      ASSERT_EQ(::statvfs(directory.c_str(), &space), 0);
      const auto free = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
      std::int64_t blocks = (free - 3 * MiB) / (64 * KiB);
      if (blocks % 37 == 0) --blocks;
      const File other = File::create(directory, blocks * 64 * KiB);
      EXPECT_EQ(overwrite(other, 9), 0);
      EXPECT_EQ(overwrite(file, 1), ENOSPC);
    }
    EXPECT_EQ(overwrite(file, 2), 0);
    expect_contents(file, 2);
  }));
}

TEST_F(FileSystemTest, WithoutFallocateAnyFileSystemServes) {
  bool allowed = false;
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kExt4, [&](const std::string& directory, const auto&) {
    allowed = with_denied({kNoFallocate}, [&] {
      const Volume volume = Volume::create({{directory}, {directory}}, kFileBytes);
      EXPECT_EQ(volume.notes().size(), 2u);  // of different sizes
      EXPECT_EQ(volume.size(), kFileBytes);
    });
  }));
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

TEST_F(FileSystemTest, MoreThanIsFreeIsRefusedAndNothingStays) {
  for (const LoopFileSystem& what : {kExt4, kExt2, kXfs, kBtrfs}) {
    SPILLWAY_SKIP_FOR(on_file_system(scratch, what, [](const std::string& directory, const auto&) {
      struct statvfs before {
      }, after{};
      ASSERT_EQ(::statvfs(directory.c_str(), &before), 0);
      const auto free = static_cast<std::int64_t>(before.f_bavail * before.f_frsize);
      const auto entries = std::distance(std::filesystem::directory_iterator(directory), {});
      // Also what just fits by the file system's own account, and does not when it is tried.
      for (const std::int64_t bytes : {4 * free, free + 1, free}) {
        try {
          const File file = File::create(directory, bytes);
          EXPECT_EQ(bytes, free);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::resources) << error.what();
          EXPECT_EQ(error.detail().path, directory);
          EXPECT_NE(std::string(error.what()).find("bytes are needed"), std::string::npos) << error.what();
        }
      }
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), entries);
      ::sync();
      ASSERT_EQ(::statvfs(directory.c_str(), &after), 0);
      EXPECT_GE(static_cast<std::int64_t>(after.f_bavail * after.f_frsize), free - MiB);
      File::create(directory, kFileBytes);  // there is room again
    }));
  }
}

void expect_moves_at_its_alignments(const File& file) {
  const std::int64_t unit = file.alignment(), memory_unit = file.memory_alignment();
  const AlignedBytes memory = aligned_bytes(4 * unit);
  std::byte* const least = memory.get() + memory_unit;
  write_pattern(least, unit, 7, unit);
  ASSERT_EQ(::pwrite(file.descriptor(), least, static_cast<std::size_t>(unit), unit), unit);
  std::fill_n(memory.get(), 4 * unit, std::byte{});
  ASSERT_EQ(::pread(file.descriptor(), least, static_cast<std::size_t>(unit), unit), unit);
  EXPECT_EQ(first_difference(least, unit, 7, unit), -1);
  // Else the alignment would be larger than the drive asks for.
  ASSERT_EQ(::pread(file.descriptor(), memory.get(), static_cast<std::size_t>(unit), 0), unit);
  for (std::int64_t i = 0; i < unit; ++i) ASSERT_EQ(memory[static_cast<std::size_t>(i)], std::byte{}) << i;
}

/// On a drive that refuses less.
void expect_alignment(const std::string& directory, std::int64_t alignment) {
  const File file = File::create(directory, 3 * alignment + 1);
  EXPECT_EQ(file.alignment(), alignment);
  EXPECT_LE(file.memory_alignment(), alignment);
  EXPECT_EQ(file.size(), 4 * alignment);
  expect_moves_at_its_alignments(file);
  const AlignedBytes memory = aligned_bytes(alignment);
  const std::int64_t half = alignment / 2;
  EXPECT_EQ(::pwrite(file.descriptor(), memory.get(), static_cast<std::size_t>(half), half), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(FileSystemTest, ADriveWith4KSectorsServes) {
  SPILLWAY_SKIP_FOR(on_file_system(
      scratch, kExt4Of4K, [](const auto& directory, const auto&) { expect_alignment(directory, 4096); }));
}

TEST_F(FileSystemTest, ADriveWith16KSectorsServes) {
  SPILLWAY_SKIP_FOR(on_file_system(
      scratch, kXfsOf16K, [](const auto& directory, const auto&) { expect_alignment(directory, 16384); }));
}

TEST_F(FileSystemTest, WhereTheKernelDoesNotTellTheAlignmentIsFoundByTrying) {
  bool allowed = false;
  for (const LoopFileSystem& what : {kExt4Of4K, kXfsOf16K}) {
    SPILLWAY_SKIP_FOR(on_file_system(scratch, what, [&](const std::string& directory, const auto&) {
      allowed = with_denied({kNoStatx}, [&] { expect_alignment(directory, what.sector_bytes); });
    }));
    if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  }
}

TEST_F(FileSystemTest, DrivesOfDifferentAlignmentsMakeOneVolume) {
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kXfsOf16K, [&](const std::string& directory, const auto&) {
    // The stripe, a multiple of the smaller one only, becomes one of the larger.
    const Volume volume =
        Volume::create({{scratch.path()}, {directory}}, 81 * 4 * KiB, {.stripe_bytes = 20 * KiB});
    EXPECT_EQ(volume.alignment(), 16 * KiB);
    EXPECT_EQ(volume.size(), 21 * 16 * KiB);
    EXPECT_EQ(volume.locate(32 * KiB).path, 1u);
    EXPECT_EQ(volume.locate(32 * KiB - 1).path, 0u);
    EXPECT_EQ(volume.bytes_on(0) + volume.bytes_on(1), volume.size());
    for (const std::size_t path : {0u, 1u}) {
      EXPECT_GE(volume.file(path).size(), volume.bytes_on(path));
      EXPECT_EQ(volume.bytes_on(path) % volume.alignment(), 0);
    }
    std::vector<File> files;
    files.push_back(File::create(scratch.path(), 100 * KiB));
    files.push_back(File::create(directory, 160 * KiB));
    EXPECT_EQ(Volume::over(std::move(files), {.stripe_bytes = 16 * KiB}).size(), 12 * 16 * KiB);
  }));
}

TEST_F(FileSystemTest, AFileSystemWithoutDirectIoServesThroughThePageCache) {
  LoopFileSystem journalled = kExt4;
  journalled.options = "data=journal";
  SPILLWAY_SKIP_FOR(on_file_system(scratch, journalled, [](const std::string& directory, const auto&) {
    const auto error = error_of([&] { File::create(directory, MiB); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_NE(std::string(error->what()).find("has no direct I/O"), std::string::npos) << error->what();
    EXPECT_NE(error->detail().hint.find(R"("spillway": {"direct_io": false}, or --direct-io false)"),
              std::string::npos);
    const File file = File::create(directory, MiB, {.direct = false});
    EXPECT_FALSE(file.direct());
    EXPECT_EQ(file.alignment(), 1);
    EXPECT_EQ(overwrite(file, 5), 0);
  }));
}

TEST_F(FileSystemTest, ARamfsThatDoesNotTellItsSizeServesWhereMemoryIsAllowed) {
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kExt4, [](const std::string& directory, const auto&) {
    ASSERT_EQ(::mount("none", directory.c_str(), "ramfs", 0, nullptr), 0);
    const auto error = error_of([&] { File::create(directory, MiB, {.direct = false}); });
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("is on ramfs, which is memory"), std::string::npos);
    {
      const File file = File::create(directory, MiB, {.direct = false, .allow_memory = true});
      EXPECT_EQ(file.size(), MiB);
      EXPECT_EQ(overwrite(file, 3), 0);
    }
    EXPECT_EQ(::umount2(directory.c_str(), MNT_DETACH), 0);
  }));
}

TEST_F(FileSystemTest, ADeviceThatIsMountedIsNotOpened) {
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kExt4, [](const auto&, const std::string& device) {
    const auto error = error_of([&] { File::open_existing(device); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_EQ(error->detail().error_number, EBUSY);
    EXPECT_NE(std::string(error->what()).find("is in use"), std::string::npos) << error->what();
  }));
}

TEST_F(FileSystemTest, ABlockDeviceCountsAsAFile) {
  const LoopDevice device(scratch.path(), 64 * KiB, 4096);
  if (device.error()) GTEST_SKIP() << *device.error();
  {
    const File file = File::open_existing(device.path());
    EXPECT_EQ(file.size(), 64 * KiB);
    EXPECT_EQ(file.alignment(), 4096);
    EXPECT_EQ(file.directory(), device.path());
    expect_moves_at_its_alignments(file);
  }
  bool allowed = with_denied({kNoStatx}, [&] {
    const File file = File::open_existing(device.path());
    EXPECT_EQ(file.alignment(), 4096);
    EXPECT_EQ(file.memory_alignment(), 4096);
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
}

TEST_F(FileSystemTest, AReadOnlyFileSystemIsRefusedForAFileThatExists) {
  SPILLWAY_SKIP_FOR(on_file_system(scratch, kExt4, [](const std::string& directory, const auto&) {
    const std::string name = directory + "/file";
    std::ofstream(name) << std::string(8192, 'x');
    ASSERT_EQ(::mount("none", directory.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr), 0);
    const auto error = error_of([&] { File::open_existing(name); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->detail().error_number, EROFS);
    EXPECT_EQ(error->detail().path, name);
  }));
}

}  // namespace
}  // namespace spillway::aio
