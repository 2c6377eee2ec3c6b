#pragma once
// The seam between a Queue, which splits, checks and repeats transfers, and what carries single operations out:
// io_uring, a pool of threads, or a wrapper that injects faults.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::aio {

enum class Direction : std::uint8_t { read, write };

/// What carries operations out.
enum class IoEngine : std::uint8_t {
  automatic,  ///< io_uring, or threads where that is not allowed
  io_uring,
  posix,  ///< a pool of threads in pread and pwrite
};
/// "auto", "io_uring", "posix".
std::string_view name_of(IoEngine engine);

/// One read or write of a contiguous extent.
struct Operation {
  Direction direction = Direction::read;
  int descriptor = -1;
  std::int64_t offset = 0;      ///< bytes from the file's start
  std::byte* memory = nullptr;  ///< only read from when direction is write
  std::int64_t bytes = 0;       ///< 1 to maximum_operation_bytes
  std::uint64_t tag = 0;        ///< the caller's own; returned in the completion
  int file_slot = -1;           ///< of register_file() with the same descriptor; -1: not registered
  int memory_slot = -1;         ///< of register_memory() with memory that holds all of this; -1: not registered
};

/// The kernel moves at most 2 GiB less a page at once, and registers at most 1 GiB of memory in one piece.
inline constexpr std::int64_t maximum_operation_bytes = std::int64_t{1} << 30;

struct Completion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  ///< bytes moved (they may be fewer than asked for), or -errno
};

/// What a ring turned out to be, after all that was tried.
struct RingReport {
  IoEngine engine = IoEngine::io_uring;  ///< never automatic
  bool single_issuer = false;            ///< IORING_SETUP_SINGLE_ISSUER: the kernel takes fewer locks
  bool deferred_task_run = false;        ///< IORING_SETUP_DEFER_TASKRUN: completions do not interrupt
  bool sqpoll = false;                   ///< a thread of the kernel takes submissions without a system call
  bool iopoll = false;                   ///< completions are polled for, without interrupts of the drive
  bool registered_files = false;         ///< some were, and none was refused
  bool registered_memory = false;        ///< likewise
  /// What is not as it was asked for or could be, and why: one line each, each once.
  std::vector<std::string> notes;
};

/// Carries operations out, in any order. Made and used by one thread, but for wake(). Every operation that was
/// started gets exactly one completion, whatever fails underneath: failures are results, not exceptions.
class Ring {
 public:
  Ring() = default;
  /// Only when nothing is in flight: a Queue sees to that.
  virtual ~Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// How many operations may be in flight (started and not yet reaped).
  virtual unsigned depth() const noexcept = 0;

  /// Starts operations, as many as keep within depth(). The memory must stay until their completions are
  /// reaped.
  virtual void start(std::span<const Operation> operations) noexcept = 0;

  /// Fills `completions` from its front with what has completed, each one once, and returns how many. With
  /// `wait` and something in flight it blocks until at least one has completed or wake() is called; else it
  /// does not block.
  virtual std::size_t reap(std::span<Completion> completions, bool wait) noexcept = 0;

  /// From any thread, as long as the ring lives: the reap() that waits now, or else the next one that would
  /// wait, returns, perhaps with nothing. Several calls may count as one. A ring that polls (iopoll) may return
  /// only with the next completion.
  virtual void wake() noexcept = 0;

  /// Asks that what is in flight ends soon. Each operation still gets its completion: -ECANCELED where it did
  /// not run.
  virtual void cancel() noexcept = 0;

  /// Makes an operation with this slot cheaper. Slots are in [0, maximum_slots); a slot that is in use is
  /// replaced, and emptied by descriptor -1 or an empty span, which keeps nothing open or pinned any longer;
  /// no operation in flight uses it then. Returns 0 or an errno; the caller then does without, and the reason
  /// is in the report.
  virtual int register_file(int slot, int descriptor) noexcept = 0;
  virtual int register_memory(int slot, std::span<std::byte> memory) noexcept = 0;

  virtual RingReport report() const = 0;
};

inline constexpr int maximum_slots = 1024;

/// The largest depth that io_uring accepts.
inline constexpr unsigned maximum_depth = 32768;

struct RingOptions {
  unsigned depth = 32;  ///< 1 to maximum_depth
  IoEngine engine = IoEngine::automatic;
  bool sqpoll = false;  ///< where the kernel has it; else the report says why not
  bool iopoll = false;  ///< likewise; for files opened for direct I/O on drives with queues that can be polled
};

/// With engine io_uring, throws Error of kind io, with a hint, where the kernel or a container forbids it or
/// has no room for the ring; with automatic, threads serve then and the report says why. std::logic_error for a
/// depth out of range.
std::unique_ptr<Ring> make_ring(const RingOptions& options);

/// The two engines on their own.
std::unique_ptr<Ring> make_io_uring(const RingOptions& options);
/// Threads are started as operations need them, at most `depth` and at most 64; further operations wait.
/// `notes` begin its report's.
std::unique_ptr<Ring> make_posix_ring(unsigned depth, std::vector<std::string> notes = {});

}  // namespace spillway::aio
