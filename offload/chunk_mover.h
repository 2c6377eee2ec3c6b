#pragma once
// Chunks of optimizer state between where they are at home and where Adam works on them.
#include "../core/budget.h"
#include "../core/device.h"
#include "../cpu_adam/planes.h"
#include "gradient_spill.h"
#include "plan.h"
#include "store.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace spillway {

struct Context;
class ParameterStream;

/// Owns the records, in their tier, and the slots through which chunks pass. One thread at a time.
class ChunkMover {
 public:
  /// Reserves "optimizer records", "resident records", and the slots. Throws Error (resources).
  ChunkMover(const Context& context, ParameterStream& parameters, Swap* swap, Swap::Region region);
  ~ChunkMover() { give_up(); }
  ChunkMover(const ChunkMover&) = delete;
  ChunkMover& operator=(const ChunkMover&) = delete;

  /// Where the work is done, to which a chunk is brought.
  enum class Site { host, device };

  /// Elements [first, first + elements) of a unit, the leading `state` ones with optimizer state. The planes
  /// are there once it has been brought.
  struct Chunk {
    int unit = 0;
    std::int64_t first = 0, elements = 0, state = 0;
    std::byte* high = nullptr;
    std::byte* record = nullptr;
    /// Its planes, for element `first` on; only the leading `state` elements have moments (and low).
    cpu_adam::Planes planes(const StateSizes& sizes) const;
    bool is_same(const Chunk& other) const { return unit == other.unit && first == other.first; }
  };
  struct Slot {
    Chunk chunk;
    Site site = Site::host;
    std::byte* host_high = nullptr;
    std::byte* host_record = nullptr;
    std::byte* device_high = nullptr;
    std::byte* host_gradient = nullptr;  ///< where gradients lie on NVMe
    bool has_gradient = false;           ///< that of an update is there, or among the reads
    std::vector<aio::Ticket> reads, writes;
    aio::Ticket high_write = {};  ///< of the writes, that of the parameters; 0: none
    Event arrived;                ///< copies on their way in
    Event gone;                   ///< copies on their way home
  };
  std::vector<Slot>& slots() { return slots_; }

  /// The chunks that hold elements [first, last) of a unit, in ascending order.
  std::vector<Chunk> chunks(int unit, std::int64_t first, std::int64_t last) const;

  /// Gives the slot, which is free, to a chunk, and starts its reads. No slot may still be taking it home.
  void start(Site site, Slot& slot, const Chunk& chunk);
  /// Blocks until the chunk is there; on the device, until the compute stream's later work finds it there.
  void bring(Slot& slot);
  /// In the place of bring(): the slot is free, and the chunk unchanged.
  void drop(Slot& slot);
  /// The opposite of start() and bring(): starts what takes it home. The work on it must be done, or on its way
  /// in the compute stream's order.
  void take_home(Slot& slot);
  /// Without blocking: whether nothing of it is under way.
  bool is_home(const Slot& slot) const;
  /// Blocks until then: the slot is free.
  void retire(Slot& slot);
  /// Waits for all that is under way, whatever becomes of it.
  void give_up() noexcept;

  /// What one step's update moves on NVMe: for each chunk the extents that are read and then written.
  /// `gradients`: where they lie on NVMe; else null. They are written once and read once too, if not in one go.
  using Extent = GradientSpill::Extent;
  std::vector<Extent> extents(GradientSpill* gradients);

 private:
  /// Where a chunk is at home.
  struct Home {
    std::int64_t high_offset = 0, high_bytes = 0;
    std::byte* record = nullptr;     ///< in host or device memory; null: on NVMe, or there is none
    std::int64_t record_offset = 0;  ///< in records_
    std::int64_t record_bytes = 0;
  };
  const Home& home(const Chunk& chunk) const;
  void find_homes(Swap* swap, Swap::Region region);
  void touch_records();
  bool is_read(const Chunk& chunk) const;
  void wait(std::vector<aio::Ticket>& tickets, Lane lane, int unit);
  void wait(Event& event, Lane lane, int unit);
  void trace_move(const Chunk& chunk, Site site, bool home) const;

  const Context& context_;
  ParameterStream& parameters_;
  Swap* swap_;
  std::vector<std::vector<Home>> homes_;  ///< of each unit's chunks
  std::optional<Store> records_;
  Memory resident_, host_high_, host_records_, host_gradients_, device_high_;
  SwapMemory high_registered_, records_registered_, gradients_registered_;
  std::vector<std::uint64_t> record_buffers_, weight_buffers_;  ///< numbers in the trace, for each unit
  std::vector<Slot> slots_;
};

}  // namespace spillway
