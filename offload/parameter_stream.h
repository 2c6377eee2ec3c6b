#pragma once
// Parameters on their way to the device: tier -> host slot -> device slot -> view.
#include "../core/device.h"
#include "plan.h"
#include "store.h"

#include <cstdint>
#include <vector>

namespace spillway {

struct Context;

/// Owns the high planes of all units, in their tier, and the slots in which they are seen by the device.
class ParameterStream {
 public:
  /// Reserves "parameters" in the tier, or "parameter slots" and "parameter staging". `swap` may be null unless
  /// the tier is NVMe, with the region of the parameters.
  ParameterStream(const Context& context, Swap* swap, Swap::Region region);

  struct View {
    const std::byte* data = nullptr;
    int slot = -1;  ///< -1: at home on the device
  };
  /// The compute stream's later work sees the unit's current parameters. std::logic_error naming the units held
  /// where no slot is free.
  View gather(int unit);
  void release(int unit, int slot) noexcept;
  /// The unit's parameters have been changed in the store: what slots hold of it is stale.
  void invalidate(int unit);
  /// Names of the units of which there are views, separated by commas; empty where there is none.
  std::string held() const;

  Store& store() { return store_; }
  /// Bytes from the store's beginning to a unit's high plane.
  std::int64_t offset(int unit) const { return offsets_[static_cast<std::size_t>(unit)]; }

 private:
  struct Slot {
    std::byte* data = nullptr;
    int unit = -1;  ///< whose parameters it holds, -1: none
    int views = 0;
    Event released;  ///< on the compute stream: after it, the contents may be overwritten
    std::uint64_t released_at = 0;
    std::uint64_t buffer = 0;
  };
  struct Staging {
    std::byte* data = nullptr;
    Event emptied;
  };

  void fill(Slot& slot, int unit);

  const Context& context_;
  std::vector<std::int64_t> offsets_;
  Store store_;
  Memory slot_memory_;
  Memory staging_memory_;
  SwapMemory staging_registered_;
  std::vector<Slot> slots_;
  std::vector<Staging> staging_;
  std::size_t next_staging_ = 0;
  Swap* swap_;
  std::uint64_t releases_ = 0;
  std::vector<int> views_;  ///< of each unit
};

}  // namespace spillway
