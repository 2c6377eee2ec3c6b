#pragma once
// One step on its way: what was asked for, and what its gradients came to.
#include "../core/device.h"
#include "../core/update.h"
#include "../cpu_adam/norm.h"

#include <atomic>
#include <cstdint>
#include <vector>

namespace spillway {

/// Shared by the engine, its ticket and the update. Who writes a member stands behind it; who reads it has
/// waited for that.
struct Step {
  // The calling thread, before anybody else sees the step:
  std::vector<HyperParameters> groups;
  int micro_batches = 1;

  // The stream in whose order gradients land, before `landed` passes:
  cpu_adam::SquaredNorm norm;          ///< of the whole gradient, not yet divided by micro_batches
  std::atomic<bool> measured = false;  ///< false still when `landed` has passed: the device has failed

  // The calling thread, in Engine::step():
  Event landed;

  // The update, under its mutex:
  bool settled = false;                          ///< what follows is known
  bool skipped = false;                          ///< a gradient is not finite
  std::int64_t number = 0;                       ///< of the update, from 1; of the last one where skipped
  std::vector<UpdateCoefficients> coefficients;  ///< of each parameter group
};

}  // namespace spillway
