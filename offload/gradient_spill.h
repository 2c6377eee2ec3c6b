#pragma once
// Gradients that host memory cannot hold: they land on NVMe in pieces of a chunk, and the update reads them
// there.
#include "../core/budget.h"
#include "../core/device.h"
#include "plan.h"
#include "store.h"

#include <cstdint>
#include <vector>

namespace spillway {

struct Context;

/// Owns the region of all gradients, in each generation one plane for each use of a unit, and the slots through
/// which pieces get there. What lands a gradient is given to the copy_down stream by the engine's calling
/// thread, and done in that stream's order and on its thread, which alone uses the slots. Errors of transfers
/// become the device's there, and are thrown to the caller by what the update calls.
class GradientSpill {
 public:
  /// Reserves "gradient staging". Throws Error (resources).
  GradientSpill(const Context& context, Swap& swap, Swap::Region region);
  ~GradientSpill();  ///< the streams are idle: waits for what is under way, whatever becomes of it
  GradientSpill(const GradientSpill&) = delete;
  GradientSpill& operator=(const GradientSpill&) = delete;

  /// A plane of a generation.
  struct Plane {
    int unit = 0, use = 0, generation = 0;
  };
  /// Lands what is at `source` on the device, of the type in which gradients move (fp32 where they have been
  /// summed on the device); nullptr: zeros. Where micro-batches are added up here, all but the first are added
  /// to what has landed before. `square_sums`, if not null, gets the sums of squares of the result, of all
  /// blocks (cpu_adam::norm_blocks).
  void land(const Plane& plane, const std::byte* source, bool first, double* square_sums);
  /// Adds up what has landed of these uses (ascending, one at least) in the plane of use 0, and measures it.
  void add_uses(int unit, int generation, std::vector<int> uses, double* square_sums);
  /// Adds elements [first, first + n) of what has landed to `sums`; the caller waits for the stream.
  void read(const Plane& plane, std::int64_t first, std::int64_t n, float* sums);

  // For the update, of a unit that has landed (the stream's event has passed): pieces begin at multiples of a
  // chunk's elements.
  /// Without blocking: whether the piece can be read.
  bool is_written(int unit, int generation, std::int64_t first);
  /// Waits until it can, and starts it. Throws Error (io, resources) where it could not be written.
  aio::Ticket start_read(int unit, int generation, std::int64_t first, std::byte* destination);
  /// For the same, in the region.
  struct Extent {
    Store* store = nullptr;
    std::int64_t offset = 0, bytes = 0;
  };
  Extent extent(const Plane& plane, std::int64_t first);

 private:
  struct Slot {
    std::byte* staged = nullptr;  ///< as it comes from the device
    std::byte* sum = nullptr;     ///< fp32, where anything is added up here
    aio::Ticket read = {}, write = {};
  };
  struct UnitState {
    GradientPlanes form;
    std::int64_t offset = 0;          ///< in a generation
    std::int64_t plane_bytes = 0;     ///< from one use to the next
    std::vector<aio::Ticket> writes;  ///< the last one of each piece, of each use and generation
  };

  std::int64_t pieces(int unit) const;
  std::int64_t elements(int unit, std::int64_t first) const;
  aio::Ticket& write_of(const Plane& plane, std::int64_t first);
  bool adds_up(const UnitState& state) const { return state.form.is_sum && !sums_in_rows_; }
  void wait(aio::Ticket& ticket);
  void begin(Slot& slot, const Plane& plane, std::int64_t first, bool reads);
  void finish(Slot& slot, const Plane& plane, std::int64_t first, bool is_first, double* square_sums);
  void fetch(Slot& slot, std::byte* to, const Plane& plane, std::int64_t first);

  const Context& context_;
  Swap& swap_;
  Store store_;
  bool sums_in_rows_;
  std::int64_t generation_bytes_ = 0;
  Memory memory_;
  SwapMemory registered_;
  std::vector<Slot> slots_;
  std::vector<UnitState> units_;
};

}  // namespace spillway
