#include "file.h"

#include "file_system.h"

#include <stdexcept>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

Error too_many_files(const std::string& path, int error_number) {
  return Error(ErrorKind::resources, "too many open files",
               {.operation = "open",
                .path = path,
                .error_number = error_number,
                .hint = "raise the limit on open files (ulimit -n)"});
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
    case ENOSPC:
    case EDQUOT:
      return Error(ErrorKind::resources, "no room for another file in the directory for swapping",
                   {.operation = operation,
                    .path = directory,
                    .error_number = error_number,
                    .hint = "free space or inodes there, or raise the quota"});
    case EMFILE:
    case ENFILE:
      return too_many_files(directory, error_number);
    default:
      return unusable("cannot create a file in the directory for swapping", directory, error_number, operation);
  }
}

/// Likewise to whoever named a file.
Error cannot_open_existing(const std::string& path, int error_number) {
  const char* const operation = "open";
  const char* const hint = "name another";
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return unusable("the file does not exist", path, error_number, operation, hint);
    case EACCES:
    case EPERM:
      return unusable("no permission to read and write the file", path, error_number, operation, hint);
    case EROFS:
      return unusable("the file is on a read-only file system", path, error_number, operation, hint);
    case EISDIR:
      return unusable("the path is a directory, not a file", path, error_number, operation, hint);
    case EBUSY:
    case ETXTBSY:
      return unusable("the file or device is in use", path, error_number, operation,
                      "unmount it or stop what uses it, or name another");
    case EMFILE:
    case ENFILE:
      return too_many_files(path, error_number);
    default:
      return unusable("cannot open the file", path, error_number, operation, hint);
  }
}

int flags_for(const FileOptions& options) {
  return O_RDWR | O_CLOEXEC | (options.direct ? O_DIRECT : 0);
}

/// File systems without direct I/O refuse the flag with one of these.
bool refuses_direct(const FileOptions& options, int error_number) {
  return options.direct && (error_number == EINVAL || error_number == EOPNOTSUPP);
}

std::string random_name(const std::string& directory) {
  std::uint64_t bits[2] = {};
  if (uninterrupted([&] { return ::getrandom(bits, sizeof bits, 0); }) != sizeof bits) {
    throw unusable("no random numbers from the kernel to name a file", directory, errno, "getrandom");
  }
  return fmt::format(".spillway-{:016x}{:016x}", bits[0], bits[1]);
}

/// Whether the file has a name, although the last one was removed: a network file system, or one in user space,
/// hides what is still open under another.
bool has_hidden_name(int descriptor) {
  struct stat status {};
  return uninterrupted([&] { return ::fstat(descriptor, &status); }) == 0 && status.st_nlink > 0;
}

/// Puts a new file without a name into the handle. Returns the file system that it is on.
FileSystem open_anonymous(File::Handle& handle, const FileOptions& options) {
  constexpr mode_t owner_only = 0600;
  const std::string& directory = handle.directory;
  const Descriptor parent(
      uninterrupted([&] { return ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (parent.get() < 0) throw cannot_open(directory, errno);
  const FileSystem file_system = file_system_of(parent.get(), directory);
  refuse_memory(file_system, directory, options.allow_memory);

  const int flags = flags_for(options);
  handle.descriptor = uninterrupted([&] { return ::openat(parent.get(), ".", flags | O_TMPFILE, owner_only); });
  if (handle.descriptor >= 0) return file_system;
  // Kernels and file systems without O_TMPFILE answer with one of these; 128 random bits then make the name, so
  // that two jobs cannot meet, and it lives for one system call.
  if (errno == EINVAL && refuses_direct(options, errno)) throw no_direct_io(directory, errno, "open");
  if (errno != EOPNOTSUPP && errno != EISDIR) throw cannot_open(directory, errno);
  const std::string name = random_name(directory);
  handle.descriptor =
      uninterrupted([&] { return ::openat(parent.get(), name.c_str(), flags | O_CREAT | O_EXCL, owner_only); });
  const int open_error = errno;
  // Also after a failure: a file system that refuses O_DIRECT has created the file before it says so.
  const bool removed = ::unlinkat(parent.get(), name.c_str(), 0) == 0;
  const int remove_error = errno;
  if (handle.descriptor < 0) {
    throw refuses_direct(options, open_error) ? no_direct_io(directory, open_error, "open")
                                              : cannot_open(directory, open_error);
  }
  if (!removed) {
    throw unusable(fmt::format("cannot remove the name {} of a file just created", name), directory,
                   remove_error, "unlink");
  }
  if (has_hidden_name(handle.descriptor)) {
    handle.notes.push_back(
        fmt::format("{} is on a file system that keeps a hidden name for the file until the run ends: it stays "
                    "behind where this machine stops before that",
                    on_one_line(directory)));
  }
  return file_system;
}

/// What stat says of a path; its type only.
mode_t type_of(const std::string& path) {
  struct stat status {};
  if (uninterrupted([&] { return ::stat(path.c_str(), &status); }) != 0)
    throw cannot_open_existing(path, errno);
  if (S_ISDIR(status.st_mode)) throw cannot_open_existing(path, EISDIR);
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
    throw unusable("the path is neither a file nor a block device", path, 0, "open", "name another");
  }
  return status.st_mode & S_IFMT;
}

void settle_alignment(File::Handle& handle, bool may_write) {
  handle.alignment = handle.memory_alignment = 1;
  if (!handle.direct) return;
  auto found = told_alignments(handle.descriptor, handle.directory);
  if (!found) found = tried_alignments(handle.descriptor, handle.directory, may_write);
  handle.alignment = found->offset;
  handle.memory_alignment = found->memory;
}

}  // namespace

File::Handle::~Handle() {
  if (descriptor >= 0) ::close(descriptor);
}

const std::shared_ptr<const File::Handle>& File::handle() const {
  if (!handle_) throw std::logic_error("File: used after it was moved from");
  return handle_;
}

File File::create(const std::string& directory, std::int64_t bytes, const FileOptions& options) {
  if (bytes <= 0) throw std::logic_error(fmt::format("File::create: {} bytes", bytes));
  auto handle = std::make_shared<Handle>();
  handle->directory = directory;
  handle->direct = options.direct;
  const FileSystem file_system = open_anonymous(*handle, options);
  auto copy_note = settle_copy_on_write(file_system, handle->descriptor, directory);
  settle_alignment(*handle, true);
  auto [size, reserve_note] = reserve(handle->descriptor, directory, bytes, handle->alignment);
  handle->size = size;
  // Without any reservation it does not matter whether one would hold.
  if (reserve_note) copy_note = std::move(reserve_note);
  if (copy_note) handle->notes.push_back(std::move(*copy_note));
  return File(std::move(handle));
}

File File::open_existing(const std::string& path, const FileOptions& options) {
  const mode_t type = type_of(path);
  auto handle = std::make_shared<Handle>();
  handle->directory = path;
  handle->direct = options.direct;
  // A block device that is mounted, or part of an array, is refused: writing there destroys what it holds.
  const int flags = flags_for(options) | (S_ISBLK(type) ? O_EXCL : 0);
  handle->descriptor = uninterrupted([&] { return ::open(path.c_str(), flags); });
  if (handle->descriptor < 0) {
    throw refuses_direct(options, errno) ? no_direct_io(path, errno, "open")
                                         : cannot_open_existing(path, errno);
  }
  // Of a device, this would be where its name lies.
  if (S_ISREG(type)) refuse_memory(file_system_of(handle->descriptor, path), path, options.allow_memory);
  settle_alignment(*handle, false);
  const off_t end = ::lseek(handle->descriptor, 0, SEEK_END);  // also of a block device
  if (end < 0) throw cannot_open_existing(path, errno);
  handle->size = end - end % handle->alignment;
  if (handle->size == 0) {
    throw unusable(fmt::format("the file has {} bytes, and at least {} are needed", end, handle->alignment),
                   path, 0, "open", "name a larger one");
  }
  return File(std::move(handle));
}

}  // namespace spillway::aio
