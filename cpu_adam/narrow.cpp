#include "narrow.h"

#include "../core/parallel.h"
#include "kernels.h"

#include <algorithm>
#include <stdexcept>

namespace spillway::cpu_adam {
namespace {
/// Elements of one piece of work.
constexpr std::int64_t kNarrowBlock = 65536;
}  // namespace

void narrow(Isa isa, BFloat16* narrowed, const float* gradient, std::int64_t n) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::narrow", {gradient, DType::fp32}, n);
  if (n == 0) return;
  if (narrowed == nullptr) throw std::logic_error("cpu_adam::narrow: null destination");
  kernels.narrow(narrowed, gradient, n);
}

void narrow(Isa isa, Workers& workers, BFloat16* narrowed, const float* gradient, std::int64_t n) {
  check_arguments("cpu_adam::narrow", {gradient, DType::fp32}, n);
  workers.for_blocks((n + kNarrowBlock - 1) / kNarrowBlock, [&](std::int64_t block, int) {
    const std::int64_t begin = block * kNarrowBlock;
    narrow(isa, narrowed + begin, gradient + begin, std::min(kNarrowBlock, n - begin));
  });
}

}  // namespace spillway::cpu_adam
