#pragma once
// The files and memory that an io_uring knows by number. Not installed: for io_uring.cpp.
#include "ring.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <liburing.h>

namespace spillway::aio {

/// The tables are made at the first registration: most kernels charge for them. Used by the ring's thread.
class Registrations {
 public:
  /// Slots are in range. 0 or an errno; the first refusal of each kind leaves a note.
  int set_file(io_uring& ring, int slot, int descriptor) noexcept;
  int set_memory(io_uring& ring, int slot, std::span<std::byte> memory) noexcept;

  /// Whether the operation's slot holds its file, or memory around its own.
  bool has_file(const Operation& operation) const noexcept;
  bool has_memory(const Operation& operation) const noexcept;

  /// Registers the same in another ring, as far as that goes.
  void move_to(io_uring& ring) noexcept;

  /// Fills in what it knows of, and appends the notes.
  void describe(RingReport& report) const;

 private:
  struct Table {
    bool made = false;      ///< in the ring
    int unusable = 0;       ///< the errno with which the table itself was refused
    bool some = false;      ///< something was registered
    bool refused = false;   ///< once at least
    std::string note = {};  ///< why
  };
  int make_file_table(io_uring& ring) noexcept;
  int make_memory_table(io_uring& ring) noexcept;

  Table file_table_{};
  Table memory_table_{};
  std::vector<int> files_{};  ///< by slot; -1: empty
  std::vector<std::span<std::byte>> memory_{};
};

}  // namespace spillway::aio
