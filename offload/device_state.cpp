#include "device_state.h"

#include "../core/device.h"
#include "../core/error.h"
#include "../cpu_adam/accumulate.h"
#include "../cpu_adam/narrow.h"
#include "../cpu_adam/norm.h"

namespace spillway {
DeviceState::DeviceState(Device& device, Workers& workers, cpu_adam::Isa isa) : workers_(&workers), isa_(isa) {
  if (!device.host_addressable()) {
    throw Error(ErrorKind::configuration,
                "the engine has no operations for a device without host-addressable memory yet",
                {.hint = "use --device host"});
  }
}

void DeviceState::cast_and_clear(Stream& stream, void* wire, DType wire_type, float* gradient, std::int64_t n,
                                 int unit) const {
  if (wire_type == DType::fp32) {
    stream.copy(wire, gradient, n * 4, "cast", unit);
    stream.zero(gradient, n * 4, "zero gradient", unit);
    return;
  }
  auto* out = static_cast<BFloat16*>(wire);
  stream.call(
      "cast",
      [workers = workers_, isa = isa_, out, gradient, n] {
        cpu_adam::narrow_and_clear(isa, *workers, out, gradient, n);
      },
      unit);
}

void DeviceState::accumulate(Stream& stream, float* sum, cpu_adam::Gradient h, std::int64_t n, bool first,
                             int unit) const {
  stream.call(
      "accumulate",
      [workers = workers_, isa = isa_, sum, h, n, first] {
        cpu_adam::accumulate(isa, *workers, first ? cpu_adam::Accumulate::assign : cpu_adam::Accumulate::add,
                             sum, h, n);
      },
      unit);
}

void DeviceState::square_sums(Stream& stream, cpu_adam::Gradient gradient, std::int64_t n, double* block_sums,
                              int unit) const {
  stream.call(
      "norm",
      [workers = workers_, isa = isa_, gradient, n, block_sums] {
        cpu_adam::square_sums(isa, *workers, gradient, n, block_sums);
      },
      unit);
}

}  // namespace spillway
