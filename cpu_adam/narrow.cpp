#include "narrow.h"

#include "../core/parallel.h"
#include "kernels.h"

#include <algorithm>
#include <stdexcept>

namespace spillway::cpu_adam {
namespace {
/// Elements of one piece of work: 64 KiB of the gradient, which stay in a cache until they are cleared.
constexpr std::int64_t kNarrowBlock = 16384;
}  // namespace

void narrow(Isa isa, BFloat16* narrowed, const float* gradient, std::int64_t n) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::narrow", {gradient, DType::fp32}, n);
  if (n == 0) return;
  if (narrowed == nullptr) throw std::logic_error("cpu_adam::narrow: null destination");
  kernels.narrow(narrowed, gradient, n);
}

void narrow_and_clear(Isa isa, Workers& workers, BFloat16* narrowed, float* gradient, std::int64_t n) {
  check_arguments("cpu_adam::narrow_and_clear", {gradient, DType::fp32}, n);
  workers.for_blocks((n + kNarrowBlock - 1) / kNarrowBlock, [&](std::int64_t block, int) {
    const std::int64_t begin = block * kNarrowBlock, elements = std::min(kNarrowBlock, n - begin);
    narrow(isa, narrowed + begin, gradient + begin, elements);
    std::fill_n(gradient + begin, elements, 0.0f);
  });
}

}  // namespace spillway::cpu_adam
