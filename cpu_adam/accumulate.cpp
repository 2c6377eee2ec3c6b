#include "accumulate.h"

#include "../core/parallel.h"
#include "kernels.h"

#include <algorithm>
#include <stdexcept>

namespace spillway::cpu_adam {
namespace {
/// Elements of one piece of work.
constexpr std::int64_t kAccumulateBlock = 32768;
}  // namespace

void accumulate(Isa isa, Accumulate how, float* sum, Gradient h, std::int64_t n) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::accumulate", h, n);
  if (n == 0) return;
  if (sum == nullptr) throw std::logic_error("cpu_adam::accumulate: null sum");
  FloatEnvironment exact;
  kernels.accumulate(how, sum, h, n);
}

void accumulate(Isa isa, Workers& workers, Accumulate how, float* sum, Gradient h, std::int64_t n) {
  check_arguments("cpu_adam::accumulate", h, n);
  workers.for_blocks((n + kAccumulateBlock - 1) / kAccumulateBlock, [&](std::int64_t block, int) {
    const std::int64_t begin = block * kAccumulateBlock;
    accumulate(isa, how, sum + begin, advance(h, begin), std::min(kAccumulateBlock, n - begin));
  });
}

}  // namespace spillway::cpu_adam
