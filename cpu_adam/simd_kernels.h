#pragma once
// Private: all kernels of one ISA. See simd.h.
#include "simd_compact8.h"
#include "simd_passes.h"
#include "simd_update.h"

namespace spillway::cpu_adam {
namespace {

template <class L>
constexpr Kernels kernels_for() {
  return {update<L, Fp32Planes>,
          update<L, Bf16Planes>,
          update_compact8<L>,
          update<L, FullPlanes>,
          square_sum<L>,
          accumulate_sum<L>,
          narrow<L>,
          change<L>,
          fold<L>};
}

}  // namespace
}  // namespace spillway::cpu_adam
