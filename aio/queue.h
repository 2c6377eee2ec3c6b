#pragma once
// What the engine moves to and from NVMe goes through a queue: many transfers at once, of any length, each of
// their completions checked (D8).
#include "file.h"
#include "ring.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace spillway::aio {

/// Names one transfer of the queue that gave it.
struct Ticket {
  std::uint64_t number = 0;  ///< from 1, in the order of the calls
};

struct QueueCounters {
  std::int64_t read_bytes = 0;  ///< moved, each byte once, also of transfers that failed later
  std::int64_t written_bytes = 0;
  std::int64_t reads = 0;  ///< calls of read() that have landed without an error
  std::int64_t writes = 0;
  std::int64_t resubmissions = 0;  ///< operations started again because they moved nothing or not everything
};

/// A transfer is cut into blocks of this many bytes, so that one of a few MiB already keeps several operations
/// in flight. Measured at depth 16 on a virtual drive, 1 MiB writes 1.3 to 2.2 times as fast as 128 KiB, and 4
/// MiB only 1.1 to 1.25 times as fast as 1 MiB.
inline constexpr std::int64_t default_block_bytes = std::int64_t{1} << 20;

/// Reads and writes direct-I/O files. Blocks start in the order of the calls and complete in any order: two
/// transfers under way must not overlap, neither in a file nor in memory, unless both only read there.
/// Any number of transfers may be under way; what exceeds the ring's depth waits here and starts as entries
/// free, in any call of this class. The memory of a transfer must stay, and be left alone, until it has landed;
/// its file may be closed earlier.
///
/// Used by one thread at a time (a transfer may be cancelled by the kernel when the thread that started it
/// ends).
///
/// Each failed transfer is reported once, by the Error that wait() of its ticket or drain() throws: kind
/// resources for lack of space, else io; with operation, directory, offset, length (of the block that failed)
/// and errno. By then none of its blocks is in flight. A transfer that has landed costs no memory, a failed one
/// until it is reported.
class Queue {
 public:
  /// Over io_uring; the errors are those of make_io_uring.
  explicit Queue(unsigned depth, std::int64_t block_bytes = default_block_bytes);
  /// Over another ring (not null). block_bytes: a multiple of direct_io_alignment, at most
  /// maximum_operation_bytes; a file whose alignment is larger uses the next multiple of that.
  explicit Queue(std::unique_ptr<Ring> ring, std::int64_t block_bytes = default_block_bytes);
  /// Drops what has not started, waits for what has, and discards the errors.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Starts a transfer. offset, bytes and the address must be multiples of the file's alignment and the extent
  /// must lie inside the file, else std::logic_error and nothing has happened. No bytes: it has landed at once.
  Ticket read(const DirectFile& file, std::int64_t offset, std::byte* destination, std::int64_t bytes);
  Ticket write(const DirectFile& file, std::int64_t offset, const std::byte* source, std::int64_t bytes);

  /// Blocks until this transfer has landed, without waiting for later ones, and throws its Error. Returns at
  /// once for one that has landed and been reported. A ticket that this queue did not give is std::logic_error.
  void wait(Ticket ticket);

  /// Whether the transfer has landed or failed, without blocking. Throws nothing for a failed one: wait() does.
  bool done(Ticket ticket);

  /// Blocks until everything has landed, then throws the Error of the earliest failed ticket that is not
  /// reported yet. Those of further ones are left for wait() or the next drain().
  void drain();

  QueueCounters counters() const { return counters_; }
  /// Operations that may be in flight.
  unsigned depth() const { return ring_->depth(); }

 private:
  /// A transfer that has not landed.
  struct Transfer {
    std::uint64_t number = 0;
    std::shared_ptr<const DirectFile::Handle> file = {};
    Direction direction = Direction::read;
    std::int64_t offset = 0;      ///< of what has not started
    std::byte* memory = nullptr;  ///< likewise
    std::int64_t bytes = 0;       ///< likewise
    std::int64_t in_flight = 0;   ///< blocks
    std::exception_ptr error = {};
  };
  /// An operation in flight; its index is the tag.
  struct Block {
    Transfer* transfer = nullptr;
    Operation operation = {};
    int fruitless = 0;  ///< attempts since the last progress
    std::chrono::steady_clock::time_point fruitless_since = {};
  };

  Ticket begin(Direction direction, const DirectFile& file, std::int64_t offset, std::byte* memory,
               std::int64_t bytes);
  void fill();
  bool reap(bool wait);
  bool settle(const Completion& completion);
  bool resubmit(Block& block, int error_number);
  void fail(Block& block, int error_number, const char* message, const char* hint);
  void retire(std::uint64_t tag);
  void finish(Transfer& transfer);
  void check(Ticket ticket) const;

  std::unique_ptr<Ring> ring_;
  std::int64_t block_bytes_;
  std::uint64_t last_number_ = 0;
  std::unordered_map<std::uint64_t, Transfer> under_way_ = {};  ///< by ticket; nodes stay in place
  std::deque<Transfer*> waiting_ = {};                          ///< those with blocks that have not started
  std::map<std::uint64_t, std::exception_ptr> failed_ = {};     ///< by ticket; not reported yet
  std::vector<Block> blocks_ = {};                              ///< one for each entry of the ring
  std::vector<std::uint64_t> free_ = {};                        ///< tags
  std::vector<Operation> to_start_ = {};
  std::vector<Completion> completions_ = {};
  QueueCounters counters_ = {};
};

}  // namespace spillway::aio
