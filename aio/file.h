#pragma once
// Swap space: files that have no name, so that a crash leaves nothing behind, with every byte reserved (D7).
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace spillway::aio {

/// The alignment that any drive in use is content with: the page size, and the largest logical block.
inline constexpr std::int64_t direct_io_alignment = 4096;

struct FileOptions {
  /// Past the page cache (O_DIRECT). Without, transfers go through it, and file systems without direct I/O
  /// serve too.
  bool direct = true;
  /// File systems that are memory (tmpfs, ramfs) are accepted: to measure what the software itself costs. (Not
  /// hugetlbfs, whose files can only be mapped.)
  bool allow_memory = false;
};

/// An open file and what is known of it. The space of an anonymous one returns to the file system when the last
/// File, transfer or registration that refers to it is gone, whatever way the process ends.
/// Move-only; the const members may be called from several threads. A moved-from file may only be destroyed or
/// assigned to (anything else is std::logic_error).
class File {
 public:
  /// Reserves `bytes`, rounded up to the file's alignment, in `directory`. What the file holds is zeros. The
  /// file is made with O_TMPFILE, or, where the file system has no such files, with a random name that is
  /// removed at once. Throws Error of kind io for a directory that can't be used (missing, not a directory, no
  /// permission, read-only, memory instead of a drive, no direct I/O), and of kind resources, with the bytes
  /// needed and free, where there is too little space; nothing stays behind then. On btrfs the file is asked to
  /// be overwritten in place (NOCOW), so that its reservation holds as long as nobody makes a snapshot of it; a
  /// reservation that does not hold is noticed (see notes()). bytes <= 0 is std::logic_error.
  static File create(const std::string& directory, std::int64_t bytes, const FileOptions& options = {});

  /// Opens a file that exists for reading and writing, as it is: nothing is reserved or changed, and it must
  /// hold at least `alignment()` bytes. For measurements on a given file; a block device counts as a file,
  /// unless it is mounted or part of something. Throws Error of kind io for a path that can't be used, and of
  /// kind resources where too many files are open.
  static File open_existing(const std::string& path, const FileOptions& options = {});

  File(File&&) noexcept = default;
  File& operator=(File&&) noexcept = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return handle()->descriptor; }
  /// As it was given to create(), or the path given to open_existing(); for messages.
  const std::string& directory() const { return handle()->directory; }
  /// Bytes reserved, or of the file that existed, rounded down: a multiple of alignment().
  std::int64_t size() const { return handle()->size; }
  /// Of offsets and lengths, in bytes: a power of two, at least direct_io_alignment with direct I/O, else 1.
  /// What the kernel says of the file, or found by trying where it does not.
  std::int64_t alignment() const { return handle()->alignment; }
  /// Of addresses in memory, in bytes: a power of two, at most alignment().
  std::int64_t memory_alignment() const { return handle()->memory_alignment; }
  bool direct() const { return handle()->direct; }
  /// What is not as good as it should be, one line each, with the directory: that the reservation does not hold
  /// (copy-on-write, or none to be had), and why; that the file system keeps a hidden name of the open file.
  const std::vector<std::string>& notes() const { return handle()->notes; }

  /// Shared with the transfers under way, so that none of them can meet a closed (or reused) descriptor.
  struct Handle {
    int descriptor = -1;
    std::string directory = {};
    std::int64_t size = 0;
    std::int64_t alignment = direct_io_alignment;
    std::int64_t memory_alignment = direct_io_alignment;
    bool direct = true;
    std::vector<std::string> notes = {};

    Handle() = default;
    ~Handle();
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
  };
  const std::shared_ptr<const Handle>& handle() const;

 private:
  explicit File(std::shared_ptr<const Handle> handle) : handle_(std::move(handle)) {}

  std::shared_ptr<const Handle> handle_;
};

}  // namespace spillway::aio
