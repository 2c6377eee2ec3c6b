#pragma once
// Optimizer state on its way through the update: read chunk -> Adam -> write chunk, over a ring of slots.
#include "../core/update.h"
#include "../cpu_adam/planes.h"
#include "plan.h"
#include "store.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace spillway {

struct Context;
class GradientStream;
class ParameterStream;

class OptimizerStream {
 public:
  /// Reserves "optimizer records" in their tier and the slots through which chunks pass.
  OptimizerStream(const Context& context, ParameterStream& parameters, Swap* swap, Swap::Region region);

  /// Updates every trainable parameter from its gradient in step number `step` (from 1): coefficients for each
  /// parameter group. Returns true where a weight or moment became non-finite.
  bool update(const GradientStream& gradients, std::span<const UpdateCoefficients> coefficients,
              std::int64_t step);

  /// What a visitor sees of a chunk, in host memory: elements [first, first + elements) of the unit, the
  /// leading `state` ones with optimizer state.
  struct Chunk {
    int unit = 0;
    std::int64_t first = 0, elements = 0, state = 0;
    std::byte* high = nullptr;
    std::byte* record = nullptr;
    /// Its planes, for element `first` on; only the leading `state` elements have moments (and low).
    cpu_adam::Planes planes(const StateSizes& sizes) const;
  };
  using Visit = std::function<void(const Chunk&)>;
  /// Brings the chunks that hold elements [first, last) of a unit to the host, calls visit for each in
  /// ascending order on the calling thread, and takes them home again where they were changed.
  void visit(int unit, std::int64_t first, std::int64_t last, bool changes, const Visit& visit);

 private:
  enum class Site { host, device };
  struct Slot {
    std::byte* host_high = nullptr;
    std::byte* host_record = nullptr;
    std::byte* device_high = nullptr;
    Chunk chunk;
    std::vector<aio::Ticket> reads, writes;
  };
  struct Where {
    std::int64_t high_offset, high_bytes, record_offset, record_bytes;
  };

  void touch_records();
  void pass(Site site, const std::vector<Chunk>& chunks, bool changes, const Visit& body);
  void start(Site site, Slot& slot, const Chunk& chunk);
  void bring(Site site, Slot& slot);
  void take_home(Site site, Slot& slot);
  void wait(std::vector<aio::Ticket>& tickets, Lane lane, const Chunk& chunk, std::int64_t bytes);
  Where where(const Chunk& chunk) const;
  void append_chunks(std::vector<Chunk>& chunks, int unit, std::int64_t first, std::int64_t last) const;
  void trace_move(const Chunk& chunk, Site site, bool home) const;
  void copy(Lane lane, void* destination, const void* source, std::int64_t bytes, std::string_view name,
            int unit);
  bool update_chunk(const Chunk& chunk, const GradientStream& gradients,
                    std::span<const UpdateCoefficients> coefficients, std::int64_t step);

  const Context& context_;
  ParameterStream& parameters_;
  Swap* swap_;
  std::vector<std::int64_t> record_offsets_;
  std::vector<std::uint64_t> record_buffers_,
      weight_buffers_;  ///< a number in the trace for each unit's planes
  Store records_;
  Memory host_high_, host_records_, device_high_;
  SwapMemory high_registered_, records_registered_;
  std::vector<Slot> slots_;
};

}  // namespace spillway
