#pragma once
// Gradients on their way from the device: device slot -> rounded for moving -> sum over micro-batches, where
// the optimizer finds it, with its squared norm (D5).
#include "../core/device.h"
#include "../cpu_adam/norm.h"
#include "../cpu_adam/planes.h"
#include "plan.h"

#include <array>
#include <cstdint>
#include <vector>

namespace spillway {

struct Context;

class GradientStream {
 public:
  /// Reserves "gradient slots", "gradient wire", "gradients", "gradient staging" and "norm sums".
  explicit GradientStream(const Context& context);

  void begin_step(int micro_batches);
  /// A zeroed device slot. std::logic_error naming the units whose gradients are held where none is free, and
  /// for a use that has been reduced micro_batches times already.
  float* open(int unit, int use);
  void reduce(int unit, int use);
  /// Everything has landed, what never came counts as zero, and the uses of tied units are added up. Returns
  /// the squared norm of the whole gradient.
  cpu_adam::SquaredNorm finish();

  /// The whole gradient of a unit, where the optimizer's tier says: valid from finish() to the next
  /// begin_step().
  cpu_adam::Gradient gradient(int unit) const;
  /// Copies elements [first, first + n) of the sum so far into host memory; waits for what is on its way.
  void read(int unit, std::int64_t first, std::int64_t n, float* destination);

 private:
  struct Slot {
    float* data = nullptr;
    int unit = -1;
    int use = 0;
    std::uint64_t buffer = 0;
  };
  struct Pair {  // a wire slot on the device and, where gradients are summed on the host, a staging slot there
    std::byte* wire = nullptr;
    std::byte* staging = nullptr;
    Event emptied;
  };
  struct UnitState {
    std::byte* planes = nullptr;
    GradientPlanes form;
    std::vector<int> reduced;  ///< micro-batches of each use
    cpu_adam::SquaredNorm norm;
    bool complete = false;  ///< uses added up and measured, or on its way there in the stream's order
    std::uint64_t buffer = 0;
  };

  std::byte* plane(const UnitState& state, int unit, int use) const;
  void complete(int unit);
  Stream& landing() const;

  const Context& context_;
  bool on_device_;  ///< the optimizer works on the device: gradients stay there
  int micro_batches_ = 1;
  Memory slot_memory_, wire_memory_, planes_memory_, staging_memory_, sums_memory_;
  std::vector<Slot> slots_;
  std::array<Pair, kStagingSlots> pairs_;
  std::size_t next_pair_ = 0;
  std::vector<UnitState> units_;
};

}  // namespace spillway
