#pragma once
// Activations on their way out of the device's memory and back: device -> slot in host memory, or device ->
// staging in host memory -> NVMe, in the order of the copy streams.
#include "../core/device.h"
#include "plan.h"
#include "store.h"

#include <cstdint>
#include <vector>

namespace spillway {

struct Context;

/// Used by the engine's calling thread. Errors of transfers are thrown by the call that comes upon them, or
/// become the device's.
class ActivationStream {
 public:
  /// Reserves "activations" and "activation staging". The swap outlives it.
  ActivationStream(const Context& context, Swap* swap, Swap::Region region);
  ~ActivationStream();  ///< waits for what is under way, never throws
  ActivationStream(const ActivationStream&) = delete;
  ActivationStream& operator=(const ActivationStream&) = delete;

  /// See Engine. Blocks where no staging is free before something written or read has landed.
  Event save(int slot, const void* source);
  /// Blocks until what comes from NVMe has landed.
  Event load(int slot, void* destination, const Event& free);
  /// Never blocks.
  void prefetch(int slot);

 private:
  struct Slot {
    Tier tier = Tier::host;
    std::int64_t bytes = 0;
    std::int64_t offset = 0;  ///< in host memory or the region
    bool is_saved = false;
    Event saved;   ///< copied down, on NVMe into staging
    Event loaded;  ///< the last copy up
    std::uint64_t buffer = 0;
  };
  /// A place in host memory that holds a slot of NVMe: it keeps what it holds, and is where a load finds it,
  /// until another slot takes it.
  struct Staging {
    std::byte* data = nullptr;
    int slot = -1;           ///< -1: nothing
    bool is_wanted = false;  ///< will be loaded soon
    bool is_used = false;    ///< has been loaded since
    std::uint64_t turn = 0;  ///< the larger the later it was filled or loaded
    Event filled;            ///< copied down, and the write begun
    Event emptied;           ///< the last copy up
    aio::Ticket transfer;    ///< the write (once `filled` has passed) or read that may be under way; 0: none
    Lane lane = Lane::write;
  };

  Slot& slot(int index, const char* call);
  Staging* holding(int slot);
  /// Whether all that was begun with it is done, without blocking.
  bool is_idle(const Staging& staging) const;
  /// Blocks until then.
  void settle(Staging& staging);
  /// The one whose content will be missed least, with what it held gone to NVMe; null where `may_wait` is not
  /// given and none is idle and unwanted.
  Staging* take(int slot, bool may_wait);
  void start_read(Staging& staging, int slot);

  const Context& context_;
  Swap* swap_;
  Memory memory_, staging_memory_;
  Store store_;  ///< the region on NVMe
  SwapMemory registered_;
  std::vector<Slot> slots_;
  std::vector<Staging> staging_;
  std::uint64_t turns_ = 0;
};

}  // namespace spillway
