#include "device_state.h"

#include <algorithm>
#include <cstring>

#include "../core/device.h"
#include "../core/error.h"
#include "../core/parallel.h"
#include "../cpu_adam/accumulate.h"
#include "../cpu_adam/norm.h"

namespace spillway {
namespace {

constexpr std::int64_t kCastBlock = 1 << 16;

}  // namespace

DeviceState::DeviceState(Device& device, Workers& workers, cpu_adam::Isa isa) : workers_(&workers), isa_(isa) {
  if (!device.host_addressable()) {
    throw Error(ErrorKind::configuration, "the engine has no operations for a device without host-addressable memory yet",
                {.hint = "use --device host"});
  }
}

void DeviceState::cast(Stream& stream, void* wire, DType wire_type, const float* gradient, std::int64_t n,
                       int unit) const {
  if (wire_type == DType::fp32) {
    stream.copy(wire, gradient, n * 4, "cast", unit);
    return;
  }
  auto* out = static_cast<BFloat16*>(wire);
  stream.call(
      "cast",
      [workers = workers_, out, gradient, n] {
        workers->for_blocks((n + kCastBlock - 1) / kCastBlock, [&](std::int64_t block, int) {
          const std::int64_t end = std::min(n, (block + 1) * kCastBlock);
          for (std::int64_t i = block * kCastBlock; i < end; ++i) out[i] = to_bf16(gradient[i]);
        });
      },
      unit);
}

void DeviceState::accumulate(Stream& stream, float* sum, cpu_adam::Gradient h, std::int64_t n, bool first,
                             int unit) const {
  stream.call(
      "accumulate",
      [workers = workers_, isa = isa_, sum, h, n, first] {
        cpu_adam::accumulate(isa, *workers,
                             first ? cpu_adam::Accumulate::assign : cpu_adam::Accumulate::add, sum, h, n);
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
