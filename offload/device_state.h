#pragma once
// What the engine itself computes on a device: gradients made ready to move, summed and measured. Enqueued on a
// stream; a device whose memory the host can address runs cpu_adam's functions over the given workers.
#include "../cpu_adam/isa.h"
#include "../cpu_adam/planes.h"

#include <cstdint>

namespace spillway {

class Device;
class Stream;
class Workers;

class DeviceState {
 public:
  /// Throws Error (configuration) for a device that this is not built for. `workers` outlives it.
  DeviceState(Device& device, Workers& workers, cpu_adam::Isa isa);

  /// wire[n] = gradient[n], rounded to the type in which gradients move (bf16 to nearest, ties to even); the
  /// gradient is zero afterwards.
  void cast_and_clear(Stream& stream, void* wire, DType wire_type, float* gradient, std::int64_t n,
                      int unit) const;
  /// sum[n] += h[n] in fp32, or +0 + h[n] for the first.
  void accumulate(Stream& stream, float* sum, cpu_adam::Gradient h, std::int64_t n, bool first, int unit) const;
  /// block_sums[norm_blocks(n)] = sums of squares; in host memory, valid when the stream has passed.
  void square_sums(Stream& stream, cpu_adam::Gradient gradient, std::int64_t n, double* block_sums,
                   int unit) const;

 private:
  Workers* workers_;
  cpu_adam::Isa isa_;
};

}  // namespace spillway
