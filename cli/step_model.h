#pragma once
// The model of `spillway bench step`: units of one size, whose computing is a time in which the device's
// compute stream waits without using a processor, so that what else a step does is visible on a machine of any
// size.
#include "../core/config.h"
#include "../offload/engine.h"
#include "../offload/layout.h"

#include <cstdint>

namespace spillway {
class Device;
}

namespace spillway::cli {

struct StepModelShape {
  std::int64_t parameters = 0;
  int units = 0;
  double compute_seconds = 0;  ///< of a unit and micro-batch, forward (a third) and backward together

  double step_seconds(int micro_batches) const { return units * micro_batches * compute_seconds; }
  /// What of that comes before the step's first gradient: the forward pass of the first micro-batch, or of all
  /// of them where they pass through a unit together.
  double forward_seconds(int micro_batches, AccumulationOrder order) const;
};

/// One parameter for each unit; the first units have one element more where they do not divide evenly.
Layout step_layout(const StepModelShape& shape);

/// One thread calls it, which is the engine's. Engine and device must outlive it.
class StepModel {
 public:
  /// std::logic_error for a device whose memory the host cannot address.
  StepModel(Engine& engine, Device& device, const StepModelShape& shape);

  /// First weights that follow from the place alone.
  void load();
  /// A step from begin_step() to step(). Each backward pass adds to a few elements of the unit's gradient, by
  /// what it finds in its parameters, so that a weight which came too late or not at all shows in the results;
  /// weight decay changes all others.
  StepTicket step();
  std::int64_t steps() const { return steps_; }  ///< so far

 private:
  void forward(int unit);
  void backward(int unit, int micro_batch, const UnitView& view);
  Engine& engine_;
  Device& device_;
  StepModelShape shape_;
  std::int64_t steps_ = 0;
};

}  // namespace spillway::cli
