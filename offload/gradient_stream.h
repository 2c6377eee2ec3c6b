#pragma once
// Gradients on their way from the device: device slot -> rounded for moving -> sum over micro-batches, where
// the optimizer finds it (in host memory, or on NVMe where that cannot hold them), with its squared norm (D5).
#include "../core/device.h"
#include "../cpu_adam/norm.h"
#include "../cpu_adam/planes.h"
#include "gradient_spill.h"
#include "plan.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace spillway {

struct Context;
struct Step;

class GradientStream {
 public:
  /// Reserves "gradient slots", "gradient wire", "gradient sums", "gradients", "gradient staging" and "norm
  /// sums". `swap` (which outlives it) and `region` matter where gradients lie on NVMe.
  GradientStream(const Context& context, Swap* swap, Swap::Region region);

  /// `generation`, 0 or 1 (which exists with delayed_update only), says in which planes the step's gradients
  /// land.
  void begin_step(int micro_batches, int generation);
  /// A zeroed device slot. std::logic_error naming the units whose gradients are held where none is free, and
  /// for a use that has been reduced micro_batches times already.
  float* open(int unit, int use);
  /// Hands the slot's gradient over. The planes that it lands in must no longer be needed (is_first says when
  /// to look). Returns whether that was the unit's last one of this step: landed() is its event then.
  bool reduce(int unit, int use);
  /// Nothing of the unit has been reduced in this step.
  bool is_first(int unit) const;
  bool is_complete(int unit) const { return units_[static_cast<std::size_t>(unit)].complete; }
  /// Passes when the gradient of a complete unit has landed.
  Event landed(int unit) const { return units_[static_cast<std::size_t>(unit)].landed; }
  /// Every slot has been reduced; else std::logic_error.
  void check_reduced() const;
  /// What never came of the unit counts as zero, and it is complete.
  void complete(int unit);
  /// All units are complete: sets the step's norm in the stream's order, and its `landed`.
  void finish(const std::shared_ptr<Step>& step);

  /// The whole gradient of a unit, where the optimizer's tier says: valid from landed() until a reduce() of the
  /// same generation. Where gradients lie on NVMe, the data is null.
  cpu_adam::Gradient gradient(int unit, int generation) const;
  /// Where gradients lie on NVMe; else null.
  GradientSpill* spill() const { return spill_.get(); }
  /// Copies elements [first, first + n) of this step's sum so far into host memory; waits for what is on its
  /// way.
  void read(int unit, std::int64_t first, std::int64_t n, float* destination);

 private:
  struct Slot {
    float* data = nullptr;
    int unit = -1;
    int use = 0;
    std::uint64_t buffer = 0;
  };
  /// What a gradient passes through on its way to the host: a wire slot on the device and, where micro-batches
  /// are summed, a slot for the sum: in host memory (they come one by one) or on the device (they come in a
  /// row).
  struct Pair {
    std::byte* wire = nullptr;
    std::byte* staging = nullptr;
    float* sum = nullptr;
    Event emptied;
  };
  struct UnitState {
    std::byte* planes = nullptr;
    GradientPlanes form;
    std::vector<int> reduced;    ///< micro-batches of each use
    cpu_adam::SquaredNorm norm;  ///< the landing stream's
    bool measured = false;       ///< the norm is known without reading what has landed on NVMe
    bool complete = false;       ///< uses added up and measured, or on its way there in the stream's order
    Event landed;
    std::uint64_t buffer = 0;
  };

  std::byte* planes(const UnitState& state, int generation) const {
    return state.planes + generation * generation_bytes_;
  }
  std::byte* plane(const UnitState& state, int unit, int use) const;
  void move_down(Pair& pair, UnitState& state, int unit, int use, float* gradient, bool first);
  void sum_on_device(UnitState& state, int unit, int use, float* gradient, bool first);
  void flush_sum();
  void complete_on_nvme(int unit);
  void measure(int unit);
  Stream& landing() const;

  const Context& context_;
  bool on_device_;     ///< the optimizer works on the device: gradients stay there
  bool sums_in_rows_;  ///< all micro-batches of a unit come in a row, and are summed before they are moved
  int micro_batches_ = 1;
  int generation_ = 0;
  std::int64_t generation_bytes_ = 0;  ///< from one generation of planes to the next
  Memory slot_memory_, wire_memory_, device_sums_memory_, planes_memory_, staging_memory_, sums_memory_;
  std::vector<Slot> slots_;
  std::array<Pair, kStagingSlots> pairs_;
  std::size_t next_pair_ = 0;
  struct OpenSum {
    Pair* pair = nullptr;
    int unit = -1, use = 0;
  } open_sum_;  ///< micro-batches of this use are being summed on the device
  std::vector<UnitState> units_;
  std::unique_ptr<GradientSpill> spill_;
};

}  // namespace spillway
