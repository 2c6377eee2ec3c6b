#pragma once
// The seam between a Queue, which splits, checks and repeats transfers, and what carries single operations out:
// io_uring here; threads, or a wrapper that injects faults, behind the same face.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace spillway::aio {

enum class Direction : std::uint8_t { read, write };

/// One read or write of a contiguous extent.
struct Operation {
  Direction direction = Direction::read;
  int descriptor = -1;
  std::int64_t offset = 0;      ///< bytes from the file's start
  std::byte* memory = nullptr;  ///< only read from when direction is write
  std::int64_t bytes = 0;       ///< 1 to maximum_operation_bytes
  std::uint64_t tag = 0;        ///< the caller's own; returned in the completion
};

/// The kernel moves at most 2 GiB less a page at once.
inline constexpr std::int64_t maximum_operation_bytes = std::int64_t{1} << 30;

struct Completion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  ///< bytes moved (they may be fewer than asked for), or -errno
};

/// Carries operations out, in any order. Used by one thread at a time. Every operation that was started gets
/// exactly one completion, whatever fails underneath: failures are results, not exceptions.
class Ring {
 public:
  /// Only when nothing is in flight: a Queue sees to that.
  virtual ~Ring() = default;

  /// How many operations may be in flight (started and not yet reaped).
  virtual unsigned depth() const noexcept = 0;

  /// Starts operations, as many as keep within depth(). The memory must stay until their completions are
  /// reaped.
  virtual void start(std::span<const Operation> operations) noexcept = 0;

  /// Fills `completions` from its front with what has completed, each one once, and returns how many. With
  /// `wait` and something in flight it returns at least 1, blocking until then; else it does not block.
  virtual std::size_t reap(std::span<Completion> completions, bool wait) noexcept = 0;
};

/// The largest depth that io_uring accepts.
inline constexpr unsigned maximum_depth = 32768;

/// Throws Error of kind io, with a hint, where the kernel or a container forbids io_uring or has no room for
/// the ring; std::logic_error for a depth outside [1, maximum_depth].
std::unique_ptr<Ring> make_io_uring(unsigned depth);

}  // namespace spillway::aio
