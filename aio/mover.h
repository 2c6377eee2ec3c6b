#pragma once
// What the thread of a Queue does: cuts transfers into blocks, starts them on a ring, and settles each
// completion.
#include "queue.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace spillway::aio {

/// One call of Queue::read or write. offset, memory and bytes are of what has not started.
struct Transfer {
  std::uint64_t number = 0;
  Volume volume;
  Direction direction = Direction::read;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  std::int64_t first_offset = 0, all_bytes = 0;  ///< as it was called
  std::int64_t in_flight = 0;                    ///< blocks
  std::exception_ptr error = {};
  std::uint64_t label = 0;
  std::chrono::steady_clock::time_point called = {};
  std::size_t place = 0;  ///< the mover's own
};

/// What a write that has not landed may have left on the drive is not known.
void forget_checksums(const Transfer& transfer);

/// Everything here happens on one thread, and on that of the ring.
class Mover {
 public:
  Mover(std::unique_ptr<Ring> ring, const QueueOptions& options);
  /// Drops what has not started, cancels what has, and waits for it.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Not empty, inside its volume.
  void add(std::unique_ptr<Transfer> transfer);
  /// Starts blocks while entries are free: reads and writes by turns, each kind in the order it was added.
  void start();
  /// Settles what has completed; with `wait` and something in flight, blocks until there is something or the
  /// ring is woken. Pauses where everything that came back was in vain.
  void settle(bool wait);

  bool is_idle() const { return free_.size() == blocks_.size() && to_start_.empty() && !has_waiting(); }
  /// Those that have landed or failed since the last call.
  std::vector<std::unique_ptr<Transfer>> take_finished() { return std::exchange(finished_, {}); }
  const QueueCounters& counters() const { return counters_; }
  Ring& ring() { return *ring_; }

  bool register_volume(const Volume& volume);
  void unregister_volume(const Volume& volume);
  bool register_memory(std::span<std::byte> memory);
  void unregister_memory(std::span<std::byte> memory);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  enum class Step {
    move,   ///< between the drive and where the bytes belong, or to or from the copy
    patch,  ///< reads what surrounds the bytes that a write covers of an aligned piece
  };
  /// An operation in flight, or about to be; its index is the tag.
  struct Block {
    Transfer* transfer = nullptr;
    Operation operation = {};
    Step step = Step::move;
    std::byte* user = nullptr;    ///< the caller's memory, where the block passes through the copy; else null
    std::int64_t skip = 0;        ///< from the copy's begin to the caller's first byte
    std::int64_t user_bytes = 0;  ///< the caller's
    std::int64_t piece = -1;      ///< in the file: of the aligned piece that a write is patched into; else -1
    int fruitless = 0;            ///< attempts since the last progress
    std::chrono::steady_clock::time_point fruitless_since = {};
    std::chrono::steady_clock::time_point started = {};
    std::unique_ptr<std::byte[], Free> copy = {};
    std::int64_t copy_bytes = 0;
  };
  /// A share of the address space that the ring knows by a number.
  struct RegisteredMemory {
    std::byte* begin = nullptr;
    std::int64_t bytes = 0;
    int slot = -1;
  };
  struct RegisteredFile {
    std::shared_ptr<const File::Handle> file;
    int slot = -1;
    int uses = 0;
  };
  using Piece = std::pair<int, std::int64_t>;  ///< descriptor, offset

  bool has_waiting() const { return !waiting_[0].empty() || !waiting_[1].empty(); }
  bool begin_block(std::deque<Transfer*>& row);
  bool reserve_copy(Block& block, std::int64_t bytes, std::int64_t alignment);
  bool settle_one(const Completion& completion);
  bool resubmit(Block& block, int error_number);
  bool finish_block(std::uint64_t tag);
  void fail(Block& block, int error_number, const char* message, const std::string& hint);
  void fail_transfer(Transfer& transfer, std::exception_ptr error);
  void retire(std::uint64_t tag);
  void finish(Transfer& transfer);
  void count(Direction direction, std::int64_t bytes);
  int slot_of(const File& file) const;
  int slot_of(const std::byte* memory, std::int64_t bytes) const;
  static int take_slot(std::vector<bool>& used);
  void drop_file(const File& file);

  std::unique_ptr<Ring> ring_;
  std::int64_t block_bytes_;
  std::function<void(const BlockTiming&)> on_block_;
  std::function<void(const TransferTiming&)> on_transfer_;
  std::vector<std::unique_ptr<Transfer>> transfers_ = {};  ///< all that have not finished
  std::deque<Transfer*> waiting_[2] = {};                  ///< by direction: with blocks that have not started
  int turn_ = 0;
  std::vector<Block> blocks_ = {};  ///< one for each entry of the ring
  std::vector<std::uint64_t> free_ = {};
  std::size_t in_flight_ = 0;  ///< started on the ring and not reaped
  std::vector<Operation> to_start_ = {};
  std::vector<Completion> completions_ = {};
  std::set<Piece> patched_ = {};  ///< pieces that a write is being patched into
  std::vector<RegisteredFile> files_ = {};
  std::vector<RegisteredMemory> memory_ = {};  ///< ascending
  std::vector<bool> file_slots_ = {}, memory_slots_ = {};
  std::vector<std::unique_ptr<Transfer>> finished_ = {};
  QueueCounters counters_ = {};
};

}  // namespace spillway::aio
