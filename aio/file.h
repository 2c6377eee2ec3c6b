#pragma once
// Swap space: files opened for direct I/O that have no name, so that a crash leaves nothing behind (D7).
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace spillway::aio {

/// Offsets, lengths and addresses of every transfer are multiples of this, or of the file's own alignment where
/// that is larger. It is the page size, and the largest logical block of the drives in use.
inline constexpr std::int64_t direct_io_alignment = 4096;

/// An open file with no name and every byte reserved. The space returns to the file system when the last
/// DirectFile or transfer that refers to it is gone, whatever way the process ends.
/// Move-only; the const members may be called from several threads. A moved-from file may only be destroyed or
/// assigned to (anything else is std::logic_error).
class DirectFile {
 public:
  /// Reserves `bytes`, rounded up to the file's alignment, in `directory`. What the file holds is zeros. The
  /// file is made with O_TMPFILE, or, where the file system has no such files, with a random name that is
  /// removed at once. Throws Error of kind io for a directory that can't be used (missing, not a directory, no
  /// permission, read-only, memory instead of a drive, no direct I/O, no reservation of space), and of kind
  /// resources, with the bytes needed and free, where there is too little space; nothing stays behind then.
  /// bytes <= 0 is std::logic_error.
  static DirectFile create_anonymous(const std::string& directory, std::int64_t bytes);

  DirectFile(DirectFile&&) noexcept = default;
  DirectFile& operator=(DirectFile&&) noexcept = default;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  int descriptor() const { return handle()->descriptor; }
  /// As it was given to create_anonymous; for messages.
  const std::string& directory() const { return handle()->directory; }
  /// Bytes reserved, a multiple of alignment().
  std::int64_t size() const { return handle()->size; }
  /// Bytes, a power of two, at least direct_io_alignment.
  std::int64_t alignment() const { return handle()->alignment; }

 private:
  friend class Queue;

  /// Shared with the transfers under way, so that none of them can meet a closed (or reused) descriptor.
  struct Handle {
    int descriptor = -1;
    std::string directory = {};
    std::int64_t size = 0;
    std::int64_t alignment = direct_io_alignment;

    Handle() = default;
    ~Handle();
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
  };

  explicit DirectFile(std::shared_ptr<const Handle> handle) : handle_(std::move(handle)) {}
  const std::shared_ptr<const Handle>& handle() const;

  std::shared_ptr<const Handle> handle_;
};

}  // namespace spillway::aio
