#pragma once
// What file systems differ in, for the files made in file.cpp: which are memory, what alignment direct I/O
// needs, and what a reservation is worth there. `directory` is the one a user named, for messages.
#include "../core/error.h"

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace spillway::aio {

/// Owns a file descriptor; negative: none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
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

/// An Error of kind io about a directory that can't be used; the usual hint says what could be.
Error unusable(const std::string& message, const std::string& directory, int error_number,
               const char* operation, std::string hint = {});

Error no_direct_io(const std::string& path, int error_number, const char* operation);

/// What happens to bytes that are written again.
enum class Overwriting {
  in_place,   ///< or elsewhere, but counted so that there is room for it (f2fs)
  as_below,   ///< what lies below decides, and is not known
  choosable,  ///< elsewhere, unless a file asks for the other
  elsewhere,  ///< a full drive has no room for them
};

struct FileSystem {
  std::uint32_t type = 0;  ///< as statfs gives it
  const char* name = "";   ///< empty where nothing is special about it
  bool memory = false;     ///< not on a drive
  bool writable = true;    ///< by write(), and not only by mapping
  Overwriting overwriting = Overwriting::in_place;
};

FileSystem known_file_system(std::uint32_t type);
/// Throws Error (io) where the kernel does not tell.
FileSystem file_system_of(int descriptor, const std::string& directory);

/// Throws Error (io) where the file system is memory, and that is not allowed, or can't be written at all.
void refuse_memory(const FileSystem& file_system, const std::string& directory, bool allow_memory);

struct Alignments {
  std::int64_t offset = 1;  ///< as File::alignment()
  std::int64_t memory = 1;  ///< as File::memory_alignment()
};

/// What the kernel says (STATX_DIOALIGN, Linux 6.1); nothing where it does not. Throws Error (io) where it says
/// that there is no direct I/O.
std::optional<Alignments> told_alignments(int descriptor, const std::string& directory);

/// The smallest alignment with which the file can be read and, with `may_write`, written: found by trying. With
/// `may_write` the file must be empty, and is left so; else one that is too small for a trial counts as one
/// that needs no more. Throws Error (io) where there is no direct I/O.
Alignments tried_alignments(int descriptor, const std::string& directory, bool may_write);

/// Asks a copy-on-write file system to overwrite this file, which must be empty, in place, so that a
/// reservation holds. Returns a note, in words for the user, where the space that will be reserved is not sure
/// to be there when it is written again.
std::optional<std::string> settle_copy_on_write(const FileSystem& file_system, int descriptor,
                                                const std::string& directory);

struct Reservation {
  std::int64_t bytes = 0;  ///< those asked for, rounded up to the alignment
  std::optional<std::string> note = {};
};

/// Gives the file its size and, where the file system can, all its space. Throws Error (resources) where that
/// is too little, (io) for everything else.
Reservation reserve(int descriptor, const std::string& directory, std::int64_t bytes, std::int64_t alignment);

}  // namespace spillway::aio
