#pragma once
// What a step could cost at the least: that of its slowest lane. docs/step.md defines it.
#include "../core/config.h"
#include "../core/lane_times.h"

#include <span>
#include <string_view>

namespace spillway::cli {

/// Work that can go on beside the computing.
struct LaneWork {
  std::string_view name;  ///< "adam", "drive", "copy_up", ...
  double seconds = 0;     ///< of a step
};

struct StepFloor {
  double seconds = 0;
  std::string_view bound;  ///< the name of what costs most, "compute" where that hides everything else
};

/// Whether a step's updates wait for all of its gradients: with clipping and with the check for finite
/// gradients, unless they are applied a step late.
bool updates_wait(const Config& config);

/// compute: seconds that the device computes in a step; forward: those of them before the first gradient.
///   the updates do not wait:  max(compute, all others)
///   they wait:                (compute - forward) + max(forward, all others)
StepFloor step_floor(double compute, double forward, bool updates_wait, std::span<const LaneWork> beside);

/// From what the lanes did in one step, or in the mean of several, instead of what they could do alone:
///   the updates do not wait:  the busiest lane
///   they wait:                the busiest lane before the first gradient, and the busiest one after it
/// It is never above the step's time.
StepFloor step_floor(const LaneTimes& times, bool updates_wait);

/// What several pieces of time add up to.
LaneTimes& operator+=(LaneTimes& sum, const LaneTimes& more);
/// The mean of so many steps.
LaneTimes operator/(LaneTimes times, double steps);

}  // namespace spillway::cli
