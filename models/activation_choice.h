#pragma once
// What a chain of equal layers keeps for its backward pass, layer by layer: chosen from the memory that is
// left.
#include "../core/config.h"
#include "../core/tier.h"

#include <cstdint>
#include <string>

namespace spillway::models {

/// Layers of equal size, one behind the other, and the micro-batches that pass through a layer together: each
/// has its own inputs. Sizes are bytes.
struct ActivationChain {
  std::int64_t layers = 1;
  std::int64_t micro_batches = 1;
  std::int64_t input_bytes = 0;  ///< a layer's input, of one micro-batch
  std::int64_t kept_bytes = 0;   ///< what a kept layer keeps besides, of one micro-batch
  double layer_flops = 0;        ///< of computing that again, for one micro-batch
};

/// The first `moved` layers have their inputs moved out of the device's memory and brought back before they are
/// needed, the last `kept` ones, which are needed first, keep all that they have computed, and those between
/// keep their inputs. What is not kept is computed again. In such a chain no other assignment of the three
/// needs less memory or costs less.
struct ActivationChoice {
  std::int64_t kept = 0;
  std::int64_t moved = 0;
  Tier tier = Tier::host;  ///< where what is moved goes: host or nvme
  /// What passes from layer to layer goes there too, micro-batch by micro-batch: the device then holds a few of
  /// them, however many micro-batches pass together.
  bool moves_between = false;
  bool operator==(const ActivationChoice&) const = default;
};

/// Tensors of input_bytes that the device holds at once, at most: the inputs that stay, the gradient (or the
/// output of the last layer) of each micro-batch, and what a layer works with. Where inputs are moved, one
/// more, so that the next comes back while the device computes.
std::int64_t activation_buffers(const ActivationChain& chain, const ActivationChoice& choice);
/// Of those, and of what kept layers keep.
std::int64_t device_bytes(const ActivationChain& chain, const ActivationChoice& choice);
/// Tensors of input_bytes that have a place outside of the device's memory.
std::int64_t activation_slots(const ActivationChain& chain, const ActivationChoice& choice);
/// Moved in a step for one micro-batch: down and up.
struct ActivationTraffic {
  std::int64_t down = 0, up = 0;
};
ActivationTraffic activation_traffic(const ActivationChain& chain, const ActivationChoice& choice);

/// A byte moved either way counts as so many floating-point operations computed again: a device of 100 TFLOP/s
/// on a bus of 25 GB/s, and a drive a quarter as fast. Moving overlaps with computing, so this is the worst
/// case.
constexpr double kFlopsPerHostByte = 4000, kFlopsPerNvmeByte = 16000;
/// Of one micro-batch, in floating-point operations.
double activation_cost(const ActivationChain& chain, const ActivationChoice& choice);

/// Bytes that are left for activations; negative: no limit.
struct ActivationRoom {
  std::int64_t device = -1;
  std::int64_t host = -1;
  std::int64_t together = -1;     ///< of the two, where the device's memory is the host's own
  std::int64_t nvme_staging = 0;  ///< bytes of host memory that moving to NVMe takes
  bool has_nvme = false;          ///< there is a directory
};

/// A pure function. For `automatic` the choice of the least cost that fits: the number of kept layers is
/// enumerated, the rest follows from it. Without a limit everything is kept. Where nothing fits, what needs the
/// least of the device's memory, for whoever refuses it. Another policy is that of every layer; then what
/// passes between layers is moved only with `host` and `nvme`, and only where it does not fit otherwise.
ActivationChoice choose_activations(ActivationPolicy policy, const ActivationChain& chain,
                                    const ActivationRoom& room);

/// One line: "3 layers kept, 9 recomputed, 2 of them from inputs in host memory: 41.0 MiB of device memory
/// saved, 1.2 GFLOP a micro-batch computed again, 12.0 MiB moved each way".
std::string describe(const ActivationChain& chain, const ActivationChoice& choice);

}  // namespace spillway::models
