#include "file.h"

#include "../core/error.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

constexpr const char* what_for =
    "name a directory on a local drive (ext4 or xfs, for example) that this user may write";

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Repeats a system call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

Error unusable(const std::string& message, const std::string& directory, int error_number,
               const char* operation, std::string hint = what_for) {
  return Error(
      ErrorKind::io, message,
      {.operation = operation, .path = directory, .error_number = error_number, .hint = std::move(hint)});
}

Error no_space(const std::string& directory, std::int64_t needed, std::int64_t free, int error_number) {
  return Error(
      ErrorKind::resources,
      fmt::format("not enough space for swapping: {} bytes are needed and {} bytes are free", needed, free),
      {.operation = "reserve",
       .path = directory,
       .length = needed,
       .error_number = error_number,
       .hint = "free some space there, or name a directory on a larger drive"});
}

/// What an errno of opening means to whoever chose the directory.
Error cannot_open(const std::string& directory, int error_number) {
  const char* const operation = "open";
  switch (error_number) {
    case ENOENT:
      return unusable("the directory for swapping does not exist", directory, error_number, operation,
                      "create it, or name another");
    case ENOTDIR:
      return unusable("the path for swapping is not a directory", directory, error_number, operation);
    case EACCES:
    case EPERM:
      return unusable("no permission to create files in the directory for swapping", directory, error_number,
                      operation);
    case EROFS:
      return unusable("the directory for swapping is on a read-only file system", directory, error_number,
                      operation);
    case EINVAL:
    case EOPNOTSUPP:
      return unusable("the file system of the directory for swapping has no direct I/O", directory,
                      error_number, operation);
    case ENOSPC:
    case EDQUOT:
      return Error(ErrorKind::resources, "no room for another file in the directory for swapping",
                   {.operation = operation,
                    .path = directory,
                    .error_number = error_number,
                    .hint = "free space or inodes there, or raise the quota"});
    case EMFILE:
    case ENFILE:
      return Error(ErrorKind::resources, "too many open files",
                   {.operation = operation,
                    .path = directory,
                    .error_number = error_number,
                    .hint = "raise the limit on open files (ulimit -n)"});
    default:
      return unusable("cannot create a file in the directory for swapping", directory, error_number, operation);
  }
}

/// The type and not a trial decides: recent kernels accept O_DIRECT, O_TMPFILE and fallocate on tmpfs.
void refuse_memory(int descriptor, const std::string& directory) {
  struct statfs status {};
  if (uninterrupted([&] { return ::fstatfs(descriptor, &status); }) != 0) throw cannot_open(directory, errno);
  const auto type = static_cast<unsigned long>(status.f_type);
  const char* name = nullptr;
  if (type == TMPFS_MAGIC) name = "tmpfs";
  if (type == RAMFS_MAGIC) name = "ramfs";
  if (type == HUGETLBFS_MAGIC) name = "hugetlbfs";
  if (name != nullptr) {
    throw unusable(fmt::format("the directory for swapping is on {}, which is memory, not a drive", name),
                   directory, 0, "open");
  }
}

std::string random_name() {
  std::uint64_t bits[2] = {};
  if (uninterrupted([&] { return ::getrandom(bits, sizeof bits, 0); }) != sizeof bits) {
    throw Error(ErrorKind::io, "no random numbers from the kernel",
                {.operation = "getrandom", .error_number = errno});
  }
  return fmt::format(".spillway-{:016x}{:016x}", bits[0], bits[1]);
}

int open_anonymous(int parent, const std::string& directory) {
  constexpr int flags = O_RDWR | O_DIRECT | O_CLOEXEC;
  constexpr mode_t owner_only = 0600;
  const int unnamed = uninterrupted([&] { return ::openat(parent, ".", flags | O_TMPFILE, owner_only); });
  if (unnamed >= 0) return unnamed;
  // Kernels and file systems without O_TMPFILE answer with one of these; 128 random bits then make the name, so
  // that two jobs cannot meet, and it lives for one system call.
  if (errno != EOPNOTSUPP && errno != EISDIR) throw cannot_open(directory, errno);
  const std::string name = random_name();
  Descriptor named(
      uninterrupted([&] { return ::openat(parent, name.c_str(), flags | O_CREAT | O_EXCL, owner_only); }));
  const int open_error = errno;
  // Also after a failure: a file system that refuses O_DIRECT has created the file before it says so.
  const bool removed = ::unlinkat(parent, name.c_str(), 0) == 0;
  if (named.get() < 0) throw cannot_open(directory, open_error);
  if (!removed) {
    throw unusable(fmt::format("cannot remove the name {} of a file just created", name), directory, errno,
                   "unlink");
  }
  return named.release();
}

std::int64_t alignment_of(int descriptor, const std::string& directory) {
  struct statx status {};
  if (uninterrupted([&] { return ::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status); }) != 0 ||
      (status.stx_mask & STATX_DIOALIGN) == 0) {
    return direct_io_alignment;  // a kernel before 6.1, or a file system that does not say
  }
  if (status.stx_dio_offset_align == 0) {
    throw unusable("the file system of the directory for swapping has no direct I/O", directory, 0, "statx");
  }
  return std::max(
      {direct_io_alignment, std::int64_t{status.stx_dio_offset_align}, std::int64_t{status.stx_dio_mem_align}});
}

std::int64_t free_bytes(int descriptor, const std::string& directory) {
  struct statvfs status {};
  if (uninterrupted([&] { return ::fstatvfs(descriptor, &status); }) != 0) {
    throw unusable("cannot tell how much space is free for swapping", directory, errno, "statvfs");
  }
  return static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
}

Error too_large(const std::string& directory, std::int64_t bytes, int error_number) {
  return Error(ErrorKind::resources, fmt::format("a file of {} bytes is larger than is allowed", bytes),
               {.operation = "reserve",
                .path = directory,
                .length = bytes,
                .error_number = error_number,
                .hint = "raise the limit on file size (ulimit -f), or use several directories"});
}

/// Returns the bytes reserved: those asked for, rounded up to the alignment.
std::int64_t reserve(int descriptor, const std::string& directory, std::int64_t bytes, std::int64_t alignment) {
  // Asked first, because a file system may fill itself up before it finds that the space does not suffice.
  const std::int64_t free = free_bytes(descriptor, directory);
  if (bytes > free) throw no_space(directory, bytes, free, 0);
  const std::int64_t size = (bytes + alignment - 1) / alignment * alignment;
  if (size > free) throw no_space(directory, size, free, 0);
  // Passing this limit raises SIGXFSZ, which ends a program that has no handler for it.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(size)) {
    throw too_large(directory, size, 0);
  }
  if (uninterrupted([&] { return ::fallocate(descriptor, 0, 0, size); }) == 0) return size;
  const int error_number = errno;
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      throw no_space(directory, size, free_bytes(descriptor, directory), error_number);
    case EFBIG:
      throw too_large(directory, size, error_number);
    case EOPNOTSUPP:
    case ENOSYS:
      throw unusable("the file system of the directory for swapping cannot reserve space", directory,
                     error_number, "reserve");
    default:
      throw unusable("cannot reserve space in the directory for swapping", directory, error_number, "reserve");
  }
}

}  // namespace

DirectFile::Handle::~Handle() {
  if (descriptor >= 0) ::close(descriptor);
}

const std::shared_ptr<const DirectFile::Handle>& DirectFile::handle() const {
  if (!handle_) throw std::logic_error("DirectFile: used after it was moved from");
  return handle_;
}

DirectFile DirectFile::create_anonymous(const std::string& directory, std::int64_t bytes) {
  if (bytes <= 0) throw std::logic_error(fmt::format("DirectFile::create_anonymous: {} bytes", bytes));
  const Descriptor parent(
      uninterrupted([&] { return ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (parent.get() < 0) throw cannot_open(directory, errno);
  refuse_memory(parent.get(), directory);

  auto handle = std::make_shared<Handle>();
  handle->directory = directory;
  handle->descriptor = open_anonymous(parent.get(), directory);
  handle->alignment = alignment_of(handle->descriptor, directory);
  handle->size = reserve(handle->descriptor, directory, bytes, handle->alignment);
  return DirectFile(std::move(handle));
}

}  // namespace spillway::aio
