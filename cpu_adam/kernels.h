#pragma once
// Private: what each ISA implements. The public functions check arguments and fix the floating-point state;
// behind this table n >= 0, pointers are valid and the gradient is bf16 or fp32.
#include "../core/update.h"
#include "accumulate.h"
#include "isa.h"
#include "planes.h"

#include <cstdint>

namespace spillway::cpu_adam {

struct Kernels {
  bool (*update_split)(const SplitPlanes&, Gradient, std::int64_t n, const AdamCoefficients&);
  bool (*update_full)(const FullPlanes&, Gradient, std::int64_t n, const AdamCoefficients&);
  double (*square_sum)(Gradient, std::int64_t n);  ///< of one block, n <= kNormBlock
  void (*accumulate)(Accumulate, float* sum, Gradient, std::int64_t n);
  void (*narrow)(BFloat16* narrowed, const float* gradient, std::int64_t n);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

/// Error(configuration) where this processor lacks the ISA.
const Kernels& kernels_of(Isa isa);

/// std::logic_error, naming `function`, for what the public functions do not accept.
void check_arguments(const char* function, Gradient gradient, std::int64_t n);

/// The order in which the 16 sums of a block are added (norm.h).
inline constexpr int kNormLanes = 16;

}  // namespace spillway::cpu_adam
