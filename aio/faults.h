#pragma once
// Faults on purpose: a ring that behaves like a bad drive. Tests use it, and so can whoever wants to see what a
// run does when its drive fails (spillway.io_faults).
#include "ring.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace spillway::aio {

/// Shares are probabilities of an operation, in [0, 1]. Operations are counted from 1, in the order in which
/// they are started (attempts that a Queue repeats count again); 0: never. An operation suffers one fault of
/// these at most, the first that applies: failure, interruption, end of file, a short transfer.
struct Faults {
  /// Moves only a part of more than a byte: up to a border of 4 KiB, or, by turns of chance, into the middle of
  /// such a piece; what a read did not bring is overwritten with 0xa5 up to the border.
  double short_transfers = 0;
  double interrupted = 0;  ///< -EINTR or -EAGAIN by turns, nothing moved
  double delayed = 0;      ///< the completion comes late, by up to delay_us
  double delay_us = 1000;
  bool reorder = false;          ///< completions are handed on in a random order
  std::int64_t fail_at = 0;      ///< this operation fails, and those after it where fail_always
  bool fail_always = false;      ///< as a drive that is gone
  int error_number = 5;          ///< with which: EIO; ENOSPC, ...
  std::int64_t flip_at = 0;      ///< one bit of what this operation read is flipped, and nothing reported
  std::int64_t truncate_at = 0;  ///< this read ends at the end of file: 0 bytes
  std::uint64_t seed = 1;        ///< of all that is random

  bool any() const;
  bool operator==(const Faults&) const = default;
};
// Where operation flip_at or truncate_at is a write, or a read that brings nothing, the next read that does
// suffers.

/// From
/// "short=0.2,interrupt=0.1,delay=0.1,delay_us=500,reorder,fail=100:EIO,flip=20,eof=7,seed=3": any of them, in
/// any order, each once; fail_from=100:ENOSPC instead of fail sets fail_always; an error is a name or a number.
/// No text: no faults. Throws Error (configuration) naming `what` and the part that is wrong.
Faults parse_faults(std::string_view text, std::string_view what);

/// What parse_faults() reads back; without what is as it is by default.
std::string to_string(const Faults& faults);

/// Passes everything on to `inner` (not null), with these faults. Same thread rules. Its report has a note of
/// the faults.
std::unique_ptr<Ring> make_faulty_ring(std::unique_ptr<Ring> inner, const Faults& faults);

}  // namespace spillway::aio
