#pragma once
// Parameters on their way to the device: tier -> host slot -> device slot -> view. What comes next is known
// from the schedule: it says what is read ahead, and which slot is emptied for it.
#include "../core/device.h"
#include "plan.h"
#include "schedule.h"
#include "store.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace spillway {

struct Context;

/// Owns the high planes of all units, in their tier, and the slots in which they are seen by the device. Used
/// by the engine's calling thread.
class ParameterStream {
 public:
  /// Reserves "parameters" in the tier, or "parameter slots" and "parameter staging". `swap` may be null unless
  /// the tier is NVMe, with the region of the parameters.
  ParameterStream(const Context& context, Swap* swap, Swap::Region region);
  ~ParameterStream();  ///< waits for its reads and copies
  ParameterStream(const ParameterStream&) = delete;
  ParameterStream& operator=(const ParameterStream&) = delete;

  struct View {
    const std::byte* data = nullptr;
    int slot = -1;  ///< -1: at home on the device
  };
  /// Whether what the store holds of a unit is what the coming use of it has to see: no update of it is under
  /// way or to be waited for. Only such units are read ahead.
  using IsCurrent = std::function<bool(int unit)>;

  /// The compute stream's later work sees the unit's current parameters, which must be in the store.
  /// std::logic_error, naming the units held, where it would be one more than the layout's live_units. Error
  /// (io) where it cannot be read. Inside a step, what comes after it is read ahead.
  View gather(int unit, bool in_step, const IsCurrent& is_current);
  void release(int unit, int slot) noexcept;
  /// The unit's parameters will be changed in the store when the compute stream is through with what it was
  /// given for them: what slots hold of it is stale. Waits for reads that are under way; throws their Error.
  void invalidate(int unit);
  /// Starts what can be read for this iteration without having to read anything more for it.
  void prefetch(const IsCurrent& is_current);
  /// What was gathered inside the step is what the next iteration is expected to gather.
  void end_iteration();

  /// Whether the open iteration may gather the unit once more: so the record says, or there is none.
  bool is_expected_again(int unit) const { return schedule_.is_expected_again(unit); }
  /// All units in the order of their next gather in the coming iteration, then those that are not gathered;
  /// before an iteration has ended, in the layout's order. Valid until end_iteration().
  const std::vector<int>& next_use_order() const { return schedule_.order(); }
  /// Names of the units of which there are views, separated by commas; empty where there is none.
  std::string held() const;

  std::int64_t reads() const { return reads_; }                       ///< units read from NVMe
  std::int64_t copies() const { return copies_; }                     ///< units copied to the device
  std::int64_t departures() const { return schedule_.departures(); }  ///< gathers that were not as recorded

  Store& store() { return store_; }
  /// Bytes from the store's beginning to a unit's high plane.
  std::int64_t offset(int unit) const { return offsets_[static_cast<std::size_t>(unit)]; }

 private:
  /// On the device.
  struct Slot {
    std::byte* data = nullptr;
    int unit = -1;  ///< whose parameters it holds, -1: none
    int views = 0;
    Event filled;    ///< on the copy stream
    Event released;  ///< on the compute stream: after it, the contents may be overwritten
    std::uint64_t released_at = 0;
    std::uint64_t buffer = 0;
  };
  /// In host memory, between NVMe and the device.
  struct Staging {
    std::byte* data = nullptr;
    int unit = -1;            ///< whose parameters it holds or is being filled with, -1: none
    bool is_reading = false;  ///< and nobody has waited for it yet
    aio::Ticket ticket;
    Event emptied;  ///< on the copy stream: after it, the contents may be overwritten
    std::uint64_t used_at = 0;
  };

  std::int64_t bytes(int unit) const;
  bool is_changing(int unit) const { return changes_[static_cast<std::size_t>(unit)] != 0; }
  std::string too_many(int unit) const;
  int device_slot(int unit) const;
  void follow(bool as_recorded, bool was_missing);
  const Fills& fills();
  void fill(Slot& slot, int unit, bool in_step, const IsCurrent& is_current);
  Staging& stage(int unit, bool in_step);
  void read_ahead(const IsCurrent& is_current, const Staging* needed);
  void start_read(Staging& staging, int unit);
  void finish_read(Staging& staging);

  const Context& context_;
  std::vector<std::int64_t> offsets_;
  std::vector<char> changes_;  ///< of each unit: an update makes copies of it stale
  Store store_;
  Memory slot_memory_;
  Memory staging_memory_;
  SwapMemory staging_registered_;
  std::vector<Slot> slots_;
  std::vector<Staging> staging_;
  Swap* swap_;
  std::vector<int> views_;  ///< of each unit
  int held_ = 0;            ///< units of which there are views

  Schedule schedule_;
  Fills fills_;                 ///< what the device slots will have to be filled with
  std::int64_t next_fill_ = 0;  ///< number of the one that comes next
  bool is_foreseen_ = false;    ///< these two are those of the present state
  std::uint64_t moments_ = 0;   ///< counts, to say what came before what
  std::int64_t reads_ = 0, copies_ = 0;
};

}  // namespace spillway
