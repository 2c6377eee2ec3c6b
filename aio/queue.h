#pragma once
// What the engine moves to and from NVMe goes through a queue: many transfers at once, of any length, each of
// their completions checked (D8).
#include "faults.h"
#include "ring.h"
#include "volume.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

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
  std::int64_t copied_bytes = 0;   ///< of those bytes, what passed through a copy because it was not aligned
};

/// A transfer is cut into blocks of this many bytes, so that one of a few MiB already keeps several operations
/// in flight. Measured at depth 16 on a virtual drive, 1 MiB writes 1.3 to 2.2 times as fast as 128 KiB, and 4
/// MiB only 1.1 to 1.25 times as fast as 1 MiB.
inline constexpr std::int64_t default_block_bytes = std::int64_t{1} << 20;

/// A block that has landed, for who measures.
struct BlockTiming {
  Direction direction = Direction::read;
  std::int64_t bytes = 0;
  double seconds = 0;  ///< from the start of its operation to its completion
};

/// A transfer that has landed without an error.
struct TransferTiming {
  Direction direction = Direction::read;
  std::uint64_t label = 0;  ///< what the caller gave
  std::int64_t bytes = 0;
  double seconds = 0;  ///< from the call of read() or write() to its last completion
};

struct QueueOptions {
  RingOptions ring = {};  ///< its depth is the operations in flight
  /// A multiple of direct_io_alignment, at most maximum_operation_bytes; a volume whose alignment is larger
  /// uses the next multiple of that.
  std::int64_t block_bytes = default_block_bytes;
  Faults faults = {};
  /// Called for every block that has landed, on the queue's thread. Must not throw or call the queue.
  std::function<void(const BlockTiming&)> on_block = {};
  /// The same for every transfer.
  std::function<void(const TransferTiming&)> on_transfer = {};
};

/// Reads and writes volumes. A thread of its own keeps the drive busy: it starts the blocks of all transfers
/// one after another, those of reads and writes by turns, as entries of the ring free, whatever the callers do
/// meanwhile. Blocks complete in any order: two transfers under way must not overlap, neither in a volume nor
/// in memory, unless both only read there. The memory of a transfer must stay, and be left alone, until it has
/// landed (of a read from a volume with checksums: until it was waited for); copies of its volume may go
/// earlier.
///
/// All members may be called from several threads. Two queues may serve one volume, but not two writes that
/// cover one aligned piece in part: each queue keeps only its own apart. A child that a process forks must
/// neither use a queue nor end it: its thread is not there.
///
/// Each failed transfer is reported once, by the Error that wait() of its ticket or drain() throws: kind
/// resources for lack of space, else io; with operation, directory, offset (in the file there), length (of the
/// block that failed) and errno. By then none of its blocks is in flight. A transfer that has landed costs no
/// memory, but for a read to be held against checksums, and a failed one, until they are waited for.
class Queue {
 public:
  /// The errors are those of make_ring, and std::logic_error for a block size that is not as above.
  explicit Queue(const QueueOptions& options = {});
  /// Over another ring, which `make` makes on the queue's thread; options.ring is not looked at.
  Queue(std::function<std::unique_ptr<Ring>()> make, const QueueOptions& options);
  /// Drops what has not started, cancels what has, waits until nothing is in flight, and discards the errors.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Starts a transfer. The extent must lie inside the volume, else std::logic_error and nothing has happened.
  /// Offset, length and address may be anything; where they are no multiples of the volume's alignments, a
  /// block passes through a copy, and of a write that covers an aligned piece in part, the rest is read first.
  /// (Such writes may share a piece.) No bytes: it has landed at once.
  /// `label` is for on_transfer.
  Ticket read(const Volume& volume, std::int64_t offset, std::byte* destination, std::int64_t bytes,
              std::uint64_t label = 0);
  Ticket write(const Volume& volume, std::int64_t offset, const std::byte* source, std::int64_t bytes,
               std::uint64_t label = 0);

  /// Blocks until this transfer has landed, without waiting for later ones, and throws its Error. Returns at
  /// once for one that has landed and been reported. A ticket that this queue did not give is std::logic_error.
  /// A read from a volume with checksums is held against them here, on the calling thread: Error (io), with
  /// path, offset and both values.
  void wait(Ticket ticket);

  /// Whether the transfer has landed or failed, without blocking. Throws nothing for a failed one: wait() does.
  bool done(Ticket ticket);

  /// Blocks until everything that was started before has landed, then throws the Error of the earliest failed
  /// ticket that is not reported yet. Those of further ones are left for wait() or the next drain().
  void drain();

  /// Makes transfers of this volume, or in this memory, cheaper from now on. Returns whether it does; all goes
  /// on where not: threads have nothing to register, a ring has maximum_slots of each kind, and where the
  /// kernel refuses, report() says why. Memory is pinned, and a volume's files stay open, until they are
  /// unregistered or the queue ends; no transfer may use them at that moment. Volumes are counted: the last
  /// call unregisters. Memory goes with the first call that holds all of a piece.
  bool register_volume(const Volume& volume);
  void unregister_volume(const Volume& volume);
  bool register_memory(std::span<std::byte> memory);
  void unregister_memory(std::span<std::byte> memory);

  QueueCounters counters() const;
  RingReport report() const;
  /// Operations that may be in flight.
  unsigned depth() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace spillway::aio
