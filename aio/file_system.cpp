#include "file_system.h"

#include "file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <new>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

/// No drive asks for more; also the step at which trying ends.
constexpr std::int64_t largest_alignment = std::int64_t{1} << 20;

// Numbers that linux/magic.h has not, or not everywhere, are from the file systems' own sources. What is not
// here is taken to overwrite in place: ext4, xfs (a shared extent needs a name to be shared by), f2fs, nfs.
constexpr FileSystem known[] = {
    {TMPFS_MAGIC, "tmpfs", true},
    {RAMFS_MAGIC, "ramfs", true},
    {HUGETLBFS_MAGIC, "hugetlbfs", true, false},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs", false, true, Overwriting::as_below},
    {BTRFS_SUPER_MAGIC, "btrfs", false, true, Overwriting::choosable},
    {0xca451a4e, "bcachefs", false, true, Overwriting::elsewhere},
    {0x2fc12fc1, "zfs", false, true, Overwriting::elsewhere},
    {NILFS_SUPER_MAGIC, "nilfs2", false, true, Overwriting::elsewhere},
};

/// Whether the file, which must be empty, is overwritten in place from now on.
bool choose_in_place(int descriptor) {
  int flags = 0;
  if (::ioctl(descriptor, FS_IOC_GETFLAGS, &flags) != 0) return false;
  // What a directory says of compression is inherited, excludes the other, and must be gone before it is asked
  // for.
  constexpr int compression = FS_COMPR_FL | FS_NOCOMP_FL;
  if ((flags & compression) != 0) {
    flags &= ~compression;
    if (::ioctl(descriptor, FS_IOC_SETFLAGS, &flags) != 0) return false;
  }
  // Direct I/O passes by the file system's own checksums, then, too.
  flags |= FS_NOCOW_FL;
  return ::ioctl(descriptor, FS_IOC_SETFLAGS, &flags) == 0 &&
         ::ioctl(descriptor, FS_IOC_GETFLAGS, &flags) == 0 &&
         (flags & FS_NOCOW_FL) != 0;  // read back: some accept a flag and forget it
}

std::string space(std::int64_t bytes) {
  return bytes == std::numeric_limits<std::int64_t>::max() ? "an unknown number of bytes"
                                                           : fmt::format("{} bytes", bytes);
}

Error no_space(const std::string& directory, std::int64_t needed, std::int64_t free, int error_number) {
  return Error(
      ErrorKind::resources,
      fmt::format("not enough space for swapping: {} bytes are needed and {} are free", needed, space(free)),
      {.operation = "reserve",
       .path = directory,
       .length = needed,
       .error_number = error_number,
       .hint = "free some space there, or name a directory on a larger drive"});
}

Error too_large(const std::string& directory, std::int64_t bytes, int error_number) {
  return Error(ErrorKind::resources, fmt::format("a file of {} bytes is larger than is allowed", bytes),
               {.operation = "reserve",
                .path = directory,
                .length = bytes,
                .error_number = error_number,
                .hint = "raise the limit on file size (ulimit -f), or use several directories"});
}

/// Passing this limit raises SIGXFSZ, which ends a program that has no handler for it.
void refuse_above_limit(const std::string& directory, std::int64_t bytes) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    throw too_large(directory, bytes, 0);
  }
}

/// For this user. Where the file system does not say (ramfs), the largest number.
std::int64_t free_bytes(int descriptor) {
  struct statvfs status {};
  if (uninterrupted([&] { return ::fstatvfs(descriptor, &status); }) != 0 || status.f_blocks == 0) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
}

/// What a failed attempt to get space means.
Error cannot_reserve(int descriptor, const std::string& directory, std::int64_t bytes, int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return no_space(directory, bytes, free_bytes(descriptor), error_number);
    case EFBIG:
      return too_large(directory, bytes, error_number);
    default:
      return unusable("cannot reserve space in the directory for swapping", directory, error_number, "reserve");
  }
}

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{largest_alignment}); }
};

/// Moves one piece of this length at this offset. 0: it works; else an errno. EINVAL: not so aligned.
int try_alignment(int descriptor, const std::string& directory, std::byte* memory, std::int64_t alignment,
                  bool may_write) {
  const auto bytes = static_cast<std::size_t>(alignment);
  if (may_write) {
    refuse_above_limit(directory, 2 * alignment);
    // Reading alone would not tell: where nothing was written yet, the drive is not asked.
    std::fill_n(memory, alignment, std::byte{0});
    if (uninterrupted([&] { return ::pwrite(descriptor, memory, bytes, alignment); }) < 0) return errno;
  }
  return uninterrupted([&] { return ::pread(descriptor, memory, bytes, alignment); }) < 0 ? errno : 0;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Error unusable(const std::string& message, const std::string& directory, int error_number,
               const char* operation, std::string hint) {
  if (hint.empty())
    hint = "name a directory on a local drive (ext4 or xfs, for example) that this user may write";
  return Error(
      ErrorKind::io, message,
      {.operation = operation, .path = directory, .error_number = error_number, .hint = std::move(hint)});
}

Error no_direct_io(const std::string& path, int error_number, const char* operation) {
  return unusable("the file system has no direct I/O", path, error_number, operation,
                  R"(name a path on a local drive (ext4 or xfs, for example), or go through the page cache: )"
                  R"("spillway": {"direct_io": false}, or --direct-io false)");
}

FileSystem known_file_system(std::uint32_t type) {
  const auto* const found =
      std::find_if(std::begin(known), std::end(known), [&](const FileSystem& one) { return one.type == type; });
  return found == std::end(known) ? FileSystem{type} : *found;
}

FileSystem file_system_of(int descriptor, const std::string& directory) {
  struct statfs status {};
  if (uninterrupted([&] { return ::fstatfs(descriptor, &status); }) != 0) {
    throw unusable("cannot tell the file system of the directory for swapping", directory, errno, "statfs");
  }
  return known_file_system(static_cast<std::uint32_t>(status.f_type));
}

void refuse_memory(const FileSystem& file_system, const std::string& directory, bool allow_memory) {
  // The type and not a trial decides: recent kernels accept O_DIRECT, O_TMPFILE and fallocate on tmpfs.
  if (!file_system.memory || (allow_memory && file_system.writable)) return;
  throw unusable(
      fmt::format("the directory for swapping is on {}, which is memory, not a drive", file_system.name),
      directory, 0, "open");
}

std::optional<Alignments> told_alignments(int descriptor, const std::string& directory) {
  struct statx status {};
  if (uninterrupted([&] { return ::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status); }) != 0 ||
      (status.stx_mask & STATX_DIOALIGN) == 0) {
    return std::nullopt;  // a kernel before 6.1, a file system that does not say, or a container that forbids
                          // it
  }
  if (status.stx_dio_offset_align == 0) throw no_direct_io(directory, 0, "statx");
  Alignments told;
  told.memory = static_cast<std::int64_t>(std::bit_ceil(std::max(status.stx_dio_mem_align, 1u)));
  told.offset = std::max({direct_io_alignment, told.memory,
                          static_cast<std::int64_t>(std::bit_ceil(status.stx_dio_offset_align))});
  return told;
}

Alignments tried_alignments(int descriptor, const std::string& directory, bool may_write) {
  const std::unique_ptr<std::byte[], AlignedDelete> memory(static_cast<std::byte*>(
      ::operator new (static_cast<std::size_t>(largest_alignment), std::align_val_t{largest_alignment})));
  std::int64_t alignment = direct_io_alignment;
  int error_number = EINVAL;
  for (; alignment <= largest_alignment; alignment *= 2) {
    error_number = try_alignment(descriptor, directory, memory.get(), alignment, may_write);
    if (error_number != EINVAL) break;
  }
  if (error_number == EINVAL) throw no_direct_io(directory, error_number, may_write ? "write" : "read");
  if (error_number != 0 && may_write) throw cannot_reserve(descriptor, directory, 2 * alignment, error_number);
  if (error_number != 0)
    throw unusable("cannot read the file", directory, error_number, "read", "name another");
  if (may_write && uninterrupted([&] { return ::ftruncate(descriptor, 0); }) != 0) {
    throw cannot_reserve(descriptor, directory, 0, errno);
  }
  return {alignment, alignment};
}

std::optional<std::string> settle_copy_on_write(const FileSystem& file_system, int descriptor,
                                                const std::string& directory) {
  switch (file_system.overwriting) {
    case Overwriting::in_place:
      return std::nullopt;
    case Overwriting::as_below:
      choose_in_place(descriptor);  // handed on to btrfs, and refused by what has no need of it
      return std::nullopt;
    case Overwriting::choosable:
      if (choose_in_place(descriptor)) return std::nullopt;
      break;
    case Overwriting::elsewhere:
      break;
  }
  return fmt::format(
      "{} is on {}, which writes what changes to another place: the space reserved for swapping does not hold, "
      "and a drive that gets full stops the run; keep as much free again",
      on_one_line(directory), file_system.name);
}

Reservation reserve(int descriptor, const std::string& directory, std::int64_t bytes, std::int64_t alignment) {
  // Asked first, because a file system may fill itself up before it finds that the space does not suffice.
  const std::int64_t free = free_bytes(descriptor);
  if (bytes > free || bytes > std::numeric_limits<std::int64_t>::max() - alignment) {
    throw no_space(directory, bytes, free, 0);
  }
  const std::int64_t size = (bytes + alignment - 1) / alignment * alignment;
  if (size > free) throw no_space(directory, size, free, 0);
  refuse_above_limit(directory, size);
  if (uninterrupted([&] { return ::fallocate(descriptor, 0, 0, size); }) == 0) return {size};
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw cannot_reserve(descriptor, directory, size, errno);
  if (uninterrupted([&] { return ::ftruncate(descriptor, size); }) != 0) {
    throw cannot_reserve(descriptor, directory, size, errno);
  }
  return {size,
          fmt::format("{} is on a file system that cannot reserve space: {} bytes for swapping are free now, "
                      "and a drive that gets full later stops the run",
                      on_one_line(directory), size)};
}

}  // namespace spillway::aio
